//! What one node keeps, and what each step does to it.

use std::{collections::HashMap, time::Duration};

use locks::{Answer, Key, Owner, Step, Token};

/// A node's memory.
#[derive(Default)]
pub struct Store {
    pub keys: HashMap<Key, (Owner, Duration)>,
    pub counters: HashMap<Key, u64>,
    /// Leaves the condition on the owner out of `RaiseFence`.
    pub raises_for_anyone: bool,
    /// Leaves the condition on the counter out of `RaiseFence`.
    pub lowers_counters: bool,
}

impl Store {
    /// Does `step` at `now`, by the node's own clock.
    pub fn apply(&mut self, step: &Step, now: Duration) -> Answer {
        self.keys.retain(|_, (_, expires)| now < *expires);
        match step {
            Step::Acquire(key, ..) | Step::AcquireUncounted(key, ..) if self.keys.contains_key(key) => Answer::Refused,
            Step::AcquireUncounted(key, owner, lease) => {
                self.keys.insert(key.clone(), (owner.clone(), now + *lease));
                Answer::Done
            }
            Step::Acquire(key, owner, lease) | Step::Overwrite(key, owner, lease) => {
                self.keys.insert(key.clone(), (owner.clone(), now + *lease));
                let counter = self.counters.entry(key.clone()).or_default();
                *counter += 1;
                Answer::Granted(Token(*counter))
            }
            Step::Extend(key, owner, lease) => match self.keys.get_mut(key) {
                Some((owned_by, expires)) if owned_by == owner => {
                    *expires = (*expires).max(now + *lease);
                    Answer::Done
                }
                _ => Answer::Refused,
            },
            Step::Release(key, owner) if self.owns(key, owner) => {
                self.keys.remove(key);
                Answer::Done
            }
            Step::Release(..) => Answer::Refused,
            Step::RaiseFence(key, owner, Token(token)) => {
                let counter = self.counters.get(key).copied().unwrap_or_default();
                let may =
                    (self.owns(key, owner) || self.raises_for_anyone) && (counter <= *token || self.lowers_counters);
                if may {
                    self.counters.insert(key.clone(), *token);
                }
                if may { Answer::Done } else { Answer::Refused }
            }
        }
    }

    fn owns(&self, key: &Key, owner: &Owner) -> bool {
        self.keys.get(key).is_some_and(|(owned_by, _)| owned_by == owner)
    }
}
