//! The facts about a backend's servers, which its Compose file states under `x-harness`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{human, which_clock::WhichClock};

/// The relation between the lock nodes of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Servers that know nothing of each other. The client asks each of them.
    Independent,
    /// A primary that grants locks by itself, and replicas that copy it later. When the primary fails, a replica takes
    /// its place with the data that it has received. The client asks the primary.
    Replicated,
    /// Replicas of one store. The client asks any of them.
    OneStore,
}

/// The promise of a server to the holder of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// The lock is kept for a fixed time, which a renewal extends.
    Lease,
    /// The lock is kept for as long as the client's session lives.
    Session,
}

/// The clock on which leases run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LeaseClock {
    /// The wall clock of the servers.
    Wall,
    /// The monotonic clock of the servers.
    Monotonic,
    /// Both clocks of the servers: a lease ends when both say so.
    Both,
    /// The monotonic clock of each client that waits. The servers end no lease. A waiting client takes the lock over
    /// when it has seen the same hold for a whole lease. So a server's clock plays no part, and a waiting client whose
    /// clock jumps forwards ends another client's lease too early.
    Waiter,
}

impl LeaseClock {
    /// Returns the clock of the servers that ends leases. None if the waiting clients end them.
    pub fn of_servers(self) -> Option<WhichClock> {
        match self {
            LeaseClock::Wall => Some(WhichClock::Wall),
            LeaseClock::Monotonic => Some(WhichClock::Monotonic),
            LeaseClock::Both => Some(WhichClock::Both),
            LeaseClock::Waiter => None,
        }
    }
}

impl From<WhichClock> for LeaseClock {
    fn from(clock: WhichClock) -> LeaseClock {
        match clock {
            WhichClock::Wall => LeaseClock::Wall,
            WhichClock::Monotonic => LeaseClock::Monotonic,
            WhichClock::Both => LeaseClock::Both,
        }
    }
}

/// Effect of a restart without data (the fault `amnesia`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Amnesia {
    /// The server answers again, and has forgotten every lock and every counter.
    ForgetsLocks,
    /// The server is no longer a member of its store: the fault is refused.
    LosesMembership,
}

/// The source of a backend's fencing tokens. The clients in `locks` define each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Tokens {
    /// No tokens: the plan has no fencing arm.
    None,
    /// The counter of one node.
    Counter,
    /// The largest counter of a majority of nodes. Such tokens can repeat and decrease.
    MajorityMax,
    /// The largest counter of a majority, written back to a majority before the client claims the hold.
    TwoPhase,
    /// As `two-phase`, but without the write-back if a majority has given the largest counter itself.
    TwoPhaseFast,
    /// The store's revision at which the hold's key was created.
    Revision,
    /// The counter of the only node, incremented in the transaction of the hold. A token repeats if its hold's session
    /// dies before the commit.
    Uncommitted,
    /// Tokens that a client program makes by itself.
    Own,
}

impl Tokens {
    /// Returns whether a correct lock never gives a later hold the same or a smaller token, as long as no node loses
    /// its counters. True of a source that makes no tokens.
    pub fn is_sound(self) -> bool {
        !matches!(self, Tokens::MajorityMax | Tokens::Uncommitted)
    }
}

impl std::fmt::Display for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Tokens::None => "none",
            Tokens::Counter => "counter",
            Tokens::MajorityMax => "majority-max",
            Tokens::TwoPhase => "two-phase",
            Tokens::TwoPhaseFast => "two-phase-fast",
            Tokens::Revision => "revision",
            Tokens::Uncommitted => "uncommitted",
            Tokens::Own => "own",
        })
    }
}

/// Model of the servers in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerModel {
    /// Redis nodes that know nothing of each other.
    RedisNodes,
    /// Lock servers that keep everything in memory, and know nothing of each other.
    LockServers,
    /// One store with leases and revisions.
    LeaseStore,
}

/// The facts about a backend's servers. A plan carries them, so that no code has to know a backend by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServerFacts {
    /// Independent nodes, or one store.
    pub topology: Topology,
    /// The promise of a server to a holder.
    pub promise: Promise,
    /// The clock on which leases run.
    pub lease_clock: LeaseClock,
    /// The shortest lease that the servers grant; zero if they grant every lease as requested.
    #[serde(with = "human::Text", default, skip_serializing_if = "Duration::is_zero")]
    pub least_lease: Duration,
    /// The servers round a lease up to a multiple of this; zero if they do not round.
    #[serde(with = "human::Text", default, skip_serializing_if = "Duration::is_zero")]
    pub lease_step: Duration,
    /// The servers look at the lease clock only when a timer of the kernel fires, which no clock fault changes: first
    /// after the lease of a session's first request, or after this time if the lease is longer. Zero if the servers
    /// look at any time.
    #[serde(with = "human::Text", default, skip_serializing_if = "Duration::is_zero")]
    pub first_alarm: Duration,
    /// Effect of a restart without data.
    pub amnesia: Amnesia,
    /// True if a SIGKILL makes a server forget its locks, unless the plan gives the server persistence.
    pub kill_forgets: bool,
    /// True if the server tells a client that it must wait. Otherwise the server does not answer until the client holds
    /// the lock.
    pub shows_waiting: bool,
    /// True if a server works in many processes. The fault `stop`, which stops only the first one, is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub many_processes: bool,
    /// True if the servers elect a leader that the Compose file has a command to find.
    #[serde(default)]
    pub has_leader: bool,
    /// The kinds of fencing tokens that the backend can make. The first is the default.
    pub tokens: Vec<Tokens>,
    /// The port on which every server answers.
    pub port: u16,
}

impl ServerFacts {
    /// The model that behaves as these servers do, if the simulation has one.
    pub fn model(&self) -> Option<ServerModel> {
        match (self.promise, self.topology, self.lease_clock) {
            (Promise::Lease, _, LeaseClock::Waiter) => None,
            (Promise::Lease, Topology::Independent, LeaseClock::Wall) => Some(ServerModel::RedisNodes),
            (Promise::Lease, Topology::Independent, LeaseClock::Monotonic) if self.kill_forgets => {
                Some(ServerModel::LockServers)
            }
            (Promise::Lease, Topology::OneStore, _) => Some(ServerModel::LeaseStore),
            _ => None,
        }
    }

    /// Returns whether a plan can say what the servers keep on their disks.
    pub fn has_persistence(&self) -> bool {
        self.kill_forgets && self.model() == Some(ServerModel::RedisNodes)
    }

    /// The time after the sending of an attempt before which the servers do not look at the lease clock.
    pub fn blind_for(&self, lease: Duration) -> Duration {
        lease.min(self.first_alarm)
    }

    /// The lease that the servers grant to a client that requests `asked`.
    pub fn granted(&self, asked: Duration) -> Duration {
        let least = asked.max(self.least_lease);
        match self.lease_step.as_nanos() {
            0 => least,
            step => {
                let rounded = least.as_nanos().div_ceil(step) * step;
                u64::try_from(rounded).map_or(Duration::MAX, Duration::from_nanos)
            }
        }
    }
}
