//! The port between a property and everything that is printed of it: the summary, and the findings of `explore`.

use serde::Serialize;

use crate::{cause::CauseSet, verdict::Verdict};

/// The verdict on one property, as reports show it.
pub trait Report {
    /// The verdict.
    fn verdict(&self) -> Verdict;

    /// Why the verdict is inconclusive, or what went wrong beyond the counts.
    fn reasons(&self) -> &[String] {
        &[]
    }

    /// The word in the summary's column of verdicts.
    fn shown_verdict(&self) -> &'static str {
        self.verdict().name()
    }

    /// The counts, in one line of the summary.
    fn figures(&self) -> String;

    /// More lines for the summary, below the table.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The ways in which a violated property is violated: the classes of `explore`.
    fn violations(&self) -> Vec<Violation>;

    /// Violations with a story.
    fn stories(&self) -> Vec<Story> {
        Vec::new()
    }

    /// Evidence of violations that have no story, a line each.
    fn evidence(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One way in which a property is violated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The kind; empty if no count of the property tells one.
    pub kind: &'static str,
    /// The sets of causes, in canonical order; empty for properties without causes.
    pub causes: Vec<CauseSet>,
}

/// One line of a story.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoryLine {
    /// Milliseconds since the run's start.
    pub at_ms: f64,
    /// The actor: `worker-1`, `worker-1/c7`, `nemesis`.
    pub who: String,
    /// The action.
    pub what: String,
}

/// One violation, as a story that a person can follow.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    /// The way of violation that the story shows.
    pub violation: Violation,
    /// The story in one line.
    pub headline: String,
    /// The events, in the order of time.
    pub lines: Vec<StoryLine>,
    /// The kind, the causes and the figures.
    pub closing: String,
}

/// The violations whose count is not 0, by kind.
pub(crate) fn counted(kinds: &[(u64, &'static str)]) -> Vec<Violation> {
    let found = kinds.iter().filter(|(n, _)| *n > 0);
    found.map(|(_, kind)| Violation { kind, causes: Vec::new() }).collect()
}

/// `1 window`, `2 windows`.
pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Counts that are not 0, each with its words.
pub(crate) fn nonzero(counts: &[(u64, &str)]) -> impl Iterator<Item = String> {
    counts.iter().filter(|(n, _)| *n > 0).map(|(n, words)| format!("{n} {words}"))
}

/// Milliseconds as seconds with two digits.
pub(crate) fn seconds(ms: f64) -> String {
    format!("{:.2} s", ms / 1e3)
}

/// Milliseconds since the run's start as an instant of a story.
pub(crate) fn instant(ms: f64) -> String {
    format!("{:.3} s", ms / 1e3)
}
