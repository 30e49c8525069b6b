//! Ways to change a plan towards a violation that comes whatever the seed, and though every step comes a little sooner or later.

use std::time::Duration;

use history::{Fault, FaultKind, Late, Plan, Range, Step, Target, When};

use super::{
    held::held,
    jitter::{jump_mut, lasting_mut},
    moves::{
        TIME_MAX, anchored, at, changed, each_at, fewer_actors, is_of_worker, most_of, ms, runnable, with_schedule,
    },
};

/// Faults are not made longer than this, nor leases.
const LASTING_MAX: Duration = ms(30_000);
const LEASE_MAX: Duration = ms(10_000);

/// Towards a violation that comes at any moment: faults at points and at whoever holds, longer ones, longer and busier work, everything
/// slower, other times.
pub fn firmer(plan: &Plan) -> Vec<Plan> {
    let mut plans = held(plan);
    plans.extend(anchored(plan));
    let patient = patient(plan);
    plans.extend(patient.iter().flat_map(|plan| [plan.clone(), again(plan, 4, false), again(plan, 8, false)]));
    plans.extend(fewer_actors(plan));
    for percent in [85, 70, 50, 30] {
        let work = plan.lease * percent / 100;
        plans.push(changed(plan, |p| p.workload.work = Range { from: work, to: work }));
    }
    if plan.lease * 2 <= LEASE_MAX && plan.time * 2 <= TIME_MAX {
        plans.push(stretched(plan, 2));
    }
    for (i, step) in plan.schedule.iter().enumerate() {
        let has_data = matches!(step.fault.kind(), FaultKind::Amnesia | FaultKind::Powerloss);
        if is_of_worker(plan, step) && !has_data && matches!(step.when, When::At(_)) {
            plans.push(changed(plan, |p| p.schedule[i].target = Target::Holder));
        }
    }
    for retry in [10, 20].map(ms) {
        plans.push(changed(plan, |p| p.workload.retry_delay = Range { from: retry, to: retry }));
    }
    plans.push(changed(plan, |p| p.workload.rate_per_s = (p.workload.rate_per_s * 2.0).min(100.0)));
    for i in 0..plan.schedule.len() {
        for percent in [150, 200, 300] {
            plans.push(changed(plan, |p| {
                let lasting = lasting_mut(&mut p.schedule[i].fault);
                *lasting = (*lasting * percent / 100).min(LASTING_MAX);
            }));
            plans.push(changed(plan, |p| {
                jump_mut(&mut p.schedule[i].fault).into_iter().for_each(|by| *by = *by * i64::from(percent) / 100);
            }));
            plans.push(changed(plan, |p| {
                if let Fault::Loss { percent: lost, .. } = &mut p.schedule[i].fault {
                    *lost = (u32::from(*lost) * percent / 100).min(100) as u8;
                }
            }));
        }
        for shift in [50, 100, 200, 400, 800].map(ms) {
            for is_later in [false, true] {
                plans.push(changed(plan, |p| {
                    if let When::At(at) = &mut p.schedule[i].when {
                        *at = if is_later { *at + shift } else { at.saturating_sub(shift) };
                    }
                }));
            }
        }
    }
    runnable(plan, plans)
}

/// One long hold that begins at once, and all faults while it is held: what must come together then does. Clocks jump by more than the new lease.
fn patient(plan: &Plan) -> Vec<Plan> {
    let Some(first) = plan.schedule.iter().filter_map(at).min() else { return Vec::new() };
    let mut plans = Vec::new();
    for lease in [2_000, 5_000].map(ms).into_iter().filter(|lease| *lease >= plan.lease) {
        let mut plan = plan.clone();
        plan.lease = lease;
        plan.workload.work = most_of(lease);
        plan.workload.retry_delay = Range { from: ms(50), to: ms(50) };
        plan.workload.rate_per_s = plan.workload.rate_per_s.max(10.0);
        for step in &mut plan.schedule {
            if let Some(by) = jump_mut(&mut step.fault) {
                *by = by.signum() * by.abs().max(lease.as_millis() as i64 * 2);
            }
        }
        for (begin, links, is_from_all) in [
            (ms(1_000), Links::Throughout, false),
            (ms(1_000), Links::Before, true),
            (ms(1_000), Links::Before, false),
            (ms(1_000), Links::AsTheyAre, true),
            (ms(1_000), Links::AsTheyAre, false),
            (ms(0), Links::AsTheyAre, false),
        ] {
            let mut plan = plan.clone();
            each_at(&mut plan, |at| *at = *at - first + begin);
            let end = plan.schedule.iter().map(|s| at(s).unwrap_or_default() + s.fault.lasting()).max();
            plan.time = end.unwrap_or_default() + lease + ms(1_000);
            for step in plan.schedule.iter_mut().filter(|s| s.fault.kind().is_of_links()) {
                if let Some((_, from)) = step.fault.links_mut().filter(|_| is_from_all) {
                    from.clear();
                }
                let When::At(at) = &mut step.when else { continue };
                match links {
                    Links::Throughout => (*at, *lasting_mut(&mut step.fault)) = (ms(0), plan.time),
                    Links::Before => *lasting_mut(&mut step.fault) += std::mem::take(at),
                    Links::AsTheyAre => {}
                }
            }
            plans.push(plan);
        }
    }
    plans
}

/// What becomes of faults of links: those that are on before the hold begins decide which nodes it is on.
#[derive(Clone, Copy)]
enum Links {
    Throughout,
    Before,
    AsTheyAre,
}

/// Everything that lasts, lasts `times` as long.
fn stretched(plan: &Plan, times: u32) -> Plan {
    let mut plan = plan.clone();
    plan.lease *= times;
    plan.time *= times;
    let w = &mut plan.workload;
    w.work = Range { from: w.work.from * times, to: w.work.to * times };
    for every in [&mut w.renew, &mut w.renew_for, &mut w.resend, &mut w.cancel].into_iter().flatten() {
        *every *= times;
    }
    for wait in &mut plan.waits {
        wait.at_most *= times;
        wait.after *= times;
    }
    for step in &mut plan.schedule {
        match &mut step.when {
            When::At(time) | When::AfterHeal(time) => *time *= times,
            When::AtPoint(_) | When::WhileWaits(_) | When::Healed(_) => {}
        }
        *lasting_mut(&mut step.fault) *= times;
        jump_mut(&mut step.fault).into_iter().for_each(|by| *by *= i64::from(times));
        let stretch = |by: &mut Range| *by = Range { from: by.from * times, to: by.to * times };
        match &mut step.fault {
            Fault::Delay { by: Late::Fixed(by), .. } => *by *= times,
            Fault::Delay { by: Late::Drawn(by), .. } | Fault::Reorder { by, .. } => stretch(by),
            _ => {}
        }
    }
    plan
}

/// The same faults again and again: what comes half the time comes almost surely in five times.
pub fn repeated(plan: &Plan) -> Vec<Plan> {
    let times = [2, 3, 5, 8];
    runnable(plan, times.into_iter().flat_map(|n| [again(plan, n, false), again(plan, n, true)]).collect())
}

/// The same faults `times` times. Those of links may instead last as much longer.
fn again(plan: &Plan, times: u32, with_links: bool) -> Plan {
    let first = plan.schedule.iter().filter_map(at).min().unwrap_or_default();
    // Links that are cut most of the time count for nothing here.
    let is_short = |step: &&Step| !step.fault.kind().is_of_links() || step.fault.lasting() < plan.time / 2;
    let short = plan.schedule.iter().filter(is_short);
    let end = short.map(|s| at(s).unwrap_or(first) + s.fault.lasting()).max().unwrap_or_default();
    // Long enough for locks to be free and to be taken again.
    let round = end.saturating_sub(first) + plan.lease + ms(500);
    let mut schedule = plan.schedule.clone();
    for n in 1..times {
        // A client waits once.
        let recurs =
            |s: &&Step| !matches!(s.when, When::WhileWaits(_)) && (with_links || !s.fault.kind().is_of_links());
        let steps = plan.schedule.iter().filter(recurs);
        schedule.extend(steps.cloned().map(|mut step| {
            if let When::At(at) = &mut step.when {
                *at += round * n;
            }
            step
        }));
    }
    let mut plan = Plan { time: plan.time + round * (times - 1), ..with_schedule(plan, schedule) };
    if !with_links {
        for step in plan.schedule.iter_mut().filter(|s| s.fault.kind().is_of_links()) {
            *lasting_mut(&mut step.fault) += round * (times - 1);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::scene::{cut, paused_at, plan};

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
    fn every_firmer_plan_can_be_run() {
        let plan = some();
        assert!(firmer(&plan).len() > 50);
        assert!(firmer(&plan).iter().chain(&repeated(&plan)).all(|p| p.validate().is_ok() && *p != plan));
    }

    #[test]
    fn faults_are_repeated_and_links_may_stay_cut_instead() {
        let plan = some();
        let lengths: Vec<_> = repeated(&plan).iter().map(|p| p.schedule.len()).collect();
        assert_eq!(lengths, [5, 6, 7, 9, 11, 15, 17, 24], "without links, and with them");
        assert!(repeated(&plan).iter().all(|p| p.time > plan.time));
    }

    #[test]
    fn a_patient_plan_has_its_links_cut_before_the_one_long_hold_begins() {
        let plans = patient(&some());
        let throughout = &plans[0];
        assert_eq!(throughout.schedule[1].when, When::At(ms(0)));
        assert_eq!(throughout.schedule[1].fault.lasting(), throughout.time);
        assert!(plans.iter().all(|p| p.workload.work == most_of(p.lease)));
    }
}
