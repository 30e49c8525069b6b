//! Keys that a client program may have kept although its worker uses them no longer.

use history::{Event, FailureReason, HoldId, Mode, NodeAnswer, Outcome};

use super::{HistoryBuilder, LivenessVerdict, Property, StuckKind, Verdict, behind, judged, refused};

fn found(builder: &HistoryBuilder) -> LivenessVerdict {
    match builder.verdicts().properties.get("liveness") {
        Some(Property::Liveness(found)) => found.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_program_may_renew_a_hold_that_its_worker_gave_up() {
    let stuck = |end: Event, by_program: bool| {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).event("worker-1", 50, end);
        refused(&mut s, 100, 5_200);
        if by_program {
            s.by_program();
        }
        judged(&s).1.len()
    };
    let hold = HoldId(1);
    for end in [Event::GaveUp { hold }, Event::Release { hold }] {
        assert_eq!((stuck(end.clone(), false), stuck(end.clone(), true)), (1, 0), "{end:?}");
    }
    // A program that says that it has released the hold renews it no more. Neither does one that was killed.
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 50);
    refused(&mut s, 100, 5_200);
    assert_eq!(judged(s.by_program()).1.len(), 1);
    // Dead by 220: the lease is over at 2,220, and must be so within a lease and the slack.
    for (last, expected) in [(5_200, 0), (5_300, 1)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).give_up(1, 50).kill(1, "worker-1", 200);
        refused(&mut s, 300, last);
        assert_eq!(judged(s.by_program()).1.len(), expected, "refused until {last}");
    }
}

#[test]
fn a_program_whose_worker_has_finished_keeps_nothing() {
    // Worker 1 gives its hold up, and finishes at 100: the key is free from 2,100 on.
    for (last, expected) in [(5_100, (Verdict::Measured, 0)), (5_200, (Verdict::Violated, 1))] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).give_up(1, 50);
        s.event("worker-1", 100, Event::Finished).unfinished.push("worker-1");
        refused(&mut s, 200, last);
        let (verdict, stuck) = judged(s.by_program());
        assert_eq!((verdict, stuck.len()), expected, "refused until {last}");
    }
}

#[test]
fn a_key_that_a_client_program_may_have_kept_is_not_judged() {
    // The release fails, and nobody gets the key for ten leases: the program may renew the lock.
    let hold = HoldId(1);
    let (outcome, why) = (Outcome::Indeterminate, FailureReason::Error);
    let failed = Event::ReleaseFailed { hold, outcome, why, answers: Vec::new() };
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).event("worker-1", 50, Event::Release { hold }).event("worker-1", 60, failed);
    refused(&mut s, 100, 20_000);
    let found = found(s.by_program());
    assert_eq!((found.verdict, found.stuck.len(), found.reasons.len()), (Verdict::Inconclusive, 0, 1));
    // Another client has had the key since, so the hold is over: the key is free from 5,022 on.
    for (last, is_stuck) in [(8_000, false), (8_100, true)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).give_up(1, 50).acquire(2, 2, 3_000, 3_010, 42).release(2, 3_020);
        refused(&mut s, 4_000, last);
        assert_eq!(judged(s.by_program()).1.len() == 1, is_stuck, "refused until {last}");
    }
}

#[test]
fn waits_that_prove_nothing_hide_no_later_one() {
    let mut s = HistoryBuilder::new();
    let waits = |s: &mut HistoryBuilder, id: u64, from: u64| {
        s.try_to_acquire(id, 2, from);
        behind(s, id, "worker-2", from + 5);
        s.acquire_failed(id, from + 9_000, FailureReason::Cancelled, Vec::new());
    };
    // 20 waiters give up, one after the other, while the program may renew hold 1. Hold 40 excludes hold 1.
    s.acquire(1, 1, 0, 10, 41).give_up(1, 50);
    (0..20).for_each(|i| waits(&mut s, 2 + i, 100 + 10_000 * i));
    assert_eq!(judged(s.by_program()), (Verdict::Inconclusive, vec![]));
    s.acquire(40, 1, 200_100, 200_110, 42).release(40, 200_120);
    waits(&mut s, 41, 200_200);
    assert_eq!(judged(s.by_program()), (Verdict::Violated, vec![(StuckKind::Waiting, 41)]));
}

#[test]
fn a_refusal_that_proves_nothing_hides_no_later_one() {
    // Worker 2 is refused too late while the program may renew hold 1. Hold 3,000 excludes hold 1. So the key is free
    // from 8,022 on.
    for (last, expected) in [(11_000, (Verdict::Inconclusive, 0)), (11_100, (Verdict::Violated, 1))] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).give_up(1, 50);
        refused(&mut s, 100, 5_100);
        s.acquire(3_000, 2, 6_000, 6_010, 42).release(3_000, 6_020);
        refused(&mut s, 8_100, last);
        let (verdict, stuck) = judged(s.by_program());
        assert_eq!((verdict, stuck.len()), expected, "refused until {last}");
    }
}

#[test]
fn a_reader_excludes_nothing_that_another_reader_may_have() {
    // The program may have granted the lock to a reader, which did not take it. Then another client has the key.
    for (mode, expected) in [(Mode::Read, (Verdict::Inconclusive, 0)), (Mode::Write, (Verdict::Violated, 1))] {
        let mut s = HistoryBuilder::new();
        s.try_to_acquire(1, 1, 0).acquire_failed(1, 1_000, FailureReason::Validity, Vec::new());
        s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).in_mode(1, Mode::Read).in_mode(2, mode);
        refused(&mut s, 4_000, 9_000);
        let (verdict, stuck) = judged(s.by_program());
        assert_eq!((verdict, stuck.len()), expected, "{mode:?}");
    }
}

#[test]
fn a_client_program_may_keep_what_its_worker_could_not_undo() {
    use FailureReason::{Cancelled, Validity};
    // The answer came too late, or the client cancelled, and the program may not have done the undo. The attempt has
    // ended after the undo, or before it.
    for (why, ended) in [(Validity, 3_501), (Cancelled, 3_501), (Validity, 2_900), (Cancelled, 2_900)] {
        for (undone, expected) in [
            (NodeAnswer::None, (Verdict::Inconclusive, 0)),
            (NodeAnswer::Done, (Verdict::Violated, 1)),
            (NodeAnswer::Refused, (Verdict::Violated, 1)),
        ] {
            let mut s = HistoryBuilder::new();
            s.try_to_acquire(1, 1, 0).undo(1, 3_000, 3_500, vec![("program".into(), undone)]);
            s.acquire_failed(1, ended, why, Vec::new());
            refused(&mut s, 4_000, 9_000);
            let (verdict, stuck) = judged(s.by_program());
            assert_eq!((verdict, stuck.len()), expected, "{why:?} at {ended}, undone: {undone:?}");
        }
    }
    // Another client has had the key since, so it is free from 6,022 on. A hold from before would prove nothing.
    for (granted_after, is_stuck) in [(3_501, false), (3_502, true)] {
        let mut s = HistoryBuilder::new();
        s.try_to_acquire(1, 1, 0).undo(1, 3_000, 3_500, vec![("program".into(), NodeAnswer::None)]);
        s.acquire_failed(1, 3_501, FailureReason::Validity, Vec::new());
        s.acquire_knowing(2, 2, 3_400, granted_after, 4_010, 42).release(2, 4_020);
        refused(&mut s, 4_100, 9_100);
        assert_eq!(judged(s.by_program()).1.len() == 1, is_stuck, "granted after {granted_after}");
    }
    // The program answered `timeout` or `error`. It must not renew the lock, which ends with its lease.
    let mut s = HistoryBuilder::new();
    let (attempt, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::Error);
    let failed = Event::AcquireFailed { attempt, outcome, why, detail: None, answers: Vec::new() };
    s.try_to_acquire(1, 1, 0).event("worker-1", 1_010, failed);
    refused(&mut s, 4_000, 6_100);
    assert_eq!(judged(s.by_program()).1.len(), 1);
}

#[test]
fn a_program_that_removed_its_key_at_last_had_it_until_then() {
    // A program that has removed nothing may have lost the key before: the refusals until then decide nothing.
    let cases = [(NodeAnswer::Done, (Verdict::Measured, 0)), (NodeAnswer::Refused, (Verdict::Inconclusive, 1))];
    for (answer, expected) in cases {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).by_program().release_on(1, 50, 8_000, vec![("program".into(), answer)]);
        refused(&mut s, 100, 7_900);
        s.acquire(9_000, 2, 8_100, 8_110, 42).release(9_000, 8_120);
        let found = found(&s);
        assert_eq!((found.verdict, found.reasons.len()), expected, "the program answers {answer:?}");
    }
}

#[test]
fn the_session_of_a_program_may_outlive_its_last_lease() {
    // Killed between 100 and 120: the lease is over at 2,120. A session may last for up to another lease.
    for (last, by_program, expected) in [(3_000, false, 0), (3_200, false, 1), (5_100, true, 0), (5_200, true, 1)] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).kill(1, "worker-1", 100);
        refused(&mut s, 200, last);
        if by_program {
            s.by_program();
        }
        assert_eq!(judged(&s).1.len(), expected, "refused until {last}, by a program: {by_program}");
    }
}

#[test]
fn the_longest_lease_of_the_record_judges_also_what_was_before_it() {
    // The record starts at 0, and a later hold tells of its lease. With a lease of 3 s, a hold from before the record
    // is over at 3,000, and a client must have the key by 7,000.
    for (lease_s, at, expected) in [(2, 5_100, 1), (10, 5_100, 0), (3, 7_000, 0), (3, 7_001, 1)] {
        let mut s = HistoryBuilder::new();
        refused(&mut s, at, at);
        s.acquire(6_000, 1, 9_000, 9_010, 41);
        let (hold, answers) = (HoldId(6_000), Vec::new());
        s.event("worker-1", 9_100, Event::Renew { hold });
        s.event("worker-1", 9_110, Event::Renewed { hold, lease_ns: lease_s * 1_000_000_000, answers });
        assert_eq!(judged(s.by_program()).1.len(), expected, "a lease of {lease_s} s, refused at {at}");
    }
}
