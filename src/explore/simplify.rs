//! Changes of a plan towards fewer faults, clients and waits, a shorter run, and rounder numbers.
//!
//! All changes are pure, and give plans that can be run, in the order in which the search tries them.

use std::{collections::BTreeSet, time::Duration};

use history::{
    ClientKind, Direction, FaultId, NodeName, Plan, Point, Range, Step, Target, Until, When, fault::Quantity,
};

use super::{
    numbers::{MS, Meaning, numbers, replaced, rounder, visited},
    trial::Fired,
};

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Work that fills most of a lease, and leaves time for an answer.
pub fn most_of(lease: Duration) -> Range {
    Range { from: lease * 85 / 100, to: lease * 85 / 100 }
}

/// Returns a changed copy.
pub fn changed(plan: &Plan, change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = plan.clone();
    change(&mut plan);
    plan
}

/// Keeps the plans that can be run and differ from `plan`. `harness run` refuses a fault that is longer than its run,
/// so no change makes one, and no search begins with one.
pub fn runnable(plan: &Plan, mut plans: Vec<Plan>) -> Vec<Plan> {
    plans.retain(|p| p != plan && p.validate().is_ok() && p.too_long().is_none());
    plans
}

/// Returns whether a step hits a worker.
pub fn is_of_worker(plan: &Plan, step: &Step) -> bool {
    match &step.target {
        Target::Holder => true,
        Target::Leader => false,
        Target::Node(node) => plan.has_worker(node),
    }
}

/// Returns the time of a step, if the plan names one.
pub fn time_of(step: &Step) -> Option<Duration> {
    if let When::At(at) = step.when { Some(at) } else { None }
}

/// Returns the plan with the steps at the places that `keep` chooses. A later step that waits for the heal of a removed
/// step waits longer by the length of the removed step.
pub fn keeping(plan: &Plan, keep: impl Fn(usize) -> bool) -> Plan {
    let mut carried = Duration::ZERO;
    let mut schedule = Vec::new();
    for (i, step) in plan.schedule.iter().enumerate() {
        let mut step = step.clone();
        match (&mut step.when, keep(i)) {
            (When::AfterHeal(gap), true) => *gap += std::mem::take(&mut carried),
            (When::AfterHeal(gap), false) => carried += *gap + step.fault.lasting,
            _ => {}
        }
        if keep(i) {
            schedule.push(step);
        }
    }
    with_schedule(plan, schedule)
}

/// Replaces the schedule. Its steps are numbered from 1.
pub fn with_schedule(plan: &Plan, mut schedule: Vec<Step>) -> Plan {
    let numbers: Vec<FaultId> = schedule.iter().map(|step| step.id).collect();
    for (step, n) in schedule.iter_mut().zip(1..) {
        step.id = FaultId(n);
        if let When::Healed(before) = &mut step.when {
            // No fault has the number 0, so a plan that waits for the heal of a removed fault is refused.
            *before = FaultId(numbers.iter().position(|id| id == before).map_or(0, |at| at as u32 + 1));
        }
    }
    let mut plan = Plan { schedule, ..plan.clone() };
    plan.nemesis = plan.kinds().into_iter().map(|kind| kind.name().to_owned()).collect();
    plan
}

/// Places each fault at the time and on the node of `fired`, so that the removal of one fault does not move the others.
/// Times are earlier by `lead`. Steps that never fired are removed.
pub fn pinned(plan: &Plan, fired: &[Fired], lead: Duration) -> Plan {
    let pin = |step: &Step| {
        let fired = fired.iter().find(|f| f.id == step.id)?;
        let when = match step.when {
            When::AtPoint(_) | When::WhileWaits(_) => step.when,
            When::At(_) | When::AfterHeal(_) | When::Healed(_) => When::At(fired.at.saturating_sub(lead)),
        };
        Some(Step { target: Target::Node(fired.node.clone()), when, ..step.clone() })
    };
    with_schedule(plan, plan.schedule.iter().filter_map(pin).collect())
}

/// Removes one fault, or one planned wait without faults.
pub fn fewer_faults(plan: &Plan) -> Vec<Plan> {
    let without_fault = (0..plan.schedule.len()).map(|removed| keeping(plan, |i| i != removed));
    let without_wait = (0..plan.waits.len()).map(|removed| changed(plan, |p| drop(p.waits.remove(removed))));
    runnable(plan, without_fault.chain(without_wait).collect())
}

/// Removes a worker, or reduces the clients or keys. The remaining clients are offered as much work as before.
pub fn fewer_actors(plan: &Plan) -> Vec<Plan> {
    let w = &plan.workload;
    let mut plans: Vec<Plan> = (1..=w.workers).rev().filter_map(|worker| without_worker(plan, worker)).collect();
    if w.clients_per_worker > 1 && w.workers > 1 {
        plans.push(changed(plan, |p| {
            p.workload.clients_per_worker = 1;
            p.workload.rate_per_s /= f64::from(w.clients_per_worker);
        }));
    }
    plans.extend([1, w.keys / 2].map(|keys| changed(plan, |p| p.workload.keys = keys.clamp(1, w.keys))));
    runnable(plan, plans)
}

/// Removes a worker that is no target; the workers after it take the next smaller number. A violation needs two
/// clients.
fn without_worker(plan: &Plan, removed: u32) -> Option<Plan> {
    let mut plan = plan.clone();
    let workers = plan.workload.workers;
    if (workers - 1) * plan.workload.clients_per_worker < 2 {
        return None;
    }
    let name = |n: u32| NodeName::new(format!("worker-{n}"));
    let renamed = |node: &NodeName| match (1..=workers).find(|n| name(*n) == *node) {
        Some(n) if n == removed => None,
        Some(n) if n > removed => Some(name(n - 1)),
        _ => Some(node.clone()),
    };
    for step in &mut plan.schedule {
        if let Target::Node(node) = &mut step.target {
            *node = renamed(node)?;
        }
        if let Some(links) = step.fault.links.as_mut().filter(|links| !links.from.is_empty()) {
            links.from = links.from.iter().filter_map(renamed).collect();
            // An empty list would mean every node.
            if links.from.is_empty() {
                return None;
            }
        }
    }
    for wait in &mut plan.waits {
        wait.worker = renamed(&wait.worker)?;
        if let Until::Wrote(writer) = &mut wait.until {
            *writer = renamed(writer)?;
        }
    }
    plan.workload.workers -= 1;
    plan.workload.rate_per_s *= f64::from(workers - 1) / f64::from(workers);
    Some(plan)
}

/// Shortens the run, and moves all timed faults towards its start.
pub fn shorter(plan: &Plan) -> Vec<Plan> {
    let times = [2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 60].map(Duration::from_secs);
    let mut plans: Vec<Plan> = times.map(|time| changed(plan, |p| p.time = p.time.min(time))).to_vec();
    let first = plan.schedule.iter().filter_map(time_of).min().unwrap_or_default().as_nanos() as i64;
    for start in [500 * MS, 1_000 * MS, 2_000 * MS].into_iter().filter(|start| first - start >= 500 * MS) {
        let move_start = |n: &mut i64| *n -= first - start;
        plans.push(visited(plan, |place, n| {
            if place.of == Meaning::At {
                move_start(n)
            }
        }));
    }
    runnable(plan, plans)
}

/// Places faults of workers at protocol points instead of times.
pub fn at_points(plan: &Plan) -> Vec<Plan> {
    use Point::{AfterAcquire, AfterCheck, AfterRead, AfterSend, BeforeRelease, BeforeWrite};
    let mut plans = Vec::new();
    for (i, step) in plan.schedule.iter().enumerate() {
        if !is_of_worker(plan, step) || matches!(step.when, When::AtPoint(_)) {
            continue;
        }
        for point in [BeforeWrite, AfterCheck, AfterAcquire, AfterRead, AfterSend, BeforeRelease] {
            if point == AfterCheck && plan.workload.client == ClientKind::Unchecked {
                continue;
            }
            plans.push(changed(plan, |p| {
                p.schedule[i].when = When::AtPoint(point);
                if p.schedule[i].target == Target::Holder {
                    p.schedule[i].target = Target::Node("worker-1".into());
                }
            }));
        }
    }
    runnable(plan, plans)
}

/// Lets a fault of links hit all links of its target, or both directions.
pub fn all_links(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    for i in 0..plan.schedule.len() {
        for (all, both) in [(true, true), (true, false), (false, true)] {
            plans.push(changed(plan, |p| {
                let Some(links) = &mut p.schedule[i].fault.links else { return };
                if all {
                    links.from.clear();
                }
                if both {
                    links.direction = Direction::Both;
                }
            }));
        }
    }
    runnable(plan, plans)
}

/// Rounds one number, or makes the lease shorter.
pub fn round(plan: &Plan) -> Vec<Plan> {
    let shorter_leases = [1_000, 2_000, 3_000, 5_000].map(ms).into_iter().filter(|lease| *lease < plan.lease);
    let with_lease = |lease: Duration| {
        let short = changed(plan, |p| p.lease = lease);
        [short.clone(), changed(&short, |p| p.workload.work = most_of(lease))]
    };
    let mut plans: Vec<Plan> = shorter_leases.flat_map(with_lease).collect();
    plans.extend(replaced(plan, rounder));
    plans.retain(|p| is_as_simple(plan, p));
    runnable(plan, plans)
}

/// Gives one duration the value of another, so that the plan has fewer different durations.
pub fn fewer_durations(plan: &Plan) -> Vec<Plan> {
    let known = durations(plan);
    let mut plans = replaced(plan, |place, from, to| match place.of {
        // The length of the run stays: real servers need more than a second.
        Meaning::Time => Vec::new(),
        of if of.is_time() => known.iter().copied().filter(|value| (*value, *value) != (from, to)).collect(),
        _ => Vec::new(),
    });
    plans.retain(|p| durations(p).len() < known.len() && is_as_simple(plan, p));
    runnable(plan, plans)
}

/// Returns the different durations of a plan, in nanoseconds.
fn durations(plan: &Plan) -> BTreeSet<i64> {
    let times = numbers(plan).into_iter().filter(|(place, ..)| place.of.is_time());
    times.flat_map(|(_, from, to)| [from, to]).filter(|n| *n > 0).collect()
}

/// Returns whether `other` is no harder to replay on real servers. A killed server needs a second or two to come back:
/// the lease must outlast that time, and a longer downtime only delays the server.
fn is_as_simple(plan: &Plan, other: &Plan) -> bool {
    let downtimes = |plan: &Plan| -> Vec<i64> {
        let all = numbers(plan).into_iter();
        all.filter(|(place, ..)| place.of == Meaning::Fault(Quantity::Downtime)).map(|(_, n, _)| n).collect()
    };
    let (before, after) = (downtimes(plan), downtimes(other));
    before.is_empty() || (other.lease >= plan.lease && before.iter().zip(&after).all(|(before, after)| after <= before))
}

#[cfg(test)]
mod tests {
    use history::{Fault, fault};

    use super::*;
    use crate::explore::{
        fixtures::{cut, paused_at, plan},
        hold_and_wait::hold_and_wait,
        strengthen::{repeated, strengthen},
    };

    #[test]
    fn later_faults_keep_their_times_when_an_earlier_fault_is_removed() {
        let mut plan = plan();
        plan.schedule = (1..=3).map(|n| paused_at(n, When::AfterHeal(ms(500)), 1_500)).collect();
        let two = keeping(&plan, |i| i != 1);
        assert_eq!(two.schedule.iter().map(|s| s.id.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(two.schedule[1].when, When::AfterHeal(ms(500 + 500 + 1_500)));
        assert_eq!(two.nemesis, ["pause"]);
    }

    #[test]
    fn a_step_keeps_the_fault_whose_heal_it_waits_for() {
        let mut plan = plan();
        plan.schedule = vec![
            paused_at(1, When::At(ms(500)), 500),
            paused_at(2, When::At(ms(3_000)), 500),
            paused_at(3, When::Healed(FaultId(2)), 500),
        ];
        assert_eq!(plan.validate(), Ok(()));
        let without_other = keeping(&plan, |i| i != 0);
        assert_eq!(without_other.validate(), Ok(()));
        assert_eq!(without_other.schedule[1].when, When::Healed(FaultId(1)));
        assert!(keeping(&plan, |i| i != 1).validate().is_err(), "the fault is gone");
        plan.schedule[2].when = When::Healed(FaultId(1));
        assert_eq!(plan.validate(), Ok(()));
        assert!(keeping(&plan, |i| i != 0).validate().is_err(), "fault 1 is another fault now");
    }

    #[test]
    fn a_removed_worker_takes_its_name_with_it() {
        let mut plan = plan();
        plan.schedule =
            vec![paused_at(1, When::At(ms(100)), 1_500), cut(2, "redis-1", &["worker-2", "worker-3"], 1_000)];
        plan.schedule[0].target = Target::Node("worker-3".into());
        let fewer = without_worker(&plan, 2).unwrap();
        assert_eq!(fewer.validate(), Ok(()));
        assert_eq!(fewer.workload.workers, 2);
        assert_eq!(fewer.workload.rate_per_s, plan.workload.rate_per_s * 2.0 / 3.0);
        assert_eq!(fewer.schedule[0].target, Target::Node("worker-2".into()));
        assert_eq!(fewer.schedule[1].fault.links.as_ref().unwrap().from, [NodeName::from("worker-2")]);
        assert_eq!(without_worker(&plan, 3), None, "it is a target");
        plan.schedule[1] = cut(2, "redis-1", &["worker-2"], 1_000);
        assert_eq!(without_worker(&plan, 2), None, "an empty list of peers would mean every node");
    }

    #[test]
    fn a_fired_fault_is_pinned_to_its_node_and_time() {
        let mut plan = plan();
        plan.schedule = (1..=2).map(|n| paused_at(n, When::AfterHeal(ms(500)), 1_500)).collect();
        let fired = [Fired { id: FaultId(1), node: "worker-2".into(), at: ms(530) }];
        let pinned = pinned(&plan, &fired, ms(20));
        assert_eq!(pinned.schedule.len(), 1, "the second never fired");
        assert_eq!(pinned.schedule[0].when, When::At(ms(510)));
        assert_eq!(pinned.schedule[0].target, Target::Node("worker-2".into()));
    }

    #[test]
    fn with_a_downtime_in_the_plan_no_lease_gets_shorter_and_no_downtime_longer() {
        let mut plan = plan();
        plan.schedule = vec![paused_at(1, When::At(ms(100)), 1_500)];
        let shorter = changed(&plan, |p| p.lease = ms(500));
        assert!(is_as_simple(&plan, &shorter), "the plan has no downtime");
        let killed_at = |id, when, back_after| Step {
            fault: Fault::new(fault::Kill {}, ms(back_after)),
            target: Target::Node("redis-1".into()),
            ..paused_at(id, When::At(ms(when)), 500)
        };
        plan.schedule.extend([killed_at(2, 2_000, 1_500), killed_at(3, 5_000, 800)]);
        for (lease, downtimes, expected) in [
            (1_000, [1_500, 800], true),
            (999, [1_500, 800], false),
            (1_001, [1_499, 799], true),
            (1_000, [1_501, 799], false),
            (1_000, [1_499, 801], false),
        ] {
            let other = changed(&plan, |p| {
                p.lease = ms(lease);
                // The length of the pause is no downtime.
                p.schedule[0].fault.lasting = ms(9_000);
                p.schedule[1..].iter_mut().zip(downtimes).for_each(|(step, n)| step.fault.lasting = ms(n));
            });
            assert_eq!(is_as_simple(&plan, &other), expected, "{lease} {downtimes:?}");
        }
    }

    #[test]
    fn every_changed_plan_can_be_run() {
        let mut plan = plan();
        plan.schedule = vec![
            paused_at(1, When::At(ms(1_900)), 1_234),
            cut(2, "redis-1", &["worker-1"], 1_777),
            paused_at(3, When::AfterHeal(ms(333)), 1_234),
        ];
        plan.schedule[2].target = Target::Holder;
        let changes = [fewer_faults, fewer_actors, shorter, at_points, all_links, round, fewer_durations];
        for (i, of) in changes.into_iter().enumerate() {
            let plans = of(&plan);
            assert!(!plans.is_empty(), "change {i}");
            assert!(plans.iter().all(|p| p.validate().is_ok() && *p != plan), "change {i}");
        }
    }

    #[test]
    fn every_plan_of_explore_fits_its_run() {
        // In a shorter run, with a shorter lease, both faults would be longer than the fault phase.
        let plan = Plan { lease: ms(2_000), ..plan() };
        let late = Fault::new(fault::Delay { by: ms(9_000).into() }, ms(500)).on_links(Direction::Out, Vec::new());
        let late = Step { fault: late, ..cut(1, "redis-2", &[], 500) };
        for step in [paused_at(1, When::At(ms(900)), 9_400), late] {
            let plan = Plan { schedule: vec![step], ..plan.clone() };
            assert_eq!(plan.too_long(), None);
            for changed in [shorter, round, strengthen, repeated, hold_and_wait] {
                assert!(changed(&plan).iter().all(|p| p.too_long().is_none()));
            }
            // Without the bound, the search would offer such a plan.
            assert!(changed(&plan, |p| p.time = ms(2_000)).too_long().is_some());
        }
    }
}
