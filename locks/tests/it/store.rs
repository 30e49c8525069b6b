//! What one node keeps, and what each step does to it.

use std::{collections::HashMap, time::Duration};

use locks::{Answer, Key, Owner, Step, Token};

/// A node's memory.
#[derive(Default)]
pub struct Store {
    pub keys: HashMap<Key, (Owner, Duration)>,
    pub counters: HashMap<Key, u64>,
}

impl Store {
    /// Does `step` at `now`, by the node's own clock.
    pub fn apply(&mut self, step: &Step, now: Duration) -> Answer {
        self.keys.retain(|_, (_, expires)| now < *expires);
        match step {
            Step::Acquire(key, ..) | Step::AcquireUncounted(key, ..) | Step::AcquireForever(key, ..)
                if self.keys.contains_key(key) =>
            {
                Answer::Refused
            }
            Step::AcquireUncounted(key, owner, lease) => {
                self.keys.insert(key.clone(), (owner.clone(), now + *lease));
                Answer::Done
            }
            Step::Acquire(key, owner, lease) | Step::Overwrite(key, owner, lease) => {
                self.keys.insert(key.clone(), (owner.clone(), now + *lease));
                self.count(key)
            }
            Step::AcquireForever(key, owner) => {
                self.keys.insert(key.clone(), (owner.clone(), NEVER));
                self.count(key)
            }
            Step::CountOnly(key) => self.count(key),
            Step::ExtendOrSet(key, owner, lease) if !self.keys.contains_key(key) => {
                self.keys.insert(key.clone(), (owner.clone(), now + *lease));
                Answer::Done
            }
            Step::Extend(key, owner, _) | Step::ExtendOrSet(key, owner, _) | Step::SetExpiry(key, owner, _)
                if !self.owns(key, owner) =>
            {
                Answer::Refused
            }
            Step::Extend(key, _, lease) | Step::ExtendOrSet(key, _, lease) | Step::ExtendAny(key, lease) => {
                let Some((_, expires)) = self.keys.get_mut(key) else { return Answer::Refused };
                // As on a server, a key without an end gets one.
                *expires = if *expires == NEVER { now + *lease } else { (*expires).max(now + *lease) };
                Answer::Done
            }
            Step::SetExpiry(key, owner, lease) => {
                self.keys.insert(key.clone(), (owner.clone(), now + *lease));
                Answer::Done
            }
            Step::IsOwner(key, owner) => done(self.owns(key, owner)),
            Step::Release(key, owner) => done(self.owns(key, owner) && self.keys.remove(key).is_some()),
            Step::RemoveAny(key) => done(self.keys.remove(key).is_some()),
            Step::RaiseFence(key, owner, token) => {
                self.set_counter(key, *token, self.owns(key, owner) && self.counter(key) <= *token)
            }
            Step::RaiseAny(key, token) => self.set_counter(key, *token, self.counter(key) <= *token),
            Step::SetFence(key, owner, token) => self.set_counter(key, *token, self.owns(key, owner)),
        }
    }

    fn count(&mut self, key: &Key) -> Answer {
        let counter = self.counters.entry(key.clone()).or_default();
        *counter += 1;
        Answer::Granted(Token(*counter))
    }

    fn counter(&self, key: &Key) -> Token {
        Token(self.counters.get(key).copied().unwrap_or_default())
    }

    fn set_counter(&mut self, key: &Key, Token(token): Token, may: bool) -> Answer {
        if may {
            self.counters.insert(key.clone(), token);
        }
        done(may)
    }

    fn owns(&self, key: &Key, owner: &Owner) -> bool {
        self.keys.get(key).is_some_and(|(owned_by, _)| owned_by == owner)
    }
}

/// When a key runs out that has no lease.
pub const NEVER: Duration = Duration::MAX;

fn done(was: bool) -> Answer {
    if was { Answer::Done } else { Answer::Refused }
}
