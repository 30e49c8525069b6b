//! Attempts that wait in a queue.

use history::{Event, Record, Tail};

use super::{FailureReason, HistoryBuilder, LivenessVerdict, Property, StuckKind, behind, check, judged};

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

/// Worker 1 released the key at 50. Worker 2 waits from 45 on, and sees nobody before it: free from 2,050 on.
fn waiting() -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.plan.workload.workers = 3;
    s.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 20).release(1, 50);
    behind(&mut s, 2, "worker-2", 45);
    s
}

fn found(builder: &HistoryBuilder) -> LivenessVerdict {
    match builder.verdicts().properties.get("liveness") {
        Some(Property::Liveness(found)) => found.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_counts_until_the_fault_that_interrupts_it() {
    for (requested, is_stuck) in [(5_050, false), (5_051, true), (29_900, true)] {
        let mut s = waiting();
        s.acquire_failed(2, 30_000, FailureReason::Cancelled, Vec::new());
        s.pause(1, "redis-1", requested + 5, 40_000);
        let found = found(&s);
        let told: Vec<(f64, f64)> = found.stuck.iter().map(|stuck| (stuck.at_ms, stuck.free_ms)).collect();
        let at = requested as f64;
        assert_eq!(told, Vec::from_iter(is_stuck.then_some((at, at - 2_050.0))), "requested at {requested}");
    }
    // Worker 2 gets the key at 42,000. It may have been behind another attempt for most of the time before the fault.
    for (behind_until, is_stuck) in [(26_899, true), (26_900, false), (29_950, false)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50).acquire_knowing(2, 2, 20, behind_until, 42_000, 42);
        behind(&mut s, 2, "worker-2", 45);
        s.release(2, 42_010).pause(1, "redis-1", 29_905, 40_000);
        assert_eq!(!judged(&s).1.is_empty(), is_stuck, "behind another attempt until {behind_until}");
    }
}

#[test]
fn the_longest_undisturbed_part_of_a_wait_counts() {
    // The wait is disturbed at 6,000 and at 20,000, and ends at 24,000. Nothing is disturbed from 7,020 to 20,000.
    let mut s = waiting();
    s.acquire_failed(2, 24_000, FailureReason::Cancelled, Vec::new());
    s.pause(1, "redis-1", 6_005, 7_000).pause(2, "redis-1", 20_005, 20_100);
    let told: Vec<(f64, f64)> = found(&s).stuck.iter().map(|stuck| (stuck.at_ms, stuck.free_ms)).collect();
    assert_eq!(told, [(20_000.0, 12_980.0)]);
}

#[test]
fn a_disturbance_that_is_noticed_late_leaves_the_wait_before_it() {
    // Worker 2 cancels at 29,950, and then another process reports a stall.
    for (from, is_stuck) in [(5_050, false), (5_051, true), (29_900, true)] {
        let mut s = waiting();
        s.acquire_failed(2, 29_950, FailureReason::Cancelled, Vec::new()).stall("worker-1", from, 30_500);
        assert_eq!(!judged(&s).1.is_empty(), is_stuck, "stalled from {from}");
    }
}

#[test]
fn an_interrupted_wait_proves_nothing_if_another_client_had_the_key() {
    // Worker 3 gets the key at 31,000. It was behind another attempt until 40, or until 29,901.
    for (behind_until, expected) in [(40, vec![]), (29_901, vec![(StuckKind::Waiting, 2)])] {
        let mut s = waiting();
        s.acquire_knowing(3, 3, 30, behind_until, 31_000, 42).release(3, 31_010);
        s.acquire_failed(2, 32_000, FailureReason::Cancelled, Vec::new()).pause(1, "redis-1", 29_905, 30_500);
        assert_eq!(judged(&s).1, expected, "behind another attempt until {behind_until}");
    }
}
