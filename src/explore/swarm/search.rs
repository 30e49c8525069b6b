//! The search of a swarm: generations of plans, drawn anew or as mutants of plans that showed something new.
//!
//! A generation knows only the signals of earlier generations, so that the result does not depend on the number of
//! threads.

use std::{collections::VecDeque, ops::ControlFlow};

use history::Plan;
use rand::Rng;

use super::{Swarm, signal::Signal};
use crate::explore::{
    draws::Draws,
    sweep::{SeedError, Seeds, caught, each},
};

/// The number of plans of a generation.
pub const GENERATION: u64 = 64;
/// The number of plans that may have mutants: the last that showed something new.
const PARENTS: usize = 512;

/// A plan that showed something new, and the number of records of its run.
struct Parent {
    plan: Plan,
    records: u32,
}

/// Simulates and judges a plan: the result, and the signal.
pub type Judge<'a, T> = dyn Fn(&Plan) -> Result<(T, Signal), String> + Sync + 'a;

/// Runs the plans of `seeds`, in generations, until `see` has seen enough. `see` gets each seed in order, its plan, and
/// the result or the error of the simulation.
///
/// # Errors
/// The smallest seed without a plan.
pub fn search<T: Send>(
    swarm: &Swarm,
    seeds: Seeds,
    judge: &Judge<'_, T>,
    see: &mut dyn FnMut(u64, Plan, Result<T, String>) -> ControlFlow<()>,
) -> Result<(), SeedError> {
    let (mut known, mut parents) = (Signal::default(), VecDeque::<Parent>::new());
    let mut from = 0;
    while from < seeds.count {
        let generation: Vec<u64> = (from..seeds.count.min(from + GENERATION)).map(|n| seeds.first + n).collect();
        let run = |seed: &u64| {
            let plan = caught(|| next(swarm, *seed, &parents).map_err(|e| format!("{e:#}")))?;
            let judged = caught(|| judge(&plan));
            Ok((plan, judged))
        };
        let results = each(seeds.jobs, &generation, &run);
        for (seed, result) in generation.into_iter().zip(results) {
            let (plan, judged) = result.map_err(|why| SeedError { seed, why })?;
            if let Ok((_, signal)) = &judged
                && known.add(signal) > 0
            {
                parents.push_back(Parent { plan: plan.clone(), records: signal.records });
            }
            if see(seed, plan, judged.map(|(result, _)| result)).is_break() {
                return Ok(());
            }
        }
        let old = parents.len().saturating_sub(PARENTS);
        parents.drain(..old);
        from += GENERATION;
    }
    Ok(())
}

/// Draws the plan of a seed: half of the plans are mutants, as soon as there are parents.
fn next(swarm: &Swarm, seed: u64, parents: &VecDeque<Parent>) -> anyhow::Result<Plan> {
    let mut rng = Draws::Parent.of(seed);
    if parents.is_empty() || rng.random_ratio(1, 2) {
        return swarm.plan(seed);
    }
    // The shorter of two runs: long runs show much that is new, and take the time of many others.
    let [one, other] = [(); 2].map(|()| &parents[rng.random_range(0..parents.len())]);
    swarm.mutant(seed, if one.records <= other.records { &one.plan } else { &other.plan })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::swarm::signal::Watch;

    /// Runs 160 plans on so many threads. Returns the plans in the order in which they were seen.
    fn seen(jobs: usize) -> Vec<Plan> {
        let swarm = Swarm::of("redis", None).unwrap();
        let judge = |plan: &Plan| {
            let mut watch = Watch::default();
            let trial = crate::explore::trial::watched(plan, "redis", None, None, |record| watch.see(record));
            trial.map(|_| ((), watch.signal())).map_err(|e| e.to_string())
        };
        let mut seen = Vec::new();
        let seeds = Seeds { first: 40, count: 160, kept: 0, jobs };
        search(&swarm, seeds, &judge, &mut |seed, plan, judged| {
            judged.unwrap();
            assert_eq!(seed, 40 + seen.len() as u64);
            seen.push(plan);
            ControlFlow::Continue(())
        })
        .unwrap();
        seen
    }

    #[test]
    fn later_generations_have_mutants_and_do_not_depend_on_the_number_of_threads() {
        let (plans, swarm) = (seen(1), Swarm::of("redis", None).unwrap());
        assert_eq!(plans.len(), 160);
        let fresh = |(seed, plan): (u64, &Plan)| swarm.plan(seed).unwrap() == *plan;
        let mutants = (40..).zip(&plans).filter(|one| !fresh(*one)).count();
        assert!((20..80).contains(&mutants), "{mutants} mutants");
        assert_eq!(seen(3), plans);
    }

    #[test]
    fn the_choice_of_a_mutant_does_not_decide_the_plan_of_the_seed() {
        let swarm = Swarm::of("redis", None).unwrap();
        let parents = VecDeque::from([Parent { plan: swarm.plan(0).unwrap(), records: 1 }]);
        let (mut fresh, mut behind_mutants) = (Vec::new(), Vec::new());
        for seed in 1..=400 {
            let own = swarm.plan(seed).unwrap();
            let is_fresh = next(&swarm, seed, &parents).unwrap() == own;
            let reenters = own.workload.reenter > 0;
            let plans = if is_fresh { &mut fresh } else { &mut behind_mutants };
            plans.push(reenters);
        }
        for plans in [fresh, behind_mutants] {
            let share = plans.iter().filter(|reenters| **reenters).count() as f64 / plans.len() as f64;
            assert!((0.1..0.3).contains(&share), "{share} of {} plans acquire a key again", plans.len());
        }
    }

    #[test]
    fn a_search_ends_when_enough_was_seen_and_goes_on_after_an_error() {
        let swarm = Swarm::of("redis", None).unwrap();
        let seeds = Seeds { first: 0, count: 1_000, kept: 0, jobs: 2 };
        let judge = |plan: &Plan| match plan.seed {
            40 => Err("no model of it".to_owned()),
            50 => panic!("odd"),
            _ => Ok((plan.seed, Signal::default())),
        };
        let mut seen = Vec::new();
        let mut failed = Vec::new();
        let enough = search(&swarm, seeds, &judge, &mut |seed, plan, judged| {
            assert_eq!(plan.seed, seed);
            match judged {
                Ok(judged) => seen.push(judged),
                Err(why) => failed.push((seed, why)),
            }
            if seed == 70 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let good: Vec<u64> = (0..=70).filter(|seed| ![40, 50].contains(seed)).collect();
        assert_eq!((enough, seen), (Ok(()), good));
        assert_eq!((failed.len(), failed[0].clone()), (2, (40, "no model of it".to_owned())));
        assert!(failed[1].1.contains("panicked") && failed[1].1.contains("odd"), "{failed:?}");
    }
}
