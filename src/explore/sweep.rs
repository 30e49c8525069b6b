//! Simulates all seeds, on all cores. The result does not depend on the number of cores.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{finding::Class, trial::Trial};

/// Seeds that a thread takes at a time.
const BLOCK: u64 = 8;
/// Interval of progress lines.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A seed whose plan could not be drawn or simulated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("seed {seed}: {why}")]
pub struct SeedError {
    /// The seed.
    pub seed: u64,
    /// The reason.
    pub why: String,
}

/// The schedules with a violation of one class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occurrences {
    /// The number of schedules.
    pub count: u64,
    /// Their smallest seeds, in order.
    pub seeds: Vec<u64>,
}

/// The results of many schedules.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// The number of schedules that were judged.
    pub schedules: u64,
    /// The number of schedules that ended with an error.
    pub failed: u64,
    /// The error of the smallest seed among them.
    pub first_error: Option<SeedError>,
    /// The number of inconclusive schedules.
    pub inconclusive: u64,
    /// The smallest seed among the inconclusive schedules, with its reason.
    pub why_inconclusive: Option<(u64, String)>,
    /// Holds in all schedules.
    pub holds: u64,
    /// Attempts in all schedules.
    pub attempts: u64,
    /// Messages in all schedules.
    pub messages: u64,
    /// Virtual time of all schedules.
    pub lasted: Duration,
    /// Occurrences by class.
    pub classes: BTreeMap<Class, Occurrences>,
}

impl Tally {
    /// Adds the result of a seed.
    pub fn add(&mut self, seed: u64, trial: Trial) {
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

    /// Adds a seed whose schedule ended with an error.
    pub fn add_error(&mut self, error: SeedError) {
        self.failed += 1;
        if self.first_error.as_ref().is_none_or(|first| error.seed < first.seed) {
            self.first_error = Some(error);
        }
    }

    fn merge(&mut self, other: Tally, kept: usize) {
        self.schedules += other.schedules;
        let failed = self.failed + other.failed;
        other.first_error.into_iter().for_each(|error| self.add_error(error));
        self.failed = failed;
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

/// The seeds of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    /// The first seed.
    pub first: u64,
    /// The number of seeds.
    pub count: u64,
    /// The number of seeds to keep of each class.
    pub kept: usize,
    /// Threads.
    pub jobs: usize,
}

/// Simulates every seed. `progress` gets the number of finished seeds now and then. A schedule that ends with an error
/// is counted, and the others go on.
pub fn sweep(seeds: Seeds, attempt: &(dyn Fn(u64) -> Result<Trial, String> + Sync), progress: &dyn Fn(u64)) -> Tally {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let thread = || {
        let mut tally = Tally::default();
        loop {
            let block = next.fetch_add(BLOCK, Ordering::Relaxed);
            if block >= seeds.count {
                break;
            }
            let mut part = Tally::default();
            for seed in (block..seeds.count.min(block + BLOCK)).map(|n| seeds.first + n) {
                match caught(|| attempt(seed)) {
                    Ok(trial) => part.add(seed, trial),
                    Err(why) => part.add_error(SeedError { seed, why }),
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            tally.merge(part, seeds.kept);
        }
        tally
    };
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let (sender, ended) = mpsc::channel();
        let (thread, blocks) = (&thread, usize::try_from(seeds.count.div_ceil(BLOCK)).unwrap_or(usize::MAX));
        // The receiver outlives the threads, so the send cannot fail.
        spawned(scope, seeds.jobs.min(blocks), move || drop(sender.send(thread())));
        loop {
            match ended.recv_timeout(PROGRESS_EVERY) {
                Ok(part) => tally.merge(part, seeds.kept),
                Err(mpsc::RecvTimeoutError::Timeout) => progress(done.load(Ordering::Relaxed)),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    tally
}

/// Starts `count` threads that share `work`, and at least one. The system may give fewer threads, as in a container
/// with a limit of processes: then those that it gives do the work. Without any, the caller's thread does it.
fn spawned<'scope>(scope: &'scope thread::Scope<'scope, '_>, count: usize, work: impl Fn() + Clone + Send + 'scope) {
    for n in 0..count.max(1) {
        if thread::Builder::new().spawn_scoped(scope, work.clone()).is_err() {
            if n == 0 {
                work();
            }
            return;
        }
    }
}

/// Turns a panic into an error: the seed is needed to find the bug of the harness.
pub fn caught<T>(doing: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(doing)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("the simulation panicked, which is a bug of the harness: {}", text.unwrap_or("no message")))
    })
}

/// Calls `doing` for each of `items`, `jobs` at a time. Returns the results in the order of the items.
pub fn each<T: Sync, R: Send>(jobs: usize, items: &[T], doing: &(dyn Fn(&T) -> R + Sync)) -> Vec<R> {
    if jobs <= 1 || items.len() <= 1 {
        return items.iter().map(doing).collect();
    }
    let (next, (sender, done)) = (AtomicU64::new(0), mpsc::channel());
    let next = &next;
    thread::scope(|scope| {
        spawned(scope, jobs.min(items.len()), move || {
            while let Ok(i) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                && let Some(item) = items.get(i)
            {
                let _ = sender.send((i, doing(item)));
            }
        });
    });
    let mut all: Vec<(usize, R)> = done.into_iter().collect();
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::fixtures::{class, trial};

    /// Every third seed violates, and every seventh seed in another way.
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
    fn the_findings_do_not_depend_on_the_number_of_threads() {
        let one = sweep(seeds(1), &attempt, &|_| ());
        assert_eq!(one.schedules, 1_000);
        assert_eq!(one.classes[&class("pause")], Occurrences { count: 333, seeds: vec![102, 105, 108] });
        assert_eq!(one.classes[&class("clock")], Occurrences { count: 143, seeds: vec![105, 112, 119] });
        assert_eq!(one.attempts, 2 * one.holds);
        for jobs in [2, 3, 8] {
            assert_eq!(sweep(seeds(jobs), &attempt, &|_| ()), one, "{jobs} threads");
        }
    }

    #[test]
    fn no_thread_is_started_without_work_for_it() {
        let few = Seeds { count: 20, ..seeds(usize::MAX) };
        assert_eq!(sweep(few, &attempt, &|_| ()), sweep(Seeds { jobs: 1, ..few }, &attempt, &|_| ()));
    }

    #[test]
    fn errors_are_counted_and_the_first_is_named_with_any_number_of_threads() {
        let broken = |seed: u64| match seed {
            123 | 131 | 700 => Err("no model of it".into()),
            122 => panic!("odd"),
            _ => attempt(seed),
        };
        for jobs in [1, 2, 8] {
            let tally = sweep(seeds(jobs), &broken, &|_| ());
            assert_eq!((tally.schedules, tally.failed), (996, 4));
            let error = tally.first_error.unwrap();
            assert_eq!(error.seed, 122);
            assert!(error.why.contains("panicked") && error.why.contains("odd"), "{error}");
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..50).collect();
        assert_eq!(each(4, &items, &|n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(each(4, &[] as &[u32], &|n| n * 2), Vec::<u32>::new());
    }
}
