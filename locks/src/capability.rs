//! The capabilities that only some locks have.

use std::fmt;

/// A capability beyond `acquire`, `renew` and `release` of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// Clients get the lock in the order in which the service has put them into its queue.
    FairQueue,
    /// The client that holds the lock may acquire it again, and keeps its token. The lock is free after as many
    /// releases.
    Reentrant,
    /// Readers share the lock; a writer excludes all others.
    ReadWrite,
    /// Many holds of one client share one lease, and end together.
    Sessions,
    /// A key may be above others: a hold of it excludes holds of these, whose owners hold it in an intention mode.
    Hierarchical,
    /// The service ends an attempt that waits in a cycle of clients, and says so.
    DeadlockDetection,
}

impl Capability {
    /// All capabilities, in the order of every table.
    pub const ALL: [Capability; 6] = [
        Capability::FairQueue,
        Capability::Reentrant,
        Capability::ReadWrite,
        Capability::Sessions,
        Capability::Hierarchical,
        Capability::DeadlockDetection,
    ];

    /// The capability's name.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::FairQueue => "fair-queue",
            Capability::Reentrant => "reentrant",
            Capability::ReadWrite => "read-write",
            Capability::Sessions => "sessions",
            Capability::Hierarchical => "hierarchical",
            Capability::DeadlockDetection => "deadlock-detection",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
