//! Property 9, measured: how soon after the heal of a fault each key is acquired again.

use std::{collections::hash_map, time::Duration};

use history::{Arm, Event, FaultId, FaultPhase, Plan, Stamp};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    faults::FaultRecord,
    holds::Attempt,
    judge::{Ending, Judge},
    per_key::PerKey,
    report::{Report, Violation, plural, seconds},
    run::{Run, millis},
    verdict::Verdict,
};

/// The time from the heal of a fault to the next acquisition of each key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecoveryVerdict {
    /// `measured`, or `n/a` if no fault was healed.
    pub verdict: Verdict,
    /// Faults that were healed.
    pub healed: u64,
    /// The median over all pairs of a healed fault and a key, from the heal to the next acquisition, in milliseconds.
    pub p50_ms: Option<f64>,
    /// The longest time from a heal to the next acquisition of a key, in milliseconds.
    pub longest_ms: Option<f64>,
    /// The fault after whose heal that was.
    pub longest_after: Option<FaultId>,
    /// Pairs of a healed fault and a key that no client acquired afterwards: the run ended first, or the key is stuck.
    pub unrecovered: u64,
    /// All pairs of a healed fault and a key, for pictures.
    #[serde(skip)]
    pub pairs: Vec<Recovered>,
}

/// A healed fault and a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// The fault.
    pub fault: FaultId,
    /// The heal.
    pub healed: Stamp,
    /// The time from the heal to the next acquisition of the key. None if there was none.
    pub lasted: Option<Duration>,
}

/// A heal since which a key was not acquired yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    fault: FaultId,
    healed: Stamp,
}

/// Measures recovery.
#[derive(Default)]
pub(crate) struct Recovery {
    healed: Vec<FaultId>,
    /// In a hierarchy: the keys that a client has tried to acquire. The holder of the parent also acts on keys that
    /// perhaps nobody ever locks.
    tried: PerKey<bool>,
    /// By key.
    waiting: FxHashMap<usize, Vec<Waiting>>,
    /// From heal to acquisition, after which fault, and its heal.
    recovered: Vec<(Duration, FaultId, Stamp)>,
}

impl Recovery {
    fn acquired(&mut self, hold: &Attempt, at: Stamp) {
        let hash_map::Entry::Occupied(mut waiting) = self.waiting.entry(hold.key) else { return };
        let over = waiting.get_mut().extract_if(.., |waiting| waiting.healed < at);
        self.recovered.extend(over.map(|waiting| (at.since(waiting.healed), waiting.fault, waiting.healed)));
        if waiting.get().is_empty() {
            waiting.remove();
        }
    }

    fn pairs(&self) -> Vec<Recovered> {
        let over = self.recovered.iter().map(|(lasted, fault, healed)| (*fault, *healed, Some(*lasted)));
        let open = self.waiting.values().flatten().map(|waiting| (waiting.fault, waiting.healed, None));
        let mut pairs: Vec<Recovered> =
            over.chain(open).map(|(fault, healed, lasted)| Recovered { fault, healed, lasted }).collect();
        pairs.sort_by_key(|pair| (pair.healed, pair.fault, pair.lasted));
        pairs
    }
}

impl Judge for Recovery {
    const NAME: &str = "recovery";
    const ABOUT: &str = "How soon after the heal of a fault each key is acquired again: median and longest time.";
    type Verdict = RecoveryVerdict;

    fn new(_plan: &Plan) -> Recovery {
        Recovery::default()
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Fault { fault, phase: FaultPhase::Healed, .. } => {
                self.healed.push(*fault);
                let waiting = Waiting { fault: *fault, healed: entry.at };
                let is_locked = |key: &usize| run.parent.is_none() || self.tried.get(*key) == Some(&true);
                let keys = run.keys().filter(is_locked);
                keys.for_each(|key| self.waiting.entry(key).or_default().push(waiting));
            }
            Event::Acquire { attempt, .. } if run.parent.is_some() => {
                if let Some(attempt) = run.attempt(*attempt) {
                    *self.tried.of(attempt.key) = true;
                }
            }
            Event::Acquired { attempt, .. } if !self.waiting.is_empty() => {
                if let Some(hold) = run.attempt(*attempt) {
                    self.acquired(hold, entry.at);
                }
            }
            _ => {}
        }
    }

    fn finish(mut self, run: &Run, _ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        // A fault that the engine refused is healed all the same, and only then called unproved.
        let may_have_been_on = |fault: FaultId| run.faults.get(fault).is_some_and(FaultRecord::may_have_been_on);
        self.healed.retain(|fault| may_have_been_on(*fault));
        self.recovered.retain(|(_, fault, _)| may_have_been_on(*fault));
        self.waiting.values_mut().for_each(|waiting| waiting.retain(|waiting| may_have_been_on(waiting.fault)));
        self.recovered.sort_unstable();
        let median = self.recovered.get(self.recovered.len().saturating_sub(1) / 2);
        let longest = self.recovered.last();
        let recovery = RecoveryVerdict {
            verdict: if self.healed.is_empty() { Verdict::NotApplicable } else { Verdict::Measured },
            healed: self.healed.len() as u64,
            p50_ms: median.map(|(lasted, ..)| millis(*lasted)),
            longest_ms: longest.map(|(lasted, ..)| millis(*lasted)),
            longest_after: longest.map(|(_, fault, _)| *fault),
            unrecovered: self.waiting.values().map(Vec::len).sum::<usize>() as u64,
            pairs: self.pairs(),
        };
        vec![(None, recovery)]
    }
}

impl Report for RecoveryVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn figures(&self) -> String {
        let Some((p50, longest)) = self.p50_ms.zip(self.longest_ms) else {
            let is_empty = self.healed == 0;
            return if is_empty { "no fault was healed" } else { "no key was acquired after a heal" }.into();
        };
        let faults = plural(self.healed, "healed fault", "healed faults");
        let unrecovered = match self.unrecovered {
            0 => String::new(),
            // One key may stay away after several faults.
            n => format!("; {} not before the run ended", plural(n, "time", "times")),
        };
        format!("key acquired again after {faults}: p50 {}, longest {}{unrecovered}", seconds(p50), seconds(longest))
    }

    fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{history_builder::HistoryBuilder, properties::Property};

    fn measured(builder: &HistoryBuilder) -> RecoveryVerdict {
        match builder.verdicts().properties.get("recovery") {
            Some(Property::Recovery(found)) => found.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn recovery_counts_from_the_heal_to_the_next_acquisition() {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).pause(1, "redis-1", 100, 500).release(1, 510);
        builder.acquire(2, 2, 520, 700, 42).release(2, 710).acquire(3, 1, 720, 730, 43).release(3, 740);
        let found = measured(&builder);
        assert_eq!((found.verdict, found.healed, found.unrecovered), (Verdict::Measured, 1, 0));
        assert_eq!((found.p50_ms, found.longest_ms, found.longest_after), (Some(200.0), Some(200.0), Some(FaultId(1))));
        let [pair] = found.pairs.as_slice() else { panic!("{:?}", found.pairs) };
        assert_eq!((pair.fault, pair.lasted), (FaultId(1), Some(Duration::from_millis(200))));
    }

    #[test]
    fn the_median_of_two_recoveries_is_not_the_longer_one() {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).pause(1, "redis-1", 100, 500).release(1, 510);
        builder.acquire(2, 2, 520, 700, 42).pause(2, "redis-1", 1_000, 1_400).release(2, 1_410);
        builder.acquire(3, 1, 1_420, 1_800, 43).release(3, 1_810);
        let found = measured(&builder);
        assert_eq!((found.pairs.len(), found.longest_ms), (2, Some(400.0)));
        assert!(found.p50_ms < found.longest_ms, "{found:?}");
    }

    #[test]
    fn a_key_that_is_not_acquired_again_is_counted_apart() {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).pause(1, "redis-1", 100, 500).release(1, 510);
        let found = measured(&builder);
        assert_eq!((found.longest_ms, found.unrecovered), (None, 1));
        let found = measured(builder.pause(2, "redis-1", 600, 800));
        assert_eq!((found.longest_ms, found.unrecovered), (None, 2), "once for each healed fault");
    }

    #[test]
    fn a_key_that_is_not_acquired_after_two_faults_is_not_called_two_keys() {
        let mut builder = HistoryBuilder::new();
        builder.plan.workload.keys = 2;
        builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 1, 30, 40, 42).with_key(2, "k1").release(2, 50);
        builder.pause(1, "redis-1", 100, 500).pause(2, "redis-1", 600, 700).acquire(3, 2, 800, 900, 43).release(3, 910);
        let found = measured(&builder);
        let again = "key acquired again after 2 healed faults: p50 0.20 s, longest 0.40 s";
        assert_eq!(found.figures(), format!("{again}; 2 times not before the run ended"), "k1 alone");
    }

    #[test]
    fn a_key_that_nobody_wants_at_the_heal_is_measured_too() {
        // Worker 1 goes on with k1 at 30, and releases it at 50. At the heal, at 500, nobody wants k0.
        let mut builder = HistoryBuilder::new();
        builder.plan.workload.keys = 2;
        builder.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 1, 30, 40, 42).with_key(2, "k1").release(2, 50);
        builder.pause(1, "redis-1", 100, 500).acquire(3, 2, 600, 700, 43).release(3, 710);
        let found = measured(&builder);
        assert_eq!((found.longest_ms, found.unrecovered), (Some(200.0), 1), "k1 is not acquired again");
    }

    #[test]
    fn a_key_that_no_client_has_tried_to_acquire_needs_no_recovery() {
        // The holder of the parent k0 acts on its child k1, which nobody ever locks.
        let mut builder = HistoryBuilder::new();
        (builder.plan.workload.keys, builder.plan.workload.hierarchy) = (2, 1.0);
        builder.alter_requests(|event| {
            if let Event::Admission { key, .. } = event {
                *key = "k1".into();
            }
        });
        builder.acquire(1, 1, 0, 10, 41).read(1, 1, 20, 30).release(1, 40).pause(1, "redis-1", 100, 500);
        builder.acquire(2, 2, 600, 700, 42).release(2, 710);
        let found = measured(&builder);
        assert_eq!((found.healed, found.unrecovered, found.longest_ms), (1, 0, Some(200.0)));
        assert_eq!(found.figures(), "key acquired again after 1 healed fault: p50 0.20 s, longest 0.20 s");
    }

    #[test]
    fn a_kill_that_the_engine_refused_needs_no_recovery() {
        let mut builder = HistoryBuilder::new();
        builder.plan.workload.keys = 2;
        builder.acquire(1, 1, 0, 10, 41).with_key(1, "k1").release(1, 50).acquire(2, 2, 60, 70, 42).release(2, 80);
        builder.kill_refused(1, "worker-1", 100, 150).acquire(3, 2, 400, 410, 43).release(3, 420);
        let found = measured(&builder);
        assert_eq!((found.verdict, found.healed, found.unrecovered), (Verdict::NotApplicable, 0, 0));
        assert_eq!((found.pairs, found.longest_ms), (Vec::new(), None));
    }

    #[test]
    fn without_a_healed_fault_there_is_nothing_to_measure() {
        let mut builder = HistoryBuilder::new();
        builder.acquire(1, 1, 0, 10, 41).release(1, 20);
        assert_eq!(measured(&builder).verdict, Verdict::NotApplicable);
    }
}
