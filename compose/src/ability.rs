//! Whether faults that reach into containers can be done there: tried before anything is measured, at every node that the plan may hit.

use std::collections::BTreeMap;

use agent::protocol::{Ability, ClockRequest, PacketAbilities, TargetAnswer, TargetRequest};
use futures::future::try_join_all;
use history::{FaultKind, NodeName, Plan, Target};
use nemesis::ClusterError;

use crate::{Error, reach::Reached};

/// What one fault of packets needs of what was tried.
fn needed(kind: FaultKind, of: &PacketAbilities) -> Vec<(&'static str, &Ability)> {
    let proof = [("the list of connections", &of.connections), ("the reset of connections", &of.reset)];
    let of_its_own = match kind {
        FaultKind::Partition => vec![("rules of nftables", &of.nft)],
        _ => vec![("iptables with the target NFQUEUE", &of.iptables_queue), ("a queue of packets", &of.queue)],
    };
    of_its_own.into_iter().chain(proof).collect()
}

/// The faults that reach into containers, by the nodes that they may hit.
fn wanted(plan: &Plan) -> BTreeMap<NodeName, Vec<FaultKind>> {
    let mut wanted: BTreeMap<NodeName, Vec<FaultKind>> = BTreeMap::new();
    for step in plan.schedule.iter().filter(|step| step.fault.kind().reaches_in()) {
        let nodes = match &step.target {
            Target::Node(node) => vec![node.clone()],
            Target::Leader => plan.lock_nodes.clone(),
            Target::Holder => plan.workers().collect(),
        };
        for node in nodes {
            let kinds = wanted.entry(node).or_default();
            if !kinds.contains(&step.fault.kind()) {
                kinds.push(step.fault.kind());
            }
        }
    }
    wanted
}

impl Reached<'_> {
    /// Tries everything that the faults of `plan` need at their targets, and takes it away again.
    ///
    /// # Errors
    /// [`Error::Unable`] for the first that does not work: the node, what is missing, why, and what to do.
    pub async fn is_able(&self, plan: &Plan) -> Result<(), Error> {
        try_join_all(wanted(plan).into_iter().map(|(node, kinds)| async move {
            for kind in kinds {
                let lacking = |(ability, why)| Error::Unable { node: node.clone(), kind, ability, why };
                self.can(&node, kind).await.map_err(lacking)?;
            }
            Ok(())
        }))
        .await
        .map(drop)
    }

    async fn can(&self, node: &NodeName, kind: FaultKind) -> Result<(), (&'static str, String)> {
        let doing = "trying what a fault needs";
        if !kind.is_of_links() {
            // Nothing is moved, so nothing is changed: but all threads are stopped once, and the code is read that would be.
            let healing = async { self.clocks(node, ClockRequest::Heal { pid: self.pid(node, doing).await? }).await };
            let failed = |error: ClusterError| ("access to the memory of its processes", error.why);
            return healing.await.map(drop).map_err(failed);
        }
        let trying = async { self.target(node, TargetRequest::Abilities { pid: self.pid(node, doing).await? }).await };
        let failed = |error: ClusterError| ("a way into its network", error.why);
        let TargetAnswer::Abilities(found) = trying.await.map_err(failed)? else {
            return Err(("a way into its network", "the agent answered something else".into()));
        };
        for (ability, tried) in needed(kind, &found) {
            if let Ability::Fails { why } = tried {
                return Err((ability, why.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_refused_for_what_it_needs_itself_and_for_nothing_else() {
        let fails = Ability::Fails { why: "not here".into() };
        let works = PacketAbilities {
            nft: Ability::Works,
            iptables_queue: Ability::Works,
            queue: Ability::Works,
            connections: Ability::Works,
            reset: Ability::Works,
        };
        let lacks = |kind, of: &PacketAbilities| needed(kind, of).iter().any(|(_, tried)| **tried != Ability::Works);
        let no_nft = PacketAbilities { nft: fails.clone(), ..works.clone() };
        assert!(lacks(FaultKind::Partition, &no_nft) && !lacks(FaultKind::Delay, &no_nft));
        let no_queue = PacketAbilities { queue: fails.clone(), ..works.clone() };
        for kind in [FaultKind::Delay, FaultKind::Loss, FaultKind::Reorder] {
            assert!(lacks(kind, &no_queue) && !lacks(kind, &works), "{kind}");
        }
        let no_proof = PacketAbilities { connections: fails, ..works };
        assert!(lacks(FaultKind::Partition, &no_proof) && lacks(FaultKind::Loss, &no_proof));
    }
}
