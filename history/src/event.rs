//! Events: what processes report, what the history holds.
//!
//! One event is one line of JSON. `docs/worker-protocol.md` and `runs/README.md` describe them for readers who
//! do not read Rust.

use serde::{Deserialize, Serialize};

use crate::{
    Answers, ArmDecision, ClientId, FaultId, FaultKind, HoldId, Key, NodeName, OpId, Outcome, Plan, Point, ProcessName,
    RequestKind, Stamp, Token, Why,
};

/// One line of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its number in the history, from 0, without gaps. Witnesses name events by it. It orders nothing: an event may
    /// reach the recorder after later ones of other processes.
    pub seq: u64,
    /// Which process reports it.
    pub process: ProcessName,
    /// That process's own number for it, from 0. A gap means that something was lost.
    pub n: u64,
    /// When, by that process's own reading of the run's clock; within a process it never goes back. 0 for the
    /// controller, which may run on another machine and whose stamps would order nothing.
    pub at: Stamp,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// What a process of ours is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Runs clients.
    Worker,
    /// The fenced resource.
    Resource,
    /// Anchor of the run; stamps faults.
    Agent,
}

/// What was late when a process noticed that it had not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StallCause {
    /// The tick that was due every 10 ms.
    Tick,
    /// Writing an event: whoever reads the stream was slow.
    Write,
}

/// How far a fault has come. All of these are stamped by the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "kebab-case")]
pub enum FaultPhase {
    /// About to be injected: the engine has not been called yet.
    Requested {
        /// How long it shall last.
        asked_ns: u64,
        /// The hold it is meant for, if the target is the holder.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
    },
    /// What a server that is about to be killed has still to give to its disk, by its own word, asked after the request: Redis'
    /// `aof_pending_bio_fsync`. With none, a SIGKILL loses nothing that was answered before the request.
    Unsynced {
        /// Background fsyncs that are due or under way.
        fsyncs: u32,
    },
    /// The engine says that it is on.
    Injected,
    /// About to be healed: the engine has not been called yet.
    HealRequested,
    /// The engine says that it is off.
    Healed,
    /// The target itself shows that it was on: between these stamps it did not run (`pause`), or its last sign of life and
    /// the first of the process that took its place (`kill`).
    Proved {
        /// Last sign of life before.
        from: Stamp,
        /// First sign of life after.
        to: Stamp,
    },
    /// The target does not show it: verdicts that depend on it are inconclusive.
    Unproved {
        /// What was expected of the target, and what was seen.
        why: String,
    },
    /// Connections of the target that had not come to life again since were ended, so that new ones are made.
    ConnectionsReset {
        /// How many.
        count: u32,
    },
    /// The target runs as before.
    HealProved,
    /// It took effect when the hold that it was meant for had been released.
    MissedTarget,
}

/// Everything a history can say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    // ---- the run; stamps of the controller are 0
    /// First record of a history.
    Plan {
        /// The run's id.
        run: String,
        /// What was planned.
        plan: Box<Plan>,
    },
    /// The stream of a process has ended: no event of it follows.
    ProcessEnded {
        /// Which.
        ended: ProcessName,
        /// Its exit code, if the engine knows.
        code: Option<i64>,
    },
    /// Last record: the history is whole.
    End,

    // ---- every process of ours
    /// First event of a process.
    Started {
        /// What it is for.
        role: Role,
        /// Its kernel's boot id: all processes of a run must report the same one.
        boot_id: String,
        /// Inode of its time namespace: the same goes for it.
        time_namespace: u64,
    },
    /// Nothing happened before this stamp that was not reported: moves the horizon of an idle process.
    Watermark,
    /// The process did not run, or could not write: a gap between two of its own ticks, or around a write.
    Stall {
        /// Last sign of life.
        from: Stamp,
        /// First sign of life again.
        to: Stamp,
        /// What was late.
        late: StallCause,
    },
    /// Differences of the kernel's clocks, once a second. Nanoseconds.
    Clocks {
        /// `CLOCK_REALTIME − CLOCK_MONOTONIC`.
        wall_ns: i64,
        /// `CLOCK_BOOTTIME − CLOCK_MONOTONIC`.
        boot_ns: i64,
    },
    /// Last event of a process that ends in good order.
    Finished,

    /// The lock nodes have answered a worker, which waits for the start.
    Ready {
        /// Version of each server, as it gives it itself.
        servers: Vec<(NodeName, String)>,
    },

    // ---- clients
    /// An attempt begins: stamped and written before its first request leaves. This stamp is the send stamp of the promise.
    Acquire {
        /// Who.
        client: ClientId,
        /// Which attempt; the hold that comes of it has the same id.
        attempt: HoldId,
        /// Of which key.
        key: Key,
        /// When the critical section was meant to begin (open model): latencies count from here.
        intended: Stamp,
    },
    /// The second round of a two-phase token is about to leave.
    WriteBack {
        /// Of which attempt.
        attempt: HoldId,
    },
    /// The attempt succeeded. Stamped after the decisive answers were read, before the validity was computed.
    Acquired {
        /// Which attempt.
        attempt: HoldId,
        /// Its fencing token, if the backend makes any.
        token: Option<Token>,
        /// The lease that was granted.
        lease_ns: u64,
        /// The latest stamp at which the client knew that it did not hold.
        granted_after: Stamp,
        /// Send stamp of the request that the promise rests on; that of the attempt, if absent. A lease that is kept alive while its
        /// owner waits in a queue promises from its last renewal on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        promised_from: Option<Stamp>,
        /// Queue locks: its place in the service's own queue, which no other hold of the key ever has; a hold that comes later in the queue
        /// has a larger one. Given only where one transaction has confirmed, at the grant, that the hold's own key stands and is the oldest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<u64>,
        /// Belief: how long the client took the hold to be valid when it looked, in its own clock.
        valid_ns: u64,
        /// Who said what.
        answers: Answers,
    },
    /// The attempt waits in the queue of the service: it has seen that somebody is before it.
    Behind {
        /// Which attempt.
        attempt: HoldId,
    },
    /// The service has granted the lock to this attempt, and the key that the grant stands for was not there when the client looked for it:
    /// its lease had ended. What the client makes of the grant comes next.
    WithoutKey {
        /// Which attempt.
        attempt: HoldId,
    },
    /// The attempt did not succeed.
    AcquireFailed {
        /// Which attempt.
        attempt: HoldId,
        /// Surely, or perhaps.
        outcome: Outcome,
        /// Why.
        why: Why,
        /// What the error said, where `why` is `error`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// Who said what.
        answers: Answers,
    },
    /// The undo of a failed attempt is about to leave.
    Undo {
        /// Which attempt.
        attempt: HoldId,
    },
    /// What the nodes said to the undo: `done` where a key was removed.
    Undone {
        /// Which attempt.
        attempt: HoldId,
        /// Who said what.
        answers: Answers,
    },
    /// A renewal is about to leave. This stamp is the send stamp of the promise that it may bring.
    Renew {
        /// Of which hold.
        hold: HoldId,
    },
    /// The last renewal sent succeeded.
    Renewed {
        /// Of which hold.
        hold: HoldId,
        /// The lease that was granted anew.
        lease_ns: u64,
        /// Who said what.
        answers: Answers,
    },
    /// The last renewal sent did not succeed.
    RenewFailed {
        /// Of which hold.
        hold: HoldId,
        /// Surely, or perhaps.
        outcome: Outcome,
        /// Why.
        why: Why,
        /// Who said what.
        answers: Answers,
    },
    /// The client knows that it has lost the hold: its entitlement ends here at the latest.
    LossNoticed {
        /// Which.
        hold: HoldId,
    },
    /// The release is about to leave: end of use.
    Release {
        /// Of which hold.
        hold: HoldId,
    },
    /// The release was answered.
    Released {
        /// Of which hold.
        hold: HoldId,
        /// Whether the hold was still there.
        removed: bool,
        /// Who said what.
        answers: Answers,
    },
    /// The release did not succeed.
    ReleaseFailed {
        /// Of which hold.
        hold: HoldId,
        /// Surely, or perhaps.
        outcome: Outcome,
        /// Why.
        why: Why,
        /// Who said what.
        answers: Answers,
    },
    /// The client will not use this hold any more and does not release it: end of use.
    GaveUp {
        /// Which.
        hold: HoldId,
    },
    /// A read of the protected state is about to leave.
    Read {
        /// Under which hold.
        hold: HoldId,
        /// Which operation.
        op: OpId,
    },
    /// The read was answered.
    ReadOk {
        /// Under which hold.
        hold: HoldId,
        /// Which operation.
        op: OpId,
        /// Its admission number.
        number: u64,
    },
    /// A read or write was not answered as asked. A refusal by an arm is an answer: `write-ok`.
    AccessFailed {
        /// Under which hold.
        hold: HoldId,
        /// Which operation.
        op: OpId,
        /// Surely, or perhaps.
        outcome: Outcome,
        /// What went wrong.
        detail: String,
    },
    /// The client works: a planned wait begins.
    Work {
        /// Under which hold.
        hold: HoldId,
        /// How long it means to wait.
        planned_ns: u64,
    },
    /// A checking client verified its deadline. Stamped before it read its clock.
    Check {
        /// Of which hold.
        hold: HoldId,
        /// Whether it took the hold to be valid.
        passed: bool,
    },
    /// A write is about to leave.
    Write {
        /// Under which hold.
        hold: HoldId,
        /// Which operation.
        op: OpId,
    },
    /// A write that was not answered is about to leave once more, as the same operation.
    Resend {
        /// Under which hold.
        hold: HoldId,
        /// Which operation.
        op: OpId,
    },
    /// The write was answered: each arm admitted or refused it.
    WriteOk {
        /// Under which hold.
        hold: HoldId,
        /// Which operation.
        op: OpId,
        /// Its admission number.
        number: u64,
    },
    /// A client that was armed for a point has come to it and waits. A planned wait begins.
    AtPoint {
        /// Who.
        client: ClientId,
        /// In which attempt or hold.
        hold: HoldId,
        /// Where.
        point: Point,
    },
    /// It goes on.
    LeftPoint {
        /// Who.
        client: ClientId,
        /// In which attempt or hold.
        hold: HoldId,
        /// Where.
        point: Point,
        /// Whether it was told to, or its bound ran out.
        released: bool,
    },
    /// What a worker did with the critical sections that were offered to it; its last word on them.
    Sections {
        /// Offered until the time was over.
        offered: u64,
        /// Ended, with a release or without.
        done: u64,
        /// Still queued, or still trying, when the time was over.
        dropped: u64,
    },

    // ---- the resource
    /// One entry of the admission log: ground truth. Stamped at the instant of the decision.
    Admission {
        /// Its number, from 1: the order in which the resource applied requests.
        number: u64,
        /// Which key.
        key: Key,
        /// Reads or writes.
        kind: RequestKind,
        /// Under which hold; final reads have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
        /// Which operation of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        op: Option<OpId>,
        /// The token it carried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
        /// The (hold, operation) had been applied before: nothing was decided, the former answer was given again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        repeat: bool,
        /// What each arm decided.
        arms: Vec<ArmDecision>,
    },

    /// The resource was started again over its store: admissions with larger numbers that an earlier process of it reported were never
    /// answered, and are undone.
    Recovered {
        /// The largest number that was on disk.
        durable: u64,
    },

    // ---- the agent
    /// The agent has done what it was told, or could not: what it measured, in the words of its own protocol.
    Obeyed {
        /// The number of the order.
        order: u64,
        /// What it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Box<serde_json::Value>>,
        /// Why it could not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// A fault of links held packets back: nothing that left `from` for `to` between these stamps arrived before the second one.
    Held {
        /// Which of the schedule.
        fault: FaultId,
        /// Who sent.
        from: NodeName,
        /// To whom.
        to: NodeName,
        /// The first packet that was held left then.
        since: Stamp,
        /// It was delivered then; packets that left later may have arrived with it.
        until: Stamp,
    },
    /// A fault has come one step further.
    Fault {
        /// Which of the schedule.
        fault: FaultId,
        /// Its kind.
        kind: FaultKind,
        /// Its target.
        node: NodeName,
        /// How far it has come.
        #[serde(flatten)]
        phase: FaultPhase,
    },
    /// The planned wait of a client at its point ends here, though a fault may keep it there longer.
    PointReleased {
        /// Who.
        client: ClientId,
        /// Where.
        point: Point,
    },
}
