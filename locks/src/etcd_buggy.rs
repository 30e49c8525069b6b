//! Queue locks that are wrong on purpose, as [`mod@crate::buggy`] for those of Redis.
//!
//! The confirming transaction would refuse what most of these claim: a bug that it catches is planted together with leaving it out.

use std::sync::Arc;

use crate::{
    etcd::Etcd,
    ports::{Clock, Lock, Store},
};

/// The planted bugs of queue locks: name, and what it does.
pub const BUGGY: &[(&str, &str)] = &[
    (
        "no-confirm",
        "is granted although its lease ran out in the queue: it believes the revision of its key, which is gone",
    ),
    (
        "lost-wake-up",
        "waits for ever if its predecessor went between looking and listening: it hears only what ends later",
    ),
    ("wrong-predecessor", "waits for the last but one before it, and takes the end of that one for its turn"),
    ("no-second-look", "takes the end of its predecessor for its turn, though that was only a waiter who left"),
    ("release-by-name", "releases by the name of the queue and not by the revision of its key: it removes everybody's"),
    ("keep-alive-zero", "takes a keep-alive for a success that was answered with a time of zero: there is no lease"),
];

/// What is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueFlaw {
    /// The confirming transaction, and the keep-alive before it.
    BelievesRevision,
    /// The look after listening has begun.
    LosesWakeUp,
    /// The right predecessor, and with it the second look.
    WrongPredecessor,
    /// The second look.
    NoSecondLook,
    /// The revision in a release.
    ReleasesByName,
    /// That a time of zero means no lease.
    IgnoresZero,
}

impl QueueFlaw {
    /// Whether the confirming transaction is still there.
    pub(crate) fn confirms(self) -> bool {
        !matches!(self, Self::BelievesRevision | Self::WrongPredecessor | Self::NoSecondLook)
    }
}

/// The queue lock with the bug of this name from [`BUGGY`]; `None` if no bug has this name.
pub fn buggy(name: &str, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Option<Arc<dyn Lock>> {
    let flaw = match name {
        "no-confirm" => QueueFlaw::BelievesRevision,
        "lost-wake-up" => QueueFlaw::LosesWakeUp,
        "wrong-predecessor" => QueueFlaw::WrongPredecessor,
        "no-second-look" => QueueFlaw::NoSecondLook,
        "release-by-name" => QueueFlaw::ReleasesByName,
        "keep-alive-zero" => QueueFlaw::IgnoresZero,
        _ => return None,
    };
    Some(Arc::new(Etcd::new(store, clock).with_flaw(flaw)))
}
