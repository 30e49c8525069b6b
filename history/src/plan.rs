//! The plan: a scenario, fully resolved with its seed. It is written before anything starts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{ClientId, FaultKind, NodeName, Step, Wait};

mod possible;
mod script;
mod together;

pub use possible::PlanError;
pub use script::Scripted;

/// Durations in plans are written as a person writes them: `2s`, `150ms`, `1s 500ms`.
pub(crate) mod human {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_duration(*d))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(d)?;
        humantime::parse_duration(&text)
            .map_err(|e| D::Error::custom(format!("`{text}` is not a duration such as `2s` or `150ms`: {e}")))
    }

    pub mod optional {
        use super::*;

        pub fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
            match d {
                Some(d) => super::serialize(d, s),
                None => s.serialize_none(),
            }
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
            super::deserialize(d).map(Some)
        }
    }
}

/// A range of durations, both ends included: `100ms..200ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The shortest.
    #[serde(with = "human")]
    pub from: Duration,
    /// The longest.
    #[serde(with = "human")]
    pub to: Duration,
}

/// What the cluster is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterKind {
    /// Real servers in containers.
    Docker,
    /// Models of the servers, in one process under virtual time.
    Sim,
}

impl ClusterKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ClusterKind::Docker => "docker",
            ClusterKind::Sim => "sim",
        }
    }
}

/// By which clock a model of a store with leases lets them run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseClock {
    /// When both the wall clock and the monotonic clock say so (etcd 3.4).
    #[default]
    Both,
    /// When the monotonic clock says so (etcd from 3.5 on).
    Monotonic,
}

/// What Redis has on its disk (`appendonly`, `appendfsync`, `save`): the only one of these switches that real servers have too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Persistence {
    /// Nothing: `appendonly no`, and no snapshot.
    #[default]
    No,
    /// What was there some seconds ago: a snapshot (RDB) every 5 s if anything has changed, `save 5 1`. A SIGKILL loses what came after it.
    Snapshot,
    /// All up to the last full second: `appendfsync everysec`. A SIGKILL loses nothing.
    Everysec,
    /// All that was answered: `appendfsync always`.
    Always,
}

impl Persistence {
    /// How long after the last one Redis makes a [`Persistence::Snapshot`].
    pub const SNAPSHOT_EVERY: Duration = Duration::from_secs(5);

    /// Whether there is an append-only file: a SIGKILL then loses nothing that the kernel had been given.
    pub fn has_log(self) -> bool {
        matches!(self, Persistence::Everysec | Persistence::Always)
    }
}

/// Switches of the models in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// Of the store with leases.
    #[serde(default)]
    pub lease_clock: LeaseClock,
    /// Of the store with leases: a leader that was frozen and goes on revokes the leases that ran out by its own clock, though they had
    /// been renewed elsewhere (etcd#15247).
    #[serde(default)]
    pub revokes_on_resume: bool,
    /// Of the store with leases: its Lock service looks, when a wait is over, whether the key that waited still stands, and refuses if it does
    /// not (etcd from 3.5 on).
    #[serde(default)]
    pub lock_checks_key: bool,
    /// Of a Redis node.
    #[serde(default)]
    pub persistence: Persistence,
}

/// How a backend makes fencing tokens (design of each: `locks`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tokens {
    /// It makes none; the fencing arms are left out of the plan.
    None,
    /// `redis`: the node's own counter.
    Counter,
    /// `redlock`: the largest counter of the majority. Not monotonic.
    MajorityMax,
    /// `redlock`: that largest counter, written back to a majority before the hold is claimed.
    TwoPhase,
    /// `etcd`: the revision at which the key was created.
    Revision,
}

impl std::fmt::Display for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Tokens::None => "none",
            Tokens::Counter => "counter",
            Tokens::MajorityMax => "majority-max",
            Tokens::TwoPhase => "two-phase",
            Tokens::Revision => "revision",
        })
    }
}

/// One policy of the resource; all of a plan are judged in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Accepts everything.
    Off,
    /// Checks the token on writes.
    Writes,
    /// Checks the token on writes and registers it on reads too.
    Reads,
    /// Compares the version that was read.
    Cas,
    /// A read claims; a write is admitted if that claim is still the newest (antirez).
    Claim,
}

impl Arm {
    /// All arms, in the order of every table.
    pub const ALL: [Arm; 5] = [Arm::Off, Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Off => "off",
            Arm::Writes => "writes",
            Arm::Reads => "reads",
            Arm::Cas => "cas",
            Arm::Claim => "claim",
        }
    }

    /// Whether the fence property binds it: the arm decides by token.
    pub fn fences(self) -> bool {
        matches!(self, Arm::Writes | Arm::Reads)
    }

    /// Whether the data property binds it: on the other arms lost updates are measured.
    pub fn keeps_data(self) -> bool {
        matches!(self, Arm::Reads | Arm::Cas | Arm::Claim)
    }
}

impl std::fmt::Display for Arm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How fencing arms compare a token with the largest one seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// Refuses `token < seen`, and `token = seen` from another hold.
    #[default]
    Default,
    /// Refuses `token ≤ seen`: one write a hold. Cannot go with `reads`.
    Strict,
}

/// What clients do about their deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// Acquire, read, work, write, release: what most code does.
    #[default]
    Unchecked,
    /// They verify their deadline just before each write.
    Checking,
}

/// What clients do, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Workers: one process each, in a container of its own.
    pub workers: u32,
    /// Clients in each worker.
    pub clients_per_worker: u32,
    /// Keys, drawn evenly; 1 is the hot key.
    pub keys: u32,
    /// Critical sections offered per second, by all clients together (open model).
    pub rate_per_s: f64,
    /// Waited between read and write.
    pub work: Range,
    /// Waited between two attempts at a held lock.
    pub retry_delay: Range,
    /// What clients do about their deadline.
    pub client: ClientKind,
    /// Renew so often while holding; never, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<Duration>,
    /// Lease that renewals ask for; that of the plan, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub renew_for: Option<Duration>,
    /// Writes under one hold, each with work before it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub writes: u32,
    /// Send a write that was not answered again so often, as the same operation, until it is answered; never, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub resend: Option<Duration>,
    /// Give an attempt up that has not been answered for so long, and undo it; never, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Duration>,
    /// Clients believe in a hold for no longer than this after its attempt was sent, less the drift, however long the lease: the rest of it is a
    /// lock-delay (Chubby). All of the lease, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// Critical sections that are placed rather than drawn. Workers that are named here are offered these and no others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub script: Vec<Scripted>,
}

impl Default for Workload {
    /// What `harness run` does without flags: one hot key, five workers with one client each.
    fn default() -> Workload {
        Workload {
            workers: 5,
            clients_per_worker: 1,
            keys: 1,
            rate_per_s: 3.0,
            work: Range { from: Duration::from_millis(100), to: Duration::from_millis(200) },
            retry_delay: Range { from: Duration::from_millis(50), to: Duration::from_millis(150) },
            client: ClientKind::Unchecked,
            renew: None,
            renew_for: None,
            writes: 1,
            resend: None,
            cancel: None,
            deadline: None,
            script: Vec::new(),
        }
    }
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

/// What a run must have seen to say anything (property 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activity {
    /// Holds at least.
    pub holds: u32,
    /// Clients with holds of one shared key at least.
    pub clients: u32,
    /// Attempts refused as held at least.
    pub refused: u32,
}

impl Default for Activity {
    fn default() -> Self {
        Activity { holds: 20, clients: 2, refused: 5 }
    }
}

/// A run, fully resolved: the same plan is the same schedule, though never the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of this format: 1.
    pub schema: u32,
    /// Everything random comes from it.
    pub seed: u64,
    /// What the servers are.
    pub cluster: ClusterKind,
    /// The lock under test, by the name of its correct form. What `buggy:` names stands in `plan.toml` only.
    pub backend: String,
    /// How it makes tokens.
    pub tokens: Tokens,
    /// Length of the fault phase.
    #[serde(with = "human")]
    pub time: Duration,
    /// Asked of the lock by every attempt.
    #[serde(with = "human")]
    pub lease: Duration,
    /// Arms of the resource.
    pub arms: Vec<Arm>,
    /// How its fencing arms compare.
    #[serde(default)]
    pub fence: Comparison,
    /// Lock nodes.
    pub lock_nodes: Vec<NodeName>,
    /// What clients do; the parts that are left out are those of [`Workload::default`].
    #[serde(default)]
    pub workload: Workload,
    /// What the run must have seen.
    #[serde(default)]
    pub activity: Activity,
    /// Kinds of faults that were asked for, as written; `none` is an empty list.
    #[serde(default)]
    pub nemesis: Vec<String>,
    /// Switches of the models, in a simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Models>,
    /// Clients that wait at protocol points, so that something comes while they hold. Those of one worker come one after the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// Every fault, drawn from the seed or placed.
    #[serde(default)]
    pub schedule: Vec<Step>,
}

impl Plan {
    /// Kinds in the schedule, without repetition.
    pub fn kinds(&self) -> Vec<FaultKind> {
        let mut kinds: Vec<_> = self.schedule.iter().map(|s| s.fault.kind()).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }

    /// Whether the lock nodes are replicas of one store, and not servers of their own.
    pub fn has_one_store(&self) -> bool {
        self.backend == "etcd" || self.backend.starts_with("etcd-")
    }

    /// The worker of a client: clients are numbered worker by worker, from 0.
    pub fn worker_of(&self, client: ClientId) -> NodeName {
        NodeName::new(format!("worker-{}", client.0 / self.workload.clients_per_worker + 1))
    }

    /// For how long a client believes in a hold from when its attempt was sent: its own deadline, or the lease.
    pub fn deadline(&self) -> Duration {
        self.workload.deadline.unwrap_or(self.lease)
    }

    /// Names of the workers.
    pub fn workers(&self) -> impl Iterator<Item = NodeName> + use<> {
        (1..=self.workload.workers).map(|n| NodeName::new(format!("worker-{n}")))
    }

    /// Reads a plan. The error says where (line and column) and what was expected.
    pub fn from_toml(text: &str) -> Result<Plan, toml::de::Error> {
        toml::from_str(text)
    }

    /// The plan as TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

#[cfg(test)]
pub(crate) mod tests;
