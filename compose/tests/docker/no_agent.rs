//! Faults of a cluster by the engine alone.

use agent::protocol::{Answer, Order};
use compose::{AgentPort, DockerCluster, Running};
use history::NodeName;
use nemesis::{ClusterError, Doing};

/// An agent that carries out no order: these tests inject no fault from inside a container.
struct NoAgent;

impl AgentPort for NoAgent {
    fn order<'a>(&'a self, node: &'a NodeName, _: Order) -> Doing<'a, Answer> {
        let why = "this test has no agent".into();
        Box::pin(std::future::ready(Err(ClusterError { node: node.clone(), doing: "sending an order", why })))
    }
}

/// The faults of a cluster.
pub fn faults(running: &Running) -> DockerCluster<'_> {
    DockerCluster::new(running, &NoAgent, 1)
}
