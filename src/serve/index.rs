//! The page with all runs.

use std::path::Path;

use history::Plan;
use minijinja::{Environment, UndefinedBehavior, value::Serde};
use serde::Serialize;

use crate::{compare::scenario::tell_apart, recorded_run::RecordedRun};

/// The runs of a scenario that its trend shows: the newest.
const SHOWN: usize = 40;

/// The files of a run that its row links to, each with the text of the link.
const LINKS: [(&str, &str); 6] = [
    ("report", "report.html"),
    ("text", "report.md"),
    ("verdict", "verdict.json"),
    ("plan", "plan.toml"),
    ("history", "history.jsonl"),
    ("compressed history", "history.jsonl.zst"),
];

/// The runs of one scenario.
#[derive(Debug, Serialize)]
struct Trend<'a> {
    scenario: String,
    runs: usize,
    violated: usize,
    upheld: usize,
    inconclusive: usize,
    unexpected: usize,
    /// The newest runs, the oldest of them first.
    shown: Vec<&'a RecordedRun>,
}

impl<'a> Trend<'a> {
    fn of(scenario: String, runs: &[&'a RecordedRun]) -> Trend<'a> {
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
    /// The links to the files that the run has: a run that was not judged has no verdict.
    links: Vec<(&'static str, &'static str)>,
}

/// The trends of all scenarios, those with the newest runs first.
fn trends(runs: &[RecordedRun]) -> Vec<Trend<'_>> {
    let mut scenarios: Vec<(&Plan, String, Vec<&RecordedRun>)> = Vec::new();
    for run in runs {
        let Some((plan, name)) = run.plan.as_ref().zip(run.scenario.as_ref()) else { continue };
        match scenarios.iter_mut().find(|(known, ..)| *known == plan) {
            Some((.., of)) => of.push(run),
            None => scenarios.push((plan, name.clone(), vec![run])),
        }
    }
    tell_apart(scenarios.iter_mut().map(|(plan, name, _)| (name, *plan)));
    scenarios.into_iter().map(|(_, name, runs)| Trend::of(name, &runs)).collect()
}

/// Returns the page for runs, which are the newest first.
pub fn page(dir: &Path, runs: &[RecordedRun]) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // The name decides that values are escaped for HTML.
    environment.add_template("index.html", include_str!("index.html"))?;
    let links = |run: &RecordedRun| -> Vec<_> {
        let of = dir.join(&run.run);
        LINKS.into_iter().filter(|(_, file)| of.join(file).is_file()).collect()
    };
    let rows = runs.iter().map(|run| Row { run, links: links(run) }).collect();
    environment.get_template("index.html")?.render(Serde(Page { rows, trends: trends(runs) }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{drawn::tests::planned, plan_file::PlanFile};

    fn run(name: &str, scenario: &str, verdict: &str, as_expected: Option<bool>) -> RecordedRun {
        RecordedRun {
            run: name.to_owned(),
            started: None,
            backend: None,
            scenario: Some(scenario.to_owned()),
            plan: Some(Plan { backend: scenario.to_owned(), ..planned("none", 0) }),
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
        assert_eq!((&*trends[0].scenario, trends[0].runs, trends[0].violated), ("a", 50, 50));
        assert_eq!((&*trends[1].scenario, trends[1].upheld, trends[1].unexpected), ("b", 1, 1));
        let shown: Vec<&str> = trends[0].shown.iter().map(|run| run.run.as_str()).collect();
        assert_eq!((shown.len(), shown[0], shown[39]), (SHOWN, "10", "49"));
    }

    /// Reads a run of this name, backend and plan, after its directory was made in `dir`.
    fn recorded(dir: &Path, name: &str, backend: &str, plan: Plan) -> RecordedRun {
        let file = PlanFile::new(name.to_owned(), backend.to_owned(), None, plan);
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("plan.toml"), file.to_toml().unwrap()).unwrap();
        RecordedRun::read(dir, name)
    }

    #[test]
    fn a_planted_bug_has_a_trend_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name, backend| recorded(dir.path(), name, backend, planned("pause", 1));
        let runs = [read("2", "buggy:forgets-nx@redlock"), read("1", "redlock")];
        let trends = trends(&runs);
        assert_eq!(trends.iter().map(|trend| trend.runs).collect::<Vec<_>>(), [1, 1]);
        assert!(trends[0].scenario.contains("buggy:forgets-nx@redlock"), "{}", trends[0].scenario);
    }

    #[test]
    fn a_trend_has_the_runs_of_one_plan_with_all_their_seeds() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str, words: &str, seed, keys| {
            let mut plan = planned(words, seed);
            plan.workload.keys = keys;
            recorded(dir.path(), name, "redlock", plan)
        };
        let runs = [
            read("4", "amnesia", 2, 1),
            read("3", "amnesia", 1, 1),
            read("2", "pause", 2, 3),
            read("1", "pause", 1, 1),
        ];
        let trends = trends(&runs);
        assert_eq!(trends.iter().map(|trend| trend.runs).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(trends[0].scenario.contains("amnesia at random times"), "{}", trends[0].scenario);
        assert!(trends[1].scenario.ends_with(" · workload.keys 3"), "{}", trends[1].scenario);
        assert!(trends[2].scenario.ends_with(" · workload.keys 1"), "{}", trends[2].scenario);
    }

    #[test]
    fn a_run_has_links_to_the_files_that_it_has() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("1")).unwrap();
        for file in ["plan.toml", "history.jsonl.zst"] {
            fs::write(dir.path().join("1").join(file), "").unwrap();
        }
        let page = page(dir.path(), &[run("1", "a", "violated", None)]).unwrap();
        let links = page.split("href=\"/runs/1/").skip(1).filter_map(|rest| rest.split('"').next());
        let links: Vec<&str> = links.collect();
        assert_eq!(links, ["plan.toml", "history.jsonl.zst"], "{page}");
    }

    #[test]
    fn a_name_cannot_become_markup() {
        let page = page(Path::new("/"), &[run("<script>x", "<i>\"", "violated", None)]).unwrap();
        assert!(!page.contains("<script>x") && !page.contains("<i>\""), "{page}");
    }

    #[test]
    fn a_planted_bug_of_the_resource_has_a_trend_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str, bug: Option<&str>| {
            let (bug, plan) = (bug.map(str::to_owned), planned("pause", 1));
            let file = PlanFile::new(name.to_owned(), "redlock".to_owned(), bug, plan);
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("plan.toml"), file.to_toml().unwrap()).unwrap();
            RecordedRun::read(dir.path(), name)
        };
        let runs = [read("3", Some("admits-stale")), read("2", Some("compares-wrongly")), read("1", None)];
        let trends = trends(&runs);
        assert_eq!(trends.iter().map(|trend| trend.runs).collect::<Vec<_>>(), [1, 1, 1]);
        assert!(trends[0].scenario.contains("buggy:admits-stale"), "{}", trends[0].scenario);
    }
}
