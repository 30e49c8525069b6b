//! The output of a suite: the table or JSON, and the files for other programs.

use std::{path::PathBuf, sync::LazyLock, time::Duration};

use super::{
    counts::Counts,
    github,
    junit_file::JunitFile,
    results::{CaseRun, Results, RowFacts},
    table::table,
};
use crate::{
    cli::Format,
    exit::Exit,
    report::{TestCase, TestResult, TestedRun, junit, print},
};

/// The test case of a row of which not all runs were made. A row without one would look as if nobody had asked for it.
static NOT_MADE: LazyLock<[TestCase; 1]> = LazyLock::new(|| {
    let why = "not all runs of this row were made: the suite ended before them".to_owned();
    [TestCase::new("run", TestResult::Skipped, vec![why])]
});

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
        // Printed first: a file that cannot be written must not hide the table. A full output takes no file with it.
        let printed = match self.format {
            Format::Text => print(&table(suites)),
            Format::Json => {
                let runs: Vec<&CaseRun> = suites.iter().flat_map(|results| results.all()).collect();
                print(&(serde_json::to_string_pretty(&runs)? + "\n"))
            }
        };
        if let Some(file) = &self.junit {
            file.write(xml(suites)?)?;
        }
        if let Some(summary) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) {
            github::tell(summary.as_ref(), suites)?;
        }
        printed?;
        Ok(Counts::of(suites).exit())
    }
}

fn xml<'a>(suites: &[&'a Results]) -> anyhow::Result<String> {
    let of_suite = |results: &&'a Results| {
        let head = &results.head;
        let is_repeated = head.repeat > 1;
        let class = |case: &str| format!("{}.{case}", head.suite);
        let tested = |run: &'a CaseRun| {
            let CaseRun { case, n, took_s, tests, .. } = run;
            let took = Duration::try_from_secs_f64(*took_s).unwrap_or_default();
            let number = is_repeated.then_some(n + 1);
            TestedRun { class: class(case), number, took, cases: tests }
        };
        let is_cut = |row: &&RowFacts| results.of(row).len() < head.repeat as usize;
        let not_made = |row: &RowFacts| {
            let (class, cases) = (class(&row.case), &NOT_MADE[..]);
            TestedRun { class, number: None, took: Duration::ZERO, cases }
        };
        let name = format!("{} ({})", head.suite, head.cluster.name());
        let made = results.all().into_iter().map(tested);
        (name, made.chain(results.rows().filter(is_cut).map(not_made)).collect())
    };
    junit(&suites.iter().map(of_suite).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::fixtures::{of_rows, run};

    #[test]
    fn a_row_whose_runs_were_not_all_made_is_a_skipped_test_case() {
        let mut results = of_rows(&["K1", "K2"]);
        results.runs = vec![run("K1", 0)];
        let text = xml(&[&results]).unwrap();
        assert!(text.contains(r#"<testcase name="run" classname="s.K2""#), "{text}");
        assert!(text.contains("not all runs of this row were made"), "{text}");
        assert!(!text.contains(r#"name="run" classname="s.K1""#), "{text}");
        results.runs.push(run("K2", 0));
        assert!(!xml(&[&results]).unwrap().contains("not all runs"), "both rows have their runs");
    }
}
