//! The faults of a plan that its seed has drawn.

use std::collections::BTreeMap;

use history::{FaultId, NodeName, Plan, Step, When};
use nemesis::Draw;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The most runs of a suite's row that are recognized. All of them have the faults that the seed of the first run has
/// drawn, and each has the next seed.
const RUNS_OF_A_ROW: u64 = 200;
/// The most faults that are drawn for all seeds of a row, at one fault a second for each word. A run of a day with two
/// words is recognized up to the fifth run of its row, and a run of an hour with one word up to the last.
const DRAWN_OF_A_ROW: u64 = 1_000_000;

/// Returns whether all faults are those that a seed has drawn from the words of `--nemesis`. Somebody may have changed
/// the faults after the draw, and the words of a plan with faults that were placed by hand are only their kinds.
pub fn is_drawn(plan: &Plan) -> bool {
    drawing_seed(plan).is_some()
}

/// Returns the seed that has drawn the faults: that of the plan, or that of the first run of the same row.
fn drawing_seed(plan: &Plan) -> Option<u64> {
    let drawn_of_a_run = (plan.nemesis.len() as u64 * plan.time.as_secs()).max(1);
    let runs = (DRAWN_OF_A_ROW / drawn_of_a_run).clamp(1, RUNS_OF_A_ROW);
    let seeds = (0..runs).map_while(|earlier| plan.seed.checked_sub(earlier));
    // Words that are wrong for one seed, or name too many faults, are so for all seeds.
    let mut drawn = seeds.map_while(|seed| Some((seed, drawn_from(plan, seed, |_| true)?)));
    drawn.find(|(_, drawn)| *drawn == plan.schedule).map(|(seed, _)| seed)
}

/// Returns for each step of the schedule whether the seed has drawn its time. In a plan, a random fault of a server
/// looks like a placed one: both have a time after the start of the run. Another draw tells them apart.
pub fn random_times(plan: &Plan) -> Vec<bool> {
    let seed = drawing_seed(plan);
    // A draw begins with the placed faults, so these are the same without the other words.
    let placed = seed.and_then(|seed| drawn_from(plan, seed, |word| word.contains('@'))).unwrap_or_default();
    let mut random: BTreeMap<FaultId, bool> = BTreeMap::new();
    let of_step = |step: &Step| {
        let is_random = match step.when {
            When::AfterHeal(_) => true,
            When::At(_) => seed.is_some() && !placed.contains(step),
            When::Healed(before) => random.get(&before).copied().unwrap_or_default(),
            When::AtPoint(_) | When::WhileWaits(_) => false,
        };
        random.insert(step.id, is_random);
        is_random
    };
    plan.schedule.iter().map(of_step).collect()
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
