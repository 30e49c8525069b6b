//! Attempts in the shared state, without a history: for tests that need very many of them.

use std::time::Duration;

use history::{ClientId, Event, HoldId, Key, Mode, ProcessName, Stamp};

use super::plan;
use crate::{
    entry::Entry,
    holds::{Attempt, EventRef, Granted},
    run::Run,
};

/// A state that knows one process, a worker.
pub(crate) fn with_worker() -> Run {
    let mut run = Run::new(plan());
    run.add_process(0, |_| ProcessName::from("worker-1"));
    run
}

/// A client of the first process sends an attempt, at the stamp that has the attempt's number.
pub(crate) fn sends(run: &mut Run, client: u32, id: u64, key: Key) {
    let (client, attempt, at) = (ClientId(client), HoldId(id), Stamp(id));
    let event = Event::Acquire { client, attempt, key, intended: at, mode: Mode::Write, above: None };
    run.apply(&Entry { at, seq: id, process: 0, event, is_undone: false });
}

/// A hold whose number is also its stamp and its place in the queue. The state does not know it.
pub(crate) fn queued(id: u64, key: usize) -> Attempt {
    let sent = EventRef { at: Stamp(id), seq: id };
    let mut hold = Attempt::new(HoldId(id), key, Mode::Write, ClientId(0), 0, sent);
    let (lease, at, place) = (Duration::from_secs(2), sent.at, Some(id));
    hold.acquired(sent, Granted { token: None, lease, granted_after: at, place, promised_from: at });
    hold
}
