//! Checks of a plan that its types cannot express.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Plan, peers::Roles};
use crate::{
    arm::{Arm, Comparison},
    cluster::ClusterKind,
    fault::{FaultId, FaultKind},
    names::NodeName,
    point::Point,
    resource_kind::ResourceKind,
    servers::{ServerModel, Tokens},
    step::{Step, When},
    target::Target,
    workload::ClientKind,
};

/// The most keys of a hierarchy: a section that takes the parent reads all children one after the other.
const TREE_MAX: u32 = 32;
/// The most keys: the servers of some locks keep a record of every key that was ever locked.
const KEYS_MAX: u32 = 10_000_000;
/// The most locks of a critical section. A client takes them one after the other.
const LOCKS_MAX: u32 = 100;
/// The longest run. A run waits at its end for clients that still work, so no work is longer either.
const LONGEST_RUN: Duration = Duration::from_secs(24 * 3600);
/// The longest lease, of an attempt or of a renewal.
const LONGEST_LEASE: Duration = Duration::from_secs(600);

/// The reason why a plan cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct PlanError {
    /// The field, by the name of its flag.
    pub field: &'static str,
    /// The problem, the expected value, and what to do.
    pub problem: String,
}

impl Plan {
    /// The largest seed: not every reader of JSON keeps larger integers exactly.
    pub const SEED_MAX: u64 = 1 << 53;

    /// Checks that the plan can be run.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn validate(&self) -> Result<(), PlanError> {
        let err = |field, problem: String| Err(PlanError { field, problem });
        self.check_sizes()?;
        let w = &self.workload;
        if self.seed > Self::SEED_MAX {
            return err(
                "seed",
                format!("{} is above 2^53, the largest integer that every reader of JSON keeps", self.seed),
            );
        }
        if self.schema != 1 {
            return err("schema", format!("{} is unknown; this version reads schema 1", self.schema));
        }
        if let Some(program) = &self.program {
            if self.cluster == ClusterKind::Sim {
                let problem = "the simulation cannot run a program, because a program has no virtual time";
                return err("client", format!("`{}`: {problem}; use `--cluster docker`", program.text()));
            }
            if program.command.first().is_none_or(String::is_empty) {
                return err("client", "the command is empty; expected a program and its arguments".into());
            }
        }
        self.check_own_servers()?;
        if self.lock_nodes.is_empty() {
            return err("lock_nodes", "expected at least one lock node".into());
        }
        let mut names = BTreeSet::new();
        if let Some((n, twice)) = self.lock_nodes.iter().enumerate().find(|(_, node)| !names.insert(*node)) {
            return err("lock_nodes", format!("`{twice}` is listed twice, the second time as node {}", n + 1));
        }
        if let Some(own) = self.lock_nodes.iter().find(|node| is_own(node)) {
            let problem = "is the name of a node of the harness; name the lock node otherwise";
            return err("lock_nodes", format!("`{own}` {problem}"));
        }
        if w.workers == 0 || w.workers > 64 {
            return err("workers", format!("{} is outside 1 to 64", w.workers));
        }
        if w.clients_per_worker == 0 || w.clients_per_worker > 1_000 {
            return err("clients-per-worker", format!("{} is outside 1 to 1000", w.clients_per_worker));
        }
        if w.keys == 0 || w.keys > KEYS_MAX {
            return err("keys", format!("{} is outside 1 to {KEYS_MAX}", w.keys));
        }
        // Before the rate and the work, which `harness dose` makes from the lease.
        if self.lease < Duration::from_millis(50) || self.lease > LONGEST_LEASE {
            let lease = humantime::format_duration(self.lease);
            return err("lease", format!("{lease} is outside 50ms to 10m"));
        }
        if !(w.rate_per_s.is_finite() && w.rate_per_s > 0.0 && w.rate_per_s <= 100_000.0) {
            return err(
                "rate",
                format!("{} critical sections per second: expected more than 0, and at most 100000", w.rate_per_s),
            );
        }
        for (field, range) in [("work", w.work), ("retry-delay", w.retry_delay)] {
            if range.from > range.to {
                return err(field, "the range is upside down: its first duration is longer than its second".into());
            }
            if range.to > LONGEST_RUN {
                return err(field, format!("{:?} is too long: expected at most 24h", range.to));
            }
        }
        if self.time < Duration::from_secs(1) || self.time > LONGEST_RUN {
            return err("time", format!("{:?} is too short or too long: expected 1s to 24h", self.time));
        }
        if let Some(renew) = w.renew
            && (renew < Duration::from_millis(10) || renew >= self.lease)
        {
            return err("renew", format!("{renew:?} is outside 10ms to the lease of {:?}", self.lease));
        }
        if w.writes == 0 || w.writes > 100 {
            return err("writes", format!("{} is outside 1 to 100", w.writes));
        }
        if !(0.0..=1.0).contains(&w.readers) {
            return err("readers", format!("{} is no share of the critical sections: expected 0 to 1", w.readers));
        }
        if w.has_readers() && w.session {
            return err("readers", "no lock has readers in a shared session: leave out `--session`".into());
        }
        self.check_hierarchy()?;
        if w.reenter > 100 {
            return err("reenter", format!("{} is above 100", w.reenter));
        }
        if w.locks_per_section == 0 || w.locks_per_section > w.keys {
            let problem = format!("{} is outside 1 to the number of keys, {}", w.locks_per_section, w.keys);
            return err("locks-per-section", format!("{problem}; a section takes different keys: add `--keys`"));
        }
        if w.locks_per_section > LOCKS_MAX {
            return err("locks-per-section", format!("{} is above {LOCKS_MAX}", w.locks_per_section));
        }
        let of_several = [("opposite", w.opposite), ("patience", w.patience.is_some())];
        if let Some((field, _)) = of_several.into_iter().find(|(_, is_given)| *is_given && w.locks_per_section == 1) {
            return err(field, "a section takes one key; add `--locks-per-section 2 --keys 2`".into());
        }
        if let Some(lease) = w.renew_for.filter(|lease| *lease > LONGEST_LEASE) {
            let lease = humantime::format_duration(lease);
            return err("renew-for", format!("{lease} is a lease of more than 10m, the longest that `--lease` takes"));
        }
        let times = [("resend", w.resend), ("cancel", w.cancel), ("renew-for", w.renew_for), ("patience", w.patience)];
        for (field, every) in times {
            if every.is_some_and(|d| d < Duration::from_millis(10)) {
                return err(field, "the duration is shorter than 10ms".into());
            }
            if let Some(long) = every.filter(|d| *d > LONGEST_RUN) {
                return err(field, format!("{} is too long: expected at most 24h", humantime::format_duration(long)));
            }
        }
        if w.deadline.is_some_and(|d| d < Duration::from_millis(10) || d > self.lease) {
            return err("deadline", format!("the deadline is outside 10ms to the lease of {:?}", self.lease));
        }
        self.check_script().or_else(|problem| err("script", problem))?;
        if self.arms.is_empty() {
            return err("arms", "expected at least one arm".into());
        }
        if let Some((_, twice)) = self.arms.iter().enumerate().find(|(n, arm)| self.arms[..*n].contains(arm)) {
            return err("arms", format!("`{}` is listed twice", twice.name()));
        }
        self.check_waits().or_else(|problem| err("waits", problem))?;
        self.validate_schedule()?;
        if self.tokens == Tokens::None && self.arms.iter().any(|a| a.fences()) {
            return err("arms", "the arms `writes` and `reads` need tokens, and the plan has `tokens = none`".into());
        }
        if self.cluster == ClusterKind::Sim && !self.resource.is_service() {
            let problem = "the simulation has no model of this store; use `--cluster docker`";
            return err("resource", format!("`{}`: {problem}", self.resource.name()));
        }
        if self.resource == ResourceKind::Etcd {
            // The resource's transactions are those of etcd, whose leases and revisions are such a store.
            if self.servers.model() != Some(ServerModel::LeaseStore) {
                let problem = "the servers of this lock cannot decide about requests; use `--backend etcd`";
                return err("resource", format!("`etcd`: `{}`: {problem}", self.backend));
            }
            let is_kill = |step: &Step| {
                step.fault.kind() == FaultKind::Kill
                    && matches!(&step.target, Target::Node(node) if node.as_str() == "resource")
            };
            if self.schedule.iter().any(is_kill) {
                let problem =
                    "a kill of `resource` could leave a decision in etcd without an entry in the admission log";
                return err("nemesis", format!("{problem}; use another fault, or another --resource"));
            }
        }
        if self.arms.contains(&Arm::Guard) && (self.resource != ResourceKind::Etcd || self.tokens == Tokens::None) {
            let problem = "needs `--resource etcd` and tokens: it compares the revision of the hold's own lock key";
            return err("arms", format!("the arm `guard` {problem}"));
        }
        if self.fence == Comparison::Strict && self.arms.contains(&Arm::Reads) {
            return err("fence", "`strict` (one write per hold) excludes the arm `reads`; leave `reads` out".into());
        }
        Ok(())
    }

    /// Checks the share of the sections that take the parent of all other keys, and what such sections exclude.
    fn check_hierarchy(&self) -> Result<(), PlanError> {
        let w = &self.workload;
        let err = |field, problem: String| Err(PlanError { field, problem });
        if !(0.0..=1.0).contains(&w.hierarchy) {
            return err("hierarchy", format!("{} is no share of the critical sections: expected 0 to 1", w.hierarchy));
        }
        if w.parent().is_none() {
            return Ok(());
        }
        if w.keys < 2 || w.keys > TREE_MAX {
            let problem = format!("k0 is the parent of all other keys; expected 2 to {TREE_MAX} keys, and found");
            return err("keys", format!("{problem} {}: change `--keys`", w.keys));
        }
        if w.locks_per_section > 1 {
            return err("locks-per-section", "with `--hierarchy` a section takes the locks that its key needs".into());
        }
        if let Some(arm) = self.arms.iter().find(|arm| arm.fences() || **arm == Arm::Guard) {
            let problem = "the tokens of a parent and of its children are not ordered; use `--arms off,cas`";
            return err("arms", format!("the arm `{}` cannot be used with `--hierarchy`: {problem}", arm.name()));
        }
        Ok(())
    }

    /// Checks every fault. A fault that cannot be injected is refused, and never left out silently.
    fn validate_schedule(&self) -> Result<(), PlanError> {
        let err = |problem: String| Err(PlanError { field: "nemesis", problem });
        let workers: BTreeSet<NodeName> = self.workers().collect();
        let is_worker = |target: &Target| matches!(target, Target::Node(node) if workers.contains(node));
        let all: BTreeSet<FaultId> = self.schedule.iter().map(|step| step.id).collect();
        let (mut ids, roles) = (BTreeSet::new(), self.roles());
        for step in &self.schedule {
            let name = named(step);
            if !ids.insert(step.id) {
                return err(format!("{name}: an earlier fault has the same id"));
            }
            if let Err(problem) = self.is_possible(step, &roles) {
                return err(format!("{name}: {problem}"));
            }
            match step.when {
                When::AtPoint(_) if !is_worker(&step.target) => {
                    let problem = "only workers come to protocol points; the target must be the name of a worker";
                    return err(format!("{name}: {problem}, such as `worker-1`"));
                }
                When::At(at) if at >= self.time => {
                    return err(format!(
                        "{name}: the fault begins after {at:?}, and the run is over after {:?}",
                        self.time
                    ));
                }
                When::Healed(other) if other == step.id || !all.contains(&other) => {
                    return err(format!("{name}: the plan has no other fault {}", other.0));
                }
                When::WhileWaits(wait) if self.wait(wait).is_none() => {
                    return err(format!("{name}: the plan has no wait {}", wait.0));
                }
                When::AtPoint(Point::AfterCheck) if self.workload.client == ClientKind::Unchecked => {
                    return err(format!("{name}: only checking clients reach `after-check`; add `--client checking`"));
                }
                _ => {}
            }
        }
        if let Some(step) = self.never_begins() {
            let problem = "`healed` leads in a circle, so the fault would never begin";
            return err(format!("{}: {problem}; give one fault of the circle a time", named(step)));
        }
        self.check_together().or_else(err)
    }

    /// Returns the first fault that waits for the heals of faults that wait for each other. Looks at each step once.
    fn never_begins(&self) -> Option<&Step> {
        let waits_for = |step: &Step| if let When::Healed(before) = step.when { Some((step.id, before)) } else { None };
        let before: BTreeMap<FaultId, FaultId> = self.schedule.iter().filter_map(waits_for).collect();
        // For each fault that waits: the number of the walk that came to it last.
        let mut seen = BTreeMap::new();
        let is_endless = |(walk, step): &(usize, &Step)| {
            let mut fault = step.id;
            while let Some(next) = before.get(&fault) {
                match seen.insert(fault, *walk) {
                    None => fault = *next,
                    // A walk that comes to a fault again is in a circle. An earlier walk has come from there to an end.
                    Some(earlier) => return earlier == *walk,
                }
            }
            false
        };
        self.schedule.iter().enumerate().find(is_endless).map(|(_, step)| step)
    }

    /// Checks that this cluster can inject the fault of `step` into its target.
    fn is_possible(&self, step: &Step, roles: &Roles) -> Result<(), String> {
        step.fault.check()?;
        self.spares_own_servers(step)?;
        match &step.target {
            Target::Leader if !self.has_leader() => {
                let backend = &self.backend;
                return Err(format!("`leader`: the servers of backend {backend} elect no leader; name a node instead"));
            }
            Target::Node(node)
                if !self.has_worker(node)
                    && !self.planned_cluster().may_be_lock_node(node)
                    && node.as_str() != "resource" =>
            {
                let workers = self.workload.workers;
                let all = format!("expected worker-1 to worker-{workers}, resource or a lock node");
                return Err(format!("`{node}` is no node; {all}"));
            }
            _ => {}
        }
        self.names_peers(step, roles)?;
        step.fault.check_target(&self.planned_cluster(), &step.target)
    }
}

/// Names a step in messages.
pub(super) fn named(step: &Step) -> String {
    format!("fault {} ({})", step.id.0, step.fault.kind())
}

/// Returns whether `node` has the name of a node or of a process of the harness.
fn is_own(node: &NodeName) -> bool {
    matches!(node.as_str(), "resource" | "agent" | "controller") || node.as_str().starts_with("worker-")
}
