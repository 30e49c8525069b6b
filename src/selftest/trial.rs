//! One plan, simulated and judged, and what really happened beside it.

use checker::{Checker, Verdicts};
use history::{Plan, Tail};
use sim::{Setup, simulate, truth::Truth};

/// What is run: a plan, and what is wrong on purpose.
#[derive(Debug, Clone, Copy)]
pub struct Under<'a> {
    /// The lock as a user names it.
    pub backend: &'a str,
    /// A planted bug of the resource.
    pub resource_bug: Option<&'a str>,
}

impl<'a> Under<'a> {
    /// Nothing is wrong.
    pub fn correct(backend: &'a str) -> Under<'a> {
        Under { backend, resource_bug: None }
    }
}

/// The verdicts on a plan.
///
/// # Errors
/// It cannot be simulated.
pub fn judged(plan: &Plan, under: Under<'_>) -> Result<Verdicts, String> {
    told(plan, under, false, None).map(|told| told.0)
}

/// The same, and the truth.
///
/// # Errors
/// It cannot be simulated.
pub fn witnessed(plan: &Plan, under: Under<'_>) -> Result<(Verdicts, Truth), String> {
    let (verdicts, truth, _) = told(plan, under, true, None)?;
    Ok((verdicts, truth.ok_or("the simulation tells no truth")?))
}

/// Whether `word` stands anywhere in the history of a plan.
///
/// # Errors
/// It cannot be simulated.
pub fn says(plan: &Plan, under: Under<'_>, word: &str) -> Result<bool, String> {
    told(plan, under, false, Some(word)).map(|told| told.2)
}

fn told(
    plan: &Plan,
    Under { backend, resource_bug }: Under<'_>,
    with_truth: bool,
    word: Option<&str>,
) -> Result<(Verdicts, Option<Truth>, bool), String> {
    let (mut checker, mut is_said, mut broken) = (Checker::new(), false, None);
    let setup = Setup { run: "selftest", plan, backend, resource_bug, with_truth };
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
