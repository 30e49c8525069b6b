//! Counts, latencies and tokens over time, in a fixed number of buckets: the buckets grow with the run.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use history::{ClientId, Event, HoldId, Key, Mode, ProcessName, Record, Stamp, Token};

use super::tokens::{Finished, TokenPoint, Tokens};
use crate::measures::is_shown;

/// The most buckets. If a run needs more, two become one.
pub const BUCKETS: usize = 256;
/// The first length of a bucket.
const FIRST_NS: u64 = 500_000_000;
/// Classes of latencies: four for each power of two of microseconds.
const CLASSES: usize = 192;

/// Counts of one bucket of time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bucket {
    /// Critical sections that became due here and were begun, now or later.
    pub due: u64,
    /// Critical sections that stopped waiting here: they got their first lock, or their client gave them up or ended.
    pub served: u64,
    /// Attempts that were sent.
    pub attempts: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Holds that were acquired.
    pub acquired: u64,
    latency: Vec<u32>,
}

fn class(latency: Duration) -> usize {
    let us = (latency.as_micros() as u64).max(4);
    let log = us.ilog2() as usize;
    let quarter = ((us >> (log - 2)) & 3) as usize;
    (4 * log + quarter).min(CLASSES - 1)
}

/// The upper bound of a class, in milliseconds.
fn bound_ms(class: usize) -> f64 {
    2f64.powi((class / 4) as i32) * (1.0 + (class % 4 + 1) as f64 / 4.0) / 1e3
}

impl Bucket {
    fn record(&mut self, latency: Duration) {
        self.latency.resize(CLASSES, 0);
        self.latency[class(latency)] += 1;
    }

    fn merge(&mut self, other: &Bucket) {
        self.due += other.due;
        self.served += other.served;
        self.attempts += other.attempts;
        self.failed += other.failed;
        self.acquired += other.acquired;
        if !other.latency.is_empty() {
            self.latency.resize(CLASSES, 0);
            self.latency.iter_mut().zip(&other.latency).for_each(|(sum, n)| *sum += n);
        }
    }

    /// The latency from the time at which a section was due to its hold, in milliseconds: an upper bound that is at
    /// most a quarter too large. None if nothing was acquired here, or too little for this quantile.
    pub fn latency_ms(&self, quantile: f64) -> Option<f64> {
        let all: u64 = self.latency.iter().map(|n| u64::from(*n)).sum();
        // One value is its own median.
        if quantile > 0.5 && !is_shown(quantile, all) {
            return None;
        }
        let wanted = ((all as f64 * quantile).ceil() as u64).max(1);
        let mut sum = 0;
        let found = self.latency.iter().position(|n| {
            sum += u64::from(*n);
            sum >= wanted
        });
        found.map(bound_ms)
    }
}

/// Counts, latencies and tokens over time.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The start of the first bucket.
    pub from: Stamp,
    /// The length of a bucket.
    pub width: Duration,
    /// The buckets without gaps.
    pub buckets: Vec<Bucket>,
    /// Tokens by the time of acquisition. Tokens that went back are among them, of the others a part.
    pub tokens: Vec<TokenPoint>,
    /// The number of all tokens that went back, those that are left out among them.
    pub tokens_back: u64,
    /// Tokens that are left out.
    pub tokens_left_out: u64,
}

/// The section that a client began last.
#[derive(Debug)]
struct Section {
    due: Stamp,
    process: ProcessName,
    /// True until it has its first lock, or is given up.
    is_waiting: bool,
}

/// An attempt without a result so far.
#[derive(Debug)]
struct Attempt {
    client: ClientId,
    due: Stamp,
    key: Key,
    mode: Mode,
}

/// Builds [`Series`].
#[derive(Debug, Default)]
pub struct SeriesBuilder {
    from: Option<Stamp>,
    /// The last stamp of a process.
    until: Stamp,
    /// The length of a bucket is the first length, doubled this often.
    doublings: u32,
    buckets: Vec<Bucket>,
    left_out: HashMap<ClientId, Vec<u32>>,
    sections: HashMap<ClientId, Section>,
    /// The clients that have begun a section in each process that has not ended.
    of_process: HashMap<ProcessName, HashSet<ClientId>>,
    attempts: HashMap<HoldId, Attempt>,
    tokens: Tokens,
}

impl SeriesBuilder {
    fn place(&mut self, at: Stamp) -> usize {
        let from = *self.from.get_or_insert(at);
        loop {
            let place = ((at.0.saturating_sub(from.0)) / (FIRST_NS << self.doublings)) as usize;
            if place < BUCKETS {
                if self.buckets.len() <= place {
                    self.buckets.resize(place + 1, Bucket::default());
                }
                return place;
            }
            self.doublings += 1;
            let old = std::mem::take(&mut self.buckets);
            self.buckets = old
                .chunks(2)
                .map(|pair| {
                    let mut one = pair[0].clone();
                    pair[1..].iter().for_each(|other| one.merge(other));
                    one
                })
                .collect();
            for counts in self.left_out.values_mut() {
                *counts = counts.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
        }
    }

    fn bucket(&mut self, at: Stamp) -> &mut Bucket {
        let place = self.place(at);
        &mut self.buckets[place]
    }

    /// Adds the next record.
    pub fn add(&mut self, record: &Record) {
        let at = record.at;
        self.until = self.until.max(at);
        match &record.event {
            Event::Started { .. } => {
                self.from.get_or_insert(at);
            }
            Event::Acquire { client, attempt, key, intended, mode, .. } => {
                let begun = Attempt { client: *client, due: *intended, key: key.clone(), mode: *mode };
                self.begin(*attempt, begun, &record.process, at);
            }
            Event::AcquireFailed { attempt, .. } => {
                self.bucket(at).failed += 1;
                self.attempts.remove(attempt);
            }
            Event::Acquired { attempt, token, granted_after, .. } => {
                self.acquired(*attempt, *token, *granted_after, at);
            }
            Event::Finished => self.ended(&record.process, at),
            // The controller, which reports it, has no stamps.
            Event::ProcessEnded { ended, .. } => self.ended(ended, self.until),
            _ => {}
        }
    }

    fn begin(&mut self, id: HoldId, begun: Attempt, process: &ProcessName, at: Stamp) {
        // Each lock of a section and each retry has the section's own time.
        if self.sections.get(&begun.client).is_none_or(|last| last.due != begun.due) {
            self.bucket(begun.due).due += 1;
            let section = Section { due: begun.due, process: process.clone(), is_waiting: true };
            match self.of_process.get_mut(process) {
                Some(clients) => _ = clients.insert(begun.client),
                None => _ = self.of_process.insert(process.clone(), HashSet::from([begun.client])),
            }
            let last = self.sections.insert(begun.client, section);
            if last.is_some_and(|last| last.is_waiting) {
                self.bucket(at).served += 1;
            }
        }
        self.bucket(at).attempts += 1;
        self.attempts.insert(id, begun);
    }

    fn acquired(&mut self, id: HoldId, token: Option<Token>, granted_after: Stamp, at: Stamp) {
        self.bucket(at).acquired += 1;
        let Some(Attempt { client, due, key, mode }) = self.attempts.remove(&id) else { return };
        self.bucket(at).record(at.since(due));
        let waiting = self.sections.get_mut(&client).filter(|section| section.is_waiting && section.due == due);
        if let Some(section) = waiting {
            section.is_waiting = false;
            self.bucket(at).served += 1;
        }
        if let Some(token) = token {
            self.tokens.add(TokenPoint { at, key, token, mode, granted_after, is_back: false });
        }
    }

    /// No section of a process that has ended waits.
    fn ended(&mut self, process: &ProcessName, at: Stamp) {
        let mut count = 0;
        for client in self.of_process.remove(process).into_iter().flatten() {
            let section = self.sections.get_mut(&client);
            if let Some(section) = section.filter(|section| section.is_waiting && section.process == *process) {
                section.is_waiting = false;
                count += 1;
            }
        }
        if count > 0 {
            self.bucket(at).served += count;
        }
    }

    /// A hold is not drawn by itself.
    pub fn left_out(&mut self, client: ClientId, at: Stamp) {
        let place = self.place(at);
        let counts = self.left_out.entry(client).or_default();
        if counts.len() <= place {
            counts.resize(place + 1, 0);
        }
        counts[place] += 1;
    }

    /// The series, and the holds of each client that are left out.
    pub fn finish(self) -> (Series, HashMap<ClientId, Vec<u32>>) {
        let Finished { tokens, back, left_out } = self.tokens.finish();
        let series = Series {
            from: self.from.unwrap_or_default(),
            width: Duration::from_nanos(FIRST_NS << self.doublings),
            buckets: self.buckets,
            tokens,
            tokens_back: back,
            tokens_left_out: left_out,
        };
        (series, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::tokens::TOKENS;

    const MS: u64 = 1_000_000;

    fn add(series: &mut SeriesBuilder, process: &str, at: Stamp, event: Event) {
        series.add(&Record { seq: 0, process: ProcessName::new(process), n: 0, at, event });
    }

    /// The only client of the process `worker-1` sends an attempt for its section that is due then.
    fn begin(series: &mut SeriesBuilder, attempt: u64, due: Stamp, at: Stamp) {
        let (attempt, key) = (HoldId(attempt), Key::new("k0"));
        let (client, mode) = (ClientId(0), Mode::Write);
        let event = Event::Acquire { client, attempt, key, intended: due, mode, above: None };
        add(series, "worker-1", at, event);
    }

    /// The attempt succeeds.
    fn acquire(series: &mut SeriesBuilder, attempt: u64, token: u64, granted_after: Stamp, at: Stamp) {
        let event = Event::Acquired {
            attempt: HoldId(attempt),
            token: Some(Token(token)),
            lease_ns: 0,
            granted_after,
            promised_from: None,
            place: None,
            valid_ns: 0,
            answers: Vec::new(),
        };
        add(series, "worker-1", at, event);
    }

    fn sum(series: &Series, of: fn(&Bucket) -> u64) -> u64 {
        series.buckets.iter().map(of).sum()
    }

    #[test]
    fn a_long_run_has_no_more_buckets_and_loses_no_count() {
        let mut series = SeriesBuilder::default();
        for n in 0..10_000 {
            let at = Stamp(n * 100 * MS);
            begin(&mut series, n, at, at);
            acquire(&mut series, n, n + 1, at, at.plus(Duration::from_millis(8)));
            series.left_out(ClientId(0), at);
        }
        let (series, left_out) = series.finish();
        assert!(series.buckets.len() <= BUCKETS && series.buckets.len() > BUCKETS / 4);
        let counts: [fn(&Bucket) -> u64; 4] = [|b| b.due, |b| b.served, |b| b.attempts, |b| b.acquired];
        assert_eq!(counts.map(|of| sum(&series, of)), [10_000; 4]);
        assert_eq!(left_out[&ClientId(0)].iter().sum::<u32>(), 10_000);
        assert!(series.tokens.len() <= TOKENS);
        assert_eq!(series.tokens.len() as u64 + series.tokens_left_out, 10_000);
        assert!(series.tokens.iter().all(|point| !point.is_back));
        let median = series.buckets[0].latency_ms(0.5).unwrap();
        assert!((8.0..=10.0).contains(&median), "{median}");
    }

    #[test]
    fn a_token_that_goes_back_is_kept_with_the_larger_one() {
        let mut series = SeriesBuilder::default();
        for n in 0..20_000_u64 {
            let at = Stamp(n * MS);
            begin(&mut series, n, at, at);
            acquire(&mut series, n, if n == 15_000 { 7 } else { n + 1 }, at, at);
        }
        let (series, _) = series.finish();
        let back: Vec<_> = series.tokens.iter().filter(|point| point.is_back).map(|point| point.token).collect();
        assert_eq!((back, series.tokens_back), (vec![Token(7)], 1));
        assert!(series.tokens.iter().any(|point| point.token == Token(15_000)));
    }

    #[test]
    fn a_section_waits_until_its_first_lock_or_the_end_of_its_process() {
        let mut series = SeriesBuilder::default();
        let second = |n: u64| Stamp(n * 1_000 * MS);
        for n in 0..3 {
            for lock in [2 * n, 2 * n + 1] {
                begin(&mut series, lock, second(n), second(n));
                acquire(&mut series, lock, lock + 1, second(n), second(n));
            }
        }
        // This section is given up for the next one, which waits when its process is killed.
        begin(&mut series, 6, second(3), second(3));
        begin(&mut series, 7, second(4), second(5));
        add(&mut series, "agent", second(9), Event::Watermark);
        add(&mut series, "controller", Stamp(0), Event::ProcessEnded { ended: "worker-1".into(), code: None });
        let (series, _) = series.finish();
        assert_eq!([sum(&series, |b| b.due), sum(&series, |b| b.acquired)], [5, 6]);
        let seconds = series.buckets.chunks(2).map(|pair| pair.iter().map(|b| b.served).sum::<u64>());
        assert_eq!(seconds.collect::<Vec<_>>(), [1, 1, 1, 0, 0, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn a_section_stops_waiting_only_once() {
        let mut series = SeriesBuilder::default();
        let second = |n: u64| Stamp(n * 1_000 * MS);
        begin(&mut series, 0, second(0), second(0));
        add(&mut series, "worker-1", second(1), Event::Finished);
        add(&mut series, "controller", Stamp(0), Event::ProcessEnded { ended: "worker-1".into(), code: Some(0) });
        // The restarted client begins its next section.
        begin(&mut series, 1, second(2), second(2));
        acquire(&mut series, 1, 1, second(2), second(2));
        let (series, _) = series.finish();
        assert_eq!([sum(&series, |b| b.due), sum(&series, |b| b.served)], [2, 2]);
    }

    #[test]
    fn the_end_of_a_process_visits_only_its_own_clients() {
        let mut series = SeriesBuilder::default();
        let clients = 20_000_u32;
        for n in 0..clients {
            let (client, attempt, at, key) = (ClientId(n), HoldId(n.into()), Stamp(MS), Key::new("k0"));
            let event = Event::Acquire { client, attempt, key, intended: at, mode: Mode::Write, above: None };
            add(&mut series, &format!("worker-{}", n + 1), at, event);
        }
        for n in 0..clients {
            add(&mut series, &format!("worker-{}", n + 1), Stamp(2 * MS), Event::Finished);
        }
        assert_eq!(sum(&series.finish().0, |b| b.served), u64::from(clients));
    }

    #[test]
    fn a_high_quantile_of_few_values_is_not_shown() {
        let mut bucket = Bucket::default();
        (0..2).for_each(|_| bucket.record(Duration::from_millis(8)));
        assert!(bucket.latency_ms(0.5).is_some() && bucket.latency_ms(0.99).is_none());
        (2..100).for_each(|_| bucket.record(Duration::from_millis(8)));
        assert!(bucket.latency_ms(0.99).is_some());
    }
}
