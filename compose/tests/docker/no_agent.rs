//! Faults of a cluster by the engine alone.

use agent::protocol::{Answer, Order};
use compose::{AgentPort, DockerCluster, Running};
use history::NodeName;
use nemesis::{Cluster, ClusterError, Doing};

use super::{ONE_AT_A_TIME, bring_up, engine, left, spec};

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

/// An agent whose target dies before each order.
struct Late<'a>(&'a Running);

impl AgentPort for Late<'_> {
    fn order<'a>(&'a self, node: &'a NodeName, order: Order) -> Doing<'a, Answer> {
        Box::pin(async move {
            faults(self.0).kill(node).await?;
            NoAgent.order(node, order).await
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine"]
async fn a_node_that_dies_before_its_links_are_measured_has_no_links_and_ends_no_run() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let engine = engine().await;
    let spec = spec("measured", "redis", 2);
    let (running, _output) = bring_up(&engine, &spec).await;
    let [one, two, server] = ["worker-1", "worker-2", "redis-1"].map(NodeName::new);
    let late = Late(&running);
    let cluster = DockerCluster::new(&running, &late, 1);
    assert_eq!(cluster.latency(&one, &server).await.expect("no error"), None);
    assert_eq!(cluster.stale_connections(&two, std::slice::from_ref(&server), false).await.expect("no error"), 0);
    // Nobody has killed this node, so an order that fails is an error.
    let error = faults(&running).latency(&server, &one).await.expect_err("no agent");
    assert!(error.to_string().contains("this test has no agent"), "{error}");
    running.down().await.expect("down");
    assert_eq!(left(&spec.run).await, Vec::<String>::new());
}
