//! Draws a schedule from a seed. The functions are pure: the same seed and the same specifications give the same
//! schedule, but not the same run.

use std::{collections::BTreeMap, time::Duration};

use history::{Direction, Fault, FaultId, FaultKind, NodeName, ResourceKind, Step, Target, When, fault::Links};
use rand::{Rng, seq::IndexedRandom};

use crate::{
    drawing::{Draw, Drawing},
    driver,
    group::{self, NodeCut},
    spec::{FaultSpec, FaultSpecError, Group, Peers, TargetSpec, Trigger},
};

/// The time between the heal of a random fault and the next fault. A client can acquire the lock in this time, and a
/// run has many faults.
const GAP_MS: std::ops::RangeInclusive<u64> = 500..=2_000;
/// The usual time until a fault of a lock node is proved healed. The next fault of the node begins later.
const HEALED_WITHIN: Duration = Duration::from_millis(500);
/// The time within which a restarted server answers on a busy machine.
const RESTARTED_WITHIN: Duration = Duration::from_secs(2);
/// One of so many shared faults (see [`driver::is_shared`]) hits a majority of the lock nodes, within `TOGETHER_MS`.
const MAJORITY_ONE_IN: u32 = 4;
const TOGETHER_MS: std::ops::RangeInclusive<u64> = 0..=20;
/// Placed faults are drawn anew at most so often if they exclude each other on a node that was drawn.
const REDRAWS: u32 = 100;
/// The most memory of the drawn steps, in bytes: of more than a million faults, those that are left out included. The
/// longest plans need less.
const BYTES_MAX: usize = 256 << 20;

/// Draws the whole schedule: each placed fault once, and random faults until the end of the fault phase.
///
/// Random faults of workers follow one another. The times of random faults of lock nodes are drawn independently for
/// each specification, so these faults can overlap with other faults: a lock on several nodes fails when several nodes
/// have faults at the same time.
///
/// # Errors
/// A specification names a node, a group or links that the cluster does not have, or the schedule would be far too
/// large.
pub fn draw(rng: &mut impl Rng, of: &Draw) -> Result<Vec<Step>, FaultSpecError> {
    let (random, placed): (Vec<_>, Vec<_>) = of.specs.iter().partition(|w| w.trigger == Trigger::Random);
    let (servers, random): (Vec<_>, Vec<_>) = random.into_iter().partition(|w| hits_servers(w, of));
    let (mut steps, mut size) = place(rng, &placed, of)?;
    let is_drawn = placed.iter().any(|spec| !matches!(spec.target, TargetSpec::Node(_)));
    for _ in 0..REDRAWS {
        let excludes_one =
            |(n, step): (usize, &Step)| steps[n + 1..].iter().any(|other| step.excludes(other).is_some());
        if !is_drawn || !steps.iter().enumerate().any(excludes_one) {
            break;
        }
        (steps, size) = place(rng, &placed, of)?;
    }
    add_free(&mut steps, coming(rng, &servers, of, &mut size)?);
    let mut filled = Duration::ZERO;
    while filled < of.time
        && let Some(spec) = random.choose(rng)
    {
        let gap = gap(rng);
        let target = target(rng, spec, of)?;
        let fault = fault(rng, spec, of, &target)?;
        filled += gap + fault.lasting;
        let planned = vec![(fault, target, When::AfterHeal(gap))];
        size.add(spec, &planned)?;
        add(&mut steps, planned);
    }
    Ok(steps)
}

/// Draws the placed faults.
fn place(rng: &mut impl Rng, placed: &[&FaultSpec], of: &Draw) -> Result<(Vec<Step>, Size), FaultSpecError> {
    let (mut steps, mut size): (Vec<Step>, Size) = Default::default();
    for spec in placed {
        let planned = match spec.trigger {
            // The harness must arm a client before the client reaches the point, so a worker is drawn instead of the
            // holder.
            Trigger::Point(point) => {
                let target = Target::Node(worker(rng, spec, of)?);
                vec![(fault(rng, spec, of, &target)?, target, When::AtPoint(point))]
            }
            Trigger::At(at) => round(rng, spec, of, at)?,
            Trigger::Random => unreachable!("partitioned above"),
        };
        size.add(spec, &planned)?;
        add(&mut steps, planned);
    }
    Ok((steps, size))
}

/// A step that has no number yet.
type Planned = (Fault, Target, When);

/// The memory of the drawn steps. A few words can name more faults, and of more links, than any memory holds.
#[derive(Default)]
struct Size {
    bytes: usize,
}

impl Size {
    fn add(&mut self, spec: &FaultSpec, planned: &[Planned]) -> Result<(), FaultSpecError> {
        let peers = planned.iter().flat_map(|(fault, ..)| &fault.links).map(|links| links.from.len());
        self.bytes += size_of_val(planned) + peers.sum::<usize>() * size_of::<NodeName>();
        if self.bytes <= BYTES_MAX {
            return Ok(());
        }
        let problem = "so many faults are too large for a plan; make --time shorter, or name fewer faults".into();
        Err(FaultSpecError { spec: spec.written(), word: spec.kind.name().into(), problem })
    }
}

/// Numbers the planned steps. A step that waits for a heal waits for the heal of the step before it.
fn add(steps: &mut Vec<Step>, planned: Vec<Planned>) {
    for (fault, target, when) in planned {
        let before = FaultId(steps.len() as u32);
        let when = if matches!(when, When::Healed(_)) { When::Healed(before) } else { when };
        steps.push(Step { id: FaultId(before.0 + 1), fault, target, when });
    }
}

/// Draws the random faults of servers, in the order of their times. The schedule has either all steps of a round or
/// none.
fn coming(
    rng: &mut impl Rng,
    servers: &[&FaultSpec],
    of: &Draw,
    size: &mut Size,
) -> Result<Vec<(Duration, Vec<Planned>)>, FaultSpecError> {
    let mut coming = Vec::new();
    for spec in servers {
        let mut at = gap(rng);
        while at < of.time {
            if let TargetSpec::Group(group) = spec.target {
                let round = round(rng, spec, of, at)?;
                let next = at + lasts(&round) + gap(rng);
                // All nodes of a rolling fault must be up again before the run ends; otherwise the fault is left out.
                let is_whole =
                    round.len() == 1 || at + lasts(&round) + RESTARTED_WITHIN * round.len() as u32 <= of.time;
                if is_whole || group != Group::Rolling {
                    size.add(spec, &round)?;
                    coming.push((at, round));
                }
                at = next;
                continue;
            }
            let target = target(rng, spec, of)?;
            let fault = fault(rng, spec, of, &target)?;
            let next = at + fault.lasting + gap(rng);
            for (at, target) in struck(rng, spec, of, at, target) {
                let planned = vec![(fault.clone(), target, When::At(at))];
                size.add(spec, &planned)?;
                coming.push((at, planned));
            }
            at = next;
        }
    }
    coming.sort_by_key(|(at, _)| *at);
    Ok(coming)
}

/// The length of a round, whose steps run at the same moment or one after the other.
fn lasts(round: &[Planned]) -> Duration {
    let later = round.iter().filter(|(_, _, when)| matches!(when, When::Healed(_)));
    let first = round.first().map_or(Duration::ZERO, |(fault, ..)| fault.lasting);
    first + later.map(|(fault, ..)| fault.lasting + HEALED_WITHIN).sum::<Duration>()
}

/// Adds the rounds whose nodes have no other fault at that time, nor a fault that is not yet proved healed. A round
/// that overlaps with another fault of its nodes is left out, and so is a round that a placed fault excludes.
fn add_free(steps: &mut Vec<Step>, coming: Vec<(Duration, Vec<Planned>)>) {
    let placed = steps.len();
    let mut free: BTreeMap<NodeName, Duration> = BTreeMap::new();
    // The leader is not known yet, so faults of the leader follow one another.
    let name = |target: &Target| match target {
        Target::Node(node) => node.clone(),
        Target::Leader | Target::Holder => NodeName::new("leader"),
    };
    for (at, round) in coming {
        let is_free = round.iter().all(|(_, target, _)| free.get(&name(target)).is_none_or(|free| *free <= at));
        let of_its_own = |(fault, target, when): &Planned| {
            let step = Step { id: FaultId(0), fault: fault.clone(), target: target.clone(), when: *when };
            // Of two faults that begin at the same time, the plan takes the placed one for the first.
            let meets = |other: &Step| step.excludes(other).or_else(|| other.excludes(&step)).is_some();
            !steps[..placed].iter().any(meets)
        };
        if is_free && round.iter().all(of_its_own) {
            let until = at + lasts(&round) + HEALED_WITHIN;
            free.extend(round.iter().map(|(_, target, _)| (name(target), until)));
            add(steps, round);
        }
    }
}

/// Draws the steps of a specification at one time: one step, or one step for each node of a group. The steps of a group
/// run at the same moment, or one after the other (`rolling`).
fn round(rng: &mut impl Rng, spec: &FaultSpec, of: &Draw, at: Duration) -> Result<Vec<Planned>, FaultSpecError> {
    let TargetSpec::Group(group) = spec.target else {
        let target = target(rng, spec, of)?;
        return Ok(vec![(fault(rng, spec, of, &target)?, target, When::At(at))]);
    };
    let refused = |problem| FaultSpecError { spec: spec.written(), word: group.name().into(), problem };
    if spec.kind.is_of_links() && group != Group::Rolling {
        let cuts = group.cuts(rng, of, &spec.links).map_err(refused)?;
        let drawn = fault(rng, spec, of, &Target::Holder)?;
        let way = group::way(rng, &spec.links);
        let step = |cut: NodeCut| {
            let mut fault = drawn.clone();
            let direction = cut.direction(way);
            fault.links = fault.links.map(|_| Links { direction, from: cut.from });
            (fault, Target::Node(cut.node), When::At(at))
        };
        return Ok(cuts.into_iter().map(step).collect());
    }
    let members = group.members(rng, of).map_err(refused)?;
    let mut round = Vec::new();
    for node in members {
        let target = Target::Node(node);
        let is_later = group == Group::Rolling && !round.is_empty();
        let when = if is_later { When::Healed(FaultId(0)) } else { When::At(at) };
        round.push((fault(rng, spec, of, &target)?, target, when));
    }
    // All nodes of a group get the same fault.
    if let Some((first, ..)) = round.first().cloned().filter(|_| !spec.kind.is_of_links()) {
        round.iter_mut().for_each(|(fault, ..)| *fault = first.clone());
    }
    Ok(round)
}

/// Draws the nodes that a random fault hits, and their times: usually the one node. A wrong time server or a failed
/// power supply affects several machines. So some shared faults hit a majority of the lock nodes at about the same
/// time.
fn struck(rng: &mut impl Rng, spec: &FaultSpec, of: &Draw, at: Duration, one: Target) -> Vec<(Duration, Target)> {
    let is_several = spec.target == TargetSpec::AnyLockNode && driver::is_shared(spec.kind) && of.lock_nodes.len() > 2;
    if !is_several || !rng.random_ratio(1, MAJORITY_ONE_IN) {
        return vec![(at, one)];
    }
    let majority = of.lock_nodes.choose_multiple(rng, of.lock_nodes.len() / 2 + 1).cloned().collect::<Vec<_>>();
    let at = |node| (at + Duration::from_millis(rng.random_range(TOGETHER_MS)), Target::Node(node));
    majority.into_iter().map(at).filter(|(at, _)| *at < of.time).collect()
}

fn gap(rng: &mut impl Rng) -> Duration {
    Duration::from_millis(rng.random_range(GAP_MS))
}

fn hits_servers(spec: &FaultSpec, of: &Draw) -> bool {
    match &spec.target {
        TargetSpec::AnyLockNode | TargetSpec::Leader | TargetSpec::Group(_) => true,
        TargetSpec::Node(node) => !of.workers.contains(node),
        TargetSpec::Holder | TargetSpec::AnyWorker => false,
    }
}

fn fault(rng: &mut impl Rng, spec: &FaultSpec, of: &Draw, target: &Target) -> Result<Fault, FaultSpecError> {
    let fault = driver::draw(&mut Drawing { rng, spec, of });
    if !spec.kind.is_of_links() {
        return Ok(fault);
    }
    let (direction, from) = links(rng, spec, of, target)?;
    Ok(fault.on_links(direction, from))
}

/// Returns the direction and the peers of a fault of links. If the specification names none, they are drawn for a
/// random fault; other faults hit both directions and all peers. A delay at a point hits only the packets that the
/// client sends: a delay of the replies would add the same time again.
fn links(
    rng: &mut impl Rng,
    spec: &FaultSpec,
    of: &Draw,
    target: &Target,
) -> Result<(Direction, Vec<NodeName>), FaultSpecError> {
    let is_random = spec.trigger == Trigger::Random;
    let is_sent_only = spec.is_placed() && spec.kind == FaultKind::Delay;
    let drawn = if is_random { direction(rng) } else { Direction::Both };
    let way = match spec.links.way {
        Some(_) => group::way(rng, &spec.links),
        None if is_sent_only => Direction::Out,
        None => drawn,
    };
    let drawn = if is_random { some_peers(rng, of, target) } else { Vec::new() };
    if spec.links.with.is_empty() {
        return Ok((way, drawn));
    }
    let peers: Vec<NodeName> = spec.links.with.iter().flat_map(|peers| named(*peers, of)).collect();
    let is_other = |peer: &&NodeName| !matches!(target, Target::Node(node) if !exchange(of, node, peer));
    let peers: Vec<NodeName> = peers.iter().filter(is_other).cloned().collect();
    if peers.is_empty() {
        let Target::Node(node) = target else { return Ok((way, peers)) };
        let with: Vec<_> = spec.links.with.iter().map(|peers| format!("`{}`", peers.name())).collect();
        let problem = format!("{node} exchanges nothing with {}; name other links, or none", with.join(" and "));
        return Err(FaultSpecError { spec: spec.written(), word: spec.target.name().into(), problem });
    }
    Ok((way, peers))
}

fn named(peers: Peers, of: &Draw) -> Vec<NodeName> {
    match peers {
        Peers::LockNodes => of.lock_nodes.to_vec(),
        Peers::Workers => of.workers.to_vec(),
        Peers::Resource => vec![NodeName::new("resource")],
    }
}

/// Returns whether two nodes send packets to each other: a worker and any node that is not a worker, two lock nodes, or
/// a lock node and a resource that keeps its data there.
fn exchange(of: &Draw, one: &NodeName, other: &NodeName) -> bool {
    let is_worker = |node| of.workers.contains(node);
    let is_lock_node = |node| of.lock_nodes.contains(node);
    let is_client = |node: &NodeName| of.resource == ResourceKind::Etcd && node.as_str() == "resource";
    let is_asked = |node, client| is_lock_node(node) && (is_lock_node(client) || is_client(client));
    one != other && (is_worker(one) != is_worker(other) || is_asked(one, other) || is_asked(other, one))
}

/// Draws a direction: both in half of the draws.
fn direction(rng: &mut impl Rng) -> Direction {
    *[Direction::Both, Direction::Both, Direction::Out, Direction::In].choose(rng).unwrap_or(&Direction::Both)
}

/// Draws the peers of a random fault: some of the workers for a lock node. An empty list means all peers.
fn some_peers(rng: &mut impl Rng, of: &Draw, target: &Target) -> Vec<NodeName> {
    match target {
        Target::Node(node) if of.lock_nodes.contains(node) => {
            of.workers.iter().filter(|_| rng.random_ratio(1, 2)).cloned().collect()
        }
        _ => Vec::new(),
    }
}

fn target(rng: &mut impl Rng, spec: &FaultSpec, of: &Draw) -> Result<Target, FaultSpecError> {
    match &spec.target {
        TargetSpec::Holder => Ok(Target::Holder),
        TargetSpec::Leader => Ok(Target::Leader),
        TargetSpec::AnyLockNode => {
            of.lock_nodes.choose(rng).cloned().map(Target::Node).ok_or_else(|| none(spec, of, "any-lock-node"))
        }
        TargetSpec::Node(node) if of.lock_nodes.contains(node) || node.as_str() == "resource" => {
            Ok(Target::Node(node.clone()))
        }
        _ => worker(rng, spec, of).map(Target::Node),
    }
}

fn none(spec: &FaultSpec, of: &Draw, word: &str) -> FaultSpecError {
    let range = |nodes: &[NodeName]| match nodes {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first} to {last}")),
    };
    let is_node = of.lock_nodes.iter().any(|node| node.as_str() == word) || word == "resource";
    let problem = if is_node && spec.is_placed() {
        let workers = range(of.workers).unwrap_or_default();
        format!("at a protocol point only a worker can be the target; expected {workers}")
    } else {
        let known: Vec<_> = [range(of.workers), range(of.lock_nodes)].into_iter().flatten().collect();
        let words = "or a word such as holder, any-worker, any-lock-node, leader or majority";
        format!("no such node; expected {}, resource, {words}", known.join(", "))
    };
    FaultSpecError { spec: spec.written(), word: word.into(), problem }
}

fn worker(rng: &mut impl Rng, spec: &FaultSpec, of: &Draw) -> Result<NodeName, FaultSpecError> {
    match &spec.target {
        TargetSpec::Node(name) => {
            of.workers.iter().find(|w| *w == name).cloned().ok_or_else(|| none(spec, of, name.as_str()))
        }
        _ => of.workers.choose(rng).cloned().ok_or_else(|| none(spec, of, "worker")),
    }
}

#[cfg(test)]
mod tests;
