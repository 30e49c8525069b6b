//! Ways to change a plan a little: towards fewer things, and towards plainer ones. Those towards a violation that does not hang on a moment stand in
//! `firmer.rs`.
//!
//! All of them are pure, and give plans that can be run, in the order in which they should be tried.

use std::time::Duration;

use history::{ClientKind, Direction, Fault, FaultId, Late, NodeName, Plan, Point, Range, Step, Target, Until, When};

use super::{
    jitter::{jump_mut, lasting_mut},
    trial::Fired,
};

pub(super) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Runs are not made longer than this.
pub(super) const TIME_MAX: Duration = ms(120_000);

/// A changed copy.
pub(super) fn changed(plan: &Plan, change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = plan.clone();
    change(&mut plan);
    plan
}

/// Those that can be run, and are not the plan itself.
pub(super) fn runnable(plan: &Plan, mut plans: Vec<Plan>) -> Vec<Plan> {
    plans.retain(|p| p != plan && p.time <= TIME_MAX.max(plan.time) && p.validate().is_ok());
    plans
}

pub(super) fn is_of_worker(plan: &Plan, step: &Step) -> bool {
    match &step.target {
        Target::Holder => true,
        Target::Leader => false,
        Target::Node(node) => plan.workers().any(|w| w == *node),
    }
}

/// Only the steps that `keep` names by their place. A step that waits for the heal of one that is left out waits longer by as much.
pub fn keeping(plan: &Plan, keep: impl Fn(usize) -> bool) -> Plan {
    let mut carried = Duration::ZERO;
    let mut schedule = Vec::new();
    for (i, step) in plan.schedule.iter().enumerate() {
        let mut step = step.clone();
        match (&mut step.when, keep(i)) {
            (When::AfterHeal(gap), true) => *gap += std::mem::take(&mut carried),
            (When::AfterHeal(gap), false) => carried += *gap + step.fault.lasting(),
            _ => {}
        }
        if keep(i) {
            schedule.push(step);
        }
    }
    with_schedule(plan, schedule)
}

/// Another schedule: numbered from 1, its kinds named as what was asked for.
pub(super) fn with_schedule(plan: &Plan, mut schedule: Vec<Step>) -> Plan {
    let numbers: Vec<FaultId> = schedule.iter().map(|step| step.id).collect();
    for (step, n) in schedule.iter_mut().zip(1..) {
        step.id = FaultId(n);
        if let When::Healed(before) = &mut step.when {
            // 0 is no fault: a plan in which one waits for a fault that is gone cannot be run.
            *before = FaultId(numbers.iter().position(|id| id == before).map_or(0, |at| at as u32 + 1));
        }
    }
    let mut plan = Plan { schedule, ..plan.clone() };
    plan.nemesis = plan.kinds().into_iter().map(|kind| kind.name().to_owned()).collect();
    plan
}

/// What came to pass as a plan of its own: each fault at the time at which it was requested less `lead`, on the node that it hit. Steps that never came up
/// are left out.
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

/// When it is due, if it is due at a time.
pub(super) fn at(step: &Step) -> Option<Duration> {
    if let When::At(at) = step.when { Some(at) } else { None }
}

/// Work that fills most of a lease, and leaves time for an answer.
pub(super) fn most_of(lease: Duration) -> Range {
    Range { from: lease * 85 / 100, to: lease * 85 / 100 }
}

// ---- fewer

/// One fault less, or one planned wait that no fault goes with.
pub fn fewer_faults(plan: &Plan) -> Vec<Plan> {
    let without_fault = (0..plan.schedule.len()).map(|left_out| keeping(plan, |i| i != left_out));
    let without_wait = (0..plan.waits.len()).map(|left_out| changed(plan, |p| drop(p.waits.remove(left_out))));
    runnable(plan, without_fault.chain(without_wait).collect())
}

/// Fewer workers, clients, keys. The others are offered as much as before.
pub fn fewer_actors(plan: &Plan) -> Vec<Plan> {
    let w = &plan.workload;
    let mut plans: Vec<Plan> = (1..=w.workers).rev().filter_map(|worker| without_worker(plan, worker)).collect();
    if w.clients_per_worker > 1 && w.workers > 1 {
        plans.push(changed(plan, |p| {
            p.workload.clients_per_worker = 1;
            p.workload.rate_per_s /= f64::from(w.clients_per_worker);
        }));
    }
    for keys in [1, w.keys / 2] {
        if (1..w.keys).contains(&keys) {
            plans.push(changed(plan, |p| p.workload.keys = keys));
        }
    }
    runnable(plan, plans)
}

/// Without a worker that no fault names as its target; those after it move up. A lock needs two clients to go wrong.
fn without_worker(plan: &Plan, gone: u32) -> Option<Plan> {
    let mut plan = plan.clone();
    let workers = plan.workload.workers;
    if (workers - 1) * plan.workload.clients_per_worker < 2 {
        return None;
    }
    let name = |n: u32| NodeName::new(format!("worker-{n}"));
    let renamed = |node: &NodeName| match (1..=workers).find(|n| name(*n) == *node) {
        Some(n) if n == gone => None,
        Some(n) if n > gone => Some(name(n - 1)),
        _ => Some(node.clone()),
    };
    for step in &mut plan.schedule {
        if let Target::Node(node) = &mut step.target {
            *node = renamed(node)?;
        }
        if let Some((_, from)) = step.fault.links_mut()
            && !from.is_empty()
        {
            *from = from.iter().filter_map(renamed).collect();
            // An empty list would mean everybody.
            if from.is_empty() {
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

/// A shorter run, and one in which the first fault comes sooner.
pub fn shorter(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    for seconds in [2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 60] {
        plans.push(changed(plan, |p| p.time = p.time.min(Duration::from_secs(seconds))));
    }
    let first = plan.schedule.iter().filter_map(at).min();
    for at in [500, 1_000, 2_000].map(ms) {
        if let Some(earlier) = first.and_then(|first| first.checked_sub(at)).filter(|d| *d >= ms(500)) {
            plans.push(changed(plan, |p| each_at(p, |at| *at = at.saturating_sub(earlier))));
        }
    }
    runnable(plan, plans)
}

pub(super) fn each_at(plan: &mut Plan, change: impl Fn(&mut Duration)) {
    for step in &mut plan.schedule {
        if let When::At(at) = &mut step.when {
            change(at);
        }
    }
}

// ---- plainer

/// Faults of workers at protocol points instead of at times.
pub fn anchored(plan: &Plan) -> Vec<Plan> {
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

/// Links that are cut altogether instead of in one direction or from some nodes.
pub fn plainer_links(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    for i in 0..plan.schedule.len() {
        for (all, both) in [(true, true), (true, false), (false, true)] {
            plans.push(changed(plan, |p| {
                if let Some((direction, from)) = p.schedule[i].fault.links_mut() {
                    if all {
                        from.clear();
                    }
                    if both {
                        *direction = Direction::Both;
                    }
                }
            }));
        }
    }
    runnable(plan, plans)
}

/// Rounder numbers, one at a time.
pub fn rounder(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    // A real server that was killed needs a second or two to come back, whatever the plan says: a lease must outlast that to show anything there.
    let has_kills = plan.schedule.iter().any(|step| step.fault.kind().kills());
    let is_long_enough = |lease: &Duration| !has_kills || *lease >= plan.lease;
    for lease in rounder_than(plan.lease).into_iter().filter(is_long_enough) {
        plans.push(changed(plan, |p| p.lease = lease));
    }
    let shorter = [1_000, 2_000, 3_000, 5_000].map(ms).into_iter().filter(|lease| *lease < plan.lease);
    for lease in shorter.filter(is_long_enough) {
        plans.push(changed(plan, |p| p.lease = lease));
        plans.push(changed(plan, |p| (p.lease, p.workload.work) = (lease, most_of(lease))));
    }
    for work in single(plan.workload.work) {
        plans.push(changed(plan, |p| p.workload.work = work));
    }
    for retry_delay in single(plan.workload.retry_delay) {
        plans.push(changed(plan, |p| p.workload.retry_delay = retry_delay));
    }
    let rate = plan.workload.rate_per_s;
    for round in [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        if rate != round && (rate.fract() != 0.0 || round < rate) {
            plans.push(changed(plan, |p| p.workload.rate_per_s = round));
        }
    }
    for (i, step) in plan.schedule.iter().enumerate() {
        let longest = if step.fault.kind().kills() { step.fault.lasting() } else { Duration::MAX };
        // A node that stays down longer is later, not plainer.
        for lasting in rounder_than(step.fault.lasting()).into_iter().filter(|d| *d <= longest) {
            plans.push(changed(plan, |p| *lasting_mut(&mut p.schedule[i].fault) = lasting));
        }
        let mut fault = step.fault.clone();
        if let Some(jump) = jump_mut(&mut fault) {
            for by in rounder_than(ms(jump.unsigned_abs())) {
                let by = by.as_millis() as i64 * jump.signum();
                plans.push(changed(plan, |p| {
                    jump_mut(&mut p.schedule[i].fault).into_iter().for_each(|jump| *jump = by);
                }));
            }
        }
        plans
            .extend(rounder_links(&step.fault).into_iter().map(|fault| changed(plan, |p| p.schedule[i].fault = fault)));
        let (When::At(time) | When::AfterHeal(time)) = step.when else { continue };
        for round in rounder_than(time) {
            plans.push(changed(plan, |p| match &mut p.schedule[i].when {
                When::At(time) | When::AfterHeal(time) => *time = round,
                When::AtPoint(_) | When::WhileWaits(_) | When::Healed(_) => {}
            }));
        }
    }
    runnable(plan, plans)
}

/// A fault of links with rounder numbers. A delay is plainer if it is the same for every packet.
fn rounder_links(fault: &Fault) -> Vec<Fault> {
    let with = |change: &dyn Fn(&mut Fault)| {
        let mut fault = fault.clone();
        change(&mut fault);
        fault
    };
    match fault {
        Fault::Delay { by, .. } => {
            let round = match by {
                Late::Fixed(by) => rounder_than(*by),
                Late::Drawn(by) => single(*by).into_iter().map(|by| by.from).collect(),
            };
            let later = |late: Duration| {
                with(&|f| {
                    if let Fault::Delay { by, .. } = f {
                        *by = late.into()
                    }
                })
            };
            round.into_iter().map(later).collect()
        }
        Fault::Loss { percent, .. } if percent % 10 != 0 => {
            let ten = percent / 10 * 10;
            let losing = |percents: u8| {
                with(&|f| {
                    if let Fault::Loss { percent, .. } = f {
                        *percent = percents
                    }
                })
            };
            [ten, ten + 10].into_iter().map(losing).collect()
        }
        Fault::Reorder { by, .. } => {
            let within = |to: Duration| {
                with(&|f| {
                    if let Fault::Reorder { by, .. } = f {
                        by.to = to
                    }
                })
            };
            rounder_than(by.to).into_iter().map(within).collect()
        }
        _ => Vec::new(),
    }
}

/// Grains of numbers, from the roundest on.
const GRAINS: [Duration; 7] = [ms(1_000), ms(500), ms(100), ms(50), ms(10), ms(5), ms(1)];

/// Neighbours of `d` that are rounder than it, the roundest first. None of them is 0.
fn rounder_than(d: Duration) -> Vec<Duration> {
    let mut round = Vec::new();
    for grain in GRAINS {
        let below = Duration::from_nanos((d.as_nanos() / grain.as_nanos() * grain.as_nanos()) as u64);
        if below == d {
            break;
        }
        let above = below + grain;
        let nearest_first = if d - below < above - d { [below, above] } else { [above, below] };
        round.extend(nearest_first.into_iter().filter(|r| !r.is_zero()));
    }
    let mut seen = std::collections::BTreeSet::new();
    round.retain(|r| seen.insert(*r));
    round
}

/// One value instead of a range, and a rounder one.
fn single(range: Range) -> Vec<Range> {
    let middle = (range.from + range.to) / 2;
    let mut values = rounder_than(middle);
    if range.from != range.to {
        values.extend([range.to, range.from, middle]);
    }
    values.into_iter().map(|d| Range { from: d, to: d }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::scene::{cut, paused_at, plan};

    #[test]
    fn later_faults_stay_where_they_are_when_an_earlier_one_is_left_out() {
        let mut plan = plan();
        plan.schedule = (1..=3).map(|n| paused_at(n, When::AfterHeal(ms(500)), 1_500)).collect();
        let two = keeping(&plan, |i| i != 1);
        assert_eq!(two.schedule.iter().map(|s| s.id.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(two.schedule[1].when, When::AfterHeal(ms(500 + 500 + 1_500)));
        assert_eq!(two.nemesis, ["pause"]);
    }

    #[test]
    fn a_worker_that_is_left_out_takes_its_name_with_it() {
        let mut plan = plan();
        plan.schedule =
            vec![paused_at(1, When::At(ms(100)), 1_500), cut(2, "redis-1", &["worker-2", "worker-3"], 1_000)];
        plan.schedule[0].target = Target::Node("worker-3".into());
        let fewer = without_worker(&plan, 2).unwrap();
        assert_eq!(fewer.validate(), Ok(()));
        assert_eq!(fewer.workload.workers, 2);
        assert_eq!(fewer.workload.rate_per_s, plan.workload.rate_per_s * 2.0 / 3.0);
        assert_eq!(fewer.schedule[0].target, Target::Node("worker-2".into()));
        let Fault::Partition { from, .. } = &fewer.schedule[1].fault else { panic!() };
        assert_eq!(*from, [NodeName::from("worker-2")]);
        assert_eq!(without_worker(&plan, 3), None, "it is a target");
        plan.schedule[1] = cut(2, "redis-1", &["worker-2"], 1_000);
        assert_eq!(without_worker(&plan, 2), None, "nobody left to be cut off from is not everybody");
    }

    #[test]
    fn what_came_to_pass_is_pinned_to_its_node_and_time() {
        let mut plan = plan();
        plan.schedule = (1..=2).map(|n| paused_at(n, When::AfterHeal(ms(500)), 1_500)).collect();
        let fired = [Fired { id: FaultId(1), node: "worker-2".into(), at: ms(530) }];
        let pinned = pinned(&plan, &fired, ms(20));
        assert_eq!(pinned.schedule.len(), 1, "the second never came up");
        assert_eq!(pinned.schedule[0].when, When::At(ms(510)));
        assert_eq!(pinned.schedule[0].target, Target::Node("worker-2".into()));
    }

    #[test]
    fn rounder_numbers_are_near_and_never_nothing() {
        assert_eq!(rounder_than(ms(1_340))[..4], [ms(1_000), ms(2_000), ms(1_500), ms(1_300)]);
        assert_eq!(rounder_than(ms(2_000)), []);
        assert_eq!(rounder_than(ms(30)), [ms(1_000), ms(500), ms(100), ms(50)]);
        let range = Range { from: ms(20), to: ms(60) };
        assert!(single(range).iter().all(|r| r.from == r.to && !r.from.is_zero()));
        assert_eq!(single(Range { from: ms(50), to: ms(50) }).last(), Some(&Range { from: ms(100), to: ms(100) }));
    }

    #[test]
    fn every_changed_plan_can_be_run() {
        let mut plan = plan();
        plan.schedule = vec![
            paused_at(1, When::At(ms(900)), 1_234),
            cut(2, "redis-1", &["worker-1"], 1_777),
            paused_at(3, When::AfterHeal(ms(333)), 1_234),
        ];
        plan.schedule[2].target = Target::Holder;
        let moves = [fewer_faults, fewer_actors, shorter, anchored, plainer_links, rounder];
        for (i, of) in moves.into_iter().enumerate() {
            let plans = of(&plan);
            assert!(!plans.is_empty(), "move {i}");
            assert!(plans.iter().all(|p| p.validate().is_ok() && *p != plan), "move {i}");
        }
    }
}
