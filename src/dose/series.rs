//! The measurements at each length of the fault.

use std::fmt::Write;

use checker::{Verdict, Verdicts, WindowKind};
use history::{ClusterKind, MadeBy};
use serde::{Deserialize, Serialize};

use crate::{
    cli::{DoseArgs, DoseOf},
    exit::Exit,
    statistics::{quantile, wilson},
};

/// A series of measurements.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The kind of fault.
    pub of: String,
    /// The cluster.
    pub cluster: String,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// The first seed of each length.
    pub seed: u64,
    /// The facts about how the first run was made. None in the record of an older harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<MadeBy>,
    /// The measurements.
    pub points: Vec<Measurement>,
}

/// The measurement at one length of the fault.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The length of the fault, in leases.
    pub ratio: f64,
    /// Runs whose fault is proved and hit its target, and whose lock was judged. Only these runs count.
    pub runs: u64,
    /// Runs that do not count: the fault is not proved or missed its target, the record is incomplete, or `lock` is
    /// inconclusive.
    pub left_out: u64,
    /// Runs with a double-holder window.
    pub windows: u64,
    /// The longest overlap of each run with a window, in milliseconds: two clients were entitled to the lock.
    pub overlap_ms: Vec<f64>,
    /// The longest staleness of each run with a stale holder, in milliseconds: from the next acquisition to the last
    /// stale act.
    pub staleness_ms: Vec<f64>,
}

impl Measurement {
    /// Makes a measurement without runs.
    pub fn new(ratio: f64) -> Measurement {
        Measurement { ratio, ..Measurement::default() }
    }

    /// Adds a run.
    pub fn add(&mut self, verdicts: &Verdicts) {
        let facts = &verdicts.facts;
        let is_whole = verdicts.reasons.is_empty() && facts.faults_proved == 1 && facts.missed_target == 0;
        // A lock that was not decided has neither a window nor none.
        let decided = verdicts.lock().filter(|lock| lock.verdict != Verdict::Inconclusive);
        let (true, Some(lock)) = (is_whole, decided) else {
            self.left_out += 1;
            return;
        };
        self.runs += 1;
        if lock.windows.is_empty() {
            return;
        }
        self.windows += 1;
        self.overlap_ms.push(lock.overlap_ms_max);
        if lock.windows.iter().any(|w| w.kind == WindowKind::StaleHolder) {
            self.staleness_ms.push(lock.staleness_ms_max);
        }
    }

    /// Returns the share of runs with a window, and its 95 % interval by Wilson, which stays within 0 to 1.
    pub fn share(&self) -> (f64, f64, f64) {
        wilson(self.windows, self.runs)
    }
}

impl Series {
    /// Makes a series without measurements.
    pub fn new(args: &DoseArgs, cluster: ClusterKind) -> Series {
        let of = match args.of {
            DoseOf::Pause => "pause",
            DoseOf::Clock => "clock",
        };
        let lease_ms = u64::try_from(args.lease.as_millis()).unwrap_or(u64::MAX);
        Series {
            of: of.to_owned(),
            cluster: cluster.name().to_owned(),
            lease_ms,
            seed: args.seed,
            made_by: None,
            points: Vec::new(),
        }
    }

    /// Returns the end of the command: without a run that counts, the series says nothing.
    pub fn exit(&self) -> Exit {
        if self.points.iter().any(|point| point.runs > 0) { Exit::Ok } else { Exit::Inconclusive }
    }

    /// Returns the whole table.
    pub fn table(&self) -> String {
        let mut part = Series { points: Vec::new(), ..self.clone() };
        let mut out = String::new();
        for point in &self.points {
            out += &part.line(point);
            part.points.push(point.clone());
        }
        out
    }

    /// Returns the table row of a measurement; before the first row also the heading.
    pub fn line(&self, measurement: &Measurement) -> String {
        let mut out = String::new();
        if self.points.is_empty() {
            let (of, cluster, lease_ms) = (&self.of, &self.cluster, self.lease_ms);
            let _ = writeln!(out, "{of} against a lease of {lease_ms} ms · {cluster} · seeds from {}", self.seed);
            let _ = writeln!(
                out,
                "| leases | windows | share | 95 % | overlap ms (median, 90 %) | staleness ms (median, 90 %) | \
                 left out |"
            );
            let _ = writeln!(out, "| --- | --- | --- | --- | --- | --- | --- |");
        }
        let (p, from, to) = measurement.share();
        let share = if p.is_nan() { "–".to_owned() } else { format!("{p:.2}") };
        let two = |values: &[f64]| match (quantile(values, 0.5), quantile(values, 0.9)) {
            (Some(middle), Some(high)) => format!("{middle:.0}, {high:.0}"),
            _ => "–".into(),
        };
        let (overlap, staleness) = (two(&measurement.overlap_ms), two(&measurement.staleness_ms));
        let Measurement { ratio, windows, runs, left_out, .. } = measurement;
        let _ = writeln!(
            out,
            "| {ratio} | {windows} of {runs} | {share} | {from:.2}–{to:.2} | {overlap} | {staleness} | {left_out} |"
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge;

    #[test]
    fn without_a_run_that_counts_a_series_says_nothing() {
        let left_out = Measurement { left_out: 3, ..Measurement::new(1.0) };
        let counted = Measurement { runs: 4, windows: 1, ..Measurement::new(2.0) };
        let (of, cluster) = ("pause".to_owned(), "sim".to_owned());
        let mut series = Series { of, cluster, lease_ms: 2_000, seed: 1, made_by: None, points: vec![left_out] };
        assert!(series.table().contains("| 1 | 0 of 0 | – | 0.00–1.00 | – | – | 3 |"), "{}", series.table());
        assert_eq!(series.exit(), Exit::Inconclusive);
        series.points.push(counted);
        assert!(series.table().contains("| 2 | 1 of 4 | 0.25 |"), "{}", series.table());
        assert_eq!(series.exit(), Exit::Ok);
    }

    #[test]
    fn only_a_proved_fault_on_its_target_counts() {
        type Change = fn(&mut Verdicts);
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let judged = judge(history.as_ref()).unwrap().verdicts;
        let changes: [(Change, (u64, u64, u64)); 4] = [
            (|_| (), (1, 1, 0)),
            (|run| run.facts.missed_target = 1, (0, 0, 1)),
            (|run| run.facts.faults_proved = 0, (0, 0, 1)),
            (|run| run.reasons.push("the record was cut".into()), (0, 0, 1)),
        ];
        for (n, (change, expected)) in changes.into_iter().enumerate() {
            let (mut measurement, mut verdicts) = (Measurement::new(1.0), judged.clone());
            change(&mut verdicts);
            measurement.add(&verdicts);
            let Measurement { runs, windows, left_out, .. } = measurement;
            assert_eq!((runs, windows, left_out), expected, "change {n}");
        }
    }

    #[test]
    fn a_run_whose_lock_is_inconclusive_is_no_run_without_a_window() {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/truncated-early.jsonl");
        let mut verdicts = judge(history.as_ref()).unwrap().verdicts;
        let lock = verdicts.lock().unwrap();
        assert_eq!((lock.verdict, lock.windows.len()), (Verdict::Inconclusive, 0));
        // Such a lock may have a whole record: the order of two grants is not known, or the host's clock has stepped.
        verdicts.reasons.clear();
        (verdicts.facts.faults_proved, verdicts.facts.missed_target) = (1, 0);
        let mut measurement = Measurement::new(1.0);
        measurement.add(&verdicts);
        assert_eq!((measurement.runs, measurement.windows, measurement.left_out), (0, 0, 1));
    }

    #[test]
    fn a_run_has_the_lengths_of_the_windows_that_it_has() {
        let cases: [(&str, &[f64], &[f64]); 3] = [
            ("kleppmann-pause", &[161.0], &[3_051.0]),
            // Its only window is an overlap of two leases.
            ("given-up", &[98.0], &[]),
            ("none", &[], &[]),
        ];
        for (name, overlap_ms, staleness_ms) in cases {
            let history = format!("{}/checker/tests/corpus/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
            let mut verdicts = judge(history.as_ref()).unwrap().verdicts;
            (verdicts.facts.faults_proved, verdicts.facts.missed_target) = (1, 0);
            let mut measurement = Measurement::new(1.0);
            measurement.add(&verdicts);
            assert_eq!((measurement.runs, measurement.windows), (1, overlap_ms.len() as u64), "{name}");
            assert_eq!(measurement.overlap_ms, overlap_ms, "{name}");
            assert_eq!(measurement.staleness_ms, staleness_ms, "{name}");
        }
    }
}
