//! Which critical section begins when. Pure: everything is drawn from the seed.
//!
//! An **open model**: sections are due at moments of their own, whether or not the client is free by then, so that a slow lock shows
//! as a growing queue and not as fewer requests. Gaps between them are exponential, as if many independent callers came by.

use std::time::Duration;

use history::{Key, Workload};
use rand::Rng;

/// One critical section, as it is meant to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// When it is due, from the start of the client.
    pub due: Duration,
    /// Of which key.
    pub key: Key,
    /// How long the client works between read and write.
    pub work: Duration,
}

/// The sections of one client, in order, without end.
#[derive(Debug, Clone)]
pub struct Sections<R> {
    rng: R,
    mean_gap_s: f64,
    keys: u32,
    work: history::Range,
    due: Duration,
}

impl<R: Rng> Sections<R> {
    /// The share of one client in `workload`: all clients together are offered its rate.
    pub fn new(workload: &Workload, rng: R) -> Sections<R> {
        let clients = f64::from(workload.workers) * f64::from(workload.clients_per_worker);
        let mean_gap_s = clients / workload.rate_per_s;
        Sections { rng, mean_gap_s, keys: workload.keys, work: workload.work, due: Duration::ZERO }
    }
}

impl<R: Rng> Iterator for Sections<R> {
    type Item = Section;

    fn next(&mut self) -> Option<Section> {
        // Inverse of the exponential distribution; `random` is below 1, so the logarithm is finite.
        let gap_s = -self.mean_gap_s * (1.0 - self.rng.random::<f64>()).ln();
        self.due += Duration::try_from_secs_f64(gap_s).unwrap_or(Duration::MAX / 4);
        let key = Key::new(format!("k{}", self.rng.random_range(0..self.keys)));
        let work = self.rng.random_range(self.work.from..=self.work.to);
        Some(Section { due: self.due, key, work })
    }
}

#[cfg(test)]
mod tests {
    use history::{ClientKind, Range};
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn workload() -> Workload {
        Workload {
            workers: 5,
            clients_per_worker: 2,
            keys: 3,
            rate_per_s: 20.0,
            work: Range { from: Duration::from_millis(100), to: Duration::from_millis(200) },
            retry_delay: Range { from: Duration::from_millis(50), to: Duration::from_millis(150) },
            client: ClientKind::Unchecked,
            renew: None,
            ..Workload::default()
        }
    }

    #[test]
    fn all_clients_together_are_offered_the_rate() {
        let offered: usize = (0..10)
            .map(|client| {
                let sections = Sections::new(&workload(), ChaCha8Rng::seed_from_u64(client));
                sections.take_while(|s| s.due < Duration::from_secs(1_000)).count()
            })
            .sum();
        // 20,000 expected; four standard deviations of a Poisson process are 566.
        assert!((19_434..=20_566).contains(&offered), "{offered}");
    }

    #[test]
    fn every_key_is_used_and_work_stays_in_its_range() {
        let sections: Vec<_> = Sections::new(&workload(), ChaCha8Rng::seed_from_u64(1)).take(200).collect();
        let keys: std::collections::BTreeSet<_> = sections.iter().map(|s| s.key.as_str().to_owned()).collect();
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["k0", "k1", "k2"]);
        assert!(sections.iter().all(|s| (100..=200).contains(&s.work.as_millis())));
        assert!(sections.windows(2).all(|w| w[0].due <= w[1].due));
        let again: Vec<_> = Sections::new(&workload(), ChaCha8Rng::seed_from_u64(1)).take(200).collect();
        assert_eq!(sections, again);
    }
}
