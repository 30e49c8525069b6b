//! Commands to the run's own processes on Docker, as lines on their standard input.

use compose::Running;
use history::NodeName;
use nemesis::ClusterError;
use serde::Serialize;

/// Sends one command to the process on `node`, as one line.
pub fn send(cluster: &Running, node: &NodeName, command: &impl Serialize) -> Result<(), ClusterError> {
    let failed = |why| ClusterError { node: node.clone(), doing: "sending a command", why };
    let line = serde_json::to_string(command).map_err(|e| failed(e.to_string()))?;
    cluster.send(node, line).map_err(|e| failed(e.to_string()))
}
