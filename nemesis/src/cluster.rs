//! The one port through which faults reach a cluster.

use std::{future::Future, pin::Pin};

use history::NodeName;

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
    /// Starts a killed node again, as a new process. Starting a running node does nothing.
    fn start<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()>;
    /// Whether `node` runs now, as the engine says.
    fn is_running<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool>;
}
