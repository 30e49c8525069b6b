//! The cluster on which a plan runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    names::NodeName,
    program::Program,
    servers::{ServerFacts, Topology},
    workload::Workload,
};

/// The kind of cluster on which a plan runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ClusterKind {
    /// Real servers in containers.
    Docker,
    /// Models of the servers, inside one process under virtual time.
    Sim,
}

impl ClusterKind {
    /// Returns the name that plans and flags use.
    pub fn name(self) -> &'static str {
        match self {
            ClusterKind::Docker => "docker",
            ClusterKind::Sim => "sim",
        }
    }
}

/// The persistence of a Redis server, real or modelled: `appendonly`, `appendfsync` and `save`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Persistence {
    /// No data on disk: `appendonly no`, and no snapshot.
    #[default]
    No,
    /// A snapshot (RDB) every 6 s if a key has changed: `save 5 1`. A SIGKILL loses all changes since the last
    /// snapshot.
    Snapshot,
    /// An append-only file, synced every second: `appendfsync everysec`. A SIGKILL loses nothing.
    Everysec,
    /// An append-only file, synced before every answer: `appendfsync always`.
    Always,
}

impl Persistence {
    /// The seconds of `save 5 1`, the setting of [`Persistence::Snapshot`]. Redis counts whole seconds and wants more
    /// than so many. So a snapshot comes up to 1.1 s later than so long after the previous one.
    pub const SNAPSHOT_EVERY: Duration = Duration::from_secs(5);

    /// Returns whether Redis writes an append-only file. A SIGKILL then loses no data that the kernel has received.
    pub fn has_log(self) -> bool {
        matches!(self, Persistence::Everysec | Persistence::Always)
    }
}

/// Switches of the models in a simulation. The facts about the servers are in [`ServerFacts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// The store's leader, when it resumes after a pause, revokes the leases that expired by its own clock, although
    /// another member has renewed them (etcd#15247).
    #[serde(default)]
    pub revokes_on_resume: bool,
    /// The store's Lock service checks after a wait that the waiter's key still exists, and refuses the lock otherwise
    /// (etcd from 3.5 on).
    #[serde(default)]
    pub lock_checks_key: bool,
    /// The persistence of every Redis node.
    #[serde(default)]
    pub persistence: Persistence,
}

/// The cluster of a plan: all that decides whether a fault can happen on a target.
#[derive(Debug, Clone, Copy)]
pub struct PlannedCluster<'a> {
    /// Real servers, or models.
    pub kind: ClusterKind,
    /// Name of the lock under test.
    pub backend: &'a str,
    /// Names of the lock nodes.
    pub lock_nodes: &'a [NodeName],
    /// The facts about the lock nodes.
    pub servers: &'a ServerFacts,
    /// Switches of the models in a simulation.
    pub models: Option<Models>,
    /// The user's own lock, in the place of the backend's client.
    pub program: Option<&'a Program>,
    /// Work of the clients.
    pub workload: &'a Workload,
}

impl PlannedCluster<'_> {
    /// Returns whether the lock nodes are replicas of one store. Otherwise they are independent servers.
    pub fn has_one_store(&self) -> bool {
        self.servers.topology == Topology::OneStore
    }

    /// Returns whether one of the lock nodes, the primary, grants for all of them, and the others copy it later.
    pub fn is_replicated(&self) -> bool {
        self.servers.topology == Topology::Replicated
    }

    /// Returns whether `node` is a lock node of the plan. On Docker the services of the Compose file replace the lock
    /// nodes, and the plan is checked again then.
    pub fn may_be_lock_node(&self, node: &NodeName) -> bool {
        self.lock_nodes.contains(node)
    }
}
