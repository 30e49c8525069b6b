//! Bugs planted on purpose: each is one small change of the rule that whoever judges a run must catch.
//! Nothing reaches them but `--resource buggy:<name>` and tests.

use crate::decide::Seen;
use crate::policy::Comparison;
use crate::types::{Admission, Kind, Token, Version};

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The comparison is turned round: a token below the largest is admitted, one above it refused.
    ComparesWrongly,
    /// A stale token is compared, and then let through all the same.
    AdmitsStale,
    /// One write in a hundred that should be admitted is refused, drawn from the seed.
    RefusesAtRandom {
        /// Where the draws come from.
        seed: u64,
    },
    /// The arm `reads` forgets to register the tokens of reads.
    ReadsDoNotRegister,
    /// A token equal to the largest is admitted whichever hold it comes from.
    EqualFromOtherAdmitted,
    /// The largest tokens are not restored when the store is opened again.
    ForgetsTokens,
    /// An operation that comes twice is applied twice.
    AppliesRepeats,
    /// The strict comparison is asked for, and a token equal to the largest is admitted.
    StrictAsLess,
    /// Tokens are compared as decimal text: `10` is smaller than `9`.
    ComparesAsText,
    /// A token is checked, and registered in a second step: the check knows nothing of what the request just before it registered.
    ChecksInTwoSteps,
    /// There is one largest token for all keys, whose tokens have nothing to do with each other.
    OneTokenForAllKeys,
    /// A read that registers a token is answered before that is on disk.
    AnswersBeforeDurable,
    /// The operations that were decided are not restored when the store is opened again: one that comes again is decided again.
    ForgetsOperations,
}

/// A name that is no planted bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no planted bug of the resource is called '{name}': there are {}", Planted::names().join(", "))]
pub struct UnknownBug {
    /// The name that was asked for.
    pub name: String,
}

/// The names, each with its bug; the seed is filled in by [`Planted::from_name`].
const NAMES: [(&str, Planted); 13] = [
    ("compares-wrongly", Planted::ComparesWrongly),
    ("admits-stale", Planted::AdmitsStale),
    ("refuses-at-random", Planted::RefusesAtRandom { seed: 0 }),
    ("reads-do-not-register", Planted::ReadsDoNotRegister),
    ("equal-from-other-admitted", Planted::EqualFromOtherAdmitted),
    ("forgets-tokens", Planted::ForgetsTokens),
    ("applies-repeats", Planted::AppliesRepeats),
    ("strict-as-less", Planted::StrictAsLess),
    ("compares-as-text", Planted::ComparesAsText),
    ("checks-in-two-steps", Planted::ChecksInTwoSteps),
    ("one-token-for-all-keys", Planted::OneTokenForAllKeys),
    ("answers-before-durable", Planted::AnswersBeforeDurable),
    ("forgets-operations", Planted::ForgetsOperations),
];

impl Planted {
    /// All names, for messages and for tests that go through every bug.
    pub fn names() -> [&'static str; NAMES.len()] {
        NAMES.map(|(name, _)| name)
    }

    /// The bug called `name`; `seed` is used by those that draw.
    ///
    /// # Errors
    /// No bug has this name; the message lists those that there are.
    pub fn from_name(name: &str, seed: u64) -> Result<Planted, UnknownBug> {
        match NAMES.iter().find(|(known, _)| *known == name) {
            Some((_, Planted::RefusesAtRandom { .. })) => Ok(Planted::RefusesAtRandom { seed }),
            Some((_, planted)) => Ok(*planted),
            None => Err(UnknownBug { name: name.to_owned() }),
        }
    }

    /// Whether the largest tokens are still known after a restart.
    pub fn keeps_tokens(self) -> bool {
        self != Planted::ForgetsTokens
    }

    /// Whether the operations that were decided are still known after a restart, and with them the answers that were given.
    pub fn keeps_formers(self) -> bool {
        self != Planted::ForgetsOperations
    }

    /// Whether the answer that shows `admission` leaves without waiting for the disk.
    pub fn answers_before_durable(self, admission: &Admission) -> bool {
        self == Planted::AnswersBeforeDurable
            && admission.kind == Kind::Read
            && admission.arms.iter().any(|arm| arm.registered)
    }

    /// What the bug makes of a decision on a fenced arm that is rightly `honest`.
    pub(crate) fn bend(
        self,
        honest: bool,
        comparison: Comparison,
        token: Token,
        seen: Option<Seen>,
        number: Version,
    ) -> bool {
        match self {
            Planted::ComparesWrongly => seen.is_none_or(|seen| token <= seen.token),
            Planted::AdmitsStale => true,
            Planted::RefusesAtRandom { seed } => honest && !mix(seed ^ mix(number.0)).is_multiple_of(100),
            Planted::EqualFromOtherAdmitted => honest || seen.is_some_and(|seen| token == seen.token),
            Planted::StrictAsLess => {
                honest || (comparison == Comparison::Strict && seen.is_some_and(|seen| token == seen.token))
            }
            // Equal texts are equal numbers.
            Planted::ComparesAsText => {
                seen.is_none_or(
                    |seen| {
                        if token == seen.token { honest } else { token.to_string() > seen.token.to_string() }
                    },
                )
            }
            Planted::ReadsDoNotRegister
            | Planted::ForgetsTokens
            | Planted::AppliesRepeats
            | Planted::ChecksInTwoSteps
            | Planted::OneTokenForAllKeys
            | Planted::AnswersBeforeDurable
            | Planted::ForgetsOperations => honest,
        }
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, OOPSLA 2014): enough to draw one in a hundred without a generator to carry along.
fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
