//! The times of critical sections. Pure: everything is drawn from the seed.
//!
//! The **open model**: a section is due at its own time even if the client is still busy. So a slow lock shows as a
//! growing queue and not as fewer requests. The gaps are exponential, as with many independent callers.

use std::time::Duration;

use history::{ClientId, Key, Mode, NodeName, Scripted, Workload};
use rand::Rng;

/// One planned critical section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The time at which the section is due, from the start of the client.
    pub due: Duration,
    /// The key on which the client takes an intention before its first lock; none without a hierarchy.
    pub above: Option<Key>,
    /// The locks that the section takes, in this order; at least one.
    pub locks: Vec<Taken>,
    /// The length of the work between read and write.
    pub work: Duration,
    /// The number of writes; with 0 the client only acquires and releases.
    pub writes: u32,
    /// The number of failed attempts after which the client gives up; without it, the client never gives up.
    pub attempts: Option<u32>,
}

/// One lock of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The key of the lock.
    pub key: Key,
    /// The mode in which the client acquires the key. Only a writer writes; in another mode the client reads again
    /// where a writer would write.
    pub mode: Mode,
    /// The keys of the resource that the client works on under this lock. None under an intention.
    pub data: Vec<Key>,
}

impl Taken {
    /// The lock of a key that protects the data of the same name.
    pub fn new(key: Key, mode: Mode) -> Taken {
        Taken { data: vec![key.clone()], key, mode }
    }
}

/// The sections of one client in order: an endless draw, or the script of its worker.
#[derive(Debug, Clone)]
pub struct Sections<R> {
    rng: R,
    keys: u32,
    /// The number of keys that a section takes.
    taken: u32,
    is_opposite: bool,
    work: history::Range,
    writes: u32,
    readers: f64,
    /// The parent of all other keys, and the share of the sections that take it.
    parent: Option<Key>,
    hierarchy: f64,
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
    pub fn new(workload: &Workload, worker: &NodeName, client: ClientId, rng: R) -> Sections<R> {
        let clients = f64::from(workload.workers) * f64::from(workload.clients_per_worker);
        let script: Vec<_> = workload.script.iter().filter(|part| part.worker == *worker).cloned().collect();
        let due = match script.is_empty() {
            true => Due::Drawn { mean_gap_s: clients / workload.rate_per_s, last: Duration::ZERO },
            false => Due::Scripted { parts: script.into_iter(), done: 0 },
        };
        let is_opposite = workload.opposite && client.0 % 2 == 1;
        let Workload { keys, locks_per_section: taken, work, writes, readers, hierarchy, .. } = *workload;
        let parent = workload.parent();
        Sections { rng, keys, taken, is_opposite, work, writes, readers, parent, hierarchy, due }
    }

    /// The locks of a section without a hierarchy: further keys after the first one, in one order for all clients, so
    /// that they wait for each other in no cycle.
    fn in_order(&self, first: u32, mode: Mode) -> Vec<Taken> {
        let mut numbers: Vec<u32> = (0..self.taken).map(|n| (first + n) % self.keys).collect();
        numbers.sort_unstable();
        if self.is_opposite {
            numbers.reverse();
        }
        numbers.into_iter().map(|number| Taken::new(Key::numbered(number), mode)).collect()
    }

    /// The key above, and the locks of a section with a hierarchy: a child, or the parent with all its children. Half
    /// of the writers that take the parent read all children and write one of them.
    fn in_hierarchy(&mut self, parent: Key, child: u32, mode: Mode) -> (Option<Key>, Vec<Taken>) {
        let child = Taken::new(Key::numbered(child), mode);
        if !self.rng.random_bool(self.hierarchy) {
            return (Some(parent), vec![child]);
        }
        let writes_one = mode == Mode::Write && self.rng.random_bool(0.5);
        let mode = if writes_one { Mode::ReadIntentWrite } else { mode };
        let all = Taken { key: parent, mode, data: (1..self.keys).map(Key::numbered).collect() };
        (None, std::iter::once(all).chain(writes_one.then_some(child)).collect())
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
        let first = self.rng.random_range(u32::from(self.parent.is_some())..self.keys);
        let work = self.rng.random_range(self.work.from..=self.work.to);
        // Without readers nothing more is drawn, so older plans keep their sections.
        let is_reader = reads.unwrap_or_else(|| self.readers > 0.0 && self.rng.random_bool(self.readers));
        let mode = if is_reader { Mode::Read } else { Mode::Write };
        let (above, locks) = match self.parent.clone() {
            Some(parent) => self.in_hierarchy(parent, first, mode),
            None => (None, self.in_order(first, mode)),
        };
        Some(Section { due, above, locks, work, writes, attempts })
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
                let sections =
                    Sections::new(&workload(), &"worker-1".into(), ClientId(0), ChaCha8Rng::seed_from_u64(client));
                sections.take_while(|s| s.due < Duration::from_secs(1_000)).count()
            })
            .sum();
        // 20,000 expected; four standard deviations of a Poisson process are 566.
        assert!((19_434..=20_566).contains(&offered), "{offered}");
    }

    #[test]
    fn every_key_is_used_and_work_stays_in_its_range() {
        let sections: Vec<_> =
            Sections::new(&workload(), &"worker-1".into(), ClientId(0), ChaCha8Rng::seed_from_u64(1))
                .take(200)
                .collect();
        let keys: std::collections::BTreeSet<_> = sections.iter().map(|s| s.locks[0].key.as_str().to_owned()).collect();
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["k0", "k1", "k2"]);
        assert!(sections.iter().all(|s| (100..=200).contains(&s.work.as_millis())));
        assert!(sections.windows(2).all(|w| w[0].due <= w[1].due));
        let again: Vec<_> = Sections::new(&workload(), &"worker-1".into(), ClientId(0), ChaCha8Rng::seed_from_u64(1))
            .take(200)
            .collect();
        assert_eq!(sections, again);
    }

    #[test]
    fn every_second_client_takes_its_keys_in_the_opposite_order() {
        let workload = Workload { keys: 3, locks_per_section: 2, opposite: true, ..workload() };
        let orders = |client| {
            let of = Sections::new(&workload, &"worker-1".into(), ClientId(client), ChaCha8Rng::seed_from_u64(1));
            let keys = |s: Section| s.locks.iter().map(|taken| taken.key.to_string()).collect();
            of.take(200).map(keys).collect::<std::collections::BTreeSet<Vec<String>>>()
        };
        let pairs = |of: [[&str; 2]; 3]| of.map(|pair| pair.map(str::to_owned).to_vec()).into();
        assert_eq!(orders(0), pairs([["k0", "k1"], ["k0", "k2"], ["k1", "k2"]]));
        assert_eq!(orders(1), pairs([["k1", "k0"], ["k2", "k0"], ["k2", "k1"]]));
    }

    #[test]
    fn a_section_takes_a_child_under_an_intention_or_the_parent_with_all_children() {
        let workload = Workload { hierarchy: 0.4, readers: 0.5, ..workload() };
        let of = Sections::new(&workload, &"worker-1".into(), ClientId(0), ChaCha8Rng::seed_from_u64(1));
        let told = |s: Section| {
            let lock = |taken: &Taken| (taken.key.to_string(), taken.mode, taken.data.len());
            (s.above.map(|key| key.to_string()), s.locks.iter().map(lock).collect::<Vec<_>>())
        };
        let all: std::collections::BTreeSet<_> = of.take(400).map(told).collect();
        let lock = |key: &str, mode, data| (key.to_owned(), mode, data);
        let expected = ["k1", "k2"].into_iter().flat_map(|child| {
            let under_intention = |mode| (Some("k0".to_owned()), vec![lock(child, mode, 1)]);
            let one_of_all = vec![lock("k0", Mode::ReadIntentWrite, 2), lock(child, Mode::Write, 1)];
            [under_intention(Mode::Read), under_intention(Mode::Write), (None, one_of_all)]
        });
        let whole = [Mode::Read, Mode::Write].map(|mode| (None, vec![lock("k0", mode, 2)]));
        assert_eq!(all, expected.chain(whole).collect());
    }

    #[test]
    fn as_many_sections_take_the_parent_as_the_share_says() {
        let workload = Workload { hierarchy: 0.1, ..workload() };
        let of = Sections::new(&workload, &"worker-1".into(), ClientId(0), ChaCha8Rng::seed_from_u64(1));
        // 100 expected; four standard deviations are 38.
        let taken = of.take(1_000).filter(|section| section.above.is_none()).count();
        assert!((62..=138).contains(&taken), "{taken}");
    }

    #[test]
    fn as_many_sections_read_as_the_share_says() {
        let workload = Workload { readers: 0.1, ..workload() };
        let of = Sections::new(&workload, &"worker-1".into(), ClientId(0), ChaCha8Rng::seed_from_u64(1));
        // 100 expected; four standard deviations are 38.
        let reading = of.take(1_000).filter(|section| section.locks[0].mode == Mode::Read).count();
        assert!((62..=138).contains(&reading), "{reading}");
    }

    #[test]
    fn a_script_that_says_whether_its_sections_read_leaves_nothing_to_the_share() {
        for (reads, readers, expected) in [
            (Some(false), 1.0, Mode::Write),
            (Some(true), 0.0, Mode::Read),
            (None, 1.0, Mode::Read),
            (None, 0.0, Mode::Write),
        ] {
            let (worker, every) = ("worker-2".into(), Duration::from_millis(50));
            let from = Duration::ZERO;
            let part = Scripted { worker, from, sections: 20, every, writes: None, reads, attempts: None };
            let workload = Workload { readers, script: vec![part], ..workload() };
            let of = Sections::new(&workload, &"worker-2".into(), ClientId(0), ChaCha8Rng::seed_from_u64(1));
            let modes: Vec<Mode> = of.map(|section| section.locks[0].mode).collect();
            assert_eq!(modes, [expected; 20], "{reads:?}, {readers}");
        }
    }

    #[test]
    fn a_script_takes_the_place_of_what_would_be_drawn_for_its_worker_alone() {
        let ms = Duration::from_millis;
        let part = |from, sections, writes, reads| {
            let (worker, every, attempts) = ("worker-2".into(), ms(50), Some(3));
            Scripted { worker, from, sections, every, writes, reads, attempts }
        };
        let script = vec![part(ms(100), 3, Some(0), None), part(ms(900), 1, None, Some(true))];
        let workload = Workload { script, ..workload() };
        let of = |worker: &str| Sections::new(&workload, &worker.into(), ClientId(0), ChaCha8Rng::seed_from_u64(1));
        let due = of("worker-2").map(|s| (s.due.as_millis(), s.writes, s.attempts, s.locks[0].mode));
        let (three, write, read) = (Some(3), Mode::Write, Mode::Read);
        let expected = [(100, 0, three, write), (150, 0, three, write), (200, 0, three, write), (900, 1, three, read)];
        assert_eq!(due.collect::<Vec<_>>(), expected);
        assert_eq!(of("worker-1").take(500).count(), 500);
    }
}
