//! Figures of many rounds, and their ratios within a round.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The times of one client in one round.
pub struct Times(Histogram<u64>);

impl Times {
    pub fn new() -> Times {
        Times(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants"))
    }

    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The quantile, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// One figure of every round.
#[derive(Default, Clone)]
pub struct Series(Vec<f64>);

impl Series {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The figures of this series divided by those of the same rounds of another one.
    pub fn over(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// The median, with the smallest and the largest figure.
impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median() < 100.0 { 2 } else { 0 };
        let sorted = self.sorted();
        let (least, most) = (sorted.first().unwrap_or(&f64::NAN), sorted.last().unwrap_or(&f64::NAN));
        let text = format!("{:.digits$} ({least:.digits$} to {most:.digits$})", self.median());
        f.pad(&text)
    }
}
