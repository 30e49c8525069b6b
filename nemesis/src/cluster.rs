//! The port through which faults act on a cluster.

use std::{future::Future, pin::Pin, time::Duration};

use history::{ClockChange, Fault, FaultId, NodeName, WhichClock, fault::Data};

/// An operation on the cluster, under way.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, ClusterError>> + Send + 'a>>;

/// An operation on the cluster failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {doing}: {why}")]
pub struct ClusterError {
    /// The node.
    pub node: NodeName,
    /// The operation, as a gerund: `freezing`.
    pub doing: &'static str,
    /// The reason, in the engine's words.
    pub why: String,
}

/// The operations of faults on a cluster. The crate `compose` implements them on real containers.
///
/// An `Ok` proves no effect: an engine's call may return long after its effect, or before the effect. Faults are proved
/// through the target itself.
pub trait Cluster: Send + Sync {
    /// Freezes every process of `node` by the container freezer. To freeze a frozen node is an error.
    fn freeze<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()>;
    /// Thaws a frozen node. Does nothing to a node that is not frozen.
    fn thaw<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()>;
    /// Returns whether `node` is frozen now, according to the engine.
    fn is_frozen<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool>;
    /// Sends SIGKILL to every process of `node`. Returns when the engine reports that the node no longer runs.
    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()>;
    /// Starts a killed node again, as a new process with `data`. Does nothing to a running node.
    fn start<'a>(&'a self, node: &'a NodeName, data: Data) -> Doing<'a, ()>;
    /// Starts a killed lock node again, with nothing but counters: of each key, the largest counter among the nodes
    /// `of`. The node has these counters before it accepts clients. Does nothing to a running node.
    fn start_with_counters<'a>(&'a self, node: &'a NodeName, _of: &'a [NodeName]) -> Doing<'a, ()> {
        impossible(node, "starting it with the counters of other nodes")
    }
    /// Returns the number of pending fsyncs that a server reports; none, if the server keeps no log.
    fn pending_fsyncs<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, Option<u32>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Writes a marker into the data of a server, where no client sees it. Returns false if the server takes no marker.
    fn leave_marker<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }
    /// Removes the marker from the data of a server. Returns whether the marker was there.
    fn take_marker<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        impossible(node, "looking for its marker")
    }
    /// Returns the reason why a server that started after a loss of power may have kept unsynced data; none if that is
    /// disproved.
    fn kept_unsynced<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<String>> {
        impossible(node, "asking what its loss of power has lost")
    }
    /// Returns whether `node` runs now, according to the engine.
    fn is_running<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool>;
    // Not every cluster has the following operations. A plan that needs a missing operation is refused before its run.

    /// Sends SIGSTOP to the first process of `node`. Does nothing to a stopped node.
    fn stop<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        impossible(node, "stopping")
    }
    /// Sends SIGCONT to the first process of `node`. Does nothing to a node that is not stopped.
    fn resume<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        impossible(node, "resuming it")
    }
    /// Limits `node` to `percent` of one processor, until [`Cluster::speed_up`].
    fn slow_down<'a>(&'a self, node: &'a NodeName, _percent: u8) -> Doing<'a, ()> {
        impossible(node, "slowing it down")
    }
    /// Removes the limit on the processor time of `node`.
    fn speed_up<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        impossible(node, "removing its quota")
    }
    /// Measures the time of a harmless request that uses the server's own processor time.
    fn answer_time<'a>(&'a self, node: &'a NodeName) -> Doing<'a, AnswerTime> {
        impossible(node, "measuring its answer time")
    }
    /// Returns how long the kernel has held the processes of `node` back since its start, because their quota of
    /// processor time was used up; none, if nobody counts it.
    fn held_back<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, Option<Duration>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Returns whether a server answers a harmless request before a timeout, so that it is neither down nor frozen.
    fn answers<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        impossible(node, "asking whether it answers")
    }
    /// Returns the current leader of the lock nodes; none, if there is no leader, as during an election.
    fn leader(&self) -> Doing<'_, Option<NodeName>> {
        impossible(&NodeName::new("lock nodes"), "finding their leader")
    }
    /// Injects a fault of links of `node`. The fault lasts until [`Cluster::heal_links`].
    fn inject_links<'a>(&'a self, node: &'a NodeName, _fault: FaultId, _what: &'a Fault) -> Doing<'a, ()> {
        impossible(node, "injecting a fault of its links")
    }
    /// Heals a fault of links of `node`.
    fn heal_links<'a>(&'a self, node: &'a NodeName, _fault: FaultId) -> Doing<'a, ()> {
        impossible(node, "healing a fault of its links")
    }
    /// Measures the time that a packet between two nodes takes now; none, if the packet does not get through.
    fn latency<'a>(&'a self, from: &'a NodeName, _to: &'a NodeName) -> Doing<'a, Option<Duration>> {
        impossible(from, "probing its links")
    }
    /// Counts the connections of `node` with `peers` on which a packet of `node` still waits for a retransmission after
    /// a fault of links. With `reset` these connections are reset, so that their owners open new connections.
    fn stale_connections<'a>(&'a self, _node: &'a NodeName, _peers: &'a [NodeName], _reset: bool) -> Doing<'a, u32> {
        Box::pin(std::future::ready(Ok(0)))
    }
    /// Changes a clock of all processes of `node`. A jump adds to earlier jumps; a drift replaces an earlier drift. A
    /// drift of 0 ends the earlier drift, takes its gain from a wall clock, and leaves the gain of a monotonic clock.
    fn set_clock<'a>(&'a self, node: &'a NodeName, _clock: WhichClock, _change: ClockChange) -> Doing<'a, ()> {
        impossible(node, "setting its clock")
    }
    /// Restores the original clock functions in the processes of `node`, if all clocks are right and no fault changes
    /// them.
    fn remove_clock_patch<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Returns bounds of the offset of the wall clock of `node` from the host's clock, as the server of `node` reports
    /// its time: at least and at most, in nanoseconds. None, if the node is no server, or its server reports no time.
    fn told_ahead_ns<'a>(&'a self, _node: &'a NodeName) -> Doing<'a, Option<(i64, i64)>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Returns the offset of a clock of `node` from the host's clock, as the process of `node` reads the clock, in
    /// nanoseconds.
    fn clock_ahead_ns<'a>(&'a self, node: &'a NodeName, _clock: WhichClock) -> Doing<'a, i64> {
        impossible(node, "reading its clock")
    }
}

/// The time of a harmless request to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerTime {
    /// The server answered.
    Well(Duration),
    /// The request failed in this time, for another reason than the server's speed.
    Failed(Duration),
    /// No answer came before a timeout.
    Silent,
}

fn impossible<'a, T: Send + 'a>(node: &NodeName, doing: &'static str) -> Doing<'a, T> {
    let error = ClusterError { node: node.clone(), doing, why: "this cluster cannot do that".into() };
    Box::pin(std::future::ready(Err(error)))
}
