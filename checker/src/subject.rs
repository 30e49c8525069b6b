//! The attempt that an event of a client concerns.

use history::{Event, HoldId, Point};

/// Returns whether an event only closes a request, so that the event may be ignored if its attempt is closed.
pub(crate) fn is_answer(event: &Event) -> bool {
    use Event::*;
    matches!(
        event,
        Undone { .. }
            | Renewed { .. }
            | RenewFailed { .. }
            | Released { .. }
            | ReleaseFailed { .. }
            | AccessFailed { .. }
    )
}

/// Returns whether an event only shows how a client uses a hold: it neither begins nor ends anything that a lock gives.
pub(crate) fn is_use(event: &Event) -> bool {
    use Event::*;
    matches!(event, Read { .. } | ReadOk { .. } | Work { .. } | Write { .. } | WriteOk { .. })
}

/// The attempt that an event of a client concerns, which its client has made before.
pub(crate) fn subject(event: &Event) -> Option<HoldId> {
    match event {
        // Nothing has been sent yet, so there is no attempt yet.
        Event::AtPoint { point: Point::BeforeAcquire, .. } | Event::LeftPoint { point: Point::BeforeAcquire, .. } => {
            None
        }
        Event::Acquire { .. } | Event::Admission { .. } => None,
        event => event.attempt(),
    }
}

#[cfg(test)]
mod tests {
    use history::{OpId, Outcome};

    use super::*;
    use crate::{
        history_builder::{HistoryBuilder, verdict},
        verdict::Verdict,
    };

    #[test]
    fn a_write_may_fail_after_its_hold_has_closed() {
        // The client has released another hold since, and the write had arrived at 30.
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).write(1, 1, 20, 30).release(1, 40).acquire(3, 1, 100, 110, 42).release(3, 120);
        let (hold, op, outcome) = (HoldId(1), OpId(1), Outcome::Indeterminate);
        s.event("worker-1", 300, Event::AccessFailed { hold, op, outcome, detail: "no answer".into() });
        let found = s.verdicts();
        assert_eq!((verdict(&found, "lock"), found.reasons), (Verdict::Upheld, Vec::new()));
    }
}
