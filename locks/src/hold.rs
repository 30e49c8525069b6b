//! What the operations of a lock take and give back.

use std::{fmt, sync::Arc, time::Duration};

use rand::RngCore;
use smol_str::SmolStr;

/// The name of what is locked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(SmolStr);

/// The value that marks a key as one attempt's own. It must be fresh for each attempt: a release or an undo that is
/// still under way when the next attempt starts would otherwise remove the key of that one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Arc<str>);

/// The fencing token: the number that a hold carries to what it protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

impl Key {
    /// The key of this name.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(SmolStr::new(name))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Owner {
    /// The owner value `value`, of which the caller knows that no other attempt has it.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// 128 random bits as 32 hexadecimal digits.
    pub fn random(rng: &mut (impl RngCore + ?Sized)) -> Self {
        let bits = (u128::from(rng.next_u64()) << 64) | u128::from(rng.next_u64());
        let digits: [u8; 32] = std::array::from_fn(|i| b"0123456789abcdef"[(bits >> (124 - 4 * i)) as usize & 15]);
        // Hexadecimal digits are text; an attempt makes one of these, and formatting them would cost as much as a message.
        Self(std::str::from_utf8(&digits).unwrap_or_default().into())
    }

    /// The value as it is written to a node.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What one lock node said to one operation, as far as the operation waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeAnswer {
    /// It granted the lock.
    Granted,
    /// It did what was asked: extended, released, raised its counter.
    Done,
    /// It refused.
    Refused,
    /// It granted or did it, but the promise had ended when the answers were judged.
    Late,
    /// No answer was waited for any longer, or none can come.
    None,
}

/// The name of a node.
pub type NodeName = SmolStr;

/// The answers of all nodes by name, in the order in which the nodes were given to the lock.
pub type NodeAnswers = Vec<(NodeName, NodeAnswer)>;

/// One successful acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// What is locked.
    pub key: Key,
    /// The owner value of the attempt that won it.
    pub owner: Owner,
    /// Its fencing token, if the backend makes one.
    pub token: Option<Token>,
    /// The lease that was asked for last, by the attempt or by the renewal that `valid_until` rests on.
    pub lease: Duration,
    /// When the request that `valid_until` rests on was sent, in the client's own clock.
    pub sent: Duration,
    /// What the client believes: until when it holds the lock, in its own clock. It can be wrong in both ways: a
    /// renewal without an answer may have been granted, a node's clock may have jumped.
    pub valid_until: Duration,
    /// Who granted it.
    pub answers: NodeAnswers,
}

impl Hold {
    /// Whether the client may still believe at `now`, in its own clock, that it holds the lock.
    pub fn is_valid(&self, now: Duration) -> bool {
        now < self.valid_until
    }
}

/// A renewal that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// What the hold's `valid_until` is now; never earlier than before.
    pub valid_until: Duration,
    /// Who extended it.
    pub answers: NodeAnswers,
}

/// A release that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Whether a majority of the nodes removed the key; `false`: it was no longer ours.
    pub removed: bool,
    /// Who removed it.
    pub answers: NodeAnswers,
}

/// How an operation that did not succeed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It surely did not happen: there is no hold, no extension, no removal by a majority of the nodes.
    Failed,
    /// It may have happened. Every timeout is this.
    Indeterminate,
}

/// Why an operation did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// So many nodes refused that no majority could grant it any more.
    #[error("held by somebody else")]
    Held,
    /// The answers were judged when the promise had ended.
    #[error("the answers were read after the lease's validity had ended")]
    Validity,
    /// Too few nodes granted it, and not by refusals alone.
    #[error("no majority of the nodes answered")]
    NoMajority,
    /// A renewal: so many nodes refused that no majority can own it any more.
    #[error("no longer the owner")]
    Lost,
    /// The client gave it up.
    #[error("given up")]
    Cancelled,
    /// What the only node said, where there is one.
    #[error("{0}")]
    Error(String),
}

/// An operation that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}{}", match outcome { Outcome::Failed => "", Outcome::Indeterminate => " (it may have happened)" })]
pub struct Failure {
    /// Why.
    pub why: Why,
    /// Surely, or perhaps.
    pub outcome: Outcome,
    /// What the nodes said in the round that decided.
    pub answers: NodeAnswers,
}
