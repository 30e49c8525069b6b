//! How operations come out: on the lock, and on the resource.

use serde::{Deserialize, Serialize};

use crate::{Arm, NodeName, Token};

/// How an operation that did not succeed came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It surely did not happen.
    Failed,
    /// It may have happened. A timeout is always this.
    Indeterminate,
}

/// Why an operation on the lock did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Somebody else holds it.
    Held,
    /// The answers were read when the promise had ended.
    Validity,
    /// Too few nodes answered.
    NoMajority,
    /// The nodes say that it is no longer ours.
    Lost,
    /// The client gave the attempt up.
    Cancelled,
    /// Anything else.
    Error,
}

/// What one lock node said to one operation, as far as the operation waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeAnswer {
    /// It granted the lock.
    Granted,
    /// It did what was asked: extended, released, raised its counter.
    Done,
    /// It refused.
    Refused,
    /// It granted or did it, and the answer was read after the promise end.
    Late,
    /// No answer was waited for any longer, or none can come.
    None,
}

/// The answers of all lock nodes to one operation, in the order of the plan's nodes.
pub type Answers = Vec<(NodeName, NodeAnswer)>;

/// Whether a request to the resource reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestKind {
    /// `GET`.
    Read,
    /// `PUT`.
    Write,
}

/// What one arm decided about one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmDecision {
    /// The arm.
    pub arm: Arm,
    /// Whether the request was admitted; a read always is.
    pub admitted: bool,
    /// The largest token registered before this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Token>,
    /// The version the write was made from; absent for reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// The version on this arm after the request: the admission number of the last admitted write, 0 before any.
    pub version: u64,
    /// The counter on this arm after the request.
    pub value: u64,
}
