//! The table of a suite: for each row the claim, its author, the evidence, the expected and the observed verdicts.

use checker::{Property, Verdict, Verdicts, joined};

use super::{
    counts::Counts,
    results::{CaseRun, Outcome, Results, RowFacts},
};
use crate::report::TestResult;

/// The least width of the column of names.
const WIDTH: usize = 19;

/// Returns the line of one run, for print as soon as the run ends.
pub fn line(run: &CaseRun) -> String {
    let word = word(run.outcome);
    let mut line = format!("{:<WIDTH$} {word:<16} {} ({:.0} s) {}\n", run.case, run.seen, run.took_s, run.run);
    for why in &run.missing {
        line += &format!("{:WIDTH$} not seen: {why}\n", "");
    }
    for why in &run.misses {
        line += &format!("{:WIDTH$} {why}\n", "");
    }
    for why in undecided(run) {
        line += &format!("{:WIDTH$} {why}\n", "");
    }
    for (try_, error) in (1..).zip(&run.errors) {
        line += &format!("{:WIDTH$} try {try_} failed: {error}\n", "");
    }
    line
}

/// The reasons for which an inconclusive run decides nothing, apart from those that its other lines tell.
fn undecided(run: &CaseRun) -> impl Iterator<Item = &String> {
    let skipped = run.tests.iter().filter(|test| test.result == TestResult::Skipped);
    let reasons = skipped.filter(|_| run.outcome == Outcome::Inconclusive).flat_map(|test| &test.why);
    reasons.filter(|why| !run.misses.contains(why) && !run.missing.iter().any(|m| **why == format!("not seen: {m}")))
}

/// The word for an outcome.
pub fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::AsExpected => "as expected",
        Outcome::NotAsExpected => "NOT AS EXPECTED",
        Outcome::Inconclusive => "INCONCLUSIVE",
        Outcome::Infrastructure => "INFRASTRUCTURE",
    }
}

/// Returns the whole table. The same results give the same table, whether one call made all runs or shards did.
pub fn table(suites: &[&Results]) -> String {
    let mut text = String::new();
    for results in suites {
        if suites.len() > 1 {
            text += &format!("\nsuite {} on {}\n", results.head.suite, results.head.cluster.name());
        }
        let width = results.rows().map(|row| row.case.len()).max().unwrap_or_default().max(WIDTH);
        text += &format!("\n{:<width$} {:<12} {:<13} claim\n", "row", "as expected", "by");
        results.rows().for_each(|row| text += &of_row(results, row, width));
    }
    text + "\n" + &Counts::of(suites).text()
}

/// Returns the lines of a row; its name has `width` columns.
fn of_row(results: &Results, row: &RowFacts, width: usize) -> String {
    let indent = width + 15;
    let (runs, times) = (results.of(row), results.head.repeat);
    let expected = runs.iter().filter(|run| run.outcome == Outcome::AsExpected).count();
    let is_witnessed = |run: &&&CaseRun| run.missing.is_empty() && run.outcome != Outcome::Infrastructure;
    let witnessed = runs.iter().filter(is_witnessed).count();
    let RowFacts { case, claim, by, witnesses, expected: wanted, .. } = row;
    let mut text = format!("{case:<width$} {:<12} {by:<13} {claim}\n", format!("{expected} of {times}"));
    if !witnesses.is_empty() {
        text += &format!("{:indent$}witness   {witnessed} of {times}: {}\n", "", witnesses.join("; "));
    }
    text += &format!("{:indent$}expected  {wanted}\n", "");
    if let Some(last) = runs.last() {
        let run = if last.run.is_empty() { "" } else { " · " };
        text += &format!("{:indent$}seen      {}{run}{}\n", "", last.seen, last.run);
    }
    text
}

/// Summarizes the verdicts in one line: every property that is not upheld, and the windows.
pub fn figures(verdicts: &Verdicts) -> String {
    let mut words = Vec::new();
    for (name, property) in verdicts.properties.iter() {
        match property {
            Property::Lock(lock) if !lock.windows.is_empty() => {
                let mut causes: Vec<_> = lock.windows.iter().flat_map(|w| &w.causes).collect();
                causes.sort_unstable();
                causes.dedup();
                let (overlaps, stale, by) = (lock.lease_overlap, lock.stale_holder, joined(causes, ", "));
                let cut = if lock.cut_short > 0 { format!(", {} cut-short", lock.cut_short) } else { String::new() };
                let windows = format!("{overlaps} lease-overlap, {stale} stale-holder{cut}");
                words.push(format!("lock {}: {windows} by {by}", lock.verdict));
            }
            Property::Lock(lock) if lock.without_key > 0 => {
                words.push(format!("lock {}, {} granted without a key", lock.verdict, lock.without_key));
            }
            _ if property.verdict() == Verdict::Violated || property.verdict() == Verdict::Inconclusive => {
                words.push(format!("{name} {}", property.verdict()));
            }
            _ if name == "lock" => words.push(format!("lock {}", property.verdict())),
            Property::Fence(fence) if fence.stale_rejected + fence.stale_accepted > 0 => words.push(format!(
                "{name} {} (stale: {} rejected, {} accepted)",
                property.verdict(),
                fence.stale_rejected,
                fence.stale_accepted
            )),
            Property::Liveness(liveness) if liveness.blocked_ms_max > 0.0 => {
                words.push(format!("{:.1} s blocked by the dead", liveness.blocked_ms_max / 1e3));
            }
            Property::Data(data) if data.lost_updates > 0 => words.push(format!("{name} {} lost", data.lost_updates)),
            _ => {}
        }
    }
    words.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::TestCase,
        suite::fixtures::{of_rows, run},
    };

    #[test]
    fn an_inconclusive_run_is_told_with_its_reasons_once() {
        let case = |name: &str, why: &str| TestCase::new(name, TestResult::Skipped, vec![why.to_owned()]);
        let tests = vec![case("activity", "only 1 hold"), case("witness", "not seen: a kill"), case("lock", "a miss")];
        let (missing, misses) = (vec!["a kill".to_owned()], vec!["a miss".to_owned()]);
        let undecided = CaseRun { outcome: Outcome::Inconclusive, missing, misses, tests, ..run("K1", 0) };
        let text = line(&undecided);
        for why in ["only 1 hold", "not seen: a kill", "a miss"] {
            assert_eq!(text.matches(why).count(), 1, "{text}");
        }
        let decided = CaseRun { outcome: Outcome::NotAsExpected, ..undecided };
        assert!(!line(&decided).contains("only 1 hold"), "the other properties decide");
    }

    #[test]
    fn only_a_run_that_was_made_and_has_the_evidence_is_witnessed() {
        use Outcome::{AsExpected, Inconclusive, Infrastructure, NotAsExpected};
        let evidence = || vec!["counters behind".to_owned()];
        let mut results = of_rows(&["K1"]);
        results.head.repeat = 4;
        results.head.rows[0].witnesses = evidence();
        let of = |n, outcome| CaseRun { outcome, ..run("K1", n) };
        let unseen = CaseRun { missing: evidence(), ..of(3, Inconclusive) };
        results.runs = vec![of(0, AsExpected), of(1, NotAsExpected), of(2, Infrastructure), unseen];
        let text = table(&[&results]);
        assert!(text.contains("witness   2 of 4: counters behind\n"), "{text}");
    }
}
