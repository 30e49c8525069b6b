//! Simulates and judges one plan, and returns the truth beside the verdicts.

use checker::{Checker, Verdicts};
use history::{Plan, Tail};
use sim::{Setup, SimError, simulate, truth::Truth};

use crate::explore::swarm::signal::{Signal, Watch};

/// The system under test: a lock and a resource, with or without a planted bug.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The lock, as `--backend` names it.
    pub backend: &'a str,
    /// A planted bug of the resource.
    pub resource_bug: Option<&'a str>,
}

impl<'a> Subject<'a> {
    /// Makes a subject without planted bugs.
    pub fn correct(backend: &'a str) -> Subject<'a> {
        Subject { backend, resource_bug: None }
    }
}

/// Returns the verdicts on a plan.
///
/// # Errors
/// The plan cannot be simulated.
pub fn verdicts(plan: &Plan, subject: Subject<'_>) -> Result<Verdicts, SimError> {
    simulated(plan, subject, false).map(|result| result.0)
}

/// Returns the verdicts on a plan, and the signal of its run.
///
/// # Errors
/// The plan cannot be simulated.
pub fn verdicts_and_signal(plan: &Plan, subject: Subject<'_>) -> Result<(Verdicts, Signal), SimError> {
    let (mut checker, mut watch) = (Checker::new(), Watch::default());
    let Subject { backend, resource_bug } = subject;
    let setup = Setup { run: "selftest", plan, backend, resource_bug, redraw: None, with_truth: false };
    let outcome = simulate(&setup, &mut |record| {
        watch.see(&record);
        checker.feed(record);
    });
    outcome?;
    Ok((checker.finish(Tail::Whole), watch.signal()))
}

/// Returns the verdicts on a plan, and the truth.
///
/// # Errors
/// The plan cannot be simulated.
pub fn verdicts_and_truth(plan: &Plan, subject: Subject<'_>) -> Result<(Verdicts, Truth), SimError> {
    let (verdicts, truth) = simulated(plan, subject, true)?;
    Ok((verdicts, truth.ok_or_else(|| SimError::Failed("the simulation returned no truth".into()))?))
}

/// Returns whether the history of a plan contains `word`.
///
/// # Errors
/// The plan cannot be simulated, or its history cannot be written.
pub fn mentions(plan: &Plan, Subject { backend, resource_bug }: Subject<'_>, word: &str) -> Result<bool, String> {
    let (mut is_said, mut broken) = (false, None);
    let setup = Setup { run: "selftest", plan, backend, resource_bug, redraw: None, with_truth: false };
    let outcome = simulate(&setup, &mut |record| match serde_json::to_string(&record) {
        Ok(line) => is_said |= line.contains(word),
        Err(error) => broken = Some(error.to_string()),
    });
    match outcome {
        // The history is whole.
        Ok(_) | Err(SimError::SentEarly(_)) => broken.map_or(Ok(is_said), Err),
        Err(error) => Err(error.into()),
    }
}

fn simulated(
    plan: &Plan,
    Subject { backend, resource_bug }: Subject<'_>,
    with_truth: bool,
) -> Result<(Verdicts, Option<Truth>), SimError> {
    let mut checker = Checker::new();
    let setup = Setup { run: "selftest", plan, backend, resource_bug, redraw: None, with_truth };
    let outcome = simulate(&setup, &mut |record| checker.feed(record))?;
    Ok((checker.finish(Tail::Whole), outcome.truth))
}
