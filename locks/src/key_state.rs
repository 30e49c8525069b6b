//! One key as an independent node keeps it, and the effect of each [`Step`] on it. Pure.
//!
//! The [lock server](crate::lock_server) and the simulation's model of a Redis node both consist of such keys. They
//! differ in the clock on which a lease runs, and in the data after a restart.
//!
//! The node's clock counts whole milliseconds. A key is set to expire at `now + lease`, and is gone once
//! `now > expires`; in that very millisecond the key still exists.

use std::time::Duration;

use crate::{
    hold::{Owner, Token},
    ports::{Step, StepAnswer},
    validity,
};

/// The lock and the counter of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyState {
    pub(crate) held: Option<Held>,
    counter: u64,
}

/// The owner of a key, and the end of its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub owner: Owner,
    /// The last millisecond in which the key exists; none, if the key never expires.
    pub expires_ms: Option<u64>,
}

impl KeyState {
    /// Removes the lock, if its lease has ended at `now_ms`.
    pub fn expire(&mut self, now_ms: u64) {
        if self.held.as_ref().is_some_and(|held| held.is_over(now_ms)) {
            self.held = None;
        }
    }

    /// Does `step` at `now_ms`, on a key that has not expired. The key of the step is this key.
    pub fn apply(&mut self, step: &Step, now_ms: u64) -> StepAnswer {
        match step {
            Step::Acquire(..) | Step::AcquireUncounted(..) if self.held.is_some() => StepAnswer::Refused,
            Step::Acquire(_, owner, lease) => {
                self.set(owner, Some(end(now_ms, *lease)));
                self.count()
            }
            Step::AcquireUncounted(_, owner, lease) => self.set(owner, Some(end(now_ms, *lease))),
            Step::Extend(_, owner, lease) => {
                done(self.owned_by(owner).map(|held| held.extend(end(now_ms, *lease))).is_some())
            }
            Step::Release(_, owner) => done(self.owned_by(owner).is_some() && self.held.take().is_some()),
            Step::RaiseFence(_, owner, token) => {
                let may = self.owned_by(owner).is_some() && self.counter <= token.0;
                self.raise(*token, may)
            }
            #[cfg(feature = "planted")]
            Step::Planted(step) => self.apply_planted(step, now_ms),
        }
    }

    /// As [`KeyState::apply`], on a key whose lease may have ended. Only another lock in its place removes the lock: if
    /// the clock goes back, the lock is there again, as in a row of a table that no statement has changed.
    pub fn apply_keeping_expired(&mut self, step: &Step, now_ms: u64) -> StepAnswer {
        let expired = self.held.take_if(|held| held.is_over(now_ms));
        let answer = self.apply(step, now_ms);
        if self.held.is_none() {
            self.held = expired;
        }
        answer
    }

    /// The owner at `now_ms`.
    pub fn owner(&self, now_ms: u64) -> Option<&Owner> {
        self.held.as_ref().filter(|held| !held.is_over(now_ms)).map(|held| &held.owner)
    }

    /// The counter.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Sets the counter.
    pub fn set_counter(&mut self, counter: u64) {
        self.counter = counter;
    }

    pub(crate) fn owned_by(&mut self, owner: &Owner) -> Option<&mut Held> {
        self.held.as_mut().filter(|held| held.owner == *owner)
    }

    pub(crate) fn set(&mut self, owner: &Owner, expires_ms: Option<u64>) -> StepAnswer {
        self.held = Some(Held { owner: owner.clone(), expires_ms });
        StepAnswer::Done
    }

    pub(crate) fn count(&mut self) -> StepAnswer {
        self.counter = self.counter.saturating_add(1);
        StepAnswer::Granted(Token(self.counter))
    }

    pub(crate) fn raise(&mut self, Token(token): Token, may: bool) -> StepAnswer {
        if may {
            self.counter = token;
        }
        done(may)
    }
}

impl Held {
    fn is_over(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| now_ms > expires_ms)
    }

    /// Extends the expiry and never shortens it. A key without expiry gets one.
    pub fn extend(&mut self, end_ms: u64) {
        self.expires_ms = Some(self.expires_ms.map_or(end_ms, |expires_ms| expires_ms.max(end_ms)));
    }
}

/// A node's clock in whole milliseconds, rounded down.
pub fn clock_ms(clock: Duration) -> u64 {
    u64::try_from(clock.as_millis()).unwrap_or(u64::MAX)
}

/// The expiry of a lease that is granted now.
pub(crate) fn end(now_ms: u64, lease: Duration) -> u64 {
    now_ms.saturating_add(validity::whole_ms(lease))
}

pub(crate) fn done(was: bool) -> StepAnswer {
    if was { StepAnswer::Done } else { StepAnswer::Refused }
}
