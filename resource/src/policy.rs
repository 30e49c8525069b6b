//! Policy: the arms of a resource and how they compare tokens.

use std::fmt;

use history::{Arm, Comparison};

use crate::admission::Admission;
use crate::buggy::PlantedBug;

/// The arms of a resource, and how they compare tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    arms: Vec<Arm>,
    comparison: Comparison,
    bug: Option<PlantedBug>,
}

/// The reason why arms and comparison do not make a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No arm is named.
    #[error("a resource needs at least one arm")]
    NoArm,
    /// One arm is named twice.
    #[error("the arm '{0}' is named twice")]
    Twice(Arm),
    /// A read would register the token, and the first write of the same hold would then be refused.
    #[error(
        "the strict comparison cannot go with the arm 'reads': a hold's read registers its token, and the hold's first \
         write would then be refused; use the default comparison, or leave out 'reads'"
    )]
    StrictReads,
}

impl Policy {
    /// Makes a policy without a planted bug.
    ///
    /// # Errors
    /// No arm is named, an arm is named twice, or the strict comparison goes with `reads`.
    pub fn new(arms: &[Arm], comparison: Comparison) -> Result<Policy, PolicyError> {
        let mut sorted = arms.to_vec();
        sorted.sort_unstable();
        if sorted.is_empty() {
            return Err(PolicyError::NoArm);
        }
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PolicyError::Twice(pair[0]));
        }
        if comparison == Comparison::Strict && sorted.contains(&Arm::Reads) {
            return Err(PolicyError::StrictReads);
        }
        Ok(Policy { arms: sorted, comparison, bug: None })
    }

    /// Returns the policy with a planted bug, to test that the checker finds the bug.
    #[must_use]
    pub fn with_bug(self, bug: Option<PlantedBug>) -> Policy {
        Policy { bug, ..self }
    }

    /// Returns the arms, in the order of [`Arm`].
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// Returns how fencing arms compare tokens.
    pub fn comparison(&self) -> Comparison {
        self.comparison
    }

    /// Returns the planted bug, if any.
    pub fn bug(&self) -> Option<PlantedBug> {
        self.bug
    }

    /// Returns the arm whose decision is the HTTP status of a write.
    pub fn leading_arm(&self) -> Arm {
        leading_arm(|arm| self.arms.contains(arm))
    }

    /// Returns the decision that the answer to `admission` tells. Only a planted bug tells another one.
    pub fn told(&self, admission: Admission) -> Admission {
        match self.bug {
            Some(bug) => bug.told(admission),
            None => admission,
        }
    }
}

/// Returns the arm whose decision is the HTTP status of a write, among those that a resource has: `writes`, otherwise
/// the first of `reads`, `cas`, `claim`, `deadline`, `guard` and `off`.
pub(crate) fn leading_arm(has: impl Fn(&Arm) -> bool) -> Arm {
    [Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim, Arm::Deadline, Arm::Guard].into_iter().find(has).unwrap_or(Arm::Off)
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, arm) in self.arms.iter().enumerate() {
            write!(f, "{}{arm}", if place == 0 { "" } else { "," })?;
        }
        write!(f, " {}", self.comparison.name())
    }
}
