//! Turns a decision of the resource, and the answer about it that a client received, into the fields of events.

use history::{ArmDecision, ArmReadAnswer, ArmWriteAnswer, Event};
use resource::{Admission, ReadAnswer, WriteAnswer};

/// Returns the answer to a read, arm by arm.
pub fn read_answer(answer: &ReadAnswer) -> Vec<ArmReadAnswer> {
    let read =
        |(arm, read): (&_, &resource::ReadArm)| ArmReadAnswer { arm: *arm, version: read.version.0, seen: read.seen };
    answer.arms.iter().map(read).collect()
}

/// Returns the answer to a write, arm by arm. An arm about which status and body contradict each other is listed twice.
pub fn write_answer(answer: &WriteAnswer) -> Vec<ArmWriteAnswer> {
    let written = |(arm, written): (&_, &resource::WriteArm)| ArmWriteAnswer {
        arm: *arm,
        admitted: written.admitted,
        seen: written.seen,
    };
    let contrary = |written: ArmWriteAnswer| ArmWriteAnswer { admitted: !written.admitted, ..written };
    let twice = answer.arms.iter().filter(|(arm, _)| answer.contrary == Some(**arm)).map(written).map(contrary);
    answer.arms.iter().map(written).chain(twice).collect()
}

/// Returns the event that records `admission`.
pub fn event(admission: &Admission) -> Event {
    let arms = admission.arms.iter().map(|outcome| ArmDecision {
        arm: outcome.arm,
        admitted: outcome.admitted,
        seen: outcome.seen,
        base: outcome.base.map(|version| version.0),
        version: outcome.version.0,
        value: outcome.value.as_deref().and_then(|value| value.parse().ok()).unwrap_or(0),
    });
    Event::Admission {
        number: admission.number.0,
        key: admission.key.clone(),
        kind: admission.kind,
        hold: admission.hold,
        op: admission.op,
        token: admission.token,
        deadline: admission.deadline,
        repeat: admission.repeat,
        arms: arms.collect(),
    }
}
