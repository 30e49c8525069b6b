//! Results of operations on the lock and on the resource.

use serde::{Deserialize, Serialize};

use crate::{Arm, NodeName, Token};

/// The outcome of an operation that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The operation certainly did not happen.
    Failed,
    /// The operation may have happened. A timeout always has this outcome.
    Indeterminate,
}

/// The reason why an operation on the lock did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FailureReason {
    /// Another client holds the lock.
    Held,
    /// The client read the answers after the promise had ended.
    Validity,
    /// Fewer than a majority of the nodes answered.
    NoMajority,
    /// The nodes answered that the client no longer holds the lock.
    Lost,
    /// The client cancelled the attempt.
    Cancelled,
    /// Any other error.
    Error,
    /// The service found that the attempt waits in a cycle of clients, and ended the attempt.
    Deadlock,
}

/// The answer of one lock node to one operation, as far as the client waited for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeAnswer {
    /// The node granted the lock.
    Granted,
    /// The node extended or released the lock, or raised its counter.
    Done,
    /// The node refused.
    Refused,
    /// The node granted or did it, but the client read the answer after the promise end.
    Late,
    /// The client did not wait for the answer, or no answer can come.
    None,
}

/// The answers of all lock nodes to one operation, in the order of the plan's nodes.
pub type Answers = Vec<(NodeName, NodeAnswer)>;

/// The kind of a request to the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RequestKind {
    /// `GET`.
    Read,
    /// `PUT`.
    Write,
}

/// The answer of one arm to a read, as the client received it. In JSON: `[arm, version, seen]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(from = "(Arm, u64, Option<Token>)", into = "(Arm, u64, Option<Token>)")]
pub struct ArmReadAnswer {
    /// The arm.
    pub arm: Arm,
    /// The version of the value that the client received.
    pub version: u64,
    /// The largest token that the arm claims to have registered, that of this read included.
    pub seen: Option<Token>,
}

impl From<(Arm, u64, Option<Token>)> for ArmReadAnswer {
    fn from((arm, version, seen): (Arm, u64, Option<Token>)) -> Self {
        ArmReadAnswer { arm, version, seen }
    }
}

impl From<ArmReadAnswer> for (Arm, u64, Option<Token>) {
    fn from(ArmReadAnswer { arm, version, seen }: ArmReadAnswer) -> Self {
        (arm, version, seen)
    }
}

/// The answer of one arm to a write, as the client received it. In JSON: `[arm, admitted, seen]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(from = "(Arm, bool, Option<Token>)", into = "(Arm, bool, Option<Token>)")]
pub struct ArmWriteAnswer {
    /// The arm.
    pub arm: Arm,
    /// True if the client was told that the write was applied.
    pub admitted: bool,
    /// The largest token that the arm claims to have registered before the write.
    pub seen: Option<Token>,
}

impl From<(Arm, bool, Option<Token>)> for ArmWriteAnswer {
    fn from((arm, admitted, seen): (Arm, bool, Option<Token>)) -> Self {
        ArmWriteAnswer { arm, admitted, seen }
    }
}

impl From<ArmWriteAnswer> for (Arm, bool, Option<Token>) {
    fn from(ArmWriteAnswer { arm, admitted, seen }: ArmWriteAnswer) -> Self {
        (arm, admitted, seen)
    }
}

/// The decision of one arm about one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ArmDecision {
    /// The arm.
    pub arm: Arm,
    /// True if the request was admitted; a read always is.
    pub admitted: bool,
    /// The largest token registered before this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Token>,
    /// The version from which the written value was computed; absent for reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// The version on this arm after the request: the admission number of the last admitted write, 0 before any write.
    pub version: u64,
    /// The counter on this arm after the request.
    pub value: u64,
}
