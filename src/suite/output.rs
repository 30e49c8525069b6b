//! The output of a suite: the table or JSON, and the files for other programs.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;

use super::{
    counts::Counts,
    github,
    results::{CaseRun, Results},
    table::table,
};
use crate::{
    cli::Format,
    exit::Exit,
    report::{TestedRun, junit, print},
};

/// The places to which the results go.
pub struct Output {
    format: Format,
    junit: Option<PathBuf>,
}

impl Output {
    /// Checks that the file can be written: before hours of work for it. Removes the file of an earlier call: a call
    /// that ends early must not leave older results.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(format: Format, junit: Option<PathBuf>) -> anyhow::Result<Output> {
        // The target of a link, so that the link stays.
        let target = |path: PathBuf| path.canonicalize().unwrap_or(path);
        let junit = junit.map(target);
        if let Some(path) = &junit {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            dir.map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| clear(path))
                .with_context(|| format!("--junit: writing {}", path.display()))?;
        }
        Ok(Output { format, junit })
    }

    /// Prints and writes the results. Returns the exit code.
    pub fn write(&self, suites: &[&Results]) -> anyhow::Result<Exit> {
        // Printed first: a file that cannot be written must not hide the table.
        match self.format {
            Format::Text => print(&table(suites))?,
            Format::Json => {
                let runs: Vec<&CaseRun> = suites.iter().flat_map(|results| results.all()).collect();
                print(&(serde_json::to_string_pretty(&runs)? + "\n"))?;
            }
        }
        if let Some(path) = &self.junit {
            put(path, xml(suites)?).with_context(|| format!("--junit: writing {}", path.display()))?;
        }
        if let Some(summary) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) {
            github::tell(summary.as_ref(), suites)?;
        }
        Ok(Counts::of(suites).exit())
    }
}

/// Opens a file for writing, and removes it.
fn clear(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    // A device or a pipe stays.
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    // A mounted file cannot be removed.
    fs::remove_file(path).or_else(|_| file.set_len(0))
}

/// Writes a file that [`clear`] has removed. The file is renamed when it is whole.
fn put(path: &Path, text: String) -> io::Result<()> {
    if path.exists() {
        return fs::write(path, text);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}-{}", std::process::id()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The error says what is wrong; a file that was never made cannot be removed.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn xml<'a>(suites: &[&'a Results]) -> anyhow::Result<String> {
    let of_suite = |results: &&'a Results| {
        let head = &results.head;
        let is_repeated = head.repeat > 1;
        let tested = |run: &'a CaseRun| {
            let CaseRun { case, n, took_s, tests, .. } = run;
            let took = Duration::try_from_secs_f64(*took_s).unwrap_or_default();
            let number = is_repeated.then_some(n + 1);
            TestedRun { class: format!("{}.{case}", head.suite), number, took, cases: tests }
        };
        let name = format!("{} ({})", head.suite, head.cluster.name());
        (name, results.all().into_iter().map(tested).collect())
    };
    junit(&suites.iter().map(of_suite).collect::<Vec<_>>())
}
