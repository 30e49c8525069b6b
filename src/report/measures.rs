//! Latencies and rates of a run, from its history.

use std::{collections::HashMap, fmt::Write, time::Duration};

use hdrhistogram::Histogram;
use history::{Event, FaultKind, FaultPhase, HoldId, Record, Stamp};

/// Largest value that a histogram keeps apart: one hour, in microseconds.
const MAX_US: u64 = 3_600_000_000;

/// Measures of one run.
pub struct Measures {
    acquire_us: Histogram<u64>,
    held_us: Histogram<u64>,
    intended: HashMap<HoldId, Stamp>,
    acquired: HashMap<HoldId, Stamp>,
    first: Option<Stamp>,
    last: Option<Stamp>,
    attempts: u64,
    offered: u64,
    dropped: u64,
    used: u64,
    lost_counts: u32,
    last_intended: Option<Stamp>,
}

impl Default for Measures {
    fn default() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, MAX_US, 3).expect("one hour in microseconds at three digits is in range");
        Measures {
            acquire_us: histogram(),
            held_us: histogram(),
            intended: HashMap::new(),
            acquired: HashMap::new(),
            first: None,
            last: None,
            attempts: 0,
            offered: 0,
            dropped: 0,
            used: 0,
            lost_counts: 0,
            last_intended: None,
        }
    }
}

fn us(from: Stamp, to: Stamp) -> u64 {
    (to.since(from).as_micros() as u64).clamp(1, MAX_US)
}

impl Measures {
    /// Takes the next record.
    pub fn see(&mut self, record: &Record) {
        match &record.event {
            Event::Acquire { attempt, intended, .. } => {
                self.attempts += 1;
                self.first = Some(self.first.map_or(*intended, |f| f.min(*intended)));
                self.last_intended = self.last_intended.max(Some(*intended));
                self.intended.insert(*attempt, *intended);
            }
            Event::Acquired { attempt, .. } => {
                if let Some(intended) = self.intended.remove(attempt) {
                    self.acquire_us.saturating_record(us(intended, record.at));
                }
                self.acquired.insert(*attempt, record.at);
            }
            Event::AcquireFailed { attempt, .. } => {
                self.intended.remove(attempt);
            }
            Event::Release { hold } | Event::GaveUp { hold } => {
                if let Some(acquired) = self.acquired.remove(hold) {
                    self.held_us.saturating_record(us(acquired, record.at));
                }
                self.used += 1;
                self.last = self.last.max(Some(record.at));
            }
            Event::Sections { offered, dropped, .. } => {
                self.offered += offered;
                self.dropped += dropped;
            }
            Event::Fault { kind: FaultKind::Kill, node, phase: FaultPhase::Proved { .. }, .. }
                if node.as_str().starts_with("worker-") =>
            {
                self.lost_counts += 1;
            }
            _ => {}
        }
    }

    /// From the first section that was due to the last: sections go on being offered while the last fault is healed.
    fn last_due(&self) -> Duration {
        self.last_intended.zip(self.first).map_or(Duration::ZERO, |(last, first)| last.since(first))
    }

    /// A few lines for people; `time` is the length of the fault phase, for which sections were offered.
    pub fn lines(&self, time: Duration) -> String {
        let mut out = String::new();
        let span = self.last.zip(self.first).map_or(Duration::ZERO, |(last, first)| last.since(first));
        let rate = |n: u64, over: Duration| if over.is_zero() { 0.0 } else { n as f64 / over.as_secs_f64() };
        // A worker that was killed took its count with it; what it had begun is on record.
        let least = if self.lost_counts > 0 { "at least " } else { "" };
        let offered = self.offered.max(self.used);
        let _ = writeln!(
            out,
            "  critical sections   offered {least}{offered} ({:.2}/s), reached {} ({:.2}/s), dropped {least}{}; {} attempts",
            rate(offered, time.max(self.last_due())),
            self.used,
            rate(self.used, span),
            self.dropped,
            self.attempts
        );
        for (name, histogram) in [("acquire latency", &self.acquire_us), ("time held", &self.held_us)] {
            if histogram.is_empty() {
                let _ = writeln!(out, "  {name:<18}  none");
                continue;
            }
            let at = |quantile| millis(histogram.value_at_quantile(quantile));
            let (p50, p99, p999, max) = (at(0.5), at(0.99), at(0.999), millis(histogram.max()));
            let _ = writeln!(out, "  {name:<18}  p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}");
        }
        out
    }
}

fn millis(us: u64) -> String {
    match us {
        0..10_000 => format!("{:.2} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}
