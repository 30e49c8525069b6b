//! Events: everything that a history can contain.
//!
//! Each event is flat, so that one line of JSON can be read and searched by itself. `docs/worker-protocol.md` says
//! which process stamps an event, and when.

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    Answers, ArmDecision, ArmReadAnswer, ArmWriteAnswer, ClientId, Deadline, FailureReason, FaultId, FaultKind,
    FaultPhase, HoldId, Key, MadeBy, Mode, NodeName, OpId, Outcome, Plan, Point, ProcessName, RequestKind, Role,
    StallCause, Stamp, Token, no_fields,
};

/// Everything that a history can contain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    // ---- the run; stamps of the controller are 0
    /// The first record of a history.
    Plan {
        /// The run's id.
        run: String,
        /// The plan of the run.
        plan: Box<Plan>,
        /// The facts about how the run was made, as far as they are known before it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made_by: Option<Box<MadeBy>>,
    },
    /// The stream of a process has ended: no event of that process follows.
    ProcessEnded {
        /// The process.
        ended: ProcessName,
        /// The exit code, if the engine knows the code.
        code: Option<i64>,
    },
    /// The last record: the history is whole.
    #[serde(deserialize_with = "no_fields::deserialize")]
    End,

    // ---- every process of the harness
    /// The first event of a process.
    Started {
        /// The purpose of the process.
        role: Role,
        /// The kernel's boot id. All processes of a run must report the same id.
        boot_id: String,
        /// The inode of the process's time namespace. All processes of a run must report the same inode.
        time_namespace: u64,
    },
    /// Every earlier event of the process has been reported. Advances the horizon of an idle process.
    #[serde(deserialize_with = "no_fields::deserialize")]
    Watermark,
    /// The process did not run, or could not write: a gap between two ticks, or around a write.
    Stall {
        /// Last sign of life before the gap.
        from: Stamp,
        /// First sign of life after the gap.
        to: Stamp,
        /// The activity that was late.
        late: StallCause,
    },
    /// Differences between the kernel's clocks, once a second, in nanoseconds.
    Clocks {
        /// `CLOCK_REALTIME − CLOCK_MONOTONIC`.
        wall_ns: i64,
        /// `CLOCK_BOOTTIME − CLOCK_MONOTONIC`.
        boot_ns: i64,
    },
    /// The last event of a process that ends in good order.
    #[serde(deserialize_with = "no_fields::deserialize")]
    Finished,

    /// The lock nodes have answered a worker. The worker waits for the command `start`.
    Ready {
        /// The version that each server reports.
        servers: Vec<(NodeName, String)>,
    },

    // ---- clients
    /// An attempt begins. Stamped and written before the first request leaves; this stamp is the send stamp of the
    /// promise.
    Acquire {
        /// The client.
        client: ClientId,
        /// The attempt. A hold that comes from the attempt has the same id.
        attempt: HoldId,
        /// The key.
        key: Key,
        /// The time at which the critical section was due (open model). Latencies count from here.
        intended: Stamp,
        /// The mode. Absent for a writer, and in older histories, which have no other mode.
        #[serde(default, skip_serializing_if = "Mode::is_write")]
        mode: Mode,
        /// The client's hold of the key above this one. Absent if it has none, or if no key is above another.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        above: Option<HoldId>,
    },
    /// The second round of a two-phase token is about to leave. With `two-phase-fast`, only some attempts have it.
    WriteBack {
        /// The attempt.
        attempt: HoldId,
    },
    /// The attempt succeeded. Stamped after the decisive answers were read and before the validity was computed.
    Acquired {
        /// The attempt.
        attempt: HoldId,
        /// The fencing token, if the backend makes tokens.
        token: Option<Token>,
        /// The granted lease.
        lease_ns: u64,
        /// The latest stamp at which the client knew that it did not hold the lock.
        granted_after: Stamp,
        /// The send stamp of the request on which the promise rests; by default that of the attempt. A lease that is
        /// renewed while its owner waits in a queue promises from its last renewal on. In a session an attempt may rest
        /// on a request of an earlier one, whose stamp lies before its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        promised_from: Option<Stamp>,
        /// Queue locks: the hold's place in the service's own queue. No other hold of the key has the same place, and a
        /// later hold has a larger place. Given only where one transaction has confirmed, at the grant, that the
        /// hold's own key exists and is the oldest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<u64>,
        /// The belief: the remaining validity that the client computed, in its own clock. 0 or absent if the client did
        /// not compute one.
        #[serde(default)]
        valid_ns: u64,
        /// The answers of the lock nodes; may be absent.
        #[serde(default)]
        answers: Answers,
    },
    /// The attempt waits in the service's queue: the client has seen another client ahead of it.
    Behind {
        /// The attempt.
        attempt: HoldId,
    },
    /// The service has granted the lock, but the key of the grant no longer existed when the client looked for it: the
    /// lease had expired. A later event gives the result of the attempt.
    WithoutKey {
        /// The attempt.
        attempt: HoldId,
    },
    /// The attempt did not succeed.
    AcquireFailed {
        /// The attempt.
        attempt: HoldId,
        /// `failed` or `indeterminate`.
        outcome: Outcome,
        /// The reason.
        why: FailureReason,
        /// The text of the error, if `why` is `error`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// The answers of the lock nodes; may be absent.
        #[serde(default)]
        answers: Answers,
    },
    /// The undo of a failed attempt is about to leave.
    Undo {
        /// The attempt.
        attempt: HoldId,
    },
    /// The lock nodes have answered the undo: `done` where a key was removed.
    Undone {
        /// The attempt.
        attempt: HoldId,
        /// The answers of the lock nodes; may be absent.
        #[serde(default)]
        answers: Answers,
    },
    /// A renewal is about to leave. This stamp is the send stamp of the promise that the renewal may bring.
    Renew {
        /// The hold.
        hold: HoldId,
    },
    /// The last renewal that was sent succeeded.
    Renewed {
        /// The hold.
        hold: HoldId,
        /// The lease that was granted again.
        lease_ns: u64,
        /// The answers of the lock nodes; may be absent.
        #[serde(default)]
        answers: Answers,
    },
    /// The last renewal that was sent did not succeed.
    RenewFailed {
        /// The hold.
        hold: HoldId,
        /// `failed` or `indeterminate`.
        outcome: Outcome,
        /// The reason.
        why: FailureReason,
        /// The answers of the lock nodes; may be absent.
        #[serde(default)]
        answers: Answers,
    },
    /// The client knows that it has lost the hold: the entitlement ends here at the latest.
    LossNoticed {
        /// The hold.
        hold: HoldId,
    },
    /// The release is about to leave: end of use.
    Release {
        /// The hold.
        hold: HoldId,
    },
    /// The release was answered.
    Released {
        /// The hold.
        hold: HoldId,
        /// True if the lock still existed.
        removed: bool,
        /// The answers of the lock nodes; may be absent.
        #[serde(default)]
        answers: Answers,
    },
    /// The release did not succeed.
    ReleaseFailed {
        /// The hold.
        hold: HoldId,
        /// `failed` or `indeterminate`.
        outcome: Outcome,
        /// The reason.
        why: FailureReason,
        /// The answers of the lock nodes; may be absent.
        #[serde(default)]
        answers: Answers,
    },
    /// The client acquired its own hold again, without a request. Stamped before the client read its clock.
    Reentered {
        /// The hold.
        hold: HoldId,
        /// Acquisitions of the hold that are open: 2 after the first re-entry.
        count: u32,
        /// The fencing token that the client got.
        token: Option<Token>,
        /// The belief: the remaining validity that the client computed, in its own clock.
        valid_ns: u64,
    },
    /// The client released the hold, without a request: another acquisition of it is still open, or none was.
    Left {
        /// The hold.
        hold: HoldId,
        /// Acquisitions that are still open. 0 means that the client released more often than it had acquired.
        count: u32,
    },
    /// The client stops using the hold without a release: end of use. The entitlement does not end, because a write may
    /// still be under way.
    GaveUp {
        /// The hold.
        hold: HoldId,
    },
    /// A read of the protected state is about to leave.
    Read {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
    },
    /// The read was answered.
    ReadOk {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
        /// The admission number.
        number: u64,
        /// The answer of each arm. Absent in older histories, for which the property `resource` is inconclusive.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arms: Option<Vec<ArmReadAnswer>>,
    },
    /// A read or write got no decision. A refusal by an arm is a decision: `write-ok`.
    AccessFailed {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
        /// `failed` or `indeterminate`.
        outcome: Outcome,
        /// The text of the error.
        detail: String,
    },
    /// The client works: a planned wait begins.
    Work {
        /// The hold.
        hold: HoldId,
        /// The planned length of the wait.
        planned_ns: u64,
    },
    /// A checking client verified its deadline. Stamped before the client read its clock.
    Check {
        /// The hold.
        hold: HoldId,
        /// True if the client took the hold to be valid.
        passed: bool,
    },
    /// A write is about to leave.
    Write {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
    },
    /// A write that got no answer is about to leave again, as the same operation.
    Resend {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
    },
    /// The write was answered: each arm admitted or refused the write.
    WriteOk {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
        /// The admission number.
        number: u64,
        /// The answer of each arm. Absent in older histories, for which the property `resource` is inconclusive.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arms: Option<Vec<ArmWriteAnswer>>,
    },
    /// An armed client has reached its protocol point and waits. A planned wait begins.
    AtPoint {
        /// The client.
        client: ClientId,
        /// The attempt or hold.
        hold: HoldId,
        /// The point.
        point: Point,
    },
    /// The client continues from its protocol point.
    LeftPoint {
        /// The client.
        client: ClientId,
        /// The attempt or hold.
        hold: HoldId,
        /// The point.
        point: Point,
        /// True if the controller released the client. False if the bound expired, or if the client cancelled.
        released: bool,
    },
    /// A worker's count of the critical sections that were offered to it. Its last event about them.
    Sections {
        /// Offered before the time was over.
        offered: u64,
        /// Ended, with or without a release.
        done: u64,
        /// Still queued, or still trying to acquire, when the time was over.
        dropped: u64,
    },

    // ---- the resource
    /// One entry of the admission log, which is the ground truth. Stamped at the instant of the decision.
    Admission {
        /// The number, from 1: the order in which the resource applied requests.
        number: u64,
        /// The key.
        key: Key,
        /// Read or write.
        kind: RequestKind,
        /// The hold. Final reads have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
        /// The operation of the hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        op: Option<OpId>,
        /// The token of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
        /// The deadline of a write to a resource with the arm `deadline`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Deadline>,
        /// The (hold, operation) had been applied before: nothing was decided, and the former answer was repeated.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        repeat: bool,
        /// The decision of each arm.
        arms: Vec<ArmDecision>,
    },

    /// The resource was restarted over its store. Admissions with larger numbers that an earlier process reported were
    /// never answered, and are undone.
    Recovered {
        /// The largest number on disk.
        durable: u64,
    },

    // ---- the agent
    /// The agent has carried out an order, or could not. The answer has the form of the agent's own protocol.
    OrderDone {
        /// The number of the order.
        order: u64,
        /// The answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Box<serde_json::Value>>,
        /// The error, if the agent could not carry out the order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// A fault of links delayed packets: no packet that left `from` for `to` between the two stamps arrived before the
    /// second stamp. If several faults delay a packet one after the other, each has an event with its part of the
    /// delay.
    PacketsDelayed {
        /// The fault of the schedule.
        fault: FaultId,
        /// The sender.
        from: NodeName,
        /// The receiver.
        to: NodeName,
        /// The time at which the first delayed packet left, or at which this fault began its part of the delay.
        since: Stamp,
        /// The time at which that packet was delivered, or at which another fault began its part of the delay. Packets
        /// that left later may have arrived at the same time.
        until: Stamp,
    },
    /// A fault has reached its next phase.
    #[serde(deserialize_with = "fault")]
    Fault {
        /// The fault of the schedule.
        fault: FaultId,
        /// The kind.
        kind: FaultKind,
        /// The target.
        node: NodeName,
        /// The phase.
        #[serde(flatten)]
        phase: FaultPhase,
    },
    /// The planned wait of a client at its protocol point ends here. A fault may keep the client there longer.
    PointReleased {
        /// The client.
        client: ClientId,
        /// The point.
        point: Point,
    },
}

impl Event {
    /// The attempt that the event concerns, or its hold.
    pub fn attempt(&self) -> Option<HoldId> {
        match self {
            Event::Acquire { attempt, .. }
            | Event::WriteBack { attempt }
            | Event::Acquired { attempt, .. }
            | Event::Behind { attempt }
            | Event::WithoutKey { attempt }
            | Event::AcquireFailed { attempt, .. }
            | Event::Undo { attempt }
            | Event::Undone { attempt, .. } => Some(*attempt),
            Event::Renew { hold }
            | Event::Renewed { hold, .. }
            | Event::RenewFailed { hold, .. }
            | Event::LossNoticed { hold }
            | Event::Release { hold }
            | Event::Released { hold, .. }
            | Event::ReleaseFailed { hold, .. }
            | Event::Reentered { hold, .. }
            | Event::Left { hold, .. }
            | Event::GaveUp { hold }
            | Event::Read { hold, .. }
            | Event::ReadOk { hold, .. }
            | Event::AccessFailed { hold, .. }
            | Event::Work { hold, .. }
            | Event::Check { hold, .. }
            | Event::Write { hold, .. }
            | Event::Resend { hold, .. }
            | Event::WriteOk { hold, .. }
            | Event::AtPoint { hold, .. }
            | Event::LeftPoint { hold, .. } => Some(*hold),
            Event::Admission { hold, .. } => *hold,
            _ => None,
        }
    }
}

/// Reads [`Event::Fault`]. All fields but those of the event belong to the phase, which refuses the ones that it does
/// not know.
fn fault<'de, D: Deserializer<'de>>(d: D) -> Result<(FaultId, FaultKind, NodeName, FaultPhase), D::Error> {
    #[derive(Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    struct Fields {
        fault: FaultId,
        kind: FaultKind,
        node: NodeName,
        #[serde(flatten)]
        phase: FaultPhase,
    }
    Fields::deserialize(d).map(|Fields { fault, kind, node, phase }| (fault, kind, node, phase))
}
