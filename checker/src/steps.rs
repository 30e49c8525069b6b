//! The steps of clients under their holds. A client that acts under a hold acts under the hold of the key above too.

use std::time::Duration;

use history::{Event, HoldId, OpId, Outcome};

use crate::{
    holds::{Attempt, ClientStep, EventRef},
    run::Run,
};

impl Run {
    /// Changes an attempt, and the holds of the keys above it.
    pub fn with_those_above(&mut self, id: HoldId, mut change: impl FnMut(&mut Attempt)) {
        let mut next = Some(id);
        while let Some(attempt) = next.and_then(|id| self.attempts.get_mut(id)) {
            change(attempt);
            next = above(attempt);
        }
    }

    /// An attempt, and the holds of the keys above it.
    pub fn with_above(&self, id: HoldId) -> impl Iterator<Item = &Attempt> {
        std::iter::successors(self.attempt(id), |attempt| self.attempt(above(attempt)?))
    }

    /// A step of a client under a hold, and under those above it.
    pub fn step(&mut self, id: HoldId, mark: EventRef, event: &Event) {
        let Some(step) = step_of(event) else { return };
        // A log that contradicts the record may have the decision already.
        let is_open = |op: &OpId| !self.operations.is_decided(id, *op);
        let (begins, ends) = match event {
            Event::Read { op, .. } | Event::Write { op, .. } => (Some(*op).filter(is_open), None),
            Event::AccessFailed { op, outcome: Outcome::Failed, .. } => (None, Some(*op)),
            _ => (None, None),
        };
        self.with_those_above(id, |attempt| {
            begins.into_iter().for_each(|op| attempt.requests(op));
            ends.into_iter().for_each(|op| attempt.awaits_no_more(op));
            attempt.add_step(mark, step);
        });
    }
}

/// The requests under way are kept in order: a hold may have many of which the resource has decided none.
impl Attempt {
    fn requests(&mut self, op: OpId) {
        if let Err(place) = self.ops.binary_search(&op) {
            self.ops.insert(place, op);
        }
    }

    /// Notes that a request is not under way any more, if it was.
    pub fn awaits_no_more(&mut self, op: OpId) {
        if let Ok(place) = self.ops.binary_search(&op) {
            self.ops.remove(place);
        }
    }
}

/// The hold of the key above. The number of an attempt is larger than those of all earlier attempts of its client, so a
/// record that says otherwise contradicts itself.
fn above(attempt: &Attempt) -> Option<HoldId> {
    attempt.above.filter(|above| *above < attempt.id)
}

/// The step of a client that an event shows.
fn step_of(event: &Event) -> Option<ClientStep> {
    match event {
        Event::Read { op, .. } | Event::Write { op, .. } => Some(ClientStep::Request(*op)),
        Event::Work { planned_ns, .. } => Some(ClientStep::Work(Duration::from_nanos(*planned_ns))),
        Event::AtPoint { point, .. } => Some(ClientStep::AtPoint(*point, None)),
        Event::Check { passed: true, .. } => Some(ClientStep::Check),
        Event::ReadOk { .. }
        | Event::WriteOk { .. }
        | Event::AccessFailed { .. }
        | Event::Check { .. }
        | Event::LeftPoint { .. } => Some(ClientStep::Other),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use history::{Key, Stamp};

    use super::*;
    use crate::{
        entry::Entry,
        history_builder::{HistoryBuilder, state},
        properties::WindowKind,
    };

    #[test]
    fn a_request_costs_nothing_for_those_that_the_resource_has_not_decided() {
        let (mut run, hold, requests) = (state::with_worker(), HoldId(1), 60_000);
        state::sends(&mut run, 0, hold.0, Key::from("k0"));
        for seq in 1..=requests {
            let event = Event::Write { hold, op: OpId(seq) };
            run.apply(&Entry { at: Stamp(seq), seq, process: 0, event, is_undone: false });
        }
        let under_way = |run: &Run| run.attempt(hold).map(|attempt| attempt.ops.len() as u64);
        assert_eq!(under_way(&run), Some(requests));
        (1..=requests).rev().step_by(2).for_each(|op| run.with_those_above(hold, |a| a.awaits_no_more(OpId(op))));
        assert_eq!(under_way(&run), Some(requests / 2));
    }

    #[test]
    fn an_unanswered_write_may_arrive_after_its_hold_was_released() {
        // Worker 1 has released another hold since, and worker 2 had a hold in between.
        let mut s = HistoryBuilder::new();
        let (hold, op, outcome) = (HoldId(1), OpId(1), Outcome::Indeterminate);
        s.acquire(1, 1, 0, 10, 41).write(1, 1, 20, 300);
        s.event("worker-1", 30, Event::AccessFailed { hold, op, outcome, detail: "no answer".into() });
        s.release(1, 40).acquire(2, 2, 50, 60, 42).release(2, 90).acquire(3, 1, 100, 110, 43).release(3, 120);
        let window = s.window();
        assert_eq!((window.kind, window.writes), (WindowKind::StaleHolder, 1));
        assert_eq!(window.holds, [HoldId(1), HoldId(2)]);
    }
}
