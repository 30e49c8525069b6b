//! The moments of a decision, and the reasons why there is none.

use std::time::Duration;

use crate::admission::Admission;
use crate::decide::Refusal;
use crate::request::Request;

/// A moment of a decision.
#[derive(Clone, Copy, Debug)]
pub enum Moment<'a> {
    /// A store outside this process is about to be asked. The decision comes after this moment, and before the next
    /// one. Not told if this process decides.
    Asked,
    /// The request was decided.
    Decided(&'a Admission),
    /// The store that was asked decided nothing, so the admission log has no entry.
    Undecided,
}

/// Called for each decided request, in admission order, at the moment of the decision: before the disk and before the
/// answer. The observer runs under the lock of the resource, so it should be quick. After a panic of the observer the
/// resource decides nothing more and answers every request for a key with 500.
pub type Observer = Box<dyn FnMut(Moment<'_>) + Send>;

/// Returns the time since 1970 by the clock of this process.
pub type WallClock = fn() -> Duration;

/// Notes the time of the decision beside the deadline of `request`.
pub(crate) fn read_clock(clock: WallClock, request: &mut Request) {
    if let Some(deadline) = &mut request.deadline {
        deadline.read_us = u64::try_from(clock().as_micros()).unwrap_or(u64::MAX);
    }
}

/// The reason why a request was not decided, or cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecided {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("too many requests are waiting for the store; this one was not decided")]
    Overloaded,
    #[error("the store failed; the request may have been applied")]
    Broken,
    #[error("Postgres cannot store a value with a NUL character")]
    Unstorable,
}
