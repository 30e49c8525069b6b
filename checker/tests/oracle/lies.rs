//! Records of worlds in which afterwards something was changed: an answer, an entry of the log, a stamp. The property
//! `resource` must say what the literal judge says, and nothing may be blamed on the lock that rests on such an entry.

use history::{Arm, ArmDecision, Event, HoldId, Key, OpId, Outcome, Record, RequestKind, Stamp, Tail, Token};
use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

use crate::{
    PART, asked, difference,
    expected::Judged,
    forget_ties, literal,
    model::{self, UNIT_NS, World, knobs::Blow},
    number, over, reported,
    shares::Shares,
};

/// Histories that are tried.
const HISTORIES: u64 = 12_000;

/// The change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    AnswerFlipped,
    AnswerShowsOtherToken,
    AnswerShowsOtherVersion,
    AnswerWithoutArm,
    AnswerWithArmTwice,
    AnswerNumber,
    AnswerUnrecorded,
    AnswerTooEarly,
    FailedInstead,
    InvokedTooLate,
    NobodyInvoked,
    LogWithoutArm,
    LogWithArmTwice,
    LogOtherToken,
    LogOtherKey,
    LogOtherKind,
    LogShowsOtherToken,
    LogRefuses,
}

const ALL: [Lie; 18] = [
    Lie::AnswerFlipped,
    Lie::AnswerShowsOtherToken,
    Lie::AnswerShowsOtherVersion,
    Lie::AnswerWithoutArm,
    Lie::AnswerWithArmTwice,
    Lie::AnswerNumber,
    Lie::AnswerUnrecorded,
    Lie::AnswerTooEarly,
    Lie::FailedInstead,
    Lie::InvokedTooLate,
    Lie::NobodyInvoked,
    Lie::LogWithoutArm,
    Lie::LogWithArmTwice,
    Lie::LogOtherToken,
    Lie::LogOtherKey,
    Lie::LogOtherKind,
    Lie::LogShowsOtherToken,
    Lie::LogRefuses,
];

/// Draws another token.
fn other(token: Option<Token>, rng: &mut ChaCha8Rng) -> Option<Token> {
    match token {
        Some(token) if rng.random_bool(0.7) => {
            Some(Token(if rng.random_bool(0.5) { token.0 + 1 } else { token.0 / 2 }))
        }
        Some(_) => None,
        None => Some(Token(rng.random_range(0..9))),
    }
}

/// Changes the event; returns whether it could.
fn tell(lie: Lie, event: &mut Event, rng: &mut ChaCha8Rng) -> bool {
    match event {
        Event::ReadOk { hold, op, number, arms: told } => {
            let Some(arms) = told else { return false };
            let i = rng.random_range(0..arms.len());
            match lie {
                Lie::AnswerShowsOtherToken => arms[i].seen = other(arms[i].seen, rng),
                Lie::AnswerShowsOtherVersion => arms[i].version += 1,
                Lie::AnswerWithoutArm => _ = arms.remove(i),
                Lie::AnswerWithArmTwice => arms.push(arms[i]),
                Lie::AnswerNumber => *number += 1,
                Lie::AnswerUnrecorded => *told = None,
                Lie::FailedInstead => {
                    let (hold, op, outcome, detail) = (*hold, *op, Outcome::Failed, "refused".into());
                    *event = Event::AccessFailed { hold, op, outcome, detail };
                }
                _ => return false,
            }
        }
        Event::WriteOk { hold, op, number, arms: told } => {
            let Some(arms) = told else { return false };
            let i = rng.random_range(0..arms.len());
            match lie {
                Lie::AnswerFlipped => arms[i].admitted ^= true,
                Lie::AnswerShowsOtherToken => arms[i].seen = other(arms[i].seen, rng),
                Lie::AnswerWithoutArm => _ = arms.remove(i),
                Lie::AnswerWithArmTwice => arms.push(arms[i]),
                Lie::AnswerNumber => *number += 1,
                Lie::AnswerUnrecorded => *told = None,
                Lie::FailedInstead => {
                    let (hold, op, outcome, detail) = (*hold, *op, Outcome::Failed, "refused".into());
                    *event = Event::AccessFailed { hold, op, outcome, detail };
                }
                _ => return false,
            }
        }
        Event::Admission { key, kind, hold, token, repeat: false, arms, .. } => {
            let i = rng.random_range(0..arms.len());
            match lie {
                Lie::NobodyInvoked => *hold = Some(HoldId::of(77, 1)),
                Lie::LogWithoutArm => _ = arms.remove(i),
                Lie::LogWithArmTwice => arms.push(arms[i].clone()),
                Lie::LogOtherToken => *token = other(*token, rng),
                Lie::LogOtherKey => *key = Key::from(if key.as_str() == "k0" { "k1" } else { "k0" }),
                Lie::LogOtherKind if hold.is_some() => {
                    let was = *kind;
                    *kind = if was == RequestKind::Read { RequestKind::Write } else { RequestKind::Read };
                }
                Lie::LogShowsOtherToken => {
                    let fenced: Vec<&mut ArmDecision> = arms.iter_mut().filter(|d| d.arm.fences()).collect();
                    let Some(decision) = fenced.into_iter().next() else { return false };
                    decision.seen = other(decision.seen, rng);
                }
                Lie::LogRefuses => {
                    let never = |d: &&mut ArmDecision| *kind == RequestKind::Read || d.arm == Arm::Off;
                    let Some(decision) = arms.iter_mut().find(never) else { return false };
                    decision.admitted ^= true;
                }
                _ => return false,
            }
        }
        _ => return false,
    }
    true
}

/// Stamps the invocation of a decided request after its decision, or its answer before; returns whether it could.
fn shift(lie: Lie, records: &mut [Record], rng: &mut ChaCha8Rng) -> bool {
    let admissions: Vec<_> = (records.iter())
        .filter_map(|r| match &r.event {
            Event::Admission { hold, op, repeat: false, .. } => Some((hold.zip(*op)?, r.at)),
            _ => None,
        })
        .collect();
    let Some(&((hold, op), decided)) = admissions.choose(rng) else { return false };
    let is_it = |hold_of: &HoldId, op_of: &OpId| (*hold_of, *op_of) == (hold, op);
    let is_invocation = |r: &Record| match &r.event {
        Event::Read { hold, op } | Event::Write { hold, op } => is_it(hold, op),
        _ => false,
    };
    let is_answer = |r: &Record| match &r.event {
        Event::ReadOk { hold, op, .. } | Event::WriteOk { hold, op, .. } => is_it(hold, op),
        _ => false,
    };
    let unit = UNIT_NS * rng.random_range(1..4);
    if lie == Lie::InvokedTooLate {
        let Some(i) = records.iter().position(is_invocation) else { return false };
        let (process, n, at) = (records[i].process.clone(), records[i].n, Stamp(decided.0 + unit));
        // The stamps of a process never go back.
        for r in records.iter_mut().filter(|r| r.process == process && r.n >= n) {
            r.at = r.at.max(at);
        }
        return true;
    }
    let Some(i) = records.iter().position(is_answer) else { return false };
    let (process, n, at) = (records[i].process.clone(), records[i].n, Stamp(decided.0 - unit));
    let before = records.iter().filter(|r| r.process == process && r.n < n).map(|r| r.at).max();
    records[i].at = at.max(before.unwrap_or_default());
    records[i].at < decided
}

/// The lie that the record of a world tells, and the record.
fn told(world: &World, seed: u64) -> Option<(Lie, Vec<Record>)> {
    let is_kill = |blow: Blow| matches!(blow, Blow::Kill(_));
    if world.k.aims.iter().any(|a| is_kill(a.blow)) || world.k.timed.iter().any(|t| is_kill(t.blow)) {
        // The last words of a process that was killed may be lost: then the record proves less.
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    lied(model::records(world, seed), &mut rng)
}

/// Tells a lie in a record. None if the record has no place for it.
pub(crate) fn lied(mut records: Vec<Record>, rng: &mut ChaCha8Rng) -> Option<(Lie, Vec<Record>)> {
    let lie = *ALL.choose(rng)?;
    if matches!(lie, Lie::InvokedTooLate | Lie::AnswerTooEarly) {
        return shift(lie, &mut records, rng).then_some((lie, records));
    }
    let from = rng.random_range(0..records.len());
    let (before, after) = records.split_at_mut(from);
    let is_told = after.iter_mut().chain(before).any(|r| tell(lie, &mut r.event, rng));
    is_told.then_some((lie, records))
}

/// The findings about the resource and the lock that must agree. A record that contradicts itself proves less.
fn compared(mut j: Judged, is_contradicted: bool) -> Judged {
    if is_contradicted && j.lock.verdict != "violated" {
        j.lock.verdict = "not violated".into();
    }
    j.fence.values_mut().for_each(|fence| fence.verdict.clear());
    Judged { lock: j.lock, resource: j.resource, fence: j.fence, ..Judged::default() }
}

#[test]
fn what_the_record_shows_of_the_resource_is_reported_and_never_blamed_on_the_lock() {
    let mut seen = [0; ALL.len()];
    let counted = std::sync::Mutex::new(&mut seen);
    over(asked(HISTORIES), |seed, _: &mut Shares| {
        let world = World::run(seed);
        let Some((lie, records)) = told(&world, seed) else { return };
        let mut literal = literal::judge(&records);
        let (mut reported, json) = reported::judge(records, Tail::Whole);
        forget_ties(&literal, &mut reported);
        let is_contradicted = literal.resource.contradictions > 0;
        // Copies that arrive when their hold is over are not compared: the first answer is forgotten by then.
        literal.resource.wrong_repeats = literal.resource.wrong_repeats.min(reported.resource.wrong_repeats);
        let of = |j: Judged| format!("{:#?}", compared(j, is_contradicted));
        let (said, told) = (of(literal.clone()), of(reported.clone()));
        assert!(
            said == told,
            "seed {seed}, {lie:?}, literal (-) and checker (+):\n{}\n{json:#}",
            difference(&said, &told)
        );
        if is_contradicted {
            assert_ne!(reported.lock.verdict, "upheld", "seed {seed}, {lie:?}: {json:#}");
        }
        counted.lock().unwrap()[lie as usize] += u64::from(literal.resource.verdict != "upheld");
    });
    if number("ORACLE_HISTORIES").is_none() {
        let rare: Vec<_> = ALL.into_iter().zip(seen).filter(|(_, n)| *n < 100 / PART).collect();
        assert!(rare.is_empty(), "too rare to prove anything: {rare:?}");
    }
}
