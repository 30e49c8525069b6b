//! The directory of one run: `runs/README.md` explains its files.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::exit::Unusable;

/// The directory of one run.
#[derive(Debug, Clone)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Makes the directory `<runs>/<id>` and points `<runs>/latest` to it.
    pub fn create(runs: &Path, id: &str) -> anyhow::Result<RunDir> {
        let dir = runs.join(id);
        // The directory must be new, so that a run never writes into the directory of another run.
        std::fs::create_dir_all(runs)
            .and_then(|()| std::fs::create_dir(&dir))
            .and_then(|()| std::fs::create_dir(dir.join("logs")))
            .with_context(|| format!("making the run directory {}", dir.display()))?;
        // The link is made under another name and renamed, so that `latest` never is missing for a run that starts at
        // the same time.
        let beside = runs.join(format!(".latest-{id}"));
        let linked =
            std::os::unix::fs::symlink(id, &beside).and_then(|()| std::fs::rename(&beside, runs.join("latest")));
        if linked.is_err() {
            // The error says what is wrong. Nothing has run, so nothing is left.
            let _ = std::fs::remove_file(&beside);
            let _ = std::fs::remove_dir_all(&dir);
        }
        linked.with_context(|| format!("pointing {} to the run", runs.join("latest").display()))?;
        Ok(RunDir(dir))
    }

    /// The directory of an earlier run.
    pub fn at(dir: &Path) -> RunDir {
        RunDir(dir.to_owned())
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the plan.
    pub fn plan(&self) -> PathBuf {
        self.0.join("plan.toml")
    }

    /// The path of the facts about how the run was made.
    pub fn made_by(&self) -> PathBuf {
        self.0.join("run.json")
    }

    /// The path of the history; of a compressed one, if there is no other. The reader refuses gzip by name.
    pub fn history(&self) -> PathBuf {
        let plain = self.0.join("history.jsonl");
        let packed = ["history.jsonl.zst", "history.jsonl.gz"].map(|name| self.0.join(name));
        let first = packed.into_iter().find(|path| !plain.exists() && path.exists());
        first.unwrap_or(plain)
    }

    /// The path of the verdicts.
    pub fn verdict(&self) -> PathBuf {
        self.0.join("verdict.json")
    }

    /// The path of the printed report.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.md")
    }

    /// The path of the report as a page.
    pub fn page(&self) -> PathBuf {
        self.0.join("report.html")
    }

    /// The path of the test cases of the run.
    pub fn junit(&self) -> PathBuf {
        self.0.join("junit.xml")
    }

    /// The directory with copies of the files of the client program.
    pub fn client(&self) -> PathBuf {
        self.0.join("client")
    }

    /// The path of a server's log, or of the standard error of one of the run's own processes.
    pub fn log(&self, node: &str) -> PathBuf {
        self.0.join("logs").join(format!("{node}.log"))
    }

    /// Writes a file of the run, all at once: another command may read the file meanwhile, and neither an interruption
    /// nor a full disk takes the former one. A SIGKILL can leave a hidden file beside it.
    pub fn write(&self, path: &Path, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = path.with_file_name(format!(".{name}-{}", std::process::id()));
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
        if written.is_err() {
            // The error says what is wrong. A file that was not made cannot be removed.
            let _ = std::fs::remove_file(&beside);
        }
        written.with_context(|| format!("writing {}", path.display()))
    }
}

/// A recorded run, as a user names it: its directory, or its history alone.
pub struct Recorded {
    /// The directory; none if the history was named.
    pub dir: Option<RunDir>,
    /// The path of the history, which exists.
    pub history: PathBuf,
}

impl Recorded {
    /// Finds the history of `run`.
    ///
    /// # Errors
    /// There is no such path, or the directory contains no history.
    pub fn find(run: &Path) -> Result<Recorded, Unusable> {
        let unusable = |problem: &str| Unusable(format!("{}: {problem}", run.display()));
        if !run.exists() {
            return Err(unusable("no such run, and no such file; `harness list --runs` shows the runs"));
        }
        let dir = run.is_dir().then(|| RunDir::at(run));
        let history = dir.as_ref().map_or_else(|| run.to_owned(), RunDir::history);
        if !history.exists() {
            let is_run = dir.is_some_and(|dir| dir.path().join("plan.toml").exists());
            return Err(unusable(if is_run {
                "no history: the run ended before its cluster was up"
            } else {
                "no history.jsonl and no history.jsonl.zst in it; expected a run directory"
            }));
        }
        Ok(Recorded { dir, history })
    }
}

/// Checks that files can be written to `dir`, which is made if it does not exist: before hours of work for them.
///
/// # Errors
/// The directory cannot be made, or a file in it cannot be written.
pub fn can_be_written(dir: &Path) -> anyhow::Result<()> {
    let probe = dir.join(format!(".probe-{}", std::process::id()));
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&probe, "probe"))
        .and_then(|()| std::fs::remove_file(&probe))
        .with_context(|| format!("--save: writing to the directory {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_history_counts_only_if_there_is_no_other() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("history.jsonl.zst"), "").unwrap();
        let history = || Recorded::find(dir.path()).unwrap().history;
        assert_eq!(history(), dir.path().join("history.jsonl.zst"));
        std::fs::write(dir.path().join("history.jsonl"), "").unwrap();
        assert_eq!(history(), dir.path().join("history.jsonl"));
    }

    #[test]
    fn a_run_that_cannot_be_the_latest_leaves_nothing() {
        let runs = tempfile::tempdir().unwrap();
        // A copy of a directory of runs may have a directory in the place of the link.
        std::fs::create_dir(runs.path().join("latest")).unwrap();
        let error = RunDir::create(runs.path(), "run").unwrap_err().to_string();
        assert!(error.starts_with("pointing ") && error.ends_with("latest to the run"), "{error}");
        let names: Vec<_> = std::fs::read_dir(runs.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["latest"]);
    }

    #[test]
    fn a_file_is_replaced_all_at_once_and_a_failure_leaves_the_former_one() {
        use std::io::Read;
        let runs = tempfile::tempdir().unwrap();
        let dir = RunDir::create(runs.path(), "run").unwrap();
        dir.write(&dir.verdict(), "former").unwrap();
        let mut reader = std::fs::File::open(dir.verdict()).unwrap();
        dir.write(&dir.verdict(), "new").unwrap();
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "former", "who reads it sees no half file");
        assert_eq!(std::fs::read_to_string(dir.verdict()).unwrap(), "new");
        // A directory cannot be replaced by a file.
        std::fs::create_dir(dir.page()).unwrap();
        dir.write(&dir.page(), "x").unwrap_err();
        let is_hidden = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
        assert!(!std::fs::read_dir(dir.path()).unwrap().flatten().any(is_hidden), "nothing is left beside");
    }
}
