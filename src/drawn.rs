//! The faults of a plan that its seed has drawn.

use history::{NodeName, Plan, Step, When};
use nemesis::Draw;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The most runs of a suite's row that are recognized. All of them have the faults that the seed of the first run has
/// drawn, and each has the next seed.
const RUNS_OF_A_ROW: u64 = 200;

/// Returns whether all faults are those that a seed has drawn from the words of `--nemesis`. Somebody may have changed
/// the faults after the draw, and the words of a plan with faults that were placed by hand are only their kinds.
pub fn is_drawn(plan: &Plan) -> bool {
    drawing_seed(plan).is_some()
}

/// Returns the seed that has drawn the faults: that of the plan, or that of the first run of the same row.
fn drawing_seed(plan: &Plan) -> Option<u64> {
    let mut seeds = (0..RUNS_OF_A_ROW).map_while(|earlier| plan.seed.checked_sub(earlier));
    seeds.find(|seed| drawn_from(plan, *seed, |_| true).as_ref() == Some(&plan.schedule))
}

/// Returns for each step of the schedule whether the seed has drawn its time. In a plan, a random fault of a server
/// looks like a placed one: both have a time after the start of the run. Another draw tells them apart.
pub fn random_times(plan: &Plan) -> Vec<bool> {
    let seed = drawing_seed(plan);
    // A draw begins with the placed faults, so these are the same without the other words.
    let placed = seed.and_then(|seed| drawn_from(plan, seed, |word| word.contains('@'))).unwrap_or_default();
    let mut random: Vec<bool> = Vec::new();
    for step in &plan.schedule {
        let is_random = match step.when {
            When::AfterHeal(_) => true,
            When::At(_) => seed.is_some() && !placed.contains(step),
            When::Healed(before) => {
                let before = plan.schedule.iter().position(|step| step.id == before);
                before.and_then(|place| random.get(place).copied()).unwrap_or_default()
            }
            When::AtPoint(_) | When::WhileWaits(_) => false,
        };
        random.push(is_random);
    }
    random
}

/// Draws the faults of a seed from some of the words. None if these are no specifications of this plan.
fn drawn_from(plan: &Plan, seed: u64, is_used: impl Fn(&str) -> bool) -> Option<Vec<Step>> {
    let words: Vec<&str> = plan.nemesis.iter().map(String::as_str).filter(|word| is_used(word)).collect();
    let specs = nemesis::parse(&words.join(",")).ok()?;
    let workers: Vec<NodeName> = plan.workers().collect();
    let (time, lease, lock_nodes, resource) = (plan.time, plan.lease, &plan.lock_nodes, plan.resource);
    let of = Draw { specs: &specs, time, lease, workers: &workers, lock_nodes, resource };
    nemesis::draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).ok()
}

#[cfg(test)]
pub mod tests;
