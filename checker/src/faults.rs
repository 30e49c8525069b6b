//! Faults as they came, and what went wrong without anybody's plan: stalls, steps of clocks.

use std::{collections::BTreeMap, time::Duration};

use history::{FaultId, FaultKind, FaultPhase, NodeName, ProcessName, Stamp};
use rustc_hash::FxHashMap;

use crate::{
    holds::{Mark, Span},
    rules,
};

/// The least time after which TCP sends a lost packet again, twice: it may have left just before the heal.
pub(crate) const SENT_AGAIN: Duration = Duration::from_millis(400);

/// One fault of the schedule.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub kind: FaultKind,
    pub node: NodeName,
    pub requested: Option<Mark>,
    pub injected: Option<Stamp>,
    pub heal_requested: Option<Stamp>,
    pub healed: Option<Stamp>,
    pub proved: Option<Span>,
    pub unproved: Option<String>,
    /// What a server that was killed had not synced yet when it was asked, after the request.
    pub unsynced: Option<u32>,
    pub is_heal_proved: bool,
    pub is_missed: bool,
}

impl Line {
    /// From the stamp before it was injected to the stamp after it was healed: an outer bound.
    pub fn bracket(&self) -> Option<Span> {
        Some((self.requested?.at, self.healed.unwrap_or(Stamp(u64::MAX))))
    }

    /// The bracket, and for how long connections may be silent after it that have lost packets: those are sent again after twice as long each time, so
    /// the next time is no farther off than the first loss is back.
    pub fn silence(&self) -> Option<Span> {
        let (from, to) = self.bracket()?;
        let is_lossy = matches!(self.kind, FaultKind::Partition | FaultKind::Loss) && to != Stamp(u64::MAX);
        Some(if is_lossy { (from, to.plus(to.since(from)).plus(SENT_AGAIN)) } else { (from, to) })
    }

    /// "pause of worker-1".
    pub fn name(&self) -> String {
        format!("{} of {}", self.kind, self.node)
    }
}

/// Packets that a fault held back between a worker and the resource.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub fault: FaultId,
    pub worker: NodeName,
    /// Whether they were on their way to the resource, and not back.
    pub is_request: bool,
    pub span: Span,
}

/// All faults by their number.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    lines: BTreeMap<FaultId, Line>,
    held: Vec<Held>,
}

impl Faults {
    pub fn take(&mut self, id: FaultId, kind: FaultKind, node: &NodeName, phase: &FaultPhase, mark: Mark) {
        let line = self.lines.entry(id).or_insert_with(|| Line {
            kind,
            node: node.clone(),
            requested: None,
            injected: None,
            heal_requested: None,
            healed: None,
            proved: None,
            unproved: None,
            unsynced: None,
            is_heal_proved: false,
            is_missed: false,
        });
        match phase {
            FaultPhase::Requested { .. } => {
                line.requested.get_or_insert(mark);
            }
            FaultPhase::Injected => line.injected = Some(mark.at),
            FaultPhase::HealRequested => line.heal_requested = Some(mark.at),
            FaultPhase::Healed => line.healed = Some(mark.at),
            FaultPhase::Proved { from, to } => line.proved = Some((*from, *to)),
            FaultPhase::Unproved { why } => line.unproved = Some(why.clone()),
            FaultPhase::HealProved => line.is_heal_proved = true,
            FaultPhase::MissedTarget => line.is_missed = true,
            FaultPhase::Unsynced { fsyncs } => line.unsynced = Some(*fsyncs),
            // Connections are new then, and what was under way on the old ones has no answer: the clients tell so themselves.
            FaultPhase::ConnectionsReset { .. } => {}
        }
    }

    /// Packets were held back. Those to and from lock nodes tell nothing that the fault's own stamps do not.
    pub fn held(&mut self, fault: FaultId, from: &NodeName, to: &NodeName, span: Span) {
        let (worker, is_request) = match (from.as_str(), to.as_str()) {
            (_, "resource") => (from, true),
            ("resource", _) => (to, false),
            _ => return,
        };
        self.held.push(Held { fault, worker: worker.clone(), is_request, span });
    }

    /// When packets between a worker and the resource were held back.
    pub fn held_of<'a>(&'a self, worker: &'a NodeName) -> impl Iterator<Item = (&'a Held, FaultKind)> {
        let held = self.held.iter().filter(move |held| held.worker == *worker);
        held.filter_map(|held| Some((held, self.lines.get(&held.fault)?.kind)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (FaultId, &Line)> {
        self.lines.iter().map(|(id, line)| (*id, line))
    }

    pub fn get(&self, id: FaultId) -> Option<&Line> {
        self.lines.get(&id)
    }

    /// Brackets of the faults that held a node up, whether proved yet or not.
    pub fn pauses_on(&self, node: &NodeName) -> Vec<Span> {
        let pauses = self.lines.values().filter(|l| l.kind.holds_up() && l.node == *node);
        pauses.filter_map(Line::bracket).collect()
    }

    /// Faults that their target did not show, with what was seen.
    pub fn unproved(&self) -> impl Iterator<Item = String> {
        self.lines.values().filter_map(|l| Some(format!("the {} was not proved: {}", l.name(), l.unproved.as_ref()?)))
    }
}

/// A step of one of the kernel's clocks that nobody injected.
#[derive(Debug, Clone)]
pub(crate) struct ClockStep {
    pub process: ProcessName,
    pub span: Span,
    pub moved: Duration,
}

/// Steps that are kept: more of them say nothing new.
const STEPS_MAX: usize = 1_000;

/// Pauses that nobody planned, and steps of clocks.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// The longest time for which a process did not run though no fault stopped it.
    pub longest: Option<(Duration, ProcessName)>,
    pub steps: Vec<ClockStep>,
    samples: FxHashMap<usize, (Stamp, i64, i64)>,
}

impl Stalls {
    /// A stall, and the pauses of its node: what lies inside those was planned.
    pub fn stalled(&mut self, process: &ProcessName, span: Span, pauses: &[Span]) {
        let planned = pauses.iter().filter_map(|p| rules::overlap(span, *p)).sum();
        let length = span.1.since(span.0).saturating_sub(planned);
        let is_longer = match &self.longest {
            Some((longest, name)) => length > *longest || (length == *longest && process < name),
            None => !length.is_zero(),
        };
        if is_longer {
            self.longest = Some((length, process.clone()));
        }
    }

    pub fn clocks(&mut self, process: usize, name: &ProcessName, at: Stamp, wall_ns: i64, boot_ns: i64) {
        let Some((last, wall, boot)) = self.samples.insert(process, (at, wall_ns, boot_ns)) else { return };
        let moved_ns = wall_ns.abs_diff(wall).max(boot_ns.abs_diff(boot));
        if rules::is_clock_step(moved_ns, at.since(last)) && self.steps.len() < STEPS_MAX {
            let moved = Duration::from_nanos(moved_ns);
            self.steps.push(ClockStep { process: name.clone(), span: (last, at), moved });
        }
    }

    /// Whether a clock stepped inside this stretch.
    pub fn stepped_within(&self, span: Span) -> bool {
        self.steps.iter().any(|step| rules::overlap(step.span, span).is_some())
    }
}
