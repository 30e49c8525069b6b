//! Progress of a suite: the number of finished runs, and an estimate of the time left.

use std::time::Duration;

use super::results::{CaseRun, Outcome};

/// The least time between two lines: a simulated run takes milliseconds.
const EVERY: Duration = Duration::from_secs(1);

/// Counts finished runs and their times.
#[derive(Debug, Clone)]
pub struct Progress {
    runs: usize,
    done: usize,
    not_as_expected: usize,
    infrastructure: usize,
    planned_left: Duration,
    planned_done: Duration,
    took: Duration,
    since_line: Duration,
}

impl Progress {
    /// Begins with the planned times of all runs that are to be made.
    pub fn new(planned: &[Duration]) -> Progress {
        Progress {
            runs: planned.len(),
            done: 0,
            not_as_expected: 0,
            infrastructure: 0,
            planned_left: planned.iter().sum(),
            planned_done: Duration::ZERO,
            took: Duration::ZERO,
            since_line: Duration::ZERO,
        }
    }

    /// Adds a finished run. Returns a line for the terminal; none if the last line is younger than a second.
    pub fn add(&mut self, run: &CaseRun, planned: Duration) -> Option<String> {
        let took = Duration::try_from_secs_f64(run.took_s).unwrap_or_default();
        self.done += 1;
        self.not_as_expected += usize::from(run.outcome == Outcome::NotAsExpected);
        self.infrastructure += usize::from(run.outcome == Outcome::Infrastructure);
        self.planned_left = self.planned_left.saturating_sub(planned);
        self.planned_done += planned;
        self.took += took;
        self.since_line += took;
        if self.since_line < EVERY {
            return None;
        }
        self.since_line = Duration::ZERO;
        let counted = [(self.not_as_expected, "NOT as expected"), (self.infrastructure, "infrastructure")];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0);
        let red: String = counted.map(|(count, what)| format!(", {count} {what}")).collect();
        let left = match self.left() {
            Duration::ZERO => String::new(),
            left => format!("; about {} left", humantime::format_duration(left)),
        };
        Some(format!("{} of {} runs{red}{left}", self.done, self.runs))
    }

    /// The runs that are left take as long as they are planned, times the factor that the finished runs took so far.
    fn left(&self) -> Duration {
        let factor = self.took.as_secs_f64() / self.planned_done.as_secs_f64().max(1e-3);
        let seconds = (self.planned_left.as_secs_f64() * factor).ceil();
        // More exact than the estimate is.
        let step = if seconds > 120.0 { 60.0 } else { 5.0 };
        Duration::try_from_secs_f64((seconds / step).ceil() * step).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::fixtures::run;

    const PLANNED: Duration = Duration::from_secs(20);

    #[test]
    fn the_time_left_follows_from_the_runs_so_far() {
        let mut progress = Progress::new(&[PLANNED; 11]);
        let of = |outcome, took_s| CaseRun { outcome, took_s, ..run("K1", 0) };
        let line = progress.add(&of(Outcome::AsExpected, 30.0), PLANNED).unwrap();
        assert_eq!(line, "1 of 11 runs; about 5m left");
        let line = progress.add(&of(Outcome::NotAsExpected, 10.0), PLANNED).unwrap();
        assert_eq!(line, "2 of 11 runs, 1 NOT as expected; about 3m left");
        (0..8).for_each(|_| _ = progress.add(&of(Outcome::Inconclusive, 20.0), PLANNED));
        assert_eq!(progress.add(&of(Outcome::AsExpected, 20.0), PLANNED).unwrap(), "11 of 11 runs, 1 NOT as expected");
    }

    #[test]
    fn a_run_that_the_harness_could_not_make_contradicts_no_expectation() {
        let mut progress = Progress::new(&[PLANNED; 3]);
        let of = |outcome| CaseRun { outcome, took_s: 20.0, ..run("K1", 0) };
        let line = progress.add(&of(Outcome::Infrastructure), PLANNED).unwrap();
        assert_eq!(line, "1 of 3 runs, 1 infrastructure; about 40s left");
        let line = progress.add(&of(Outcome::NotAsExpected), PLANNED).unwrap();
        assert_eq!(line, "2 of 3 runs, 1 NOT as expected, 1 infrastructure; about 20s left");
    }

    #[test]
    fn short_runs_give_a_line_a_second() {
        let mut progress = Progress::new(&[PLANNED; 100]);
        let short = CaseRun { took_s: 0.11, ..run("K1", 0) };
        let lines: Vec<String> = (0..100).filter_map(|_| progress.add(&short, PLANNED)).collect();
        assert_eq!(lines.len(), 10);
        // All runs count for the time left, those without a line too.
        assert_eq!([&*lines[4], &*lines[9]], ["50 of 100 runs; about 10s left", "100 of 100 runs"]);
    }
}
