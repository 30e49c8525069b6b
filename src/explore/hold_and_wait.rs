//! Plans in which a client holds the lock and waits before its write, while the faults of lock nodes come.
//!
//! A fault of a lock node does its harm by the time at which it comes relative to a hold, and by the nodes on which the
//! client holds. A planned wait fixes both, so the violation depends on no exact time.

use std::{collections::BTreeSet, time::Duration};

use history::{
    Direction, Fault, FaultId, NodeName, Plan, Point, Range, Step, Target, Until, Wait, WaitId, When,
    fault::{Partition, Quantity},
};

use super::{
    numbers::{Meaning, visited},
    simplify::{is_of_worker, ms, runnable, time_of, with_schedule},
};

/// The worker that holds.
const HOLDER: &str = "worker-1";
/// By this time the holder is cut off from the nodes on which it must not hold.
const SETTLED: Duration = ms(1_000);
/// A node that is down grants nothing, so it is back after this time.
const DOWNTIME_MAX: Duration = ms(100);
/// The longest work between read and write. Short work lets every client have the lock soon and often.
const WORK_MAX: Duration = ms(50);

/// Lists the plans with the plan's own lease and longer ones; the holder holds on a bare majority, or on all nodes.
pub fn hold_and_wait(plan: &Plan) -> Vec<Plan> {
    let faulty: BTreeSet<&NodeName> = plan.schedule.iter().filter_map(|step| faulty_node(plan, step)).collect();
    if faulty.is_empty() || !plan.waits.is_empty() {
        return Vec::new();
    }
    // A bare majority must contain all faulty nodes.
    let is_bare: &[bool] = if faulty.len() > plan.lock_nodes.len() / 2 { &[false] } else { &[true, false] };
    let leases = [plan.lease, ms(2_000), ms(5_000)].into_iter().filter(|lease| *lease >= plan.lease);
    let leases: BTreeSet<Duration> = leases.collect();
    let each = leases.into_iter().flat_map(|lease| is_bare.iter().map(move |is_bare| (lease, *is_bare)));
    runnable(plan, each.map(|(lease, is_bare)| with_holder(plan, &faulty, lease, is_bare)).collect())
}

/// Returns the lock node that a timed step hits itself, rather than its links.
fn faulty_node<'p>(plan: &Plan, step: &'p Step) -> Option<&'p NodeName> {
    let Target::Node(node) = &step.target else { return None };
    let is_of_node = time_of(step).is_some() && step.fault.links.is_none();
    (is_of_node && plan.lock_nodes.contains(node) && !is_of_worker(plan, step)).then_some(node)
}

fn with_holder(plan: &Plan, faulty: &BTreeSet<&NodeName>, lease: Duration, is_bare: bool) -> Plan {
    // A clock that is set back does its harm at the heal, by a jump forwards. Here it jumps forwards at once.
    let jump = lease.as_nanos() as i64 * 2;
    let is_faulty = |index: usize| faulty_node(plan, &plan.schedule[index]).is_some();
    let mut plan = visited(plan, |place, n| match place.of {
        Meaning::Fault(_) if !is_faulty(place.index) => {}
        Meaning::Fault(Quantity::JumpMs) => *n = n.abs().max(jump),
        Meaning::Fault(Quantity::Downtime) => *n = (*n).min(DOWNTIME_MAX.as_nanos() as i64),
        _ => {}
    });
    let (mut schedule, mut longest, mut seen) = (Vec::new(), Duration::ZERO, BTreeSet::new());
    for step in &plan.schedule {
        match faulty_node(&plan, step) {
            // Faults come at one time, so a node has each kind once.
            Some(node) if seen.insert((node, step.fault.kind())) => {
                longest = longest.max(step.fault.lasting);
                schedule.push(Step { when: When::WhileWaits(WaitId(1)), ..step.clone() });
            }
            Some(_) => {}
            None if is_bare && step.fault.links.is_some() => {}
            None => schedule.push(step.clone()),
        }
    }
    let time = SETTLED + lease * 3 + longest;
    let time = Duration::from_secs(time.as_millis().div_ceil(1_000) as u64);
    if is_bare {
        schedule.insert(0, cut_off(&plan, faulty, time));
    }
    plan = Plan { time, lease, ..with_schedule(&plan, schedule) };
    let after = if is_bare { SETTLED } else { Duration::ZERO };
    let (worker, point, until) = (HOLDER.into(), Point::BeforeWrite, Until::AnotherWrote);
    plan.waits = vec![Wait { id: WaitId(1), worker, point, until, at_most: lease, after }];
    let w = &mut plan.workload;
    // A write to another key would end the wait too early.
    w.keys = 1;
    w.retry_delay = Range { from: ms(50), to: ms(50) };
    w.rate_per_s = w.rate_per_s.max(10.0);
    w.work = Range { from: w.work.from.min(WORK_MAX), to: w.work.to.min(WORK_MAX) };
    plan
}

/// Cuts the holder off so that it reaches a bare majority, which contains the faulty nodes.
fn cut_off(plan: &Plan, faulty: &BTreeSet<&NodeName>, lasting: Duration) -> Step {
    let others = plan.lock_nodes.iter().filter(|node| !faulty.contains(node));
    let reached = (plan.lock_nodes.len() / 2 + 1).saturating_sub(faulty.len());
    let from = others.skip(reached).cloned().collect();
    let fault = Fault::new(Partition::default(), lasting).on_links(Direction::Both, from);
    Step { id: FaultId(0), fault, target: Target::Node(HOLDER.into()), when: When::At(Duration::ZERO) }
}

#[cfg(test)]
mod tests {
    use history::{ClockChange, WhichClock, fault::Clock};

    use super::*;
    use crate::explore::fixtures::{cut, plan};

    fn jump(id: u32, node: &str) -> Step {
        let clock = Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(900) };
        let fault = Fault::new(clock, ms(1_700));
        Step { id: FaultId(id), fault, target: Target::Node(node.into()), when: When::At(ms(1_234)) }
    }

    #[test]
    fn one_clock_of_five_jumps_while_a_client_holds_on_a_bare_majority() {
        let mut plan = plan();
        plan.schedule = vec![jump(1, "redis-3"), cut(2, "redis-1", &["worker-2"], 1_000)];
        plan.workload.keys = 4;
        let plan = &hold_and_wait(&plan)[0];
        let links = plan.schedule[0].fault.links.as_ref().unwrap();
        assert_eq!(links.from, ["redis-4", "redis-5"].map(NodeName::from), "it holds on 1, 2, and 3");
        assert_eq!(plan.schedule[0].target, Target::Node("worker-1".into()));
        assert_eq!(plan.schedule[1].when, When::WhileWaits(WaitId(1)));
        assert_eq!(plan.schedule.len(), 2, "other cuts would disturb the hold");
        assert_eq!(plan.waits[0].until, Until::AnotherWrote);
        assert_eq!(plan.workload.keys, 1, "a write to another key would end the wait");
    }

    #[test]
    fn a_faulty_majority_needs_no_cut() {
        let mut plan = plan();
        plan.schedule = (1..=3).map(|n| jump(n, &format!("redis-{n}"))).collect();
        for plan in hold_and_wait(&plan) {
            assert!(plan.schedule.iter().all(|step| step.when == When::WhileWaits(WaitId(1))));
            assert_eq!(plan.validate(), Ok(()));
        }
    }

    #[test]
    fn a_plan_without_faulty_lock_nodes_is_not_changed() {
        let mut plan = plan();
        plan.schedule = vec![cut(1, "redis-1", &[], 1_000)];
        assert_eq!(hold_and_wait(&plan), []);
    }
}
