//! `kill`, `amnesia` and `powerloss`: the process ends, and a new process starts with all, none or some of the data.

use serde::{Deserialize, Serialize};

use super::rules::{About, Data, FaultParameters, Harm};
use crate::{
    cluster::PlannedCluster,
    names::NodeName,
    servers::{self, ServerModel},
    target::Target,
};

/// Kills every process of the target, and starts the target again with its data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Kill {}

impl FaultParameters for Kill {
    const ABOUT: About = About {
        summary: "SIGKILL ends the target; it starts again with all data that its kernel had.",
        past_tense: "killed",
        harm: Harm::Kills(Data::Kept),
    };
}

/// Kills every process of the target, and starts the target again without any data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Amnesia {
    /// Lock nodes whose counters the target takes over before it accepts clients: the largest counter of each key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters_of: Vec<NodeName>,
}

impl FaultParameters for Amnesia {
    const ABOUT: About = About {
        summary: "SIGKILL ends a lock node; it starts again without any data.",
        past_tense: "restarted, empty,",
        harm: Harm::Kills(Data::Lost),
    };

    fn check_target(&self, cluster: &PlannedCluster<'_>, target: &Target) -> Result<(), String> {
        if cluster.servers.amnesia == servers::Amnesia::LosesMembership {
            let problem =
                "a server without its data is no longer a member of its store; use `kill`, which keeps the data";
            return Err(format!("{problem} (backend {})", cluster.backend));
        }
        has_data(cluster, target)?;
        self.check_counters(cluster, target)
    }

    fn story(&self, node: &NodeName, _lasted: &str) -> String {
        format!("restarted {node} without its data")
    }
}

impl Amnesia {
    /// Refuses counters that the target could not take over.
    fn check_counters(&self, cluster: &PlannedCluster<'_>, target: &Target) -> Result<(), String> {
        let is_target = |node: &NodeName| matches!(target, Target::Node(target) if target == node);
        let is_other = |node: &&NodeName| !is_target(node) && cluster.lock_nodes.contains(node);
        match self.counters_of.iter().find(|node| !is_other(node)) {
            _ if self.counters_of.is_empty() => Ok(()),
            _ if cluster.has_one_store() => {
                Err("`counters_of`: members of one store have no counters of their own".into())
            }
            _ if !cluster.servers.kill_forgets || cluster.servers.model() == Some(ServerModel::LockServers) => {
                Err(format!("`counters_of`: only a Redis takes over counters, not the servers of {}", cluster.backend))
            }
            _ if cluster.models.is_some_and(|models| models.persistence.has_log()) => {
                Err("`counters_of`: a Redis with an append-only file looks at nothing else when it starts".into())
            }
            Some(node) => Err(format!("`counters_of`: `{node}` is no other lock node")),
            None => Ok(()),
        }
    }
}

/// Kills every process of the target, and starts the target again with the data that had been synced.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Powerloss {}

impl FaultParameters for Powerloss {
    const ABOUT: About = About {
        summary: "The machine of a lock node loses power; it starts again with the synced data.",
        past_tense: "cut the power of",
        harm: Harm::Kills(Data::Synced),
    };

    fn check_target(&self, cluster: &PlannedCluster<'_>, target: &Target) -> Result<(), String> {
        has_data(cluster, target)
    }
}

/// Refuses targets without data.
fn has_data(cluster: &PlannedCluster<'_>, target: &Target) -> Result<(), String> {
    match target {
        Target::Holder => Err("the holder has no data to lose; name a lock node".into()),
        Target::Node(node) if !cluster.may_be_lock_node(node) => {
            Err(format!("`{node}` is no lock node, and has no data to lose"))
        }
        Target::Node(_) | Target::Leader => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn only_a_lock_node_has_data_to_lose() {
        let plan = plan();
        let cluster = plan.planned_cluster();
        let check = |target: &Target| {
            [Amnesia::default().check_target(&cluster, target), Powerloss {}.check_target(&cluster, target)]
        };
        assert_eq!(check(&Target::Node("redis-1".into())), [Ok(()), Ok(())]);
        for target in [Target::Holder, Target::Node("worker-1".into()), Target::Node("resource".into())] {
            for refused in check(&target) {
                assert!(refused.is_err_and(|problem| problem.contains("no data to lose")), "{target:?}");
            }
        }
    }
}
