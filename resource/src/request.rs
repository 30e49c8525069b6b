//! A request as the rule sees it.

use std::collections::BTreeMap;

use history::{Arm, Deadline, HoldId, Key, OpId, RequestKind, Token, Version};
use serde::{Deserialize, Serialize};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 128;

/// The reason why the resource does not take a text as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is empty, or has more than [`KEY_BYTES_MAX`] bytes.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, this key has {0}")]
    Length(usize),
    /// The text has a space, a control character, or a character outside ASCII.
    #[error("a key is made of visible ASCII characters")]
    Character,
    /// The text is `.` or `..`, which have another meaning in a URL.
    #[error("a key is not '.' or '..'")]
    Dots,
}

/// Checks that `text` is a key of the resource: 1 to 128 visible ASCII characters, and neither `.` nor `..`.
///
/// # Errors
/// Says which limit `text` breaks.
pub fn parse_key(text: &str) -> Result<Key, KeyError> {
    if text.is_empty() || text.len() > KEY_BYTES_MAX {
        return Err(KeyError::Length(text.len()));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(KeyError::Character);
    }
    if text == "." || text == ".." {
        return Err(KeyError::Dots);
    }
    Ok(Key::new(text))
}

/// One request to the resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The key that is read or written.
    pub key: Key,
    /// The hold that sends the request; none for a request outside every hold.
    pub hold: Option<HoldId>,
    /// The operation of the hold. With an operation, the request is applied once, however often it arrives. Without an
    /// operation, each arrival is applied.
    pub op: Option<OpId>,
    /// The fencing token of the hold.
    pub token: Option<Token>,
    /// The deadline that a write carries, and the resource's clock when the request is decided.
    #[serde(default)]
    pub deadline: Option<Deadline>,
    /// Read or write.
    pub action: Action,
}

impl Request {
    /// Returns whether `other` is this request, arrived at another time.
    pub(crate) fn is_same(&self, other: &Request) -> bool {
        let until = |request: &Request| request.deadline.map(|deadline| deadline.until_us);
        let parts = |request: &Request| (request.key.clone(), request.hold, request.op, request.token, until(request));
        parts(self) == parts(other) && self.action == other.action
    }
}

/// The effect that a request asks for, on all arms at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Returns value and version of each arm.
    Read,
    /// Proposes a new value for each arm.
    Write(BTreeMap<Arm, Proposal>),
}

impl Action {
    /// Returns whether the action reads or writes.
    pub fn kind(&self) -> RequestKind {
        match self {
            Action::Read => RequestKind::Read,
            Action::Write(_) => RequestKind::Write,
        }
    }
}

/// The new value that a write proposes to one arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The version from which `value` was computed. Only the arm `cas` needs this version. The other arms record the
    /// version, which tells a lost update from a harmless one.
    pub base: Option<Version>,
    /// The new value.
    pub value: String,
}
