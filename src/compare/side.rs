//! One side of a comparison: its runs, judged again, by scenario.

use std::path::{Path, PathBuf};

use anyhow::Context;
use history::Plan;

use super::{
    figures::Figures,
    scenario::{name, without_seed},
};
use crate::{
    exit::Unusable,
    judge::{Judged, judge},
    plan_file::PlanFile,
    run_dir::{Recorded, RunDir},
};

/// The depth to which run directories are searched: a suite has its runs one directory below.
const DEPTH: usize = 3;

/// The runs of one scenario.
#[derive(Debug)]
pub struct Scenario {
    /// The lock, the faults, the workload and the cluster, for people.
    pub name: String,
    /// The plan without its seed.
    pub plan: Plan,
    /// The figures of the runs.
    pub runs: Vec<Figures>,
}

/// All runs of one side.
#[derive(Debug, Default)]
pub struct Side {
    /// The scenarios, by name.
    pub scenarios: Vec<Scenario>,
    /// Runs that could not be judged, or not to their end, with the reasons.
    pub left_out: Vec<String>,
}

impl Side {
    /// Judges the run, or all runs below the directory.
    ///
    /// # Errors
    /// The path is no run and has none below, or it is one run that cannot be judged.
    pub fn read(path: &Path) -> anyhow::Result<Side> {
        let is_run = path.is_file() || RunDir::at(path).history().exists();
        let mut side = Side::default();
        if is_run || !path.exists() {
            let history = Recorded::find(path)?.history;
            let run = judge(&history)?;
            side.left_out.extend(unfinished(&history, &run).map(|why| format!("the numbers of {why}")));
            side.add(&history, &run);
            return Ok(side);
        }
        let mut histories = Vec::new();
        search(path, DEPTH, &mut histories)?;
        if histories.is_empty() {
            let problem = "no run in it; expected a run directory, a history, or a directory with runs";
            return Err(Unusable(format!("{}: {problem}", path.display())).into());
        }
        for history in histories {
            match judge(&history) {
                Ok(run) => match unfinished(&history, &run) {
                    Some(why) => side.left_out.push(why),
                    None => side.add(&history, &run),
                },
                Err(e) => side.left_out.push(format!("{e:#}")),
            }
        }
        side.scenarios.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(side)
    }

    fn add(&mut self, history: &Path, run: &Judged) {
        // Only the plan beside the history names a planted bug.
        let beside = PlanFile::recorded(&history.with_file_name("plan.toml")).ok();
        let beside = beside.filter(|file| file.plan == run.plan);
        let named = beside.map_or_else(|| run.plan.clone(), |file| file.named_plan());
        let (plan, figures) = (without_seed(&named), Figures::of(run));
        let known = self.scenarios.iter().position(|known| known.plan == plan);
        let place = known.unwrap_or_else(|| {
            self.scenarios.push(Scenario { name: name(&named), plan, runs: Vec::new() });
            self.scenarios.len() - 1
        });
        let runs = &mut self.scenarios[place].runs;
        // A simulated run repeats itself exactly, so a second run of a plan is no further evidence.
        if figures.simulated.is_some() && runs.iter().any(|known| known.simulated == figures.simulated) {
            let (history, seed) = (history.display(), run.plan.seed);
            self.left_out.push(format!("{history}: a simulated run of seed {seed} again"));
        } else {
            runs.push(figures);
        }
    }
}

/// Names a run that was not judged to its end, and the first reason. A part of a run is not compared with whole runs.
fn unfinished(history: &Path, run: &Judged) -> Option<String> {
    run.verdicts.reasons.first().map(|reason| format!("{}: {reason}", history.display()))
}

/// Finds the histories below a directory, in the order of their paths.
fn search(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let doing = || format!("listing {}", dir.display());
    let entries = std::fs::read_dir(dir).with_context(doing)?.collect::<Result<Vec<_>, _>>().with_context(doing)?;
    // `latest` is a link to a run that is found under its own name.
    let mut dirs: Vec<PathBuf> =
        entries.iter().map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect();
    dirs.sort();
    for dir in dirs {
        let history = RunDir::at(&dir).history();
        if history.exists() {
            found.push(history);
        } else if depth > 1 {
            search(&dir, depth - 1, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_run_is_found_once_and_down_to_the_third_directory() {
        let dir = tempfile::tempdir().unwrap();
        let make = |run: &str| {
            let history = dir.path().join(run).join("history.jsonl");
            fs::create_dir_all(history.parent().unwrap()).unwrap();
            fs::write(&history, "").unwrap();
            history
        };
        let [third, first, second] = ["suite/row/run", "a", "b/run"].map(make);
        for run in ["a/part-of-a-run", "suite/row/deep/run"] {
            make(run);
        }
        std::os::unix::fs::symlink("a", dir.path().join("latest")).unwrap();
        let mut found = Vec::new();
        search(dir.path(), DEPTH, &mut found).unwrap();
        assert_eq!(found, [first, second, third]);
    }
}
