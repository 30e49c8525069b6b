//! The one port through which faults reach a cluster.

use std::{future::Future, pin::Pin, time::Duration};

use history::{ClockChange, Fault, FaultId, NodeName, WhichClock};

/// Work that reaches into the cluster.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, ClusterError>> + Send + 'a>>;

/// The cluster could not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {doing}: {why}")]
pub struct ClusterError {
    /// The node it was about.
    pub node: NodeName,
    /// What was tried, as a gerund: `freezing`.
    pub doing: &'static str,
    /// What the engine said.
    pub why: String,
}

/// What faults may do to a cluster. `compose` is the implementation on real containers.
///
/// None of these proves anything by returning `Ok`: an engine's call may return long after the effect, or
/// before it. Faults are proved through the target itself.
pub trait Cluster: Send + Sync {
    /// Freezes every process of `node` (container freezer). Freezing a frozen node is an error.
    fn freeze<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()>;
    /// Lets a frozen node go on. Thawing a node that is not frozen does nothing.
    fn thaw<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()>;
    /// Whether the freezer holds `node` now, as the engine says.
    fn is_frozen<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool>;
    /// SIGKILL to every process of `node`; returns when the engine says that it is no longer running.
    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()>;
    /// Starts a killed node again, as a new process over `data`. Starting a running node does nothing.
    fn start<'a>(&'a self, node: &'a NodeName, data: Data) -> Doing<'a, ()>;
    /// Starts a killed lock node again, empty but for one thing: before it accepts clients it has of each key the largest counter that any of `of`
    /// has. Starting a running node does nothing.
    fn start_with_counters<'a>(&'a self, node: &'a NodeName, _of: &'a [NodeName]) -> Doing<'a, ()> {
        impossible(node, "starting it with the counters of others")
    }
    /// How many fsyncs a server has still to make of what it has answered, by its own word; none, if it keeps no log.
    fn pending_fsyncs<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, Option<u32>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Whether `node` runs now, as the engine says.
    fn is_running<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool>;
    // What follows not every cluster can do; a plan that asks for it is refused before it begins.

    /// SIGSTOP to the first process of `node`. Stopping a stopped node does nothing.
    fn stop<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        impossible(node, "stopping")
    }
    /// SIGCONT to it. A node that is not stopped is left alone.
    fn go_on<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        impossible(node, "letting it go on")
    }
    /// Leaves so many hundredths of one processor to `node`, until [`Cluster::speed_up`].
    fn slow_down<'a>(&'a self, node: &'a NodeName, _percent: u8) -> Doing<'a, ()> {
        impossible(node, "slowing it down")
    }
    /// Leaves it as much as it wants again.
    fn speed_up<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        impossible(node, "letting it run as fast as it can")
    }
    /// How long a harmless request to a server takes that shares the server's processor time; none, if there is no answer within a moment.
    fn answer_time<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<Duration>> {
        impossible(node, "measuring how fast it answers")
    }
    /// Whether a server answers a harmless request within a moment: it is neither down nor frozen.
    fn answers<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        impossible(node, "asking whether it answers")
    }
    /// The lock node that leads the others now; none, if none does, as during an election.
    fn leader(&self) -> Doing<'_, Option<NodeName>> {
        impossible(&NodeName::new("lock nodes"), "asking who leads them")
    }
    /// Begins a fault of links (partition, delay) of `node`; it stays until [`Cluster::mend`].
    fn hold_up<'a>(&'a self, node: &'a NodeName, _fault: FaultId, _what: &'a Fault) -> Doing<'a, ()> {
        impossible(node, "holding up its packets")
    }
    /// Ends a fault of links of `node`.
    fn mend<'a>(&'a self, node: &'a NodeName, _fault: FaultId) -> Doing<'a, ()> {
        impossible(node, "letting its packets go")
    }
    /// How long a packet from one node to the other takes now; none, if it does not get through.
    fn latency<'a>(&'a self, from: &'a NodeName, _to: &'a NodeName) -> Doing<'a, Option<Duration>> {
        impossible(from, "probing its links")
    }
    /// How many connections of `node` have not come to life again since a fault of its links: what they send waits for a retransmission. With
    /// `reset` they are ended, so that whoever has them makes new ones.
    fn stale_connections<'a>(&'a self, _node: &'a NodeName, _reset: bool) -> Doing<'a, u32> {
        Box::pin(std::future::ready(Ok(0)))
    }
    /// Changes a clock of all processes of `node`. A jump adds to what was moved before, a drift replaces an earlier one.
    fn move_clock<'a>(&'a self, node: &'a NodeName, _clock: WhichClock, _change: ClockChange) -> Doing<'a, ()> {
        impossible(node, "moving its clock")
    }
    /// Puts back what was done to a process of `node` to move its clocks, if they show the truth and nothing moves them any more.
    fn settle_clocks<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// How far the wall clock of `node` is ahead of the host's by what its server tells when it is asked for the time: at least, and at most, in
    /// nanoseconds. None, if it is no server, or one that does not tell.
    fn told_ahead_ns<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, Option<(i64, i64)>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// How far a clock of `node` is ahead of the host's, by what its own process reads. Nanoseconds.
    fn clock_ahead_ns<'a>(&'a self, node: &'a NodeName, _clock: WhichClock) -> Doing<'a, i64> {
        impossible(node, "reading its clock")
    }
}

fn impossible<'a, T: Send + 'a>(node: &NodeName, doing: &'static str) -> Doing<'a, T> {
    let error = ClusterError { node: node.clone(), doing, why: "this cluster cannot do that".into() };
    Box::pin(std::future::ready(Err(error)))
}

/// What a node that is started again finds of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// All that its kernel had been given.
    Kept,
    /// What had been synced to the disk.
    Synced,
    /// Nothing.
    Lost,
}
