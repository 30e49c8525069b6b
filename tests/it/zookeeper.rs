//! The locks over ZooKeeper on real servers.

use std::sync::{Mutex, PoisonError};

use crate::support::run;

/// One ensemble at a time: two of them are six JVMs, beside which a client of a busy machine may begin too late.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
#[ignore = "needs a Docker engine"]
fn czxids_fence_a_holder_that_was_paused_for_longer_than_its_session() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let expected =
        "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,writes.fence.stale_accepted=0";
    for plan in ["suites/kleppmann/z1.toml", "suites/kleppmann/z1-herd.toml"] {
        run(&[plan, "--expect", &format!("{expected},writes.fence.stale_rejected>=1")]).exits(0);
    }
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn zookeeper_keeps_clients_apart_without_faults() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for backend in ["zookeeper", "zookeeper-herd"] {
            // A control run is inconclusive after a stall of a quarter of the lease, and six JVMs stall this machine.
            run(&["--backend", backend, "--lease", "8s", "--nemesis", "none", "--time", "15s"]).exits(0);
        }
    }
}
