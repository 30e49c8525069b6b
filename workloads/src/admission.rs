//! How a decision of the resource becomes an event.

use history::{ArmDecision, Event, HoldId, OpId, RequestKind, Token};
use resource::{Admission, Arm, Kind};

/// An admission in the words of the history.
pub fn event(admission: &Admission) -> Event {
    let arms = admission.arms.iter().map(|outcome| ArmDecision {
        arm: match outcome.arm {
            Arm::Off => history::Arm::Off,
            Arm::Writes => history::Arm::Writes,
            Arm::Reads => history::Arm::Reads,
            Arm::Cas => history::Arm::Cas,
            Arm::Claim => history::Arm::Claim,
        },
        admitted: outcome.admitted,
        seen: outcome.seen.map(|t| Token(t.0)),
        base: outcome.base.map(|v| v.0),
        version: outcome.version.0,
        value: outcome.value.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0),
    });
    Event::Admission {
        number: admission.number.0,
        key: history::Key::new(admission.key.as_str()),
        kind: match admission.kind {
            Kind::Read => RequestKind::Read,
            Kind::Write => RequestKind::Write,
        },
        hold: admission.hold.map(|h| HoldId(h.0)),
        op: admission.op.map(|o| OpId(o.0 as u32)),
        token: admission.token.map(|t| Token(t.0)),
        repeat: admission.repeat,
        arms: arms.collect(),
    }
}
