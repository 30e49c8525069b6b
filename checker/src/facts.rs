//! Figures of a run that belong to no property.

use history::{FaultKind, NodeName, ProcessName};
use serde::Serialize;

/// The longest time for which a process did not run though no fault had stopped it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LongestStall {
    /// The process.
    pub process: ProcessName,
    /// The length, in milliseconds.
    pub ms: f64,
}

/// A fault that nobody planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnplannedFault {
    /// Its kind: a server that ended is `kill`, a node that lost its network is `partition`.
    pub kind: FaultKind,
    /// The node.
    pub node: NodeName,
    /// The time at which the fault was noticed, in milliseconds since the run's start.
    pub from_ms: f64,
    /// The time at which its end was noticed; none if it was on until the end.
    pub to_ms: Option<f64>,
}

/// Figures of a run that belong to no property.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Facts {
    /// Holds.
    pub holds: u64,
    /// Attempts refused as held, or, in queue locks, waiting behind another.
    pub refused_as_held: u64,
    /// First attempt of the run, in milliseconds since its start.
    pub first_operation_ms: Option<f64>,
    /// From the first attempt of the run to the first instant of a window, in milliseconds.
    pub first_window_after_ms: Option<f64>,
    /// Faults that were requested.
    pub faults_requested: u64,
    /// Faults that their target showed.
    pub faults_proved: u64,
    /// Faults that their target did not show.
    pub faults_unproved: u64,
    /// Faults that missed the hold they were meant for.
    pub missed_target: u64,
    /// Faults of servers and networks that nobody planned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unplanned_faults: Vec<UnplannedFault>,
    /// The longest stall.
    pub longest_stall: Option<LongestStall>,
    /// The end of the judged record, in milliseconds since the run's start.
    pub judged_until_ms: f64,
}
