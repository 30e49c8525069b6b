//! The vocabulary of a run as types, and the history file.
//!
//! A history is a file of JSON lines. It records a run of a distributed lock under faults: each request for the lock
//! and its answer, each access to the protected state, each fault. The crate `lock-checker` judges a history.
//!
//! This crate is a leaf of the workspace, and all other crates except `locks` use its types. It defines plans, faults
//! and events, and contains no code that makes them happen.
//!
//! ```
//! let line = r#"{"seq":1,"process":"worker-1","n":0,"at":5,"event":"release","hold":7}"#;
//! let record: history::Record = serde_json::from_str(line)?;
//! assert_eq!(record.event, history::Event::Release { hold: history::HoldId(7) });
//! # Ok::<(), serde_json::Error>(())
//! ```

mod arm;
mod checksum;
mod cluster;
mod deadline;
mod event;
pub mod fault;
mod file;
mod human;
mod line;
mod made_by;
mod mode;
mod names;
mod no_fields;
mod operation;
mod phase;
mod plan;
mod point;
mod process;
mod program;
mod range;
mod read_ahead;
mod record;
mod report;
mod reports;
mod resource_kind;
#[cfg(test)]
mod schema;
mod servers;
mod stamp;
mod step;
mod target;
mod wait;
mod which_clock;
mod workload;

pub use arm::{Arm, Comparison, UnknownArm};
pub use cluster::{ClusterKind, Models, Persistence, PlannedCluster};
pub use deadline::Deadline;
pub use event::Event;
pub use fault::{ClockChange, CutMode, Direction, Fault, FaultId, FaultKind, Harm, LinkDelay};
pub use file::{HistoryError, Reader, Tail, Writer};
pub use human::duration;
pub use made_by::{Build, EngineFacts, Host, MadeBy};
pub use mode::Mode;
pub use names::{Key, NodeName, ProcessName};
pub use operation::{
    Answers, ArmDecision, ArmReadAnswer, ArmWriteAnswer, FailureReason, NodeAnswer, Outcome, RequestKind,
};
pub use phase::FaultPhase;
pub use plan::{Activity, Plan, own_servers::no_access, possible::PlanError, sizes::PLAN_BYTES_MAX};
pub use point::Point;
pub use process::{Role, STALL_FROM, StallCause};
pub use program::{Program, ProgramFile};
pub use range::Range;
pub use read_ahead::ReadAhead;
pub use record::Record;
pub use report::Report;
pub use reports::Reports;
pub use resource_kind::ResourceKind;
pub use servers::{Amnesia, LeaseClock, Promise, ServerFacts, ServerModel, Tokens, Topology};
pub use stamp::{ClientId, HoldId, OpId, Stamp, Token, Version, drift};
pub use step::{Step, When};
pub use target::Target;
pub use wait::{Until, Wait, WaitId};
pub use which_clock::WhichClock;
pub use workload::{ClientKind, Scripted, Workload};
