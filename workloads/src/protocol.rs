//! Commands to a worker: one JSON object a line on its standard input. `docs/worker-protocol.md` is the reference.

use history::{ClientId, Key, NodeName, Plan, Point};
use serde::{Deserialize, Serialize};

/// One command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Connect to everything, and say `ready`.
    Configure(Box<Configuration>),
    /// Begin.
    Start,
    /// Announce the client's next passage of the point, and wait there.
    Arm {
        /// Who.
        client: ClientId,
        /// Where.
        point: Point,
        /// For how long at most. Milliseconds.
        bound_ms: u64,
    },
    /// Go on from the point, or do not wait there after all.
    Go {
        /// Who.
        client: ClientId,
    },
    /// The time is over: begin no critical section, end those that have begun, and say `sections`.
    Stop,
    /// Read what is left of these keys, without a token, say `finished`, and exit.
    Finish {
        /// Which keys.
        look_at: Vec<Key>,
    },
}

/// What a worker must know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The number of this process in the run: its attempts are numbered by it, its random draws come from it and the seed.
    pub process: u32,
    /// The first of its clients; the others follow.
    pub first_client: ClientId,
    /// What is run.
    pub plan: Plan,
    /// The lock under test, as the user named it: `redlock`, `buggy:forgets-nx`.
    pub backend: String,
    /// Address of each lock node, `host:port`.
    pub lock_nodes: Vec<(NodeName, String)>,
    /// Address of the resource, `http://host:port`.
    pub resource: String,
}

impl Configuration {
    /// The node that its clients run on: clients are numbered worker by worker.
    pub fn node(&self) -> NodeName {
        self.plan.worker_of(self.first_client)
    }
}
