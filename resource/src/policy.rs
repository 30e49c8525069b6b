//! Arms, the comparison of tokens, and which of them go together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::buggy::Planted;

/// One policy of admitting writes. A resource judges each request on several arms at once, each with a
/// value, a version and a highest token of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// Admits every write: the unsafe baseline.
    Off,
    /// Checks the token of each write, and registers it.
    Writes,
    /// As [`Arm::Writes`], and registers the token of each read too, so that a stale write is refused
    /// from the moment on at which a later hold has read.
    Reads,
    /// Admits a write exactly if the version from which it was computed still stands; looks at no token.
    Cas,
    /// A read under a hold claims, whoever claimed before; a write is admitted exactly if the newest claim is its own hold's. This is the
    /// check that antirez proposes in place of a fencing token ("Is Redlock safe?"); looks at no token.
    Claim,
}

impl Arm {
    /// All arms, in the order in which they are reported.
    pub const ALL: [Arm; 5] = [Arm::Off, Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim];

    /// The word for it on the command line, in URLs and in records.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Off => "off",
            Arm::Writes => "writes",
            Arm::Reads => "reads",
            Arm::Cas => "cas",
            Arm::Claim => "claim",
        }
    }

    /// Whether it compares fencing tokens, and so needs one on every write.
    pub fn is_fenced(self) -> bool {
        matches!(self, Arm::Writes | Arm::Reads)
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no arm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no arm is called '{0}': there are off, writes, reads, cas and claim")]
pub struct UnknownArm(pub String);

impl FromStr for Arm {
    type Err = UnknownArm;
    fn from_str(name: &str) -> Result<Arm, UnknownArm> {
        Arm::ALL.into_iter().find(|arm| arm.name() == name).ok_or_else(|| UnknownArm(name.to_owned()))
    }
}

/// When a fenced arm refuses a write with token `t`, `seen` being the largest registered one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// Refuses `t < seen`, and `t = seen` if another hold registered it first: a hold may write often.
    #[default]
    Default,
    /// Refuses `t <= seen`: one write a hold.
    Strict,
}

impl Comparison {
    /// The word for it on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Comparison::Default => "default",
            Comparison::Strict => "strict",
        }
    }
}

/// What a resource was started as: its arms and how they compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    arms: Vec<Arm>,
    comparison: Comparison,
    planted: Option<Planted>,
}

/// Why arms and comparison do not make a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No arm at all.
    #[error("a resource needs at least one arm")]
    NoArm,
    /// One arm named twice.
    #[error("the arm '{0}' is named twice")]
    Twice(Arm),
    /// A read would register the token, and the hold's own first write would then be refused.
    #[error(
        "the strict comparison cannot go with the arm 'reads': a hold's read registers its token, and its first write \
         would be refused as a repeat; take the default comparison, or leave 'reads' out"
    )]
    StrictReads,
}

impl Policy {
    /// A policy without planted bugs.
    ///
    /// # Errors
    /// No arm, an arm named twice, or the strict comparison together with `reads`.
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
        Ok(Policy { arms: sorted, comparison, planted: None })
    }

    /// The same policy with one bug planted in it; only for tests of what must catch it.
    #[must_use]
    pub fn with_planted(self, planted: Option<Planted>) -> Policy {
        Policy { planted, ..self }
    }

    /// The arms, in the order of [`Arm`].
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// How fenced arms compare.
    pub fn comparison(&self) -> Comparison {
        self.comparison
    }

    /// The planted bug, if any.
    pub fn planted(&self) -> Option<Planted> {
        self.planted
    }

    /// Whether a write needs a token here.
    pub fn needs_token(&self) -> bool {
        self.arms.iter().any(|arm| arm.is_fenced())
    }

    /// The arm whose decision is the HTTP status of a write: `writes`, else the first of `reads`, `cas`,
    /// `claim` and `off` that there is.
    pub fn leading_arm(&self) -> Arm {
        [Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim]
            .into_iter()
            .find(|arm| self.arms.contains(arm))
            .unwrap_or(Arm::Off)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, arm) in self.arms.iter().enumerate() {
            write!(f, "{}{arm}", if place == 0 { "" } else { "," })?;
        }
        write!(f, " {}", self.comparison.name())
    }
}
