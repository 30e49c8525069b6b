//! Simulates and judges one plan, and returns the truth beside the verdicts.

use checker::{Checker, Verdicts};
use history::{Plan, Tail};
use sim::{Setup, simulate, truth::Truth};

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
pub fn verdicts(plan: &Plan, subject: Subject<'_>) -> Result<Verdicts, String> {
    simulated(plan, subject, false, None).map(|result| result.0)
}

/// Returns the verdicts on a plan, and the signal of its run.
///
/// # Errors
/// The plan cannot be simulated.
pub fn verdicts_and_signal(plan: &Plan, subject: Subject<'_>) -> Result<(Verdicts, Signal), String> {
    let (mut checker, mut watch) = (Checker::new(), Watch::default());
    let Subject { backend, resource_bug } = subject;
    let setup = Setup { run: "selftest", plan, backend, resource_bug, redraw: None, with_truth: false };
    let outcome = simulate(&setup, &mut |record| {
        watch.see(&record);
        checker.feed(record);
    });
    outcome.map_err(|e| e.to_string())?;
    Ok((checker.finish(Tail::Whole), watch.signal()))
}

/// Returns the verdicts on a plan, and the truth.
///
/// # Errors
/// The plan cannot be simulated.
pub fn verdicts_and_truth(plan: &Plan, subject: Subject<'_>) -> Result<(Verdicts, Truth), String> {
    let (verdicts, truth, _) = simulated(plan, subject, true, None)?;
    Ok((verdicts, truth.ok_or("the simulation returned no truth")?))
}

/// Returns whether the history of a plan contains `word`.
///
/// # Errors
/// The plan cannot be simulated.
pub fn mentions(plan: &Plan, subject: Subject<'_>, word: &str) -> Result<bool, String> {
    simulated(plan, subject, false, Some(word)).map(|result| result.2)
}

fn simulated(
    plan: &Plan,
    Subject { backend, resource_bug }: Subject<'_>,
    with_truth: bool,
    word: Option<&str>,
) -> Result<(Verdicts, Option<Truth>, bool), String> {
    let (mut checker, mut is_said, mut broken) = (Checker::new(), false, None);
    let setup = Setup { run: "selftest", plan, backend, resource_bug, redraw: None, with_truth };
    let outcome = simulate(&setup, &mut |record| {
        if let Some(word) = word {
            match serde_json::to_string(&record) {
                Ok(line) => is_said |= line.contains(word),
                Err(error) => broken = Some(error.to_string()),
            }
        }
        checker.feed(record);
    });
    let outcome = outcome.map_err(|e| e.to_string())?;
    broken.map_or(Ok((checker.finish(Tail::Whole), outcome.truth, is_said)), Err)
}
