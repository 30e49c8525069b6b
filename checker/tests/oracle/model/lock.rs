//! A node of the lock service: keys with owners that expire, and a counter. Its actions are the truth.

use std::collections::BTreeMap;

use super::{knobs::Knobs, truth::Truth};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// A request to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Acquire,
    Extend,
    Release,
    Undo,
}

/// The answer of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Granted(u64),
    Done,
    Refused,
}

#[derive(Debug, Default)]
pub struct Node {
    keys: BTreeMap<usize, (u64, u64)>,
    counters: BTreeMap<usize, u64>,
}

/// Length of every lease, in units.
pub const LEASE: u64 = 20;
/// The part of a lease that a lock must reserve for clock drift: 1 % and 2 ms, here exactly one unit.
pub const DRIFT: u64 = 1;

impl Node {
    /// Handles one request at `now`.
    #[allow(clippy::too_many_arguments)]
    pub fn handle(
        &mut self,
        index: usize,
        now: u64,
        ask: Ask,
        attempt: u64,
        key: usize,
        k: &Knobs,
        rng: &mut ChaCha8Rng,
        truth: &mut Truth,
    ) -> Said {
        let owner = self.keys.get(&key).filter(|(_, until)| now < *until).map(|(owner, _)| *owner);
        match ask {
            Ask::Acquire => {
                if owner.is_some() && !(k.forgets_nx > 0.0 && rng.random_bool(k.forgets_nx)) {
                    return Said::Refused;
                }
                let early = k.ends_early > 0.0 && rng.random_bool(k.ends_early);
                let lasting = if early { rng.random_range(1..12) } else { LEASE };
                self.keys.insert(key, (attempt, now + lasting));
                let counter = self.counters.entry(key).or_default();
                *counter += 1;
                truth.granted(index, key, attempt, now);
                Said::Granted(*counter)
            }
            Ask::Extend => {
                if owner != Some(attempt) {
                    return Said::Refused;
                }
                let until = self.keys.get(&key).map_or(0, |k| k.1);
                self.keys.insert(key, (attempt, until.max(now + LEASE)));
                truth.extended(index, attempt, now);
                Said::Done
            }
            Ask::Release | Ask::Undo => {
                if owner == Some(attempt) {
                    self.keys.remove(&key);
                    truth.released(index, attempt, now);
                    Said::Done
                } else if k.deletes_any && owner.is_some() {
                    self.keys.remove(&key);
                    truth.robbed(index, attempt, now);
                    Said::Done
                } else {
                    Said::Refused
                }
            }
        }
    }
}
