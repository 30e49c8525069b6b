//! Planted bugs: each is one small change of the rule that the checker must find.
//! Only `--resource buggy:<name>` and tests turn a bug on.

use history::{Comparison, RequestKind, Token, Version};

use crate::admission::Admission;
use crate::key_state::HighestToken;

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// Reverses the comparison: admits a smaller token and refuses a larger one.
    ComparesWrongly,
    /// Compares a stale token, and admits the write anyway.
    AdmitsStale,
    /// Refuses one in a hundred writes that should be admitted, drawn from the seed.
    RefusesAtRandom {
        /// The seed of the draws.
        seed: u64,
    },
    /// Does not register the tokens of reads on the arm `reads`.
    ReadsDoNotRegister,
    /// Admits a token equal to the largest from any hold.
    EqualFromOtherAdmitted,
    /// Loses the largest tokens in a restart.
    ForgetsTokens,
    /// Applies an operation again when it arrives again.
    AppliesRepeats,
    /// Admits a token equal to the largest under the strict comparison.
    StrictAsLess,
    /// Compares tokens as decimal text: `10` is smaller than `9`.
    ComparesAsText,
    /// Checks a token, and registers the token in a second step: the check misses the token of the previous request.
    ChecksInTwoSteps,
    /// Keeps one largest token for all keys, although the tokens of different keys are unrelated.
    OneTokenForAllKeys,
    /// Answers a read that registers a token before the token is on disk.
    AnswersBeforeDurable,
    /// Loses the decided operations in a restart: an operation that arrives again is decided again.
    ForgetsOperations,
    /// Registers the tokens of one read in two only, on the arm `reads`. The number of the read decides.
    RegistersOneReadInTwo,
    /// Applies one write in ten and answers that every arm refused the write.
    AnswersRefused,
    /// Refuses a write and answers that every arm applied the write.
    AnswersApplied,
}

/// A name that no planted bug has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no planted bug of the resource is called `{name}`: the bugs are {}", PlantedBug::names().join(", "))]
pub struct UnknownBug {
    /// The unknown name.
    pub name: String,
}

/// The bugs with their names; [`PlantedBug::from_name`] fills in the seed.
const NAMES: [(&str, PlantedBug); 16] = [
    ("compares-wrongly", PlantedBug::ComparesWrongly),
    ("admits-stale", PlantedBug::AdmitsStale),
    ("refuses-at-random", PlantedBug::RefusesAtRandom { seed: 0 }),
    ("reads-do-not-register", PlantedBug::ReadsDoNotRegister),
    ("equal-from-other-admitted", PlantedBug::EqualFromOtherAdmitted),
    ("forgets-tokens", PlantedBug::ForgetsTokens),
    ("applies-repeats", PlantedBug::AppliesRepeats),
    ("strict-as-less", PlantedBug::StrictAsLess),
    ("compares-as-text", PlantedBug::ComparesAsText),
    ("checks-in-two-steps", PlantedBug::ChecksInTwoSteps),
    ("one-token-for-all-keys", PlantedBug::OneTokenForAllKeys),
    ("answers-before-durable", PlantedBug::AnswersBeforeDurable),
    ("forgets-operations", PlantedBug::ForgetsOperations),
    ("registers-one-read-in-two", PlantedBug::RegistersOneReadInTwo),
    ("answers-refused", PlantedBug::AnswersRefused),
    ("answers-applied", PlantedBug::AnswersApplied),
];

impl PlantedBug {
    /// Returns all names.
    pub fn names() -> [&'static str; NAMES.len()] {
        NAMES.map(|(name, _)| name)
    }

    /// Returns the bug called `name`; `seed` is for bugs that draw.
    ///
    /// # Errors
    /// No bug has this name; the message lists all names.
    pub fn from_name(name: &str, seed: u64) -> Result<PlantedBug, UnknownBug> {
        match NAMES.iter().find(|(known, _)| *known == name) {
            Some((_, PlantedBug::RefusesAtRandom { .. })) => Ok(PlantedBug::RefusesAtRandom { seed }),
            Some((_, planted)) => Ok(*planted),
            None => Err(UnknownBug { name: name.to_owned() }),
        }
    }

    /// Returns whether a restart keeps the largest tokens.
    pub fn keeps_tokens(self) -> bool {
        self != PlantedBug::ForgetsTokens
    }

    /// Returns whether a restart keeps the decided operations with their answers.
    pub fn keeps_formers(self) -> bool {
        self != PlantedBug::ForgetsOperations
    }

    /// Returns whether the answer about `admission` leaves without waiting for the disk.
    pub fn answers_before_durable(self, admission: &Admission) -> bool {
        self == PlantedBug::AnswersBeforeDurable
            && admission.kind == RequestKind::Read
            && admission.arms.iter().any(|arm| arm.registered)
    }

    /// Returns whether the arm `reads` registers the token of a read with this number.
    pub(crate) fn registers_read(self, number: Version) -> bool {
        match self {
            PlantedBug::ReadsDoNotRegister => false,
            // Reads and writes often take turns: then all numbers of reads are odd, or all are even.
            PlantedBug::RegistersOneReadInTwo => mix(number.0).is_multiple_of(2),
            _ => true,
        }
    }

    /// Returns the decision that the answer to `admission` tells.
    pub(crate) fn told(self, mut admission: Admission) -> Admission {
        let is_told = match self {
            PlantedBug::AnswersRefused if mix(admission.number.0).is_multiple_of(10) => false,
            PlantedBug::AnswersApplied => true,
            _ => return admission,
        };
        if admission.kind == RequestKind::Write {
            admission.arms.iter_mut().for_each(|arm| arm.admitted = is_told);
        }
        admission
    }

    /// Returns the bug's decision on a fencing arm where the correct decision is `honest`.
    pub(crate) fn bend(
        self,
        honest: bool,
        comparison: Comparison,
        token: Token,
        seen: Option<HighestToken>,
        number: Version,
    ) -> bool {
        match self {
            PlantedBug::ComparesWrongly => seen.is_none_or(|seen| token <= seen.token),
            PlantedBug::AdmitsStale => true,
            PlantedBug::RefusesAtRandom { seed } => honest && !mix(seed ^ mix(number.0)).is_multiple_of(100),
            PlantedBug::EqualFromOtherAdmitted => honest || seen.is_some_and(|seen| token == seen.token),
            PlantedBug::StrictAsLess => {
                honest || (comparison == Comparison::Strict && seen.is_some_and(|seen| token == seen.token))
            }
            // Equal texts are equal numbers.
            PlantedBug::ComparesAsText => {
                seen.is_none_or(
                    |seen| {
                        if token == seen.token { honest } else { token.to_string() > seen.token.to_string() }
                    },
                )
            }
            PlantedBug::ReadsDoNotRegister
            | PlantedBug::ForgetsTokens
            | PlantedBug::AppliesRepeats
            | PlantedBug::ChecksInTwoSteps
            | PlantedBug::OneTokenForAllKeys
            | PlantedBug::AnswersBeforeDurable
            | PlantedBug::ForgetsOperations
            | PlantedBug::RegistersOneReadInTwo
            | PlantedBug::AnswersRefused
            | PlantedBug::AnswersApplied => honest,
        }
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014):
/// enough to draw one in a hundred without the state of a generator.
fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use history::Version;

    use super::PlantedBug;

    #[test]
    fn one_read_in_two_registers_also_if_reads_and_writes_take_turns() {
        for first in [1, 2] {
            let reads = (first..).step_by(2).take(200);
            let registers = |number: &u64| PlantedBug::RegistersOneReadInTwo.registers_read(Version(*number));
            let count = reads.filter(registers).count();
            assert!((80..=120).contains(&count), "{count} of 200, from number {first} on");
        }
    }
}
