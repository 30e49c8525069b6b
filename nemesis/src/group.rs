//! Several lock nodes at once, or one after the other: which of them, and between whom links are cut.
//!
//! A group is drawn into plain steps, so that a plan and a history know nodes only. Locks such as Redlock have nodes that never talk to each
//! other: a split that left the workers out would change nothing for them. So workers stand on a side too, drawn from the seed.

use history::{Direction, NodeName};
use rand::{Rng, seq::SliceRandom};

use crate::{
    Draw,
    wish::{Asked, OneWay, Peers},
};

/// A group of lock nodes, or of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// More than half of the lock nodes. Their links: cut off from the others, and from the workers on the others' side.
    Majority,
    /// As many as a majority can do without. Their links: cut off from everybody else.
    Minority,
    /// Half of the lock nodes with half of the workers, cut off from the rest. One half is larger if the number is odd.
    Halves,
    /// Each lock node sees its two neighbours, each worker one lock node and its two neighbours.
    Ring,
    /// Two halves, with workers, and one lock node that both see.
    Bridge,
    /// One lock node, cut off from everybody.
    Isolate,
    /// All lock nodes, one after the other.
    Rolling,
}

/// Links of one node that a split cuts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub node: NodeName,
    pub from: Vec<NodeName>,
    /// The node stands on the other side than the nodes that are cut off: what goes in there comes out here.
    is_flipped: bool,
}

/// Two sides of lock nodes and workers.
#[derive(Debug, Default)]
struct Sides {
    lock_nodes: [Vec<NodeName>; 2],
    workers: [Vec<NodeName>; 2],
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 7] =
        [Group::Majority, Group::Minority, Group::Halves, Group::Ring, Group::Bridge, Group::Isolate, Group::Rolling];

    /// The word in flags.
    pub fn name(self) -> &'static str {
        match self {
            Group::Majority => "majority",
            Group::Minority => "minority",
            Group::Halves => "halves",
            Group::Ring => "ring",
            Group::Bridge => "bridge",
            Group::Isolate => "isolate",
            Group::Rolling => "rolling",
        }
    }

    /// Whether it is one of links only.
    pub fn is_of_links(self) -> bool {
        matches!(self, Group::Halves | Group::Ring | Group::Bridge | Group::Isolate)
    }

    /// How many of `count` lock nodes the group has; an error, if there are too few.
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

    /// The lock nodes that a fault of their processes hits: at once, or one after the other in this order.
    pub(crate) fn members(self, rng: &mut impl Rng, of: &Draw) -> Result<Vec<NodeName>, String> {
        let size = self.size(of.lock_nodes.len())?;
        let mut members = of.lock_nodes.to_vec();
        if self != Group::Rolling {
            members.shuffle(rng);
            members.truncate(size);
        }
        Ok(members)
    }

    /// The links that it cuts, each named at one of its ends only.
    pub(crate) fn cuts(self, rng: &mut impl Rng, of: &Draw, asked: &Asked) -> Result<Vec<Cut>, String> {
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
        let cuts: Vec<Cut> = cuts.into_iter().filter(|cut| !cut.from.is_empty()).collect();
        if cuts.is_empty() { Err("there is no link that it would cut".into()) } else { Ok(cuts) }
    }
}

impl Cut {
    /// Which way of the node's links is cut, if that of the nodes that are cut off is `way`.
    pub fn direction(&self, way: Direction) -> Direction {
        match (way, self.is_flipped) {
            (Direction::In, true) => Direction::Out,
            (Direction::Out, true) => Direction::In,
            (way, _) => way,
        }
    }
}

/// Which way a wish means: what is drawn is drawn once for all of a group.
pub(crate) fn way(rng: &mut impl Rng, asked: &Asked) -> Direction {
    match asked.way {
        None => Direction::Both,
        Some(OneWay::In) => Direction::In,
        Some(OneWay::Out) => Direction::Out,
        Some(OneWay::Either) => [Direction::In, Direction::Out][usize::from(rng.random_ratio(1, 2))],
    }
}

/// The first side has one worker more, if their number is odd.
fn deal(workers: &[NodeName]) -> [&[NodeName]; 2] {
    let (left, right) = workers.split_at(workers.len().div_ceil(2));
    [left, right]
}

fn sides(lock_nodes: [&[NodeName]; 2], workers: [&[NodeName]; 2]) -> Sides {
    Sides { lock_nodes: lock_nodes.map(<[_]>::to_vec), workers: workers.map(<[_]>::to_vec) }
}

/// Links with the lock nodes and with the workers are cut unless a wish says which; those with the resource only if it says so.
fn is_asked(asked: &Asked, peers: Peers) -> bool {
    asked.with.contains(&peers) || (asked.with.is_empty() && peers != Peers::Resource)
}

impl Sides {
    /// Everything between the two sides. The resource stands on the first.
    fn cuts(&self, asked: &Asked) -> Vec<Cut> {
        let ([left, right], [left_workers, right_workers]) = (&self.lock_nodes, &self.workers);
        let if_asked = |peers, nodes: &[NodeName]| if is_asked(asked, peers) { nodes.to_vec() } else { Vec::new() };
        let of_left = [if_asked(Peers::LockNodes, right), if_asked(Peers::Workers, right_workers)].concat();
        let of_right = if_asked(Peers::Workers, left_workers);
        let cut = |node: &NodeName, from: &[NodeName], is_flipped| Cut {
            node: node.clone(),
            from: from.to_vec(),
            is_flipped,
        };
        let mut cuts: Vec<Cut> = left.iter().map(|node| cut(node, &of_left, false)).collect();
        cuts.extend(right.iter().map(|node| cut(node, &of_right, true)));
        cuts.push(cut(&NodeName::new("resource"), &if_asked(Peers::Resource, right_workers), false));
        cuts
    }
}

/// The lock nodes in a ring, and the workers dealt out to them.
fn ring(nodes: &[NodeName], workers: &[NodeName], asked: &Asked) -> Result<Vec<Cut>, String> {
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
        Cut { node: node.clone(), from, is_flipped: false }
    };
    Ok(nodes.iter().enumerate().map(cut).collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn names(kind: &str, count: usize) -> Vec<NodeName> {
        (1..=count).map(|n| NodeName::new(format!("{kind}-{n}"))).collect()
    }

    /// Who does not see whom, both ways.
    fn cut_pairs(cuts: &[Cut]) -> BTreeSet<(NodeName, NodeName)> {
        let mut pairs = BTreeSet::new();
        for cut in cuts {
            for peer in &cut.from {
                assert!(pairs.insert((cut.node.clone(), peer.clone())), "{cut:?} names a link twice");
                assert!(pairs.insert((peer.clone(), cut.node.clone())), "{cut:?} names a link twice");
            }
        }
        pairs
    }

    /// For each of `who`, how many of `nodes` it sees.
    fn sees(pairs: &BTreeSet<(NodeName, NodeName)>, who: &[NodeName], nodes: &[NodeName]) -> Vec<usize> {
        let seen = |one: &NodeName| nodes.iter().filter(|n| !pairs.contains(&(one.clone(), (*n).clone()))).count();
        let mut seen: Vec<usize> = who.iter().map(seen).collect();
        seen.sort_unstable();
        seen
    }

    fn split(group: Group, nodes: usize, workers: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
        let (lock_nodes, workers) = (names("redis", nodes), names("worker", workers));
        let (time, lease) = (Duration::from_secs(30), Duration::from_secs(2));
        let of = Draw { wishes: &[], time, lease, workers: &workers, lock_nodes: &lock_nodes };
        let cuts = group.cuts(&mut ChaCha8Rng::seed_from_u64(seed), &of, &Asked::default()).unwrap();
        let pairs = cut_pairs(&cuts);
        (sees(&pairs, &lock_nodes, &lock_nodes), sees(&pairs, &workers, &lock_nodes))
    }

    #[test]
    fn each_group_leaves_lock_nodes_and_workers_what_its_name_says() {
        for seed in 0..50 {
            // How many lock nodes the lock nodes see, themselves among them, and how many the workers do.
            assert_eq!(split(Group::Majority, 5, 4, seed), (vec![2, 2, 3, 3, 3], vec![2, 2, 3, 3]));
            assert_eq!(split(Group::Halves, 4, 4, seed), (vec![2; 4], vec![2; 4]));
            assert_eq!(split(Group::Minority, 5, 4, seed), (vec![2, 2, 3, 3, 3], vec![3; 4]));
            assert_eq!(split(Group::Isolate, 5, 4, seed), (vec![1, 4, 4, 4, 4], vec![4; 4]));
            assert_eq!(split(Group::Ring, 5, 4, seed), (vec![3; 5], vec![3; 4]));
            assert_eq!(split(Group::Bridge, 5, 4, seed), (vec![3, 3, 3, 3, 5], vec![3; 4]));
        }
    }

    #[test]
    fn one_way_is_the_same_way_at_both_ends_of_every_link() {
        let (lock_nodes, workers) = (names("redis", 5), names("worker", 4));
        let of = Draw {
            wishes: &[],
            time: Duration::from_secs(30),
            lease: Duration::from_secs(2),
            workers: &workers,
            lock_nodes: &lock_nodes,
        };
        let asked = Asked { with: vec![Peers::LockNodes, Peers::Workers, Peers::Resource], ..Asked::default() };
        let cuts = Group::Majority.cuts(&mut ChaCha8Rng::seed_from_u64(1), &of, &asked).unwrap();
        // The side of the majority sends, and nothing of the other side arrives there.
        let left: BTreeSet<_> = cuts.iter().filter(|c| !c.is_flipped).map(|c| &c.node).collect();
        assert_eq!(left.len(), 4, "three lock nodes and the resource");
        for cut in &cuts {
            let expected = if left.contains(&cut.node) { Direction::In } else { Direction::Out };
            assert_eq!(cut.direction(Direction::In), expected);
            assert_eq!(cut.direction(Direction::Both), Direction::Both);
        }
        let only =
            |with| Group::Majority.cuts(&mut ChaCha8Rng::seed_from_u64(1), &of, &Asked { with, ..Asked::default() });
        let of_resource = only(vec![Peers::Resource]).unwrap();
        assert_eq!((of_resource.len(), of_resource[0].node.as_str(), of_resource[0].from.len()), (1, "resource", 2));
        let of_nodes = only(vec![Peers::LockNodes]).unwrap();
        assert!(of_nodes.iter().flat_map(|cut| &cut.from).all(|peer| lock_nodes.contains(peer)));
    }

    #[test]
    fn a_group_that_too_few_lock_nodes_can_make_is_refused() {
        for (group, count) in [(Group::Minority, 2), (Group::Halves, 1), (Group::Bridge, 2), (Group::Ring, 3)] {
            assert!(group.size(count).unwrap_err().contains(&(count + 1).to_string()), "{}", group.name());
            assert!(group.size(count + 1).is_ok());
        }
    }
}
