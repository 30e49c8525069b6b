//! One side of a comparison: its runs, judged again, by scenario.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::figures::Figures;
use crate::{
    exit::Unusable,
    judge::judge,
    report::scenario,
    run_dir::{Recorded, RunDir},
};

/// The depth to which run directories are searched: a suite has its runs one directory below.
const DEPTH: usize = 3;

/// The runs of one scenario.
#[derive(Debug)]
pub struct Scenario {
    /// The lock, the faults, the workload and the cluster.
    pub name: String,
    /// The figures of the runs.
    pub runs: Vec<Figures>,
}

/// All runs of one side.
#[derive(Debug, Default)]
pub struct Side {
    /// The scenarios, by name.
    pub scenarios: Vec<Scenario>,
    /// Runs that could not be judged, with the reasons.
    pub left_out: Vec<String>,
}

impl Side {
    /// Judges the run, or all runs below the directory.
    ///
    /// # Errors
    /// The path is no run and has none below, or it is one run that cannot be judged.
    pub fn read(path: &Path) -> anyhow::Result<Side> {
        let is_run = path.is_file() || RunDir::at(path).history().exists();
        if is_run || !path.exists() {
            let run = judge(&Recorded::find(path)?.history)?;
            let name = scenario(&run.plan);
            return Ok(Side {
                scenarios: vec![Scenario { name, runs: vec![Figures::of(&run)] }],
                left_out: Vec::new(),
            });
        }
        let mut histories = Vec::new();
        search(path, DEPTH, &mut histories)?;
        if histories.is_empty() {
            let problem = "no run in it; expected a run directory, a history, or a directory with runs";
            return Err(Unusable(format!("{}: {problem}", path.display())).into());
        }
        let mut by_name: BTreeMap<String, Vec<Figures>> = BTreeMap::new();
        let mut left_out = Vec::new();
        for history in histories {
            match judge(&history) {
                Ok(run) => {
                    let (runs, run) = (by_name.entry(scenario(&run.plan)).or_default(), Figures::of(&run));
                    // A simulated run repeats itself exactly, so a second run of a seed is no further evidence.
                    match run.simulated.filter(|_| runs.iter().any(|known| known.simulated == run.simulated)) {
                        Some(seed) => {
                            left_out.push(format!("{}: a simulated run of seed {seed} again", history.display()));
                        }
                        None => runs.push(run),
                    }
                }
                Err(e) => left_out.push(format!("{e:#}")),
            }
        }
        let scenarios = by_name.into_iter().map(|(name, runs)| Scenario { name, runs }).collect();
        Ok(Side { scenarios, left_out })
    }
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
