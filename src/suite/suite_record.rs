//! The record of a suite: a line of JSON for the rows and one for each run, so that an interrupted suite can continue.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions, TryLockError},
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde::Serialize;

use super::results::{CaseRun, Head, Outcome, Results, RowFacts, recorded_text};
use crate::exit::Unusable;

/// The record that an earlier call has left, if there is one. It was read, and is not replaced yet.
#[derive(Debug)]
pub struct EarlierRecord {
    path: PathBuf,
    /// The present rows, and the runs that are continued.
    results: Results,
    older: Vec<CaseRun>,
    /// The runs that the harness could not make.
    failed: Vec<CaseRun>,
    /// True if the file has runs that are not continued.
    is_kept: bool,
}

impl EarlierRecord {
    /// Reads the record of a suite in `runs`, and writes nothing. Only with `resume` its runs are continued: those of
    /// the same build as they are, and those of another build if they are judged again.
    ///
    /// # Errors
    /// The file cannot be read, or a line cannot be parsed. The last line may be incomplete.
    pub fn read(runs: &Path, head: Head, resume: bool) -> anyhow::Result<EarlierRecord> {
        let path = runs.join(head.file_name());
        let (mut done, mut older, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_kept = !resume && has_lines_of_runs(&path)?;
        let recorded = if resume { recorded(&path)? } else { None };
        if let Some(Results { head: of, runs: all }) = recorded {
            let is_of_this_build = of.build == head.build;
            is_kept = !is_of_this_build && !all.is_empty();
            let mut runs: Vec<CaseRun>;
            (failed, runs) = all.into_iter().partition(|run| run.outcome == Outcome::Infrastructure);
            (if is_of_this_build { &mut done } else { &mut older }).append(&mut runs);
        }
        Ok(EarlierRecord { path, results: Results { head, runs: done }, older, failed, is_kept })
    }

    /// The runs that another build of the harness made. Their verdicts may be others now.
    pub fn older(&self) -> &[CaseRun] {
        &self.older
    }

    /// The present rows, and the runs that are continued as they are.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Replaces the record by a record of the runs that are continued. `again` are the runs of another build that were
    /// judged again. A record with runs that are not continued is kept beside the new one.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn replace(self, again: Vec<CaseRun>) -> anyhow::Result<SuiteRecord> {
        let EarlierRecord { path, mut results, failed, is_kept, .. } = self;
        results.runs.extend(again);
        // The kept lines are written again: nothing may follow an incomplete line. So are the runs that were not made,
        // with their errors. If such a run is made now, its line comes after that.
        let mut text = line(&results.head)?;
        for run in results.runs.iter().chain(&failed) {
            text += &line(run)?;
        }
        if is_kept {
            let kept = path.with_extension("jsonl.older");
            std::fs::copy(&path, &kept).with_context(|| format!("writing {}", kept.display()))?;
        }
        let writing = || format!("writing {}", path.display());
        // All at once, so that an interruption here loses no run.
        let beside = path.with_extension("jsonl.new");
        std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &path)).with_context(writing)?;
        let file = OpenOptions::new().append(true).open(&path).with_context(writing)?;
        Ok(SuiteRecord { path, file, results, failed })
    }
}

/// The recorded runs of a suite, or of a shard.
#[derive(Debug)]
pub struct SuiteRecord {
    path: PathBuf,
    file: File,
    results: Results,
    /// The runs that an earlier call could not make.
    failed: Vec<CaseRun>,
}

impl SuiteRecord {
    /// Returns the numbers of the runs of a row that the record has, with the row's present plan and expectation.
    pub fn numbers_of(&self, row: &RowFacts) -> BTreeSet<u32> {
        self.results.of(row).iter().map(|run| run.n).collect()
    }

    /// Returns the run with the failed tries of the earlier call before its own.
    pub fn with_earlier_tries(&self, mut run: CaseRun) -> CaseRun {
        let is_it = |of: &&CaseRun| (&of.case, of.n, &of.fingerprint) == (&run.case, run.n, &run.fingerprint);
        let earlier = self.failed.iter().find(is_it).map(|of| of.errors.clone()).unwrap_or_default();
        run.errors.splice(0..0, earlier);
        run
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
    let text = match recorded_text(path) {
        Ok(text) => text,
        // A job that a cluster starts again cannot know whether it was interrupted before its first run.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(format!("{}: {error}", path.display()))),
    };
    let anew = "run the suite without --resume to begin anew";
    Results::parse(&text, path).map(Some).map_err(|e| unusable(format!("{e}; {anew}")))
}

/// Returns whether a file has more than the line about the rows. It need not be a record of this version.
fn has_lines_of_runs(path: &Path) -> anyhow::Result<bool> {
    match std::fs::read(path) {
        Ok(text) => Ok(text.splitn(2, |byte| *byte == b'\n').nth(1).is_some_and(|rest| !rest.is_empty())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::suite::fixtures::{HEAD, RUN, of_rows, run};

    fn read(runs: &Path, build: &str, resume: bool) -> EarlierRecord {
        let head = Head { build: build.to_owned(), ..of_rows(&["K1"]).head };
        EarlierRecord::read(runs, head, resume).unwrap()
    }

    #[test]
    fn a_record_of_another_build_stays_until_its_runs_are_judged_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("suite-s-sim.jsonl");
        let text = format!("{HEAD}\n{RUN}\n");
        fs::write(&path, &text).unwrap();
        // The first call is interrupted before its runs are judged.
        for _ in 0..2 {
            let earlier = read(dir.path(), "another", true);
            assert_eq!((earlier.older().len(), earlier.results().runs.len()), (1, 0));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let record = read(dir.path(), "another", true).replace(Vec::new()).unwrap();
        assert!(record.results().runs.is_empty() && fs::read_to_string(&path).unwrap().lines().count() == 1);
        let kept = path.with_extension("jsonl.older");
        assert_eq!(fs::read_to_string(&kept).unwrap(), text);
        // A record without runs does not take the place of the kept one.
        for (build, resume) in [("another", false), ("third", true)] {
            read(dir.path(), build, resume).replace(Vec::new()).unwrap();
            assert_eq!(fs::read_to_string(&kept).unwrap(), text, "{build}");
        }
    }

    #[test]
    fn a_run_that_the_harness_could_not_make_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let of = |n: u32, outcome: &str| {
            let run = RUN.replace(r#""n":0,"#, &format!(r#""n":{n},"#)).replace("as-expected", outcome);
            format!("{run}\n")
        };
        let runs = [of(0, "as-expected"), of(1, "infrastructure"), of(2, "inconclusive"), of(3, "not-as-expected")];
        fs::write(dir.path().join("suite-s-sim.jsonl"), format!("{HEAD}\n{}", runs.concat())).unwrap();
        for build in ["b", "another"] {
            let earlier = read(dir.path(), build, true);
            let continued: Vec<u32> = earlier.older().iter().chain(&earlier.results().runs).map(|run| run.n).collect();
            assert_eq!(continued, [0, 2, 3], "{build}");
        }
    }

    #[test]
    fn a_record_whose_last_line_is_cut_inside_a_character_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let cut = &"{\"case\":\"K…".as_bytes()[..12];
        let record = [format!("{HEAD}\n{RUN}\n").as_bytes(), cut].concat();
        fs::write(dir.path().join("suite-s-sim.jsonl"), record).unwrap();
        assert_eq!(read(dir.path(), "another", true).older().len(), 1);
    }

    #[test]
    fn runs_that_are_judged_again_follow_the_new_head() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("suite-s-sim.jsonl"), format!("{HEAD}\n{RUN}\n")).unwrap();
        let earlier = read(dir.path(), "another", true);
        let again = earlier.older().to_vec();
        earlier.replace(again).unwrap();
        let earlier = read(dir.path(), "another", true);
        assert_eq!((earlier.older().len(), earlier.results().runs.len()), (0, 1));
    }

    #[test]
    fn the_failed_tries_of_an_earlier_call_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let failed = RUN.replace("as-expected", "infrastructure");
        let failed = failed.replace(r#""seen""#, r#""errors":["no engine"],"seen""#);
        fs::write(dir.path().join("suite-s-sim.jsonl"), format!("{HEAD}\n{failed}\n")).unwrap();
        let record = read(dir.path(), "b", true).replace(Vec::new()).unwrap();
        assert_eq!(record.with_earlier_tries(run("K1", 0)).errors, ["no engine"]);
        drop(record);
        // The call is interrupted before the run, and the next one makes it.
        let mut record = read(dir.path(), "b", true).replace(Vec::new()).unwrap();
        let made = record.with_earlier_tries(run("K1", 0));
        assert_eq!(made.errors, ["no engine"]);
        record.add(made).unwrap();
        let earlier = read(dir.path(), "b", true);
        assert_eq!(earlier.results().runs.iter().map(|run| run.errors.len()).collect::<Vec<_>>(), [1]);
        let record = earlier.replace(Vec::new()).unwrap();
        assert!(record.with_earlier_tries(run("K1", 1)).errors.is_empty());
    }
}
