//! The clocks of a process.

use serde::{Deserialize, Serialize};

/// A clock of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WhichClock {
    /// `CLOCK_REALTIME`: Redis expires keys by this clock.
    Wall,
    /// `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` together: our clients measure their deadlines by this clock.
    Monotonic,
    /// All clocks.
    Both,
}

impl WhichClock {
    /// Returns whether the wall clock is one of the clocks.
    pub fn is_wall(self) -> bool {
        self != WhichClock::Monotonic
    }

    /// Returns whether the monotonic clock is one of the clocks.
    pub fn is_monotonic(self) -> bool {
        self != WhichClock::Wall
    }
}
