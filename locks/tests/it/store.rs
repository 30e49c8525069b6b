//! The memory of one node, and the effect of each step on it.

use std::{collections::HashMap, time::Duration};

use locks::{Key, Owner, Step, StepAnswer, Token};

/// A node's memory.
#[derive(Default)]
pub struct Store {
    pub keys: HashMap<Key, (Owner, Duration)>,
    pub counters: HashMap<Key, u64>,
}

impl Store {
    /// Does `step` at `now`, by the node's own clock.
    pub fn apply(&mut self, step: &Step, now: Duration) -> StepAnswer {
        self.keys.retain(|_, (_, expires)| now < *expires);
        match step {
            Step::Acquire(key, ..) | Step::AcquireUncounted(key, ..) if self.keys.contains_key(key) => {
                StepAnswer::Refused
            }
            Step::AcquireUncounted(key, owner, lease) => self.set(key, owner, now + *lease),
            Step::Acquire(key, owner, lease) => {
                self.set(key, owner, now + *lease);
                self.count(key)
            }
            Step::Extend(key, owner, lease) => done(self.owns(key, owner) && self.extend(key, now + *lease)),
            Step::Release(key, owner) => done(self.owns(key, owner) && self.keys.remove(key).is_some()),
            Step::RaiseFence(key, owner, token) => {
                self.set_counter(key, *token, self.owns(key, owner) && self.counter(key) <= *token)
            }
            #[cfg(feature = "planted")]
            Step::Planted(step) => self.apply_planted(step, now),
        }
    }

    pub fn set(&mut self, key: &Key, owner: &Owner, expires: Duration) -> StepAnswer {
        self.keys.insert(key.clone(), (owner.clone(), expires));
        StepAnswer::Done
    }

    /// Lets the key run until `end` at least. As on a server, a key that never expires gets an end.
    pub fn extend(&mut self, key: &Key, end: Duration) -> bool {
        let Some((_, expires)) = self.keys.get_mut(key) else { return false };
        *expires = if *expires == NEVER { end } else { (*expires).max(end) };
        true
    }

    pub fn count(&mut self, key: &Key) -> StepAnswer {
        let counter = self.counters.entry(key.clone()).or_default();
        *counter += 1;
        StepAnswer::Granted(Token(*counter))
    }

    pub fn counter(&self, key: &Key) -> Token {
        Token(self.counters.get(key).copied().unwrap_or_default())
    }

    pub fn set_counter(&mut self, key: &Key, Token(token): Token, may: bool) -> StepAnswer {
        if may {
            self.counters.insert(key.clone(), token);
        }
        done(may)
    }

    pub fn owns(&self, key: &Key, owner: &Owner) -> bool {
        self.keys.get(key).is_some_and(|(owned_by, _)| owned_by == owner)
    }
}

/// When a key runs out that has no lease.
pub const NEVER: Duration = Duration::MAX;

pub fn done(was: bool) -> StepAnswer {
    if was { StepAnswer::Done } else { StepAnswer::Refused }
}
