use history::{FailureReason, Outcome, Token};

use super::*;
use crate::{history_builder::HistoryBuilder, properties::Property};

fn judged(builder: &HistoryBuilder) -> ReentryVerdict {
    match builder.verdicts().properties.get("reentry") {
        Some(Property::Reentry(found)) => found.clone(),
        other => panic!("{other:?}"),
    }
}

fn kinds(builder: &HistoryBuilder) -> Vec<ReentryFault> {
    judged(builder).wrong.iter().map(|wrong| wrong.kind).collect()
}

fn reenters(builder: &mut HistoryBuilder, at: u64, count: u32, token: u64, valid_ms: u64) {
    let (hold, token, valid_ns) = (HoldId(1), Some(Token(token)), valid_ms * 1_000_000);
    builder.event("worker-1", at, Event::Reentered { hold, count, token, valid_ns });
}

fn leaves(builder: &mut HistoryBuilder, at: u64, count: u32) {
    builder.event("worker-1", at, Event::Left { hold: HoldId(1), count });
}

/// A hold from 10 with token 41, which is entered at 20 and at 30, with the promise end at 1,978.
fn entered_twice() -> HistoryBuilder {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41);
    reenters(&mut s, 20, 2, 41, 1_958);
    reenters(&mut s, 30, 3, 41, 1_948);
    s
}

#[test]
fn a_hold_that_is_left_as_often_as_it_was_entered_is_one_hold() {
    let mut s = entered_twice();
    leaves(&mut s, 40, 2);
    leaves(&mut s, 50, 1);
    s.release(1, 60);
    leaves(&mut s, 70, 0);
    let found = judged(&s);
    assert_eq!((found.verdict, found.reentered, found.deepest, found.left), (Verdict::Upheld, 2, 3, 2));
    assert_eq!(found.released_too_often, 1);
    assert_eq!(s.verdicts().verdict, Verdict::Upheld, "the tokens are those of one hold");
}

#[test]
fn each_hold_of_a_client_has_a_count_of_its_own() {
    // The client has hold 2 of another key at the same time. The deepest entry is not the last one.
    let mut s = entered_twice();
    let (hold, token) = (HoldId(2), Some(Token(42)));
    s.acquire(2, 1, 31, 35, 42).with_key(2, "k1");
    s.event("worker-1", 36, Event::Reentered { hold, count: 2, token, valid_ns: 1 });
    s.event("worker-1", 38, Event::Left { hold, count: 1 }).release(2, 40);
    leaves(&mut s, 50, 2);
    leaves(&mut s, 60, 1);
    let found = judged(s.release(1, 70));
    assert_eq!((found.verdict, found.wrong), (Verdict::Upheld, Vec::new()));
    assert_eq!((found.reentered, found.deepest, found.left), (3, 3, 3));
}

#[test]
fn a_run_without_reentries_has_no_line() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 60);
    assert!(s.verdicts().properties.get("reentry").is_none());
    s.plan.workload.reenter = 1;
    assert_eq!(judged(&s).verdict, Verdict::Measured);
}

#[test]
fn a_hold_that_is_left_without_having_been_entered_again_is_reported() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41);
    leaves(&mut s, 20, 0);
    leaves(&mut s, 30, 3);
    assert_eq!(judged(&s).verdict, Verdict::Violated);
}

#[test]
fn a_release_too_many_is_judged_without_any_reentry() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 20);
    leaves(&mut s, 30, 0);
    let found = judged(&s);
    assert_eq!((found.verdict, found.reentered, found.released_too_often), (Verdict::Upheld, 0, 1));
    assert_eq!(found.figures(), "holds acquired again 0 times, 0 deep; 1 release too many, without effect");
}

#[test]
fn another_token_of_a_reentry_is_a_violation() {
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41);
    reenters(&mut s, 20, 2, 42, 1_958);
    assert_eq!(kinds(&s), [ReentryFault::Token]);
}

#[test]
fn more_findings_than_are_kept_are_not_told_as_their_number() {
    for (entered, told) in [(99, "99 wrong; "), (150, "100 or more wrong; ")] {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41);
        (0..entered).for_each(|n| reenters(&mut s, 20 + n, 2 + n as u32, 42, 1_000));
        let figures = judged(&s).figures();
        assert!(figures.starts_with(told), "{figures}");
    }
}

#[test]
fn a_key_that_an_inner_release_frees_is_a_violation() {
    let mut s = entered_twice();
    leaves(&mut s, 40, 2);
    s.release(1, 50);
    assert_eq!(kinds(&s), [ReentryFault::FreedEarly]);
}

#[test]
fn a_key_that_was_freed_early_has_no_acquisition_left() {
    // The release gets no answer, so the client sends another one, which frees nothing more.
    let (hold, outcome, why) = (HoldId(1), Outcome::Indeterminate, FailureReason::Error);
    let mut s = entered_twice();
    leaves(&mut s, 40, 2);
    s.event("worker-1", 50, Event::Release { hold });
    s.event("worker-1", 55, Event::ReleaseFailed { hold, outcome, why, answers: Vec::new() }).release(1, 60);
    assert_eq!(kinds(&s), [ReentryFault::FreedEarly]);
    leaves(&mut s, 70, 1);
    assert_eq!(kinds(&s), [ReentryFault::FreedEarly, ReentryFault::Miscounted]);
}

#[test]
fn a_wrong_count_and_a_reentry_after_the_release_are_violations() {
    let mut s = entered_twice();
    leaves(&mut s, 40, 1);
    assert_eq!(kinds(&s), [ReentryFault::Miscounted]);
    let mut s = entered_twice();
    leaves(&mut s, 40, 0);
    assert_eq!(kinds(&s), [ReentryFault::Miscounted]);
    let mut s = HistoryBuilder::new();
    s.acquire(1, 1, 0, 10, 41).release(1, 20);
    reenters(&mut s, 30, 2, 41, 1_900);
    assert_eq!(kinds(&s), [ReentryFault::Miscounted]);
}

#[test]
fn a_deadline_of_a_reentry_after_the_promise_end_is_an_overclaim() {
    let violated = |at, valid_ms| {
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41);
        reenters(&mut s, at, 2, 41, valid_ms);
        matches!(s.verdicts().properties.get("lock"), Some(Property::Lock(lock)) if lock.overclaims.len() == 1)
    };
    assert!(!violated(1_000, 978), "the promise of the outer acquisition ends at 1,978");
    assert!(violated(1_000, 979));
    assert!(!violated(1_978, 0) && violated(1_979, 0), "a hold that has lapsed cannot be entered again");
}

#[test]
fn a_record_without_an_end_upholds_nothing() {
    let mut s = entered_twice();
    leaves(&mut s, 40, 2);
    leaves(&mut s, 50, 1);
    let mut records = s.release(1, 60).records();
    records.pop();
    let verdicts = crate::check(records, history::Tail::Whole);
    let Some(Property::Reentry(found)) = verdicts.properties.get("reentry") else { panic!() };
    assert_eq!((found.verdict, found.reentered), (Verdict::Inconclusive, 2));
}
