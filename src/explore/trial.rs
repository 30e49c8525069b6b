//! One plan, simulated and judged on the way: nothing is written.

use std::{collections::BTreeSet, time::Duration};

use checker::{Checker, Verdicts};
use history::{Event, FaultId, FaultPhase, NodeName, Plan, Tail};
use sim::{Setup, SimError, simulate};

use super::finding::{Class, classes};

/// A fault that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// Which of the schedule.
    pub id: FaultId,
    /// Whom it hit.
    pub node: NodeName,
    /// When it was requested, since the first process had started.
    pub at: Duration,
}

/// What came of a plan.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Classes of its violations.
    pub classes: BTreeSet<Class>,
    /// Its faults, in the order in which they were requested.
    pub fired: Vec<Fired>,
    /// Holds.
    pub holds: u64,
    /// Attempts.
    pub attempts: u64,
    /// Messages over links.
    pub messages: u64,
    /// Virtual time.
    pub lasted: Duration,
    /// All verdicts.
    pub verdicts: Verdicts,
}

/// Simulates `plan` with the backend and the resource that the user named.
///
/// # Errors
/// The plan cannot be simulated.
pub fn trial(plan: &Plan, backend: &str, resource_bug: Option<&str>) -> Result<Trial, SimError> {
    let run = format!("explore-{}", plan.seed);
    let mut checker = Checker::new();
    let (mut holds, mut attempts, mut fired, mut start) = (0, 0, Vec::new(), None);
    let outcome = simulate(&Setup { run: &run, plan, backend, resource_bug, with_truth: false }, &mut |record| {
        match &record.event {
            Event::Started { .. } => {
                start.get_or_insert(record.at);
            }
            Event::Acquire { .. } => attempts += 1,
            Event::Acquired { .. } => holds += 1,
            Event::Fault { fault, node, phase: FaultPhase::Requested { .. }, .. } => {
                let at = record.at.since(start.unwrap_or_default());
                fired.push(Fired { id: *fault, node: node.clone(), at });
            }
            _ => {}
        }
        checker.feed(record);
    })?;
    let verdicts = checker.finish(Tail::Whole);
    let (messages, lasted) = (outcome.messages, outcome.lasted);
    Ok(Trial { classes: classes(&verdicts), fired, holds, attempts, messages, lasted, verdicts })
}
