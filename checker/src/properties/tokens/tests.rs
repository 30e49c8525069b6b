use super::*;
use crate::history_builder::{HistoryBuilder, count, plan, verdict};
use crate::properties::Property;

fn judged(builder: &HistoryBuilder) -> (Verdict, u64, u64) {
    let v = builder.verdicts();
    (verdict(&v, "tokens"), count(&v, "tokens.backwards"), count(&v, "tokens.shared"))
}

#[test]
fn one_hold_without_a_token_is_told_as_one() {
    let mut builder = HistoryBuilder::new();
    let granted = [1, 2, 3].map(|node| (node, history::NodeAnswer::Granted));
    builder.acquire_on(1, 1, 0, 0, 10, None, HistoryBuilder::answers(&granted)).release(1, 20);
    let verdicts = builder.verdicts();
    let Some(Property::Tokens(found)) = verdicts.properties.get("tokens") else { panic!("{verdicts:?}") };
    assert!(found.reasons[0].starts_with("1 hold has no token, and"), "{:?}", found.reasons);
}

#[test]
fn a_later_hold_needs_a_larger_token() {
    for (token, expected) in
        [(42, (Verdict::Upheld, 0, 0)), (41, (Verdict::Violated, 1, 1)), (40, (Verdict::Violated, 1, 0))]
    {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, token).release(2, 50);
        assert_eq!(judged(&builder), expected, "token {token}");
    }
}

#[test]
fn unordered_holds_may_have_their_tokens_either_way_and_share_none() {
    for (granted_after, token, expected) in [
        (10, 40, (Verdict::Upheld, 0, 0)), // at the other's ok: not ordered
        (10, 41, (Verdict::Violated, 0, 1)),
        (11, 40, (Verdict::Violated, 1, 0)),
    ] {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire_knowing(2, 2, 5, granted_after, 40, token);
        assert_eq!(judged(&builder), expected, "granted after {granted_after}, token {token}");
    }
}

#[test]
fn a_token_is_compared_with_the_largest_of_all_earlier_holds() {
    let mut builder = HistoryBuilder::new();
    for (i, token) in [5, 9, 10, 11, 3].into_iter().enumerate() {
        let (hold, at) = (i as u64 + 1, i as u64 * 100);
        builder.acquire(hold, 1, at, at + 10, token).release(hold, at + 20);
    }
    let v = builder.verdicts();
    let Some(Property::Tokens(tokens)) = v.properties.get("tokens") else { panic!() };
    assert_eq!((tokens.backwards, tokens.faults[0].holds.clone()), (1, vec![HoldId(4), HoldId(5)]));
    assert_eq!(tokens.faults[0].tokens, [Token(11), Token(3)]);
    assert_eq!(tokens.faults[0].witness.len(), 2);
}

#[test]
fn an_open_attempt_keeps_the_holds_that_it_may_not_be_later_than() {
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.workers = 3;
    builder.try_to_acquire(99, 3, 5);
    for i in 0..50 {
        builder.acquire(i + 1, 1, i * 20, i * 20 + 5, i + 100).release(i + 1, i * 20 + 10);
    }
    // Sent before all of them, and it shares the token of the second.
    let granted = HistoryBuilder::answers(&[(1, history::NodeAnswer::Granted)]);
    builder.event(
        "worker-3",
        1_100,
        Event::Acquired {
            attempt: HoldId(99),
            token: Some(Token(101)),
            lease_ns: 2_000_000_000,
            granted_after: crate::history_builder::ms(5),
            promised_from: None,
            place: None,
            valid_ns: 0,
            answers: granted,
        },
    );
    assert_eq!(judged(&builder), (Verdict::Violated, 0, 1));
}

#[test]
fn ordered_holds_that_share_a_token_are_counted_as_pairs() {
    // The sequence of a counter that each majority keeps for itself.
    let mut builder = HistoryBuilder::new();
    for (i, token) in [4, 5, 2, 6, 7, 4, 70, 4].into_iter().enumerate() {
        let (hold, at) = (i as u64 + 1, i as u64 * 100);
        builder.acquire(hold, 1, at, at + 10, token).release(hold, at + 20);
    }
    assert_eq!(judged(&builder), (Verdict::Violated, 3, 3), "4 goes back twice, 2 once; three holds make three pairs");
}

#[test]
fn how_many_pairs_share_a_token_does_not_depend_on_which_of_one_stamp_comes_first() {
    // Two are acquired at 50. The first of them is ordered with neither other; the second is later than what was
    // acquired at 30.
    for (open, sent_then) in [(1, 2), (2, 1)] {
        let mut builder = HistoryBuilder::new();
        builder.plan.workload.workers = 3;
        builder.acquire(1, 3, 0, 30, 41).release(1, 35);
        builder.acquire(2, open, 30, 50, 41).acquire(3, sent_then, 50, 50, 41).release(2, 60).release(3, 60);
        assert_eq!(judged(&builder), (Verdict::Violated, 1, 3), "worker {open} was sent first");
    }
}

#[test]
fn without_tokens_the_property_does_not_apply() {
    let mut plan = plan();
    plan.tokens = Source::None;
    plan.arms = vec![history::Arm::Off];
    let mut builder = HistoryBuilder::with(plan);
    builder.acquire_on(1, 1, 0, 0, 10, None, Vec::new()).release(1, 20);
    assert_eq!(judged(&builder).0, Verdict::NotApplicable);
    builder.plan = crate::history_builder::plan();
    assert_eq!(judged(&builder).0, Verdict::Violated, "the plan has tokens, and the hold has none");
}

#[test]
fn readers_may_share_a_token_and_a_later_writer_needs_a_larger_one_than_every_reader() {
    for (token, expected) in
        [(43, (Verdict::Upheld, 0, 0)), (42, (Verdict::Violated, 1, 2)), (41, (Verdict::Violated, 1, 0))]
    {
        let mut builder = HistoryBuilder::new();
        builder.plan.workload.workers = 3;
        builder.acquire(1, 1, 0, 10, 42).acquire(2, 2, 15, 20, 42).release(1, 30).release(2, 30);
        builder
            .acquire(3, 3, 40, 50, token)
            .release(3, 60)
            .in_mode(1, history::Mode::Read)
            .in_mode(2, history::Mode::Read);
        assert_eq!(judged(&builder), expected, "token {token}");
    }
}

#[test]
fn a_quiet_key_keeps_the_largest_token_of_its_readers() {
    // The client of hold 1 has released another lock since, so no attempt for k0 is open at 45.
    let mut builder = HistoryBuilder::new();
    builder.acquire(1, 1, 0, 10, 43).in_mode(1, history::Mode::Read).release(1, 20);
    builder.acquire(3, 1, 30, 40, 44).with_key(3, "k1").release(3, 45);
    builder.acquire(2, 2, 60, 70, 42).release(2, 80);
    assert_eq!(judged(&builder), (Verdict::Violated, 1, 0));
}

#[test]
fn the_tokens_of_the_key_of_the_first_fault_are_shown_and_no_others() {
    let mut s = HistoryBuilder::new();
    // The tokens 1 to 10, then 3 again, and 11 to 40. Meanwhile another key has tokens of its own.
    let tokens = (1..=10).chain([3]).chain(11..=40);
    for (hold, token) in (1..).zip(tokens) {
        s.acquire(hold, 1, hold * 100, hold * 100 + 10, token).release(hold, hold * 100 + 20);
    }
    for (hold, at) in [(90, 750), (91, 1_150), (92, 1_170)] {
        s.acquire(hold, 2, at, at + 5, hold + 410).release(hold, at + 10);
    }
    let v = s.of_key(2, "k1").verdicts();
    let Some(Property::Tokens(tokens)) = v.properties.get("tokens") else { panic!() };
    assert_eq!((tokens.backwards, tokens.shared, tokens.faults[0].key.as_str()), (1, 1, "k0"));
    // Eight tokens up to that of the fault, and sixteen after it.
    let shown: Vec<Token> = (4..=10).chain([3]).chain(11..=26).map(Token).collect();
    assert_eq!(tokens.sequence, shown);
}

#[test]
fn a_pair_that_is_too_far_apart_to_be_listed_shows_no_tokens() {
    let mut s = HistoryBuilder::new();
    s.plan.workload.workers = 3;
    // Worker 3 shares the token of the first of more holds than are searched. Then another key has a fault.
    s.acquire(9_000, 3, 5, 30_000, 100).release(9_000, 30_010);
    for i in 0..SEARCHED as u64 + 10 {
        s.acquire(i + 1, 1, i * 20 + 10, i * 20 + 15, i + 100).release(i + 1, i * 20 + 18);
    }
    for (hold, at, token) in [(5_001, 31_000, 7), (5_002, 31_100, 6)] {
        s.acquire(hold, 2, at, at + 10, token).release(hold, at + 20);
    }
    let v = s.of_key(2, "k1").verdicts();
    let Some(Property::Tokens(tokens)) = v.properties.get("tokens") else { panic!() };
    assert_eq!((tokens.backwards, tokens.shared, tokens.faults[0].key.as_str()), (1, 1, "k1"));
    assert_eq!(tokens.sequence, [Token(7), Token(6)]);
}
