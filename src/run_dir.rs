//! The directory of one run: `runs/README.md` explains its files.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Where a run's files are.
#[derive(Debug, Clone)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Makes `<runs>/<id>` and points `<runs>/latest` to it.
    pub fn create(runs: &Path, id: &str) -> anyhow::Result<RunDir> {
        let dir = runs.join(id);
        // The last step must make something new: a run never writes into the directory of another.
        std::fs::create_dir_all(runs)
            .and_then(|()| std::fs::create_dir(&dir))
            .and_then(|()| std::fs::create_dir(dir.join("logs")))
            .with_context(|| format!("making the run directory {}", dir.display()))?;
        // A link made beside and renamed over the old one: two runs that start together never find it missing.
        let beside = runs.join(format!(".latest-{id}"));
        std::os::unix::fs::symlink(id, &beside)
            .and_then(|()| std::fs::rename(&beside, runs.join("latest")))
            .with_context(|| format!("pointing {} to the run", runs.join("latest").display()))?;
        Ok(RunDir(dir))
    }

    /// The directory of a run that was recorded.
    pub fn at(dir: &Path) -> RunDir {
        RunDir(dir.to_owned())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The plan.
    pub fn plan(&self) -> PathBuf {
        self.0.join("plan.toml")
    }

    /// The history; compressed, if only that is there.
    pub fn history(&self) -> PathBuf {
        let plain = self.0.join("history.jsonl");
        let packed = self.0.join("history.jsonl.zst");
        if !plain.exists() && packed.exists() { packed } else { plain }
    }

    /// The verdicts.
    pub fn verdict(&self) -> PathBuf {
        self.0.join("verdict.json")
    }

    /// What was printed.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.md")
    }

    /// What a node logged, or one of our processes said on standard error.
    pub fn log(&self, node: &str) -> PathBuf {
        self.0.join("logs").join(format!("{node}.log"))
    }

    /// Writes one of these files.
    pub fn write(&self, path: &Path, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}
