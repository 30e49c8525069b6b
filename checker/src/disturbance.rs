//! The times at which no fault disturbs locks, links and clients. Judgements that rest on speed hold at these times
//! only.

use std::time::Duration;

use history::{ClockChange, FaultId, FaultKind, FaultPhase, Harm, NodeName, Plan, Stamp};

use crate::{failover::DEMOTED_WITHIN, faults::SENT_AGAIN, holds::Span, rules, run::Run};

/// The time that servers may take beyond a lease: they look for expired leases only now and then.
pub(crate) const SLACK: Duration = Duration::from_secs(1);

/// The shortest delay of a leader's packets after which a member of a store asks for the election of another leader.
/// etcd's election timeout is 1 s or more in ticks of 100 ms, of which the first one may come at once, and the last
/// heartbeat may be 100 ms old.
pub(crate) const ELECTED_AFTER: Duration = Duration::from_millis(800);

/// The longest time in which the replicas of a store elect a leader after a fault: etcd's election timeout is drawn
/// between one and two seconds. The new leader gives each lease its full time again.
const ELECTED_WITHIN: Duration = Duration::from_secs(2);

/// Returns whether the servers elect a leader: replicas do also if no command of the facts finds it.
fn elects(plan: &Plan) -> bool {
    plan.has_leader() || plan.has_replicas()
}

/// The longest time after a fault in which another node may take the place of the leader.
pub(crate) fn replaced_within(plan: &Plan) -> Duration {
    if plan.is_replicated() { DEMOTED_WITHIN } else { ELECTED_WITHIN }
}

/// The disturbances of a run: faults that are on, and the end of the last one.
#[derive(Debug, Default)]
pub(crate) struct Disturbances {
    /// Faults whose heal is not proved, and whether packets may be lost or late because of each.
    on: Vec<(FaultId, bool)>,
    since: Stamp,
    /// The start of the first of these faults of links and servers: packets lost since then may have silenced their
    /// connections. Such a silence was over at the second stamp.
    lossy_from: Stamp,
    lossy_until: Stamp,
}

impl Disturbances {
    /// The stamp since which nothing has been disturbed; `None` while a fault is on.
    pub fn quiet_since(&self) -> Option<Stamp> {
        self.on.is_empty().then_some(self.since)
    }

    /// Extends the disturbance to a stamp.
    pub fn not_before(&mut self, at: Stamp) {
        self.since = self.since.max(at);
    }

    /// Takes a stall of a process of a node. If no fault stopped the process, the whole machine may have stalled, and
    /// the servers may elect a leader afterwards.
    pub fn stalled(&mut self, run: &Run, node: &NodeName, span: Span) {
        self.not_before(span.1);
        let is_planned = run.faults.pauses_on(node, span).iter().any(|pause| rules::overlap(*pause, span).is_some());
        if !is_planned && elects(&run.plan) {
            self.not_before(span.1.plus(replaced_within(&run.plan)));
        }
    }

    /// Takes a fault of the locks, of links, of a clock, or a pause. The fault disturbs while it is on. A lease that
    /// was granted by a clock that was ahead lasts longer when the clock is set back.
    pub fn disturbed(
        &mut self,
        run: &Run,
        (fault, kind): (FaultId, FaultKind),
        phase: &FaultPhase,
        at: Stamp,
        is_of_locks: bool,
    ) {
        let plan = &run.plan;
        match phase {
            FaultPhase::Requested { .. } | FaultPhase::Unplanned { .. } => {
                let from = if let FaultPhase::Unplanned { since } = phase { *since } else { at };
                // No clock, and no process that does not run, loses a packet.
                let is_lossy = matches!(kind.harm(), Harm::DropsPackets | Harm::DelaysPackets | Harm::Kills(_));
                if is_lossy && !self.on.iter().any(|(_, is_lossy)| *is_lossy) && from > self.lossy_until {
                    self.lossy_from = from;
                }
                self.on.push((fault, is_lossy));
            }
            FaultPhase::Healed | FaultPhase::UnplannedOver { .. } => {
                if matches!(phase, FaultPhase::Healed) {
                    // The fault disturbs until its heal is proved: the heal may have failed.
                    self.on.iter_mut().filter(|(on, _)| *on == fault).for_each(|(_, is_lossy)| *is_lossy = false);
                } else {
                    self.on.retain(|(on, _)| *on != fault);
                }
                if kind.harm() == Harm::DropsPackets {
                    // TCP doubles its retransmission timeout each time, so the next retransmission is no farther off
                    // than the first loss is back.
                    self.lossy_until = at.plus(at.since(self.lossy_from)).plus(SENT_AGAIN);
                    self.not_before(self.lossy_until);
                }
                let step = plan.step(fault).filter(|_| is_of_locks);
                let moved = match step.and_then(|step| step.fault.clock()).map(|clock| clock.change) {
                    Some(ClockChange::JumpMs(by) | ClockChange::Strobe { by_ms: by, .. }) => {
                        Duration::from_millis(by.unsigned_abs())
                    }
                    // The heal may have come later than planned.
                    Some(ClockChange::DriftPpm(ppm)) => {
                        let requested = run.faults.get(fault).and_then(|line| line.requested);
                        let from = requested.map_or(Stamp(0), |requested| requested.at);
                        at.since(from).mul_f64(f64::from(ppm.unsigned_abs()) / 1e6)
                    }
                    None => Duration::ZERO,
                };
                self.not_before(at.plus(moved));
                if is_of_locks && elects(plan) {
                    self.not_before(at.plus(replaced_within(plan)));
                }
            }
            FaultPhase::HealProved => {
                self.on.retain(|(on, _)| *on != fault);
                self.not_before(at);
            }
            // The target had no process for the fault, so no heal follows.
            FaultPhase::Unproved { .. }
                if self.on.iter().any(|(on, _)| *on == fault)
                    && run.faults.get(fault).is_some_and(|line| line.injected.is_none()) =>
            {
                self.on.retain(|(on, _)| *on != fault);
                self.not_before(at);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
