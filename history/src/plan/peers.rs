//! Checks of the nodes that a fault of links names at the other end of its links.

use std::collections::BTreeSet;

use super::Plan;
use crate::{names::NodeName, resource_kind::ResourceKind, step::Step, target::Target};

/// The nodes of a plan, by their roles. A plan may have thousands of faults that each name a thousand nodes, so a look
/// for a name must not pass all of them.
pub(super) struct Roles {
    lock_nodes: BTreeSet<NodeName>,
    workers: BTreeSet<NodeName>,
    /// True if the resource keeps its data in the lock nodes, as their client.
    is_resource_in_etcd: bool,
}

impl Roles {
    /// Returns whether the target exchanges packets with `node`. Workers exchange packets with lock nodes and with the
    /// resource, lock nodes with each other. A resource in the lock nodes' etcd is a client of the lock nodes.
    fn are_peers(&self, target: &Target, node: &NodeName) -> bool {
        let (is_worker, is_lock_node) = match target {
            Target::Holder => (true, false),
            Target::Leader => (false, true),
            Target::Node(target) if target == node => return false,
            Target::Node(target) => (self.workers.contains(target), self.lock_nodes.contains(target)),
        };
        let is_resource = matches!(target, Target::Node(target) if target.as_str() == "resource");
        let is_client = is_worker || is_resource && self.is_resource_in_etcd;
        let reaches_resource = is_worker || is_lock_node && self.is_resource_in_etcd;
        (is_client || is_lock_node) && self.lock_nodes.contains(node)
            || !is_worker && self.workers.contains(node)
            || reaches_resource && node.as_str() == "resource"
    }
}

impl Plan {
    pub(super) fn roles(&self) -> Roles {
        Roles {
            lock_nodes: self.lock_nodes.iter().cloned().collect(),
            workers: self.workers().collect(),
            is_resource_in_etcd: self.resource == ResourceKind::Etcd,
        }
    }

    /// Refuses a fault of links that names a node with which its target exchanges no packets.
    pub(super) fn names_peers(&self, step: &Step, roles: &Roles) -> Result<(), String> {
        let Some(links) = step.fault.links.as_ref().filter(|links| !links.from.is_empty()) else { return Ok(()) };
        let is_peer = |node: &NodeName| roles.are_peers(&step.target, node);
        let names_one = links.from.iter().any(is_peer);
        // `partition:leader:lock-nodes` names all lock nodes. A plan of `explore` keeps this list, and has the name of
        // the node that was the leader as its target.
        let is_target = |node: &NodeName| matches!(&step.target, Target::Node(target) if target == node);
        let is_stranger = |node: &&NodeName| !(is_peer(node) || names_one && is_target(node));
        let Some(stranger) = links.from.iter().find(is_stranger) else { return Ok(()) };
        let target = match &step.target {
            Target::Holder => "holder",
            Target::Leader => "leader",
            Target::Node(node) => node.as_str(),
        };
        let peers = self.peers(&step.target);
        let known = peers.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ");
        Err(format!("`from`: `{target}` exchanges no packets with `{stranger}`; expected some of: {known}"))
    }

    /// Returns the nodes that exchange packets with the target: lock nodes first, then workers, then the resource.
    pub fn peers(&self, target: &Target) -> Vec<NodeName> {
        let roles = self.roles();
        let all = self.lock_nodes.iter().cloned().chain(self.workers()).chain([NodeName::new("resource")]);
        all.filter(|node| roles.are_peers(target, node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Direction, Fault, FaultId, Tokens, When, fault,
        plan::tests::{plan, servers},
    };

    /// A plan with two lock nodes and two workers that cuts `target` off from these nodes.
    fn cut(target: Target, from: &[&str]) -> Plan {
        let from = from.iter().map(|node| (*node).into()).collect();
        let fault = Fault::new(fault::Partition::default(), Duration::from_secs(1)).on_links(Direction::Both, from);
        let when = When::At(Duration::from_secs(1));
        let schedule = vec![Step { id: FaultId(1), fault, target, when }];
        Plan { lock_nodes: vec!["redis-1".into(), "redis-2".into()], schedule, ..plan() }
    }

    fn node(name: &str) -> Target {
        Target::Node(name.into())
    }

    #[test]
    fn a_cut_names_only_nodes_that_exchange_packets_with_its_target() {
        for (target, from) in [
            (node("worker-1"), &["redis-1", "redis-2", "resource"][..]),
            (node("worker-1"), &[]),
            (node("redis-1"), &["redis-2", "worker-1", "worker-2"]),
            (node("redis-1"), &["redis-1", "redis-2"]),
            (node("resource"), &["worker-2"]),
            (Target::Holder, &["redis-2", "resource"]),
        ] {
            assert_eq!(cut(target.clone(), from).validate(), Ok(()), "{target:?} from {from:?}");
        }
        for (target, from, stranger) in [
            (node("worker-1"), &["redis-1", "resorce"][..], "resorce"),
            (node("worker-1"), &["redis-1", "redis-9"], "redis-9"),
            (node("worker-1"), &["worker-2"], "worker-2"),
            (node("worker-1"), &["worker-1"], "worker-1"),
            (node("redis-1"), &["worker-1", "resource"], "resource"),
            (node("redis-1"), &["worker-3"], "worker-3"),
            (node("resource"), &["redis-1"], "redis-1"),
            (Target::Holder, &["worker-1"], "worker-1"),
        ] {
            let refused = cut(target.clone(), from).validate().unwrap_err();
            let words = format!("exchanges no packets with `{stranger}`; expected some of: ");
            assert!(refused.field == "nemesis" && refused.problem.contains(&words), "{target:?}: {refused}");
        }
    }

    #[test]
    fn a_resource_in_etcd_exchanges_packets_with_the_lock_nodes() {
        let in_etcd = |plan: Plan| Plan {
            backend: "etcd".into(),
            servers: servers("etcd"),
            tokens: Tokens::Revision,
            resource: ResourceKind::Etcd,
            ..plan
        };
        let leader = in_etcd(cut(Target::Leader, &["resource"]));
        assert_eq!(leader.validate(), Ok(()));
        assert!(leader.peers(&Target::Leader).contains(&"resource".into()));
        for (target, peer) in [("resource", "redis-1"), ("redis-1", "resource"), ("worker-1", "resource")] {
            assert_eq!(in_etcd(cut(node(target), &[peer])).validate(), Ok(()), "{target} from {peer}");
            assert!(in_etcd(cut(node(target), &[])).peers(&node(target)).contains(&peer.into()));
        }
        for (target, stranger) in [("resource", "resource"), ("redis-1", "redis-3")] {
            assert!(in_etcd(cut(node(target), &[stranger])).validate().is_err(), "{target} from {stranger}");
        }
    }
}
