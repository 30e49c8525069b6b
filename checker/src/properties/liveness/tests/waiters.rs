//! Attempts that wait in a queue.

use history::{Event, Record, Tail};

use super::{FailureReason, HistoryBuilder, Property, StuckKind, behind, check, judged};

#[test]
fn a_waiter_is_judged_by_its_own_wait() {
    // The key is free from 2,050 on, and nobody tries. Worker 2 waits from 9,005 on.
    for (given_up, expected) in [(12_005, vec![]), (12_006, vec![(StuckKind::Waiting, 2)])] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50).try_to_acquire(2, 2, 9_000);
        behind(&mut s, 2, "worker-2", 9_005);
        s.acquire_failed(2, given_up, FailureReason::Cancelled, Vec::new());
        assert_eq!(judged(&s).1, expected, "given up at {given_up}");
    }
}

#[test]
fn an_open_waiter_of_a_cut_record_may_get_the_key() {
    let mut s = HistoryBuilder::new();
    s.plan.workload.workers = 3;
    s.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 20).try_to_acquire(3, 3, 30).release(1, 50);
    behind(&mut s, 2, "worker-2", 25);
    behind(&mut s, 3, "worker-3", 35);
    s.acquire_failed(2, 5_051, FailureReason::Cancelled, Vec::new());
    s.event("worker-3", 5_100, Event::Clocks { wall_ns: 0, boot_ns: 0 });
    assert_eq!(judged(&s).1, [(StuckKind::Waiting, 2)]);
    // The next event of worker 3 may say that worker 3 has the key.
    let is_lost = |record: &Record| match record.event {
        Event::Finished => record.process.as_str() == "worker-3",
        Event::End => true,
        _ => false,
    };
    let mut records = s.records();
    records.retain(|record| !is_lost(record));
    let verdicts = check(records, Tail::Whole);
    let Some(Property::Liveness(found)) = verdicts.properties.get("liveness") else { panic!() };
    assert_eq!(found.stuck.len(), 0);
}

#[test]
fn a_waiter_in_a_queue_that_nobody_sees_is_stuck_if_only_its_client_ends_the_wait() {
    // Worker 2 waits from 20 on, and worker 3 from 30 on. The key is free from 2,050 on at the latest.
    let queue = |given_up| {
        let mut s = HistoryBuilder::new();
        s.plan.workload.workers = 3;
        s.plan.servers.shows_waiting = false;
        s.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 20).try_to_acquire(3, 3, 30).release(1, 50);
        s.acquire_failed(2, given_up, FailureReason::Cancelled, Vec::new());
        s.acquire_failed(3, given_up + 9, FailureReason::Cancelled, Vec::new());
        s
    };
    assert_eq!(judged(&queue(5_050)).1, []);
    assert_eq!(judged(&queue(5_051)).1, [(StuckKind::Unanswered, 2)]);
    // The service tells who waits, so this attempt may have had the key.
    let mut s = queue(5_051);
    s.plan.servers.shows_waiting = true;
    assert_eq!(judged(&s).1, []);
    // An answer may have been lost, and a client at a point reads none.
    let mut s = queue(5_051);
    s.pause(1, "worker-2", 60, 65);
    assert_eq!(judged(&s).1, []);
    let mut s = queue(5_051);
    s.at_point(2, 60, 70).at_point(3, 60, 70);
    assert_eq!(judged(&s).1, []);
}
