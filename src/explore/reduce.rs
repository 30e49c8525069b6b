//! Reduces a finding to a small plan that gives the same violation reliably.
//!
//! The search has three phases. First it removes faults while the same seed still violates (delta debugging; Zeller and
//! Hildebrandt, 2002). The result often depends on exact times. Then it strengthens the plan until the plan violates
//! for almost every seed, with every time up to 50 ms away. Last it simplifies: fewer faults and clients, a shorter
//! run, rounder numbers, as long as the plan stays robust. A plan that does not become robust is not offered, because
//! real servers would not show the violation again.

use std::{collections::BTreeSet, time::Duration};

use history::{Activity, Plan, When};
use tokio::time::Instant;

use super::{
    finding::Class,
    hold_and_wait::hold_and_wait,
    numbers::shaken,
    simplify::{all_links, at_points, fewer_actors, fewer_durations, fewer_faults, keeping, pinned, round, shorter},
    strengthen::{repeated, strengthen},
    sweep::each,
    trial::Trial,
};

/// Variations of the final plan, and the number of them that must violate.
pub const VARIATIONS: u32 = 100;
pub const NEEDED: u32 = 95;
/// Misses that the search accepts: fewer than in the end, because other variations decide in the end.
const MISSES: usize = 3;
/// Variations by which the search compares two changes.
const SCREEN: u32 = 16;
/// Variations by which the search dismisses a useless change.
const LOOK: usize = 5;
/// Variations that a simplified plan must pass. All of [`VARIATIONS`] decide in the end.
const PASS: u32 = 40;
/// The first variation of the final test. No change was chosen by these variations.
const FRESH: u64 = 1 << 20;
/// Plans that the final test tries: the simplest plan, and earlier ones.
const LAST_TRIALS: usize = 8;
/// Seeds that are tried if a changed plan violates only with other seeds.
const SEEDS_MAX: u64 = 8;
/// Simulations that each phase may use.
const REMOVE_MAX: u32 = 600;
const STRENGTHEN_MAX: u32 = 4_000;
const SIMPLIFY_MAX: u32 = 3_000;

/// Simulates and judges a plan; none if the plan cannot be simulated.
pub type Judge<'a> = dyn Fn(&Plan) -> Option<Trial> + Sync + 'a;

/// A reduced finding.
#[derive(Debug, Clone)]
pub struct Reduced {
    /// The plan.
    pub plan: Plan,
    /// The result of the plan with its own seed.
    pub trial: Trial,
    /// The plan with the finding's seed and the fewest faults that suffice, each at its exact time.
    pub exact: Plan,
    /// How many of [`VARIATIONS`] variations violate in the same way.
    pub violating: u32,
    /// Simulations that the search used.
    pub simulations: u32,
}

impl Reduced {
    /// Returns whether real servers will probably show the violation too.
    pub fn is_offered(&self) -> bool {
        self.violating >= NEEDED
    }
}

/// The machine's part in a search.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// The end of the budget. After it the search only completes its current plan.
    pub deadline: Option<Instant>,
    /// Threads for the variations of one plan. The result does not depend on their number.
    pub jobs: usize,
}

impl Limits {
    /// Returns whether the budget has ended.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Reduces `plan`, which violates as `class` says.
/// None if the plan does not violate: then the same plan did not give the same run.
pub fn reduce(plan: &Plan, class: &Class, limits: Limits, judge: &Judge) -> Option<Reduced> {
    let mut search = Search { class, judge, limits, simulations: 0, until: 0, hard: variations(0, PASS) };
    let mut plan = plan.clone();
    // The plan is reduced for its violation, not for its activity.
    plan.activity = Activity { holds: 2, clients: 2, refused: 1 };
    let trial = search.violation(&plan)?;
    let small = search.remove(plan, &trial);
    let exact = small.clone();
    let path = match search.strengthen(&small) {
        Some(robust) => search.simplify(robust, Search::passes),
        None => search.simplify(small, |search, plan| search.violation(plan).is_some()),
    };
    // The simplest plan that passes the final test; otherwise the plan that comes closest.
    let stride = path.len().div_ceil(LAST_TRIALS);
    let mut best: Option<(Plan, u32)> = None;
    for plan in path.into_iter().rev().step_by(stride) {
        let missed = search.missed(&plan, &variations(FRESH, VARIATIONS), usize::MAX);
        let violating = VARIATIONS - missed.len() as u32;
        if best.as_ref().is_none_or(|(_, most)| violating > *most) {
            best = Some((plan, violating));
        }
        if violating >= NEEDED {
            break;
        }
    }
    let (plan, violating) = best?;
    let (plan, trial) = search.with_possible_activity(plan)?;
    Some(Reduced { plan, trial, exact, violating, simulations: search.simulations })
}

fn variations(from: u64, count: u32) -> Vec<u64> {
    (from..from + u64::from(count)).collect()
}

struct Search<'a> {
    class: &'a Class,
    judge: &'a Judge<'a>,
    limits: Limits,
    simulations: u32,
    /// The number of simulations at which the phase ends.
    until: u32,
    /// Variations that simplified plans must pass, the hardest first.
    hard: Vec<u64>,
}

impl Search<'_> {
    fn allow(&mut self, simulations: u32) {
        self.until = self.simulations + simulations;
    }

    fn is_over(&self) -> bool {
        self.simulations >= self.until || self.limits.is_over()
    }

    /// Simulates a plan; none unless it gives the violation of the class.
    fn violation(&mut self, plan: &Plan) -> Option<Trial> {
        self.simulations += 1;
        self.simulated(plan)
    }

    fn simulated(&self, plan: &Plan) -> Option<Trial> {
        (self.judge)(plan).filter(|trial| trial.classes.contains(self.class))
    }

    /// Returns the variations that do not violate, and stops after `misses` and one.
    fn missed(&mut self, plan: &Plan, variations: &[u64], misses: usize) -> Vec<u64> {
        let mut missed = Vec::new();
        let jobs = self.limits.jobs.max(1);
        for batch in variations.chunks(jobs) {
            let violates = each(jobs, batch, &|n| self.simulated(&shaken(plan, *n)).is_some());
            // Simulations count as if they came one by one, so that the number of threads changes nothing.
            for (n, violates) in batch.iter().zip(violates) {
                if missed.len() > misses {
                    return missed;
                }
                self.simulations += 1;
                if !violates {
                    missed.push(*n);
                }
            }
        }
        missed
    }

    fn is_robust(&mut self, plan: &Plan) -> bool {
        self.violation(plan).is_some() && self.missed(plan, &variations(0, VARIATIONS), MISSES).len() <= MISSES
    }

    /// Returns whether a simplified plan is still robust. Variations that refused an earlier change come first.
    fn passes(&mut self, plan: &Plan) -> bool {
        let hard = std::mem::take(&mut self.hard);
        let missed = self.missed(plan, &hard, 1);
        self.hard = hard;
        self.hard.sort_by_key(|n| !missed.contains(n));
        missed.len() <= 1 && self.violation(plan).is_some()
    }

    /// Removes faults: halves and quarters of them at a time, then one by one.
    fn remove(&mut self, plan: Plan, trial: &Trial) -> Plan {
        self.allow(REMOVE_MAX);
        let mut plan = self.pin(plan, trial);
        let mut chunk = plan.schedule.len().div_ceil(2);
        while chunk > 0 && !self.is_over() {
            let (mut from, before) = (0, plan.schedule.len());
            while from < plan.schedule.len() && !self.is_over() {
                let fewer = keeping(&plan, |i| !(from..from + chunk).contains(&i));
                if fewer.validate().is_ok() && self.violation(&fewer).is_some() {
                    plan = fewer;
                } else {
                    from += chunk;
                }
            }
            chunk = match chunk {
                // A fault may become superfluous when others are gone.
                1 if plan.schedule.len() < before => 1,
                _ => chunk / 2,
            };
        }
        plan
    }

    /// Gives random faults fixed times, so that the removal of one fault does not move the others.
    fn pin(&mut self, plan: Plan, trial: &Trial) -> Plan {
        let mut lead = Duration::ZERO;
        for _ in 0..2 {
            let timed = pinned(&plan, &trial.fired, lead);
            if timed.validate().is_ok() && self.violation(&timed).is_some() {
                return timed;
            }
            // Times count from the start of the run, which is later than that of the first process: measure by how
            // much.
            let Some(again) = (self.judge)(&timed) else { break };
            self.simulations += 1;
            let first = again.fired.first().and_then(|f| {
                let step = timed.schedule.iter().find(|s| s.id == f.id)?;
                if let When::At(at) = step.when { f.at.checked_sub(at) } else { None }
            });
            lead = first.unwrap_or_default();
        }
        plan
    }

    /// Climbs towards a plan that violates in almost every variation. A holder that waits for the faults depends on no
    /// exact time, so such a plan ends the search if it is robust.
    fn strengthen(&mut self, plan: &Plan) -> Option<Plan> {
        self.allow(STRENGTHEN_MAX);
        for plan in hold_and_wait(plan) {
            if !self.is_over()
                && let Some(plan) = self.with_seed(plan)
                && self.is_robust(&plan)
            {
                return Some(plan);
            }
        }
        let (mut best, mut sample) = (plan.clone(), variations(0, SCREEN));
        let mut missed = self.missed(&best, &sample, usize::MAX);
        loop {
            let (faults, of) = (best.schedule.len(), sample.len());
            let (missing, used) = (missed.len(), self.simulations);
            tracing::debug!(class = %self.class, faults, missing, of, used, "strengthening");
            if missed.len() * 20 <= sample.len() && self.is_robust(&best) {
                return Some(best);
            }
            if self.is_over() {
                return None;
            }
            if missed.is_empty() {
                // The small sample cannot distinguish the plan from a robust one.
                sample = variations(0, VARIATIONS);
                missed = self.missed(&best, &sample, usize::MAX);
            }
            // Missed variations come first, so that a useless change costs little.
            sample.sort_by_key(|n| (!missed.contains(n), *n));
            // Repetition is tried first; other changes only if repetition does not suffice.
            let again = self.best_of(repeated(&best), &sample, &missed);
            let suffices = again.as_ref().is_some_and(|(_, left)| left.len() * 10 <= sample.len());
            let changed = if suffices { None } else { self.best_of(strengthen(&best), &sample, &missed) };
            let is_better = |(_, by_change): &(Plan, Vec<u64>)| {
                again.as_ref().is_none_or(|(_, by_repetition)| {
                    is_much_less(by_change, &missed) || by_change.len() <= by_repetition.len()
                })
            };
            (best, missed) = changed.filter(is_better).or(again)?;
        }
    }

    /// Gives the plan a seed with which it violates: the report tells the story of this seed.
    fn with_seed(&mut self, plan: Plan) -> Option<Plan> {
        let mut seeds = std::iter::once(plan.seed).chain(1..=SEEDS_MAX);
        let plan = |seed| Plan { seed, ..plan.clone() };
        seeds.find(|seed| self.violation(&plan(*seed)).is_some()).map(plan)
    }

    /// Returns the first candidate that misses far fewer variations than `now`, or the candidate that misses fewest.
    fn best_of(&mut self, candidates: Vec<Plan>, sample: &[u64], now: &[u64]) -> Option<(Plan, Vec<u64>)> {
        let mut best: Option<(Plan, Vec<u64>)> = None;
        for plan in candidates {
            let least = best.as_ref().map_or(now.len(), |(_, missed)| missed.len());
            if self.is_over() || least == 0 {
                break;
            }
            let look = &sample[..now.len().min(LOOK)];
            if self.missed(&plan, look, LOOK).len() == look.len() {
                continue;
            }
            let missed = self.missed(&plan, sample, least - 1);
            if missed.len() < least
                && let Some(plan) = self.with_seed(plan)
            {
                let is_enough = is_much_less(&missed, now);
                best = Some((plan, missed));
                if is_enough {
                    break;
                }
            }
        }
        best
    }

    /// Takes every simplification that `keeps` allows. Returns the whole path, the simplest plan last.
    fn simplify(&mut self, plan: Plan, keeps: impl Fn(&mut Self, &Plan) -> bool) -> Vec<Plan> {
        self.allow(SIMPLIFY_MAX);
        let mut path = vec![plan];
        let changes =
            [fewer_faults, fewer_actors, at_points, all_links, shorter, round, fewer_faults, shorter, fewer_durations];
        for of in changes {
            // A refused change is not tried again after other changes.
            let mut tried = BTreeSet::new();
            while let Some(simple) = path.last().cloned() {
                let stays =
                    |plan: &Plan| tried.insert(difference(&simple, plan)) && !self.is_over() && keeps(self, plan);
                match of(&simple).into_iter().find(stays) {
                    Some(plan) => path.push(plan),
                    None => break,
                }
            }
        }
        path
    }

    /// Requires no refusals if the plan gives none; otherwise its run would be inconclusive.
    fn with_possible_activity(&mut self, mut plan: Plan) -> Option<(Plan, Trial)> {
        let trial = self.violation(&plan)?;
        let activity = trial.verdicts.properties.get("activity");
        if activity.is_some_and(|a| a.verdict() == checker::Verdict::Inconclusive) {
            plan.activity.refused = 0;
            return self.violation(&plan).map(|trial| (plan, trial));
        }
        Some((plan, trial))
    }
}

fn is_much_less(missed: &[u64], than: &[u64]) -> bool {
    missed.len() * 4 <= than.len() * 3
}

/// Returns the lines in which `plan` differs from `other`; all lines if their numbers differ.
fn difference(other: &Plan, plan: &Plan) -> String {
    let (Ok(old), Ok(new)) = (other.to_toml(), plan.to_toml()) else { return String::new() };
    if old.lines().count() != new.lines().count() {
        return new;
    }
    let lines = old.lines().zip(new.lines()).enumerate().filter(|(_, (old, new))| old != new);
    lines.map(|(n, (_, new))| format!("{n} {new}\n")).collect()
}

#[cfg(test)]
mod tests;
