use history::{
    ClientId, ClockChange, Event, FailureReason, Fault, FaultKind, FaultPhase, HoldId, Key, Mode, Point, Promise,
    Until, Wait, WaitId, WhichClock, fault,
};

use crate::{
    cause::Cause,
    history_builder::{HistoryBuilder, ms},
    properties::{LockVerdict, WindowKind},
    verdict::Verdict,
};

/// Worker 1 holds from 10, is promised the key until 1,978, and is killed at 100.
fn killed() -> HistoryBuilder {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
    builder
}

fn cuts(lock: &LockVerdict) -> Vec<(Vec<HoldId>, Option<f64>)> {
    let found = lock.windows.iter().filter(|w| w.kind == WindowKind::CutShort);
    found.map(|w| (w.holds.clone(), w.cut_ms)).collect()
}

#[test]
fn a_grant_inside_the_promise_to_a_killed_client_is_cut_short() {
    for (ok, left) in [(101, Some(1_877.0)), (1_977, Some(1.0)), (1_978, None), (2_500, None)] {
        let mut builder = killed();
        let lock = builder.acquire(2, 2, ok - 5, ok, 42).release(2, ok + 10).lock();
        assert_eq!(cuts(&lock).first().map(|cut| cut.1), left.map(Some), "acquired at {ok}");
        assert_eq!((lock.cut_short, lock.lease_overlap), (u64::from(left.is_some()), 0));
        assert_eq!(lock.verdict == Verdict::Violated, left.is_some());
    }
}

#[test]
fn a_cut_promise_has_no_overlap_and_a_story() {
    let mut builder = killed();
    let window = builder.acquire(2, 2, 500, 510, 42).release(2, 600).window();
    assert_eq!((window.overlap_ms, window.at_ms, window.causes.clone()), (0.0, 510.0, vec![Cause::Unexplained.into()]));
    assert_eq!(
        window.headline,
        "k0: worker-2 acquired 1.47 s before the end of the promise to worker-1, which was killed"
    );
    assert!(window.story.iter().any(|line| line.who == "nemesis" && line.what == "killed worker-1"), "{window:#?}");
}

#[test]
fn a_grant_before_the_kill_overlaps_and_cuts_nothing() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 50, 60, 42).kill(1, "worker-1", 100).release(2, 200);
    let lock = builder.lock();
    assert_eq!((lock.lease_overlap, lock.cut_short), (1, 0));
}

#[test]
fn a_hold_that_ended_before_the_kill_is_not_cut_short() {
    for end in [Event::Release { hold: HoldId(1) }, Event::LossNoticed { hold: HoldId(1) }] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).event("worker-1", 99, end).kill(1, "worker-1", 100);
        assert_eq!(builder.acquire(2, 2, 500, 510, 42).release(2, 600).lock().verdict, Verdict::Upheld);
    }
}

#[test]
fn a_release_that_left_after_the_kill_was_requested_gives_the_key_back() {
    for (sent, left) in [(105, None), (510, None), (511, Some(1.0))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
        builder.event("worker-1", sent, Event::Release { hold: HoldId(1) });
        let lock = builder.acquire(2, 2, 500, 510, 42).release(2, 600).lock();
        assert_eq!(cuts(&lock).first().map(|cut| cut.1), left.map(Some), "released at {sent}");
    }
}

#[test]
fn only_the_first_grant_inside_the_promise_counts() {
    let mut builder = killed();
    builder.acquire(2, 2, 500, 510, 42).release(2, 520).acquire(3, 2, 530, 540, 43).release(3, 600);
    assert_eq!(cuts(&builder.lock()), [(vec![HoldId(1), HoldId(2)], Some(1_468.0))]);
    // The number of a hold says nothing about the order.
    let mut builder = killed();
    builder.plan.workload.workers = 3;
    builder.acquire(5, 3, 500, 510, 42).release(5, 520).acquire(4, 2, 530, 540, 43).release(4, 600);
    assert_eq!(cuts(&builder.lock()), [(vec![HoldId(1), HoldId(5)], Some(1_468.0))]);
}

#[test]
fn a_renewal_extends_the_promise_that_is_cut() {
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).renew(1, 50, 60).kill(1, "worker-1", 100);
    let lock = builder.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).lock();
    assert_eq!(cuts(&lock), [(vec![HoldId(1), HoldId(2)], Some(18.0))]);
}

#[test]
fn a_killed_hold_whose_end_was_seen_is_known_until_the_end_of_its_renewed_promise() {
    // The promise ends at 2,978. The write arrives after the kill, so the end of the entitlement is seen then.
    for (ok, left) in [(2_500, Some(478.0)), (2_977, Some(1.0)), (2_978, None)] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).renew(1, 1_000, 1_010).write(1, 1, 1_050, 1_200).kill(1, "worker-1", 1_100);
        let lock = builder.acquire(2, 2, ok - 5, ok, 42).release(2, ok + 10).lock();
        assert_eq!(cuts(&lock).first().map(|cut| cut.1), left.map(Some), "acquired at {ok}");
        assert_eq!(lock.verdict == Verdict::Violated, left.is_some(), "acquired at {ok}");
    }
}

#[test]
fn a_hold_that_was_granted_before_the_killed_one_cuts_nothing() {
    let mut builder = HistoryBuilder::new();
    // The other client was slow to read its answer: the queue of the service has it first.
    builder.acquire(1, 1, 0, 10, 41).with_place(8).kill(1, "worker-1", 100);
    let lock = builder.acquire(2, 2, 5, 200, 42).with_place(7).release(2, 300).lock();
    assert_eq!(lock.cut_short, 0);
}

#[test]
fn a_session_promises_no_time() {
    let mut builder = killed();
    builder.plan.servers.promise = Promise::Session;
    assert_eq!(builder.acquire(2, 2, 500, 510, 42).release(2, 600).lock().verdict, Verdict::Upheld);
}

#[test]
fn what_removed_the_key_is_the_cause() {
    let mut builder = killed();
    let jump = fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(3_000) };
    let jump = Fault::new(jump, std::time::Duration::from_millis(100));
    for n in 1..=3 {
        builder.inject(n + 1, jump.clone(), ["redis-1", "redis-2", "redis-3"][n as usize - 1], 300, 400);
    }
    let window = builder.acquire(2, 2, 500, 510, 42).release(2, 600).window();
    assert_eq!((window.kind, window.causes), (WindowKind::CutShort, vec![Cause::Fault(FaultKind::Clock).into()]));
}

#[test]
fn if_the_order_of_the_grants_is_unknown_both_promises_must_run_at_one_instant() {
    // Hold 2 was sent before hold 1 was acquired, so either grant may be the first. Its promise ends at 1,983.
    for (ok, expected) in [(1_500, 1), (2_500, 0)] {
        let mut builder = HistoryBuilder::renewing(1_000);
        builder.acquire(1, 1, 0, 10, 41).renew(1, 1_000, 1_005).kill(1, "worker-1", 1_100);
        let lock = builder.acquire(2, 2, 5, ok, 42).release(2, ok + 100).lock();
        assert_eq!((lock.cut_short, lock.dead_claims.len()), (expected, 1 - expected as usize), "acquired at {ok}");
    }
}

#[test]
fn the_lock_of_a_program_may_end_with_its_process() {
    let mut builder = killed();
    let lock = builder.acquire(2, 2, 500, 510, 42).release(2, 600).by_program().lock();
    assert_eq!((lock.verdict, lock.cut_short), (Verdict::Upheld, 0));
}

#[test]
fn a_release_that_the_record_lost_cuts_nothing_short() {
    // The record of worker 1 ends at 40. It was dead by 120, so it may have released the key until then.
    let judged = |alter: &dyn Fn(&mut HistoryBuilder)| {
        let mut builder = killed();
        alter(&mut builder);
        let lock = builder.lose_end("worker-1", 41).acquire(2, 2, 500, 510, 42).release(2, 600).lock();
        (lock.verdict, lock.cut_short, lock.reasons.len())
    };
    assert_eq!(judged(&|_| {}), (Verdict::Inconclusive, 0, 1));
    // In a planned wait a client releases nothing. The first wait ends after the death, the second at its stamp.
    assert_eq!(judged(&|b| _ = b.work(1, 40, 81)), (Verdict::Violated, 1, 0));
    assert_eq!(judged(&|b| _ = b.work(1, 40, 80)), (Verdict::Inconclusive, 0, 1));
    // A client that renews may have noticed the loss of its hold meanwhile.
    let renews = |b: &mut HistoryBuilder| b.plan.workload.renew = Some(std::time::Duration::from_millis(500));
    assert_eq!(judged(&|b| renews(b.work(1, 40, 81))), (Verdict::Inconclusive, 0, 1));
    // At a point a client releases nothing, as long as the controller keeps the client there.
    assert_eq!(judged(&|b| _ = b.at_point(1, 40, 300)), (Verdict::Violated, 1, 0));
    assert_eq!(judged(&|b| _ = b.at_point(1, 40, 300).point_released(0, 60)), (Verdict::Inconclusive, 0, 1));
    // A client that gave the hold up releases nothing either.
    assert_eq!(judged(&|b| _ = b.give_up(1, 40)), (Verdict::Violated, 1, 0));
}

#[test]
fn a_clock_that_may_have_been_set_may_have_ended_a_wait_early() {
    // Worker 1 begins a wait of 81 at 40, with which its record ends. It was dead by 120.
    let judged = |alter: &dyn Fn(&mut HistoryBuilder)| {
        let mut builder = killed();
        alter(builder.work(1, 40, 81));
        let lock = builder.lose_end("worker-1", 41).acquire(2, 2, 500, 510, 42).release(2, 600).lock();
        (lock.verdict, lock.cut_short, lock.reasons.len())
    };
    let lasting = std::time::Duration::from_millis(20);
    let set = fault::Clock { clock: WhichClock::Monotonic, change: ClockChange::JumpMs(3_000) };
    let (clock, pause) = (Fault::new(set, lasting), Fault::new(fault::Pause {}, lasting));
    // A fault is healed 5 ms after its end. Of a clock that was right again before the wait, nothing follows.
    for (fault, node, (from, to), expected) in [
        (&clock, "worker-1", (50, 70), (Verdict::Inconclusive, 0, 1)),
        (&clock, "worker-2", (50, 70), (Verdict::Violated, 1, 0)),
        (&pause, "worker-1", (50, 70), (Verdict::Violated, 1, 0)),
        (&clock, "worker-1", (20, 35), (Verdict::Inconclusive, 0, 1)),
        (&clock, "worker-1", (20, 34), (Verdict::Violated, 1, 0)),
    ] {
        let found = judged(&|b| _ = b.inject(2, fault.clone(), node, from, to));
        assert_eq!(found, expected, "{fault:?} of {node} from {from} to {to}");
    }
    // Nothing shows that the clock was set, and it may have been all the same. The missing proof is a reason too.
    let unproved = |b: &mut HistoryBuilder| {
        b.fault(2, FaultKind::Clock, "worker-1", 50, FaultPhase::Requested { asked_ns: 20_000_000, hold: None });
        b.fault(2, FaultKind::Clock, "worker-1", 55, FaultPhase::Injected);
    };
    assert_eq!(judged(&unproved), (Verdict::Inconclusive, 0, 2));
}

#[test]
fn an_overlap_ends_where_the_record_of_a_killed_client_ends() {
    // Worker 1 is killed at 100, and worker 2 acquires at 60.
    for (lost_from, expected) in [(500, (1, Verdict::Violated, 40.0)), (91, (1, Verdict::Violated, 30.0))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).event("worker-1", 90, Event::Watermark).kill(1, "worker-1", 100);
        let lock = builder.lose_end("worker-1", lost_from).acquire(2, 2, 50, 60, 42).release(2, 200).lock();
        assert_eq!((lock.lease_overlap, lock.verdict, lock.overlap_ms_max), expected, "lost from {lost_from}");
    }
    // Its record ends before 60: it may have released the key in between.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100).lose_end("worker-1", 11);
    let lock = builder.acquire(2, 2, 50, 60, 42).release(2, 200).lock();
    assert_eq!((lock.lease_overlap, lock.verdict, lock.reasons.len()), (0, Verdict::Inconclusive, 1));
    // The second client was killed as it acquired.
    for (record_end, expected) in [(11, (0, Verdict::Inconclusive, 1)), (91, (1, Verdict::Violated, 0))] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).event("worker-1", 90, Event::Watermark).kill(1, "worker-1", 100);
        builder.lose_end("worker-1", record_end).acquire(2, 2, 50, 60, 42).kill(2, "worker-2", 60);
        let lock = builder.lock();
        assert_eq!((lock.lease_overlap, lock.verdict, lock.reasons.len()), expected, "ends before {record_end}");
    }
    // The grant itself came inside the entitlement of another hold: that needs no later event.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 41).acquire(2, 2, 50, 60, 42).kill(1, "worker-2", 100).lose_end("worker-2", 61);
    let lock = builder.release(1, 80).lock();
    assert_eq!((lock.lease_overlap, lock.verdict, lock.overlap_ms_max), (1, Verdict::Violated, 0.0));
}

#[test]
fn a_client_that_died_unplanned_promises_nothing_more() {
    // Worker 1 was well at 90, and its death was noticed at 120. A session may have ended with it.
    for promise in [Promise::Lease, Promise::Session] {
        let mut builder = HistoryBuilder::new();
        builder.plan.servers.promise = promise;
        builder.acquire(1, 1, 0, 10, 41).work(1, 20, 1_400).event("worker-1", 90, Event::Watermark);
        builder.unplanned(1, FaultKind::Kill, "worker-1", (90, 120), 1_350).unfinished.push("worker-1");
        builder.event("worker-1#2", 1_300, crate::history_builder::started(history::Role::Worker));
        let lock = builder.acquire(2, 2, 500, 510, 42).release(2, 600).lock();
        assert_eq!((lock.verdict, lock.windows.len()), (Verdict::Inconclusive, 0), "{promise:?}");
    }
}

#[test]
fn a_point_is_left_under_the_hold_whose_client_waits_there() {
    for (released, expected) in [(None, (Verdict::Violated, 1)), (Some(60), (Verdict::Inconclusive, 0))] {
        let mut b = HistoryBuilder::new();
        (b.plan.workload.keys, b.plan.workload.locks_per_section) = (2, 2);
        // The client's last attempt is at another key, and has failed.
        b.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 1, 12).with_key(2, "k1");
        b.acquire_failed(2, 30, FailureReason::Held, Vec::new()).at_point(1, 40, 300);
        if let Some(at) = released {
            b.point_released(0, at);
        }
        b.kill(1, "worker-1", 100).lose_end("worker-1", 41);
        let lock = b.acquire(3, 2, 500, 510, 42).release(3, 600).lock();
        assert_eq!((lock.verdict, lock.cut_short), expected, "released at {released:?}");
    }
}

#[test]
fn a_client_leaves_a_point_by_itself_when_the_bound_is_over() {
    // The record of worker 1 ends at the point, at 40. It was dead by 120.
    for (at_most, point, expected) in [
        (81_000, Point::BeforeWrite, (Verdict::Violated, 1)),
        // The client is told 80 ms.
        (80_900, Point::BeforeWrite, (Verdict::Inconclusive, 0)),
        (80_000, Point::BeforeWrite, (Verdict::Inconclusive, 0)),
        (80_000, Point::AfterRead, (Verdict::Violated, 1)),
    ] {
        let mut b = killed();
        let (worker, at_most) = ("worker-1".into(), std::time::Duration::from_micros(at_most));
        let (id, until, after) = (WaitId(1), Until::Time, std::time::Duration::ZERO);
        b.plan.waits.push(Wait { id, worker, point, until, at_most, after });
        b.at_point(1, 40, 300).lose_end("worker-1", 41);
        let lock = b.acquire(2, 2, 500, 510, 42).release(2, 600).lock();
        assert_eq!((lock.verdict, lock.cut_short), expected, "at most {at_most:?} {point}");
    }
}

#[test]
fn a_process_that_survived_its_kill_is_judged_as_any_other() {
    // The agent waits 5 s for a proof.
    for told in [150, 5_120] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).release(1, 50).kill_refused(1, "worker-1", 100, told);
        s.acquire(2, 1, 200, 210, 42).acquire(3, 2, 300, 310, 43).release(3, 400).release_refused(2, 450);
        let lock = s.lock();
        let found = (lock.verdict, lock.lease_overlap, lock.cut_short);
        assert_eq!(found, (Verdict::Violated, 1, 0), "called unproved at {told}");
    }
}

#[test]
fn a_killed_hold_costs_only_the_acquisitions_of_its_own_key() {
    // The clients of worker 1 hold 3,000 keys when it is killed, and notice the loss before they are dead. A client of
    // worker 2 takes 10,000 other keys inside the promises to them, and then one of these.
    let (killed, others) = (3_000_u32, 10_000_u32);
    let mut b = HistoryBuilder::new();
    b.plan.workload.clients_per_worker = killed;
    let take = |b: &mut HistoryBuilder, worker: &str, client: u32, id: u32, key: u32, at: u64| {
        let (attempt, key) = (HoldId(id.into()), Key::numbered(key));
        let (client, intended, mode) = (ClientId(client), ms(at), Mode::Write);
        b.event(worker, at, Event::Acquire { client, attempt, key, intended, mode, above: None });
        let acquired = Event::Acquired {
            attempt,
            token: None,
            lease_ns: 2_000_000_000,
            granted_after: ms(at),
            promised_from: None,
            place: None,
            valid_ns: 0,
            answers: Vec::new(),
        };
        b.event(worker, at, acquired);
    };
    (0..killed).for_each(|client| take(&mut b, "worker-1", client, client + 1, client, 10));
    b.kill(1, "worker-1", 100);
    (1..=killed).for_each(|id| _ = b.event("worker-1", 105, Event::LossNoticed { hold: HoldId(id.into()) }));
    let first = killed + 1;
    for n in 0..others {
        let at = 200 + u64::from(n) / 10;
        take(&mut b, "worker-2", killed, first + n, killed + n, at);
        b.event("worker-2", at, Event::Release { hold: HoldId((first + n).into()) });
    }
    take(&mut b, "worker-2", killed, first + others, 7, 1_500);
    let lock = b.lock();
    assert_eq!(cuts(&lock), [(vec![HoldId(8), HoldId((first + others).into())], Some(488.0))]);
}

#[test]
fn a_hold_of_another_key_with_the_same_id_is_not_cut_short() {
    // Hold 1 of worker 1 has closed when worker 2 gives its id to an attempt at another key, and is killed at 600.
    let mut b = HistoryBuilder::new();
    b.plan.workload.workers = 3;
    b.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
    b.event("worker-1", 105, Event::LossNoticed { hold: HoldId(1) });
    let (client, attempt, key, intended, mode) = (ClientId(1), HoldId(1), Key::from("k1"), ms(500), Mode::Write);
    b.event("worker-2", 500, Event::Acquire { client, attempt, key, intended, mode, above: None });
    let acquired = Event::Acquired {
        attempt,
        token: None,
        lease_ns: 2_000_000_000,
        granted_after: ms(500),
        promised_from: None,
        place: None,
        valid_ns: 0,
        answers: Vec::new(),
    };
    b.event("worker-2", 510, acquired).kill(2, "worker-2", 600);
    b.event("worker-2", 605, Event::LossNoticed { hold: HoldId(1) });
    b.acquire(3, 3, 606, 610, 43).release(3, 650);
    let verdicts = b.verdicts();
    assert!(!verdicts.reasons.iter().any(|why| why.contains("contradicts itself")), "{:?}", verdicts.reasons);
    assert_eq!(cuts(&b.lock()), []);
}

/// The killed hold 1, the hold 2 in these modes, and the key of the window.
fn across_levels(first: (&str, Mode), second: (&str, Mode)) -> Vec<(Vec<HoldId>, Option<f64>, String)> {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100).acquire(2, 2, 500, 510, 42).release(2, 600);
    for (hold, (key, mode)) in [(1, first), (2, second)] {
        s.in_mode(hold, mode);
        if key == "k1" {
            s.of_child(hold, None);
        }
    }
    let windows = s.lock().windows;
    windows.into_iter().map(|w| (w.holds, w.cut_ms, w.key.as_str().to_owned())).collect()
}

#[test]
fn a_promise_is_cut_short_across_the_levels_of_a_hierarchy() {
    for parent in Mode::ALL {
        for child in [Mode::Read, Mode::Write] {
            let is_conflict = parent == Mode::Write || parent.below().is_some() && child == Mode::Write;
            let expected = || (vec![HoldId(1), HoldId(2)], Some(1_468.0), "k1".to_owned());
            let expected = Vec::from_iter(is_conflict.then(expected));
            let told = format!("{parent} of the parent, {child} of the child");
            assert_eq!(across_levels(("k0", parent), ("k1", child)), expected, "{told}; the parent's holder is killed");
            assert_eq!(across_levels(("k1", child), ("k0", parent)), expected, "{told}; the child's holder is killed");
        }
    }
    assert_eq!(across_levels(("k1", Mode::Write), ("k1", Mode::Write)).len(), 1);
}

#[test]
fn under_an_intention_a_promise_of_the_parent_is_cut_short_on_the_parent() {
    // Worker 2 takes the parent, hold 2, and then the child, hold 3, while the promise to worker 1 runs.
    let mut s = killed();
    s.acquire(2, 2, 480, 490, 42).in_mode(2, Mode::IntentWrite).acquire(3, 2, 500, 510, 43).of_child(3, Some(2));
    let lock = s.release(3, 600).release(2, 610).lock();
    assert_eq!(cuts(&lock), [(vec![HoldId(1), HoldId(2)], Some(1_488.0))]);
}
