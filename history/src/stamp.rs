//! Numbers that must not be mixed up: instants, ids, tokens.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant on the one clock of a run: nanoseconds of `CLOCK_MONOTONIC`, read by the raw system call.
///
/// All containers of a run share a kernel, so stamps of different processes can be compared. Equal stamps are
/// concurrent: no rule of the checker may order two events by stamps that are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The instant `by` later. Saturates: an instant that far away is never reached.
    pub fn plus(self, by: Duration) -> Stamp {
        Stamp(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The instant `by` earlier; 0 if there is none.
    pub fn minus(self, by: Duration) -> Stamp {
        Stamp(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Stamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// What a lock must leave of a lease for clocks that run at different speeds: 1 % of the lease and 2 ms more
/// (redis.io, "Distributed Locks with Redis": the clock drift factor and its constant).
///
/// The promise end of a hold is the stamp at which its request was sent, plus the lease, minus this.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// One attempt at acquiring, and the hold that came from it, if one did: unique in a run.
    HoldId(u64)
}
number! {
    /// One logical actor: dense from 0 over all workers. A worker that starts again has the clients it had.
    ClientId(u32)
}
number! {
    /// One operation under a hold, counted from 1. The resource applies a (hold, operation) once.
    OpId(u32)
}
number! {
    /// A fencing token.
    Token(u64)
}

impl HoldId {
    /// Attempts that one process may number before ids would collide: more than a process makes in a year.
    pub const PER_PROCESS: u64 = 1_000_000_000;

    /// The `n`-th attempt (from 1) of the `process`-th process (from 0) of a run. Stays below 2^53, so that
    /// every JSON reader keeps it whole.
    pub fn of(process: u32, n: u64) -> HoldId {
        HoldId(u64::from(process) * Self::PER_PROCESS + n)
    }
}
