//! The vocabulary of a run as types, and the history file.
//!
//! A leaf of the workspace: every other crate speaks of a run in these words. It knows what a plan, a fault
//! and an event are; it does not know how any of them comes about.

mod event;
mod fault;
mod file;
mod names;
mod operation;
mod plan;
mod point;
mod stamp;
mod wait;

pub use event::{Event, FaultPhase, Record, Role, StallCause};
pub use fault::{ClockChange, Cut, Direction, Fault, FaultId, FaultKind, Late, Step, Target, When, WhichClock};
pub use file::{HistoryError, Reader, Tail, Writer};
pub use names::{Key, NodeName, ProcessName};
pub use operation::{Answers, ArmDecision, NodeAnswer, Outcome, RequestKind, Why};
pub use plan::{
    Activity, Arm, ClientKind, ClusterKind, Comparison, LeaseClock, Models, Persistence, Plan, PlanError, Range,
    Scripted, Tokens, Workload,
};
pub use point::Point;
pub use stamp::{ClientId, HoldId, OpId, Stamp, Token, drift};
pub use wait::{Until, Wait, WaitId};
