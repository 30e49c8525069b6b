//! Commands to a worker: one JSON object on each line of its standard input. `docs/worker-protocol.md` is the
//! reference.

use std::collections::BTreeMap;

use history::{ClientId, Key, NodeName, Plan, Point};
use locks::access::Access;
use serde::{Deserialize, Serialize};

/// One command to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Connects to the lock nodes and the resource, then reports `ready`.
    Configure(Box<Configuration>),
    /// Begins to offer critical sections.
    Start,
    /// Arms a client: at its next passage of the point, the client reports and waits.
    Arm {
        /// The client.
        client: ClientId,
        /// The point.
        point: Point,
        /// The longest wait, in milliseconds.
        bound_ms: u64,
    },
    /// Releases a client from its point, or disarms the client.
    Go {
        /// The client.
        client: ClientId,
    },
    /// Begins no new critical section, finishes the current ones, then reports `sections`.
    Stop,
    /// Reads these keys without a token, reports `finished`, and exits.
    Finish {
        /// The keys to read.
        final_reads: Vec<Key>,
    },
}

/// The configuration of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The number of this process in the run. Ids of attempts and random draws derive from this number.
    pub process: u32,
    /// The first of the worker's clients; the others follow.
    pub first_client: ClientId,
    /// The plan of the run.
    pub plan: Plan,
    /// The lock under test, as the user named it: `redlock`, `buggy:forgets-nx`.
    pub backend: String,
    /// Address of each lock node, `host:port`.
    pub lock_nodes: Vec<(NodeName, String)>,
    /// The access to lock nodes that need credentials or TLS.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub access: BTreeMap<NodeName, Access>,
    /// The text before the name of each key on the lock nodes. Events name keys without it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Address of the resource, `http://host:port`.
    pub resource: String,
}

impl Configuration {
    /// Returns the node on which the clients run: clients are numbered worker by worker.
    pub fn node(&self) -> NodeName {
        self.plan.worker_of(self.first_client)
    }
}
