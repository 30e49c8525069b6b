//! Results in GitHub Actions: the table in the summary of the job, and one annotation for each red run.

use std::{fmt::Write as _, io::Write as _, path::Path};

use anyhow::Context;

use super::{
    counts::Counts,
    results::{CaseRun, Outcome, Results, RowFacts},
    table::word,
};
use crate::report::without_markup;

/// Appends the table to the summary of the job, and prints the annotations. GitHub reads them from standard error too.
///
/// # Errors
/// The summary cannot be written.
pub fn tell(summary: &Path, suites: &[&Results]) -> anyhow::Result<()> {
    let lines: String = suites.iter().flat_map(|results| annotations(results)).collect();
    // A closed standard error hides the annotations only.
    let _ = std::io::stderr().write_all(lines.as_bytes());
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(summary);
    let written = opened.and_then(|mut file| file.write_all(markdown(suites).as_bytes()));
    written.with_context(|| format!("GITHUB_STEP_SUMMARY: writing {}", summary.display()))
}

/// Returns the table as Markdown.
fn markdown(suites: &[&Results]) -> String {
    let mut text = String::new();
    for results in suites {
        let head = &results.head;
        let _ = writeln!(text, "### Suite {} on {}\n", without_markup(&head.suite), head.cluster.name());
        text += "| row | as expected | claim | expected | last run |\n| --- | --- | --- | --- | --- |\n";
        results.rows().for_each(|row| text += &of_row(results, row));
        text.push('\n');
    }
    for line in Counts::of(suites).text().lines() {
        let _ = writeln!(text, "{}  ", line.trim_start());
    }
    text + "\n"
}

fn of_row(results: &Results, row: &RowFacts) -> String {
    let runs = results.of(row);
    let as_expected = runs.iter().filter(|run| run.outcome == Outcome::AsExpected).count();
    let times = results.head.repeat as usize;
    let count = format!("{as_expected} of {times}");
    let count = if as_expected == times { count } else { format!("**{count}**") };
    let seen = runs.last().map_or("not made", |run| run.seen.as_str());
    let cells = [&row.claim, &row.expected, seen].map(without_markup);
    format!("| {} | {count} | {} |\n", without_markup(&row.case), cells.join(" | "))
}

/// Returns an annotation for each red run.
fn annotations(results: &Results) -> Vec<String> {
    let annotation = |run: &&CaseRun| {
        let why = match run.outcome {
            Outcome::NotAsExpected => run.misses.join("; "),
            Outcome::Infrastructure => run.errors.last().cloned().unwrap_or_default(),
            Outcome::AsExpected | Outcome::Inconclusive => return None,
        };
        let title = format!("{} {}, run {}: {}", results.head.suite, run.case, run.n + 1, word(run.outcome));
        let at = if run.run.is_empty() { String::new() } else { format!(" (run {})", run.run) };
        let (title, message) = (escaped(&title, true), escaped(&format!("{why}{at}"), false));
        Some(format!("::error title={title}::{message}\n"))
    };
    results.all().iter().filter_map(annotation).collect()
}

/// Escapes text of a workflow command; the value of a property ends at a colon or comma.
fn escaped(text: &str, is_property: bool) -> String {
    let text = text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    if is_property { text.replace(':', "%3A").replace(',', "%2C") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::fixtures::{of_rows, run};

    #[test]
    fn a_red_run_is_one_annotation_in_one_line() {
        let mut results = of_rows(&["K1", "K2", "K3"]);
        let red = |case| CaseRun { outcome: Outcome::NotAsExpected, misses: vec!["50 %\n::b".into()], ..run(case, 0) };
        results.runs = vec![run("K1", 0), red("K2"), CaseRun { outcome: Outcome::Inconclusive, ..run("K3", 0) }];
        assert_eq!(annotations(&results), ["::error title=s K2%2C run 1%3A NOT AS EXPECTED::50 %25%0A::b\n"]);
        let text = markdown(&[&results]);
        assert!(text.contains("| K1 | 1 of 1 |") && text.contains("| K2 | **0 of 1** |"), "{text}");
        assert!(text.contains("1 of 3 runs came out as expected"), "{text}");
    }

    #[test]
    fn a_summary_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let results = of_rows(&["K1"]);
        let failed = tell(&dir.path().join("missing/summary.md"), &[&results]).unwrap_err();
        let (text, path) = (format!("{failed:#}"), "missing/summary.md: ");
        assert!(text.starts_with("GITHUB_STEP_SUMMARY: writing ") && text.contains(path), "{text}");
    }

    #[test]
    fn a_claim_with_bars_stays_in_its_cell() {
        let mut results = of_rows(&["K1"]);
        results.head.rows[0].claim = "a | b\n| c".into();
        assert!(markdown(&[&results]).contains("a \\| b \\| c"), "{}", markdown(&[&results]));
    }
}
