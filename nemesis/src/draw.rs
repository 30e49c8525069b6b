//! Drawing a schedule from a seed. Pure: the same seed and wishes give the same schedule, though never the same run.

use std::{collections::BTreeMap, time::Duration};

use history::{ClockChange, Direction, Fault, FaultId, FaultKind, NodeName, Range, Step, Target, When, WhichClock};
use rand::{Rng, seq::IndexedRandom};

use crate::{
    Wish, WishError,
    wish::{Moment, Whom},
};

/// Between the heal of one random fault and the next: long enough to acquire, short enough to see many.
const GAP_MS: std::ops::RangeInclusive<u64> = 500..=2_000;
/// A fault of a lock node is proved healed within this, as a rule; then the next one may come.
const HEALED_WITHIN: Duration = Duration::from_millis(500);
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
    let mut steps = Vec::new();
    let mut add = |fault, target, when| steps.push(Step { id: FaultId(steps.len() as u32 + 1), fault, target, when });
    for wish in placed {
        let (target, when) = match wish.moment {
            // Somebody must be armed before anybody can arrive: the holder of a placed fault is drawn.
            Moment::Point(point) => (Target::Node(worker(rng, wish, of)?), When::AtPoint(point)),
            Moment::At(at) => (target(rng, wish, of)?, When::At(at)),
            Moment::Random => unreachable!("partitioned above"),
        };
        add(fault(rng, wish, of, &target), target, when);
    }
    // One fault at a time on each of them, and some time to see it healed: one that comes too early is left out.
    let mut coming: Vec<(Duration, Step)> = Vec::new();
    for wish in servers {
        let mut at = gap(rng);
        while at < of.time {
            let target = target(rng, wish, of)?;
            let fault = fault(rng, wish, of, &target);
            let next = at + fault.lasting() + gap(rng);
            for (at, target) in struck(rng, wish, of, at, target) {
                coming.push((at, Step { id: FaultId(0), fault: fault.clone(), target, when: When::At(at) }));
            }
            at = next;
        }
    }
    coming.sort_by_key(|(at, _)| *at);
    let mut free: BTreeMap<NodeName, Duration> = BTreeMap::new();
    for (at, step) in coming {
        let Target::Node(node) = &step.target else { continue };
        let free = free.entry(node.clone()).or_default();
        if *free <= at {
            *free = at + step.fault.lasting() + HEALED_WITHIN;
            add(step.fault, step.target, step.when);
        }
    }
    let mut filled = Duration::ZERO;
    while filled < of.time
        && let Some(wish) = random.choose(rng)
    {
        let gap = gap(rng);
        let target = target(rng, wish, of)?;
        let fault = fault(rng, wish, of, &target);
        filled += gap + fault.lasting();
        add(fault, target, When::AfterHeal(gap));
    }
    Ok(steps)
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
        Whom::AnyLockNode => true,
        Whom::Node(node) => !of.workers.contains(node),
        Whom::Holder | Whom::AnyWorker => false,
    }
}

fn fault(rng: &mut impl Rng, wish: &Wish, of: &Draw, target: &Target) -> Fault {
    let lease_ms = of.lease.as_millis() as f64;
    let mut leases = |range: std::ops::RangeInclusive<f64>| (lease_ms * rng.random_range(range)).round() as u64;
    match wish.kind {
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
            Fault::Amnesia { back_after: wish.lasting.unwrap_or(Duration::from_millis(rng.random_range(BACK_SOON_MS))) }
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
            let (direction, from) = links(rng, wish, of, target);
            Fault::Partition { lasting, direction, from }
        }
        FaultKind::Delay => {
            let lasting = Duration::from_millis(leases(0.5..=2.5));
            let by = Duration::from_millis(leases(0.2..=1.5));
            let lasting = wish.lasting.unwrap_or(lasting);
            // What a client sends from its point on comes when the fault is over.
            let by = if wish.is_placed() { lasting } else { by };
            let (direction, from) = links(rng, wish, of, target);
            Fault::Delay { lasting, by: by.into(), direction, from }
        }
        FaultKind::Loss => {
            let lasting = wish.lasting.unwrap_or(Duration::from_millis(leases(0.5..=2.5)));
            let percent = rng.random_range(LOST_PERCENT);
            let (direction, from) = links(rng, wish, of, target);
            Fault::Loss { lasting, percent, direction, from }
        }
        FaultKind::Reorder => {
            let lasting = wish.lasting.unwrap_or(Duration::from_millis(leases(0.5..=2.5)));
            let by = Range { from: Duration::ZERO, to: REORDERED_WITHIN };
            let (direction, from) = links(rng, wish, of, target);
            Fault::Reorder { lasting, by, direction, from }
        }
    }
}

/// Which way, and from whom: drawn for random faults, and otherwise as written, both ways from everybody. A delay at a point is one of what the
/// client sends: its answers would be late by as much again.
fn links(rng: &mut impl Rng, wish: &Wish, of: &Draw, target: &Target) -> (Direction, Vec<NodeName>) {
    if wish.moment == Moment::Random {
        return (direction(rng), some_peers(rng, of, target));
    }
    let is_one_way = wish.is_placed() && wish.kind == FaultKind::Delay;
    (if is_one_way { Direction::Out } else { Direction::Both }, Vec::new())
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
        Whom::Holder | Whom::AnyWorker | Whom::AnyLockNode => {
            of.workers.choose(rng).cloned().ok_or_else(|| none(wish, of, "worker"))
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::parse;

    fn drawn(seed: u64, wishes: &str) -> Result<Vec<Step>, WishError> {
        let workers: Vec<NodeName> = (1..=5).map(|n| NodeName::new(format!("worker-{n}"))).collect();
        let of = Draw {
            wishes: &parse(wishes).unwrap(),
            time: Duration::from_secs(30),
            lease: Duration::from_secs(2),
            workers: &workers,
            lock_nodes: &["redis-1".into(), "redis-2".into(), "redis-3".into()],
        };
        draw(&mut ChaCha8Rng::seed_from_u64(seed), &of)
    }

    #[test]
    fn a_seed_promises_its_schedule() {
        assert_eq!(drawn(7, "pause,kill"), drawn(7, "pause,kill"));
        assert_ne!(drawn(7, "pause"), drawn(8, "pause"));
    }

    #[test]
    fn random_pauses_fill_the_time_and_outlast_the_lease() {
        for seed in 0..200 {
            let steps = drawn(seed, "pause").unwrap();
            let mut filled = Duration::ZERO;
            for step in &steps {
                let When::AfterHeal(gap) = step.when else { panic!("{step:?}") };
                assert!((Duration::from_millis(500)..=Duration::from_secs(2)).contains(&gap));
                assert!((Duration::from_secs(3)..=Duration::from_secs(5)).contains(&step.fault.lasting()));
                assert_eq!(step.target, Target::Holder);
                filled += gap + step.fault.lasting();
            }
            assert!(filled >= Duration::from_secs(30) && filled < Duration::from_secs(37));
        }
    }

    #[test]
    fn a_placed_fault_is_one_step_at_a_drawn_worker() {
        let steps = drawn(1, "pause@before-write+5s").unwrap();
        let [step] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(step.fault, Fault::Pause { lasting: Duration::from_secs(5) });
        assert!(matches!(&step.target, Target::Node(n) if n.as_str().starts_with("worker-")));
        let drawn_workers: std::collections::BTreeSet<_> =
            (0..50).map(|seed| format!("{:?}", drawn(seed, "pause@before-write").unwrap()[0].target)).collect();
        assert_eq!(drawn_workers.len(), 5, "every worker is drawn by some seed");
    }

    #[test]
    fn faults_of_lock_nodes_come_at_times_of_their_own() {
        for seed in 0..200 {
            let steps = drawn(seed, "clock,partition,amnesia").unwrap();
            assert!(steps.len() >= 8, "{}", steps.len());
            let mut busy: BTreeMap<&NodeName, Duration> = BTreeMap::new();
            for step in &steps {
                let (Target::Node(node), When::At(at)) = (&step.target, step.when) else { panic!("{step:?}") };
                assert!(node.as_str().starts_with("redis-") && at < Duration::from_secs(30));
                let free = busy.insert(node, at + step.fault.lasting());
                assert!(free.is_none_or(|free| free < at), "one at a time on each of them");
            }
        }
    }

    #[test]
    fn loss_and_disorder_of_lock_nodes_are_drawn_from_their_defaults_and_can_be_aimed() {
        let mut percents = std::collections::BTreeSet::new();
        for step in (0..100).flat_map(|seed| drawn(seed, "loss,reorder").unwrap()) {
            assert!(matches!(&step.target, Target::Node(n) if n.as_str().starts_with("redis-")), "{step:?}");
            assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&step.fault.lasting()));
            match step.fault {
                Fault::Loss { percent, .. } => drop(percents.insert(percent)),
                Fault::Reorder { by, .. } => assert_eq!((by.from, by.to), (Duration::ZERO, REORDERED_WITHIN)),
                fault => panic!("{fault:?}"),
            }
        }
        assert!(percents.into_iter().eq(LOST_PERCENT), "each of them by some seed");
        let steps = drawn(1, "loss:worker-2@3s+700ms").unwrap();
        let [Step { fault: Fault::Loss { lasting, from, .. }, target, when, .. }] = &steps[..] else {
            panic!("{steps:?}")
        };
        assert_eq!((target, *when), (&Target::Node("worker-2".into()), When::At(Duration::from_secs(3))));
        assert_eq!((*lasting, from.len()), (Duration::from_millis(700), 0));
    }

    #[test]
    fn a_target_that_does_not_exist_is_refused() {
        assert_eq!(drawn(1, "pause:worker-9").unwrap_err().word, "worker-9");
        assert_eq!(drawn(1, "none").unwrap(), []);
    }
}
