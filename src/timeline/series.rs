//! Counts, latencies and tokens over time, in a fixed number of buckets: the buckets grow with the run.

use std::{collections::HashMap, time::Duration};

use history::{ClientId, HoldId, Key, Stamp, Token};

/// The most buckets. If a run needs more, two become one.
pub const BUCKETS: usize = 256;
/// The first length of a bucket.
const FIRST_NS: u64 = 500_000_000;
/// Classes of latencies: four for each power of two of microseconds.
const CLASSES: usize = 128;
/// The most tokens that are kept; beyond that, every second one goes.
const TOKENS: usize = 4_000;
/// The most tokens that went back that are kept.
const BACKWARDS: usize = 1_000;

/// Counts of one bucket of time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bucket {
    /// Critical sections that became due here and were begun, now or later.
    pub due: u64,
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
        self.attempts += other.attempts;
        self.failed += other.failed;
        self.acquired += other.acquired;
        if !other.latency.is_empty() {
            self.latency.resize(CLASSES, 0);
            self.latency.iter_mut().zip(&other.latency).for_each(|(sum, n)| *sum += n);
        }
    }

    /// The latency from the time at which a section was due to its hold, in milliseconds: an upper bound that is at
    /// most a quarter too large. None if nothing was acquired here.
    pub fn latency_ms(&self, quantile: f64) -> Option<f64> {
        let all: u64 = self.latency.iter().map(|n| u64::from(*n)).sum();
        let wanted = ((all as f64 * quantile).ceil() as u64).max(1);
        let mut sum = 0;
        let found = self.latency.iter().position(|n| {
            sum += u64::from(*n);
            sum >= wanted
        });
        found.map(bound_ms)
    }
}

/// The token of one hold.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenPoint {
    /// The `acquire` ok.
    pub at: Stamp,
    /// The key.
    pub key: Key,
    /// The token.
    pub token: Token,
    /// True if a hold of the key that was acquired before had a larger token, or the same one.
    pub is_back: bool,
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
    /// Tokens that are left out.
    pub tokens_left_out: u64,
}

/// Builds [`Series`].
#[derive(Debug, Default)]
pub struct SeriesBuilder {
    from: Option<Stamp>,
    /// The length of a bucket is the first length, doubled this often.
    doublings: u32,
    buckets: Vec<Bucket>,
    left_out: HashMap<ClientId, Vec<u32>>,
    /// The section that each client began last.
    due: HashMap<ClientId, Stamp>,
    intended: HashMap<HoldId, (Stamp, Key)>,
    tokens: Vec<TokenPoint>,
    backwards: Vec<TokenPoint>,
    largest: HashMap<Key, TokenPoint>,
    stride: u64,
    seen: u64,
    tokens_left_out: u64,
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

    /// The first process has started: the first bucket begins here.
    pub fn started(&mut self, at: Stamp) {
        self.from.get_or_insert(at);
    }

    /// An attempt was sent.
    pub fn attempt(&mut self, client: ClientId, id: HoldId, key: &Key, intended: Stamp, at: Stamp) {
        // Each retry of a section has the section's own time.
        if self.due.insert(client, intended) != Some(intended) {
            self.bucket(intended).due += 1;
        }
        self.bucket(at).attempts += 1;
        self.intended.insert(id, (intended, key.clone()));
    }

    /// An attempt failed.
    pub fn failed(&mut self, id: HoldId, at: Stamp) {
        self.bucket(at).failed += 1;
        self.intended.remove(&id);
    }

    /// An attempt succeeded.
    pub fn acquired(&mut self, id: HoldId, token: Option<Token>, at: Stamp) {
        let begun = self.intended.remove(&id);
        let bucket = self.bucket(at);
        bucket.acquired += 1;
        let Some((intended, key)) = begun else { return };
        bucket.record(at.since(intended));
        if let Some(token) = token {
            self.token(TokenPoint { at, key, token, is_back: false });
        }
    }

    fn token(&mut self, point: TokenPoint) {
        let largest = self.largest.get(&point.key);
        if let Some(before) = largest.filter(|before| before.token >= point.token && before.at < point.at) {
            if self.backwards.len() < BACKWARDS {
                // The larger token belongs to the picture.
                self.backwards.push(before.clone());
                self.backwards.push(point);
            } else {
                self.tokens_left_out += 1;
            }
            return;
        }
        if largest.is_none_or(|before| before.token < point.token) {
            self.largest.insert(point.key.clone(), point.clone());
        }
        self.stride = self.stride.max(1);
        self.seen += 1;
        if !self.seen.is_multiple_of(self.stride) {
            self.tokens_left_out += 1;
            return;
        }
        self.tokens.push(point);
        if self.tokens.len() > TOKENS {
            self.stride *= 2;
            let before = self.tokens.len();
            let mut n = 0;
            self.tokens.retain(|_| {
                n += 1;
                n % 2 == 0
            });
            self.tokens_left_out += (before - self.tokens.len()) as u64;
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
        let mut tokens = self.tokens;
        tokens.extend(self.backwards);
        tokens.sort_by(|a, b| (a.at, &a.key, a.token).cmp(&(b.at, &b.key, b.token)));
        tokens.dedup();
        let mut largest: HashMap<Key, Token> = HashMap::new();
        for point in &mut tokens {
            let before = largest.entry(point.key.clone()).or_insert(Token(0));
            point.is_back = *before >= point.token && point.token > Token(0);
            *before = (*before).max(point.token);
        }
        let series = Series {
            from: self.from.unwrap_or_default(),
            width: Duration::from_nanos(FIRST_NS << self.doublings),
            buckets: self.buckets,
            tokens,
            tokens_left_out: self.tokens_left_out,
        };
        (series, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_long_run_has_no_more_buckets_and_loses_no_count() {
        let mut series = SeriesBuilder::default();
        let key = Key::new("k0");
        series.started(Stamp(0));
        for n in 0..10_000 {
            let at = Stamp(n * 100 * MS);
            series.attempt(ClientId(0), HoldId(n), &key, at, at);
            series.acquired(HoldId(n), Some(Token(n + 1)), at.plus(Duration::from_millis(8)));
            series.left_out(ClientId(0), at);
        }
        let (series, left_out) = series.finish();
        assert!(series.buckets.len() <= BUCKETS && series.buckets.len() > BUCKETS / 4);
        let sum = |of: fn(&Bucket) -> u64| series.buckets.iter().map(of).sum::<u64>();
        assert_eq!([sum(|b| b.due), sum(|b| b.attempts), sum(|b| b.acquired)], [10_000; 3]);
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
        let key = Key::new("k0");
        for n in 0..20_000_u64 {
            let at = Stamp(n * MS);
            series.attempt(ClientId(0), HoldId(n), &key, at, at);
            let token = if n == 15_000 { 7 } else { n + 1 };
            series.acquired(HoldId(n), Some(Token(token)), at);
        }
        let (series, _) = series.finish();
        let back: Vec<_> = series.tokens.iter().filter(|point| point.is_back).map(|point| point.token).collect();
        assert_eq!(back, [Token(7)]);
        assert!(series.tokens.iter().any(|point| point.token == Token(15_000)));
    }
}
