//! Runs whose random numbers change at an instant.

use std::collections::BTreeSet;

use history::{Event, Plan, Record, Stamp};
use sim::{Redraw, Setup, simulate};

use crate::plans::{history, plan};

const FAULTS: [(&str, &str); 3] = [
    ("redlock", "pause,clock,partition,loss,delay:any-worker"),
    ("redis", "kill,pause,powerloss,delay:any-worker,kill:resource"),
    ("etcd", "pause,kill,clock,partition,pause:any-lock-node"),
];

fn redrawn(plan: &Plan, backend: &str, from: Stamp, resource_bug: Option<&str>) -> Vec<Record> {
    let mut records = Vec::new();
    let redraw = Some(Redraw { from, seed: 99 });
    let setup = Setup { run: "test", plan, backend, resource_bug, redraw, with_truth: false };
    simulate(&setup, &mut |record| records.push(record)).expect("it runs to its end");
    records
}

fn lines(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| serde_json::to_string(record).unwrap()).collect()
}

#[test]
fn up_to_the_instant_the_history_is_the_same_byte_for_byte() {
    for (seed, (backend, nemesis)) in FAULTS.into_iter().enumerate() {
        let plan = plan(backend, nemesis, seed as u64);
        let before = history(&plan, backend);
        let last = before.iter().map(|record| record.at).max().unwrap();
        for part in 1..8 {
            let from = Stamp(1_000_000_000 + (last.0 - 1_000_000_000) / 8 * part);
            let after = redrawn(&plan, backend, from, None);
            let same = before.iter().position(|record| record.at >= from).unwrap();
            assert!(same > 10, "{backend}, {from:?}");
            assert!(lines(&before[..same]) == lines(&after[..same]), "{backend}, {from:?}");
            assert_ne!(lines(&before), lines(&after), "{backend}, {from:?}");
        }
        assert_eq!(lines(&redrawn(&plan, backend, last.plus(std::time::Duration::from_secs(1)), None)), lines(&before));
    }
}

/// The instants of all events that a client or the resource decides the time of.
fn instants(records: &[Record]) -> BTreeSet<Stamp> {
    let is_free = |record: &&Record| {
        matches!(
            record.event,
            Event::Acquire { .. }
                | Event::Acquired { .. }
                | Event::AcquireFailed { .. }
                | Event::Admission { .. }
                | Event::WriteOk { .. }
                | Event::Released { .. }
                | Event::Renewed { .. }
                | Event::OrderDone { .. }
        )
    };
    records.iter().filter(is_free).map(|record| record.at).collect()
}

#[test]
fn a_redraw_from_the_start_changes_every_instant() {
    for (seed, (backend, nemesis)) in FAULTS.into_iter().enumerate() {
        let plan = plan(backend, nemesis, seed as u64);
        let (one, other) = (instants(&history(&plan, backend)), instants(&redrawn(&plan, backend, Stamp(0), None)));
        assert!(one.len() > 50 && other.len() > 50, "{backend}: {} and {}", one.len(), other.len());
        assert_eq!(one.intersection(&other).count(), 0, "{backend}");
        // Nothing is left of the seed of the plan.
        let with_other_seed = Plan { seed: plan.seed + 1_000, ..plan };
        assert_eq!(instants(&redrawn(&with_other_seed, backend, Stamp(0), None)), other, "{backend}");
    }
}

#[test]
fn a_planted_bug_that_draws_is_drawn_anew_too() {
    let plan = plan("redis", "kill:resource", 4);
    let refused = |records: Vec<Record>| -> Vec<u64> {
        let refusals = records.into_iter().filter_map(|record| match record.event {
            Event::Admission { number, arms, .. } if arms.iter().any(|arm| !arm.admitted) => Some(number),
            _ => None,
        });
        refusals.collect()
    };
    let with_bug = |from| refused(redrawn(&plan, "redis", from, Some("refuses-at-random")));
    let other = Plan { seed: plan.seed + 1_000, ..plan.clone() };
    let of_other = refused(redrawn(&other, "redis", Stamp(0), Some("refuses-at-random")));
    assert_eq!(with_bug(Stamp(0)), of_other);
    assert!(!of_other.is_empty());
}
