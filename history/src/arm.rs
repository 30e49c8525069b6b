//! Arms: the policies of the resource, and how those that fence compare tokens.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One policy of admitting writes. The resource decides each request on several arms at once, each with a value, a
/// version and a highest token of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Admits every write: the unsafe baseline.
    Off,
    /// Checks the token of each write, and registers the token.
    Writes,
    /// Does as [`Arm::Writes`], and registers the token of each read too. A stale write is refused as soon as a later
    /// hold has read.
    Reads,
    /// Admits a write exactly if the version from which the write was computed is still current. Ignores tokens.
    Cas,
    /// Admits a write exactly if no other hold has read since the write's own hold read. Ignores tokens. antirez
    /// proposes this check in place of a fencing token ("Is Redlock safe?").
    Claim,
    /// Admits a write exactly if the deadline that it carries has not passed by the resource's own clock. Ignores
    /// tokens. Relies on the clocks of two processes.
    Deadline,
    /// Admits a write exactly if the lock key of its hold still exists, in the same transaction of the lock's store.
    /// Needs no order of tokens. Only a resource over that store has it.
    Guard,
}

impl Arm {
    /// All arms, in the order of every table.
    pub const ALL: [Arm; 7] = [Arm::Off, Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim, Arm::Deadline, Arm::Guard];

    /// Returns the name in flags, plans, histories and requests.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Off => "off",
            Arm::Writes => "writes",
            Arm::Reads => "reads",
            Arm::Cas => "cas",
            Arm::Claim => "claim",
            Arm::Deadline => "deadline",
            Arm::Guard => "guard",
        }
    }

    /// Returns whether the arm compares fencing tokens. Such an arm needs a token on each write, and the property
    /// `<arm>.fence` binds it.
    pub fn fences(self) -> bool {
        matches!(self, Arm::Writes | Arm::Reads)
    }

    /// Returns whether the property `<arm>.data` binds the arm. On the other arms, lost updates are only measured.
    pub fn keeps_data(self) -> bool {
        matches!(self, Arm::Reads | Arm::Cas | Arm::Claim)
    }
}

impl std::fmt::Display for Arm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no arm.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no arm is called `{0}`: the arms are {arms}", arms = Arm::ALL.map(Arm::name).join(", "))]
pub struct UnknownArm(pub String);

impl FromStr for Arm {
    type Err = UnknownArm;

    fn from_str(name: &str) -> Result<Arm, UnknownArm> {
        Arm::ALL.into_iter().find(|arm| arm.name() == name).ok_or_else(|| UnknownArm(name.to_owned()))
    }
}

/// The rule by which a fencing arm refuses a write with the token `t`; `seen` is the largest registered token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// Refuses `t < seen`, and `t = seen` if another hold registered the token first. A hold may write often.
    #[default]
    Default,
    /// Refuses `t <= seen`: each hold writes once. Cannot go with the arm `reads`.
    Strict,
}

impl Comparison {
    /// Returns the name in flags, plans and records.
    pub fn name(self) -> &'static str {
        match self {
            Comparison::Default => "default",
            Comparison::Strict => "strict",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_arms_writes_and_reads_compare_tokens() {
        let fencing: Vec<Arm> = Arm::ALL.into_iter().filter(|arm| arm.fences()).collect();
        assert_eq!(fencing, [Arm::Writes, Arm::Reads]);
    }
}
