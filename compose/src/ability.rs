//! Tries the faults that the agent injects inside containers, before the workers start, on every node that the plan may
//! hit.

use std::collections::BTreeMap;

use agent::protocol::{Ability, ClockRequest, PacketAbilities, TargetAnswer, TargetRequest};
use futures::future::try_join_all;
use history::{Fault, NodeName, Plan, Target, fault::LinkEffect};
use nemesis::ClusterError;

use crate::{Error, reach::DockerCluster};

/// Returns the abilities that an effect on packets needs.
fn needed(effect: LinkEffect, of: &PacketAbilities) -> Vec<(&'static str, &Ability)> {
    let proof = [("the list of connections", &of.connections), ("the reset of connections", &of.reset)];
    let of_its_own = match effect {
        LinkEffect::Cut(_) => vec![("rules of nftables", &of.nft)],
        LinkEffect::Lose(_) | LinkEffect::Delay(_) | LinkEffect::Reorder(_) => {
            vec![("iptables with the target NFQUEUE", &of.iptables_queue), ("a queue of packets", &of.queue)]
        }
    };
    of_its_own.into_iter().chain(proof).collect()
}

/// Returns, for each node, one fault of each kind that the agent injects into the node.
fn wanted(plan: &Plan) -> BTreeMap<NodeName, Vec<&Fault>> {
    let mut wanted: BTreeMap<NodeName, Vec<&Fault>> = BTreeMap::new();
    for step in plan.schedule.iter().filter(|step| step.fault.kind().needs_agent()) {
        let nodes = match &step.target {
            Target::Node(node) => vec![node.clone()],
            Target::Leader => plan.lock_nodes.clone(),
            Target::Holder => plan.workers().collect(),
        };
        for node in nodes {
            let faults = wanted.entry(node).or_default();
            if !faults.iter().any(|fault| fault.kind() == step.fault.kind()) {
                faults.push(&step.fault);
            }
        }
    }
    wanted
}

impl DockerCluster<'_> {
    /// Tries every ability that the faults of `plan` need, on their targets. No change stays.
    ///
    /// # Errors
    /// [`Error::Unable`] for the first missing ability: the node, the ability, the reason, and the remedy.
    pub async fn is_able(&self, plan: &Plan) -> Result<(), Error> {
        try_join_all(wanted(plan).into_iter().map(|(node, faults)| async move {
            for fault in faults {
                let kind = fault.kind();
                let lacking = |(ability, why)| Error::Unable { node: node.clone(), kind, ability, why };
                self.can(&node, fault).await.map_err(lacking)?;
            }
            Ok(())
        }))
        .await
        .map(drop)
    }

    async fn can(&self, node: &NodeName, fault: &Fault) -> Result<(), (&'static str, String)> {
        let doing = "trying what a fault needs";
        let Some(effect) = fault.link_effect() else {
            // A heal without a fault changes nothing, but the agent stops all threads once and reads the code of the
            // clock functions.
            let healing = async { self.clocks(node, ClockRequest::Heal { pid: self.pid(node, doing).await? }).await };
            let failed = |error: ClusterError| ("access to the memory of its processes", error.why);
            return healing.await.map(drop).map_err(failed);
        };
        let trying = async { self.target(node, TargetRequest::Abilities { pid: self.pid(node, doing).await? }).await };
        let failed = |error: ClusterError| ("a way into its network", error.why);
        let TargetAnswer::Abilities(found) = trying.await.map_err(failed)? else {
            return Err(("a way into its network", "the agent answered something else".into()));
        };
        for (ability, tried) in needed(effect, &found) {
            if let Ability::Fails { why } = tried {
                return Err((ability, why.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{
        ClockChange, CutMode, FaultId, FaultKind, LinkDelay, Range, Step, When, WhichClock,
        fault::{Clock, Delay, Flap, Kill, Loss, Partition},
    };

    use super::*;

    /// A plan with two lock nodes, two workers, and these faults.
    fn plan(faults: Vec<(Fault, Target)>) -> Plan {
        let text = concat!(
            r#"{"schema":1,"seed":1,"cluster":"docker","backend":"redis","tokens":"counter","time":"30s","#,
            r#""lease":"2s","arms":["off"],"lock_nodes":["redis-1","redis-2"],"workload":{"workers":2},"servers":"#,
            include_str!("../../tests/shared/servers/redis.json"),
            "}"
        );
        let step = |((fault, target), id)| Step { id: FaultId(id), fault, target, when: When::At(Duration::ZERO) };
        Plan { schedule: faults.into_iter().zip(1..).map(step).collect(), ..serde_json::from_str(text).unwrap() }
    }

    #[test]
    fn one_fault_of_each_kind_is_tried_on_each_node_that_it_may_hit() {
        let (second, node) = (Duration::from_secs(1), |name: &str| Target::Node(name.into()));
        let clock = Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(500) };
        let plan = plan(vec![
            (Fault::new(Partition::default(), second), node("redis-1")),
            (Fault::new(Kill {}, second), node("resource")),
            (Fault::new(Delay { by: second.into() }, 2 * second), node("redis-1")),
            (Fault::new(Partition::default(), 3 * second), node("redis-1")),
            (Fault::new(clock.clone(), second), node("redis-1")),
            (Fault::new(Loss { percent: 30 }, second), node("redis-1")),
            (Fault::new(clock, second), Target::Leader),
            (Fault::new(Flap { every: second }, 2 * second), Target::Holder),
        ]);
        let kinds = |faults: Vec<&Fault>| faults.into_iter().map(Fault::kind).collect::<Vec<_>>();
        let wanted: BTreeMap<_, _> = wanted(&plan).into_iter().map(|(node, faults)| (node, kinds(faults))).collect();
        let of_redis_1 = vec![FaultKind::Partition, FaultKind::Delay, FaultKind::Clock, FaultKind::Loss];
        let flap = || vec![FaultKind::Flap];
        let expected =
            [("redis-1", of_redis_1), ("redis-2", vec![FaultKind::Clock]), ("worker-1", flap()), ("worker-2", flap())];
        assert_eq!(wanted, BTreeMap::from(expected.map(|(node, kinds)| (NodeName::new(node), kinds))));
    }

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
        let lacks =
            |effect, of: &PacketAbilities| needed(effect, of).iter().any(|(_, tried)| **tried != Ability::Works);
        let (cut, lose) = (LinkEffect::Cut(CutMode::Drop), LinkEffect::Lose(30));
        let by = Range { from: Duration::ZERO, to: Duration::from_millis(50) };
        let (delay, reorder) = (LinkEffect::Delay(LinkDelay::Drawn(by)), LinkEffect::Reorder(by));
        let no_nft = PacketAbilities { nft: fails.clone(), ..works.clone() };
        assert!(lacks(cut, &no_nft) && !lacks(delay, &no_nft));
        let no_queue = PacketAbilities { queue: fails.clone(), ..works.clone() };
        for effect in [delay, lose, reorder] {
            assert!(lacks(effect, &no_queue) && !lacks(effect, &works), "{effect:?}");
        }
        let no_proof = PacketAbilities { connections: fails, ..works };
        assert!(lacks(cut, &no_proof) && lacks(lose, &no_proof));
    }
}
