//! Faults, stalls and changes of clocks on a timeline.

use std::collections::{BTreeMap, HashMap};

use history::{Event, Fault, FaultId, FaultKind, FaultPhase, NodeName, ProcessName, Record, Stamp};

use super::model::{ClockStep, FaultSpan, LeftOut, Stall};

/// The most faults that are kept.
const FAULTS: usize = 3_000;
/// The most stalls that are kept: the longest ones.
const STALLS: usize = 2_000;
/// The most changes of clocks that are kept.
const CLOCKS: usize = 2_000;
/// A smaller change of a clock is normal.
const CHANGE_NS: u64 = 1_000_000;

/// Collects faults, stalls and changes of clocks.
#[derive(Debug, Default)]
pub struct Disturbances {
    faults: BTreeMap<FaultId, FaultSpan>,
    planned: HashMap<FaultId, Fault>,
    left_out: LeftOut,
    stalls: Vec<Stall>,
    clocks: Vec<ClockStep>,
    /// The first and the last sample of each process.
    samples: HashMap<ProcessName, [(i64, i64); 2]>,
    /// Kills of nodes, by the stamp of the request.
    kills: Vec<(NodeName, Stamp)>,
}

impl Disturbances {
    /// Adds a record.
    pub fn add(&mut self, record: &Record) {
        match &record.event {
            Event::Plan { plan, .. } => {
                self.planned = plan.schedule.iter().map(|step| (step.id, step.fault.clone())).collect();
            }
            Event::Fault { fault, kind, node, phase } => self.fault(*fault, *kind, node, phase, record.at),
            Event::Stall { from, to, late } => {
                self.stalls.push(Stall { process: record.process.clone(), from: *from, to: *to, late: *late });
                if self.stalls.len() >= 2 * STALLS {
                    self.keep_longest_stalls();
                }
            }
            Event::Clocks { wall_ns, boot_ns } => self.clocks(record, (*wall_ns, *boot_ns)),
            _ => {}
        }
    }

    fn fault(&mut self, id: FaultId, kind: FaultKind, node: &NodeName, phase: &FaultPhase, at: Stamp) {
        if !self.faults.contains_key(&id) && self.faults.len() >= FAULTS {
            self.left_out.faults += u64::from(matches!(phase, FaultPhase::Requested { .. }));
            return;
        }
        if kind.kills() && matches!(phase, FaultPhase::Requested { .. }) {
            self.kills.push((node.clone(), at));
        }
        let fault = self.faults.entry(id).or_insert_with(|| FaultSpan {
            id,
            kind,
            node: node.clone(),
            planned: self.planned.get(&id).cloned(),
            requested: None,
            injected: None,
            heal_requested: None,
            healed: None,
            heal_proved: None,
            proved: None,
            unproved: None,
            is_missed: false,
            is_unplanned: false,
        });
        match phase {
            FaultPhase::Requested { .. } => fault.requested = fault.requested.or(Some(at)),
            FaultPhase::Injected => fault.injected = Some(at),
            FaultPhase::HealRequested => fault.heal_requested = Some(at),
            FaultPhase::Healed => fault.healed = Some(at),
            FaultPhase::HealProved => fault.heal_proved = Some(at),
            FaultPhase::Proved { from, to } => fault.proved = Some((*from, *to)),
            FaultPhase::Unproved { why } => fault.unproved = Some(why.clone()),
            FaultPhase::MissedTarget => fault.is_missed = true,
            FaultPhase::Unplanned { since } => {
                (fault.is_unplanned, fault.requested, fault.injected) = (true, Some(*since), Some(at));
                fault.planned = None;
            }
            FaultPhase::UnplannedOver { since } => {
                (fault.heal_requested, fault.healed) = (Some(*since), Some(at));
            }
            FaultPhase::Unsynced { .. } | FaultPhase::ConnectionsReset { .. } => {}
        }
    }

    fn clocks(&mut self, record: &Record, sample: (i64, i64)) {
        let [first, last] = self.samples.entry(record.process.clone()).or_insert([sample; 2]);
        // A record may contain any two numbers: their distance need not be an `i64`.
        if sample.0.abs_diff(last.0) < CHANGE_NS && sample.1.abs_diff(last.1) < CHANGE_NS {
            return;
        }
        *last = sample;
        if self.clocks.len() >= CLOCKS {
            self.left_out.clocks += 1;
            return;
        }
        let ms = |from: i64, to: i64| (i128::from(to) - i128::from(from)) as f64 / 1e6;
        let (wall_ms, boot_ms) = (ms(first.0, sample.0), ms(first.1, sample.1));
        self.clocks.push(ClockStep { process: record.process.clone(), at: record.at, wall_ms, boot_ms });
    }

    fn keep_longest_stalls(&mut self) {
        self.stalls.sort_by_key(|stall| (std::cmp::Reverse(stall.to.since(stall.from)), stall.from));
        self.left_out.stalls += self.stalls.len().saturating_sub(STALLS) as u64;
        self.stalls.truncate(STALLS);
    }

    /// The first kill of the node after an instant.
    pub fn killed(&self, node: &NodeName, after: Stamp) -> Option<Stamp> {
        self.kills.iter().filter(|(of, at)| of == node && *at > after).map(|(_, at)| *at).min()
    }

    /// Faults, stalls, changes of clocks, and the counts of those that are left out.
    pub fn finish(mut self) -> (Vec<FaultSpan>, Vec<Stall>, Vec<ClockStep>, LeftOut) {
        self.keep_longest_stalls();
        self.stalls.sort_by(|a, b| (a.from, &a.process).cmp(&(b.from, &b.process)));
        self.clocks.sort_by(|a, b| (a.at, &a.process).cmp(&(b.at, &b.process)));
        (self.faults.into_values().collect(), self.stalls, self.clocks, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_of_a_clock_may_be_any_distance_apart() {
        let mut disturbances = Disturbances::default();
        for (at, wall_ns) in [i64::MAX, i64::MIN].into_iter().enumerate() {
            let (process, event) = (ProcessName::new("worker-1"), Event::Clocks { wall_ns, boot_ns: 0 });
            disturbances.add(&Record { seq: 0, process, n: 0, at: Stamp(at as u64), event });
        }
        let (_, _, clocks, _) = disturbances.finish();
        let [change] = clocks.as_slice() else { panic!("{clocks:?}") };
        assert_eq!((change.wall_ms, change.boot_ms), (-(u64::MAX as f64) / 1e6, 0.0));
    }
}
