//! The page with all runs.

use std::path::Path;

use minijinja::{Environment, UndefinedBehavior, value::Serde};
use serde::Serialize;

use crate::recorded_run::RecordedRun;

/// The runs of a scenario that its trend shows: the newest.
const SHOWN: usize = 40;

/// The runs of one scenario.
#[derive(Debug, Serialize)]
struct Trend<'a> {
    scenario: &'a str,
    runs: usize,
    violated: usize,
    upheld: usize,
    inconclusive: usize,
    unexpected: usize,
    /// The newest runs, the oldest of them first.
    shown: Vec<&'a RecordedRun>,
}

impl<'a> Trend<'a> {
    fn of(scenario: &'a str, runs: &[&'a RecordedRun]) -> Trend<'a> {
        let count = |verdict| runs.iter().filter(|run| run.verdict.as_deref() == Some(verdict)).count();
        Trend {
            scenario,
            runs: runs.len(),
            violated: count("violated"),
            upheld: count("upheld"),
            inconclusive: count("inconclusive"),
            unexpected: runs.iter().filter(|run| run.as_expected == Some(false)).count(),
            shown: runs.iter().copied().take(SHOWN).rev().collect(),
        }
    }
}

/// The values of the page.
#[derive(Debug, Serialize)]
struct Page<'a> {
    rows: Vec<Row<'a>>,
    trends: Vec<Trend<'a>>,
}

/// A row of the table of all runs.
#[derive(Debug, Serialize)]
struct Row<'a> {
    run: &'a RecordedRun,
    /// False for a run of an older version.
    has_report: bool,
}

/// The trends of all scenarios, those with the newest runs first.
fn trends(runs: &[RecordedRun]) -> Vec<Trend<'_>> {
    let mut scenarios: Vec<(&str, Vec<&RecordedRun>)> = Vec::new();
    for run in runs {
        let Some(scenario) = run.scenario.as_deref() else { continue };
        match scenarios.iter_mut().find(|(known, _)| *known == scenario) {
            Some((_, of)) => of.push(run),
            None => scenarios.push((scenario, vec![run])),
        }
    }
    scenarios.iter().map(|(scenario, runs)| Trend::of(scenario, runs)).collect()
}

/// Returns the page for runs, which are the newest first.
pub fn page(dir: &Path, runs: &[RecordedRun]) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // The name decides that values are escaped for HTML.
    environment.add_template("index.html", include_str!("index.html"))?;
    let has_report = |run: &RecordedRun| dir.join(&run.run).join("report.html").is_file();
    let rows = runs.iter().map(|run| Row { run, has_report: has_report(run) }).collect();
    environment.get_template("index.html")?.render(Serde(Page { rows, trends: trends(runs) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, scenario: &str, verdict: &str, as_expected: Option<bool>) -> RecordedRun {
        RecordedRun {
            run: name.to_owned(),
            started: None,
            backend: None,
            scenario: Some(scenario.to_owned()),
            nemesis: None,
            cluster: None,
            seed: None,
            windows: None,
            verdict: Some(verdict.to_owned()),
            as_expected,
        }
    }

    #[test]
    fn a_trend_counts_all_runs_of_its_scenario_and_shows_the_newest_in_their_order() {
        let mut runs: Vec<_> = (0..50).rev().map(|n| run(&format!("{n:02}"), "a", "violated", Some(true))).collect();
        runs.insert(3, run("46b", "b", "upheld", Some(false)));
        let trends = trends(&runs);
        assert_eq!((trends[0].scenario, trends[0].runs, trends[0].violated), ("a", 50, 50));
        assert_eq!((trends[1].scenario, trends[1].upheld, trends[1].unexpected), ("b", 1, 1));
        let shown: Vec<&str> = trends[0].shown.iter().map(|run| run.run.as_str()).collect();
        assert_eq!((shown.len(), shown[0], shown[39]), (SHOWN, "10", "49"));
    }

    #[test]
    fn a_name_cannot_become_markup() {
        let page = page(Path::new("/"), &[run("<script>x", "<i>\"", "violated", None)]).unwrap();
        assert!(!page.contains("<script>x") && !page.contains("<i>\""), "{page}");
    }
}
