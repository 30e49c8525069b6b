//! An entry of the admission log.

use history::{Arm, Deadline, HoldId, Key, OpId, RequestKind, Token, Version};
use serde::{Deserialize, Serialize};

use crate::request::Request;

/// One entry of the admission log: a request, and the decision of each arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The place in the order, and the version of the written value. A repeat carries the number of the request that it
    /// repeats.
    pub number: Version,
    /// The key that was read or written.
    pub key: Key,
    /// The hold that sent the request.
    pub hold: Option<HoldId>,
    /// The operation of that hold.
    pub op: Option<OpId>,
    /// The token of the request.
    pub token: Option<Token>,
    /// The deadline of the request, and the clock against which it was compared.
    #[serde(default)]
    pub deadline: Option<Deadline>,
    /// Read or write.
    pub kind: RequestKind,
    /// One outcome for each arm, in the order of [`Arm`].
    pub arms: Vec<ArmOutcome>,
    /// The operation had been decided before. Nothing was decided or changed now, and the former answer was repeated.
    pub repeat: bool,
}

impl Admission {
    /// The entry of a request that was decided now, with the outcome on each arm.
    pub(crate) fn decided(number: Version, request: &Request, arms: Vec<ArmOutcome>) -> Admission {
        Admission {
            number,
            key: request.key.clone(),
            hold: request.hold,
            op: request.op,
            token: request.token,
            deadline: request.deadline,
            kind: request.action.kind(),
            arms,
            repeat: false,
        }
    }

    /// Returns the outcome on `arm`.
    pub fn arm(&self, arm: Arm) -> Option<&ArmOutcome> {
        self.arms.iter().find(|outcome| outcome.arm == arm)
    }
}

/// The decision of one arm about a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmOutcome {
    /// The arm.
    pub arm: Arm,
    /// True if the write was applied; reads are always admitted.
    pub admitted: bool,
    /// The largest token that was registered before this request.
    pub seen: Option<Token>,
    /// True if the token of this request became the largest.
    pub registered: bool,
    /// The version from which the written value was computed; none for a read.
    pub base: Option<Version>,
    /// The version after this request: for an admitted write its own number.
    pub version: Version,
    /// The value after this request; none before the first write.
    pub value: Option<String>,
}

impl ArmOutcome {
    /// Returns the largest registered token after the request, which carried `token`.
    pub fn highest(&self, token: Option<Token>) -> Option<Token> {
        if self.registered { token } else { self.seen }
    }
}
