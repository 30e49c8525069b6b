//! The verdict on a property, and on a run.

use std::fmt;

use serde::Serialize;

/// The verdict on a property, or on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The property holds in everything that was recorded.
    Upheld,
    /// The property does not hold; a witness proves it.
    Violated,
    /// The record does not decide the property; the reasons say why.
    Inconclusive,
    /// A figure that nothing requires.
    Measured,
    /// The plan leaves the property out.
    #[serde(rename = "n/a")]
    NotApplicable,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Verdict; 5] =
        [Verdict::Upheld, Verdict::Violated, Verdict::Inconclusive, Verdict::Measured, Verdict::NotApplicable];

    /// The rank by badness: violated, then inconclusive, then all the rest.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Verdict::Violated => 2,
            Verdict::Inconclusive => 1,
            Verdict::Upheld | Verdict::Measured | Verdict::NotApplicable => 0,
        }
    }

    /// The verdict of a judged property: a violation that was found wins over a record that is incomplete.
    pub(crate) fn judged(violated: bool, inconclusive: bool) -> Verdict {
        match (violated, inconclusive) {
            (true, _) => Verdict::Violated,
            (false, true) => Verdict::Inconclusive,
            (false, false) => Verdict::Upheld,
        }
    }

    /// The name in `verdict.json` and behind `--expect`.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Upheld => "upheld",
            Verdict::Violated => "violated",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Measured => "measured",
            Verdict::NotApplicable => "n/a",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
