//! Repeated attempts, with random delays: attempts that collided would otherwise collide again.

use std::time::Duration;

use rand::{Rng, RngCore};

use crate::{
    hold::{Failure, Hold, Key, Owner},
    ports::{Clock, Lock, Watch},
};

/// The delay between the end of an attempt and the next attempt: drawn evenly between two bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryDelay {
    /// The shortest delay.
    pub min: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Default for RetryDelay {
    /// 50 to 150 ms.
    fn default() -> Self {
        Self { min: Duration::from_millis(50), max: Duration::from_millis(150) }
    }
}

impl RetryDelay {
    /// Draws the next delay.
    pub fn draw(&self, rng: &mut (impl RngCore + ?Sized)) -> Duration {
        rng.random_range(self.min..=self.max.max(self.min))
    }
}

/// Attempts one after another, each with a fresh owner value, with random delays between them.
#[derive(Clone, Copy)]
pub struct Retry<'a> {
    /// The lock to acquire.
    pub lock: &'a dyn Lock,
    /// The clock for the delays.
    pub clock: &'a dyn Clock,
    /// The delay between two attempts.
    pub delay: RetryDelay,
}

impl Retry<'_> {
    /// Repeats attempts until one wins a hold, or until the next attempt would start at `give_up` or later, by the
    /// clock. There is at least one attempt. Dropping the future ends the attempts.
    ///
    /// # Errors
    /// The failure of the last attempt.
    pub async fn acquire(
        &self,
        key: &Key,
        lease: Duration,
        give_up: Duration,
        rng: &mut (dyn RngCore + Send),
        watch: &dyn Watch,
    ) -> Result<Hold, Failure> {
        loop {
            let failure = match self.lock.acquire(key, Owner::random(rng), lease, watch).await {
                Ok(hold) => return Ok(hold),
                Err(failure) => failure,
            };
            let next = self.clock.now().saturating_add(self.delay.draw(rng));
            if next >= give_up {
                return Err(failure);
            }
            self.clock.sleep_until(next).await;
        }
    }
}
