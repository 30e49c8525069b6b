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
