use history::{Fault, FaultId, FaultKind, FaultPhase, NodeName, Point, Step, Target, WaitId, fault};

use super::*;
use crate::history_builder::{HistoryBuilder, count};
use crate::properties::Property;

fn missing(builder: &HistoryBuilder) -> Vec<String> {
    match builder.verdicts().properties.get("activity") {
        Some(Property::Activity(found)) => {
            assert_eq!(found.verdict == Verdict::Inconclusive, !found.reasons.is_empty());
            found.reasons.clone()
        }
        other => panic!("{other:?}"),
    }
}

fn pause(when: When) -> Step {
    let fault = Fault::new(fault::Pause {}, std::time::Duration::from_secs(3));
    Step { id: FaultId(1), fault, target: Target::Node(NodeName::from("worker-1")), when }
}

#[test]
fn each_threshold_is_reached_at_its_value() {
    let mut builder = HistoryBuilder::new();
    builder.plan.activity = history::Activity { holds: 2, clients: 2, refused: 1 };
    builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 50);
    builder.try_to_acquire(3, 2, 60).acquire_failed(3, 70, FailureReason::Held, Vec::new());
    assert_eq!(missing(&builder), Vec::<String>::new());
    builder.plan.activity = history::Activity { holds: 3, clients: 3, refused: 2 };
    assert_eq!(
        missing(&builder),
        [
            "only 2 holds, 3 are needed",
            "only 2 clients with holds of one key, 3 are needed",
            "only 1 attempt refused as held, 2 are needed",
        ]
    );
}

#[test]
fn one_of_a_kind_is_told_in_the_singular() {
    let mut builder = HistoryBuilder::new();
    builder.plan.activity = history::Activity { holds: 1, clients: 0, refused: 2 };
    builder.try_to_acquire(1, 1, 0).acquire_failed(1, 10, FailureReason::Held, Vec::new());
    assert_eq!(missing(&builder), ["only 0 holds, 1 is needed", "only 1 attempt refused as held, 2 are needed"]);
}

#[test]
fn clients_with_large_numbers_count_as_others_do() {
    let mut builder = HistoryBuilder::new();
    builder.plan.workload.clients_per_worker = 100_000;
    for (hold, client) in [(1, 0), (2, 70_000), (3, 65_535), (4, 70_000), (5, 65_536)] {
        let at = hold * 100;
        builder.acquire_in("worker-1", hold, client, at, at + 10, 40 + hold).release(hold, at + 20);
    }
    assert_eq!(count(&builder.verdicts(), "activity.clients"), 4);
}

#[test]
fn clients_that_each_have_their_own_key_do_not_contend() {
    let mut builder = HistoryBuilder::new();
    (builder.plan.workload.keys, builder.plan.activity.clients) = (2, 2);
    builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 50).of_key(2, "k1");
    assert_eq!(missing(&builder), ["only 1 client with holds of one key, 2 are needed"]);
}

#[test]
fn the_summary_names_the_clients_of_all_keys() {
    // Each of the two clients has its own key, and one of them has a large number.
    let mut builder = HistoryBuilder::new();
    (builder.plan.workload.keys, builder.plan.workload.clients_per_worker) = (2, 100_000);
    builder.acquire(1, 1, 0, 10, 41).release(1, 20);
    builder.acquire_in("worker-1", 2, 70_000, 30, 40, 42).release(2, 50).with_key(2, "k1");
    let verdicts = builder.verdicts();
    assert_eq!(count(&verdicts, "activity.clients"), 1);
    let figures = verdicts.properties.get("activity").map(|found| found.report().figures());
    assert_eq!(figures.as_deref(), Some("2 holds by 2 clients, 0 attempts refused as held"));
}

#[test]
fn only_refusals_as_held_count() {
    let mut builder = HistoryBuilder::new();
    builder.try_to_acquire(1, 1, 0).acquire_failed(1, 10, FailureReason::NoMajority, Vec::new());
    assert_eq!(count(&builder.verdicts(), "activity.refused"), 0);
}

#[test]
fn an_attempt_that_waits_behind_another_counts_once() {
    let mut builder = HistoryBuilder::new();
    let behind = |attempt| Event::Behind { attempt: history::HoldId(attempt) };
    builder.plan.activity = history::Activity { holds: 0, clients: 0, refused: 3 };
    builder.try_to_acquire(1, 1, 0).event("worker-1", 10, behind(1)).event("worker-1", 20, behind(1));
    builder.acquire_failed(1, 30, FailureReason::Held, Vec::new()).try_to_acquire(2, 2, 40);
    builder.acquire_failed(2, 50, FailureReason::Held, Vec::new()).try_to_acquire(3, 2, 60).acquire_failed(
        3,
        70,
        FailureReason::Cancelled,
        Vec::new(),
    );
    assert_eq!(missing(&builder), ["only 2 attempts refused as held, or waiting behind another, 3 are needed"]);
}

#[test]
fn a_placed_fault_must_fire() {
    let mut builder = HistoryBuilder::new();
    builder.plan.schedule = vec![pause(When::AtPoint(Point::BeforeWrite))];
    assert_eq!(
        missing(&builder),
        ["the pause placed at before-write never fired: no client that was armed came there"]
    );
    builder.pause(1, "worker-1", 100, 3_100);
    assert_eq!(missing(&builder), Vec::<String>::new());
}

#[test]
fn every_fault_that_is_not_random_must_fire() {
    let second = std::time::Duration::from_secs(1);
    for (when, expected) in [
        (When::Healed(FaultId(2)), "the pause that comes when fault 2 is healed never fired"),
        (When::WhileWaits(WaitId(7)), "the pause that goes with wait 7 never fired"),
        (When::At(second), "the pause due at 1s never fired: it found no target in time"),
    ] {
        // Another fault works.
        let mut builder = HistoryBuilder::new();
        let works = Step { id: FaultId(2), ..pause(When::AfterHeal(second)) };
        builder.plan.schedule = vec![pause(when), works];
        assert_eq!(missing(builder.pause(2, "worker-1", 100, 3_100)), [expected]);
    }
}

#[test]
fn of_random_faults_one_must_have_been_seen_to_work() {
    let after = When::AfterHeal(std::time::Duration::from_secs(1));
    let mut builder = HistoryBuilder::new();
    builder.plan.schedule = vec![pause(after), Step { id: FaultId(2), ..pause(after) }];
    assert_eq!(missing(&builder), ["none of the planned faults was seen to work"]);
    builder.unplanned(7, FaultKind::Partition, "redis-1", (20, 40), 60);
    assert_eq!(missing(&builder), ["none of the planned faults was seen to work"], "fault 7 is of no plan");
    builder.pause(1, "worker-1", 100, 3_100);
    assert_eq!(missing(&builder), Vec::<String>::new(), "the second one did not come up in time");
}

#[test]
fn a_fault_that_was_requested_must_be_proved_and_proved_healed() {
    let (kind, node) = (FaultKind::Pause, "worker-1");
    let mut builder = HistoryBuilder::new();
    builder.fault(1, kind, node, 10, FaultPhase::Requested { asked_ns: 1, hold: None });
    assert_eq!(missing(&builder), ["the pause of worker-1 was neither proved nor did it miss its target"]);
    builder.fault(1, kind, node, 20, FaultPhase::Proved { from: history::Stamp(1), to: history::Stamp(2) });
    assert_eq!(missing(&builder), ["nothing shows that the pause of worker-1 was healed"]);
    builder.fault(1, kind, node, 30, FaultPhase::HealProved);
    assert_eq!(missing(&builder), Vec::<String>::new());
}

#[test]
fn a_missed_target_is_counted_and_needs_no_proof() {
    let (kind, node) = (FaultKind::Pause, "worker-1");
    let mut builder = HistoryBuilder::new();
    builder.fault(1, kind, node, 10, FaultPhase::Requested { asked_ns: 1, hold: None });
    builder.fault(1, kind, node, 20, FaultPhase::MissedTarget);
    assert_eq!(missing(&builder), Vec::<String>::new());
    assert_eq!(count(&builder.verdicts(), "facts.missed_target"), 1);
    // If it was on, it must be off again.
    builder.fault(1, kind, node, 15, FaultPhase::Injected);
    assert_eq!(missing(&builder), ["nothing shows that the pause of worker-1 was healed"]);
    builder.fault(1, kind, node, 30, FaultPhase::HealProved);
    assert_eq!(missing(&builder), Vec::<String>::new());
}

#[test]
fn planned_faults_are_counted_by_their_proofs_and_others_apart() {
    // Fault 1 is proved, fault 2 is not, and nobody planned fault 7.
    let mut builder = HistoryBuilder::new();
    builder.pause(1, "worker-1", 100, 3_100).unplanned(7, FaultKind::Partition, "redis-1", (20, 40), 60);
    builder.fault(2, FaultKind::Pause, "worker-2", 10, FaultPhase::Requested { asked_ns: 1, hold: None });
    builder.fault(2, FaultKind::Pause, "worker-2", 20, FaultPhase::Unproved { why: "it ran on".into() });
    let verdicts = builder.verdicts();
    let counts = ["requested", "proved", "unproved"].map(|what| count(&verdicts, &format!("facts.faults_{what}")));
    assert_eq!((counts, count(&verdicts, "facts.unplanned_faults")), ([2, 1, 1], 1));
}
