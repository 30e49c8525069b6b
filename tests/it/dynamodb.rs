//! The lock in a record of a DynamoDB table, on a real stand-in of the service.

use crate::support::run;

#[test]
#[ignore = "needs a Docker engine"]
fn a_counter_that_survives_releases_fences_a_holder_that_was_paused() {
    let expected = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
        off.data.lost_updates>=1,tokens=upheld,writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0";
    let flags = ["--backend", "dynamodb", "--nemesis", "pause@before-write+6s", "--time", "10s", "--workers", "2"];
    run(&[&flags[..], &["--rate", "8", "--expect", expected]].concat()).exits(0);
}
