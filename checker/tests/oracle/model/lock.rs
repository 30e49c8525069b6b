//! A node of the lock service: keys with owners that expire, and a counter. Its actions are the truth.

use std::collections::BTreeMap;

use super::{knobs::Knobs, truth::Truth};
use history::Mode;
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
    keys: BTreeMap<usize, Vec<Owner>>,
    counters: BTreeMap<usize, u64>,
}

/// An attempt that owns a key, and until when.
#[derive(Debug, Clone, Copy)]
struct Owner {
    attempt: u64,
    until: u64,
    mode: Mode,
}

/// Returns whether two modes exclude each other, from what their owners may do: read or write the whole, or read or
/// write a part of it.
pub fn exclude(a: Mode, b: Mode) -> bool {
    let writes_all = |mode| mode == Mode::Write;
    let reads_all = |mode| matches!(mode, Mode::Read | Mode::ReadIntentWrite);
    let writes_part = |mode| matches!(mode, Mode::IntentWrite | Mode::ReadIntentWrite);
    writes_all(a) || writes_all(b) || (reads_all(a) && writes_part(b)) || (reads_all(b) && writes_part(a))
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
        let owners = self.keys.entry(key).or_default();
        owners.retain(|owner| now < owner.until);
        let own = owners.iter().position(|owner| owner.attempt == attempt);
        match ask {
            Ask::Acquire => {
                let mode = k.mode_of(attempt);
                let is_seen = |other: Mode| !(k.ignores_readers && mode == Mode::Write && other == Mode::Read);
                let is_against = |owner: &Owner| exclude(mode, owner.mode) && is_seen(owner.mode);
                if owners.iter().any(is_against) && !(k.forgets_nx > 0.0 && rng.random_bool(k.forgets_nx)) {
                    return Said::Refused;
                }
                let early = k.ends_early > 0.0 && rng.random_bool(k.ends_early);
                let lasting = if early { rng.random_range(1..12) } else { LEASE };
                owners.retain(|owner| !is_against(owner));
                owners.push(Owner { attempt, until: now + lasting, mode });
                let counter = self.counters.entry(key).or_default();
                *counter += 1;
                truth.granted(index, key, attempt, now);
                Said::Granted(*counter)
            }
            Ask::Extend => {
                let Some(own) = own else { return Said::Refused };
                owners[own].until = owners[own].until.max(now + LEASE);
                truth.extended(index, attempt, now);
                Said::Done
            }
            Ask::Release | Ask::Undo => {
                if let Some(own) = own {
                    owners.remove(own);
                    truth.released(index, attempt, now);
                    Said::Done
                } else if k.deletes_any && !owners.is_empty() {
                    owners.clear();
                    truth.robbed(index, attempt, now);
                    Said::Done
                } else {
                    Said::Refused
                }
            }
        }
    }
}
