//! Numbers with types of their own: instants, ids, tokens.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant on the one clock of a run: nanoseconds of `CLOCK_MONOTONIC`, read by the raw system call.
///
/// All containers of a run share a kernel, so stamps of different processes can be compared. Equal stamps are
/// concurrent: no rule of the checker may order two events by stamps that are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Returns the instant `by` later, at most the largest stamp.
    pub fn plus(self, by: Duration) -> Stamp {
        Stamp(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the instant `by` earlier, at least 0.
    pub fn minus(self, by: Duration) -> Stamp {
        Stamp(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `earlier` to this instant; zero if this instant is not later.
    pub fn since(self, earlier: Stamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the part of a lease that a lock must leave unused, because clocks run at different rates: 1 % of the lease
/// plus 2 ms (redis.io, "Distributed Locks with Redis": the clock drift factor and its constant).
///
/// The promise end of a hold is the stamp at which its request was sent, plus the lease, minus this.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The id of an attempt, and of the hold that comes from it: unique in a run.
    HoldId(u64)
}
number! {
    /// The id of a client: dense from 0 over all workers. A restarted worker keeps its clients.
    ClientId(u32)
}
number! {
    /// One operation under a hold, counted from 1. The resource applies a (hold, operation) once.
    OpId(u64)
}
number! {
    /// A fencing token: the number that a hold carries to the resource.
    Token(u64)
}
number! {
    /// A place in the admission order of the resource, and the version of the value that was written there. Unique over
    /// all keys and all restarts; not dense, because each restart skips some. 0 is the version before the first write.
    Version(u64)
}

impl HoldId {
    /// The ids for each process: more than a process uses in a year.
    pub const PER_PROCESS: u64 = 1_000_000_000;

    /// Returns the id of the `n`-th attempt (from 1) of the `process`-th process (from 0) of a run. Stays below 2^53,
    /// the limit of many JSON readers.
    pub fn of(process: u32, n: u64) -> HoldId {
        HoldId(u64::from(process) * Self::PER_PROCESS + n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_never_leaves_the_range_of_stamps() {
        let (first, last) = (Stamp(0), Stamp(u64::MAX));
        for long in [Duration::from_nanos(u64::MAX), Duration::MAX] {
            assert_eq!((Stamp(5).plus(long), Stamp(5).minus(long)), (last, first));
        }
        assert_eq!((Stamp(5).since(last), last.since(Stamp(5))), (Duration::ZERO, Duration::from_nanos(u64::MAX - 5)));
    }

    #[test]
    fn the_drift_allowance_is_a_hundredth_and_two_milliseconds() {
        let ms = Duration::from_millis;
        for (lease, allowed) in [(0, 2), (2_000, 22), (600_000, 6_002)] {
            assert_eq!(drift(ms(lease)), ms(allowed));
        }
    }

    #[test]
    fn attempts_of_two_processes_have_different_ids() {
        assert_eq!(
            [(0, 1), (1, 1), (2, 5)].map(|(process, n)| HoldId::of(process, n).0),
            [1, 1_000_000_001, 2_000_000_005]
        );
    }
}
