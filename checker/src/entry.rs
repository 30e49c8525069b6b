//! One event on its way through the checker.

use history::{Event, Stamp};

/// One event of the sweep.
#[derive(Debug)]
pub(crate) struct Entry {
    pub at: Stamp,
    pub seq: u64,
    /// Index of the process, in the order of first appearance. The index must not influence the verdicts.
    pub process: usize,
    pub event: Event,
    /// True if the event is an admission that the resource had forgotten when it started again.
    pub is_undone: bool,
}
