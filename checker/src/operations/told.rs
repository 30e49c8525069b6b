//! Decisions as answers show them, and how an answer differs from its decision.

use history::{Arm, ArmDecision, RequestKind, Token};
use smallvec::SmallVec;

/// The answer of one arm: what the log shows, or what a client received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub arm: Arm,
    /// Answers to reads do not have it.
    pub admitted: Option<bool>,
    /// Answers to writes do not have it.
    pub version: Option<u64>,
    pub seen: Option<Token>,
}

/// The answers that the log shows, one for each arm.
pub(super) type Decision = SmallVec<[Told; 3]>;

/// The answers that an admission shows. A read is answered with the state after it, so the arm `reads` shows the token
/// of the read itself; a write is answered with the tokens before it.
pub(super) fn told(kind: RequestKind, token: Option<Token>, arms: &[ArmDecision]) -> Decision {
    let mut all = Decision::new();
    let is_read = kind == RequestKind::Read;
    for d in arms {
        let own = token.filter(|_| is_read && d.arm == Arm::Reads);
        let (admitted, version) = if is_read { (None, Some(d.version)) } else { (Some(d.admitted), None) };
        let told = Told { arm: d.arm, admitted, version, seen: d.seen.max(own) };
        if all.iter().all(|known| known.arm != d.arm) {
            all.push(told);
        }
    }
    all
}

/// Returns the first difference between a decision and an answer: every arm is answered once, and as the log has it.
pub(super) fn differing(logged: &[Told], answer: impl Iterator<Item = Told>) -> Option<String> {
    let mut answered = 0_u32;
    let bit = |arm: Arm| 1 << arm as u32;
    for told in answer {
        let of_arm = logged.iter().find(|logged| logged.arm == told.arm && answered & bit(told.arm) == 0);
        if of_arm != Some(&told) {
            return Some(difference(&told, of_arm.copied()));
        }
        answered |= bit(told.arm);
    }
    let left_out = logged.iter().filter(|logged| answered & bit(logged.arm) == 0);
    let missing = left_out.min_by_key(|logged| logged.arm as u32)?;
    Some(format!("the answer leaves out {}", missing.arm))
}

fn difference(told: &Told, logged: Option<Told>) -> String {
    let arm = told.arm;
    let Some(logged) = logged else { return format!("{arm} was answered twice, or the log does not have it") };
    match (told.admitted, logged.admitted) {
        (Some(told), Some(logged)) if told != logged => {
            let word = |is_admitted| if is_admitted { "admitted" } else { "refused" };
            return format!("{arm} answered {}, and the log has {}", word(told), word(logged));
        }
        _ => {}
    }
    if let (Some(told), Some(logged)) = (told.version, logged.version)
        && told != logged
    {
        return format!("{arm} answered with version {told}, and the log has {logged}");
    }
    format!("{arm} answered {} as its highest token, and the log has {}", shown(told.seen), shown(logged.seen))
}

/// A digest of decisions: equal decisions have equal digests, others hardly ever.
pub(super) fn digest(arms: &[ArmDecision]) -> u64 {
    let mix = |sum: u64, part: u64| (sum.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
    arms.iter().fold(arms.len() as u64, |sum, d| {
        let flags = u64::from(d.admitted) | u64::from(d.seen.is_some()) << 1 | u64::from(d.base.is_some()) << 2;
        let seen = d.seen.map_or(0, |token| token.0);
        [d.arm as u64, flags, seen, d.base.unwrap_or(0), d.version, d.value].into_iter().fold(sum, mix)
    })
}

pub(super) fn shown(token: Option<Token>) -> String {
    token.map_or_else(|| "none".into(), |token| token.to_string())
}
