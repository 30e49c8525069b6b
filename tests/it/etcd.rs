//! The two locks of etcd on real servers: a lease that expires in the queue, and etcd's own Lock service.

use std::fs;

use serde_json::Value;

use crate::support::{RealRun, run};

/// How many events of this name the run has in its history, and the failed attempts among them with this reason.
fn events(run: &RealRun, name: &str, why: Option<&str>) -> usize {
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let events = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == name && why.is_none_or(|why| event["why"] == why)).count()
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_lock_service_of_etcd_keeps_clients_apart_and_its_revisions_fence_a_paused_holder() {
    let expected =
        "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,writes.fence.stale_accepted=0";
    let nemesis = ["--backend", "etcd-server-lock", "--nemesis", "pause", "--time", "20s"];
    run(&[&nemesis[..], &["--expect", expected]].concat()).exits(0);
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_revision_of_the_lock_key_guards_the_resource_without_an_order_of_tokens() {
    let expected = "lock=violated,lock.stale_holder>=1,lock.unexplained=0,resource=upheld,off.data.lost_updates>=1,\
        writes.fence.stale_rejected>=1,guard.data.refused>=1,guard.data.lost_updates=0,guard.data.stale_accepted=0";
    let flags = ["--backend", "etcd", "--resource", "etcd", "--arms", "off,writes,guard"];
    let load = ["--nemesis", "pause@before-write+6s", "--time", "10s", "--workers", "2", "--rate", "8"];
    run(&[&flags[..], &load, &["--expect", expected]].concat()).exits(0);
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_lease_that_runs_out_in_the_queue_of_etcd_gives_no_hold() {
        let run = run(&["suites/kleppmann/e3-etcd.toml", "--expect", "lock=upheld,lock.without_key=0"]).exits(0);
        assert_eq!((events(&run, "acquire-failed", Some("lost")), events(&run, "without-key", None)), (1, 0));
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn the_lock_service_of_etcd_3_4_grants_to_a_lease_that_ran_out_in_the_queue_and_validity_refuses_it() {
        let run = run(&["suites/kleppmann/e3-server-lock.toml", "--expect", "lock=upheld,lock.without_key=1"]).exits(0);
        assert_eq!((events(&run, "acquire-failed", Some("validity")), events(&run, "without-key", None)), (1, 1));
    }
}
