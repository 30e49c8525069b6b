//! The table of a suite: for each row the claim, its author, the evidence, the expected and the observed verdicts.

use checker::{Property, Verdict, Verdicts, joined};

use super::{
    file::Case,
    suite_record::{CaseRun, Outcome, SuiteRecord},
};
use crate::exit::Exit;

/// The width of the column of names, and the indent of the lines below a claim.
const WIDTH: usize = 19;
const INDENT: usize = WIDTH + 15;

/// Returns the line of one run, for print as soon as the run ends.
pub fn line(case: &Case, done: &CaseRun) -> String {
    let word = word(done.outcome);
    let mut line = format!("{:<WIDTH$} {word:<16} {} ({:.0} s) {}\n", case.name, done.seen, done.took_s, done.run);
    for why in &done.missing {
        line += &format!("{:WIDTH$} not seen: {why}\n", "");
    }
    for why in &done.misses {
        line += &format!("{:WIDTH$} {why}\n", "");
    }
    line
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::AsExpected => "as expected",
        Outcome::NotAsExpected => "NOT AS EXPECTED",
        Outcome::Inconclusive => "INCONCLUSIVE",
    }
}

/// Returns the whole table and the exit code. One unexpected run makes its case unexpected.
pub fn table(cases: &[Case], state: &SuiteRecord, times: u32) -> (String, Exit) {
    let mut text = format!("\n{:<WIDTH$} {:<12} {:<13} claim\n", "row", "as expected", "by");
    let mut exit = Exit::Ok;
    for case in cases {
        let runs = state.runs(case, times);
        let count = |outcome| runs.iter().filter(|d| d.outcome == outcome).count();
        let expected = count(Outcome::AsExpected);
        if count(Outcome::NotAsExpected) > 0 {
            exit = Exit::Violated;
        } else if expected < times as usize && exit == Exit::Ok {
            exit = Exit::Inconclusive;
        }
        let witnessed = runs.iter().filter(|d| d.missing.is_empty()).count();
        let witnesses: Vec<String> = case.witnesses.iter().map(ToString::to_string).collect();
        text +=
            &format!("{:<WIDTH$} {:<12} {:<13} {}\n", case.name, format!("{expected} of {times}"), case.by, case.claim);
        text += &format!("{:INDENT$}witness   {witnessed} of {times}: {}\n", "", witnesses.join("; "));
        text += &format!("{:INDENT$}expected  {}\n", "", expected_text(case));
        if let Some(last) = runs.last() {
            let run = if last.run.is_empty() { "" } else { " · " };
            text += &format!("{:INDENT$}seen      {}{run}{}\n", "", last.seen, last.run);
        }
    }
    let expected = cases.iter().flat_map(|case| state.runs(case, times));
    let expected = expected.filter(|done| done.outcome == Outcome::AsExpected).count();
    let all = cases.len() * times as usize;
    let took: f64 = state.of(cases, times).iter().map(|done| done.took_s).sum();
    text += &format!("\n{expected} of {all} runs came out as expected, in {:.0} s\n", took);
    (text, exit)
}

fn expected_text(case: &Case) -> String {
    let causes = case.causes.as_ref().filter(|causes| !causes.is_empty());
    let causes = causes.map(|causes| format!("; cause {}", joined(causes, " and "))).unwrap_or_default();
    let expected = case.expectation.as_ref().map_or("its witness".to_owned(), |(_, text)| text.replace(',', ", "));
    format!("{expected}{causes}")
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
