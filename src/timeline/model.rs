//! The timeline of a run as plain data.

use std::time::Duration;

use history::{
    Arm, ClientId, FailureReason, Fault, FaultId, FaultKind, HoldId, Key, NodeName, OpId, ProcessName, RequestKind,
    StallCause, Stamp, Token,
};

use super::series::Series;

/// A run as it is drawn. All instants are stamps of the run's one clock; [`Timeline::ms`] gives the time of reports.
///
/// The memory is bounded by the constants of the builder, and does not grow with the history. [`Timeline::left_out`]
/// counts everything that is not here.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// The start of the run's first process: the zero of all reports.
    pub zero: Stamp,
    /// The last stamp of a process.
    pub until: Stamp,
    /// One lane a client, in the order of the clients' numbers.
    pub lanes: Vec<Lane>,
    /// The holds, in the order of their acquisition.
    pub holds: Vec<Hold>,
    /// The windows of `verdict.json`, in its order.
    pub windows: Vec<WindowSpan>,
    /// Faults, in the order of their numbers.
    pub faults: Vec<FaultSpan>,
    /// Spans in which a process of the harness did not run, by time.
    pub stalls: Vec<Stall>,
    /// Changes of the hosts' clocks, by time.
    pub clocks: Vec<ClockStep>,
    /// Counts, latencies and tokens over time.
    pub series: Series,
    /// The last value of each arm that the resource reported: the sum of the counters of all keys.
    pub values: Vec<(Arm, u64)>,
    /// The part of the history that is not in this timeline.
    pub left_out: LeftOut,
}

impl Timeline {
    /// Milliseconds since the start of the run's first process.
    pub fn ms(&self, at: Stamp) -> f64 {
        (at.0 as f64 - self.zero.0 as f64) / 1e6
    }

    /// The hold with this id, if the timeline has it whole.
    pub fn hold(&self, id: HoldId) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.id == id)
    }
}

/// The lane of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The client.
    pub client: ClientId,
    /// The node of its worker.
    pub worker: NodeName,
    /// The name in stories: the worker, and the client's number if a worker has several clients.
    pub name: String,
    /// Holds that are left out, by bucket of [`Series`].
    pub left_out: Vec<u32>,
}

/// One hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Hold {
    /// The id.
    pub id: HoldId,
    /// The client.
    pub client: ClientId,
    /// The process that acquired the hold.
    pub process: ProcessName,
    /// The key.
    pub key: Key,
    /// The time at which the critical section was due.
    pub intended: Stamp,
    /// The send stamp of the attempt.
    pub sent: Stamp,
    /// The `acquire` ok, with its sequence number in the history.
    pub acquired: Stamp,
    /// The sequence number of the `acquired` event.
    pub seq: u64,
    /// The fencing token.
    pub token: Option<Token>,
    /// The granted lease.
    pub lease: Duration,
    /// The end of the service's promise, renewals included.
    pub promise_end: Stamp,
    /// The end of the client's first belief: the `acquire` ok plus the validity that the client computed.
    pub believed_until: Stamp,
    /// Renewals that succeeded.
    pub renewed: u32,
    /// The client's stamp before the release left.
    pub release: Option<Stamp>,
    /// The answer to the release, and true if the lock still existed. None if the release failed or never ended.
    pub released: Option<(Stamp, bool)>,
    /// The client noticed that the hold was lost.
    pub lost: Option<Stamp>,
    /// The client stopped using the hold without a release.
    pub gave_up: Option<Stamp>,
    /// A kill of the hold's process was requested, and the client had not released the hold.
    pub killed: Option<Stamp>,
    /// Requests that the resource decided, in the order of the history.
    pub acts: Vec<Act>,
    /// True if the hold belongs to a window, or if one of its writes was stale or late on an arm.
    pub is_wrong: bool,
}

impl Hold {
    /// The end of the entitlement: the first of promise end, release, loss and kill.
    pub fn entitled_until(&self) -> Stamp {
        [self.release, self.lost, self.killed].into_iter().flatten().fold(self.promise_end, Stamp::min)
    }

    /// The client's last sign of using the hold: the end of use, or the last act if it is later.
    pub fn used_until(&self) -> Stamp {
        let end = self.release.or(self.gave_up).or(self.killed).or(self.lost);
        let last = self.acts.iter().map(|act| act.at).max();
        end.max(last).unwrap_or_else(|| self.entitled_until()).max(self.acquired)
    }
}

/// One request that the resource decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    /// The sequence number of the admission in the history.
    pub seq: u64,
    /// The instant of the decision.
    pub at: Stamp,
    /// Read or write.
    pub kind: RequestKind,
    /// The operation of the hold.
    pub op: Option<OpId>,
    /// The token of the request.
    pub token: Option<Token>,
    /// The decisions, in the order of the arms.
    pub decisions: Vec<Decision>,
}

/// The decision of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The arm.
    pub arm: Arm,
    /// Admitted or refused.
    pub admitted: bool,
    /// The largest token that the arm had registered before.
    pub seen: Option<Token>,
    /// The checker's finding about an admitted write.
    pub standing: Standing,
}

/// The checker's finding about an admitted write on one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// Nothing is known against the write.
    #[default]
    Current,
    /// A later hold had been acquired, but had not acted on the arm yet.
    Late,
    /// A later hold had acted on the arm before.
    Stale,
}

/// One double-holder window.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowSpan {
    /// The kind, as in `verdict.json`.
    pub kind: &'static str,
    /// The key.
    pub key: Key,
    /// The two holds: the stale or first one, and the later one.
    pub holds: Vec<HoldId>,
    /// The start of the time with two holders, in milliseconds since the zero of reports.
    pub from_ms: f64,
    /// The end of the time with two holders.
    pub to_ms: f64,
    /// The first and the last instant of the window's story.
    pub story_ms: (f64, f64),
    /// The story in one line.
    pub headline: String,
    /// The causes in words.
    pub causes: String,
}

/// One fault on one node.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultSpan {
    /// The number in the plan.
    pub id: FaultId,
    /// The kind.
    pub kind: FaultKind,
    /// The node.
    pub node: NodeName,
    /// The fault as the plan has it. None if nobody planned the fault.
    pub planned: Option<Fault>,
    /// The fault is about to be injected. For an unplanned fault: it did not begin before.
    pub requested: Option<Stamp>,
    /// The engine reported that the fault is on.
    pub injected: Option<Stamp>,
    /// The fault is about to be healed.
    pub heal_requested: Option<Stamp>,
    /// The engine reported that the fault is off.
    pub healed: Option<Stamp>,
    /// The target runs as before.
    pub heal_proved: Option<Stamp>,
    /// The span for which the target itself shows the fault.
    pub proved: Option<(Stamp, Stamp)>,
    /// The reason why the target does not show the fault.
    pub unproved: Option<String>,
    /// The fault took effect after its hold had been released.
    pub is_missed: bool,
    /// Nobody planned the fault.
    pub is_unplanned: bool,
}

/// A span in which a process of the harness did not run, or could not write.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// The process.
    pub process: ProcessName,
    /// Last sign of life before.
    pub from: Stamp,
    /// First sign of life after.
    pub to: Stamp,
    /// The activity that was late.
    pub late: StallCause,
}

/// A change of a host clock against the monotonic clock.
#[derive(Debug, Clone, PartialEq)]
pub struct ClockStep {
    /// The process that sampled the clocks.
    pub process: ProcessName,
    /// The sample at which the change shows.
    pub at: Stamp,
    /// Wall − monotonic, against the process's first sample, in milliseconds.
    pub wall_ms: f64,
    /// Boottime − monotonic, against the process's first sample, in milliseconds.
    pub boot_ms: f64,
}

/// The part of the history that is not drawn one by one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LeftOut {
    /// Holds of the run.
    pub holds_of_run: u64,
    /// Holds that are left out; the lanes have their counts by time.
    pub holds: u64,
    /// Holds among them that belong to a window or had a stale or late write.
    pub wrong_holds: u64,
    /// Other holds among them that are near a window, on its key.
    pub near_holds: u64,
    /// Requests under holds of the run. A hold here may lack some of its requests.
    pub acts_of_run: u64,
    /// Attempts that failed; [`Series`] has their counts by time.
    pub attempts: u64,
    /// The reasons for which attempts failed, with their counts.
    pub failed: Vec<(FailureReason, u64)>,
    /// Faults that are left out.
    pub faults: u64,
    /// Stalls that are left out: the shortest ones.
    pub stalls: u64,
    /// Changes of clocks that are left out.
    pub clocks: u64,
}
