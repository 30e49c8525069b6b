//! Latencies and rates of a run, computed from its history.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    time::Duration,
};

use hdrhistogram::Histogram;
use history::{ClientId, Event, FaultId, FaultKind, FaultPhase, HoldId, ProcessName, Record, Stamp, Workload};

/// The largest value that a histogram distinguishes, in microseconds: a hundred years. No plan is longer.
const MAX_US: u64 = 100 * 366 * 24 * 3_600 * 1_000_000;

/// Measures of one run.
pub struct Measures {
    acquire_us: Histogram<u64>,
    /// From the start of an attempt that was granted to its hold.
    attempt_us: Histogram<u64>,
    /// From a client's first attempt for a section to its hold.
    wait_us: Histogram<u64>,
    held_us: Histogram<u64>,
    intended: HashMap<HoldId, Stamp>,
    /// The beginning of each open attempt, and that of the first attempt for the same section.
    attempted: HashMap<HoldId, (Stamp, Stamp)>,
    /// For each client, when its section was due, and when it began to try.
    began: HashMap<ClientId, (Stamp, Stamp)>,
    acquired: HashMap<HoldId, Stamp>,
    first: Option<Stamp>,
    last: Option<Stamp>,
    attempts: u64,
    offered: u64,
    dropped: u64,
    /// The sections that ended, by the counts of the workers.
    done: u64,
    /// The most locks of one section.
    locks: u64,
    /// The holds that ended, of each process whose count is not on record.
    uncounted: HashMap<ProcessName, u64>,
    /// True if a worker told how many sections were offered to it.
    is_counted: bool,
    lost_counts: u32,
    last_intended: Option<Stamp>,
    /// The stamps of the request and of the injection of each fault.
    requested: HashMap<FaultId, (Stamp, Stamp)>,
    /// From the request of a fault to the start of its proved effect, by kind.
    effect_us: BTreeMap<FaultKind, Histogram<u64>>,
}

impl Default for Measures {
    fn default() -> Self {
        Measures {
            acquire_us: histogram(),
            attempt_us: histogram(),
            wait_us: histogram(),
            held_us: histogram(),
            intended: HashMap::new(),
            attempted: HashMap::new(),
            began: HashMap::new(),
            acquired: HashMap::new(),
            first: None,
            last: None,
            attempts: 0,
            offered: 0,
            dropped: 0,
            done: 0,
            locks: 1,
            uncounted: HashMap::new(),
            is_counted: false,
            lost_counts: 0,
            last_intended: None,
            requested: HashMap::new(),
            effect_us: BTreeMap::new(),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_US, 3).expect("a hundred years in microseconds at three digits is in range")
}

fn us(from: Stamp, to: Stamp) -> u64 {
    (to.since(from).as_micros() as u64).clamp(1, MAX_US)
}

/// Returns whether a quantile of so many values is shown. Of fewer values, a high quantile would be the longest one
/// under another name.
pub fn is_shown(quantile: f64, values: u64) -> bool {
    // 10 × (1 − 0.9) is a little less than 1.
    quantile == 1.0 || values as f64 * (1.0 - quantile) > 1.0 - 1e-9
}

/// Returns a quantile in milliseconds. None without values, and for a high quantile of too few values.
fn quantile_ms(histogram: &Histogram<u64>, quantile: f64) -> Option<f64> {
    // One value is its own median.
    let is_known = !histogram.is_empty() && (quantile <= 0.5 || is_shown(quantile, histogram.len()));
    is_known.then(|| histogram.value_at_quantile(quantile) as f64 / 1e3)
}

/// Returns the most locks that one section takes. In a hierarchy a section takes at most the parent and one child.
fn locks_of_a_section(workload: &Workload) -> u64 {
    if workload.parent().is_some() { 2 } else { u64::from(workload.locks_per_section) }
}

fn rate(n: u64, over: Duration) -> f64 {
    if over.is_zero() { 0.0 } else { n as f64 / over.as_secs_f64() }
}

impl Measures {
    /// Adds an event of a fault. If the proof does not say when the effect began after the request (a clock, a killed
    /// server), the effect began before the injection was over: the injection is then an upper bound of the delay.
    fn fault(&mut self, fault: FaultId, kind: FaultKind, phase: &FaultPhase, at: Stamp) {
        match phase {
            FaultPhase::Requested { .. } => drop(self.requested.insert(fault, (at, at))),
            FaultPhase::Injected => {
                if let Some((_, injected)) = self.requested.get_mut(&fault) {
                    *injected = at;
                }
            }
            FaultPhase::Proved { from, .. } => {
                if let Some((requested, injected)) = self.requested.remove(&fault) {
                    let delay = us(requested, if *from > requested { *from } else { injected });
                    self.effect_us.entry(kind).or_insert_with(histogram).saturating_record(delay);
                }
            }
            _ => {}
        }
    }

    /// Adds the next record.
    pub fn add(&mut self, record: &Record) {
        if let Event::Fault { fault, kind, phase, .. } = &record.event {
            self.fault(*fault, *kind, phase, record.at);
        }
        match &record.event {
            Event::Plan { plan, .. } => self.locks = locks_of_a_section(&plan.workload),
            Event::Acquire { client, attempt, intended, .. } => {
                self.attempts += 1;
                self.first = Some(self.first.map_or(*intended, |f| f.min(*intended)));
                self.last_intended = self.last_intended.max(Some(*intended));
                self.intended.insert(*attempt, *intended);
                let (due, began) = self.began.entry(*client).or_insert((*intended, record.at));
                if due != intended {
                    (*due, *began) = (*intended, record.at);
                }
                self.attempted.insert(*attempt, (record.at, *began));
            }
            Event::Acquired { attempt, .. } => {
                if let Some(intended) = self.intended.remove(attempt) {
                    self.acquire_us.saturating_record(us(intended, record.at));
                }
                if let Some((attempted, began)) = self.attempted.remove(attempt) {
                    self.attempt_us.saturating_record(us(attempted, record.at));
                    self.wait_us.saturating_record(us(began, record.at));
                }
                self.acquired.insert(*attempt, record.at);
            }
            Event::AcquireFailed { attempt, .. } => {
                self.intended.remove(attempt);
                self.attempted.remove(attempt);
            }
            Event::Release { hold } | Event::GaveUp { hold } => {
                if let Some(acquired) = self.acquired.remove(hold) {
                    self.held_us.saturating_record(us(acquired, record.at));
                }
                match self.uncounted.get_mut(&record.process) {
                    Some(holds) => *holds += 1,
                    None => drop(self.uncounted.insert(record.process.clone(), 1)),
                }
                self.last = self.last.max(Some(record.at));
            }
            Event::Sections { offered, done, dropped } => {
                self.is_counted = true;
                self.uncounted.remove(&record.process);
                self.offered = self.offered.saturating_add(*offered);
                self.done = self.done.saturating_add(*done);
                self.dropped = self.dropped.saturating_add(*dropped);
            }
            Event::Fault { kind: FaultKind::Kill, node, phase: FaultPhase::Proved { .. }, .. }
                if node.as_str().starts_with("worker-") =>
            {
                self.lost_counts += 1;
            }
            _ => {}
        }
    }

    /// From the first section that was due to the last: sections are still offered while the last fault is healed.
    fn last_due(&self) -> Duration {
        self.last_intended.zip(self.first).map_or(Duration::ZERO, |(last, first)| last.since(first))
    }

    /// The quantile of the time from a section that was due to its hold, in milliseconds. None without holds, and for a
    /// high quantile of too few holds.
    pub fn acquire_ms(&self, quantile: f64) -> Option<f64> {
        quantile_ms(&self.acquire_us, quantile)
    }

    /// The sections of processes whose counts are not on record. Their holds were those of at least so many sections.
    fn sections_without_count(&self) -> u64 {
        self.uncounted.values().map(|holds| holds.div_ceil(self.locks)).sum()
    }

    /// The sections that acquired all their locks. Holds of a section without a count may lack a further lock.
    fn reached(&self) -> u64 {
        self.done.saturating_add(if self.locks == 1 { self.sections_without_count() } else { 0 })
    }

    /// The sections that were reached in each second, from the first section that was due to the last that ended.
    fn reached_per_s(&self) -> f64 {
        rate(self.reached(), self.last.zip(self.first).map_or(Duration::ZERO, |(last, first)| last.since(first)))
    }

    /// The measures by the names that records of suites use; times in milliseconds. Without holds there are none, and
    /// of few holds no high quantile.
    pub fn figures(&self) -> Vec<(String, f64)> {
        let mut figures = Vec::new();
        let histograms = [("acquire", &self.acquire_us), ("wait", &self.wait_us), ("attempt", &self.attempt_us)];
        for (name, histogram) in histograms {
            for (of, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
                figures.extend(quantile_ms(histogram, quantile).map(|ms| (format!("measures.{name}_{of}_ms"), ms)));
            }
        }
        if self.reached() > 0 {
            figures.push(("measures.reached_per_s".to_owned(), self.reached_per_s()));
        }
        figures
    }

    /// A few lines for people; `time` is the length of the fault phase, for which sections were offered.
    pub fn lines(&self, time: Duration) -> String {
        let mut out = String::new();
        // A killed worker lost its count. The ends of its holds are on record, but not that of a hold that it had when
        // it was killed.
        let least = if self.lost_counts > 0 || !self.uncounted.is_empty() { "at least " } else { "" };
        let offered = self.offered.saturating_add(self.sections_without_count());
        let _ = match self.is_counted || self.lost_counts > 0 {
            true => writeln!(
                out,
                "  critical sections   offered {least}{offered} ({:.2}/s), reached {least}{} ({:.2}/s), \
                 dropped {least}{}; {} attempts",
                rate(offered, time.max(self.last_due())),
                self.reached(),
                self.reached_per_s(),
                self.dropped,
                self.attempts
            ),
            // Nobody told how many were offered.
            false => writeln!(out, "  attempts            {}, {} acquired", self.attempts, self.acquire_us.len()),
        };
        for (name, histogram) in [("acquire latency", &self.acquire_us), ("time held", &self.held_us)] {
            if histogram.is_empty() {
                let _ = writeln!(out, "  {name:<18}  none");
                continue;
            }
            let quantiles = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)].into_iter();
            let quantiles = quantiles.filter(|(_, quantile)| is_shown(*quantile, histogram.len()));
            let told =
                |(of, quantile): (&str, f64)| format!("{of} {}, ", millis(histogram.value_at_quantile(quantile)));
            let _ = writeln!(
                out,
                "  {name:<18}  {}max {}",
                quantiles.map(told).collect::<String>(),
                millis(histogram.max())
            );
        }
        for (kind, histogram) in &self.effect_us {
            let (p50, max) = (millis(histogram.value_at_quantile(0.5)), millis(histogram.max()));
            let name = format!("{kind} took effect");
            let _ = writeln!(out, "  {name:<18}  p50 {p50}, max {max} after the request, {} proved", histogram.len());
        }
        out
    }
}

/// Returns a time for people: `8.25 ms`, `40 ms`, `1.50 s`. The times of a run are known to three digits.
pub fn shown(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1e3 => format!("{ms:.0} ms"),
        ms if ms < 1e6 => format!("{:.2} s", ms / 1e3),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

fn millis(us: u64) -> String {
    shown(us as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use history::{FailureReason, Outcome, ProcessName};

    use super::*;

    fn ms(n: u64) -> Stamp {
        Stamp(n * 1_000_000)
    }

    /// An attempt for a section that was due at this time in milliseconds.
    fn acquire(attempt: u64, due: u64) -> Event {
        Event::Acquire {
            client: ClientId(1),
            attempt: HoldId(attempt),
            key: "k0".into(),
            intended: ms(due),
            mode: history::Mode::Write,
            above: None,
        }
    }

    fn acquired(attempt: u64) -> Event {
        Event::Acquired {
            attempt: HoldId(attempt),
            token: None,
            lease_ns: 0,
            granted_after: ms(0),
            promised_from: None,
            place: None,
            valid_ns: 0,
            answers: Vec::new(),
        }
    }

    #[test]
    fn the_time_held_includes_holds_that_were_given_up() {
        let mut measures = Measures::default();
        for (at, event) in [(0, acquire(1, 0)), (100, acquired(1)), (2_100, Event::GaveUp { hold: HoldId(1) })] {
            measures.add(&Record { seq: 0, process: ProcessName::new("worker-1"), n: 0, at: ms(at), event });
        }
        let lines = measures.lines(Duration::from_secs(3));
        assert!(lines.contains("time held           max 2.00 s\n"), "{lines}");
    }

    #[test]
    fn the_offered_rate_counts_until_the_last_section_was_due() {
        let mut measures = Measures::default();
        for (attempt, due) in [(1, 0), (2, 20_000)] {
            let (process, event) = (ProcessName::new("worker-1"), acquire(attempt, due));
            measures.add(&Record { seq: 0, process, n: 0, at: ms(due), event });
        }
        add_sections(&mut measures, "worker-1", 0, Some((40, 2, 38)));
        // The last fault was healed 10 s after the end of the fault phase.
        let lines = measures.lines(Duration::from_secs(10));
        assert!(lines.starts_with("  critical sections   offered 40 (2.00/s), "), "{lines}");
    }

    #[test]
    fn waiting_counts_from_the_first_attempt_for_a_section_and_a_granted_attempt_from_itself() {
        let mut measures = Measures::default();
        let mut tell = |at: u64, event| {
            measures.add(&Record { seq: 0, process: ProcessName::new("worker-1"), n: 0, at: ms(at), event });
        };
        tell(100, acquire(1, 40));
        tell(
            110,
            Event::AcquireFailed {
                attempt: HoldId(1),
                outcome: Outcome::Failed,
                why: FailureReason::Held,
                detail: None,
                answers: Vec::new(),
            },
        );
        tell(200, acquire(2, 40));
        tell(230, acquired(2));
        tell(330, Event::Release { hold: HoldId(2) });
        let figures: std::collections::BTreeMap<_, _> = measures.figures().into_iter().collect();
        let near = |name: &str, ms: f64| (figures[&format!("measures.{name}")] - ms).abs() < ms / 100.0;
        assert!(
            near("acquire_p50_ms", 190.0) && near("wait_p50_ms", 130.0) && near("attempt_max_ms", 30.0),
            "{figures:?}"
        );
        assert!(near("reached_per_s", 1.0 / 0.29), "{figures:?}");
    }

    #[test]
    fn delays_of_proved_faults_are_measured_by_kind() {
        let mut measures = Measures::default();
        let mut tell = |fault: u32, kind, at: u64, phase| {
            let (fault, node, process) = (FaultId(fault), "worker-1".into(), ProcessName::new("agent"));
            let event = Event::Fault { fault, kind, node, phase };
            measures.add(&Record { seq: 0, process, n: 0, at: ms(at), event });
        };
        let requested = || FaultPhase::Requested { asked_ns: 1, hold: None };
        for (fault, delay) in [(1, 20), (2, 30), (3, 500)] {
            tell(fault, FaultKind::Pause, 1_000, requested());
            tell(fault, FaultKind::Pause, 4_000, FaultPhase::Proved { from: ms(1_000 + delay), to: ms(4_000) });
        }
        tell(4, FaultKind::Clock, 1_000, requested());
        tell(4, FaultKind::Clock, 1_000, FaultPhase::Unproved { why: "it shows nothing".into() });
        tell(5, FaultKind::Delay, 1_000, requested());
        tell(5, FaultKind::Delay, 1_040, FaultPhase::Injected);
        tell(5, FaultKind::Delay, 1_100, FaultPhase::Proved { from: ms(995), to: ms(1_100) });
        let lines = measures.lines(Duration::from_secs(1));
        assert!(lines.contains("pause took effect   p50 30 ms, max 500 ms after the request, 3 proved\n"), "{lines}");
        assert!(lines.contains("delay took effect   p50 40 ms, max 40 ms after"), "{lines}");
        assert!(!lines.contains("clock took effect"), "{lines}");
        assert!(lines.starts_with("  attempts            0, 0 acquired\n"), "{lines}");
    }

    /// A worker ends the holds of its sections, and then tells its count, if it has one.
    fn add_sections(measures: &mut Measures, worker: &str, holds: u64, count: Option<(u64, u64, u64)>) {
        let mut tell = |event| {
            measures.add(&Record { seq: 0, process: ProcessName::new(worker), n: 0, at: Stamp(1), event });
        };
        (0..holds).for_each(|hold| tell(Event::Release { hold: HoldId(hold) }));
        if let Some((offered, done, dropped)) = count {
            tell(Event::Sections { offered, done, dropped });
        }
    }

    #[test]
    fn sections_with_several_locks_are_counted_once() {
        let mut measures = Measures { locks: 2, ..Measures::default() };
        add_sections(&mut measures, "worker-1", 20, Some((14, 10, 4)));
        add_sections(&mut measures, "worker-2", 14, Some((10, 7, 3)));
        let lines = measures.lines(Duration::from_secs(1));
        let counts = "  critical sections   offered 24 (24.00/s), reached 17 (0.00/s), dropped 7;";
        assert!(lines.starts_with(counts), "{lines}");
    }

    #[test]
    fn the_holds_of_a_killed_worker_bound_its_sections() {
        for (locks, counts) in [(1, "19 (19.00/s), reached at least 15 "), (2, "17 (17.00/s), reached at least 10 ")] {
            let mut measures = Measures { locks, ..Measures::default() };
            add_sections(&mut measures, "worker-1", 10 * locks, Some((14, 10, 4)));
            add_sections(&mut measures, "worker-2", 5, None);
            let lines = measures.lines(Duration::from_secs(1));
            assert!(lines.contains(counts) && lines.contains(", dropped at least 4;"), "{lines}");
        }
    }

    #[test]
    fn the_locks_of_a_section_follow_from_the_workload() {
        let several = Workload { keys: 3, locks_per_section: 2, ..Workload::default() };
        let hierarchy = Workload { keys: 3, hierarchy: 0.5, ..Workload::default() };
        let found = [Workload::default(), several, hierarchy].map(|workload| locks_of_a_section(&workload));
        assert_eq!(found, [1, 2, 2]);
    }

    #[test]
    fn a_quantile_of_too_few_values_is_not_shown() {
        assert!(!is_shown(0.999, 999) && is_shown(0.999, 1_000) && is_shown(1.0, 1));
        assert!(!is_shown(0.99, 99) && is_shown(0.99, 100) && !is_shown(0.9, 9) && is_shown(0.9, 10));
        let mut measures = Measures::default();
        (1..=100).for_each(|ms| measures.held_us.saturating_record(ms * 1_000));
        let lines = measures.lines(Duration::from_secs(1));
        assert!(lines.contains("time held           p50 50 ms, p99 99 ms, max 100 ms\n"), "{lines}");
    }

    #[test]
    fn a_high_quantile_of_few_values_is_no_figure() {
        let of = |values: u64| {
            let mut measures = Measures::default();
            (1..=values).for_each(|ms| measures.wait_us.saturating_record(ms * 1_000));
            measures.figures().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let names = |all: &[&str]| all.iter().map(|of| format!("measures.wait_{of}_ms")).collect::<Vec<_>>();
        assert_eq!(of(0), names(&[]));
        assert_eq!(of(1), names(&["p50", "max"]));
        assert_eq!(of(99), names(&["p50", "max"]));
        assert_eq!(of(999), names(&["p50", "p99", "max"]));
        assert_eq!(of(1_000), names(&["p50", "p99", "p999", "max"]));
        let mut measures = Measures::default();
        measures.acquire_us.saturating_record(1_000);
        assert_eq!((measures.acquire_ms(0.99), measures.acquire_ms(0.5).is_some()), (None, true));
    }

    #[test]
    fn a_time_of_hours_is_not_cut() {
        let mut measures = Measures::default();
        measures.held_us.saturating_record(us(Stamp(0), Stamp(2 * 3_600 * 1_000_000_000)));
        let lines = measures.lines(Duration::from_secs(1));
        // The three digits of the histogram end above 7,200 s.
        assert!(lines.contains("time held           max 7202 s\n"), "{lines}");
        assert_eq!([9.994, 12.3, 999_990.0, 1e6].map(shown), ["9.99 ms", "12 ms", "999.99 s", "1000 s"]);
    }

    #[test]
    fn the_count_of_a_killed_worker_is_a_lower_bound() {
        // A server counts no sections.
        for (node, told) in [("worker-1", "offered at least 14 "), ("redis-1", "offered 14 ")] {
            let mut measures = Measures::default();
            add_sections(&mut measures, "worker-2", 0, Some((14, 10, 4)));
            let phase = FaultPhase::Proved { from: Stamp(1), to: Stamp(2) };
            let event = Event::Fault { fault: FaultId(1), kind: FaultKind::Kill, node: node.into(), phase };
            measures.add(&Record { seq: 0, process: ProcessName::new("agent"), n: 0, at: Stamp(2), event });
            let lines = measures.lines(Duration::from_secs(1));
            assert!(lines.starts_with(&format!("  critical sections   {told}")), "{node}: {lines}");
        }
    }

    #[test]
    fn counts_of_sections_stop_at_the_largest_number() {
        let (mut measures, max) = (Measures::default(), Some((u64::MAX, u64::MAX, 0)));
        ["worker-1", "worker-2"].iter().for_each(|of| add_sections(&mut measures, of, 0, max));
        assert!(measures.lines(Duration::from_secs(1)).contains(&format!("offered {} ", u64::MAX)));
    }
}
