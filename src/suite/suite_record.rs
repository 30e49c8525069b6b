//! The record of a suite: one line of JSON per run, so that an interrupted suite can continue.

use std::{
    fs::{File, OpenOptions, TryLockError},
    hash::{DefaultHasher, Hash, Hasher},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use history::ClusterKind;
use serde::{Deserialize, Serialize};

use super::file::Case;
use crate::exit::Unusable;

/// The outcome of one run of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The evidence is there, and all verdicts are as the row expects.
    AsExpected,
    /// The evidence is there, and a verdict is not as expected.
    NotAsExpected,
    /// The evidence is missing, or a property is inconclusive: the run says nothing about the claim.
    Inconclusive,
}

/// One run of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseRun {
    /// The name of the case: `K1`, `K5 twin`.
    pub case: String,
    /// The build of the harness that made the run.
    pub build: String,
    /// The number of the run among the runs of its case, from 0.
    pub n: u32,
    /// The seed.
    pub seed: u64,
    /// The fingerprint of plan and expectation: a changed plan or expectation has another fingerprint.
    pub fingerprint: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Evidence that is missing.
    pub missing: Vec<String>,
    /// Expectations that are not met.
    pub misses: Vec<String>,
    /// The verdicts, in one line.
    pub seen: String,
    /// The versions of the servers.
    pub servers: String,
    /// The run directory; empty if nothing was written.
    pub run: String,
    /// The duration in seconds.
    pub took_s: f64,
}

/// Returns the fingerprint of a case. Another version of the standard library may give another fingerprint; then the
/// case runs again.
pub fn fingerprint(case: &Case) -> anyhow::Result<String> {
    let mut hash = DefaultHasher::new();
    (case.file.to_toml()?, format!("{:?}{:?}{:?}", case.expectation, case.witnesses, case.causes)).hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
}

/// Returns the fingerprint of this very binary. Another build may give other verdicts.
fn build() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("finding the harness's own binary")?;
    let binary = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut hash = DefaultHasher::new();
    binary.hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
}

/// All recorded runs of a suite.
#[derive(Debug)]
pub struct SuiteRecord {
    path: PathBuf,
    file: File,
    done: Vec<CaseRun>,
    build: String,
    /// Held as long as the suite runs.
    _lock: File,
}

impl SuiteRecord {
    /// Opens the record of a suite in `runs`: an empty record, or with `resume` the record of the interrupted suite.
    ///
    /// # Errors
    /// Another suite runs in `runs`, the file cannot be read or written, a line cannot be parsed, or another build of
    /// the harness made a run. The last line may be incomplete.
    pub fn open(runs: &Path, suite: &Path, cluster: ClusterKind, resume: bool) -> anyhow::Result<SuiteRecord> {
        let name = suite.file_stem().unwrap_or_default().to_string_lossy();
        let path = runs.join(format!("suite-{name}-{}.jsonl", cluster.name()));
        std::fs::create_dir_all(runs).with_context(|| format!("making {}", runs.display()))?;
        let lock = lock(&runs.join("suite.lock"))?;
        let text = match resume {
            true => std::fs::read_to_string(&path)
                .map_err(|e| Unusable(format!("--resume: {}: {e}; run the suite without it first", path.display())))?,
            false => String::new(),
        };
        let (done, build) = (read(&text, &path)?, build()?);
        if done.iter().any(|done| done.build != build) {
            let problem = "another build of the harness made these runs; run the suite without --resume to begin anew";
            return Err(Unusable(format!("--resume: {}: {problem}", path.display())).into());
        }
        // The kept lines are written again: nothing may follow an incomplete line.
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&path)?;
        for done in &done {
            write(&mut file, done)?;
        }
        Ok(SuiteRecord { path, file, done, build, _lock: lock })
    }

    /// Returns whether the record has this run of a case, with this fingerprint.
    pub fn has(&self, case: &str, n: u32, fingerprint: &str) -> bool {
        self.done.iter().any(|d| d.case == case && d.n == n && d.fingerprint == fingerprint)
    }

    /// Adds a run to the record.
    pub fn add(&mut self, mut done: CaseRun) -> anyhow::Result<()> {
        done.build.clone_from(&self.build);
        write(&mut self.file, &done).with_context(|| format!("writing {}", self.path.display()))?;
        self.done.push(done);
        Ok(())
    }

    /// Returns the first `times` runs of a case with its present fingerprint.
    pub fn runs(&self, case: &Case, times: u32) -> Vec<&CaseRun> {
        let now = fingerprint(case).unwrap_or_default();
        let is_it = |d: &&CaseRun| d.case == case.name && d.n < times && d.fingerprint == now;
        self.done.iter().filter(is_it).collect()
    }

    /// Returns the first `times` runs of all cases.
    pub fn of(&self, cases: &[Case], times: u32) -> Vec<&CaseRun> {
        cases.iter().flat_map(|case| self.runs(case, times)).collect()
    }
}

/// Locks the file, so that no second suite writes into the record of the first. The system ends the lock with the
/// process, however the process ends. The file contains the number of the process.
fn lock(path: &Path) -> anyhow::Result<File> {
    let doing = || format!("locking {}", path.display());
    let mut file =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).with_context(doing)?;
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

fn read(text: &str, path: &Path) -> anyhow::Result<Vec<CaseRun>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut done = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(one) => done.push(one),
            Err(_) if index + 1 == lines.len() && !text.ends_with('\n') => {}
            Err(e) => {
                let (path, number) = (path.display(), index + 1);
                let problem = format!("{path}, line {number}: {e}; run the suite without --resume to begin anew");
                return Err(Unusable(problem).into());
            }
        }
    }
    Ok(done)
}

fn write(file: &mut File, done: &CaseRun) -> anyhow::Result<()> {
    file.write_all((serde_json::to_string(done)? + "\n").as_bytes())?;
    file.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> String {
        let done = CaseRun {
            case: "K1".into(),
            build: "b".into(),
            n: 0,
            seed: 1,
            fingerprint: "f".into(),
            outcome: Outcome::AsExpected,
            missing: Vec::new(),
            misses: Vec::new(),
            seen: String::new(),
            servers: String::new(),
            run: String::new(),
            took_s: 1.0,
        };
        serde_json::to_string(&done).unwrap() + "\n"
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_and_any_other_refused() {
        let path = Path::new("s.jsonl");
        let whole = line();
        let cut = &whole[..whole.len() / 2];
        assert_eq!(read(&format!("{whole}{cut}"), path).unwrap().len(), 1);
        let error = read(&format!("{cut}\n{whole}"), path).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("--resume"), "{error}");
    }
}
