//! The output of a suite: the table or JSON, and the files for other programs.

use std::{path::PathBuf, time::Duration};

use super::{
    counts::Counts,
    github,
    junit_file::JunitFile,
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
    junit: Option<JunitFile>,
}

impl Output {
    /// Looks at the file, and leaves it as it is.
    ///
    /// # Errors
    /// As [`JunitFile::at`].
    pub fn new(format: Format, junit: Option<PathBuf>) -> anyhow::Result<Output> {
        Ok(Output { format, junit: junit.map(JunitFile::at).transpose()? })
    }

    /// Removes the file of an earlier call. Call it once nothing that the user gave can be wrong, and no other suite
    /// writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        self.junit.as_mut().map_or(Ok(()), JunitFile::clear)
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
        if let Some(file) = &self.junit {
            file.write(xml(suites)?)?;
        }
        if let Some(summary) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) {
            github::tell(summary.as_ref(), suites)?;
        }
        Ok(Counts::of(suites).exit())
    }
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
