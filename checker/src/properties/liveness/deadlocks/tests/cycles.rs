//! Cycles that are deadlocks and cycles that are not, and the events that end them.

use std::time::Duration;

use history::{CutMode, Event, FailureReason, Fault, HoldId, Mode, Promise, fault};

use super::{Clients, DeadlockEnd, Report, Verdict, ends, lasting, liveness, ms};

#[test]
fn a_session_that_is_kept_alive_ends_no_deadlock() {
    // The record shows that the holds are kept, although the plan's clients renew none.
    for (promise, verdict) in [(Promise::Session, Verdict::Violated), (Promise::Lease, Verdict::Inconclusive)] {
        let mut s = lasting(2, 3_301, 3_301);
        (s.0.plan.workload.renew, s.0.plan.servers.promise) = (None, promise);
        assert_eq!(liveness(&s.0).verdict, verdict, "{promise:?}");
    }
}

#[test]
fn a_client_that_waits_keeps_the_session_of_its_holds() {
    use DeadlockEnd::{Killed, LeaseEnded, Unended};
    // Nobody renews, and the promise of worker-1 ends at 2,073. The clients wait until the run is over.
    for (session, expected, verdict) in
        [(true, (Unended, 8_700.0), Verdict::Violated), (false, (LeaseEnded, 1_773.0), Verdict::Upheld)]
    {
        let mut s = Clients::deadlocked();
        s.0.plan.workload.session = session;
        s.fails(1, 3, FailureReason::Cancelled, 8_995).releases(1, 1, 9_000);
        s.gets(2, 4, 9_010).releases(2, 4, 9_020).releases(2, 2, 9_030);
        for worker in [1, 2] {
            s.event(worker, 9_100, Event::Sections { offered: 1, done: 0, dropped: 1 });
        }
        assert_eq!((ends(&s.0), liveness(&s.0).verdict), (vec![expected], verdict), "session: {session}");
    }
    // A client gets the key of worker-1 or of worker-2 after the promise end, so the session of this worker was over.
    for (getting, key, lost_by, lasted_ms) in [(2, "k0", 1, 1_773.0), (3, "k0", 1, 1_773.0), (1, "k1", 2, 1_783.0)] {
        let mut s = Clients::deadlocked();
        s.0.plan.workload.session = true;
        match getting {
            3 => s.tries(3, 5, key, 250).gets(3, 5, 5_000),
            _ => s.gets(getting, 2 + u64::from(getting), 5_000),
        };
        s.event(3, 9_000, Event::Clocks { wall_ns: 0, boot_ns: 0 });
        assert_eq!(ends(&s.0), [(LeaseEnded, lasted_ms)], "worker-{getting} gets {key}");
        let by = liveness(&s.0).deadlocks[0].ended_by.as_ref().map(ToString::to_string);
        assert_eq!(by, Some(format!("worker-{lost_by}")), "worker-{getting} gets {key}");
    }
    // worker-1 is killed long after the promise end.
    let mut s = Clients::deadlocked();
    s.0.plan.workload.session = true;
    s.0.kill(1, "worker-1", 5_000);
    s.event(3, 9_000, Event::Clocks { wall_ns: 0, boot_ns: 0 });
    assert_eq!(ends(&s.0), [(Killed, 4_700.0)]);
}

#[test]
fn a_cycle_may_begin_after_the_promise_of_a_hold_in_a_session() {
    // worker-1 waits for k1 from 200 on, and keeps its session so, or only from 2,073 on, when its promise has ended.
    // worker-2 gets k1 at 2,400, and wants k0 at 2,500.
    for (since, expected) in [(200, vec![(DeadlockEnd::Unended, 6_500.0)]), (2_073, vec![])] {
        let mut s = Clients::new(3);
        s.0.plan.workload.session = true;
        s.holds(1, 1, "k0", 100).holds(3, 9, "k1", 105).tries(2, 2, "k1", 150).tries(1, 3, "k1", since);
        let acquired = Event::Acquired {
            attempt: HoldId(2),
            token: None,
            lease_ns: 2_000_000_000,
            granted_after: ms(2_395),
            promised_from: Some(ms(2_395)),
            place: None,
            valid_ns: 0,
            answers: Vec::new(),
        };
        s.releases(3, 9, 2_390).event(2, 2_400, acquired).tries(2, 4, "k0", 2_500);
        s.fails(1, 3, FailureReason::Cancelled, 8_995).releases(1, 1, 9_000);
        s.gets(2, 4, 9_010).releases(2, 4, 9_020).releases(2, 2, 9_030);
        for worker in [1, 2] {
            s.event(worker, 9_100, Event::Sections { offered: 1, done: 0, dropped: 1 });
        }
        assert_eq!(ends(&s.0), expected, "worker-1 waits from {since} on");
    }
}

#[test]
fn a_wait_that_only_the_end_of_the_run_ends_is_no_timeout() {
    use DeadlockEnd::{CutOff, TimedOut, Unended};
    let (own, late) = (true, 3_400);
    for (is_own, patience, at, goes_on, expected, verdict) in [
        (own, None, late, false, Unended, Verdict::Violated),
        // Something could still have ended it.
        (own, None, 3_300, false, CutOff, Verdict::Inconclusive),
        // The client was impatient, or its section was over: it goes on.
        (own, Some(Duration::from_secs(3)), late, false, TimedOut, Verdict::Upheld),
        (own, None, late, true, TimedOut, Verdict::Upheld),
        // The clients of other programs may be impatient.
        (!own, None, late, false, TimedOut, Verdict::Upheld),
    ] {
        let mut s = Clients::deadlocked();
        (s.0.plan.workload.renew, s.0.plan.workload.patience) = (Some(Duration::from_millis(500)), patience);
        s.renewed(at).fails(1, 3, FailureReason::Cancelled, at - 5).releases(1, 1, at);
        s.gets(2, 4, at + 10).releases(2, 4, at + 20).releases(2, 2, at + 30);
        if goes_on {
            s.holds(1, 5, "k2", at + 50).releases(1, 5, at + 60);
        }
        for worker in [1, 2].into_iter().filter(|_| is_own) {
            s.event(worker, at + 100, Event::Sections { offered: 1, done: 0, dropped: 1 });
        }
        let found = liveness(&s.0);
        let case = format!("own: {is_own}, patience: {patience:?}, at {at}, goes on: {goes_on}");
        assert_eq!((ends(&s.0), found.verdict), (vec![(expected, (at - 300) as f64)], verdict), "{case}");
    }
}

#[test]
fn a_cycle_counts_as_unended_only_without_a_fault() {
    // The cycle lasts from 300 to 6,000. Connections may be silent from a cut until twice its length and 400 ms later.
    for (from, to, expected) in [
        (500, 1_000, DeadlockEnd::Unended),
        (500, 4_000, DeadlockEnd::CutOff),
        // The cycle had no end for longer than the bound before the cut.
        (3_306, 5_000, DeadlockEnd::Unended),
        (3_305, 5_000, DeadlockEnd::CutOff),
    ] {
        let mut s = lasting(2, 6_000, 6_000);
        let cut = Fault::new(fault::Partition { cut: CutMode::Drop }, Duration::from_secs(1));
        s.0.inject(1, cut, "redis-1", from, to);
        assert_eq!(ends(&s.0), [(expected, 5_700.0)], "cut from {from} to {to}");
    }
}

#[test]
fn a_disturbance_after_the_last_wait_hides_no_deadlock_without_an_end() {
    // The cycle lasts from 300 until the clients give up because the run is over, at 3,400. A stall may begin later.
    for (stalled, expected) in [(3_600, DeadlockEnd::Unended), (3_300, DeadlockEnd::CutOff)] {
        let mut s = Clients::deadlocked();
        s.0.plan.workload.renew = Some(Duration::from_millis(500));
        s.renewed(3_400).fails(1, 3, FailureReason::Cancelled, 3_395).releases(1, 1, 3_400);
        s.gets(2, 4, 3_410).releases(2, 4, 3_420).releases(2, 2, 3_430);
        for worker in [1, 2] {
            s.event(worker, 3_500, Event::Sections { offered: 1, done: 0, dropped: 1 });
        }
        s.0.stall("worker-1", stalled, 4_100);
        assert_eq!(ends(&s.0), [(expected, 3_100.0)], "stalled from {stalled}");
    }
}

#[test]
fn a_deadlock_without_an_end_is_named_however_many_came_before() {
    // Of 100 deadlocks each ends because worker-2 gives up. The last one lasts from 20,200 on, with renewals.
    let mut s = Clients::new(3);
    s.0.plan.workload.renew = Some(Duration::from_millis(500));
    for n in 0..100 {
        let (id, at) = (10 * n, 100 + 100 * n);
        s.holds(1, id + 1, "k0", at).holds(2, id + 2, "k1", at + 10).tries(1, id + 3, "k1", at + 20);
        s.tries(2, id + 4, "k0", at + 30).fails(2, id + 4, FailureReason::Cancelled, at + 40);
        s.releases(2, id + 2, at + 42).gets(1, id + 3, at + 50).releases(1, id + 3, at + 60);
        s.releases(1, id + 1, at + 64);
    }
    s.holds(1, 2_001, "k0", 20_000).holds(2, 2_002, "k1", 20_010);
    s.tries(1, 2_003, "k1", 20_100).tries(2, 2_004, "k0", 20_200);
    for at in (20_500..24_000).step_by(500) {
        for (worker, hold) in [(1, HoldId(2_001)), (2, HoldId(2_002))] {
            s.event(worker, at, Event::Renew { hold });
            s.event(worker, at, Event::Renewed { hold, lease_ns: 2_000_000_000, answers: Vec::new() });
        }
    }
    s.event(3, 24_000, Event::Clocks { wall_ns: 0, boot_ns: 0 });
    let found = liveness(&s.0);
    assert_eq!((found.verdict, found.deadlocks_timed_out, found.deadlocks_unended), (Verdict::Violated, 100, 1));
    assert_eq!((found.deadlocks.len(), found.evidence()), (100, vec![found.deadlocks[99].line()]));
}

#[test]
fn readers_do_not_wait_for_each_other() {
    // Each of two readers tries the key of the other one: to read it too, or to write it.
    for (mode, expected) in [(Mode::Read, vec![]), (Mode::Write, vec![(DeadlockEnd::TimedOut, 110.0)])] {
        let mut s = Clients::deadlocked();
        s.fails(2, 4, FailureReason::Cancelled, 400).releases(2, 2, 410).gets(1, 3, 420);
        s.0.in_mode(1, Mode::Read).in_mode(2, Mode::Read).in_mode(3, mode).in_mode(4, mode);
        assert_eq!(ends(&s.0), expected, "{mode:?}");
    }
}

#[test]
fn a_cycle_behind_any_of_several_readers_is_a_deadlock() {
    // worker-1 and worker-3 read k0. worker-2 holds k1 and wants to write k0, and one of the readers wants k1.
    for (waiting, first) in [(1, 1), (3, 1), (1, 3), (3, 3)] {
        let second = 4 - first;
        let mut s = Clients::new(3);
        s.0.plan.workload.renew = Some(Duration::from_millis(500));
        s.holds(first, first.into(), "k0", 100).holds(second, second.into(), "k0", 106).holds(2, 2, "k1", 112);
        s.tries(waiting, 4, "k1", 200).tries(2, 5, "k0", 300);
        for (worker, hold) in [(1, HoldId(1)), (2, HoldId(2)), (3, HoldId(3))] {
            for at in (500..3_301).step_by(500) {
                s.event(worker, at, Event::Renew { hold });
                s.event(worker, at, Event::Renewed { hold, lease_ns: 2_000_000_000, answers: Vec::new() });
            }
        }
        s.event(2, 3_301, Event::Clocks { wall_ns: 0, boot_ns: 0 });
        s.0.in_mode(1, Mode::Read).in_mode(3, Mode::Read);
        let found = liveness(&s.0);
        let case = format!("worker-{waiting} waits, worker-{first} was the first reader");
        assert_eq!((ends(&s.0), found.verdict), (vec![(DeadlockEnd::Unended, 3_001.0)], Verdict::Violated), "{case}");
        assert_eq!(found.deadlocks[0].clients.len(), 2, "{case}");
    }
}

#[test]
fn a_deadlock_that_the_service_found_late_counts_as_detected() {
    // worker-1 is refused at 350, and does not try again for so long that it seems to wait no longer. But if the
    // service finds the cycle, worker-1 has waited.
    for (why, expected) in [
        (FailureReason::Deadlock, (DeadlockEnd::Detected, 1_300.0)),
        (FailureReason::Cancelled, (DeadlockEnd::TimedOut, 50.0)),
    ] {
        let mut s = Clients::deadlocked();
        s.fails(1, 3, FailureReason::Held, 350).fails(2, 4, why, 1_600).releases(2, 2, 1_610).holds(1, 5, "k1", 1_700);
        assert_eq!(ends(&s.0), [expected], "{why:?}");
    }
}

#[test]
fn a_client_that_has_tried_again_still_waits() {
    // worker-1 is refused at 1,000 and tries again at 1,100. If it is refused again, it waits for 1,200 more: twice the
    // time between its attempts, and 1 s. The record ends at 3,301.
    for (refused, expected) in [
        (None, (DeadlockEnd::Unended, 3_001.0)),
        (Some(2_100), (DeadlockEnd::TimedOut, 1_800.0)),
        (Some(2_101), (DeadlockEnd::Unended, 3_001.0)),
    ] {
        let mut s = lasting(2, 3_301, 3_301);
        s.fails(1, 3, FailureReason::Held, 1_000).tries(1, 5, "k1", 1_100);
        if let Some(at) = refused {
            s.fails(1, 5, FailureReason::Held, at);
        }
        assert_eq!(ends(&s.0), [expected], "refused again at {refused:?}");
    }
}

#[test]
fn the_end_of_a_hold_outside_the_cycle_ends_no_deadlock() {
    // The clients renew the holds of k0 and k1. worker-1's lease of k2 ends at 2,093, and worker-3 gets k2.
    let mut s = Clients::new(3);
    (s.0.plan.workload.locks_per_section, s.0.plan.workload.renew) = (3, Some(Duration::from_millis(500)));
    s.holds(1, 1, "k0", 100).holds(2, 2, "k1", 110).holds(1, 5, "k2", 120).tries(1, 6, "k1", 200);
    s.tries(2, 7, "k0", 300).renewed(3_301).holds(3, 8, "k2", 2_200).releases(3, 8, 2_300);
    s.event(3, 3_301, Event::Clocks { wall_ns: 0, boot_ns: 0 });
    let found = liveness(&s.0);
    assert_eq!((found.verdict, found.deadlocks_unended, found.deadlocks_lease_ended), (Verdict::Violated, 1, 0));
}
