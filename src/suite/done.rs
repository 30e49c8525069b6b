//! What is done of a suite: one line of JSON a run, so that a suite can go on where it was cut off.

use std::{
    fs::{File, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use history::ClusterKind;
use serde::{Deserialize, Serialize};

use super::file::Case;
use crate::exit::Unusable;

/// How a run of a case came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Its witness was seen, and everything came out as the row says.
    AsExpected,
    /// Its witness was seen, and something came out otherwise.
    NotAsExpected,
    /// The run says nothing: its witness was not seen, or a property is inconclusive.
    Inconclusive,
}

/// One run of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// Which: `K1`, `K5 twin`.
    pub case: String,
    /// The how many-th of its runs, from 0.
    pub n: u32,
    /// Its seed.
    pub seed: u64,
    /// Of what was tried and expected; another plan or another expectation has another one.
    pub fingerprint: String,
    /// How it came out.
    pub outcome: Outcome,
    /// Witnesses that were not seen.
    pub missing: Vec<String>,
    /// What did not come out as expected.
    pub misses: Vec<String>,
    /// What did come out, in short.
    pub seen: String,
    /// Versions of the servers.
    pub servers: String,
    /// Its run directory; empty, if nothing was written.
    pub run: String,
    /// Seconds.
    pub took_s: f64,
}

/// A name for what a case tries and expects. Another version of the standard library may make another one of it: then it is run again.
pub fn fingerprint(case: &Case) -> anyhow::Result<String> {
    let mut hash = DefaultHasher::new();
    (case.file.to_toml()?, format!("{:?}{:?}{:?}", case.expectation, case.witnesses, case.causes)).hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
}

/// All runs so far.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    file: File,
    done: Vec<Done>,
}

impl State {
    /// The state of a suite in `runs`: a new one, or what an earlier run of it has left.
    ///
    /// # Errors
    /// The file cannot be read or written; a line of it cannot be understood, unless it is the last one, which may be cut off.
    pub fn open(runs: &Path, suite: &Path, cluster: ClusterKind, resume: bool) -> anyhow::Result<State> {
        let name = suite.file_stem().unwrap_or_default().to_string_lossy();
        let path = runs.join(format!("suite-{name}-{}.jsonl", cluster.name()));
        std::fs::create_dir_all(runs).with_context(|| format!("making {}", runs.display()))?;
        let text = match resume {
            true => std::fs::read_to_string(&path)
                .map_err(|e| Unusable(format!("--resume: {}: {e}; run the suite without it first", path.display())))?,
            false => String::new(),
        };
        let done = read(&text, &path)?;
        // What is kept is written anew: a line that was cut off must not have another one after it.
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&path)?;
        for done in &done {
            write(&mut file, done)?;
        }
        Ok(State { path, file, done })
    }

    /// Whether this run of a case is done, of this plan and expectation.
    pub fn has(&self, case: &str, n: u32, fingerprint: &str) -> bool {
        self.done.iter().any(|d| d.case == case && d.n == n && d.fingerprint == fingerprint)
    }

    /// Adds a run.
    pub fn add(&mut self, done: Done) -> anyhow::Result<()> {
        write(&mut self.file, &done).with_context(|| format!("writing {}", self.path.display()))?;
        self.done.push(done);
        Ok(())
    }

    /// The first `times` runs of a case as it is now.
    pub fn runs(&self, case: &Case, times: u32) -> Vec<&Done> {
        let now = fingerprint(case).unwrap_or_default();
        let is_it = |d: &&Done| d.case == case.name && d.n < times && d.fingerprint == now;
        self.done.iter().filter(is_it).collect()
    }

    /// The first `times` runs of all of them.
    pub fn of(&self, cases: &[Case], times: u32) -> Vec<&Done> {
        cases.iter().flat_map(|case| self.runs(case, times)).collect()
    }
}

fn read(text: &str, path: &Path) -> anyhow::Result<Vec<Done>> {
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

fn write(file: &mut File, done: &Done) -> anyhow::Result<()> {
    file.write_all((serde_json::to_string(done)? + "\n").as_bytes())?;
    file.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> String {
        let done = Done {
            case: "K1".into(),
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
    fn a_last_line_that_was_cut_off_is_left_out_and_any_other_is_refused() {
        let path = Path::new("s.jsonl");
        let whole = line();
        let cut = &whole[..whole.len() / 2];
        assert_eq!(read(&format!("{whole}{cut}"), path).unwrap().len(), 1);
        let error = read(&format!("{cut}\n{whole}"), path).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("--resume"), "{error}");
    }
}
