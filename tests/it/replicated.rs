//! The locks over a Redis primary with replicas and sentinels, on real servers.

use crate::support::run;

#[test]
#[ignore = "needs a Docker engine"]
fn a_primary_that_is_cut_off_and_its_successor_both_grant_the_lock() {
    let expected = "lock=violated,lock.lease_overlap>=1,lock.unexplained=0,tokens=violated,writes.fence=violated,\
        reads.fence=violated,off.data.lost_updates>=1";
    run(&["suites/kleppmann/r1.toml", "--expect", expected]).exits(0);
}
