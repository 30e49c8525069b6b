//! Overlaps of holds that were renewed.

use history::{ClockChange, Event, FailureReason, HoldId, NodeAnswer, Outcome, WhichClock};

use super::{HistoryBuilder, cause, clock, etcd, wall};

#[test]
fn of_a_renewed_hold_the_nodes_count_that_did_the_renewal() {
    let on = |nodes: &[u64]| HistoryBuilder::answers(&nodes.iter().map(|n| (*n, NodeAnswer::Done)).collect::<Vec<_>>());
    let granted = HistoryBuilder::answers(&[(2, NodeAnswer::Granted), (3, NodeAnswer::Granted)]);
    let renewed = |done: &[u64], jump: i64| {
        let (hold, lease_ns) = (HoldId(1), 2_000_000_000);
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).event("worker-1", 1_000, Event::Renew { hold });
        s.event("worker-1", 1_010, Event::Renewed { hold, lease_ns, answers: on(done) });
        // Another renewal, after the other was acquired, changes nothing of what was owed then.
        s.event("worker-1", 2_600, Event::Renew { hold });
        s.event("worker-1", 2_610, Event::Renewed { hold, lease_ns, answers: on(done) });
        s.acquire_on(2, 2, 2_490, 2_490, 2_500, Some(42), granted.clone()).release(2, 2_700).give_up(1, 2_800);
        s.inject(1, wall(jump), "redis-2", 2_300, 3_500);
        s
    };
    // Node 3 did not renew: its lease of 2,000 had expired. The lease on node 2 lasts until 3,000: 500 are left.
    for (done, jump, expected) in [
        (&[1, 2][..], 500, "clock"),
        (&[1, 2], 499, "unexplained"),
        (&[1, 2, 3], 20_000, "unexplained"),
        (&[1], 500, "unexplained"),
    ] {
        assert_eq!(cause(&mut renewed(done, jump)), expected, "renewed on {done:?}, moved by {jump} ms");
    }
    // Some nodes may have executed a renewal that failed.
    let mut s = HistoryBuilder::new();
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::NoMajority);
    s.plan.lock_nodes.truncate(1);
    s.acquire(1, 1, 0, 10, 41).event("worker-1", 500, Event::Renew { hold });
    s.event("worker-1", 510, Event::RenewFailed { hold, outcome, why, answers: on(&[1]) });
    s.acquire(2, 2, 1_400, 1_410, 42).release(2, 1_500).give_up(1, 1_600).inject(1, wall(1_000), "redis-1", 600, 3_500);
    assert_eq!(cause(&mut s), "unexplained", "until 2,500 by its clock");
}

#[test]
fn a_store_that_did_no_renewal_needs_no_event_after_the_lease() {
    // The client takes the renewal for done. If the store did it, the lease lasts until 3,000, and 500 of it are left.
    // Otherwise the lease was over at 2,000, without any event.
    for (said, by_ms, expected) in [
        (NodeAnswer::Done, 500, "clock"),
        (NodeAnswer::Done, 499, "unexplained"),
        (NodeAnswer::None, 500, "unexplained"),
    ] {
        let (hold, lease_ns) = (HoldId(1), 2_000_000_000);
        let mut s = HistoryBuilder::new();
        s.plan.servers = etcd();
        s.acquire(1, 1, 0, 10, 41).event("worker-1", 1_000, Event::Renew { hold });
        s.event("worker-1", 1_010, Event::Renewed { hold, lease_ns, answers: vec![("etcd".into(), said)] });
        s.acquire(2, 2, 2_490, 2_500, 42).release(2, 2_700).give_up(1, 2_800);
        s.inject(1, clock(WhichClock::Both, ClockChange::JumpMs(by_ms)), "redis-2", 2_300, 3_500);
        assert_eq!(cause(&mut s), expected, "the store says {said:?}, moved by {by_ms} ms");
    }
}
