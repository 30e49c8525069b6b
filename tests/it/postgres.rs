//! The locks over Postgres on real servers.

use crate::support::run;

/// A holder acts after a pause that is longer than its lease, and the token fences it.
const FENCED: &str = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
    writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0";

#[test]
#[ignore = "needs a Docker engine"]
fn counters_of_a_row_fence_a_holder_that_was_paused() {
    let flags = ["--backend", "postgres", "--nemesis", "pause@before-write+6s", "--time", "10s", "--workers", "2"];
    run(&[&flags[..], &["--rate", "8", "--expect", FENCED]].concat()).exits(0);
}

#[test]
#[ignore = "needs a Docker engine"]
fn conditional_updates_of_a_resource_refuse_a_holder_that_was_paused() {
    let lost = "resource=upheld,off.data.lost_updates>=1,reads.data.lost_updates=0";
    let flags = ["--backend", "redis", "--resource", "postgres", "--nemesis", "pause@before-write+6s"];
    let load = ["--time", "10s", "--workers", "2", "--rate", "8"];
    let expected = format!("{FENCED},{lost}");
    let done = run(&[&flags[..], &load, &["--expect", &expected]].concat()).exits(0);
    assert!(done.ran.stdout.contains("resource postgres"), "{}", done.ran.stdout);
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_counter_fences_an_advisory_session_that_the_server_ended() {
    let flags = ["--backend", "postgres-advisory", "--nemesis", "pause@before-write+6s", "--time", "10s"];
    run(&[&flags[..], &["--workers", "2", "--rate", "8", "--expect", FENCED]].concat()).exits(0);
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_counter_fences_a_transaction_that_the_server_ended() {
    let flags = ["--backend", "postgres-row", "--nemesis", "pause@before-write+6s", "--time", "10s"];
    let expected = format!("{FENCED},off.data.lost_updates>=1");
    run(&[&flags[..], &["--workers", "2", "--rate", "8", "--expect", &expected]].concat()).exits(0);
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_killed_server_keeps_the_rows_of_its_table() {
        // Few holds, because the work is long.
        let expected = "lock=upheld,lock.windows=0,tokens=upheld,off.data.lost_updates=0,activity=inconclusive";
        let flags = ["--backend", "postgres", "--nemesis", "kill:postgres-1@1500ms+1s", "--lease", "8s"];
        // The holder works on while the server is away.
        let work = ["--work", "5s..6s", "--time", "16s"];
        run(&[&flags[..], &work, &["--workers", "2", "--rate", "2", "--expect", expected]].concat()).exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_killed_resource_goes_on_over_its_store() {
        let expected = "lock=upheld,resource=upheld,resource.restarts=1,off.data.lost_updates=0";
        let flags = ["--backend", "redis", "--resource", "postgres", "--nemesis", "kill:resource@3s+1s"];
        // A client waits for the resource for longer than a short lease. One that does not know whether its write
        // arrived keeps its key for the lease; so there are more keys.
        let load = ["--time", "8s", "--rate", "20", "--lease", "15s", "--keys", "4"];
        run(&[&flags[..], &load, &["--expect", expected]].concat()).exits(0);
    }
}
