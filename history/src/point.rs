//! Protocol points.

use serde::{Deserialize, Serialize};

/// A protocol point: a place in a client's work where one that was armed for it announces itself and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// The requests of the acquiring round have left, no answer is read.
    AfterSend,
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
    pub const ALL: [Point; 6] = [
        Point::AfterSend,
        Point::AfterAcquire,
        Point::AfterRead,
        Point::AfterCheck,
        Point::BeforeWrite,
        Point::BeforeRelease,
    ];

    /// Its name in flags, plans and histories.
    pub fn name(self) -> &'static str {
        match self {
            Point::AfterSend => "after-send",
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
