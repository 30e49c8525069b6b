//! The counts of a suite's runs by outcome, and the exit code that follows.

use super::results::{Outcome, Results};
use crate::exit::Exit;

/// The numbers of runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// The planned runs.
    pub planned: usize,
    /// The runs that were made.
    pub made: usize,
    /// The runs that came out as expected.
    pub as_expected: usize,
    /// The runs that came out otherwise: better than expected counts as worse.
    pub not_as_expected: usize,
    /// The runs that say nothing about their claim.
    pub inconclusive: usize,
    /// The runs that the harness could not make.
    pub infrastructure: usize,
    /// The runs that the harness made after a failed try.
    pub second_try: usize,
    /// The seconds that all runs took.
    pub took_s: f64,
}

impl Counts {
    /// Counts the runs of suites.
    pub fn of(suites: &[&Results]) -> Counts {
        let mut counts = Counts { planned: suites.iter().map(|results| results.planned()).sum(), ..Counts::default() };
        for run in suites.iter().flat_map(|results| results.all()) {
            counts.made += 1;
            counts.took_s += run.took_s;
            match run.outcome {
                Outcome::AsExpected => counts.as_expected += 1,
                Outcome::NotAsExpected => counts.not_as_expected += 1,
                Outcome::Inconclusive => counts.inconclusive += 1,
                Outcome::Infrastructure => counts.infrastructure += 1,
            }
            if run.outcome != Outcome::Infrastructure && !run.errors.is_empty() {
                counts.second_try += 1;
            }
        }
        counts
    }

    /// The exit code: a run that is not as expected comes before a run that is missing, and that before a run that says
    /// nothing.
    pub fn exit(&self) -> Exit {
        if self.not_as_expected > 0 {
            Exit::Violated
        } else if self.infrastructure > 0 || self.made < self.planned {
            Exit::Failed
        } else if self.inconclusive > 0 {
            Exit::Inconclusive
        } else {
            Exit::Ok
        }
    }

    /// Returns the last lines of the table.
    pub fn text(&self) -> String {
        let mut text =
            format!("{} of {} runs came out as expected, in {:.0} s\n", self.as_expected, self.planned, self.took_s);
        for (count, what) in [
            (self.not_as_expected, "NOT as expected"),
            (self.inconclusive, "inconclusive"),
            (self.infrastructure, "infrastructure: the harness could not make the run"),
            (self.second_try, "infrastructure: the harness made the run after a failed try"),
            (self.planned - self.made, "not made: the suite ended before them"),
        ] {
            if count > 0 {
                text += &format!("{count:>4} {what}\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{
        CaseRun,
        fixtures::{of_rows, run},
    };

    #[test]
    fn the_worst_outcome_gives_the_exit_code() {
        use Outcome::{AsExpected, Inconclusive, Infrastructure, NotAsExpected};
        // Three runs are planned.
        for (outcomes, expected) in [
            (vec![AsExpected, AsExpected, AsExpected], Exit::Ok),
            (vec![AsExpected, Inconclusive, AsExpected], Exit::Inconclusive),
            (vec![AsExpected, Inconclusive], Exit::Failed),
            (vec![Inconclusive, Infrastructure, AsExpected], Exit::Failed),
            (vec![Infrastructure, NotAsExpected], Exit::Violated),
        ] {
            let mut results = of_rows(&["K1", "K2", "K3"]);
            let made = ["K1", "K2", "K3"].into_iter().zip(&outcomes);
            results.runs = made.map(|(case, outcome)| CaseRun { outcome: *outcome, ..run(case, 0) }).collect();
            assert_eq!(Counts::of(&[&results]).exit(), expected, "{outcomes:?}");
        }
    }
}
