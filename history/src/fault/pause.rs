//! `pause` and `stop`: the target does nothing for a while.

use serde::{Deserialize, Serialize};

use super::rules::{About, FaultParameters, Harm};
use crate::{cluster::PlannedCluster, names::NodeName, target::Target};

/// Freezes every process of the target's container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Pause {}

impl FaultParameters for Pause {
    const ABOUT: About = About {
        summary: "The container freezer freezes every process of the target.",
        past_tense: "paused",
        harm: Harm::Freezes,
    };

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        let frozen = if lasted == "not proved" { "" } else { "frozen " };
        format!("paused {node} ({frozen}{lasted})")
    }
}

/// Stops the first process of the target by SIGSTOP.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stop {}

impl FaultParameters for Stop {
    const ABOUT: About = About {
        summary: "SIGSTOP stops the first process of the target; SIGCONT resumes the process.",
        past_tense: "stopped",
        harm: Harm::Freezes,
    };

    /// Refuses to stop a part of a node: a worker beside its client program, or the first of a server's many processes.
    /// The other processes would go on, which no real freeze does.
    fn check_target(&self, cluster: &PlannedCluster<'_>, target: &Target) -> Result<(), String> {
        let (is_worker, is_server) = match target {
            Target::Holder => (true, false),
            Target::Leader => (false, true),
            Target::Node(node) => (cluster.workload.has_worker(node), cluster.lock_nodes.contains(node)),
        };
        if cluster.servers.many_processes && is_server {
            return Err("SIGSTOP stops the first process of the server, and its other processes would go on; use \
                        `pause`, which freezes all of them"
                .into());
        }
        if cluster.program.is_some() && is_worker {
            return Err("SIGSTOP stops the worker, and the client program beside it would go on; use `pause`, which \
                        freezes both"
                .into());
        }
        Ok(())
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        format!("stopped {node} ({lasted})")
    }
}
