//! A cluster inside one process under virtual time: the second implementation of the ports.
//!
//! The algorithms of `locks`, the clients of `workloads`, the rule of `resource` and the nemesis are the same code as on real
//! servers; what is modelled is what they stand on: processes, clocks, links, servers. The same plan gives the same history,
//! event by event.

pub mod models;

use std::time::Duration;

use history::{Plan, Record};

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// Name of the run.
    pub run: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// The lock under test as the user named it: `redlock`, `buggy:no-nx`.
    pub backend: &'a str,
    /// A planted bug of the resource.
    pub resource_bug: Option<&'a str>,
}

/// What came of a simulation, besides its history.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Messages that were sent over links.
    pub messages: u64,
    /// Virtual time that went by.
    pub lasted: Duration,
}

/// The plan cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SimError(pub String);

/// Runs a plan to its end, and hands every record of its history to `see`, in the order of the history.
///
/// # Errors
/// The plan names what there is no model of, or its faults cannot be carried out.
pub fn simulate(_setup: &Setup<'_>, _see: &mut dyn FnMut(Record)) -> Result<Outcome, SimError> {
    Err(SimError("not yet".into()))
}
