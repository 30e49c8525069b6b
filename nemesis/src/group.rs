//! Groups of lock nodes, and groups of links: draws the nodes that a fault hits, and the links that a fault cuts.
//!
//! A group is drawn into steps of single nodes, so a plan and a history name nodes only. The lock nodes of some locks,
//! such as Redlock, never exchange packets, so a split of the lock nodes alone would have no effect. Therefore each
//! worker is on one side too; the side is drawn from the seed.

use history::{Direction, NodeName};
use rand::{Rng, seq::SliceRandom};

use crate::{
    drawing::Draw,
    spec::{Group, LinkSpec, OneWay, Peers},
};

/// The links of one node that a split cuts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeCut {
    pub node: NodeName,
    pub from: Vec<NodeName>,
    /// True if the node is on the second side of the split: incoming packets of the first side are outgoing packets of
    /// this node.
    is_flipped: bool,
}

/// The two sides of a split: lock nodes and workers.
#[derive(Debug, Default)]
struct Sides {
    lock_nodes: [Vec<NodeName>; 2],
    workers: [Vec<NodeName>; 2],
}

impl Group {
    /// Returns the number of nodes of the group if there are `count` lock nodes; an error, if there are too few.
    fn size(self, count: usize) -> Result<usize, String> {
        let (size, least) = match self {
            Group::Majority => (count / 2 + 1, 1),
            Group::Minority => (count.saturating_sub(1) / 2, 3),
            Group::Halves => (count / 2, 2),
            Group::Isolate => (1, 1),
            Group::Bridge => (count, 3),
            Group::Ring => (count, 4),
            Group::Rolling => (count, 1),
        };
        if count >= least {
            return Ok(size);
        }
        Err(format!("it takes {least} lock nodes at least; there are {count}"))
    }

    /// Draws the lock nodes that a fault of processes hits: at the same moment, or one after the other in this order.
    pub(crate) fn members(self, rng: &mut impl Rng, of: &Draw) -> Result<Vec<NodeName>, String> {
        let size = self.size(of.lock_nodes.len())?;
        let mut members = of.lock_nodes.to_vec();
        if self != Group::Rolling {
            members.shuffle(rng);
            members.truncate(size);
        }
        Ok(members)
    }

    /// Draws the links that the group cuts. Each link is in the list of one of its two ends.
    pub(crate) fn cuts(self, rng: &mut impl Rng, of: &Draw, asked: &LinkSpec) -> Result<Vec<NodeCut>, String> {
        let size = self.size(of.lock_nodes.len())?;
        let (mut nodes, mut workers) = (of.lock_nodes.to_vec(), of.workers.to_vec());
        nodes.shuffle(rng);
        workers.shuffle(rng);
        let cuts = match self {
            Group::Ring => ring(&nodes, &workers, asked)?,
            Group::Rolling => return Err("it is one after the other, and no split".into()),
            Group::Bridge => {
                let (_, ends) = nodes.split_at(1);
                let (left, right) = ends.split_at(ends.len() / 2);
                sides([left, right], deal(&workers)).cuts(asked)
            }
            Group::Majority | Group::Halves => {
                let (left, right) = nodes.split_at(size);
                sides([left, right], deal(&workers)).cuts(asked)
            }
            Group::Minority | Group::Isolate => {
                let (left, right) = nodes.split_at(size);
                sides([left, right], [&[], &workers]).cuts(asked)
            }
        };
        let cuts: Vec<NodeCut> = cuts.into_iter().filter(|cut| !cut.from.is_empty()).collect();
        if cuts.is_empty() { Err("there is no link that it would cut".into()) } else { Ok(cuts) }
    }
}

impl NodeCut {
    /// Converts the direction `way`, as the first side sees it, to the direction that this node sees.
    pub fn direction(&self, way: Direction) -> Direction {
        match (way, self.is_flipped) {
            (Direction::In, true) => Direction::Out,
            (Direction::Out, true) => Direction::In,
            (way, _) => way,
        }
    }
}

/// Returns the direction of a specification. `one-way` is drawn once for all nodes of a group.
pub(crate) fn way(rng: &mut impl Rng, asked: &LinkSpec) -> Direction {
    match asked.way {
        None => Direction::Both,
        Some(OneWay::In) => Direction::In,
        Some(OneWay::Out) => Direction::Out,
        Some(OneWay::Either) => [Direction::In, Direction::Out][usize::from(rng.random_ratio(1, 2))],
    }
}

/// Splits the workers into two sides. With an odd number of workers, the first side has one more.
fn deal(workers: &[NodeName]) -> [&[NodeName]; 2] {
    let (left, right) = workers.split_at(workers.len().div_ceil(2));
    [left, right]
}

fn sides(lock_nodes: [&[NodeName]; 2], workers: [&[NodeName]; 2]) -> Sides {
    Sides { lock_nodes: lock_nodes.map(<[_]>::to_vec), workers: workers.map(<[_]>::to_vec) }
}

/// Returns whether the specification cuts links with `peers`. A specification that names no peers cuts the links with
/// lock nodes and workers, and not the links with the resource.
fn is_asked(asked: &LinkSpec, peers: Peers) -> bool {
    asked.with.contains(&peers) || (asked.with.is_empty() && peers != Peers::Resource)
}

impl Sides {
    /// Returns all links between the two sides. The resource is on the first side.
    fn cuts(&self, asked: &LinkSpec) -> Vec<NodeCut> {
        let ([left, right], [left_workers, right_workers]) = (&self.lock_nodes, &self.workers);
        let if_asked = |peers, nodes: &[NodeName]| if is_asked(asked, peers) { nodes.to_vec() } else { Vec::new() };
        let of_left = [if_asked(Peers::LockNodes, right), if_asked(Peers::Workers, right_workers)].concat();
        let of_right = if_asked(Peers::Workers, left_workers);
        let cut = |node: &NodeName, from: &[NodeName], is_flipped| NodeCut {
            node: node.clone(),
            from: from.to_vec(),
            is_flipped,
        };
        let mut cuts: Vec<NodeCut> = left.iter().map(|node| cut(node, &of_left, false)).collect();
        cuts.extend(right.iter().map(|node| cut(node, &of_right, true)));
        cuts.push(cut(&NodeName::new("resource"), &if_asked(Peers::Resource, right_workers), false));
        cuts
    }
}

/// Cuts all links but those of neighbours in the ring. The workers are distributed over the lock nodes in turn.
fn ring(nodes: &[NodeName], workers: &[NodeName], asked: &LinkSpec) -> Result<Vec<NodeCut>, String> {
    if asked.with.contains(&Peers::Resource) {
        return Err("the resource has no place in a ring; it can be cut off from the workers by itself".into());
    }
    let count = nodes.len();
    let is_far = |a: usize, b: usize| !matches!(a.abs_diff(b), 0 | 1) && a.abs_diff(b) != count - 1;
    let cut = |(n, node): (usize, &NodeName)| {
        let far_nodes = (n + 1..count).filter(|other| is_asked(asked, Peers::LockNodes) && is_far(n, *other));
        let is_far_worker = |w: &usize| is_asked(asked, Peers::Workers) && is_far(n, w % count);
        let far_workers = (0..workers.len()).filter(is_far_worker);
        let from = far_nodes.map(|o| nodes[o].clone()).chain(far_workers.map(|w| workers[w].clone())).collect();
        NodeCut { node: node.clone(), from, is_flipped: false }
    };
    Ok(nodes.iter().enumerate().map(cut).collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use history::ResourceKind;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn names(kind: &str, count: usize) -> Vec<NodeName> {
        (1..=count).map(|n| NodeName::new(format!("{kind}-{n}"))).collect()
    }

    /// The pairs of nodes that cannot reach each other, in both orders.
    fn cut_pairs(cuts: &[NodeCut]) -> BTreeSet<(NodeName, NodeName)> {
        let mut pairs = BTreeSet::new();
        for cut in cuts {
            for peer in &cut.from {
                assert!(pairs.insert((cut.node.clone(), peer.clone())), "{cut:?} names a link twice");
                assert!(pairs.insert((peer.clone(), cut.node.clone())), "{cut:?} names a link twice");
            }
        }
        pairs
    }

    /// For each node in `who`: the number of `nodes` that the node reaches.
    fn sees(pairs: &BTreeSet<(NodeName, NodeName)>, who: &[NodeName], nodes: &[NodeName]) -> Vec<usize> {
        let seen = |one: &NodeName| nodes.iter().filter(|n| !pairs.contains(&(one.clone(), (*n).clone()))).count();
        let mut seen: Vec<usize> = who.iter().map(seen).collect();
        seen.sort_unstable();
        seen
    }

    /// The pairs of lock nodes and workers that the group cuts off from each other.
    fn drawn(group: Group, lock_nodes: &[NodeName], workers: &[NodeName], seed: u64) -> BTreeSet<(NodeName, NodeName)> {
        let (time, lease) = (Duration::from_secs(30), Duration::from_secs(2));
        let resource = ResourceKind::Service;
        let of = Draw { specs: &[], time, lease, workers, lock_nodes, resource };
        let cuts = group.cuts(&mut ChaCha8Rng::seed_from_u64(seed), &of, &LinkSpec::default()).unwrap();
        cut_pairs(&cuts)
    }

    fn split(group: Group, nodes: usize, workers: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
        let (lock_nodes, workers) = (names("redis", nodes), names("worker", workers));
        let pairs = drawn(group, &lock_nodes, &workers, seed);
        (sees(&pairs, &lock_nodes, &lock_nodes), sees(&pairs, &workers, &lock_nodes))
    }

    #[test]
    fn each_group_leaves_lock_nodes_and_workers_what_its_name_says() {
        for seed in 0..50 {
            // The number of lock nodes that each lock node reaches, itself included, and that each worker reaches.
            assert_eq!(split(Group::Majority, 5, 4, seed), (vec![2, 2, 3, 3, 3], vec![2, 2, 3, 3]));
            assert_eq!(split(Group::Halves, 4, 4, seed), (vec![2; 4], vec![2; 4]));
            assert_eq!(split(Group::Minority, 5, 4, seed), (vec![2, 2, 3, 3, 3], vec![3; 4]));
            assert_eq!(split(Group::Minority, 4, 4, seed), (vec![1, 3, 3, 3], vec![3; 4]));
            assert_eq!(split(Group::Isolate, 5, 4, seed), (vec![1, 4, 4, 4, 4], vec![4; 4]));
            assert_eq!(split(Group::Ring, 5, 4, seed), (vec![3; 5], vec![3; 4]));
            assert_eq!(split(Group::Bridge, 5, 4, seed), (vec![3, 3, 3, 3, 5], vec![3; 4]));
        }
    }

    #[test]
    fn a_ring_has_a_place_for_more_workers_than_lock_nodes() {
        // Each lock node is reached by the workers of three places.
        for (nodes, count, reached_by) in [(5, 7, vec![3, 4, 4, 5, 5]), (4, 9, vec![6, 7, 7, 7]), (5, 10, vec![6; 5])] {
            let (lock_nodes, workers) = (names("redis", nodes), names("worker", count));
            for seed in 0..20 {
                let pairs = drawn(Group::Ring, &lock_nodes, &workers, seed);
                assert_eq!(sees(&pairs, &workers, &lock_nodes), vec![3; count]);
                assert_eq!(sees(&pairs, &lock_nodes, &workers), reached_by);
            }
        }
    }

    #[test]
    fn one_way_is_the_same_way_at_both_ends_of_every_link() {
        let (lock_nodes, workers) = (names("redis", 5), names("worker", 4));
        let of = Draw {
            specs: &[],
            time: Duration::from_secs(30),
            lease: Duration::from_secs(2),
            workers: &workers,
            lock_nodes: &lock_nodes,
            resource: ResourceKind::Service,
        };
        let asked = LinkSpec { with: vec![Peers::LockNodes, Peers::Workers, Peers::Resource], ..LinkSpec::default() };
        let cuts = Group::Majority.cuts(&mut ChaCha8Rng::seed_from_u64(1), &of, &asked).unwrap();
        // Packets from the majority's side arrive; packets from the other side do not.
        let left: BTreeSet<_> = cuts.iter().filter(|c| !c.is_flipped).map(|c| &c.node).collect();
        assert_eq!(left.len(), 4, "three lock nodes and the resource");
        for cut in &cuts {
            let expected = if left.contains(&cut.node) { Direction::In } else { Direction::Out };
            assert_eq!(cut.direction(Direction::In), expected);
            assert_eq!(cut.direction(Direction::Both), Direction::Both);
        }
        let only = |with| {
            Group::Majority.cuts(&mut ChaCha8Rng::seed_from_u64(1), &of, &LinkSpec { with, ..LinkSpec::default() })
        };
        let of_resource = only(vec![Peers::Resource]).unwrap();
        assert_eq!((of_resource.len(), of_resource[0].node.as_str(), of_resource[0].from.len()), (1, "resource", 2));
        let of_nodes = only(vec![Peers::LockNodes]).unwrap();
        assert!(of_nodes.iter().flat_map(|cut| &cut.from).all(|peer| lock_nodes.contains(peer)));
    }

    #[test]
    fn one_way_is_either_way() {
        let asked = LinkSpec { way: Some(OneWay::Either), ..LinkSpec::default() };
        let ways: Vec<Direction> = (0..20).map(|seed| way(&mut ChaCha8Rng::seed_from_u64(seed), &asked)).collect();
        assert!(ways.contains(&Direction::In) && ways.contains(&Direction::Out) && !ways.contains(&Direction::Both));
    }

    #[test]
    fn a_group_that_too_few_lock_nodes_can_make_is_refused() {
        for (group, count) in [(Group::Minority, 2), (Group::Halves, 1), (Group::Bridge, 2), (Group::Ring, 3)] {
            assert!(group.size(count).unwrap_err().contains(&(count + 1).to_string()), "{}", group.name());
            assert!(group.size(count + 1).is_ok());
        }
    }
}
