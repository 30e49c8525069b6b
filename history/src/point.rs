//! Protocol points.

use serde::{Deserialize, Serialize};

/// A protocol point: a place in a client's work where an armed client reports and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// The client has sent no request of the attempt.
    BeforeAcquire,
    /// The client has sent the requests of the acquiring round, and has read no answer.
    AfterSend,
    /// The client has sent the second round of a two-phase token, if there is one, and has read no answer.
    AfterWriteBack,
    /// The client holds the lock.
    AfterAcquire,
    /// The client has read the protected state.
    AfterRead,
    /// A checking client has just verified its deadline.
    AfterCheck,
    /// The client is about to send the bytes of the write, after any check.
    BeforeWrite,
    /// The client has finished its work.
    BeforeRelease,
}

impl Point {
    /// All points, in the order in which a client passes them.
    pub const ALL: [Point; 8] = [
        Point::BeforeAcquire,
        Point::AfterSend,
        Point::AfterWriteBack,
        Point::AfterAcquire,
        Point::AfterRead,
        Point::AfterCheck,
        Point::BeforeWrite,
        Point::BeforeRelease,
    ];

    /// Returns the name in flags, plans and histories.
    pub fn name(self) -> &'static str {
        match self {
            Point::BeforeAcquire => "before-acquire",
            Point::AfterSend => "after-send",
            Point::AfterWriteBack => "after-write-back",
            Point::AfterAcquire => "after-acquire",
            Point::AfterRead => "after-read",
            Point::AfterCheck => "after-check",
            Point::BeforeWrite => "before-write",
            Point::BeforeRelease => "before-release",
        }
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
