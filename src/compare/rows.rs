//! The rows of a comparison, and the words for a difference.

use checker::Verdict;
use serde::Serialize;

use super::{
    figures::{Figures, NUMBERS, Number},
    side::Scenario,
};
use crate::statistics::{Interval, difference_of_shares, quantile, shift};

/// One line of a comparison.
#[derive(Debug, Serialize)]
pub struct Row {
    name: &'static str,
    a: Option<f64>,
    b: Option<f64>,
    /// The runs of each side that have the figure.
    runs: (usize, usize),
    /// B less A, and its interval. None if the runs are too few.
    difference: Option<f64>,
    from: Option<f64>,
    to: Option<f64>,
    words: String,
    #[serde(skip)]
    cells: [String; 3],
}

impl Row {
    /// The name, both sides, the difference, and the words.
    pub fn cells(&self) -> [String; 5] {
        let [a, b, difference] = self.cells.clone();
        [self.name.to_owned(), a, b, difference, self.words.clone()]
    }
}

/// Says what the interval shows.
fn words(interval: Option<Interval>, runs: (usize, usize)) -> String {
    let (a, b) = runs;
    match interval {
        None => format!("{a} and {b} runs are too few for an interval"),
        Some(interval) if interval.from > 0.0 => "B is larger".to_owned(),
        Some(interval) if interval.to < 0.0 => "B is smaller".to_owned(),
        Some(_) => format!("no difference that {a} and {b} runs can show"),
    }
}

fn row(
    name: &'static str,
    ends: (Option<f64>, Option<f64>),
    runs: (usize, usize),
    found: Option<Interval>,
    cells: [String; 3],
) -> Row {
    Row {
        name,
        a: ends.0,
        b: ends.1,
        runs,
        difference: found.map(|it| it.value),
        from: found.map(|it| it.from),
        to: found.map(|it| it.to),
        words: words(found, runs),
        cells,
    }
}

/// The share of runs with a violated lock, of those that were decided.
fn violated(a: &Scenario, b: &Scenario) -> Row {
    let count = |side: &Scenario| {
        let count = |verdict| side.runs.iter().filter(|run: &&Figures| run.lock == Some(verdict)).count() as u64;
        (count(Verdict::Violated), count(Verdict::Violated) + count(Verdict::Upheld))
    };
    let (in_a, in_b) = (count(a), count(b));
    let cell = |(k, n): (u64, u64), side: &Scenario| match side.runs.len() as u64 - n {
        0 => format!("{k} of {n}"),
        open => format!("{k} of {n}, {open} inconclusive"),
    };
    let found = difference_of_shares(in_a, in_b);
    let percent = |share: f64| format!("{:+.0} %", share * 100.0);
    let difference = found
        .map_or_else(String::new, |it| format!("{} ({} to {})", percent(it.value), percent(it.from), percent(it.to)));
    let share = |(k, n): (u64, u64)| (n > 0).then(|| k as f64 / n as f64);
    let cells = [cell(in_a, a), cell(in_b, b), difference];
    row("lock violated", (share(in_a), share(in_b)), (in_a.1 as usize, in_b.1 as usize), found, cells)
}

/// Compares the runs of two scenarios.
pub fn rows(a: &Scenario, b: &Scenario) -> Vec<Row> {
    let mut rows = vec![violated(a, b)];
    for (place, Number { name, unit, .. }) in NUMBERS.iter().enumerate() {
        let values = |side: &Scenario| side.runs.iter().filter_map(|run| run.numbers[place]).collect::<Vec<f64>>();
        let (in_a, in_b) = (values(a), values(b));
        if in_a.is_empty() && in_b.is_empty() {
            continue;
        }
        let digits = if unit.is_empty() { 0 } else { 1 };
        let cell = |values: &[f64]| match quantile(values, 0.5) {
            Some(middle) => format!("{middle:.digits$}{unit}"),
            None => "–".to_owned(),
        };
        let found = shift(&in_a, &in_b);
        let difference = found.map_or_else(String::new, |it| {
            format!("{:+.digits$}{unit} ({:+.digits$} to {:+.digits$})", it.value, it.from, it.to)
        });
        let cells = [cell(&in_a), cell(&in_b), difference];
        let ends = (quantile(&in_a, 0.5), quantile(&in_b, 0.5));
        rows.push(row(name, ends, (in_a.len(), in_b.len()), found, cells));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawn::tests::planned;

    /// A scenario whose runs have these verdicts on mutual exclusion.
    fn side(verdicts: &[Verdict]) -> Scenario {
        let run = |verdict: &Verdict| Figures { simulated: None, lock: Some(*verdict), numbers: [None; NUMBERS.len()] };
        let runs = verdicts.iter().map(run).collect();
        Scenario { name: "s".to_owned(), plan: planned("none", 1), runs }
    }

    #[test]
    fn the_share_of_violated_runs_is_that_of_the_decided_runs() {
        use Verdict::{Inconclusive, Upheld, Violated};
        let a = side(&[Violated, Inconclusive, Upheld, Violated, Inconclusive]);
        let b = side(&[Upheld, Inconclusive]);
        let row = violated(&a, &b);
        assert_eq!((row.a, row.b, row.runs), (Some(2.0 / 3.0), Some(0.0), (3, 1)));
        assert_eq!(row.cells[..2], ["2 of 3, 2 inconclusive", "0 of 1, 1 inconclusive"]);
        let row = violated(&side(&[Inconclusive]), &b);
        assert_eq!((row.a, row.difference, row.runs), (None, None, (0, 1)));
        assert_eq!(row.words, "0 and 1 runs are too few for an interval");
    }
}
