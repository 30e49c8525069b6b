//! An attempt that did not get a key although no client can have held the key.

use history::{HoldId, Key, ProcessName, Stamp};
use serde::Serialize;

use crate::{
    holds::{Attempt, EventRef, Span},
    report::{instant, seconds},
    run::{Run, millis},
};

/// The way in which an attempt was kept from a key that no client can have held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StuckKind {
    /// The attempt was refused as held.
    Refused,
    /// The attempt waited in the queue, with no other attempt before it.
    Waiting,
    /// The attempt waited without an answer, in a queue that its client does not see.
    Unanswered,
}

/// An attempt that did not get a key although no client can have held the key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StuckAttempt {
    /// The way in which the attempt was kept from the key.
    pub kind: StuckKind,
    /// The key.
    pub key: Key,
    /// The attempt that shows it.
    pub attempt: HoldId,
    /// The worker.
    pub worker: ProcessName,
    /// The end of the attempt, or the start of a disturbance of its wait, in milliseconds since the run's start.
    pub at_ms: f64,
    /// Milliseconds for which no client can have held the key by then.
    pub free_ms: f64,
    /// Sequence numbers of the attempt, of its waiting, and of its end or of the disturbance.
    pub witness: Vec<u64>,
}

/// The findings at the end of a run.
#[derive(Default)]
pub(crate) struct Found {
    /// Attempts that prove that a key was not free in time.
    pub stuck: Vec<StuckAttempt>,
    /// Attempts that would prove it, had the host's clock not stepped before.
    pub after_step: u64,
    /// Attempts that would prove it, if a client program had not been able to renew its hold of the key.
    pub kept: u64,
}

impl StuckAttempt {
    /// An attempt that ended at `mark`. No client can have held its key since `since`.
    pub(super) fn new(run: &Run, attempt: &Attempt, kind: StuckKind, since: Stamp, mark: EventRef) -> StuckAttempt {
        let mut witness = vec![attempt.sent.seq];
        witness.extend(attempt.behind.map(|mark| mark.seq));
        witness.push(mark.seq);
        StuckAttempt {
            kind,
            key: run.key(attempt.key).clone(),
            attempt: attempt.id,
            worker: run.process(attempt.process).name.clone(),
            at_ms: run.ms(mark.at),
            free_ms: millis(mark.at.since(since)),
            witness,
        }
    }

    /// Counts only the part of a wait that is inside a span.
    pub(super) fn counts_within(&mut self, run: &Run, (from, until): Span) {
        (self.at_ms, self.free_ms) = (run.ms(until), millis(until.since(from)));
    }

    /// The attempt in one line.
    pub fn line(&self) -> String {
        let (key, worker, at, free) = (&self.key, &self.worker, instant(self.at_ms), seconds(self.free_ms));
        let kept = match self.kind {
            StuckKind::Refused => "was refused at",
            StuckKind::Waiting => "waited first in the queue until",
            StuckKind::Unanswered => "waited without an answer until",
        };
        format!("{key}: {worker} {kept} {at}; no client can have held the key in the {free} before")
    }
}
