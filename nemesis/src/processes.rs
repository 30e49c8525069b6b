//! The port through which the controller commands the run's own processes.

use history::{Key, NodeName};

use crate::{Control, Doing};

/// The run's own processes: workers, resource and agent.
///
/// A command returns before its effect. Each process reports its [`crate::Progress`] by events.
pub trait Processes: Control {
    /// Tells every worker to connect to the lock nodes and to the resource, also after a restart.
    fn connect(&self) -> Doing<'_, ()>;
    /// Tells every worker to begin its load, also after a restart.
    fn begin(&self) -> Doing<'_, ()>;
    /// Tells `worker` to finish its critical sections and to begin no more.
    fn stop<'a>(&'a self, worker: &'a NodeName) -> Doing<'a, ()>;
    /// Tells the process on `node` to finish. A worker first reads `keys` from the resource.
    fn finish<'a>(&'a self, node: &'a NodeName, keys: Vec<Key>) -> Doing<'a, ()>;
}
