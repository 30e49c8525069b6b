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
            attempt.ops.extend(begins);
            attempt.ops.retain(|op| Some(*op) != ends);
            attempt.add_step(mark, step);
        });
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
    use super::*;
    use crate::{history_builder::HistoryBuilder, properties::WindowKind};

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
