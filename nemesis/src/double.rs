//! A cluster and its clients for tests of faults of links.

use std::{future::ready, time::Duration};

use history::{ClientId, Event, Fault, FaultId, NodeName, Plan, Point, Stamp, Step, fault::Data};

use crate::{Cluster, ClusterError, Control, LiveView, cluster::Doing, injection::Injection};

/// The answers of a test. A call without an answer fails the test.
pub trait Answers: Send + Sync {
    fn inject_links(&self, _node: &NodeName) -> Result<(), ClusterError> {
        unexpected("injecting a fault of links")
    }

    fn heal_links(&self) -> Result<(), ClusterError> {
        unexpected("healing a fault of links")
    }

    fn latency(&self, _to: &NodeName) -> Option<Duration> {
        unexpected("probing a link")
    }

    fn stale_connections(&self, _node: &NodeName, _peers: &[NodeName]) -> u32 {
        unexpected("counting silent connections")
    }

    fn stamp(&self, _event: Event) -> Stamp {
        unexpected("recording an event")
    }

    fn sleep(&self, _lasting: Duration) {
        unexpected("waiting")
    }
}

fn unexpected<T>(doing: &str) -> T {
    unreachable!("this test does not expect {doing}")
}

fn done<'a, T: Send + 'a>(done: T) -> Doing<'a, T> {
    Box::pin(ready(Ok(done)))
}

/// The two ports, with the answers of a test.
#[derive(Default)]
pub struct Double<A>(pub A);

impl<A> Double<A> {
    /// Injects the step through the ports at its target, which has this name.
    pub fn injection<'a>(
        &'a self,
        live_view: &'a LiveView,
        plan: &'a Plan,
        step: &'a Step,
        node: NodeName,
    ) -> Injection<'a>
    where
        A: Answers,
    {
        let is_server = plan.lock_nodes.contains(&node);
        let (hold, waiting, gate) = (None, None, None);
        Injection { cluster: self, control: self, live_view, plan, step, node, is_server, hold, waiting, gate }
    }
}

impl<A: Answers> Cluster for Double<A> {
    fn freeze<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        unexpected("freezing")
    }

    fn thaw<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        unexpected("thawing")
    }

    fn is_frozen<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        unexpected("looking for a frozen node")
    }

    fn kill<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        unexpected("killing")
    }

    fn start<'a>(&'a self, _: &'a NodeName, _: Data) -> Doing<'a, ()> {
        unexpected("starting")
    }

    fn is_running<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        unexpected("looking for a running node")
    }

    fn inject_links<'a>(&'a self, node: &'a NodeName, _: FaultId, _: &'a Fault) -> Doing<'a, ()> {
        Box::pin(ready(self.0.inject_links(node)))
    }

    fn heal_links<'a>(&'a self, _: &'a NodeName, _: FaultId) -> Doing<'a, ()> {
        Box::pin(ready(self.0.heal_links()))
    }

    fn latency<'a>(&'a self, _: &'a NodeName, to: &'a NodeName) -> Doing<'a, Option<Duration>> {
        done(self.0.latency(to))
    }

    fn stale_connections<'a>(&'a self, node: &'a NodeName, peers: &'a [NodeName], _: bool) -> Doing<'a, u32> {
        done(self.0.stale_connections(node, peers))
    }
}

impl<A: Answers> Control for Double<A> {
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp> {
        done(self.0.stamp(event))
    }

    fn arm<'a>(&'a self, _: ClientId, _: Point, _: Duration) -> Doing<'a, ()> {
        unexpected("arming a client")
    }

    fn let_go<'a>(&'a self, _: ClientId) -> Doing<'a, ()> {
        unexpected("letting a client go")
    }

    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
        self.0.sleep(lasting);
        done(())
    }
}
