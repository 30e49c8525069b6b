//! Going through the seeds, on all cores. What comes of it does not depend on how many there are.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::{finding::Class, trial::Trial};

/// Seeds that a thread takes at a time.
const BLOCK: u64 = 8;
/// Between two lines of progress.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// A seed could not be tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {why}")]
pub struct SeedError {
    /// The smallest such seed.
    pub seed: u64,
    /// What went wrong.
    pub why: String,
}

/// The findings of one class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Schedules with such a violation.
    pub count: u64,
    /// The smallest of their seeds, in order.
    pub seeds: Vec<u64>,
}

/// What came of many schedules.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// How many.
    pub schedules: u64,
    /// Those that say nothing.
    pub inconclusive: u64,
    /// Of the smallest seed among those: why.
    pub why_inconclusive: Option<(u64, String)>,
    /// Holds in all of them.
    pub holds: u64,
    /// Attempts in all of them.
    pub attempts: u64,
    /// Messages in all of them.
    pub messages: u64,
    /// Virtual time of all of them.
    pub lasted: Duration,
    /// Findings.
    pub classes: BTreeMap<Class, Found>,
}

impl Tally {
    /// Findings of all classes.
    pub fn findings(&self) -> u64 {
        self.classes.values().map(|found| found.count).sum()
    }

    fn add(&mut self, seed: u64, trial: Trial) {
        self.schedules += 1;
        self.holds += trial.holds;
        self.attempts += trial.attempts;
        self.messages += trial.messages;
        self.lasted += trial.lasted;
        if trial.verdicts.verdict == checker::Verdict::Inconclusive {
            self.inconclusive += 1;
            if self.why_inconclusive.as_ref().is_none_or(|(first, _)| seed < *first) {
                self.why_inconclusive = Some((seed, why(&trial)));
            }
        }
        for class in trial.classes {
            let found = self.classes.entry(class).or_default();
            found.count += 1;
            found.seeds.push(seed);
        }
    }

    fn merge(&mut self, other: Tally, kept: usize) {
        self.schedules += other.schedules;
        self.inconclusive += other.inconclusive;
        self.why_inconclusive = match (self.why_inconclusive.take(), other.why_inconclusive) {
            (Some(one), Some(other)) => Some(if one.0 < other.0 { one } else { other }),
            (one, other) => one.or(other),
        };
        self.holds += other.holds;
        self.attempts += other.attempts;
        self.messages += other.messages;
        self.lasted += other.lasted;
        for (class, theirs) in other.classes {
            let found = self.classes.entry(class).or_default();
            found.count += theirs.count;
            found.seeds.extend(theirs.seeds);
            found.seeds.sort_unstable();
            found.seeds.truncate(kept);
        }
    }
}

fn why(trial: &Trial) -> String {
    let properties = trial.verdicts.properties.iter();
    let of_properties = properties
        .filter(|(_, p)| p.verdict() == checker::Verdict::Inconclusive)
        .flat_map(|(name, p)| p.reasons().iter().map(move |reason| format!("{name}: {reason}")));
    trial.verdicts.reasons.iter().cloned().chain(of_properties).next().unwrap_or_default()
}

/// What is gone through.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Seeds of each class that are kept.
    pub kept: usize,
    /// Threads.
    pub jobs: usize,
}

/// Tries every seed. `tell` is told now and then how many are done.
///
/// # Errors
/// The smallest seed that could not be tried. Seeds are taken in blocks in their order, and a block that was taken is gone through up to its first
/// error, so that it is the same one each time.
pub fn scan(
    seeds: Seeds,
    attempt: &(dyn Fn(u64) -> Result<Trial, String> + Sync),
    tell: &dyn Fn(u64),
) -> Result<Tally, SeedError> {
    let (next, done, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let thread = || -> Result<Tally, SeedError> {
        let mut tally = Tally::default();
        while !failed.load(Ordering::Relaxed) {
            let block = next.fetch_add(BLOCK, Ordering::Relaxed);
            if block >= seeds.count {
                break;
            }
            let mut part = Tally::default();
            for seed in (block..seeds.count.min(block + BLOCK)).map(|n| seeds.first + n) {
                let tried = caught(|| attempt(seed)).inspect_err(|_| failed.store(true, Ordering::Relaxed));
                part.add(seed, tried.map_err(|why| SeedError { seed, why })?);
                done.fetch_add(1, Ordering::Relaxed);
            }
            tally.merge(part, seeds.kept);
        }
        Ok(tally)
    };
    let (mut tally, mut first_error) = (Tally::default(), None::<SeedError>);
    thread::scope(|scope| {
        let (sender, ended) = mpsc::channel();
        for _ in 0..seeds.jobs.max(1) {
            let (sender, thread) = (sender.clone(), &thread);
            // Whoever receives outlives the threads; there is nobody to tell if not.
            scope.spawn(move || drop(sender.send(thread())));
        }
        drop(sender);
        loop {
            match ended.recv_timeout(TELL_EVERY) {
                Ok(Ok(part)) => tally.merge(part, seeds.kept),
                Ok(Err(error)) if first_error.as_ref().is_none_or(|e| error.seed < e.seed) => first_error = Some(error),
                Ok(Err(_)) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => tell(done.load(Ordering::Relaxed)),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    first_error.map_or(Ok(tally), Err)
}

/// A panic is a bug of the harness's own; its seed is what somebody needs to find it.
fn caught<T>(doing: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(doing)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("the simulation panicked, which is a bug of its own: {}", text.unwrap_or("no message")))
    })
}

/// Does the same with each of `items`, several at a time; answers in their order.
pub fn each<T: Sync, R: Send>(jobs: usize, items: &[T], doing: &(dyn Fn(&T) -> R + Sync)) -> Vec<R> {
    let next = AtomicU64::new(0);
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Ok(i) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                    && let Some(item) = items.get(i)
                {
                    let _ = sender.send((i, doing(item)));
                }
            });
        }
    });
    drop(sender);
    let mut all: Vec<(usize, R)> = done.into_iter().collect();
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::scene::{class, trial};

    /// Every third seed goes wrong, every seventh in another way too.
    fn attempt(seed: u64) -> Result<Trial, String> {
        let mut classes = Vec::new();
        if seed.is_multiple_of(3) {
            classes.push(class("pause"));
        }
        if seed.is_multiple_of(7) {
            classes.push(class("clock"));
        }
        Ok(Trial { holds: seed, attempts: 2 * seed, ..trial(classes) })
    }

    fn seeds(jobs: usize) -> Seeds {
        Seeds { first: 100, count: 1_000, kept: 3, jobs }
    }

    #[test]
    fn what_is_found_does_not_depend_on_the_number_of_threads() {
        let one = scan(seeds(1), &attempt, &|_| ()).unwrap();
        assert_eq!(one.schedules, 1_000);
        assert_eq!(one.findings(), 333 + 143);
        assert_eq!(one.classes[&class("pause")], Found { count: 333, seeds: vec![102, 105, 108] });
        assert_eq!(one.classes[&class("clock")], Found { count: 143, seeds: vec![105, 112, 119] });
        assert_eq!(one.attempts, 2 * one.holds);
        for jobs in [2, 3, 8] {
            assert_eq!(scan(seeds(jobs), &attempt, &|_| ()).unwrap(), one, "{jobs} threads");
        }
    }

    #[test]
    fn the_first_seed_that_cannot_be_tried_is_named_however_many_threads_there_are() {
        let broken = |seed: u64| match seed {
            123 | 131 | 700 => Err("no model of it".into()),
            122 => panic!("odd"),
            _ => attempt(seed),
        };
        for jobs in [1, 2, 8] {
            let error = scan(seeds(jobs), &broken, &|_| ()).unwrap_err();
            assert_eq!(error.seed, 122);
            assert!(error.why.contains("panicked") && error.why.contains("odd"), "{error}");
        }
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        let items: Vec<u32> = (0..50).collect();
        assert_eq!(each(4, &items, &|n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(each(4, &[] as &[u32], &|n| n * 2), Vec::<u32>::new());
    }
}
