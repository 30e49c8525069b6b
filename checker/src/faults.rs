//! Faults as the history records them, planned or not, and stalls that no fault explains.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use history::{
    CutMode, FaultId, FaultKind, FaultPhase, Harm, NodeName, Plan, ProcessName, Stamp, Step, Target, fault::LinkEffect,
};
use rustc_hash::FxHashMap;

use crate::{
    holds::{EventRef, Span},
    intervals::Intervals,
    rules,
};

/// Twice the smallest retransmission timeout of TCP: a retransmission may have left just before the heal.
pub(crate) const SENT_AGAIN: Duration = Duration::from_millis(400);

/// One fault: of the schedule, or unplanned.
#[derive(Debug, Clone)]
pub(crate) struct FaultRecord {
    pub kind: FaultKind,
    pub node: NodeName,
    pub requested: Option<EventRef>,
    pub injected: Option<Stamp>,
    pub heal_requested: Option<Stamp>,
    pub healed: Option<Stamp>,
    pub proved: Option<Span>,
    pub unproved: Option<String>,
    /// The number of fsyncs that were pending on a killed server, read after the request of the kill.
    pub unsynced: Option<u32>,
    pub is_heal_proved: bool,
    pub is_missed: bool,
    /// True if nobody planned the fault.
    pub is_unplanned: bool,
    /// The arrival of the last packet that the fault delayed, on any link.
    pub delivered: Option<Stamp>,
    /// The start of an earlier loss of the node, if connections may have been silent from then until this fault began.
    lossy_since: Option<Stamp>,
    /// The stamp after the heal had reset connections.
    reset: Option<Stamp>,
}

impl FaultRecord {
    /// From the stamp before the injection to the stamp after the heal: an outer bound.
    pub fn bracket(&self) -> Option<Span> {
        Some((self.requested?.at, self.healed.unwrap_or(Stamp(u64::MAX))))
    }

    /// The bracket, and the time for which connections may be silent afterwards. TCP hands data on in order, so data
    /// waits for the packets that the fault still delays. After a loss TCP doubles its retransmission timeout each
    /// time, so the next retransmission is no farther off than the first loss is back. A fault that begins while
    /// connections are still silent because of an earlier one goes on with that loss.
    pub fn silence(&self) -> Option<Span> {
        let (begun, to) = self.bracket()?;
        let from = self.lossy_since.unwrap_or(begun);
        let is_lossy = self.kind.harm() == Harm::DropsPackets && to != Stamp(u64::MAX);
        let until = if is_lossy { to.plus(to.since(from)).plus(SENT_AGAIN) } else { to };
        Some((begun, self.delivered.map_or(until, |delivered| delivered.max(until))))
    }

    /// The span in which the fault may have reset connections: it answers packets with a reset, or its heal reset the
    /// connections that did not recover. Each fault of links may have such a heal: another fault may have silenced the
    /// connections before.
    pub fn resets(&self, plan: &Plan, id: FaultId) -> Option<Span> {
        let is_of_links = matches!(self.kind.harm(), Harm::DropsPackets | Harm::DelaysPackets);
        let (from, to) = self.bracket().filter(|_| is_of_links)?;
        let rejects = |step: &Step| step.fault.link_effect() == Some(LinkEffect::Cut(CutMode::Reject));
        match (plan.step(id).is_none_or(rejects), self.reset) {
            (true, reset) => Some((from, reset.map_or(to, |reset| reset.max(to)))),
            (false, Some(reset)) => Some((self.heal_requested.unwrap_or(from), reset)),
            (false, None) => None,
        }
    }

    /// Returns whether the fault may hit packets from one node to another. A fault that nobody planned names no links:
    /// it may hit all links of its node.
    pub fn hits(&self, plan: &Plan, id: FaultId, from: &NodeName, to: &NodeName) -> bool {
        match plan.step(id) {
            Some(step) => step.fault.hits(&self.node, from, to),
            None => self.is_unplanned && (self.node == *from || self.node == *to),
        }
    }

    /// Returns whether the fault may have been on. A fault that found no process, or that the engine refused, is never
    /// injected, and is called unproved.
    pub fn may_have_been_on(&self) -> bool {
        self.injected.is_some() || self.unproved.is_none()
    }

    /// The missing proof of a fault that was requested: a fault that its target did not show proves nothing. A fault
    /// that missed its hold needs no proof. But the fault may have been on, so an `unproved` counts all the same.
    pub fn missing_proof(&self) -> Option<String> {
        self.requested.filter(|_| !self.is_unplanned)?;
        if let Some(why) = &self.unproved {
            return Some(format!("the {} was not proved: {why}", self.name()));
        }
        let is_missing = self.proved.is_none() && !self.is_missed;
        is_missing.then(|| format!("the {} was neither proved nor did it miss its target", self.name()))
    }

    /// "pause of worker-1".
    pub fn name(&self) -> String {
        let planned = if self.is_unplanned { "unplanned " } else { "" };
        format!("{planned}{} of {}", self.kind, self.node)
    }
}

/// Packets that a fault delayed on the way from one node to another.
#[derive(Debug, Clone)]
pub(crate) struct DelayedPackets {
    pub fault: FaultId,
    from: NodeName,
    to: NodeName,
    pub span: Span,
}

/// All faults by their number.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    lines: BTreeMap<FaultId, FaultRecord>,
    delayed: Vec<DelayedPackets>,
    /// Of each fault and link, the place of its last span in `delayed`.
    last_delays: FxHashMap<(FaultId, NodeName, NodeName), usize>,
    /// Of each node, the faults that dropped packets of its links, and whose silence was not over when the last one of
    /// them began.
    lossy: FxHashMap<NodeName, Vec<FaultId>>,
    pauses: FxHashMap<NodeName, Pauses>,
}

/// The faults that kept a node from running.
#[derive(Debug, Default)]
struct Pauses {
    /// Those that may be on.
    on: BTreeSet<FaultId>,
    /// Those that were healed, by the stamp of the heal.
    over: Vec<(Stamp, FaultId)>,
}

impl Faults {
    pub fn apply(
        &mut self,
        plan: &Plan,
        id: FaultId,
        kind: FaultKind,
        node: &NodeName,
        phase: &FaultPhase,
        mark: EventRef,
    ) {
        let lossy_since = match phase {
            _ if kind.harm() != Harm::DropsPackets => None,
            FaultPhase::Requested { .. } => self.begins(plan, id, node, mark.at),
            FaultPhase::Unplanned { since } => self.begins(plan, id, node, *since),
            _ => None,
        };
        let line = self.lines.entry(id).or_insert_with(|| FaultRecord {
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
            is_unplanned: false,
            delivered: None,
            lossy_since: None,
            reset: None,
        });
        line.lossy_since = line.lossy_since.or(lossy_since);
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
            FaultPhase::Unplanned { since } => {
                line.is_unplanned = true;
                line.requested = Some(EventRef { at: *since, seq: mark.seq });
                (line.injected, line.proved) = (Some(mark.at), Some((mark.at, mark.at)));
            }
            FaultPhase::UnplannedOver { since } => {
                line.heal_requested = Some(*since);
                (line.healed, line.is_heal_proved) = (Some(mark.at), true);
                line.proved = line.proved.map(|(from, to)| (from, to.max(*since)));
            }
            FaultPhase::Unsynced { fsyncs } => line.unsynced = Some(*fsyncs),
            // Requests on the old connections get no answer, and the clients report that themselves. But a server may
            // end a session with its connection.
            FaultPhase::ConnectionsReset { .. } => line.reset = Some(mark.at),
        }
        if line.kind.takes_processor_time() {
            let pauses = self.pauses.entry(line.node.clone()).or_default();
            if line.healed.is_none() && line.may_have_been_on() {
                pauses.on.insert(id);
            } else {
                pauses.on.remove(&id);
            }
            if matches!(phase, FaultPhase::Healed | FaultPhase::UnplannedOver { .. }) {
                pauses.over.push((mark.at, id));
            }
        }
    }

    /// Notes that a fault begins to drop packets. Returns the start of the loss that it goes on with, if there is one:
    /// that of an earlier fault of the node, on one of the same links. A fault that its target did not show has
    /// silenced nothing.
    fn begins(&mut self, plan: &Plan, id: FaultId, node: &NodeName, at: Stamp) -> Option<Stamp> {
        let Faults { lines, lossy, .. } = self;
        let earlier = lossy.entry(node.clone()).or_default();
        if earlier.contains(&id) {
            return None;
        }
        let silent_since = |other: &FaultId| {
            let line = lines.get(other).filter(|line| line.unproved.is_none())?;
            let (begun, until) = line.silence()?;
            (at <= until).then(|| line.lossy_since.unwrap_or(begun))
        };
        earlier.retain(|other| silent_since(other).is_some());
        let same = earlier.iter().filter(|other| meet(plan, node, id, **other));
        let since = same.filter_map(silent_since).min();
        earlier.push(id);
        since
    }

    /// Notes delayed packets.
    pub fn packets_delayed(&mut self, fault: FaultId, from: &NodeName, to: &NodeName, span: Span) {
        if let Some(line) = self.lines.get_mut(&fault) {
            line.delivered = line.delivered.max(Some(span.1));
        }
        // Delays of one link that overlap are kept as one, so the packets of a long fault take no memory.
        let next = self.delayed.len();
        let place = self.last_delays.entry((fault, from.clone(), to.clone())).or_insert(next);
        if let Some(last) = self.delayed.get_mut(*place)
            && rules::overlap(last.span, span).is_some()
        {
            last.span = (last.span.0.min(span.0), last.span.1.max(span.1));
            return;
        }
        *place = next;
        self.delayed.push(DelayedPackets { fault, from: from.clone(), to: to.clone(), span });
    }

    /// The delayed packets from one node to another.
    pub fn delayed<'a>(
        &'a self,
        from: &'a NodeName,
        to: &'a NodeName,
    ) -> impl Iterator<Item = (&'a DelayedPackets, FaultKind)> {
        let delayed = self.delayed.iter().filter(move |delayed| delayed.from == *from && delayed.to == *to);
        delayed.filter_map(|delayed| Some((delayed, self.lines.get(&delayed.fault)?.kind)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (FaultId, &FaultRecord)> {
        self.lines.iter().map(|(id, line)| (*id, line))
    }

    pub fn get(&self, id: FaultId) -> Option<&FaultRecord> {
        self.lines.get(&id)
    }

    /// The brackets of the faults that may have kept a node from running during a stall, proved or not yet proved. A
    /// fault that found no process has no heal.
    pub fn pauses_on(&self, node: &NodeName, stall: Span) -> Vec<Span> {
        let Some(Pauses { on, over }) = self.pauses.get(node) else { return Vec::new() };
        // A long run has many faults, and few of them are not over when the process stalls.
        let over = &over[over.partition_point(|(healed, _)| *healed < stall.0)..];
        let pauses = on.iter().chain(over.iter().map(|(_, id)| id)).filter_map(|id| self.lines.get(id));
        pauses.filter(|l| l.may_have_been_on()).filter_map(FaultRecord::bracket).collect()
    }

    /// The faults that nobody planned.
    pub fn unplanned(&self) -> impl Iterator<Item = &FaultRecord> {
        self.lines.values().filter(|line| line.is_unplanned)
    }

    /// The faults that their targets did not show, with the evidence.
    pub fn unproved(&self) -> impl Iterator<Item = String> {
        self.lines.values().filter_map(FaultRecord::missing_proof)
    }
}

/// Returns whether two faults of the links of a node hit links to the same node, in whatever direction: a connection
/// needs both. A fault that nobody planned names no links, and may hit all of them.
fn meet(plan: &Plan, node: &NodeName, one: FaultId, other: FaultId) -> bool {
    let (Some(one), Some(other)) = (plan.step(one), plan.step(other)) else { return true };
    let hits = |step: &Step, peer: &NodeName| step.fault.hits(node, node, peer) || step.fault.hits(node, peer, node);
    let mut peers = plan.lock_nodes.iter().cloned().chain(plan.workers()).chain([NodeName::from("resource")]);
    peers.any(|peer| peer != *node && hits(one, &peer) && hits(other, &peer))
}

/// Unplanned pauses.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// The longest time for which a process did not run though no fault stopped it.
    pub longest: Option<(Duration, ProcessName)>,
}

impl Stalls {
    /// Notes a stall, less the planned pauses of the node. Two of them may be on at once.
    pub fn stalled(&mut self, process: &ProcessName, span: Span, pauses: &[Span]) {
        let planned: Intervals = pauses.iter().map(|p| (span.0.max(p.0), span.1.min(p.1))).collect();
        let length = span.1.since(span.0).saturating_sub(planned.length());
        let is_longer = match &self.longest {
            Some((longest, name)) => length > *longest || (length == *longest && process < name),
            None => !length.is_zero(),
        };
        if is_longer {
            self.longest = Some((length, process.clone()));
        }
    }
}

/// Returns whether a step of the schedule ends the resource's process.
pub(crate) fn is_of_resource(step: &Step) -> bool {
    step.fault.kind().kills() && matches!(&step.target, Target::Node(node) if node.as_str() == "resource")
}

#[cfg(test)]
mod tests {
    use history::{CutMode, Event, Fault, fault};

    use super::*;
    use crate::{history_builder::HistoryBuilder, verdict::Verdict};

    #[test]
    fn each_of_two_faults_on_one_link_has_its_own_delays() {
        // The write leaves at 100. The delay alone, until 300, would let it arrive before the promise ends at 1,978.
        let second = Duration::from_secs(1);
        let delay = Fault::new(fault::Delay { by: Duration::from_millis(250).into() }, second);
        let partition = Fault::new(fault::Partition { cut: CutMode::Drop }, second);
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).write(1, 1, 100, 2_502);
        s.inject(1, delay, "worker-1", 45, 400).packets_delayed(1, "worker-1", "resource", 50, 300);
        s.inject(2, partition, "resource", 95, 2_500).packets_delayed(2, "worker-1", "resource", 101, 2_501);
        assert_eq!(s.causes(), ["partition"]);
    }

    #[test]
    fn delays_of_a_link_are_joined_however_many_other_links_came_between() {
        let mut faults = Faults::default();
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        let mut add = |fault, from, to| faults.packets_delayed(FaultId(fault), &a, &b, (Stamp(from), Stamp(to)));
        add(1, 0, 10);
        (2..200_000).for_each(|fault| add(fault, 0, 10));
        add(1, 5, 20);
        assert_eq!((faults.delayed.len(), faults.delayed[0].span), (199_999, (Stamp(0), Stamp(20))));
    }

    #[test]
    fn a_stall_is_that_of_a_fault_only_if_the_fault_takes_processor_time() {
        let lasting = Duration::from_secs(2);
        let (pause, stop) = (Fault::new(fault::Pause {}, lasting), Fault::new(fault::Stop {}, lasting));
        let slow = Fault::new(fault::Slow { percent: 2 }, lasting);
        let partition = Fault::new(fault::Partition { cut: CutMode::Drop }, lasting);
        // The fault is on from 995 to 3,005.
        let longest = |fault: &Fault, node: &str, (from, to): (u64, u64)| {
            let mut s = HistoryBuilder::new();
            s.acquire(1, 1, 0, 10, 41).release(1, 20).inject(1, fault.clone(), node, 1_000, 3_000);
            s.stall("worker-1", from, to).verdicts().facts.longest_stall.map(|stall| stall.ms)
        };
        for (fault, node, is_of_fault) in [
            (&pause, "worker-1", true),
            (&stop, "worker-1", true),
            (&slow, "worker-1", true),
            (&slow, "worker-2", false),
            (&partition, "worker-1", false),
        ] {
            let expected = match is_of_fault {
                true => [None, Some(195.0), Some(395.0)],
                false => [Some(800.0), Some(400.0), Some(600.0)],
            };
            let found = [(1_200, 2_000), (800, 1_200), (2_800, 3_400)].map(|span| longest(fault, node, span));
            assert_eq!(found, expected, "{fault:?} of {node}");
        }
    }

    #[test]
    fn two_pauses_at_once_take_a_stall_once_and_one_that_was_never_on_takes_nothing() {
        let longest = |s: &mut HistoryBuilder| {
            let verdicts = s.acquire(1, 1, 0, 10, 41).release(1, 20).stall("worker-1", 800, 1_200).verdicts();
            verdicts.facts.longest_stall.map(|stall| stall.ms)
        };
        // Both are on from 995 to 3,005.
        let mut s = HistoryBuilder::new();
        let lasting = Duration::from_secs(2);
        s.inject(1, Fault::new(fault::Pause {}, lasting), "worker-1", 1_000, 3_000);
        s.inject(2, Fault::new(fault::Slow { percent: 2 }, lasting), "worker-1", 1_000, 3_000);
        assert_eq!(longest(&mut s), Some(195.0));
        // The pause found no process.
        let mut s = HistoryBuilder::new();
        let (requested, why) = (FaultPhase::Requested { asked_ns: 2_000_000_000, hold: None }, String::new());
        s.fault(1, FaultKind::Pause, "worker-1", 100, requested);
        s.fault(1, FaultKind::Pause, "worker-1", 110, FaultPhase::Unproved { why });
        assert_eq!(longest(&mut s), Some(400.0));
    }

    #[test]
    fn a_step_of_the_clock_counts_however_many_came_before() {
        // The clock steps at each of 1,001 samples, and then between 3,000 and 4,000.
        let mut s = HistoryBuilder::new();
        s.acquire(1, 1, 3_005, 3_020, 41).acquire(2, 2, 3_495, 3_510, 42).release(2, 3_600).release_refused(1, 3_700);
        for (n, at) in (1..=1_002).chain([3_000, 4_000]).enumerate() {
            // The sample at 3,000 has the value before it.
            let is_set = (n + usize::from(at >= 3_000)) % 2 == 1;
            let wall_ns = if is_set { 60_000_000_000 } else { 0 };
            s.event("worker-2", at, Event::Clocks { wall_ns, boot_ns: 0 });
        }
        let lock = s.lock();
        assert_eq!((lock.unexplained, lock.verdict), (0, Verdict::Inconclusive));
    }

    #[test]
    fn an_unplanned_fault_may_have_begun_long_before_it_was_noticed() {
        // Noticed at 1,300. Hold 2 is acquired at 1,010, inside the lease of hold 1.
        for (well_until, expected) in [(1_009, "kill"), (1_010, "unexplained")] {
            let mut s = HistoryBuilder::new();
            s.plan.lock_nodes.truncate(1);
            s.acquire(1, 1, 0, 10, 41).acquire(2, 2, 1_000, 1_010, 42).release(2, 1_100).release_refused(1, 1_200);
            s.unplanned(7, FaultKind::Kill, "redis-1", (well_until, 1_300), 1_400);
            assert_eq!(s.causes(), [expected], "well until {well_until}");
        }
    }
}
