//! The arguments and the results of a lock's operations.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use rand::RngCore;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::{mode::Mode, validity};

/// The name of a lock, in a namespace or in none. In a message it is one text, and its reader knows no namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "SmolStr", into = "SmolStr")]
pub struct Key {
    /// The namespace and the name.
    text: SmolStr,
    /// The number of bytes of the namespace.
    namespace: usize,
}

/// The value that marks a key as one attempt's own. Each attempt needs a fresh value: otherwise a release or an undo
/// that is still under way would remove the key of the next attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner(Arc<str>);

/// The fencing token: the number that a hold carries to the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token(pub u64);

impl From<SmolStr> for Key {
    fn from(text: SmolStr) -> Key {
        Key { text, namespace: 0 }
    }
}

impl From<Key> for SmolStr {
    fn from(key: Key) -> SmolStr {
        key.text
    }
}

impl Key {
    /// The key of this name.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self { text: SmolStr::new(name), namespace: 0 }
    }

    /// The key of this name in a namespace. Everything that a client stores for the key begins with the namespace, so
    /// users who share a server do not meet.
    pub fn within(namespace: &str, name: &str) -> Self {
        Self { text: SmolStr::from_iter([namespace, name]), namespace: namespace.len() }
    }

    /// The namespace and the name as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The namespace, which may be empty, and the name.
    pub(crate) fn parts(&self) -> (&str, &str) {
        self.text.split_at(self.namespace)
    }
}

/// Returns `text` as one part of a path: with `%25` for `%`, and `%2F` for `/`. Otherwise the queue of the key `k/1`
/// would be inside the queue of the key `k`.
pub(crate) fn path_part(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '/']) {
        return text.into();
    }
    text.replace('%', "%25").replace('/', "%2F").into()
}

impl Owner {
    /// The owner value `value`. The caller makes sure that no other attempt has it.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// A fresh owner value: 128 random bits as 32 hexadecimal digits.
    pub fn random(rng: &mut (impl RngCore + ?Sized)) -> Self {
        let bits = (u128::from(rng.next_u64()) << 64) | u128::from(rng.next_u64());
        let digits: [u8; 32] = std::array::from_fn(|i| b"0123456789abcdef"[(bits >> (124 - 4 * i)) as usize & 15]);
        // Each attempt makes an owner value, and formatting it would cost as much as a message.
        Self(std::str::from_utf8(&digits).unwrap_or_default().into())
    }

    /// The value as a node stores it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
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

/// One lock node's answer to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeAnswer {
    /// The node granted the lock.
    Granted,
    /// The node did the request: it extended or removed the key, or raised its counter.
    Done,
    /// The node refused.
    Refused,
    /// The node granted or did the request, but the promise had ended when the client judged the answers.
    Late,
    /// The client did not wait any longer for the answer, or no answer can come.
    None,
}

/// The name of a node.
pub type NodeName = SmolStr;

/// The answers of all nodes by name, in the order in which the nodes were given to the lock.
pub type NodeAnswers = Vec<(NodeName, NodeAnswer)>;

/// One successful acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The lock's name.
    pub key: Key,
    /// The owner value of the attempt that won the hold.
    pub owner: Owner,
    /// The fencing token, if the lock makes tokens.
    pub token: Option<Token>,
    /// The lease of the request from which `valid_until` counts: the attempt's, or a renewal's.
    pub lease: Duration,
    /// The sending of the request from which `valid_until` counts, in the client's own clock.
    pub sent: Duration,
    /// The end of the client's belief that it holds the lock, in its own clock. The belief can be wrong in both ways: a
    /// renewal without an answer may have been granted, and a node's clock may have jumped.
    pub valid_until: Duration,
    /// The nodes' answers to the attempt.
    pub answers: NodeAnswers,
}

impl Hold {
    /// Returns whether the client may still believe at `now`, in its own clock, that it holds the lock.
    pub fn is_valid(&self, now: Duration) -> bool {
        now < self.valid_until
    }

    /// Lets the hold count from a renewal with this lease, which was sent at `sent` and whose answer was read at `now`.
    /// Returns false if the hold or the renewal had lapsed by then: a renewal revives no hold, and shortens none.
    pub(crate) fn renewed(&mut self, sent: Duration, lease: Duration, now: Duration) -> bool {
        let valid_until = validity::promise_end(sent, lease);
        if now >= valid_until.min(self.valid_until) {
            return false;
        }
        if valid_until > self.valid_until {
            (self.sent, self.lease, self.valid_until) = (sent, lease, valid_until);
        }
        true
    }
}

/// A renewal that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// The hold's new `valid_until`, which is never earlier than the old one.
    pub valid_until: Duration,
    /// The nodes' answers.
    pub answers: NodeAnswers,
}

/// A release that enough nodes answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// True if a majority of the nodes removed the key. If not, this hold no longer owned the key.
    pub removed: bool,
    /// The nodes' answers.
    pub answers: NodeAnswers,
}

/// The outcome of an operation that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The operation certainly did not happen: there is no hold, no extension, no removal by a majority of the nodes.
    Failed,
    /// The operation may have happened. Every timeout is indeterminate.
    Indeterminate,
}

/// The reason why an operation did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FailureReason {
    /// So many nodes refused that a majority could not grant the lock any more.
    #[error("another client holds the lock")]
    Held,
    /// The promise had ended when the client judged the answers.
    #[error("the client read the answers after the lease had expired")]
    Validity,
    /// Too few nodes granted the lock, and refusals alone do not explain that.
    #[error("no majority of the nodes answered")]
    NoMajority,
    /// So many nodes refused that this client cannot own the key on a majority any more.
    #[error("no longer the owner")]
    Lost,
    /// The client gave up the attempt.
    #[error("given up")]
    Cancelled,
    /// The service found that the attempt waits in a cycle of clients, and ended the attempt.
    #[error("the attempt waits in a cycle of clients, and the service has ended it")]
    Deadlock,
    /// The error of the only server.
    #[error("{0}")]
    Error(String),
}

/// An operation that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}{}", match outcome { Outcome::Failed => "", Outcome::Indeterminate => " (it may have happened)" })]
pub struct Failure {
    /// The reason.
    pub reason: FailureReason,
    /// The outcome: the operation failed, or it may have happened.
    pub outcome: Outcome,
    /// The nodes' answers in the round that decided.
    pub answers: NodeAnswers,
}

impl Failure {
    /// The failure of an attempt at a lock that has no such mode.
    pub(crate) fn no_such_mode(mode: Mode) -> Failure {
        let reason = FailureReason::Error(format!("this lock has no mode `{mode}`"));
        Failure { reason, outcome: Outcome::Failed, answers: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_revives_no_hold_and_shortens_none() {
        const SECOND: Duration = Duration::from_secs(1);
        let end = validity::promise_end(SECOND, 10 * SECOND);
        let hold = Hold {
            key: Key::new("k0"),
            owner: Owner::new("a"),
            token: None,
            lease: 10 * SECOND,
            sent: SECOND,
            valid_until: end,
            answers: NodeAnswers::new(),
        };
        let (sent, long, short) = (5 * SECOND, 10 * SECOND, 2 * SECOND);
        let later = Hold { sent, valid_until: validity::promise_end(sent, long), ..hold.clone() };
        for (lease, now, expected) in [
            (long, 6 * SECOND, Some(&later)),
            (short, 6 * SECOND, Some(&hold)),
            // The hold has lapsed, or the renewal itself.
            (long, end, None),
            (short, 7 * SECOND, None),
        ] {
            let mut renewed = hold.clone();
            assert_eq!(renewed.renewed(sent, lease, now), expected.is_some(), "{lease:?} at {now:?}");
            assert_eq!(&renewed, expected.unwrap_or(&hold), "{lease:?} at {now:?}");
        }
    }
}
