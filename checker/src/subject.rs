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
