//! Correct locks: without faults there must be no alarm; with faults every alarm must be true, and every true overlap
//! must be reported.

use std::collections::BTreeMap;

use checker::{Property, Verdict, Verdicts};
use history::Plan;

use super::{
    oracle::{Comparison, compare},
    seeds::{Seeds, all},
    trial::{Subject, verdicts, verdicts_and_truth},
};
use crate::explore::{
    swarm::{CorrectLock, Swarm},
    sweep::SeedError,
};

/// Makes a plan whose work ends well before the lease, so that nothing goes wrong.
pub fn plan_without_faults(sound: CorrectLock, seed: u64) -> Result<Plan, String> {
    let swarm = Swarm::of(sound.backend, Some(sound.tokens)).map_err(|e| format!("{e:#}"))?;
    swarm.plan_without_faults(seed).map_err(|e| format!("{e:#}"))
}

/// Makes a plan with any faults.
pub fn plan_with_faults(sound: CorrectLock, seed: u64) -> Result<Plan, String> {
    let swarm = Swarm::of(sound.backend, Some(sound.tokens)).map_err(|e| format!("{e:#}"))?;
    swarm.plan(seed).map_err(|e| format!("{e:#}"))
}

/// The runs of a correct lock without faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithoutFaults {
    /// The lock.
    pub sound: CorrectLock,
    /// The number of runs.
    pub runs: u64,
    /// Runs with all properties upheld.
    pub upheld: u64,
    /// Inconclusive runs, by reason.
    pub inconclusive: BTreeMap<String, u64>,
    /// Seeds with an alarm, and the alarm.
    pub alarms: Vec<(u64, String)>,
    /// Runs that ended with an error.
    pub failed: Vec<SeedError>,
}

impl WithoutFaults {
    /// Runs `seeds` plans.
    pub fn of(sound: CorrectLock, seeds: Seeds) -> WithoutFaults {
        let run = |seed| Ok(summary(&verdicts(&plan_without_faults(sound, seed)?, Subject::correct(sound.backend))?));
        let (inconclusive, alarms, failed) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut quiet = WithoutFaults { sound, runs: seeds.count, upheld: 0, inconclusive, alarms, failed };
        for (seed, result) in all(seeds, &run) {
            match result {
                Ok((Verdict::Violated, why)) => quiet.alarms.push((seed, why)),
                Ok((Verdict::Inconclusive, why)) => *quiet.inconclusive.entry(why).or_default() += 1,
                Ok(_) => quiet.upheld += 1,
                Err(why) => quiet.failed.push(SeedError { seed, why }),
            }
        }
        quiet
    }

    /// Returns whether no alarm was raised and some runs were conclusive.
    pub fn is_right(&self) -> bool {
        self.alarms.is_empty() && self.upheld > 0
    }
}

/// Returns the verdict on a run, and the reason unless it is upheld.
fn summary(verdicts: &Verdicts) -> (Verdict, String) {
    let of = |verdict: Verdict| {
        let bad = verdicts.properties.iter().filter(move |(_, p)| p.verdict() == verdict);
        bad.map(|(name, p)| format!("{name}: {}", why(name, p)))
    };
    let why = match verdicts.verdict {
        Verdict::Violated => of(Verdict::Violated).next(),
        Verdict::Inconclusive => verdicts.reasons.iter().cloned().chain(of(Verdict::Inconclusive)).next(),
        _ => None,
    };
    (verdicts.verdict, why.unwrap_or_default())
}

/// Describes a property without the numbers that differ between runs.
fn why(name: &str, property: &Property) -> String {
    match (name, property) {
        ("activity", Property::Activity(_)) => "too little happened".into(),
        (_, Property::Lock(lock)) if !lock.windows.is_empty() => lock.windows[0].headline.clone(),
        _ => property.reasons().first().cloned().unwrap_or_else(|| format!("{property:?}")),
    }
}

/// The runs of a correct lock with faults, compared with the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithFaults {
    /// The lock.
    pub sound: CorrectLock,
    /// The number of runs.
    pub runs: u64,
    /// The comparisons of all runs together.
    pub compared: Comparison,
    /// Seeds with an entry in the lists of the comparison.
    pub wrong: Vec<u64>,
    /// Runs that ended with an error.
    pub failed: Vec<SeedError>,
}

impl WithFaults {
    /// Runs `seeds` plans with any faults.
    pub fn of(sound: CorrectLock, seeds: Seeds) -> WithFaults {
        WithFaults::compared(sound, seeds, &|seed| plan_with_faults(sound, seed))
    }

    /// Runs the plan of each seed, and compares the verdicts with the truth.
    pub fn compared(
        sound: CorrectLock,
        seeds: Seeds,
        plan: &(dyn Fn(u64) -> Result<Plan, String> + Sync),
    ) -> WithFaults {
        let run = |seed| {
            let plan = plan(seed)?;
            let (verdicts, truth) = verdicts_and_truth(&plan, Subject::correct(sound.backend))?;
            Ok(compare(&plan, &truth, &verdicts))
        };
        let (mut compared, mut wrong, mut failed) = (Comparison::default(), Vec::new(), Vec::new());
        for (seed, result) in all(seeds, &run) {
            let one = match result {
                Ok(one) => one,
                Err(why) => {
                    failed.push(SeedError { seed, why });
                    continue;
                }
            };
            let seeded = |what: String| format!("seed {seed}: {what}");
            if [&one.unconfirmed, &one.missed, &one.unexplained].into_iter().any(|found| !found.is_empty()) {
                wrong.push(seed);
            }
            compared.alarms += one.alarms;
            compared.overlaps += one.overlaps;
            compared.undecided += one.undecided;
            compared.unconfirmed.extend(one.unconfirmed.into_iter().map(seeded));
            compared.unexplained.extend(one.unexplained.into_iter().map(seeded));
            compared.missed.extend(one.missed.into_iter().map(seeded));
        }
        WithFaults { sound, runs: seeds.count, compared, wrong, failed }
    }

    /// Returns whether there were overlaps, every alarm is true, and every overlap is reported or undecided.
    pub fn is_right(&self) -> bool {
        self.compared.overlaps > 0 && self.compared.agrees()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plans in which a parent is above two children, drawn like those of the self-test.
    fn with_hierarchy(plan: Result<Plan, String>) -> Result<Plan, String> {
        let mut plan = plan?;
        plan.workload = history::Workload {
            keys: 3,
            hierarchy: 0.3,
            locks_per_section: 1,
            opposite: false,
            patience: None,
            ..plan.workload
        };
        plan.arms.retain(|arm| !arm.fences());
        plan.validate().map(|()| plan).map_err(|error| error.to_string())
    }

    #[test]
    fn one_missed_overlap_of_a_thousand_makes_the_row_wrong() {
        let row = |change: &dyn Fn(&mut Comparison)| {
            let sound = CorrectLock { backend: "etcd", tokens: history::Tokens::None };
            let mut compared = Comparison { overlaps: 1_000, ..Comparison::default() };
            change(&mut compared);
            WithFaults { sound, runs: 1_000, compared, wrong: Vec::new(), failed: Vec::new() }.is_right()
        };
        assert!(row(&|c| c.undecided = 10));
        assert!(!row(&|c| c.missed.push("seed 1: an overlap".into())));
        assert!(!row(&|c| c.unconfirmed.push("seed 1: a window".into())));
        assert!(!row(&|c| c.overlaps = 0));
    }

    #[test]
    fn alarms_about_a_parent_and_its_children_are_true() {
        let sound = CorrectLock { backend: "etcd", tokens: history::Tokens::Revision };
        for seed in 1..=40 {
            let plan = with_hierarchy(plan_without_faults(sound, seed)).unwrap();
            let (verdict, why) = summary(&verdicts(&plan, Subject::correct(sound.backend)).unwrap());
            assert_ne!(verdict, Verdict::Violated, "seed {seed}: {why}");
        }
        let seeds = Seeds { first: 1, count: 120, jobs: 1 };
        let found = WithFaults::compared(sound, seeds, &|seed| with_hierarchy(plan_with_faults(sound, seed)));
        assert!(found.is_right() && found.failed.is_empty(), "{found:?}");
    }
}
