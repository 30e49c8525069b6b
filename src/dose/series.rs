//! The measurements at each length of the fault.

use std::fmt::Write;

use checker::{Verdicts, WindowKind};
use history::ClusterKind;
use serde::Serialize;

use crate::cli::{DoseArgs, DoseOf};

/// Half the width of the two-sided 95 % interval of a normal distribution, in standard deviations.
const Z: f64 = 1.959_964;

/// A series of measurements.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// The kind of fault.
    pub of: &'static str,
    /// The cluster.
    pub cluster: &'static str,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// The first seed of each length.
    pub seed: u64,
    /// The measurements.
    pub points: Vec<Measurement>,
}

/// The measurement at one length of the fault.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measurement {
    /// The length of the fault, in leases.
    pub ratio: f64,
    /// Runs whose fault is proved and hit its target. Only these runs count.
    pub runs: u64,
    /// Runs that do not count: the fault is not proved or missed its target, or the record is incomplete.
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
        let (true, Some(lock)) = (is_whole, verdicts.lock()) else {
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

/// Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
fn wilson(k: u64, n: u64) -> (f64, f64, f64) {
    if n == 0 {
        return (f64::NAN, 0.0, 1.0);
    }
    let (p, n) = (k as f64 / n as f64, n as f64);
    let (z2, scale) = (Z * Z, 1.0 + Z * Z / n);
    let middle = (p + z2 / (2.0 * n)) / scale;
    let half = Z / scale * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    (p, (middle - half).max(0.0), (middle + half).min(1.0))
}

/// Returns the quantile for `share`; none without values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * (sorted.len().checked_sub(1)? as f64)).round() as usize;
    sorted.get(at).copied()
}

impl Series {
    /// Makes a series without measurements.
    pub fn new(args: &DoseArgs, cluster: ClusterKind) -> Series {
        let of = match args.of {
            DoseOf::Pause => "pause",
            DoseOf::Clock => "clock",
        };
        let lease_ms = u64::try_from(args.lease.as_millis()).unwrap_or(u64::MAX);
        Series { of, cluster: cluster.name(), lease_ms, seed: args.seed, points: Vec::new() }
    }

    /// Returns the table row of a measurement; before the first row also the heading.
    pub fn line(&self, measurement: &Measurement) -> String {
        let mut out = String::new();
        if self.points.is_empty() {
            let (of, cluster, lease_ms) = (self.of, self.cluster, self.lease_ms);
            let _ = writeln!(out, "{of} against a lease of {lease_ms} ms · {cluster} · seeds from {}", self.seed);
            let _ = writeln!(
                out,
                "| leases | windows | share | 95 % | overlap ms (median, 90 %) | staleness ms (median, 90 %) | \
                 left out |"
            );
            let _ = writeln!(out, "| --- | --- | --- | --- | --- | --- | --- |");
        }
        let (p, from, to) = measurement.share();
        let two = |values: &[f64]| match (quantile(values, 0.5), quantile(values, 0.9)) {
            (Some(middle), Some(high)) => format!("{middle:.0}, {high:.0}"),
            _ => "–".into(),
        };
        let (overlap, staleness) = (two(&measurement.overlap_ms), two(&measurement.staleness_ms));
        let Measurement { ratio, windows, runs, left_out, .. } = measurement;
        let _ = writeln!(
            out,
            "| {ratio} | {windows} of {runs} | {p:.2} | {from:.2}–{to:.2} | {overlap} | {staleness} | {left_out} |"
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_wilsons() {
        let near = |a: f64, b: f64| (a - b).abs() < 5e-4;
        // Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I: 81 of 263, 15 of 148,
        // 0 of 20, 1 of 29.
        for (k, n, from, to) in
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]
        {
            let (_, low, high) = wilson(k, n);
            assert!(near(low, from) && near(high, to), "{k} of {n}: {low} {high}");
        }
        assert_eq!((wilson(0, 0).1, wilson(0, 0).2), (0.0, 1.0));
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.9), Some(3.0));
        assert_eq!(quantile(&[5.0, 1.0, 3.0], 0.5), Some(3.0));
    }
}
