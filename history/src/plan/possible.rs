//! What makes a plan possible: all that types cannot refuse.

use std::{collections::BTreeSet, time::Duration};

use super::{Arm, ClientKind, ClusterKind, Comparison, Plan, Tokens};
use crate::{ClockChange, Fault, FaultKind, Late, NodeName, Point, Step, Target, When};

/// Packets that are less late than this may as well have met nothing but a busy link.
const LATE_FROM: Duration = Duration::from_millis(1);

/// A strobe that is faster than this may not be seen there by a server that looks at its clock every now and then.
const STROBE_FROM_MS: u64 = 10;

/// The plan cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct PlanError {
    /// Which field.
    pub field: &'static str,
    /// What is wrong with it, what was expected, and what to do.
    pub problem: String,
}

impl Plan {
    /// Checks what the types cannot: a plan is input.
    pub fn validate(&self) -> Result<(), PlanError> {
        let err = |field, problem: String| Err(PlanError { field, problem });
        let w = &self.workload;
        if self.seed > 1 << 53 {
            return err("seed", format!("{} is above 2^53, which not every reader of JSON keeps whole", self.seed));
        }
        if self.schema != 1 {
            return err("schema", format!("{} is unknown; this version reads schema 1", self.schema));
        }
        if w.workers == 0 || w.workers > 64 {
            return err("workers", format!("{} is outside 1 to 64", w.workers));
        }
        if w.clients_per_worker == 0 || w.clients_per_worker > 1_000 {
            return err("clients-per-worker", format!("{} is outside 1 to 1000", w.clients_per_worker));
        }
        if w.keys == 0 {
            return err("keys", "there must be at least one key".into());
        }
        if !(w.rate_per_s.is_finite() && w.rate_per_s > 0.0 && w.rate_per_s <= 100_000.0) {
            return err("rate", format!("{} is outside 0 to 100000 critical sections a second", w.rate_per_s));
        }
        for (field, range) in [("work", w.work), ("retry-delay", w.retry_delay)] {
            if range.from > range.to {
                return err(field, "the range is upside down: its first end must not be the longer one".into());
            }
        }
        if self.lease < Duration::from_millis(50) || self.lease > Duration::from_secs(600) {
            return err("lease", format!("{:?} is outside 50ms to 10m", self.lease));
        }
        if self.time < Duration::from_secs(1) || self.time > Duration::from_secs(24 * 3600) {
            return err("time", format!("{:?} is outside 1s to 24h", self.time));
        }
        if let Some(renew) = w.renew
            && (renew < Duration::from_millis(10) || renew >= self.lease)
        {
            return err("renew", format!("{renew:?} must lie between 10ms and the lease of {:?}", self.lease));
        }
        if w.writes == 0 || w.writes > 100 {
            return err("writes", format!("{} is outside 1 to 100", w.writes));
        }
        for (field, every) in [("resend", w.resend), ("cancel", w.cancel), ("renew-for", w.renew_for)] {
            if every.is_some_and(|d| d < Duration::from_millis(10)) {
                return err(field, "shorter than 10ms".into());
            }
        }
        if w.deadline.is_some_and(|d| d < Duration::from_millis(10) || d > self.lease) {
            return err("deadline", format!("it must lie between 10ms and the lease of {:?}", self.lease));
        }
        self.check_script().or_else(|problem| err("script", problem))?;
        if self.arms.is_empty() {
            return err("arms", "there must be at least one".into());
        }
        self.check_waits().or_else(|problem| err("waits", problem))?;
        self.validate_schedule()?;
        if self.tokens == Tokens::None && self.arms.iter().any(|a| a.fences()) {
            return err("arms", "`writes` and `reads` need tokens, and the plan has `tokens = none`".into());
        }
        if self.fence == Comparison::Strict && self.arms.contains(&Arm::Reads) {
            return err("fence", "`strict` (one write a hold) cannot go with the arm `reads`".into());
        }
        Ok(())
    }

    /// A fault that cannot happen is refused here, and never left out in silence.
    fn validate_schedule(&self) -> Result<(), PlanError> {
        let err = |problem: String| Err(PlanError { field: "nemesis", problem });
        let mut ids = BTreeSet::new();
        for step in &self.schedule {
            let name = format!("fault {} ({})", step.id.0, step.fault.kind());
            if !ids.insert(step.id) {
                return err(format!("{name}: its number is taken"));
            }
            if let Err(problem) = self.is_possible(step) {
                return err(format!("{name}: {problem}"));
            }
            match &step.target {
                Target::Holder | Target::Leader if matches!(step.when, When::AtPoint(_)) => {
                    return err(format!("{name}: at a protocol point the target must be a node by name"));
                }
                _ => {}
            }
            match step.when {
                When::At(at) if at >= self.time => {
                    return err(format!("{name}: it is due after {at:?}, and the run is over after {:?}", self.time));
                }
                When::Healed(other) if other == step.id || !self.schedule.iter().any(|s| s.id == other) => {
                    return err(format!("{name}: there is no other fault {} in the plan", other.0));
                }
                When::WhileWaits(wait) if self.wait(wait).is_none() => {
                    return err(format!("{name}: there is no wait {} in the plan", wait.0));
                }
                When::AtPoint(Point::AfterCheck) if self.workload.client == ClientKind::Unchecked => {
                    return err(format!(
                        "{name}: only checking clients come to `after-check`; add `--client checking`"
                    ));
                }
                _ => {}
            }
        }
        self.check_together().or_else(err)
    }

    /// Whether its lock nodes have a leader that they elect.
    pub fn has_leader(&self) -> bool {
        self.backend == "etcd"
    }

    /// Whether there are counters that a node which starts again could take over from those that are named, and a way to.
    fn has_counters(&self, step: &Step) -> Result<(), String> {
        let Fault::Amnesia { counters_of, .. } = &step.fault else { return Ok(()) };
        let is_target = |other: &NodeName| step.target == Target::Node(other.clone());
        let is_other = |other: &&NodeName| !is_target(other) && self.lock_nodes.contains(other);
        match counters_of.iter().find(|other| !is_other(other)) {
            _ if counters_of.is_empty() => Ok(()),
            _ if self.has_one_store() => {
                Err("`counters_of`: members of one store have no counters of their own".into())
            }
            _ if self.models.is_some_and(|models| models.persistence.has_log()) => {
                Err("`counters_of`: a Redis with an append-only file looks at nothing else when it starts".into())
            }
            Some(other) => Err(format!("`counters_of`: `{other}` is no other lock node")),
            None => Ok(()),
        }
    }

    /// Whether this cluster can do to this target what `step` asks for.
    fn is_possible(&self, step: &Step) -> Result<(), String> {
        let kind = step.fault.kind();
        let is_docker = self.cluster == ClusterKind::Docker;
        if is_docker && kind == FaultKind::Powerloss {
            return Err("a container's kernel keeps what was not synced; `--cluster sim` has this fault".into());
        }
        if is_docker && kind == FaultKind::Amnesia && self.has_one_store() {
            return Err("a member of etcd without its data is a member no more; `kill` leaves it its data".into());
        }
        is_sensible(&step.fault)?;
        self.has_counters(step)?;
        if step.target == Target::Leader {
            let none = format!("`leader`: the lock nodes of {} have none; those of etcd have", self.backend);
            return if self.has_leader() { Ok(()) } else { Err(none) };
        }
        let Target::Node(node) = &step.target else {
            return match kind {
                FaultKind::Amnesia | FaultKind::Powerloss => {
                    Err("the holder has no data to lose; name a lock node".into())
                }
                _ => Ok(()),
            };
        };
        let (is_worker, is_lock_node) = (self.workers().any(|w| w == *node), self.lock_nodes.contains(node));
        // A plan whose servers are not known yet is looked at again when they are.
        let is_lock_node = is_lock_node || (self.lock_nodes.is_empty() && !is_worker);
        if !is_worker && !is_lock_node && node.as_str() != "resource" {
            let workers = self.workload.workers;
            let all = format!("there are worker-1 to worker-{workers}, resource and the lock nodes");
            return Err(format!("`{node}` is no node; {all}"));
        }
        match kind {
            FaultKind::Amnesia | FaultKind::Powerloss if !is_lock_node => {
                Err(format!("`{node}` is no lock node, and has no data to lose"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the parameters of a fault say something that can be done.
fn is_sensible(fault: &Fault) -> Result<(), String> {
    if let Fault::Clock { clock, change, lasting } = fault {
        if let ClockChange::JumpMs(by) = change
            && (*by == 0 || (*by < 0 && clock.is_monotonic()))
        {
            return Err(format!("a jump by {by} ms: a monotonic clock only jumps forwards, and no clock by nothing"));
        }
        if let ClockChange::DriftPpm(by) = change
            && !(-500_000..=500_000).contains(by)
        {
            return Err(format!("a drift of {by} ppm is outside -500000 to 500000"));
        }
        if let ClockChange::Strobe { by_ms, every_ms } = *change {
            if by_ms == 0 || clock.is_monotonic() {
                return Err(format!(
                    "a strobe by {by_ms} ms: only the wall clock goes back and forth, and not by nothing"
                ));
            }
            if every_ms < STROBE_FROM_MS || Duration::from_millis(every_ms) * 2 > *lasting {
                return Err(format!(
                    "a strobe every {every_ms} ms: expected at least {STROBE_FROM_MS}, and there and back within the {lasting:?} of the fault"
                ));
            }
        }
    }
    if let Fault::Slow { percent, .. } = *fault
        && !(1..=50).contains(&percent)
    {
        return Err(format!("{percent} % of a processor is outside 1 to 50"));
    }
    if let Fault::Loss { percent, .. } = *fault
        && !(1..=100).contains(&percent)
    {
        return Err(format!("a loss of {percent} % is outside 1 to 100"));
    }
    match fault.late() {
        Some(Late::Drawn(by)) if by.from > by.to => {
            return Err("the range is upside down: its first end must not be the longer one".into());
        }
        Some(Late::Drawn(by)) if fault.kind() == FaultKind::Reorder && by.from == by.to => {
            return Err(format!("packets that are all late by {:?} overtake nothing; give a range", by.to));
        }
        Some(late) if late.longest() < LATE_FROM => {
            return Err(format!(
                "{:?} cannot be told from what a link takes; from {LATE_FROM:?} on it can",
                late.longest()
            ));
        }
        _ => {}
    }
    Ok(())
}
