//! Ways to make a violation by faults of lock nodes come whatever the seed: what matters is when they come relative to a hold, who holds, and on
//! which nodes. So one worker holds and waits before its write, and the faults come meanwhile.

use std::{collections::BTreeSet, time::Duration};

use history::{Direction, Fault, FaultId, NodeName, Plan, Point, Range, Step, Target, Until, Wait, WaitId, When};

use super::{
    jitter::{jump_mut, lasting_mut},
    moves::{is_of_worker, ms, runnable, with_schedule},
};

/// Whose hold it is.
const HOLDER: &str = "worker-1";
/// By then the holder is cut off from the nodes on which it shall not hold.
const SETTLED: Duration = ms(1_000);
/// A node that is down is no node that grants: it is back after so long.
const BACK_AFTER_MAX: Duration = ms(100);

/// Work between read and write, of which there is no lack.
const WORK_MAX: Duration = ms(50);

/// On which nodes the holder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// On all that answer.
    All,
    /// On a majority that no node can leave, with the struck ones in it.
    BareMajority,
}

/// One worker holds and waits until another one wrote: the faults of lock nodes come while it waits.
pub fn held(plan: &Plan) -> Vec<Plan> {
    let struck: BTreeSet<&NodeName> = plan.schedule.iter().filter_map(|step| struck(plan, step)).collect();
    if struck.is_empty() || !plan.waits.is_empty() {
        return Vec::new();
    }
    let majority = plan.lock_nodes.len() / 2 + 1;
    let reaches = if struck.len() >= majority { vec![Reach::All] } else { vec![Reach::BareMajority, Reach::All] };
    let mut leases = vec![plan.lease, ms(2_000), ms(5_000)];
    leases.retain(|lease| *lease >= plan.lease);
    leases.dedup();
    let plans = leases.into_iter().flat_map(|lease| reaches.iter().map(move |reach| (lease, *reach)));
    runnable(plan, plans.map(|(lease, reach)| of(plan, &struck, lease, reach)).collect())
}

/// The lock node that a step strikes at a time: itself, and not its links.
fn struck<'p>(plan: &Plan, step: &'p Step) -> Option<&'p NodeName> {
    let Target::Node(node) = &step.target else { return None };
    let is_meant = matches!(step.when, When::At(_)) && !step.fault.kind().is_of_links();
    (is_meant && plan.lock_nodes.contains(node) && !is_of_worker(plan, step)).then_some(node)
}

fn of(plan: &Plan, nodes: &BTreeSet<&NodeName>, lease: Duration, reach: Reach) -> Plan {
    let mut schedule = Vec::new();
    let mut longest = Duration::ZERO;
    let mut seen = BTreeSet::new();
    for step in &plan.schedule {
        let Some(node) = struck(plan, step) else {
            let is_kept = reach == Reach::All || !step.fault.kind().is_of_links();
            schedule.extend(is_kept.then(|| step.clone()));
            continue;
        };
        // Twice on one node is once too often: it happens at one moment.
        if seen.insert((node, step.fault.kind())) {
            let fault = at_once(&step.fault, lease);
            longest = longest.max(fault.lasting());
            schedule.push(Step { fault, when: When::WhileWaits(WaitId(1)), ..step.clone() });
        }
    }
    let mut after = Duration::ZERO;
    let time = SETTLED + lease * 3 + longest;
    let time = Duration::from_secs(time.as_millis().div_ceil(1_000) as u64);
    if reach == Reach::BareMajority {
        schedule.insert(0, cut_off(plan, nodes, time));
        after = SETTLED;
    }
    let mut plan = Plan { time, lease, ..with_schedule(plan, schedule) };
    let (worker, point, until) = (HOLDER.into(), Point::BeforeWrite, Until::AnotherWrote);
    plan.waits = vec![Wait { id: WaitId(1), worker, point, until, at_most: lease, after }];
    let w = &mut plan.workload;
    // A write of another key would say nothing of this one.
    w.keys = 1;
    w.retry_delay = Range { from: ms(50), to: ms(50) };
    w.rate_per_s = w.rate_per_s.max(10.0);
    // All get the lock, soon and often: where it is always held, one that is not fair keeps it from the holder that is meant.
    w.work = Range { from: w.work.from.min(WORK_MAX), to: w.work.to.min(WORK_MAX) };
    plan
}

/// A fault after which the node grants what it had granted to another one, while that lease still lasts.
fn at_once(fault: &Fault, lease: Duration) -> Fault {
    let mut fault = fault.clone();
    if let Some(by) = jump_mut(&mut fault) {
        // One that is set back does its harm when that is healed, by a jump forwards.
        *by = by.abs().max(lease.as_millis() as i64 * 2);
    }
    if fault.kind().kills() {
        let back_after = lasting_mut(&mut fault);
        *back_after = (*back_after).min(BACK_AFTER_MAX);
    }
    fault
}

/// The holder reaches no more than a majority, with the struck nodes in it.
fn cut_off(plan: &Plan, struck: &BTreeSet<&NodeName>, lasting: Duration) -> Step {
    let others = plan.lock_nodes.iter().filter(|node| !struck.contains(node));
    let reached = (plan.lock_nodes.len() / 2 + 1).saturating_sub(struck.len());
    let from = others.skip(reached).cloned().collect();
    let fault = Fault::Partition { lasting, direction: Direction::Both, from, cut: history::Cut::Drop };
    Step { id: FaultId(0), fault, target: Target::Node(HOLDER.into()), when: When::At(Duration::ZERO) }
}

#[cfg(test)]
mod tests {
    use history::{ClockChange, WhichClock};

    use super::*;
    use crate::explore::scene::{cut, plan};

    fn jump(id: u32, node: &str) -> Step {
        let fault = Fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(900), lasting: ms(1_700) };
        Step { id: FaultId(id), fault, target: Target::Node(node.into()), when: When::At(ms(1_234)) }
    }

    #[test]
    fn one_clock_of_five_jumps_while_a_bare_majority_is_held() {
        let mut plan = plan();
        plan.schedule = vec![jump(1, "redis-3"), cut(2, "redis-1", &["worker-2"], 1_000)];
        let held = &held(&plan)[0];
        let Fault::Partition { from, .. } = &held.schedule[0].fault else { panic!("{:?}", held.schedule) };
        assert_eq!(*from, ["redis-4", "redis-5"].map(NodeName::from), "it holds on 1, 2, and 3");
        assert_eq!(held.schedule[0].target, Target::Node("worker-1".into()));
        assert_eq!(held.schedule[1].when, When::WhileWaits(WaitId(1)));
        assert_eq!(held.schedule.len(), 2, "other cuts would only be in the way");
        assert_eq!(held.waits[0].until, Until::AnotherWrote);
    }

    #[test]
    fn a_majority_that_is_struck_needs_no_cut() {
        let mut plan = plan();
        plan.schedule = (1..=3).map(|n| jump(n, &format!("redis-{n}"))).collect();
        for held in held(&plan) {
            assert!(held.schedule.iter().all(|step| step.when == When::WhileWaits(WaitId(1))));
            assert_eq!(held.validate(), Ok(()));
        }
    }

    #[test]
    fn where_no_lock_node_is_struck_nothing_is_changed() {
        let mut plan = plan();
        plan.schedule = vec![cut(1, "redis-1", &[], 1_000)];
        assert_eq!(held(&plan), []);
    }
}
