//! Faults, stalls and changes of clocks on a timeline.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

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
    /// The requests to kill a node, without those that the engine refused.
    kills: HashMap<NodeName, BTreeSet<(Stamp, FaultId)>>,
    /// The kills that were made.
    made: BTreeSet<FaultId>,
    /// The starts of a node's processes, by the numbers of these processes.
    starts: HashMap<NodeName, BTreeMap<u32, Stamp>>,
}

impl Disturbances {
    /// Adds a record.
    pub fn add(&mut self, record: &Record) {
        match &record.event {
            Event::Plan { plan, .. } => {
                self.planned = plan.schedule.iter().map(|step| (step.id, step.fault.clone())).collect();
            }
            Event::Started { .. } => {
                let of_node = self.starts.entry(record.process.node()).or_default();
                of_node.entry(record.process.incarnation()).or_insert(record.at);
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
        if kind.kills() {
            self.kill(id, node, phase, at);
        }
        if !self.faults.contains_key(&id) && self.faults.len() >= FAULTS {
            let is_first = matches!(phase, FaultPhase::Requested { .. } | FaultPhase::Unplanned { .. });
            self.left_out.faults += u64::from(is_first);
            return;
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

    /// Notes a kill, which ends holds, whether or not its fault is drawn. A kill that was never made ends none.
    fn kill(&mut self, id: FaultId, node: &NodeName, phase: &FaultPhase, at: Stamp) {
        match phase {
            FaultPhase::Requested { .. } => _ = self.kills.entry(node.clone()).or_default().insert((at, id)),
            FaultPhase::Injected | FaultPhase::Proved { .. } => _ = self.made.insert(id),
            FaultPhase::Unproved { .. } if !self.made.contains(&id) => {
                self.kills.entry(node.clone()).or_default().retain(|(_, kill)| *kill != id);
            }
            _ => {}
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

    /// The first request to kill a process, which ends its holds. The rule is the checker's: a kill is one of the last
    /// process of its node that has started by then, and a death that nobody planned ends no hold.
    pub fn killed(&self, process: &ProcessName) -> Option<Stamp> {
        let (node, number) = (process.node(), process.incarnation());
        let starts = self.starts.get(&node);
        let started = starts.and_then(|starts| starts.get(&number)).copied().unwrap_or_default();
        let next = starts.and_then(|starts| starts.range((Bound::Excluded(number), Bound::Unbounded)).next());
        let (killed, _) = self.kills.get(&node)?.range((started, FaultId(0))..).next().copied()?;
        next.is_none_or(|(_, next)| killed < *next).then_some(killed)
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
    use history::StallCause;

    use super::*;

    #[test]
    fn of_too_many_stalls_the_longest_are_kept_in_the_order_of_time() {
        let count = 2 * STALLS as u64 + 100;
        let mut disturbances = Disturbances::default();
        for n in 0..count {
            // Each length from 1 to `count` once, in no order, as 11 and `count` have no common factor.
            let (from, length) = (n * 10_000, n * 11 % count + 1);
            let stall = Event::Stall { from: Stamp(from), to: Stamp(from + length), late: StallCause::Tick };
            add(&mut disturbances, "worker-1", from + length, stall);
        }
        let (_, stalls, _, left_out) = disturbances.finish();
        assert_eq!(left_out.stalls, count - STALLS as u64);
        assert!(stalls.is_sorted_by_key(|stall| stall.from));
        let mut lengths: Vec<u64> = stalls.iter().map(|stall| stall.to.0 - stall.from.0).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, (count - STALLS as u64 + 1..=count).collect::<Vec<_>>());
    }

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

    fn add(disturbances: &mut Disturbances, process: &str, at: u64, event: Event) {
        disturbances.add(&Record { seq: 0, process: process.into(), n: 0, at: Stamp(at), event });
    }

    fn requested(id: u32, kind: FaultKind, node: &str) -> Event {
        let (fault, phase) = (FaultId(id), FaultPhase::Requested { asked_ns: 1, hold: None });
        Event::Fault { fault, kind, node: node.into(), phase }
    }

    #[test]
    fn a_kill_that_is_not_drawn_ends_its_process() {
        let mut disturbances = Disturbances::default();
        for id in 1..=FAULTS as u32 {
            add(&mut disturbances, "agent", 10, requested(id, FaultKind::Pause, "worker-2"));
        }
        add(&mut disturbances, "agent", 20, requested(FAULTS as u32 + 1, FaultKind::Kill, "worker-1"));
        let (fault, phase) = (FaultId(FAULTS as u32 + 2), FaultPhase::Unplanned { since: Stamp(25) });
        let unplanned = Event::Fault { fault, kind: FaultKind::Partition, node: "worker-2".into(), phase };
        add(&mut disturbances, "agent", 30, unplanned);
        assert_eq!(disturbances.killed(&"worker-1".into()), Some(Stamp(20)));
        assert_eq!(disturbances.killed(&"worker-2".into()), None);
        assert_eq!(disturbances.finish().3.faults, 2);
    }

    fn started() -> Event {
        Event::Started { role: history::Role::Worker, boot_id: String::new(), time_namespace: 1 }
    }

    #[test]
    fn each_process_ends_with_the_first_kill_after_its_start() {
        let mut disturbances = Disturbances::default();
        add(&mut disturbances, "worker-1", 0, started());
        add(&mut disturbances, "agent", 10, requested(1, FaultKind::Kill, "worker-1"));
        add(&mut disturbances, "worker-1#2", 20, started());
        for (id, at) in [(2, 30), (3, 35)] {
            add(&mut disturbances, "agent", at, requested(id, FaultKind::Kill, "worker-1"));
        }
        assert_eq!(disturbances.killed(&"worker-1".into()), Some(Stamp(10)));
        assert_eq!(disturbances.killed(&"worker-1#2".into()), Some(Stamp(30)));
    }

    #[test]
    fn a_kill_that_the_engine_refused_ends_no_process() {
        let phase =
            |id: u32, phase| Event::Fault { fault: FaultId(id), kind: FaultKind::Kill, node: "worker-1".into(), phase };
        let unproved = |id| phase(id, FaultPhase::Unproved { why: "the engine refused".into() });
        let mut disturbances = Disturbances::default();
        add(&mut disturbances, "worker-1", 0, started());
        add(&mut disturbances, "agent", 10, requested(1, FaultKind::Kill, "worker-1"));
        add(&mut disturbances, "agent", 11, phase(1, FaultPhase::Healed));
        add(&mut disturbances, "agent", 20, unproved(1));
        assert_eq!(disturbances.killed(&"worker-1".into()), None);
        // A kill that was made, and whose restart was not seen in time, has ended the process.
        add(&mut disturbances, "agent", 30, requested(2, FaultKind::Kill, "worker-1"));
        add(&mut disturbances, "agent", 31, phase(2, FaultPhase::Injected));
        add(&mut disturbances, "agent", 40, unproved(2));
        assert_eq!(disturbances.killed(&"worker-1".into()), Some(Stamp(30)));
    }

    #[test]
    fn a_jump_of_either_clock_is_a_change() {
        for jump in [(5_000_000, 0), (0, 5_000_000)] {
            let mut disturbances = Disturbances::default();
            for (at, (wall_ns, boot_ns)) in [(0, (0, 0)), (1, jump), (2, jump)] {
                add(&mut disturbances, "worker-1", at, Event::Clocks { wall_ns, boot_ns });
            }
            let (_, _, clocks, _) = disturbances.finish();
            let changes: Vec<_> = clocks.iter().map(|change| (change.wall_ms, change.boot_ms)).collect();
            assert_eq!(changes, [(jump.0 as f64 / 1e6, jump.1 as f64 / 1e6)]);
        }
    }

    #[test]
    fn a_slow_drift_is_a_change_each_time_that_a_millisecond_has_added_up() {
        for (wall_ns, boot_ns) in [(250_000, 0), (0, 250_000), (-250_000, 0), (0, -250_000)] {
            let mut disturbances = Disturbances::default();
            for n in 0..10_u32 {
                let of = |step: i64| step * i64::from(n);
                let sample = Event::Clocks { wall_ns: of(wall_ns), boot_ns: of(boot_ns) };
                add(&mut disturbances, "worker-1", n.into(), sample);
            }
            let (_, _, clocks, _) = disturbances.finish();
            let changes: Vec<_> = clocks.iter().map(|change| (change.at.0, change.wall_ms, change.boot_ms)).collect();
            let after = |n: u64| (n, wall_ns as f64 * n as f64 / 1e6, boot_ns as f64 * n as f64 / 1e6);
            assert_eq!(changes, [after(4), after(8)]);
        }
    }

    #[test]
    fn a_process_that_died_unplanned_has_no_kill() {
        let mut disturbances = Disturbances::default();
        add(&mut disturbances, "worker-1", 0, started());
        let phase = FaultPhase::Unplanned { since: Stamp(5) };
        let death = Event::Fault { fault: FaultId(1), kind: FaultKind::Kill, node: "worker-1".into(), phase };
        add(&mut disturbances, "agent", 10, death);
        add(&mut disturbances, "agent", 30, requested(2, FaultKind::Kill, "worker-1"));
        // The stream of the next process may come later.
        add(&mut disturbances, "worker-1#2", 20, started());
        assert_eq!(disturbances.killed(&"worker-1".into()), None);
        assert_eq!(disturbances.killed(&"worker-1#2".into()), Some(Stamp(30)));
    }
}
