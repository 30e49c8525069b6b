//! When nothing disturbs locks, links and clients: judgements that rest on how fast things go say nothing of other times.

use std::time::Duration;

use history::{ClockChange, Fault, FaultId, FaultKind, FaultPhase, Plan, Stamp, Step};

use crate::faults::SENT_AGAIN;

/// Since when all is quiet.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// Faults that are on.
    on: Vec<FaultId>,
    since: Stamp,
    /// Since when packets may have been lost whose connections have been silent ever since.
    lossy_from: Stamp,
}

impl Quiet {
    /// Since when nothing has been disturbed, if nothing is.
    pub fn since(&self) -> Option<Stamp> {
        self.on.is_empty().then_some(self.since)
    }

    /// Until then it was not quiet.
    pub fn not_before(&mut self, at: Stamp) {
        self.since = self.since.max(at);
    }

    /// A fault of the locks, of links, of a clock, or a pause: it disturbs while it is on, and what was granted by a clock that was ahead
    /// lasts longer when that is set back.
    pub fn disturbed(&mut self, plan: &Plan, fault: FaultId, phase: &FaultPhase, at: Stamp, is_of_locks: bool) {
        match phase {
            FaultPhase::Requested { .. } => {
                if self.on.is_empty() && at > self.since {
                    self.lossy_from = at;
                }
                self.on.push(fault);
            }
            FaultPhase::Healed => {
                self.on.retain(|on| *on != fault);
                let of_this = |step: &&Step| step.id == fault;
                let kind = plan.schedule.iter().find(of_this).map(|step| step.fault.kind());
                if matches!(kind, Some(FaultKind::Partition | FaultKind::Loss)) {
                    // What was lost is sent again after twice as long each time: the next time is no farther off than the first loss is back.
                    self.not_before(at.plus(at.since(self.lossy_from)).plus(SENT_AGAIN));
                }
                let step = plan.schedule.iter().find(|step| step.id == fault).filter(|_| is_of_locks);
                let moved = step.map_or(Duration::ZERO, |step| match &step.fault {
                    Fault::Clock {
                        change: ClockChange::JumpMs(by) | ClockChange::Strobe { by_ms: by, .. }, ..
                    } => Duration::from_millis(by.unsigned_abs()),
                    Fault::Clock { change: ClockChange::DriftPpm(ppm), lasting, .. } => {
                        lasting.mul_f64(f64::from(ppm.unsigned_abs()) / 1e6)
                    }
                    _ => Duration::ZERO,
                });
                self.not_before(at.plus(moved));
            }
            FaultPhase::HealProved => self.not_before(at),
            _ => {}
        }
    }
}
