//! Orders and answers about clocks.

use history::{ClockChange, WhichClock};
use serde::{Deserialize, Serialize};

/// An order about the clocks of the container in which process `pid` lives; the pid is that of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum ClockRequest {
    /// Changes the clocks. A change that undoes an earlier change, as a heal does, has no effect on processes without
    /// the earlier change.
    Change {
        /// A process of the container.
        pid: i32,
        /// The clocks to change.
        clock: WhichClock,
        /// The change.
        change: ClockChange,
    },
    /// Sets the wall clock to the true time, and makes a monotonic clock run at the true rate from its current reading,
    /// so that it never goes back.
    Heal {
        /// A process of the container.
        pid: i32,
    },
    /// Restores the original code, even if a monotonic clock then goes back: for servers that outlive the run.
    Restore {
        /// A process of the container.
        pid: i32,
    },
    /// Reads how far the clocks of this one process are ahead of the kernel's.
    Ahead {
        /// The process.
        pid: i32,
    },
}

/// The answer to a [`ClockRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClockAnswer {
    /// The order was carried out on these processes.
    Done {
        /// Their pids on the host.
        pids: Vec<i32>,
    },
    /// The offsets of the clocks.
    Ahead(ClocksAhead),
}

/// How far the clocks of a process are ahead of the kernel's (behind, if negative).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClocksAhead {
    /// The wall clock.
    pub wall_ns: i64,
    /// `CLOCK_MONOTONIC` and its coarse form.
    pub monotonic_ns: i64,
    /// `CLOCK_BOOTTIME`. Differs from the monotonic clock only if a drift was on while the machine was suspended.
    pub boottime_ns: i64,
}
