//! From a finding to the least that shows it, and shows it again.
//!
//! Three phases. **Fewest**: faults are left out while the very same seed still violates (delta debugging; Zeller and Hildebrandt, 2002). What is left
//! often hangs on a moment. **Firm**: the plan is changed until it violates whatever its seed, with every step up to 50 ms away from where it
//! was. **Plain**: less, shorter, rounder, as long as it stays firm. What does not become firm is not offered: it would not be seen again on
//! real servers.

use std::collections::BTreeSet;

use history::{Activity, Plan};

use super::{
    finding::Class,
    firmer::{firmer, repeated},
    held::held,
    jitter::jittered,
    moves::{anchored, fewer_actors, fewer_faults, keeping, pinned, plainer_links, rounder, shorter},
    trial::Trial,
};

/// Variations of a plan that is offered, and how many of them must violate.
pub const VARIATIONS: u32 = 100;
pub const NEEDED: u32 = 95;
/// While plans are compared: a margin over what is needed, for the variations that decide in the end are others.
const WANTED: u32 = 97;
/// Variations by which one change is compared with others.
const SCREEN: u32 = 16;
/// Variations by which one is left aside at a glance.
const LOOK: usize = 5;
/// Variations that a plainer plan has to pass on the way; all of them decide in the end.
const PASS: u32 = 40;
/// Variations that decide: no change was ever chosen by them.
const FRESH: u64 = 1 << 20;
/// Plans that are put to the last trial, at most: the plainest, and others on the way to it.
const LAST_TRIALS: usize = 8;
/// Seeds that are tried beside its own, where a changed plan violates with others only.
const SEEDS_MAX: u64 = 8;
/// Simulations that each phase may use.
const FEWEST_MAX: u32 = 600;
const FIRM_MAX: u32 = 4_000;
const PLAIN_MAX: u32 = 2_000;

/// Simulates and judges a plan; none, if it cannot be simulated.
pub type Judge<'a> = dyn Fn(&Plan) -> Option<Trial> + Sync + 'a;

/// What a finding was reduced to.
#[derive(Debug, Clone)]
pub struct Reduced {
    /// The plan.
    pub plan: Plan,
    /// What it gives, as it stands.
    pub trial: Trial,
    /// Faults that are enough with the seed of the finding, every step at its very moment.
    pub fewest: usize,
    /// How many of [`VARIATIONS`] variations violate in the same way.
    pub held: u32,
    /// Simulations that it took.
    pub simulations: u32,
}

impl Reduced {
    /// Whether others will see it too.
    pub fn is_offered(&self) -> bool {
        self.held >= NEEDED
    }
}

/// Reduces `plan`, which violates in the way of `class`. None if it does not: then the same plan was not the same run.
pub fn reduce(plan: &Plan, class: &Class, judge: &Judge) -> Option<Reduced> {
    let mut search = Search { class, judge, simulations: 0, until: 0, hard: variations(0, PASS) };
    let mut plan = plan.clone();
    // What a run must have seen is not what it is reduced for.
    plan.activity = Activity { holds: 2, clients: 2, refused: 1 };
    let trial = search.shows(&plan)?;
    let small = search.fewest(plan, &trial);
    let fewest = small.schedule.len();
    let path = match search.firm(&small) {
        Some(firm) => search.plain(firm, Search::passes),
        None => search.plain(small, |search, plan| search.shows(plan).is_some()),
    };
    // The plainest that stands the last trial; if none does, the one that comes nearest to it.
    let stride = path.len().div_ceil(LAST_TRIALS);
    let mut best: Option<(Plan, u32)> = None;
    for plan in path.into_iter().rev().step_by(stride) {
        let missed = search.missed(&plan, &variations(FRESH, VARIATIONS), usize::MAX);
        let held = VARIATIONS - missed.len() as u32;
        if best.as_ref().is_none_or(|(_, most)| held > *most) {
            best = Some((plan, held));
        }
        if held >= NEEDED {
            break;
        }
    }
    let (plan, held) = best?;
    let (plan, trial) = search.seen_enough(plan)?;
    Some(Reduced { plan, trial, fewest, held, simulations: search.simulations })
}

fn variations(from: u64, count: u32) -> Vec<u64> {
    (from..from + u64::from(count)).collect()
}

struct Search<'a> {
    class: &'a Class,
    judge: &'a Judge<'a>,
    simulations: u32,
    /// Where the phase ends.
    until: u32,
    /// Variations that plainer plans have to pass, the hardest first.
    hard: Vec<u64>,
}

impl Search<'_> {
    fn allow(&mut self, simulations: u32) {
        self.until = self.simulations + simulations;
    }

    fn is_over(&self) -> bool {
        self.simulations >= self.until
    }

    /// What the plan gives, if it violates in the way that is looked for.
    fn shows(&mut self, plan: &Plan) -> Option<Trial> {
        self.simulations += 1;
        (self.judge)(plan).filter(|trial| trial.classes.contains(self.class))
    }

    /// Which of these variations do not violate; it stops when more than `misses` do not.
    fn missed(&mut self, plan: &Plan, variations: &[u64], misses: usize) -> Vec<u64> {
        let mut missed = Vec::new();
        for n in variations {
            if missed.len() > misses {
                break;
            }
            if self.shows(&jittered(plan, *n)).is_none() {
                missed.push(*n);
            }
        }
        missed
    }

    fn is_firm(&mut self, plan: &Plan) -> bool {
        let misses = (VARIATIONS - WANTED) as usize;
        self.shows(plan).is_some() && self.missed(plan, &variations(0, VARIATIONS), misses).len() <= misses
    }

    /// Whether a change on the way to a plainer plan may stay. Those variations come first that refused the change before.
    fn passes(&mut self, plan: &Plan) -> bool {
        let hard = std::mem::take(&mut self.hard);
        let missed = self.missed(plan, &hard, 1);
        self.hard = hard;
        self.hard.sort_by_key(|n| !missed.contains(n));
        missed.len() <= 1 && self.shows(plan).is_some()
    }

    /// Leaves faults out, halves and quarters of them at a time, then one by one.
    fn fewest(&mut self, plan: Plan, trial: &Trial) -> Plan {
        self.allow(FEWEST_MAX);
        let mut plan = self.pin(plan, trial);
        let mut chunk = plan.schedule.len().div_ceil(2);
        while chunk > 0 && !self.is_over() {
            let (mut from, before) = (0, plan.schedule.len());
            while from < plan.schedule.len() && !self.is_over() {
                let fewer = keeping(&plan, |i| !(from..from + chunk).contains(&i));
                if fewer.validate().is_ok() && self.shows(&fewer).is_some() {
                    plan = fewer;
                } else {
                    from += chunk;
                }
            }
            chunk = match chunk {
                // What could not be left out alone may be, once others are gone.
                1 if plan.schedule.len() < before => 1,
                _ => chunk / 2,
            };
        }
        plan
    }

    /// Random faults become timed ones, so that leaving one out does not move the others.
    fn pin(&mut self, plan: Plan, trial: &Trial) -> Plan {
        let mut lead = std::time::Duration::ZERO;
        for _ in 0..2 {
            let timed = pinned(&plan, &trial.fired, lead);
            if timed.validate().is_ok() && self.shows(&timed).is_some() {
                return timed;
            }
            // The run begins later than its first process: by how much shows in when a fault came that was timed.
            let Some(again) = (self.judge)(&timed) else { break };
            self.simulations += 1;
            let first = again.fired.first().and_then(|f| {
                let step = timed.schedule.iter().find(|s| s.id == f.id)?;
                if let history::When::At(at) = step.when { f.at.checked_sub(at) } else { None }
            });
            lead = first.unwrap_or_default();
        }
        plan
    }

    /// Climbs towards a plan that violates in almost every variation. Where a holder that waits for the faults gives one at once, that is it: nothing in it
    /// hangs on a moment.
    fn firm(&mut self, plan: &Plan) -> Option<Plan> {
        self.allow(FIRM_MAX);
        for plan in held(plan) {
            if let Some(plan) = self.with_seed(plan)
                && self.is_firm(&plan)
            {
                return Some(plan);
            }
        }
        let (mut best, mut sample) = (plan.clone(), variations(0, SCREEN));
        let mut missed = self.missed(&best, &sample, usize::MAX);
        loop {
            let (faults, of) = (best.schedule.len(), sample.len());
            tracing::debug!(class = %self.class, faults, missed = missed.len(), of, used = self.simulations, "climbing");
            if missed.len() * 20 <= sample.len() && self.is_firm(&best) {
                return Some(best);
            }
            if self.is_over() {
                return None;
            }
            if missed.is_empty() {
                // So few variations cannot tell it from a firm one.
                sample = variations(0, VARIATIONS);
                missed = self.missed(&best, &sample, usize::MAX);
            }
            // What is missed now comes first: a change that mends none of it is soon done with.
            sample.sort_by_key(|n| (!missed.contains(n), *n));
            // More of the same where that is enough; else what changes what there is, and more of the same where that does little.
            let mut again = self.best_of(repeated(&best), &sample, &missed);
            let mut changed = None;
            if again.as_ref().is_none_or(|(_, left)| left.len() * 10 > sample.len()) {
                changed = self.best_of(firmer(&best), &sample, &missed);
            }
            if let (Some((_, by_change)), Some((_, by_more))) = (&changed, &again)
                && (is_much_less(by_change, &missed) || by_change.len() <= by_more.len())
            {
                again = None;
            }
            (best, missed) = again.or(changed)?;
        }
    }

    /// The plan with a seed that shows it as it stands: the story that is told is its.
    fn with_seed(&mut self, plan: Plan) -> Option<Plan> {
        let mut seeds = std::iter::once(plan.seed).chain(1..=SEEDS_MAX);
        let plan = |seed| Plan { seed, ..plan.clone() };
        seeds.find(|seed| self.shows(&plan(*seed)).is_some()).map(plan)
    }

    /// The first candidate that misses much less than `now`, or the one that misses least.
    fn best_of(&mut self, candidates: Vec<Plan>, sample: &[u64], now: &[u64]) -> Option<(Plan, Vec<u64>)> {
        let mut best: Option<(Plan, Vec<u64>)> = None;
        for plan in candidates {
            let least = best.as_ref().map_or(now.len(), |(_, missed)| missed.len());
            if self.is_over() || least == 0 {
                break;
            }
            // A change that mends none of the first few is none that was looked for.
            let look = &sample[..now.len().min(LOOK)];
            if self.missed(&plan, look, LOOK).len() == look.len() {
                continue;
            }
            let missed = self.missed(&plan, sample, least - 1);
            if missed.len() < least
                && let Some(plan) = self.with_seed(plan)
            {
                let is_much = is_much_less(&missed, now);
                best = Some((plan, missed));
                if is_much {
                    break;
                }
            }
        }
        best
    }

    /// Takes each step towards less, shorter and rounder that `keeps` allows. Gives the whole path, the plainest last.
    fn plain(&mut self, plan: Plan, keeps: impl Fn(&mut Self, &Plan) -> bool) -> Vec<Plan> {
        self.allow(PLAIN_MAX);
        let mut path = vec![plan];
        let moves = [fewer_faults, fewer_actors, anchored, plainer_links, shorter, rounder, fewer_faults, shorter];
        for of in moves {
            // A change that was refused once is not tried again when others have been made.
            let mut tried = BTreeSet::new();
            while let Some(plain) = path.last().cloned() {
                let stays =
                    |plan: &Plan| tried.insert(difference(&plain, plan)) && !self.is_over() && keeps(self, plan);
                match of(&plain).into_iter().find(stays) {
                    Some(plan) => path.push(plan),
                    None => break,
                }
            }
        }
        path
    }

    /// Asks for no more activity than there is: a plan that shows what it is there for is not inconclusive for want of refusals.
    fn seen_enough(&mut self, mut plan: Plan) -> Option<(Plan, Trial)> {
        let trial = self.shows(&plan)?;
        let activity = trial.verdicts.properties.get("activity");
        if activity.is_some_and(|a| a.verdict() == checker::Verdict::Inconclusive) {
            plan.activity.refused = 0;
            return self.shows(&plan).map(|trial| (plan, trial));
        }
        Some((plan, trial))
    }
}

fn is_much_less(missed: &[u64], than: &[u64]) -> bool {
    missed.len() * 4 <= than.len() * 3
}

/// The lines in which `plan` is not like `other`; all of it, if it has more or fewer.
fn difference(other: &Plan, plan: &Plan) -> String {
    let (Ok(old), Ok(new)) = (other.to_toml(), plan.to_toml()) else { return String::new() };
    if old.lines().count() != new.lines().count() {
        return new;
    }
    let lines = old.lines().zip(new.lines()).enumerate().filter(|(_, (old, new))| old != new);
    lines.map(|(n, (_, new))| format!("{n} {new}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use history::{Fault, Point, Range, Target, When};

    use super::*;
    use crate::explore::scene::{class, cut, fired, paused_at, plan, trial};

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// A judge that finds what it looks for where `is_wrong` says so.
    fn finds(is_wrong: impl Fn(&Plan) -> bool + Sync) -> impl Fn(&Plan) -> Option<Trial> + Sync {
        move |plan| {
            assert_eq!(plan.validate(), Ok(()));
            Some(Trial { fired: fired(plan), ..trial(is_wrong(plan).then(|| class("pause"))) })
        }
    }

    fn cuts(plan: &Plan, node: &str) -> bool {
        let target = Target::Node(node.into());
        plan.schedule.iter().any(|s| s.target == target && matches!(s.fault, Fault::Partition { .. }))
    }

    /// Many faults, of which two matter.
    fn crowded() -> Plan {
        let mut plan = plan();
        plan.schedule = (1..=12).map(|n| paused_at(n, When::AfterHeal(ms(317)), 777)).collect();
        plan.schedule.extend((13..=17).map(|n| cut(n, &format!("redis-{}", n % 5 + 1), &["worker-3"], 1_234)));
        plan.time = Duration::from_secs(20);
        plan
    }

    #[test]
    fn only_the_faults_that_matter_are_left_and_their_numbers_are_round() {
        let judge = finds(|p| cuts(p, "redis-4") && cuts(p, "redis-5"));
        let reduced = reduce(&crowded(), &class("pause"), &judge).unwrap();
        assert!(reduced.is_offered() && reduced.held == VARIATIONS);
        let plan = &reduced.plan;
        assert_eq!(plan.schedule.len(), 2, "{:?}", plan.schedule);
        assert_eq!(plan.nemesis, ["partition"]);
        for step in &plan.schedule {
            assert_eq!(step.fault.lasting(), Duration::from_secs(1));
        }
        assert_eq!((plan.workload.workers, plan.workload.clients_per_worker, plan.workload.keys), (2, 1, 1));
        assert_eq!(plan.time, Duration::from_secs(2));
        assert_eq!(plan.workload.work.from, plan.workload.work.to);
    }

    #[test]
    fn a_violation_that_needs_no_fault_is_left_with_none() {
        let reduced = reduce(&crowded(), &class("pause"), &finds(|_| true)).unwrap();
        assert_eq!(reduced.plan.schedule, []);
    }

    #[test]
    fn a_fault_that_hangs_on_its_moment_is_put_at_a_protocol_point() {
        let judge = finds(|p| {
            p.schedule.iter().any(|s| match s.when {
                When::At(at) => at.abs_diff(ms(1_411)) < ms(5),
                When::AfterHeal(_) | When::WhileWaits(_) | When::Healed(_) => false,
                When::AtPoint(point) => point == Point::AfterRead,
            })
        });
        let mut plan = plan();
        plan.schedule = vec![paused_at(1, When::At(ms(1_411)), 1_500)];
        let reduced = reduce(&plan, &class("pause"), &judge).unwrap();
        assert!(reduced.is_offered());
        assert_eq!(reduced.plan.schedule[0].when, When::AtPoint(Point::AfterRead));
    }

    #[test]
    fn a_fault_that_is_too_short_half_the_time_is_made_longer() {
        let judge = finds(|p| p.schedule.iter().any(|s| s.fault.lasting() >= ms(1_003)));
        let mut plan = plan();
        plan.schedule = vec![paused_at(1, When::At(ms(1_000)), 1_004)];
        let reduced = reduce(&plan, &class("pause"), &judge).unwrap();
        assert!(reduced.is_offered(), "{} of 100", reduced.held);
        assert!(reduced.plan.schedule[0].fault.lasting() >= ms(1_053));
    }

    #[test]
    fn what_comes_half_the_time_is_repeated_until_it_comes() {
        // Even seeds go wrong at the first fault, of the others every second one at each fault that follows.
        let judge = finds(|p| (0..p.schedule.len()).any(|i| p.seed >> i & 1 == 0));
        let mut plan = plan();
        plan.seed = 4;
        plan.schedule = vec![paused_at(1, When::At(ms(1_000)), 1_500)];
        let reduced = reduce(&plan, &class("pause"), &judge).unwrap();
        assert!(reduced.is_offered(), "{} of 100", reduced.held);
        assert!((5..=8).contains(&reduced.plan.schedule.len()), "{}", reduced.plan.schedule.len());
    }

    #[test]
    fn what_hangs_on_chance_is_not_offered_and_the_count_says_how_much() {
        let judge = finds(|p| p.seed == 7 || p.seed % 4 == 0);
        let mut plan = plan();
        plan.schedule = vec![paused_at(1, When::At(ms(1_000)), 1_500)];
        let reduced = reduce(&plan, &class("pause"), &judge).unwrap();
        assert!(!reduced.is_offered());
        assert!((10..45).contains(&reduced.held), "{} of 100", reduced.held);
        assert_eq!(reduced.plan.schedule, [], "it is reduced all the same");
    }

    #[test]
    fn another_violation_is_no_substitute() {
        let judge = |p: &Plan| {
            let cause = if p.schedule.is_empty() { "stall" } else { "pause" };
            Some(Trial { fired: fired(p), ..trial([class(cause)]) })
        };
        let reduced = reduce(&crowded(), &class("pause"), &judge).unwrap();
        assert_eq!(reduced.plan.schedule.len(), 1);
        assert!(reduced.trial.classes.contains(&class("pause")));
    }

    #[test]
    fn a_plan_that_does_not_violate_again_is_not_reduced() {
        assert!(reduce(&crowded(), &class("pause"), &finds(|_| false)).is_none());
        assert!(reduce(&crowded(), &class("pause"), &|_| None).is_none());
    }

    #[test]
    fn a_reduction_ends_and_is_the_same_each_time() {
        let used = AtomicU32::new(0);
        let inner = finds(|p| p.seed % 3 != 0 && p.workload.work.to < ms(600) && !p.schedule.is_empty());
        let judge = |p: &Plan| {
            used.fetch_add(1, Ordering::Relaxed);
            inner(p)
        };
        let mut plan = crowded();
        plan.workload.work = Range { from: ms(123), to: ms(456) };
        let one = reduce(&plan, &class("pause"), &judge).unwrap();
        let most = FEWEST_MAX + FIRM_MAX + PLAIN_MAX + LAST_TRIALS as u32 * VARIATIONS + 4 * VARIATIONS;
        assert_eq!(one.simulations, used.load(Ordering::Relaxed));
        assert!(one.simulations <= most, "{}", one.simulations);
        let other = reduce(&plan, &class("pause"), &judge).unwrap();
        assert_eq!((one.plan, one.held, one.simulations), (other.plan, other.held, other.simulations));
    }
}
