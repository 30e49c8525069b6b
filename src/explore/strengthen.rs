//! Changes of a plan towards a violation that every seed gives, with each fault a little sooner or later.
//!
//! All changes are pure. They come in the order in which the search tries them.

use std::time::Duration;

use history::{FaultKind, Plan, Range, Step, Target, When, fault::Quantity};

use super::{
    hold_and_wait::hold_and_wait,
    numbers::{MS, Meaning, replaced, visited},
    simplify::{at_points, changed, fewer_actors, is_of_worker, most_of, ms, runnable, time_of, with_schedule},
};

/// Upper bounds of changed plans.
const TIME_MAX: Duration = ms(120_000);
const LENGTH_MAX: i64 = 30_000 * MS;
const LEASE_MAX: Duration = ms(10_000);
const RATE_MAX: i64 = 100_000;

/// Lists changes that make a violation depend less on exact times.
pub fn strengthen(plan: &Plan) -> Vec<Plan> {
    let mut plans = hold_and_wait(plan);
    plans.extend(at_points(plan));
    // Without repetition first: it gives fewer faults.
    let long_holds = one_long_hold(plan).into_iter();
    plans.extend(long_holds.flat_map(|plan| [plan.clone(), repeat(&plan, 4, false), repeat(&plan, 8, false)]));
    plans.extend(fewer_actors(plan));
    let lease = plan.lease.as_nanos() as i64;
    plans.extend(replaced(plan, |place, _, _| match place.of {
        Meaning::Work => [85, 70, 50, 30].map(|percent| lease / 100 * percent).to_vec(),
        _ => Vec::new(),
    }));
    if plan.lease * 2 <= LEASE_MAX {
        let lasts = |of: Meaning| of.is_time() && of != Meaning::RetryDelay;
        plans.push(visited(plan, |place, n| *n *= if lasts(place.of) { 2 } else { 1 }));
    }
    for (i, step) in plan.schedule.iter().enumerate() {
        let loses_data = matches!(step.fault.kind(), FaultKind::Amnesia | FaultKind::Powerloss);
        if is_of_worker(plan, step) && !loses_data && time_of(step).is_some() {
            plans.push(changed(plan, |p| p.schedule[i].target = Target::Holder));
        }
    }
    plans.extend(replaced(plan, |place, n, _| match place.of {
        Meaning::RetryDelay => vec![10 * MS, 20 * MS],
        Meaning::Rate => vec![(n * 2).min(RATE_MAX)],
        Meaning::At => [50, 100, 200, 400, 800].iter().flat_map(|by| [(n - by * MS).max(0), n + by * MS]).collect(),
        Meaning::Fault(Quantity::Percent) => [150, 200, 300].map(|percent| (n * percent / 100).min(100)).to_vec(),
        Meaning::Fault(Quantity::Length | Quantity::Downtime | Quantity::JumpMs) => {
            [150, 200, 300].map(|percent| (n * percent / 100).min(LENGTH_MAX)).to_vec()
        }
        _ => Vec::new(),
    }));
    short_enough(plan, plans)
}

/// Lists the plan with the same faults several times: a violation of every second round almost surely comes in five.
pub fn repeated(plan: &Plan) -> Vec<Plan> {
    let plans = [2, 3, 5, 8].into_iter().flat_map(|times| [repeat(plan, times, false), repeat(plan, times, true)]);
    short_enough(plan, plans.collect())
}

fn short_enough(plan: &Plan, mut plans: Vec<Plan>) -> Vec<Plan> {
    plans.retain(|p| p.time <= TIME_MAX.max(plan.time));
    runnable(plan, plans)
}

/// The role of faults of links while the one long hold lasts. Cut links decide on which nodes the client holds.
#[derive(Clone, Copy, PartialEq)]
enum Links {
    /// The links are cut during the whole run.
    Throughout,
    /// The links are cut from the start until their heal.
    FromStart,
    /// The links are cut at their own times.
    Unchanged,
}

/// Lists plans with one long hold that begins at once, and all faults while it lasts. Clocks jump by two leases.
fn one_long_hold(plan: &Plan) -> Vec<Plan> {
    let Some(first) = plan.schedule.iter().filter_map(time_of).min() else { return Vec::new() };
    let variants = [
        (1_000, Links::Throughout, false),
        (1_000, Links::FromStart, true),
        (1_000, Links::FromStart, false),
        (1_000, Links::Unchanged, true),
        (1_000, Links::Unchanged, false),
        (0, Links::Unchanged, false),
    ];
    let leases = [2_000, 5_000].map(ms).into_iter().filter(|lease| *lease >= plan.lease);
    let each = leases.flat_map(|lease| variants.map(|variant| (lease, variant)));
    each.map(|(lease, (start, links, from_all))| {
        let (earlier, jump) = (first.as_nanos() as i64 - start * MS, lease.as_nanos() as i64 * 2);
        let mut plan = visited(plan, |place, n| match place.of {
            Meaning::At => *n -= earlier,
            Meaning::Fault(Quantity::JumpMs) => *n = n.signum() * jump.max(n.abs()),
            _ => {}
        });
        let end = plan.schedule.iter().map(|s| time_of(s).unwrap_or_default() + s.fault.lasting).max();
        plan.time = end.unwrap_or_default() + lease + ms(1_000);
        plan.lease = lease;
        plan.workload.work = most_of(lease);
        plan.workload.retry_delay = Range { from: ms(50), to: ms(50) };
        plan.workload.rate_per_s = plan.workload.rate_per_s.max(10.0);
        for step in &mut plan.schedule {
            let (Some(hit), When::At(at)) = (&mut step.fault.links, &mut step.when) else { continue };
            if from_all {
                hit.from.clear();
            }
            match links {
                Links::Throughout => (*at, step.fault.lasting) = (Duration::ZERO, plan.time),
                Links::FromStart => step.fault.lasting += std::mem::take(at),
                Links::Unchanged => {}
            }
        }
        plan
    })
    .collect()
}

/// Repeats the faults. Faults of links are repeated too, or last longer by the time of the repetitions.
fn repeat(plan: &Plan, times: u32, with_links: bool) -> Plan {
    let is_of_links = |step: &Step| step.fault.kind().is_of_links();
    let first = plan.schedule.iter().filter_map(time_of).min().unwrap_or_default();
    // Links that are cut most of the time do not count.
    let short = plan.schedule.iter().filter(|step| !is_of_links(step) || step.fault.lasting < plan.time / 2);
    let end = short.map(|s| time_of(s).unwrap_or(first) + s.fault.lasting).max().unwrap_or_default();
    // Long enough for the locks to be released and taken again.
    let round = end.saturating_sub(first) + plan.lease + ms(500);
    let mut schedule = plan.schedule.clone();
    for n in 1..times {
        // A client waits once only.
        let recurs = |s: &&Step| !matches!(s.when, When::WhileWaits(_)) && (with_links || !is_of_links(s));
        schedule.extend(plan.schedule.iter().filter(recurs).cloned().map(|mut step| {
            if let When::At(at) = &mut step.when {
                *at += round * n;
            }
            step
        }));
    }
    if !with_links {
        for step in schedule.iter_mut().filter(|step| is_of_links(step)) {
            step.fault.lasting += round * (times - 1);
        }
    }
    Plan { time: plan.time + round * (times - 1), ..with_schedule(plan, schedule) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::fixtures::{cut, paused_at, plan};

    fn some() -> Plan {
        let mut plan = plan();
        plan.schedule = vec![
            paused_at(1, When::At(ms(900)), 1_234),
            cut(2, "redis-1", &["worker-1"], 1_777),
            paused_at(3, When::AfterHeal(ms(333)), 1_234),
        ];
        plan.schedule[2].target = Target::Holder;
        plan
    }

    #[test]
    fn every_strengthened_plan_can_be_run() {
        let plan = some();
        assert!(strengthen(&plan).len() > 50);
        assert!(strengthen(&plan).iter().chain(&repeated(&plan)).all(|p| p.validate().is_ok() && *p != plan));
    }

    #[test]
    fn faults_are_repeated_and_links_may_stay_cut_instead() {
        let plan = some();
        let lengths: Vec<_> = repeated(&plan).iter().map(|p| p.schedule.len()).collect();
        assert_eq!(lengths, [5, 6, 7, 9, 11, 15, 17, 24], "without links, and with them");
        assert!(repeated(&plan).iter().all(|p| p.time > plan.time));
    }

    #[test]
    fn the_links_are_cut_before_the_one_long_hold_begins() {
        let plans = one_long_hold(&some());
        let throughout = &plans[0];
        assert_eq!(throughout.schedule[1].when, When::At(Duration::ZERO));
        assert_eq!(throughout.schedule[1].fault.lasting, throughout.time);
        assert!(plans.iter().all(|p| p.workload.work == most_of(p.lease)));
    }
}
