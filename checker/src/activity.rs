//! Property 8: the run saw enough to say anything.

use history::{ClientId, Event, When, Why};
use rustc_hash::FxHashSet;

use crate::{
    faults::Line,
    judge::{Ending, Judge},
    lock::millis,
    merge::Entry,
    property::{ActivityVerdict, Property},
    run::Run,
    verdict::{Facts, LongestStall, Verdict},
};

/// Judges activity.
#[derive(Default)]
pub(crate) struct Activity {
    /// Clients that had holds, by key.
    clients: Vec<FxHashSet<ClientId>>,
    refused: u64,
    /// Attempts that waited behind another.
    waited: u64,
}

impl Judge for Activity {
    fn see(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                let Some(hold) = run.attempt(*attempt) else { return };
                if self.clients.len() <= hold.key {
                    self.clients.resize_with(hold.key + 1, FxHashSet::default);
                }
                self.clients[hold.key].insert(hold.client);
            }
            // Once an attempt: one that waited has been counted when it began to.
            Event::AcquireFailed { why: Why::Held, attempt, .. } => {
                let has_waited = run.attempt(*attempt).is_some_and(|a| a.behind.is_some());
                self.refused += u64::from(!has_waited);
            }
            Event::Behind { attempt } => {
                let first = run.attempt(*attempt).and_then(|a| a.behind);
                self.waited += u64::from(first.is_some_and(|first| first.seq == entry.seq));
            }
            _ => {}
        }
    }

    fn verdicts(self: Box<Self>, run: &Run, ending: &Ending, facts: &mut Facts) -> Vec<(String, Property)> {
        let clients = self.clients.iter().map(|clients| clients.len() as u64).max().unwrap_or(0);
        let wanted = run.plan.activity;
        let refused = self.refused + self.waited;
        let what = if self.waited > 0 {
            "attempts refused as held, or waiting behind another"
        } else {
            "attempts refused as held"
        };
        let mut reasons: Vec<String> = [
            (run.holds, u64::from(wanted.holds), "holds"),
            (clients, u64::from(wanted.clients), "clients with holds of one key"),
            (refused, u64::from(wanted.refused), what),
        ]
        .into_iter()
        .filter(|(seen, wanted, _)| seen < wanted)
        .map(|(seen, wanted, what)| format!("only {seen} {what}, {wanted} are needed"))
        .collect();
        reasons.extend(run.faults.iter().filter_map(|(_, line)| fault_missing(line)));
        reasons.extend(schedule_missing(run));
        let requested = |line: &&Line| line.requested.is_some();
        let count =
            |is: &dyn Fn(&Line) -> bool| run.faults.iter().map(|(_, line)| line).filter(|l| is(l)).count() as u64;
        facts.holds = run.holds;
        facts.refused_as_held = refused;
        facts.first_operation_ms = run.first_operation.map(|at| run.ms(at));
        facts.faults_requested = count(&|line| requested(&line));
        facts.faults_proved = count(&|line| line.proved.is_some());
        facts.faults_unproved = count(&|line| line.unproved.is_some());
        facts.missed_target = count(&|line| line.is_missed);
        facts.longest_stall =
            run.stalls.longest.as_ref().map(|(d, process)| LongestStall { process: process.clone(), ms: millis(*d) });
        let verdict = Verdict::judged(false, !ending.is_whole || !reasons.is_empty());
        let activity = ActivityVerdict { verdict, holds: run.holds, clients, refused, reasons };
        vec![("activity".into(), Property::Activity(activity))]
    }
}

/// What is missing of a fault that was requested: one that nobody saw says nothing.
fn fault_missing(line: &Line) -> Option<String> {
    line.requested?;
    let name = line.name();
    if let Some(why) = &line.unproved {
        return Some(format!("the {name} was not proved: {why}"));
    }
    if line.proved.is_none() && !line.is_missed {
        return Some(format!("the {name} was neither proved nor did it miss its target"));
    }
    let was_on = line.proved.is_some() || line.injected.is_some();
    (was_on && !line.is_heal_proved).then(|| format!("nothing shows that the {name} was healed"))
}

/// What is missing of the schedule: placed steps must fire; of random ones, one must have been seen to work.
fn schedule_missing(run: &Run) -> Vec<String> {
    let mut missing = Vec::new();
    for step in &run.plan.schedule {
        let is_requested = run.faults.get(step.id).is_some_and(|line| line.requested.is_some());
        let kind = step.fault.kind();
        match step.when {
            _ if is_requested => {}
            When::AtPoint(point) => {
                missing.push(format!("the {kind} placed at {point} never fired: no client that was armed came there"));
            }
            When::WhileWaits(wait) => missing.push(format!("the {kind} that goes with wait {} never fired", wait.0)),
            When::Healed(other) => {
                missing.push(format!("the {kind} that comes when fault {} is healed never fired", other.0));
            }
            When::At(at) => missing.push(format!("the {kind} due at {at:?} never fired: it found no target in time")),
            // A schedule is drawn longer than the time: what does not come up is not missing.
            When::AfterHeal(_) => {}
        }
    }
    let is_any_proved = run.faults.iter().any(|(_, line)| line.proved.is_some());
    if missing.is_empty() && !run.plan.schedule.is_empty() && !is_any_proved {
        missing.push("none of the planned faults was seen to work".into());
    }
    missing
}

#[cfg(test)]
mod tests {
    use history::{Fault, FaultId, FaultKind, FaultPhase, NodeName, Point, Step, Target};

    use super::*;
    use crate::scene::{Scene, count};

    fn missing(scene: &Scene) -> Vec<String> {
        match scene.verdicts().properties.get("activity") {
            Some(Property::Activity(found)) => {
                assert_eq!(found.verdict == Verdict::Inconclusive, !found.reasons.is_empty());
                found.reasons.clone()
            }
            other => panic!("{other:?}"),
        }
    }

    fn pause(when: When) -> Step {
        let fault = Fault::Pause { lasting: std::time::Duration::from_secs(3) };
        Step { id: FaultId(1), fault, target: Target::Node(NodeName::from("worker-1")), when }
    }

    #[test]
    fn each_threshold_is_reached_at_its_value() {
        let mut scene = Scene::new();
        scene.plan.activity = history::Activity { holds: 2, clients: 2, refused: 1 };
        scene.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 50);
        scene.try_to_acquire(3, 2, 60).acquire_failed(3, 70, Why::Held, Vec::new());
        assert_eq!(missing(&scene), Vec::<String>::new());
        scene.plan.activity = history::Activity { holds: 3, clients: 3, refused: 2 };
        assert_eq!(
            missing(&scene),
            [
                "only 2 holds, 3 are needed",
                "only 2 clients with holds of one key, 3 are needed",
                "only 1 attempts refused as held, 2 are needed",
            ]
        );
    }

    #[test]
    fn only_refusals_as_held_count() {
        let mut scene = Scene::new();
        scene.try_to_acquire(1, 1, 0).acquire_failed(1, 10, Why::NoMajority, Vec::new());
        assert_eq!(count(&scene.verdicts(), "activity.refused"), 0);
    }

    #[test]
    fn an_attempt_that_waits_behind_another_counts_once() {
        let mut scene = Scene::new();
        let behind = |attempt| Event::Behind { attempt: history::HoldId(attempt) };
        scene.plan.activity = history::Activity { holds: 0, clients: 0, refused: 3 };
        scene.try_to_acquire(1, 1, 0).event("worker-1", 10, behind(1)).event("worker-1", 20, behind(1));
        scene.acquire_failed(1, 30, Why::Held, Vec::new()).try_to_acquire(2, 2, 40);
        scene.acquire_failed(2, 50, Why::Held, Vec::new()).try_to_acquire(3, 2, 60).acquire_failed(
            3,
            70,
            Why::Cancelled,
            Vec::new(),
        );
        assert_eq!(missing(&scene), ["only 2 attempts refused as held, or waiting behind another, 3 are needed"]);
    }

    #[test]
    fn a_placed_fault_must_fire() {
        let mut scene = Scene::new();
        scene.plan.schedule = vec![pause(When::AtPoint(Point::BeforeWrite))];
        assert_eq!(
            missing(&scene),
            ["the pause placed at before-write never fired: no client that was armed came there"]
        );
        scene.pause(1, "worker-1", 100, 3_100);
        assert_eq!(missing(&scene), Vec::<String>::new());
    }

    #[test]
    fn of_random_faults_one_must_have_been_seen_to_work() {
        let after = When::AfterHeal(std::time::Duration::from_secs(1));
        let mut scene = Scene::new();
        scene.plan.schedule = vec![pause(after), Step { id: FaultId(2), ..pause(after) }];
        assert_eq!(missing(&scene), ["none of the planned faults was seen to work"]);
        scene.pause(1, "worker-1", 100, 3_100);
        assert_eq!(missing(&scene), Vec::<String>::new(), "the second one did not come up in time");
    }

    #[test]
    fn a_fault_that_was_requested_must_be_proved_and_proved_healed() {
        let (kind, node) = (FaultKind::Pause, "worker-1");
        let mut scene = Scene::new();
        scene.fault(1, kind, node, 10, FaultPhase::Requested { asked_ns: 1, hold: None });
        assert_eq!(missing(&scene), ["the pause of worker-1 was neither proved nor did it miss its target"]);
        scene.fault(1, kind, node, 20, FaultPhase::Proved { from: history::Stamp(1), to: history::Stamp(2) });
        assert_eq!(missing(&scene), ["nothing shows that the pause of worker-1 was healed"]);
        scene.fault(1, kind, node, 30, FaultPhase::HealProved);
        assert_eq!(missing(&scene), Vec::<String>::new());
    }

    #[test]
    fn a_missed_target_is_counted_and_needs_no_proof() {
        let (kind, node) = (FaultKind::Pause, "worker-1");
        let mut scene = Scene::new();
        scene.fault(1, kind, node, 10, FaultPhase::Requested { asked_ns: 1, hold: None });
        scene.fault(1, kind, node, 20, FaultPhase::MissedTarget);
        assert_eq!(missing(&scene), Vec::<String>::new());
        assert_eq!(count(&scene.verdicts(), "facts.missed_target"), 1);
    }
}
