//! Protocol points.

use serde::{Deserialize, Serialize};

/// A protocol point: a place in a client's work where one that was armed for it announces itself and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// Nothing has been sent of an attempt yet.
    BeforeAcquire,
    /// The requests of the acquiring round have left, no answer is read.
    AfterSend,
    /// The requests of the round that writes the token back have left, no answer is read.
    AfterWriteBack,
    /// The hold is claimed.
    AfterAcquire,
    /// The protected state was read.
    AfterRead,
    /// A checking client has just verified its deadline.
    AfterCheck,
    /// The last step before the bytes of the write leave, after any check.
    BeforeWrite,
    /// The work is done.
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

    /// Its name in flags, plans and histories.
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
