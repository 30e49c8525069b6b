//! The words of the resource: what a request says, and the record of how it was decided.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::Arm;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A fencing token: the number that a hold carries to the resource.
    Token
}
number! {
    /// One hold of a lock, as its client names it.
    HoldId
}
number! {
    /// One operation of a hold; unique within the hold.
    OpId
}
number! {
    /// A place in the admission order of one resource, and the version of whatever was written there.
    /// Unique over all keys and all restarts; not dense, since a restart skips some. 0 is the version
    /// of what was never written.
    Version
}

/// A key of the resource: 1 to 128 visible ASCII characters, and neither `.` nor `..`, which would
/// change their meaning on the way through a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

/// Why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Nothing, or more than [`Key::BYTES_MAX`] bytes.
    #[error("a key has 1 to {max} bytes, this one has {0}", max = Key::BYTES_MAX)]
    Length(usize),
    /// A space, a control character, or something outside ASCII.
    #[error("a key is made of visible ASCII characters")]
    Character,
    /// `.` or `..`.
    #[error("a key is not '.' or '..'")]
    Dots,
}

impl Key {
    /// The longest key, in bytes.
    pub const BYTES_MAX: usize = 128;

    /// Checks `text`.
    ///
    /// # Errors
    /// Says which of the limits above `text` breaks.
    pub fn new(text: impl Into<String>) -> Result<Key, KeyError> {
        let text = text.into();
        if text.is_empty() || text.len() > Key::BYTES_MAX {
            return Err(KeyError::Length(text.len()));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError::Character);
        }
        if text == "." || text == ".." {
            return Err(KeyError::Dots);
        }
        Ok(Key(text))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;
    fn try_from(text: String) -> Result<Key, KeyError> {
        Key::new(text)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One request, as the rule sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What is read or written.
    pub key: Key,
    /// The hold under which it is asked; none for a request from outside every hold.
    pub hold: Option<HoldId>,
    /// Which operation of the hold this is; with it, the request is applied once, however often it
    /// comes. None: each time that it comes.
    pub op: Option<OpId>,
    /// The fencing token of the hold.
    pub token: Option<Token>,
    /// What is asked.
    pub action: Action,
}

/// What a request asks for, on all arms at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Value and version of each arm.
    Read,
    /// A new value for each arm.
    Write(BTreeMap<Arm, Proposal>),
}

impl Action {
    /// Whether it reads or writes.
    pub fn kind(&self) -> Kind {
        match self {
            Action::Read => Kind::Read,
            Action::Write(_) => Kind::Write,
        }
    }
}

/// What a write asks of one arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The version from which `value` was computed. Only the arm `cas` needs it; elsewhere it is
    /// recorded, and tells a lost update from a harmless one.
    pub base: Option<Version>,
    /// The new value.
    pub value: String,
}

/// Whether a request reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A GET.
    Read,
    /// A PUT.
    Write,
}

/// One entry of the admission log: a request and how each arm decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Its place in the order, and the version of what it wrote. A repeat carries the number of the
    /// request that it repeats.
    pub number: Version,
    /// What was read or written.
    pub key: Key,
    /// The hold that asked.
    pub hold: Option<HoldId>,
    /// Which operation of that hold.
    pub op: Option<OpId>,
    /// The token that came with it.
    pub token: Option<Token>,
    /// Read or write.
    pub kind: Kind,
    /// One outcome an arm, in the order of [`Arm`].
    pub arms: Vec<ArmOutcome>,
    /// The request had been decided before: nothing was decided or changed now, and the former answer
    /// was given again.
    pub repeat: bool,
}

impl Admission {
    /// The outcome on `arm`.
    pub fn arm(&self, arm: Arm) -> Option<&ArmOutcome> {
        self.arms.iter().find(|outcome| outcome.arm == arm)
    }
}

/// How one arm decided a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmOutcome {
    /// The arm.
    pub arm: Arm,
    /// Whether the write was applied; reads are always admitted.
    pub admitted: bool,
    /// The largest token that was registered before this request.
    pub seen: Option<Token>,
    /// Whether the token of this request thereby became the largest.
    pub registered: bool,
    /// The version from which the written value was computed; none for a read.
    pub base: Option<Version>,
    /// The version after this request: for an admitted write its own number.
    pub version: Version,
    /// The value after this request; none as long as nothing was written.
    pub value: Option<String>,
}

impl ArmOutcome {
    /// The largest registered token after the request that carried `token`.
    pub fn highest(&self, token: Option<Token>) -> Option<Token> {
        if self.registered { token } else { self.seen }
    }
}
