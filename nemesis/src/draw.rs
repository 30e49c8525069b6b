//! Drawing a schedule from a seed. Pure: the same seed and wishes give the same schedule, though never the same run.

use std::time::Duration;

use history::{Fault, FaultId, FaultKind, NodeName, Step, Target, When};
use rand::{Rng, seq::IndexedRandom};

use crate::{
    Wish, WishError,
    wish::{Moment, Whom},
};

/// Between the heal of one random fault and the next: long enough to acquire, short enough to see many.
const GAP_MS: std::ops::RangeInclusive<u64> = 500..=2_000;
/// How long a killed worker stays down.
const BACK_AFTER: Duration = Duration::from_secs(1);

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
}

/// Draws the whole schedule: placed wishes once each, random ones until the time is full.
pub fn draw(rng: &mut impl Rng, of: &Draw) -> Result<Vec<Step>, WishError> {
    let (random, placed): (Vec<_>, Vec<_>) = of.wishes.iter().partition(|w| w.moment == Moment::Random);
    let mut steps = Vec::new();
    let mut add = |fault, target, when| steps.push(Step { id: FaultId(steps.len() as u32 + 1), fault, target, when });
    for wish in placed {
        let fault = fault(rng, wish, of.lease);
        let (target, when) = match wish.moment {
            // Somebody must be armed before anybody can arrive: the holder of a placed fault is drawn.
            Moment::Point(point) => (Target::Node(worker(rng, wish, of)?), When::AtPoint(point)),
            Moment::At(at) => (target(rng, wish, of)?, When::At(at)),
            Moment::Random => unreachable!("partitioned above"),
        };
        add(fault, target, when);
    }
    let mut filled = Duration::ZERO;
    while filled < of.time
        && let Some(wish) = random.choose(rng)
    {
        let gap = Duration::from_millis(rng.random_range(GAP_MS));
        let fault = fault(rng, wish, of.lease);
        filled += gap + fault.lasting();
        add(fault, target(rng, wish, of)?, When::AfterHeal(gap));
    }
    Ok(steps)
}

fn fault(rng: &mut impl Rng, wish: &Wish, lease: Duration) -> Fault {
    match wish.kind {
        FaultKind::Pause => {
            let drawn = Duration::from_millis((lease.as_millis() as f64 * rng.random_range(1.5..=2.5)).round() as u64);
            Fault::Pause { lasting: wish.lasting.unwrap_or(drawn) }
        }
        FaultKind::Kill => Fault::Kill { back_after: wish.lasting.unwrap_or(BACK_AFTER) },
    }
}

fn target(rng: &mut impl Rng, wish: &Wish, of: &Draw) -> Result<Target, WishError> {
    match &wish.whom {
        Whom::Holder => Ok(Target::Holder),
        _ => worker(rng, wish, of).map(Target::Node),
    }
}

fn worker(rng: &mut impl Rng, wish: &Wish, of: &Draw) -> Result<NodeName, WishError> {
    let none = |word: &str| WishError {
        wish: wish.kind.to_string(),
        word: word.into(),
        problem: match (of.workers.first(), of.workers.last()) {
            (Some(first), Some(last)) => format!("no such worker; there are {first} to {last}"),
            _ => "there are no workers".into(),
        },
    };
    match &wish.whom {
        Whom::Node(name) => of.workers.iter().find(|w| *w == name).cloned().ok_or_else(|| none(name.as_str())),
        Whom::Holder | Whom::AnyWorker => of.workers.choose(rng).cloned().ok_or_else(|| none("worker")),
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
    fn a_target_that_does_not_exist_is_refused() {
        assert_eq!(drawn(1, "pause:worker-9").unwrap_err().word, "worker-9");
        assert_eq!(drawn(1, "none").unwrap(), []);
    }
}
