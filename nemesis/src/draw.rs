//! Drawing a schedule from a seed. Pure: the same seed and wishes give the same schedule, though never the same run.

use std::{collections::BTreeMap, time::Duration};

use history::{ClockChange, Direction, Fault, FaultId, FaultKind, NodeName, Range, Step, Target, When, WhichClock};
use rand::{Rng, seq::IndexedRandom};

use crate::{
    Wish, WishError,
    group::{self, Cut, Group},
    wish::{Moment, Peers, Whom},
};

/// Between the heal of one random fault and the next: long enough to acquire, short enough to see many.
const GAP_MS: std::ops::RangeInclusive<u64> = 500..=2_000;
/// A fault of a lock node is proved healed within this, as a rule; then the next one may come.
const HEALED_WITHIN: Duration = Duration::from_millis(500);
/// A server that was started again answers within this, on a machine that is busy.
const RESTARTED_WITHIN: Duration = Duration::from_secs(2);
/// How long a killed worker stays down.
const BACK_AFTER: Duration = Duration::from_secs(1);
/// How long a lock node that loses its data stays down.
const BACK_SOON_MS: std::ops::RangeInclusive<u64> = 50..=500;
/// So many of a hundred packets are lost: enough that some are lost twice, and few enough that most of what clients do gets through.
const LOST_PERCENT: std::ops::RangeInclusive<u8> = 10..=40;
/// Packets that overtake each other were sent within this.
const REORDERED_WITHIN: Duration = Duration::from_millis(80);
/// A fault that machines may share hits a majority of the lock nodes one time in so many, within so short a time.
const MAJORITY_ONE_IN: u32 = 4;
const TOGETHER_MS: std::ops::RangeInclusive<u64> = 0..=20;

/// What a schedule is drawn for.
#[derive(Debug, Clone)]
pub struct Draw<'a> {
    /// What was asked for.
    pub wishes: &'a [Wish],
    /// Length of the fault phase.
    pub time: Duration,
    /// The lease: random pauses last 1.5 to 2.5 of them.
    pub lease: Duration,
    /// Names of the workers.
    pub workers: &'a [NodeName],
    /// Names of the lock nodes.
    pub lock_nodes: &'a [NodeName],
}

/// Draws the whole schedule: placed wishes once each, random ones until the time is full.
///
/// Random faults of workers come one after the other. Those of lock nodes come at times of their own, kind by kind, and may be on together with
/// others: a lock on several nodes breaks where two things go wrong at once.
pub fn draw(rng: &mut impl Rng, of: &Draw) -> Result<Vec<Step>, WishError> {
    let (random, placed): (Vec<_>, Vec<_>) = of.wishes.iter().partition(|w| w.moment == Moment::Random);
    let (servers, random): (Vec<_>, Vec<_>) = random.into_iter().partition(|w| hits_servers(w, of));
    let mut steps: Vec<Step> = Vec::new();
    for wish in placed {
        let planned = match wish.moment {
            // Somebody must be armed before anybody can arrive: the holder of a placed fault is drawn.
            Moment::Point(point) => {
                let target = Target::Node(worker(rng, wish, of)?);
                vec![(fault(rng, wish, of, &target)?, target, When::AtPoint(point))]
            }
            Moment::At(at) => round(rng, wish, of, at)?,
            Moment::Random => unreachable!("partitioned above"),
        };
        add(&mut steps, planned);
    }
    add_free(&mut steps, coming(rng, &servers, of)?);
    let mut filled = Duration::ZERO;
    while filled < of.time
        && let Some(wish) = random.choose(rng)
    {
        let gap = gap(rng);
        let target = target(rng, wish, of)?;
        let fault = fault(rng, wish, of, &target)?;
        filled += gap + fault.lasting();
        add(&mut steps, vec![(fault, target, When::AfterHeal(gap))]);
    }
    Ok(steps)
}

/// What becomes a step when it gets its number.
type Planned = (Fault, Target, When);

/// Numbers what comes together. One that waits for the heal of another waits for that of the one before it.
fn add(steps: &mut Vec<Step>, planned: Vec<Planned>) {
    for (fault, target, when) in planned {
        let before = FaultId(steps.len() as u32);
        let when = if matches!(when, When::Healed(_)) { When::Healed(before) } else { when };
        steps.push(Step { id: FaultId(before.0 + 1), fault, target, when });
    }
}

/// Random faults of servers, in the order of their times; those that stand together come together or not at all.
fn coming(rng: &mut impl Rng, servers: &[&Wish], of: &Draw) -> Result<Vec<(Duration, Vec<Planned>)>, WishError> {
    let mut coming = Vec::new();
    for wish in servers {
        let mut at = gap(rng);
        while at < of.time {
            if let Whom::Group(group) = wish.whom {
                let round = round(rng, wish, of, at)?;
                let next = at + lasts(&round) + gap(rng);
                // One after the other they must all come up: a chain that the end would cut is left out.
                let is_whole =
                    round.len() == 1 || at + lasts(&round) + RESTARTED_WITHIN * round.len() as u32 <= of.time;
                if is_whole || group != Group::Rolling {
                    coming.push((at, round));
                }
                at = next;
                continue;
            }
            let target = target(rng, wish, of)?;
            let fault = fault(rng, wish, of, &target)?;
            let next = at + fault.lasting() + gap(rng);
            for (at, target) in struck(rng, wish, of, at, target) {
                coming.push((at, vec![(fault.clone(), target, When::At(at))]));
            }
            at = next;
        }
    }
    coming.sort_by_key(|(at, _)| *at);
    Ok(coming)
}

/// How long all of it takes: at once, or one after the other.
fn lasts(round: &[Planned]) -> Duration {
    let later = round.iter().filter(|(_, _, when)| matches!(when, When::Healed(_)));
    let first = round.first().map_or(Duration::ZERO, |(fault, ..)| fault.lasting());
    first + later.map(|(fault, ..)| fault.lasting() + HEALED_WITHIN).sum::<Duration>()
}

/// Adds those whose nodes are free: one fault at a time on each of them, and some time to see it healed. One that comes too early is left out, and so is
/// one that cannot be on together with one that was placed.
fn add_free(steps: &mut Vec<Step>, coming: Vec<(Duration, Vec<Planned>)>) {
    let placed = steps.len();
    let mut free: BTreeMap<NodeName, Duration> = BTreeMap::new();
    // Whoever leads is a node that nobody knows yet: it takes turns.
    let name = |target: &Target| match target {
        Target::Node(node) => node.clone(),
        Target::Leader | Target::Holder => NodeName::new("leader"),
    };
    for (at, round) in coming {
        let is_free = round.iter().all(|(_, target, _)| free.get(&name(target)).is_none_or(|free| *free <= at));
        let of_its_own = |(fault, target, when): &Planned| {
            let step = Step { id: FaultId(0), fault: fault.clone(), target: target.clone(), when: *when };
            steps[..placed].iter().all(|other| step.excludes(other).is_none())
        };
        if is_free && round.iter().all(of_its_own) {
            let until = at + lasts(&round) + HEALED_WITHIN;
            free.extend(round.iter().map(|(_, target, _)| (name(target), until)));
            add(steps, round);
        }
    }
}

/// What a wish that has its time comes to: one fault, or as many as its group has nodes, at once or one after the other.
fn round(rng: &mut impl Rng, wish: &Wish, of: &Draw, at: Duration) -> Result<Vec<Planned>, WishError> {
    let Whom::Group(group) = wish.whom else {
        let target = target(rng, wish, of)?;
        return Ok(vec![(fault(rng, wish, of, &target)?, target, When::At(at))]);
    };
    let refused =
        |problem| WishError { wish: format!("{}:{}", wish.kind, group.name()), word: group.name().into(), problem };
    if wish.kind.is_of_links() && group != Group::Rolling {
        let cuts = group.cuts(rng, of, &wish.links).map_err(refused)?;
        let drawn = fault(rng, wish, of, &Target::Holder)?;
        let way = group::way(rng, &wish.links);
        let step = |cut: Cut| {
            let mut fault = drawn.clone();
            if let Some((direction, from)) = fault.links_mut() {
                (*direction, *from) = (cut.direction(way), cut.from);
            }
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
        round.push((fault(rng, wish, of, &target)?, target, when));
    }
    // What they do together is the same for all of them.
    if let Some((first, ..)) = round.first().cloned().filter(|_| !wish.kind.is_of_links()) {
        round.iter_mut().for_each(|(fault, ..)| *fault = first.clone());
    }
    Ok(round)
}

/// Which nodes are struck, and when: mostly one. A time server that is wrong and a power supply that fails reach more machines than one: a majority
/// of the lock nodes then, at about the same moment.
fn struck(rng: &mut impl Rng, wish: &Wish, of: &Draw, at: Duration, one: Target) -> Vec<(Duration, Target)> {
    let is_shared = matches!(wish.kind, FaultKind::Clock | FaultKind::Amnesia | FaultKind::Powerloss);
    let is_several = wish.whom == Whom::AnyLockNode && is_shared && of.lock_nodes.len() > 2;
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

fn hits_servers(wish: &Wish, of: &Draw) -> bool {
    match &wish.whom {
        Whom::AnyLockNode | Whom::Leader | Whom::Group(_) => true,
        Whom::Node(node) => !of.workers.contains(node),
        Whom::Holder | Whom::AnyWorker => false,
    }
}

fn fault(rng: &mut impl Rng, wish: &Wish, of: &Draw, target: &Target) -> Result<Fault, WishError> {
    let lease_ms = of.lease.as_millis() as f64;
    let mut leases = |range: std::ops::RangeInclusive<f64>| (lease_ms * rng.random_range(range)).round() as u64;
    Ok(match wish.kind {
        FaultKind::Pause => {
            let drawn = Duration::from_millis(leases(1.5..=2.5));
            Fault::Pause { lasting: wish.lasting.unwrap_or(drawn) }
        }
        FaultKind::Stop => {
            let drawn = Duration::from_millis(leases(1.5..=2.5));
            Fault::Stop { lasting: wish.lasting.unwrap_or(drawn) }
        }
        FaultKind::Slow => {
            let drawn = Duration::from_millis(leases(1.5..=2.5));
            Fault::Slow { lasting: wish.lasting.unwrap_or(drawn), percent: Fault::A_CRAWL }
        }
        FaultKind::Kill => Fault::Kill { back_after: wish.lasting.unwrap_or(BACK_AFTER) },
        FaultKind::Amnesia => {
            let back_after = wish.lasting.unwrap_or(Duration::from_millis(rng.random_range(BACK_SOON_MS)));
            Fault::Amnesia { back_after, counters_of: Vec::new() }
        }
        FaultKind::Powerloss => Fault::Powerloss {
            back_after: wish.lasting.unwrap_or(Duration::from_millis(rng.random_range(BACK_SOON_MS))),
        },
        FaultKind::Clock => {
            let (by, lasting) = (leases(0.8..=2.0) as i64, Duration::from_millis(leases(1.0..=3.0)));
            // A jump back makes a lease last longer, which blocks others and lets nobody in.
            let by = if rng.random_ratio(1, 5) { -by } else { by };
            let lasting = wish.lasting.unwrap_or(lasting);
            Fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(by), lasting }
        }
        FaultKind::Partition => {
            let lasting = wish.lasting.unwrap_or(Duration::from_millis(leases(0.5..=2.5)));
            let (direction, from) = links(rng, wish, of, target)?;
            let cut = if wish.links.is_reject { history::Cut::Reject } else { history::Cut::Drop };
            Fault::Partition { lasting, direction, from, cut }
        }
        FaultKind::Delay => {
            let lasting = Duration::from_millis(leases(0.5..=2.5));
            let by = Duration::from_millis(leases(0.2..=1.5));
            let lasting = wish.lasting.unwrap_or(lasting);
            // What a client sends from its point on comes when the fault is over.
            let by = if wish.is_placed() { lasting } else { by };
            let (direction, from) = links(rng, wish, of, target)?;
            Fault::Delay { lasting, by: by.into(), direction, from }
        }
        FaultKind::Loss => {
            let lasting = wish.lasting.unwrap_or(Duration::from_millis(leases(0.5..=2.5)));
            let percent = rng.random_range(LOST_PERCENT);
            let (direction, from) = links(rng, wish, of, target)?;
            Fault::Loss { lasting, percent, direction, from }
        }
        FaultKind::Reorder => {
            let lasting = wish.lasting.unwrap_or(Duration::from_millis(leases(0.5..=2.5)));
            let by = Range { from: Duration::ZERO, to: REORDERED_WITHIN };
            let (direction, from) = links(rng, wish, of, target)?;
            Fault::Reorder { lasting, by, direction, from }
        }
    })
}

/// Which way, and from whom: as asked; what is not asked for is drawn for random faults, and otherwise both ways and everybody. A delay at a point is one
/// of what the client sends: its answers would be late by as much again.
fn links(rng: &mut impl Rng, wish: &Wish, of: &Draw, target: &Target) -> Result<(Direction, Vec<NodeName>), WishError> {
    let is_random = wish.moment == Moment::Random;
    let is_sent_only = wish.is_placed() && wish.kind == FaultKind::Delay;
    let drawn = if is_random { direction(rng) } else { Direction::Both };
    let way = match wish.links.way {
        Some(_) => group::way(rng, &wish.links),
        None if is_sent_only => Direction::Out,
        None => drawn,
    };
    let drawn = if is_random { some_peers(rng, of, target) } else { Vec::new() };
    if wish.links.with.is_empty() {
        return Ok((way, drawn));
    }
    let peers: Vec<NodeName> = wish.links.with.iter().flat_map(|peers| named(*peers, of)).collect();
    let is_other = |peer: &&NodeName| !matches!(target, Target::Node(node) if !exchange(of, node, peer));
    let peers: Vec<NodeName> = peers.iter().filter(is_other).cloned().collect();
    if peers.is_empty() {
        let Target::Node(node) = target else { return Ok((way, peers)) };
        let problem = format!("{node} exchanges nothing with those that are named after it");
        return Err(WishError { wish: wish.kind.to_string(), word: node.to_string(), problem });
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

/// Whether two nodes send each other packets: workers do with all that are no workers, lock nodes with each other.
fn exchange(of: &Draw, one: &NodeName, other: &NodeName) -> bool {
    let is_worker = |node| of.workers.contains(node);
    let is_lock_node = |node| of.lock_nodes.contains(node);
    one != other && (is_worker(one) != is_worker(other) || is_lock_node(one) && is_lock_node(other))
}

/// Mostly both ways.
fn direction(rng: &mut impl Rng) -> Direction {
    *[Direction::Both, Direction::Both, Direction::Out, Direction::In].choose(rng).unwrap_or(&Direction::Both)
}

/// A lock node is cut off from some of the workers, or from all; others from everybody.
fn some_peers(rng: &mut impl Rng, of: &Draw, target: &Target) -> Vec<NodeName> {
    match target {
        Target::Node(node) if of.lock_nodes.contains(node) => {
            of.workers.iter().filter(|_| rng.random_ratio(1, 2)).cloned().collect()
        }
        _ => Vec::new(),
    }
}

fn target(rng: &mut impl Rng, wish: &Wish, of: &Draw) -> Result<Target, WishError> {
    match &wish.whom {
        Whom::Holder => Ok(Target::Holder),
        Whom::Leader => Ok(Target::Leader),
        Whom::AnyLockNode => {
            of.lock_nodes.choose(rng).cloned().map(Target::Node).ok_or_else(|| none(wish, of, "any-lock-node"))
        }
        Whom::Node(node) if of.lock_nodes.contains(node) || node.as_str() == "resource" => {
            Ok(Target::Node(node.clone()))
        }
        _ => worker(rng, wish, of).map(Target::Node),
    }
}

fn none(wish: &Wish, of: &Draw, word: &str) -> WishError {
    let range = |nodes: &[NodeName]| match nodes {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first} to {last}")),
    };
    let known: Vec<_> = [range(of.workers), range(of.lock_nodes)].into_iter().flatten().collect();
    WishError {
        wish: wish.kind.to_string(),
        word: word.into(),
        problem: format!("no such node; there are {}", known.join(", ")),
    }
}

fn worker(rng: &mut impl Rng, wish: &Wish, of: &Draw) -> Result<NodeName, WishError> {
    match &wish.whom {
        Whom::Node(name) => {
            of.workers.iter().find(|w| *w == name).cloned().ok_or_else(|| none(wish, of, name.as_str()))
        }
        _ => of.workers.choose(rng).cloned().ok_or_else(|| none(wish, of, "worker")),
    }
}

#[cfg(test)]
mod tests;
