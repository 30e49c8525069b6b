//! The record of a suite: a line of JSON for the rows and one for each run, so that an interrupted suite can continue.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde::Serialize;

use super::results::{CaseRun, Head, Outcome, Results, RowFacts};
use crate::exit::Unusable;

/// The recorded runs of a suite, or of a shard.
#[derive(Debug)]
pub struct SuiteRecord {
    path: PathBuf,
    file: File,
    results: Results,
    older: Vec<CaseRun>,
}

impl SuiteRecord {
    /// Opens the record of a suite in `runs`: an empty record, or with `resume` the record of the interrupted suite, if
    /// there is one. A record that is not continued is kept beside the new one: without `resume`, or of another build,
    /// whose runs are [`SuiteRecord::older`].
    ///
    /// # Errors
    /// The file cannot be read or written, or a line cannot be parsed. The last line may be incomplete.
    pub fn open(runs: &Path, head: Head, resume: bool) -> anyhow::Result<SuiteRecord> {
        let path = runs.join(head.file_name());
        let kept = path.with_extension("jsonl.older");
        let keep = || std::fs::copy(&path, &kept).with_context(|| format!("writing {}", kept.display()));
        let recorded = if resume { recorded(&path)? } else { None };
        if !resume && path.exists() {
            keep()?;
        }
        let (mut done, mut older) = (Vec::new(), Vec::new());
        if let Some(Results { head: of, mut runs }) = recorded {
            runs.retain(|run| run.outcome != Outcome::Infrastructure);
            if of.build == head.build {
                done = runs;
            } else {
                keep()?;
                older = runs;
            }
        }
        let results = Results { head, runs: done };
        // The kept lines are written again: nothing may follow an incomplete line.
        let mut text = line(&results.head)?;
        for run in &results.runs {
            text += &line(run)?;
        }
        let writing = || format!("writing {}", path.display());
        // All at once, so that an interruption here loses no run.
        let beside = path.with_extension("jsonl.new");
        std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &path)).with_context(writing)?;
        let file = OpenOptions::new().append(true).open(&path).with_context(writing)?;
        Ok(SuiteRecord { path, file, results, older })
    }

    /// Returns whether the record has this run of a row, with the row's present plan and expectation.
    pub fn has(&self, row: &RowFacts, n: u32) -> bool {
        self.results.of(row).iter().any(|run| run.n == n)
    }

    /// The runs that another build of the harness made. They are not in the record, because their verdicts may be
    /// others now.
    pub fn older(&mut self) -> Vec<CaseRun> {
        std::mem::take(&mut self.older)
    }

    /// Adds a run to the record.
    pub fn add(&mut self, run: CaseRun) -> anyhow::Result<()> {
        let written = self.file.write_all(line(&run)?.as_bytes()).and_then(|()| self.file.flush());
        written.with_context(|| format!("writing {}", self.path.display()))?;
        self.results.runs.push(run);
        Ok(())
    }

    /// The recorded results.
    pub fn results(&self) -> &Results {
        &self.results
    }
}

/// Reads the runs of an interrupted suite. None if there are none.
fn recorded(path: &Path) -> Result<Option<Results>, Unusable> {
    let unusable = |problem: String| Unusable(format!("--resume: {problem}"));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // A job that a cluster starts again cannot know whether it was interrupted before its first run.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(format!("{}: {error}", path.display()))),
    };
    let anew = "run the suite without --resume to begin anew";
    Results::parse(&text, path).map(Some).map_err(|e| unusable(format!("{e}; {anew}")))
}

fn line(of: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(of).context("writing results as JSON")? + "\n")
}

/// Locks the directory of the runs, so that no second suite writes into the records of the first. The system ends the
/// lock with the process, however the process ends. The file contains the number of the process.
///
/// # Errors
/// Another suite runs in `runs`, or the file cannot be written.
pub fn lock(runs: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(runs).with_context(|| format!("making {}", runs.display()))?;
    let path = runs.join("suite.lock");
    let doing = || format!("locking {}", path.display());
    let mut file =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).with_context(doing)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            file.read_to_string(&mut process).with_context(doing)?;
            bail!(
                "another `harness suite` (process {}) runs in this directory and holds {}: wait for its end, or give \
                 this suite a directory of its own (--runs)",
                process.trim(),
                path.display()
            );
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(doing),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).with_context(doing)?;
    Ok(file)
}
