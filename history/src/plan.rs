//! The plan of a run: a scenario, fully resolved with its seed. The plan is saved before anything starts.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    arm::{Arm, Comparison},
    cluster::{ClusterKind, Models, Persistence, PlannedCluster},
    fault::{FaultId, FaultKind},
    human,
    names::NodeName,
    program::Program,
    resource_kind::ResourceKind,
    servers::{ServerFacts, ServerModel, Tokens},
    stamp::ClientId,
    step::Step,
    wait::Wait,
    workload::Workload,
};

pub(crate) mod own_servers;
mod peers;
mod points;
pub(crate) mod possible;
mod script;
pub(crate) mod sizes;
mod together;
mod waits;

/// The least activity that lets a run say anything (the property `activity`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Activity {
    /// Least number of holds.
    pub holds: u32,
    /// Least number of clients that held one shared key.
    pub clients: u32,
    /// Least number of attempts that were refused because the lock was held.
    pub refused: u32,
}

impl Default for Activity {
    fn default() -> Self {
        Activity { holds: 20, clients: 2, refused: 5 }
    }
}

/// A run, fully resolved. Two runs of one plan have the same schedule; on real servers their histories differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of this format: 1.
    pub schema: u32,
    /// Seed of every random choice.
    pub seed: u64,
    /// Real servers, or models.
    pub cluster: ClusterKind,
    /// Name of the lock under test, for reports. A planted bug is named in `plan.toml` only, and never here.
    pub backend: String,
    /// The user's own lock, in the place of the backend's client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Program>,
    /// Source of the fencing tokens.
    pub tokens: Tokens,
    /// Length of the fault phase.
    #[serde(with = "human::Text")]
    pub time: Duration,
    /// Lease that every attempt requests.
    #[serde(with = "human::Text")]
    pub lease: Duration,
    /// Arms of the resource. All are judged in the same run.
    pub arms: Vec<Arm>,
    /// Comparison of tokens by the fencing arms.
    #[serde(default)]
    pub fence: Comparison,
    /// The store that decides about requests to the resource.
    #[serde(default, skip_serializing_if = "ResourceKind::is_service")]
    pub resource: ResourceKind,
    /// Names of the lock nodes.
    pub lock_nodes: Vec<NodeName>,
    /// The facts about the lock nodes, from the backend's Compose file.
    pub servers: ServerFacts,
    /// The URL, without credentials, of each lock node, if the servers exist already. Empty if the run starts them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub own_servers: BTreeMap<NodeName, String>,
    /// Work of the clients; missing fields are those of [`Workload::default`].
    #[serde(default)]
    pub workload: Workload,
    /// The least activity that lets the run say anything.
    #[serde(default)]
    pub activity: Activity,
    /// The faults as the user wrote them; empty for `none`.
    #[serde(default)]
    pub nemesis: Vec<String>,
    /// Switches of the models in a simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Models>,
    /// Waits of clients at protocol points, so that a fault or another client comes first. The waits of one worker
    /// follow each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// Every fault, drawn from the seed or placed by the user.
    #[serde(default)]
    pub schedule: Vec<Step>,
}

impl Plan {
    /// Returns the cluster that the plan describes.
    pub fn planned_cluster(&self) -> PlannedCluster<'_> {
        PlannedCluster {
            kind: self.cluster,
            backend: &self.backend,
            lock_nodes: &self.lock_nodes,
            servers: &self.servers,
            models: self.models,
            program: self.program.as_ref(),
            workload: &self.workload,
        }
    }

    /// Returns the lock under test in words, for reports.
    pub fn lock_name(&self) -> String {
        match &self.program {
            Some(program) => format!("{} on {}", program.text(), self.backend),
            None => self.backend.clone(),
        }
    }

    /// Returns the token sources that the lock under test can have; the first is the default.
    pub fn possible_tokens(&self) -> &[Tokens] {
        if self.program.is_some() { &[Tokens::None, Tokens::Own] } else { &self.servers.tokens }
    }

    /// Returns whether the lock nodes are replicas of one store. Otherwise they are independent servers.
    pub fn has_one_store(&self) -> bool {
        self.planned_cluster().has_one_store()
    }

    /// Returns whether one of the lock nodes, the primary, grants for all of them, and the others copy it later.
    pub fn is_replicated(&self) -> bool {
        self.planned_cluster().is_replicated()
    }

    /// Returns whether a fault of one lock node may stop all of them, because they copy each other.
    pub fn has_replicas(&self) -> bool {
        self.has_one_store() || self.is_replicated()
    }

    /// Returns whether the lock nodes elect a leader that a fault can hit.
    pub fn has_leader(&self) -> bool {
        self.servers.has_leader
    }

    /// Returns the persistence of each independent server, as its model has it. A server that forgets nothing in a
    /// SIGKILL syncs each change before its answer.
    pub fn persistence(&self) -> Persistence {
        if self.servers.model() == Some(ServerModel::LockServers) {
            return Persistence::No;
        }
        if !self.has_one_store() && !self.servers.kill_forgets {
            return Persistence::Always;
        }
        self.models.unwrap_or_default().persistence
    }

    /// Returns the kinds of faults in the schedule, each once.
    pub fn kinds(&self) -> Vec<FaultKind> {
        let mut kinds: Vec<_> = self.schedule.iter().map(|s| s.fault.kind()).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }

    /// Returns the step of a fault. In most plans, the fault with the number n is the n-th step.
    pub fn step(&self, fault: FaultId) -> Option<&Step> {
        let at_its_place = (fault.0 as usize).checked_sub(1).and_then(|place| self.schedule.get(place));
        at_its_place.filter(|step| step.id == fault).or_else(|| self.schedule.iter().find(|step| step.id == fault))
    }

    /// Returns the worker of a client. Clients are numbered from 0, worker by worker.
    pub fn worker_of(&self, client: ClientId) -> NodeName {
        NodeName::new(format!("worker-{}", client.0 / self.workload.clients_per_worker + 1))
    }

    /// Returns how long a client believes in a hold after it sent the attempt: the deadline, or the lease.
    pub fn deadline(&self) -> Duration {
        self.workload.deadline.unwrap_or(self.lease)
    }

    /// Returns the longest lease that the servers grant, to an attempt or to a renewal.
    pub fn longest_lease(&self) -> Duration {
        self.servers.granted(self.lease.max(self.workload.renew_for.unwrap_or_default()))
    }

    /// Returns the names of the workers.
    pub fn workers(&self) -> impl Iterator<Item = NodeName> + use<> {
        self.workload.workers()
    }

    /// Returns whether a node is a worker.
    pub fn has_worker(&self, node: &NodeName) -> bool {
        self.workload.has_worker(node)
    }

    /// Reads a plan from TOML.
    ///
    /// # Errors
    /// The line and column of the first mistake, and the expected value.
    pub fn from_toml(text: &str) -> Result<Plan, toml::de::Error> {
        toml::from_str(text)
    }

    /// Writes the plan as TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

#[cfg(test)]
pub(crate) mod tests;
