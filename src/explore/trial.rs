//! Simulates one plan and judges its events as they come. Nothing is written.

use std::{collections::BTreeSet, time::Duration};

use checker::{Checker, Verdicts};
use history::{Event, FaultId, FaultPhase, NodeName, Plan, Record, Tail};
use sim::{Redraw, Setup, SimError, simulate};

use super::finding::{Class, classes};

/// A fault that the run requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// The fault of the schedule.
    pub id: FaultId,
    /// The node that it hit.
    pub node: NodeName,
    /// The time of the request, from the start of the first process.
    pub at: Duration,
}

/// The result of a plan.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The classes of its violations.
    pub classes: BTreeSet<Class>,
    /// The faults of the run, in the order of their requests.
    pub fired: Vec<Fired>,
    /// The number of holds.
    pub holds: u64,
    /// The number of attempts.
    pub attempts: u64,
    /// The number of messages over links.
    pub messages: u64,
    /// The virtual time of the run.
    pub lasted: Duration,
    /// The verdicts.
    pub verdicts: Verdicts,
}

/// Simulates `plan` with the backend and the resource that the user named.
///
/// # Errors
/// The plan cannot be simulated.
pub fn trial(plan: &Plan, backend: &str, resource_bug: Option<&str>) -> Result<Trial, SimError> {
    watched(plan, backend, resource_bug, None, |_| ())
}

/// Simulates a plan as [`trial`] does, with other random numbers from the instant of `redraw` on. `watch` gets every
/// record of the history.
///
/// # Errors
/// The plan cannot be simulated.
pub fn watched(
    plan: &Plan,
    backend: &str,
    resource_bug: Option<&str>,
    redraw: Option<Redraw>,
    mut watch: impl FnMut(&Record),
) -> Result<Trial, SimError> {
    let run = format!("explore-{}", plan.seed);
    let mut checker = Checker::new();
    let (mut holds, mut attempts, mut fired, mut start) = (0, 0, Vec::new(), None);
    let outcome =
        simulate(&Setup { run: &run, plan, backend, resource_bug, redraw, with_truth: false }, &mut |record| {
            watch(&record);
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

#[cfg(test)]
mod tests {
    use history::{Fault, Step, Target, When, fault};

    use super::*;
    use crate::explore::fixtures::{paused_at, plan};

    #[test]
    fn a_restart_does_not_change_the_times_of_later_faults() {
        let ms = Duration::from_millis;
        let kill = Step { fault: Fault::new(fault::Kill {}, ms(500)), ..paused_at(1, When::At(ms(2_000)), 500) };
        let pause = Step { target: Target::Node("worker-2".into()), ..paused_at(2, When::At(ms(6_000)), 500) };
        let plan = Plan { schedule: vec![kill, pause], ..plan() };
        let fired = trial(&plan, "redlock", None).unwrap().fired;
        let [killed, paused] = &fired[..] else { panic!("{fired:?}") };
        let between = paused.at.saturating_sub(killed.at);
        assert!(between.abs_diff(ms(4_000)) < ms(500), "{fired:?}");
    }
}
