//! The belief of a client and its watchdog in the validity of a hold.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

/// The belief in a hold. It ends no later than the belief in the hold of the key above.
pub(crate) struct Belief<'a> {
    /// By the client's clock.
    valid_until_ns: AtomicU64,
    lost: AtomicBool,
    above: Option<&'a Belief<'a>>,
}

impl<'a> Belief<'a> {
    /// The belief in a new hold.
    pub fn new(valid_until_ns: u64, above: Option<&'a Belief<'a>>) -> Self {
        Belief { valid_until_ns: AtomicU64::new(valid_until_ns), lost: AtomicBool::new(false), above }
    }

    /// Notes a renewal.
    pub fn extend_to(&self, valid_until_ns: u64) {
        self.valid_until_ns.store(valid_until_ns, Ordering::Relaxed);
    }

    /// Notes that the hold is lost.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Returns the end of the belief, by the client's clock.
    pub fn valid_until(&self) -> Duration {
        let own = Duration::from_nanos(self.valid_until_ns.load(Ordering::Relaxed));
        self.above.map_or(own, |above| own.min(above.valid_until()))
    }

    /// Returns whether the loss of this hold was noticed.
    pub fn is_noticed(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns whether the loss of this hold, or of one above it, was noticed.
    pub fn is_lost(&self) -> bool {
        self.is_noticed() || self.above.is_some_and(Belief::is_lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_belief_ends_with_its_own_hold_or_the_one_above() {
        for (own, upper) in [(false, false), (true, false), (false, true), (true, true)] {
            let above = Belief::new(5, None);
            let belief = Belief::new(9, Some(&above));
            if own {
                belief.lose();
            }
            if upper {
                above.lose();
            }
            assert_eq!((belief.is_lost(), above.is_lost()), (own || upper, upper));
            assert_eq!((belief.is_noticed(), above.is_noticed()), (own, upper));
            assert_eq!((belief.valid_until(), above.valid_until()), (Duration::from_nanos(5), Duration::from_nanos(5)));
            above.extend_to(12);
            assert_eq!(belief.valid_until(), Duration::from_nanos(9));
        }
    }
}
