//! The times of critical sections. Pure: everything is drawn from the seed.
//!
//! The **open model**: a section is due at its own time even if the client is still busy. So a slow lock shows as a
//! growing queue and not as fewer requests. The gaps are exponential, as with many independent callers.

use std::time::Duration;

use history::{Key, Mode, NodeName, Scripted, Workload};
use rand::Rng;

/// One planned critical section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The time at which the section is due, from the start of the client.
    pub due: Duration,
    /// The key.
    pub key: Key,
    /// The length of the work between read and write.
    pub work: Duration,
    /// The mode in which the client acquires the key. A reader reads where a writer would write.
    pub mode: Mode,
    /// The number of writes; with 0 the client only acquires and releases.
    pub writes: u32,
    /// The number of failed attempts after which the client gives up; without it, the client never gives up.
    pub attempts: Option<u32>,
}

/// The sections of one client in order: an endless draw, or the script of its worker.
#[derive(Debug, Clone)]
pub struct Sections<R> {
    rng: R,
    keys: u32,
    work: history::Range,
    writes: u32,
    readers: f64,
    due: Due,
}

/// The source of due times.
#[derive(Debug, Clone)]
enum Due {
    Drawn { mean_gap_s: f64, last: Duration },
    Scripted { parts: std::vec::IntoIter<Scripted>, done: u32 },
}

impl<R: Rng> Sections<R> {
    /// Returns the sections of one client of `worker`. All clients without a script share the rate of `workload`.
    pub fn new(workload: &Workload, worker: &NodeName, rng: R) -> Sections<R> {
        let clients = f64::from(workload.workers) * f64::from(workload.clients_per_worker);
        let script: Vec<_> = workload.script.iter().filter(|part| part.worker == *worker).cloned().collect();
        let due = match script.is_empty() {
            true => Due::Drawn { mean_gap_s: clients / workload.rate_per_s, last: Duration::ZERO },
            false => Due::Scripted { parts: script.into_iter(), done: 0 },
        };
        let (keys, work, writes, readers) = (workload.keys, workload.work, workload.writes, workload.readers);
        Sections { rng, keys, work, writes, readers, due }
    }
}

impl<R: Rng> Iterator for Sections<R> {
    type Item = Section;

    fn next(&mut self) -> Option<Section> {
        let (due, writes, reads, attempts) = match &mut self.due {
            Due::Drawn { mean_gap_s, last } => {
                // Inverse of the exponential distribution; `random` is below 1, so the logarithm is finite.
                let gap_s = -*mean_gap_s * (1.0 - self.rng.random::<f64>()).ln();
                *last += Duration::try_from_secs_f64(gap_s).unwrap_or(Duration::MAX / 4);
                (*last, self.writes, None, None)
            }
            Due::Scripted { parts, done } => {
                while parts.as_slice().first().is_some_and(|part| *done == part.sections) {
                    (_, *done) = (parts.next(), 0);
                }
                let part = parts.as_slice().first()?;
                let due = part.from + part.every * *done;
                *done += 1;
                (due, part.writes.unwrap_or(self.writes), part.reads, part.attempts)
            }
        };
        let key = Key::new(format!("k{}", self.rng.random_range(0..self.keys)));
        let work = self.rng.random_range(self.work.from..=self.work.to);
        // Without readers nothing more is drawn, so older plans keep their sections.
        let is_reader = reads.unwrap_or_else(|| self.readers > 0.0 && self.rng.random_bool(self.readers));
        let mode = if is_reader { Mode::Read } else { Mode::Write };
        Some(Section { due, key, mode, work, writes, attempts })
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn workload() -> Workload {
        Workload { workers: 5, clients_per_worker: 2, keys: 3, rate_per_s: 20.0, ..Workload::default() }
    }

    #[test]
    fn all_clients_together_are_offered_the_rate() {
        let offered: usize = (0..10)
            .map(|client| {
                let sections = Sections::new(&workload(), &"worker-1".into(), ChaCha8Rng::seed_from_u64(client));
                sections.take_while(|s| s.due < Duration::from_secs(1_000)).count()
            })
            .sum();
        // 20,000 expected; four standard deviations of a Poisson process are 566.
        assert!((19_434..=20_566).contains(&offered), "{offered}");
    }

    #[test]
    fn every_key_is_used_and_work_stays_in_its_range() {
        let sections: Vec<_> =
            Sections::new(&workload(), &"worker-1".into(), ChaCha8Rng::seed_from_u64(1)).take(200).collect();
        let keys: std::collections::BTreeSet<_> = sections.iter().map(|s| s.key.as_str().to_owned()).collect();
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["k0", "k1", "k2"]);
        assert!(sections.iter().all(|s| (100..=200).contains(&s.work.as_millis())));
        assert!(sections.windows(2).all(|w| w[0].due <= w[1].due));
        let again: Vec<_> =
            Sections::new(&workload(), &"worker-1".into(), ChaCha8Rng::seed_from_u64(1)).take(200).collect();
        assert_eq!(sections, again);
    }

    #[test]
    fn a_script_takes_the_place_of_what_would_be_drawn_for_its_worker_alone() {
        let ms = Duration::from_millis;
        let part = |from, sections, writes| {
            let (worker, every, attempts) = ("worker-2".into(), ms(50), Some(3));
            Scripted { worker, from, sections, every, writes, reads: None, attempts }
        };
        let workload = Workload { script: vec![part(ms(100), 3, Some(0)), part(ms(900), 1, None)], ..workload() };
        let of = |worker: &str| Sections::new(&workload, &worker.into(), ChaCha8Rng::seed_from_u64(1));
        let due: Vec<_> = of("worker-2").map(|s| (s.due.as_millis(), s.writes, s.attempts)).collect();
        let three = Some(3);
        assert_eq!(due, [(100, 0, three), (150, 0, three), (200, 0, three), (900, 1, three)]);
        assert_eq!(of("worker-1").take(500).count(), 500);
    }
}
