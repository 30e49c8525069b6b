//! The harness's own processes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The shortest gap that a process records as a stall. Shorter gaps are normal scheduling on a machine that is not
/// idle.
pub const STALL_FROM: Duration = Duration::from_millis(30);

/// The purpose of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Runs clients.
    Worker,
    /// Serves the fenced resource.
    Resource,
    /// Anchors the run and stamps faults.
    Agent,
}

/// The activity that was late when a process noticed that it had not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StallCause {
    /// The tick, which is due every 10 ms.
    Tick,
    /// The write of an event: the reader of the stream was slow.
    Write,
}
