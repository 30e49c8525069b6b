//! A report: one line that a process of a run writes. The recorder makes a record of it.

use serde::{Deserialize, Serialize};

use crate::{Event, Stamp};

/// One line of a process, as `docs/worker-protocol.md` defines it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report<E = Event> {
    /// The process's own number for the event, from 0. A gap means that an event was lost.
    pub n: u64,
    /// The time of the event by the process's own reading of the run's clock, in nanoseconds.
    pub at: Stamp,
    /// The event.
    #[serde(flatten)]
    pub event: E,
}
