//! The rule, by tables, and against a judge that was written from the description and knows no state.

use std::collections::BTreeMap;

use history::{Arm, Comparison, Deadline, HoldId, Key, OpId, RequestKind, Token, Version};
use proptest::prelude::*;
use resource::{Action, Admission, PlantedBug, Policy, PolicyError, Proposal, Refusal, Request, State, parse_key};

fn request(hold: u64, op: Option<u64>, token: Option<u64>, action: Action) -> Request {
    let (key, deadline) = (Key::new("k"), Some(Deadline { until_us: 7, read_us: 7 }));
    Request { key, hold: Some(HoldId(hold)), op: op.map(OpId), token: token.map(Token), deadline, action }
}

fn write(policy: &Policy, base: u64, value: &str) -> Action {
    let proposal = Proposal { base: Some(Version(base)), value: value.to_owned() };
    Action::Write(policy.arms().iter().map(|arm| (*arm, proposal.clone())).collect())
}

fn policy(arms: &[Arm], comparison: Comparison) -> Policy {
    Policy::new(arms, comparison).unwrap()
}

/// Runs `(hold, token, reads)` in order on one arm and tells which writes were admitted.
fn admitted(arm: Arm, comparison: Comparison, steps: &[(u64, u64, bool)]) -> Vec<bool> {
    admitted_by(&policy(&[arm], comparison), steps)
}

fn admitted_by(policy: &Policy, steps: &[(u64, u64, bool)]) -> Vec<bool> {
    let mut state = State::default();
    let mut decide = |&(hold, token, reads): &(u64, u64, bool)| {
        let action = if reads { Action::Read } else { write(policy, 0, "v") };
        let admission = state.decide(policy, &request(hold, None, Some(token), action)).unwrap();
        (!reads).then(|| admission.arms[0].admitted)
    };
    steps.iter().filter_map(&mut decide).collect()
}

const R: bool = true;
const W: bool = false;

#[test]
fn the_default_comparison_refuses_smaller_tokens_and_equal_ones_of_another_hold() {
    let steps = [(1, 5, W), (1, 5, W), (2, 5, W), (3, 4, W), (3, 6, W), (1, 5, W), (4, 6, W), (3, 6, W)];
    let expected = [true, true, false, false, true, false, false, true];
    assert_eq!(admitted(Arm::Writes, Comparison::Default, &steps), expected);
    assert_eq!(admitted(Arm::Reads, Comparison::Default, &steps), expected);
}

#[test]
fn the_strict_comparison_admits_one_write_a_token() {
    let steps = [(1, 5, W), (1, 5, W), (2, 5, W), (3, 4, W), (3, 6, W), (3, 6, W), (1, 5, W)];
    assert_eq!(admitted(Arm::Writes, Comparison::Strict, &steps), [true, false, false, false, true, false, false]);
}

#[test]
fn a_read_fences_earlier_holds_on_reads_and_nobody_on_writes() {
    let steps = [(1, 1, R), (2, 2, R), (1, 1, W), (2, 2, W)];
    assert_eq!(admitted(Arm::Reads, Comparison::Default, &steps), [false, true]);
    assert_eq!(admitted(Arm::Writes, Comparison::Default, &steps), [true, true]);
}

#[test]
fn an_equal_token_of_another_hold_registers_nothing() {
    // Hold 2 reads with the token that hold 1 registered: it stays with hold 1.
    let steps = [(1, 5, R), (2, 5, R), (2, 5, W), (1, 5, W)];
    assert_eq!(admitted(Arm::Reads, Comparison::Default, &steps), [false, true]);
}

#[test]
fn cas_admits_exactly_the_current_version_and_ignores_tokens() {
    let policy = policy(&[Arm::Cas], Comparison::Default);
    let mut state = State::default();
    let mut put = |base, token| {
        let admission = state.decide(&policy, &request(1, None, token, write(&policy, base, "v"))).unwrap();
        (admission.arms[0].admitted, admission.arms[0].version.0)
    };
    assert_eq!(put(0, Some(9)), (true, 1));
    assert_eq!(put(0, Some(10)), (false, 1));
    assert_eq!(put(2, None), (false, 1));
    assert_eq!(put(1, Some(1)), (true, 4));
}

#[test]
fn only_the_hold_that_read_last_has_the_claim() {
    let policy = policy(&[Arm::Claim], Comparison::Default);
    let mut state = State::default();
    let mut decide = |hold: Option<u64>, action| {
        let request = Request { hold: hold.map(HoldId), ..request(0, None, None, action) };
        state.decide(&policy, &request).unwrap().arms[0].admitted
    };
    for hold in [None, Some(1)] {
        assert!(!decide(hold, write(&policy, 0, "v")), "no hold has read yet: {hold:?}");
    }
    decide(Some(1), Action::Read);
    // A read without a hold takes no claim away.
    decide(None, Action::Read);
    assert!(decide(Some(1), write(&policy, 0, "v")));
    decide(Some(2), Action::Read);
    assert!(!decide(Some(1), write(&policy, 0, "v")) && decide(Some(2), write(&policy, 0, "v")));
}

#[test]
fn deadline_admits_until_the_deadline_and_repeats_its_answer_afterwards() {
    let policy = policy(&[Arm::Deadline], Comparison::Default);
    let mut state = State::default();
    let mut put = |op, deadline: Option<(u64, u64)>| {
        let deadline = deadline.map(|(until_us, read_us)| Deadline { until_us, read_us });
        let request = Request { deadline, ..request(1, Some(op), None, write(&policy, 0, "v")) };
        state.decide(&policy, &request).map(|admission| (admission.arms[0].admitted, admission.repeat))
    };
    assert_eq!(put(1, Some((50, 49))), Ok((true, false)));
    assert_eq!(put(2, Some((50, 50))), Ok((true, false)));
    assert_eq!(put(3, Some((50, 51))), Ok((false, false)));
    assert_eq!(put(1, Some((50, 90))), Ok((true, true)), "the same request, later");
    assert_eq!(put(1, Some((60, 49))), Err(Refusal::OpReused { hold: HoldId(1), op: OpId(1) }));
    assert_eq!(put(4, None), Err(Refusal::MissingDeadline));
}

#[test]
fn a_get_without_a_token_registers_nothing_and_leaves_no_trace_of_an_unknown_key() {
    let policy = policy(&[Arm::Off, Arm::Reads], Comparison::Default);
    let mut state = State::default();
    let admission = state.decide(&policy, &request(1, None, None, Action::Read)).unwrap();
    assert!(admission.arms.iter().all(|arm| arm.admitted && !arm.registered && arm.value.is_none()));
    assert_eq!(state.key(&Key::new("k")), None);
}

#[test]
fn requests_that_make_no_sense_are_refused_and_change_nothing() {
    let fenced = policy(&[Arm::Writes, Arm::Cas], Comparison::Default);
    let off = policy(&[Arm::Off], Comparison::Default);
    let without_base = Action::Write(BTreeMap::from([
        (Arm::Writes, Proposal { base: None, value: String::new() }),
        (Arm::Cas, Proposal { base: None, value: String::new() }),
    ]));
    let both = policy(&[Arm::Off, Arm::Writes, Arm::Cas], Comparison::Default);
    let orphan = Request { hold: None, ..request(0, Some(1), None, Action::Read) };
    let table = [
        (request(1, None, None, write(&fenced, 0, "v")), Refusal::MissingToken { arm: Arm::Writes }),
        (request(1, None, Some(1), without_base), Refusal::MissingBase),
        (request(1, None, Some(1), write(&off, 0, "v")), Refusal::MissingArm { arm: Arm::Writes }),
        (request(1, None, Some(1), write(&both, 0, "v")), Refusal::UnknownArm { arm: Arm::Off }),
        (orphan, Refusal::OpWithoutHold),
    ];
    for (request, refusal) in table {
        let mut state = State::default();
        assert_eq!(state.decide(&fenced, &request), Err(refusal));
        assert_eq!(state, State::default());
    }
}

#[test]
fn an_operation_is_applied_once_and_keeps_its_content() {
    let policy = policy(&[Arm::Off, Arm::Writes], Comparison::Default);
    let mut state = State::default();
    let first = request(1, Some(1), Some(3), write(&policy, 0, "a"));
    let answer = state.decide(&policy, &first).unwrap();
    state.decide(&policy, &request(2, Some(1), Some(4), write(&policy, 1, "b"))).unwrap();
    let before = state.clone();
    // By now hold 1 is stale; its answer is what it was.
    assert_eq!(state.decide(&policy, &first), Ok(Admission { repeat: true, ..answer }));
    for changed in [
        request(1, Some(1), Some(3), write(&policy, 0, "other")),
        request(1, Some(1), Some(3), write(&policy, 1, "a")),
        request(1, Some(1), Some(4), write(&policy, 0, "a")),
        request(1, Some(1), Some(3), Action::Read),
        Request { key: Key::new("other"), ..first.clone() },
    ] {
        let refused = Err(Refusal::OpReused { hold: HoldId(1), op: OpId(1) });
        assert_eq!(state.decide(&policy, &changed), refused, "{changed:?}");
    }
    assert_eq!(state, before);
}

#[test]
fn strict_cannot_go_with_reads() {
    assert_eq!(Policy::new(&[Arm::Writes, Arm::Reads], Comparison::Strict), Err(PolicyError::StrictReads));
    assert_eq!(Policy::new(&[], Comparison::Default), Err(PolicyError::NoArm));
    assert_eq!(Policy::new(&[Arm::Off, Arm::Cas, Arm::Off], Comparison::Default), Err(PolicyError::Twice(Arm::Off)));
    assert!(Policy::new(&[Arm::Cas, Arm::Writes, Arm::Off], Comparison::Strict).is_ok());
}

#[test]
fn the_status_is_that_of_writes_else_of_the_next_arm_in_a_fixed_order() {
    let lead = |arms: &[Arm]| policy(arms, Comparison::Default).leading_arm();
    assert_eq!(lead(&Arm::ALL), Arm::Writes);
    assert_eq!(lead(&[Arm::Off, Arm::Cas, Arm::Reads]), Arm::Reads);
    assert_eq!(lead(&[Arm::Off, Arm::Claim, Arm::Cas]), Arm::Cas);
    assert_eq!(lead(&[Arm::Off, Arm::Guard, Arm::Deadline, Arm::Claim]), Arm::Claim);
    assert_eq!(lead(&[Arm::Off, Arm::Guard, Arm::Deadline]), Arm::Deadline);
    assert_eq!(lead(&[Arm::Off, Arm::Guard]), Arm::Guard);
    assert_eq!(lead(&[Arm::Off]), Arm::Off);
}

/// Replays the log of one key on `arm` and says what is wrong with it. Quadratic and stateless: each
/// entry is judged by looking back over all the earlier ones.
fn faults(log: &[Admission], arm: Arm, comparison: Comparison) -> Vec<String> {
    let registers = |entry: &Admission| match entry.kind {
        RequestKind::Read => arm == Arm::Reads,
        RequestKind::Write => arm.fences() && entry.arm(arm).unwrap().admitted,
    };
    let mut faults = Vec::new();
    for (place, entry) in log.iter().enumerate() {
        let earlier: Vec<&Admission> = log[..place].iter().filter(|entry| !entry.repeat).collect();
        let outcome = entry.arm(arm).unwrap();
        if entry.repeat {
            let same = |former: &&&Admission| (former.hold, former.op) == (entry.hold, entry.op);
            if earlier.iter().find(same).and_then(|former| former.arm(arm)) != Some(outcome) {
                faults.push(format!("#{place} repeats another answer"));
            }
            continue;
        }
        if entry.op.is_some() && earlier.iter().any(|former| (former.hold, former.op) == (entry.hold, entry.op)) {
            faults.push(format!("#{place} is applied twice"));
        }
        let largest = earlier.iter().filter(|entry| registers(entry)).filter_map(|entry| entry.token).max();
        let owner = earlier.iter().find(|entry| registers(entry) && entry.token == largest).map(|entry| entry.hold);
        let claim = earlier.iter().rfind(|entry| entry.kind == RequestKind::Read && entry.hold.is_some());
        let last = earlier.iter().rfind(|entry| entry.kind == RequestKind::Write && entry.arm(arm).unwrap().admitted);
        let version = last.map_or(Version(0), |entry| entry.number);
        if outcome.seen != largest {
            faults.push(format!("#{place} was told {:?} as the largest token, and it was {largest:?}", outcome.seen));
        }
        let rightly = match (entry.kind, arm) {
            (RequestKind::Read, _) | (_, Arm::Off) => true,
            (RequestKind::Write, Arm::Cas) => outcome.base == Some(version),
            (RequestKind::Write, Arm::Guard) => false,
            (RequestKind::Write, Arm::Deadline) => entry.deadline.is_some_and(|d| d.read_us <= d.until_us),
            (RequestKind::Write, Arm::Claim) => claim.is_some_and(|claim| claim.hold == entry.hold),
            (RequestKind::Write, _) => match comparison {
                Comparison::Strict => entry.token > largest,
                Comparison::Default => {
                    entry.token > largest || (entry.token == largest && owner.is_none_or(|owner| owner == entry.hold))
                }
            },
        };
        if outcome.admitted != rightly {
            faults.push(format!("#{place} admitted: {}, rightly: {rightly}", outcome.admitted));
        }
        let after = if entry.kind == RequestKind::Write && outcome.admitted { entry.number } else { version };
        if outcome.version != after || earlier.iter().any(|former| former.number >= entry.number) {
            faults.push(format!("#{place} has the wrong version or number"));
        }
    }
    faults
}

/// One step of a random history: a few holds with tokens that collide and go back.
#[derive(Clone, Debug)]
struct Step {
    hold: u64,
    op: Option<u64>,
    token: u64,
    /// None reads; else how many versions ago the base was current.
    write: Option<usize>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..5_u64, proptest::option::of(0..6_u64), 0..3_u64, proptest::option::of(0..3_usize));
    // Two holds may share a token, and a larger hold may have a smaller one.
    let step = step.prop_map(|(hold, op, skew, write)| Step { hold, op, token: hold + skew % (hold + 1), write });
    proptest::collection::vec(step, 1..60)
}

/// Runs `steps` and returns the log.
fn run(policy: &Policy, steps: &[Step]) -> Vec<Admission> {
    let mut state = State::default();
    let mut log: Vec<Admission> = Vec::new();
    for step in steps {
        let bases: Vec<u64> = log.iter().map(|entry| entry.number.0).rev().collect();
        let base = |back: usize| bases.get(back).copied().unwrap_or(0);
        let action = step.write.map_or(Action::Read, |back| write(policy, base(back), "v"));
        match state.decide(policy, &request(step.hold, step.op, Some(step.token), action)) {
            Ok(admission) => log.push(admission),
            Err(refusal) => assert!(matches!(refusal, Refusal::OpReused { .. }), "{refusal}"),
        }
    }
    log
}

proptest! {
    #[test]
    fn the_rule_agrees_with_a_judge_that_looks_back_over_the_whole_log(steps in steps()) {
        let all = policy(&Arm::ALL, Comparison::Default);
        let log = run(&all, &steps);
        for arm in Arm::ALL {
            prop_assert_eq!(faults(&log, arm, Comparison::Default), Vec::<String>::new());
        }
        let strict = policy(&[Arm::Off, Arm::Writes, Arm::Cas], Comparison::Strict);
        let log = run(&strict, &steps);
        for arm in [Arm::Off, Arm::Writes, Arm::Cas] {
            prop_assert_eq!(faults(&log, arm, Comparison::Strict), Vec::<String>::new());
        }
    }

    #[test]
    fn an_arm_decides_the_same_alone_and_beside_others(steps in steps()) {
        let together = run(&policy(&Arm::ALL, Comparison::Default), &steps);
        for arm in Arm::ALL {
            let alone = run(&policy(&[arm], Comparison::Default), &steps);
            prop_assert_eq!(together.len(), alone.len());
            for (together, alone) in together.iter().zip(&alone) {
                prop_assert_eq!(together.arm(arm), alone.arm(arm));
            }
        }
    }

    #[test]
    fn the_largest_token_never_goes_back(steps in steps()) {
        let log = run(&policy(&Arm::ALL, Comparison::Default), &steps);
        for arm in Arm::ALL {
            let decided = log.iter().filter(|entry| !entry.repeat);
            let seen: Vec<_> = decided.map(|entry| entry.arm(arm).unwrap().seen).collect();
            prop_assert!(seen.is_sorted());
        }
    }

    #[test]
    fn sending_everything_twice_changes_nothing(steps in steps()) {
        let policy = policy(&Arm::ALL, Comparison::Default);
        let mut state = State::default();
        for (op, step) in steps.iter().enumerate() {
            let action = step.write.map_or(Action::Read, |_| write(&policy, 0, "v"));
            let request = request(step.hold, Some(op as u64), Some(step.token), action);
            let first = state.decide(&policy, &request).unwrap();
            let before = state.clone();
            let again = state.decide(&policy, &request).unwrap();
            prop_assert_eq!(again, Admission { repeat: true, ..first });
            prop_assert_eq!(&state, &before);
        }
    }
}

#[test]
fn every_planted_bug_of_the_rule_shows_in_the_log() {
    // A fixed history with everything in it: shared tokens, tokens that go back, repeats, many writes.
    let mut steps = Vec::new();
    for round in 0..300_u64 {
        let token = 10 + round;
        let (hold, op) = (2 * round, None);
        steps.push(Step { hold, op, token, write: None });
        steps.push(Step { hold: hold - hold.min(2), op, token: token - 1, write: Some(0) });
        steps.push(Step { hold, op: Some(1), token, write: Some(0) });
        steps.push(Step { hold: hold + 1, op, token, write: Some(0) });
        steps.push(Step { hold: hold + 1, op: Some(7), token, write: None });
        steps.push(Step { hold: hold + 1, op: Some(7), token, write: None });
    }
    let honest = policy(&Arm::ALL, Comparison::Default);
    let caught = |policy: &Policy| -> usize {
        let log = run(policy, &steps);
        Arm::ALL.iter().map(|arm| faults(&log, *arm, Comparison::Default).len()).sum()
    };
    assert_eq!(caught(&honest), 0);
    for name in PlantedBug::names() {
        let planted = PlantedBug::from_name(name, 42).unwrap();
        let found = caught(&honest.clone().with_bug(Some(planted)));
        // Each of these has a test of its own: nothing restarts here, nothing is strict, and there is one key.
        let elsewhere = matches!(
            planted,
            PlantedBug::ForgetsTokens
                | PlantedBug::ForgetsOperations
                | PlantedBug::AnswersBeforeDurable
                | PlantedBug::StrictAsLess
                | PlantedBug::OneTokenForAllKeys
                | PlantedBug::AnswersRefused
                | PlantedBug::AnswersApplied
        );
        assert_eq!(found > 0, !elsewhere, "{name}: {found} faults");
    }
}

#[test]
fn only_answers_that_lie_differ_from_the_decision() {
    let honest = policy(&[Arm::Off, Arm::Writes], Comparison::Default);
    let mut state = State::default();
    let tokens = (1..=40).flat_map(|n| [n, n - 1]);
    let requests = tokens.enumerate().map(|(n, token)| {
        let action = if n % 5 == 4 { Action::Read } else { write(&honest, 0, "v") };
        request(token, None, Some(token), action)
    });
    let log: Vec<_> = requests.map(|request| state.decide(&honest, &request).unwrap()).collect();
    let lies = |bug: Option<&str>| {
        let policy = honest.clone().with_bug(bug.map(|bug| PlantedBug::from_name(bug, 0).unwrap()));
        let told = log.iter().map(|admission| (admission, policy.told(admission.clone())));
        let lies = told.filter(|(admission, told)| *admission != told);
        lies.map(|(admission, told)| (admission.clone(), told)).collect::<Vec<_>>()
    };
    assert_eq!(lies(None), []);
    for (bug, told) in [("answers-refused", false), ("answers-applied", true)] {
        let lies = lies(Some(bug));
        assert!(!lies.is_empty() && lies.len() < log.len(), "{bug}: {} of {}", lies.len(), log.len());
        for (admission, answer) in lies {
            assert!(admission.kind == RequestKind::Write && answer.number == admission.number);
            assert!(answer.arms.iter().all(|arm| arm.admitted == told), "{bug}");
        }
    }
}

#[test]
fn the_planted_comparisons_differ_from_the_rule_in_the_smallest_case_and_only_there() {
    use Comparison::{Default, Strict};
    /// Writes and reads, and what becomes of the writes by the rule and by the bug.
    type Case<'a> = (&'a str, Comparison, &'a [(u64, u64, bool)], &'a [bool], &'a [bool]);
    let cases: &[Case<'_>] = &[
        // The second write of a hold is what `strict` forbids, and `<` does not. Smaller tokens are still refused.
        ("strict-as-less", Strict, &[(1, 5, W), (1, 5, W), (2, 4, W)], &[true, false, false], &[true, true, false]),
        ("strict-as-less", Default, &[(1, 5, W), (2, 5, W)], &[true, false], &[true, false]),
        // As text 10 is smaller than 9, and 9 larger than 10.
        ("compares-as-text", Default, &[(1, 9, W), (2, 10, W)], &[true, true], &[true, false]),
        ("compares-as-text", Default, &[(2, 10, W), (1, 9, W)], &[true, false], &[true, true]),
        ("compares-as-text", Default, &[(1, 8, W), (2, 9, W), (1, 8, W)], &[true, true, false], &[true, true, false]),
        ("compares-as-text", Strict, &[(1, 8, W), (1, 8, W)], &[true, false], &[true, false]),
        // The stale write comes right behind the one that overtook it, and once more when that is known.
        (
            "checks-in-two-steps",
            Default,
            &[(1, 5, W), (2, 6, W), (1, 5, W), (1, 5, W)],
            &[true, true, false, false],
            &[true, true, true, false],
        ),
    ];
    for (name, comparison, steps, rightly, wrongly) in cases {
        let honest = policy(&[Arm::Writes], *comparison);
        assert_eq!(admitted_by(&honest, steps), *rightly, "{name}");
        let planted = honest.with_bug(Some(PlantedBug::from_name(name, 0).unwrap()));
        assert_eq!(admitted_by(&planted, steps), *wrongly, "{name}");
    }
}

#[test]
fn with_one_token_for_all_keys_the_tokens_of_one_key_refuse_the_writes_of_another() {
    let honest = policy(&[Arm::Writes], Comparison::Default);
    let admits = |policy: &Policy, other: &str| {
        let mut state = State::default();
        let on = |key: &str, hold, token| Request {
            key: Key::new(key),
            ..request(hold, None, Some(token), write(policy, 0, "v"))
        };
        assert!(state.decide(policy, &on("a", 1, 7)).unwrap().arms[0].admitted);
        state.decide(policy, &on(other, 2, 6)).unwrap().arms[0].admitted
    };
    assert!(admits(&honest, "b") && !admits(&honest, "a"));
    let planted = honest.with_bug(Some(PlantedBug::OneTokenForAllKeys));
    assert!(!admits(&planted, "b") && !admits(&planted, "a"));
}

#[test]
fn a_state_that_is_opened_again_knows_what_its_bug_leaves_it() {
    for (planted, tokens, operations) in [
        (None, true, true),
        (Some(PlantedBug::ForgetsTokens), false, true),
        (Some(PlantedBug::ForgetsOperations), true, false),
    ] {
        let policy = policy(&[Arm::Reads], Comparison::Default).with_bug(planted);
        let mut state = State::default();
        let first = request(1, Some(1), Some(5), write(&policy, 0, "v"));
        let number = state.decide(&policy, &first).unwrap().number;
        let mut state = state.reopened(&policy);
        assert!(state.last() > number, "a number that was given out comes again");
        let stale = state.decide(&policy, &request(2, None, Some(4), write(&policy, 0, "w"))).unwrap();
        assert_eq!(stale.arms[0].admitted, !tokens, "{planted:?}");
        assert_eq!(state.decide(&policy, &first).unwrap().repeat, operations, "{planted:?}");
    }
    let reopened = State::default().reopened(&policy(&[Arm::Off], Comparison::Default));
    assert!(reopened.last() > Version(0), "number 1 may have been given out and lost");
}

#[test]
fn refusing_at_random_is_drawn_from_the_seed() {
    let refused = |seed| -> Vec<u64> {
        let policy = policy(&[Arm::Writes], Comparison::Default)
            .with_bug(Some(PlantedBug::from_name("refuses-at-random", seed).unwrap()));
        let mut state = State::default();
        let mut put = |token| state.decide(&policy, &request(1, None, Some(token), write(&policy, 0, "v"))).unwrap();
        (0..10_000).filter(|token| !put(*token).arms[0].admitted).collect()
    };
    assert_eq!(refused(1), refused(1));
    assert_ne!(refused(1), refused(2));
    assert!((50..=150).contains(&refused(1).len()), "{}", refused(1).len());
}

#[test]
fn an_unknown_bug_is_refused_with_the_names_that_there_are() {
    let error = PlantedBug::from_name("no-such", 0).unwrap_err().to_string();
    assert!(PlantedBug::names().iter().all(|name| error.contains(name)), "{error}");
}

#[test]
fn a_key_is_short_visible_ascii() {
    assert!(parse_key("account/17~x").is_ok());
    assert!(parse_key(&"k".repeat(128)).is_ok());
    for bad in ["", "a b", "ä", "a\n", ".", "..", &"k".repeat(129)] {
        assert!(parse_key(bad).is_err(), "{bad:?}");
    }
}
