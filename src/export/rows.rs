//! The table that CSV and Parquet share: one row for each event of a client, of the resource, or of a fault.

use history::{Arm, Event, FailureReason, FaultPhase, Outcome, Record, RequestKind, StallCause};

use super::source::{Holds, Source};

/// The decisions of one event, in the order of [`Arm::ALL`].
type Decisions = [Option<&'static str>; Arm::ALL.len()];

/// One row; docs/export.md defines the columns.
#[derive(Debug, Default)]
pub struct Row {
    pub seq: u64,
    pub at_ns: i64,
    pub process: String,
    pub event: &'static str,
    pub client: Option<u32>,
    pub hold: Option<u64>,
    pub key: Option<String>,
    pub op: Option<u64>,
    pub token: Option<u64>,
    pub outcome: Option<&'static str>,
    pub reason: Option<&'static str>,
    pub number: Option<u64>,
    pub request: Option<&'static str>,
    pub decisions: Decisions,
    pub fault: Option<u64>,
    pub kind: Option<&'static str>,
    pub node: Option<String>,
}

/// Makes the row of a record; none for events that are about the harness itself. `holds` has seen the record.
pub fn row(source: &Source, holds: &Holds, record: &Record) -> Option<Row> {
    let mut row = Row { event: name(&record.event)?, ..told(&record.event) };
    row.seq = record.seq;
    row.at_ns = source.ns(record.at);
    row.process = record.process.to_string();
    if let Some(id) = record.event.attempt() {
        row.hold = Some(id.0);
        if let Some(hold) = holds.get(id) {
            row.client = Some(hold.client.0);
            // The holder of a parent acts on the data of other keys.
            row.key = row.key.or_else(|| Some(hold.key.to_string()));
            row.token = row.token.or(hold.token.map(|token| token.0));
        }
    }
    Some(row)
}

/// The fields that the event itself has.
fn told(event: &Event) -> Row {
    let ok = Some("ok");
    match event {
        Event::Acquired { .. } | Event::Renewed { .. } => Row { outcome: ok, ..Row::default() },
        Event::Released { removed, .. } => Row { outcome: ok, reason: (!removed).then_some("lost"), ..Row::default() },
        Event::AcquireFailed { outcome, why, .. }
        | Event::RenewFailed { outcome, why, .. }
        | Event::ReleaseFailed { outcome, why, .. } => {
            Row { outcome: Some(outcome_name(*outcome)), reason: Some(reason_name(*why)), ..Row::default() }
        }
        Event::AccessFailed { op, outcome, .. } => {
            Row { op: Some(op.0), outcome: Some(outcome_name(*outcome)), ..Row::default() }
        }
        Event::Check { passed, .. } => Row { outcome: Some(if *passed { "ok" } else { "failed" }), ..Row::default() },
        Event::Read { op, .. } | Event::Write { op, .. } | Event::Resend { op, .. } => {
            Row { op: Some(op.0), request: request(event), ..Row::default() }
        }
        Event::ReadOk { op, number, .. } => {
            Row { op: Some(op.0), number: Some(*number), outcome: ok, request: Some("read"), ..Row::default() }
        }
        Event::WriteOk { op, number, arms, .. } => Row {
            op: Some(op.0),
            number: Some(*number),
            outcome: ok,
            request: Some("write"),
            decisions: decisions(arms.iter().flatten().map(|answer| (answer.arm, answer.admitted))),
            ..Row::default()
        },
        Event::Admission { number, key, kind, op, token, repeat, arms, .. } => Row {
            op: op.map(|op| op.0),
            number: Some(*number),
            key: Some(key.to_string()),
            token: token.map(|token| token.0),
            outcome: repeat.then_some("repeat"),
            request: Some(if *kind == RequestKind::Read { "read" } else { "write" }),
            decisions: decisions(arms.iter().map(|decision| (decision.arm, decision.admitted))),
            ..Row::default()
        },
        Event::Fault { fault, kind, node, phase } => Row {
            fault: Some(fault.0.into()),
            kind: Some(kind.name()),
            node: Some(node.to_string()),
            outcome: Some(phase_name(phase)),
            ..Row::default()
        },
        Event::Stall { late, .. } => {
            Row { kind: Some(if *late == StallCause::Tick { "tick" } else { "write" }), ..Row::default() }
        }
        _ => Row::default(),
    }
}

fn request(event: &Event) -> Option<&'static str> {
    Some(if matches!(event, Event::Read { .. }) { "read" } else { "write" })
}

fn decisions(of: impl Iterator<Item = (Arm, bool)>) -> Decisions {
    let mut decisions = Decisions::default();
    for (arm, admitted) in of {
        if let Some(place) = Arm::ALL.iter().position(|known| *known == arm) {
            decisions[place] = Some(if admitted { "admitted" } else { "refused" });
        }
    }
    decisions
}

/// The outcome as histories write it.
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Failed => "failed",
        Outcome::Indeterminate => "indeterminate",
    }
}

/// The reason as histories write it.
pub fn reason_name(reason: FailureReason) -> &'static str {
    match reason {
        FailureReason::Held => "held",
        FailureReason::Validity => "validity",
        FailureReason::NoMajority => "no-majority",
        FailureReason::Lost => "lost",
        FailureReason::Cancelled => "cancelled",
        FailureReason::Error => "error",
        FailureReason::Deadlock => "deadlock",
    }
}

fn phase_name(phase: &FaultPhase) -> &'static str {
    match phase {
        FaultPhase::Requested { .. } => "requested",
        FaultPhase::Unsynced { .. } => "unsynced",
        FaultPhase::Injected => "injected",
        FaultPhase::HealRequested => "heal-requested",
        FaultPhase::Healed => "healed",
        FaultPhase::Proved { .. } => "proved",
        FaultPhase::Unproved { .. } => "unproved",
        FaultPhase::ConnectionsReset { .. } => "connections-reset",
        FaultPhase::HealProved => "heal-proved",
        FaultPhase::Unplanned { .. } => "unplanned",
        FaultPhase::UnplannedOver { .. } => "unplanned-over",
        FaultPhase::MissedTarget => "missed-target",
    }
}

/// The name of an event, as histories write it; none for events that are about the harness itself.
pub fn name(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Acquire { .. } => "acquire",
        Event::WriteBack { .. } => "write-back",
        Event::Acquired { .. } => "acquired",
        Event::Behind { .. } => "behind",
        Event::WithoutKey { .. } => "without-key",
        Event::AcquireFailed { .. } => "acquire-failed",
        Event::Undo { .. } => "undo",
        Event::Undone { .. } => "undone",
        Event::Renew { .. } => "renew",
        Event::Renewed { .. } => "renewed",
        Event::RenewFailed { .. } => "renew-failed",
        Event::LossNoticed { .. } => "loss-noticed",
        Event::Release { .. } => "release",
        Event::Released { .. } => "released",
        Event::ReleaseFailed { .. } => "release-failed",
        Event::Reentered { .. } => "reentered",
        Event::Left { .. } => "left",
        Event::GaveUp { .. } => "gave-up",
        Event::Read { .. } => "read",
        Event::ReadOk { .. } => "read-ok",
        Event::AccessFailed { .. } => "access-failed",
        Event::Work { .. } => "work",
        Event::Check { .. } => "check",
        Event::Write { .. } => "write",
        Event::Resend { .. } => "resend",
        Event::WriteOk { .. } => "write-ok",
        Event::AtPoint { .. } => "at-point",
        Event::LeftPoint { .. } => "left-point",
        Event::Admission { .. } => "admission",
        Event::Fault { .. } => "fault",
        Event::Stall { .. } => "stall",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_histories() {
        for name in ["checker/tests/corpus/kleppmann-pause.jsonl", "checker/tests/corpus/given-up.jsonl"] {
            for record in history::Reader::open(name.as_ref()).unwrap() {
                let event = record.unwrap().event;
                let json = serde_json::to_value(&event).unwrap();
                if let Some(name) = super::name(&event) {
                    assert_eq!(json["event"], name);
                }
                if let Event::Fault { phase, .. } = &event {
                    assert_eq!(json["phase"], phase_name(phase));
                }
            }
        }
        for (outcome, name) in [(Outcome::Failed, "failed"), (Outcome::Indeterminate, "indeterminate")] {
            assert_eq!((serde_json::to_value(outcome).unwrap(), outcome_name(outcome)), (name.into(), name));
        }
        assert_eq!(serde_json::to_value(FailureReason::NoMajority).unwrap(), reason_name(FailureReason::NoMajority));
    }
}
