//! The plan: a scenario, fully resolved with its seed. It is written before anything starts.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{ClockChange, Fault, FaultKind, NodeName, Point, Step, Target, When};

/// Durations in plans are written as a person writes them: `2s`, `150ms`, `1s 500ms`.
pub(crate) mod human {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_duration(*d))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(d)?;
        humantime::parse_duration(&text)
            .map_err(|e| D::Error::custom(format!("`{text}` is not a duration such as `2s` or `150ms`: {e}")))
    }

    pub mod optional {
        use super::*;

        pub fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
            match d {
                Some(d) => super::serialize(d, s),
                None => s.serialize_none(),
            }
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
            super::deserialize(d).map(Some)
        }
    }
}

/// A range of durations, both ends included: `100ms..200ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The shortest.
    #[serde(with = "human")]
    pub from: Duration,
    /// The longest.
    #[serde(with = "human")]
    pub to: Duration,
}

/// What the cluster is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterKind {
    /// Real servers in containers.
    Docker,
    /// Models of the servers, in one process under virtual time.
    Sim,
}

impl ClusterKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ClusterKind::Docker => "docker",
            ClusterKind::Sim => "sim",
        }
    }
}

/// By which clock a model of a store with leases lets them run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseClock {
    /// When both the wall clock and the monotonic clock say so (etcd 3.4).
    #[default]
    Both,
    /// When the monotonic clock says so (etcd from 3.5 on).
    Monotonic,
}

/// What a model of Redis has on disk after a loss of power (`appendonly`, `appendfsync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Persistence {
    /// Nothing: `appendonly no`, and no snapshot.
    #[default]
    No,
    /// All up to the last full second: `appendfsync everysec`. A SIGKILL loses nothing.
    Everysec,
    /// All that was answered: `appendfsync always`.
    Always,
}

/// Switches of the models in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// Of the store with leases.
    #[serde(default)]
    pub lease_clock: LeaseClock,
    /// Of the store with leases: a leader that was frozen and goes on revokes the leases that ran out by its own clock, though they had
    /// been renewed elsewhere (etcd#15247).
    #[serde(default)]
    pub revokes_on_resume: bool,
    /// Of a Redis node.
    #[serde(default)]
    pub persistence: Persistence,
}

/// How a backend makes fencing tokens (design of each: `locks`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tokens {
    /// It makes none; the fencing arms are left out of the plan.
    None,
    /// `redis`: the node's own counter.
    Counter,
    /// `redlock`: the largest counter of the majority. Not monotonic.
    MajorityMax,
    /// `redlock`: that largest counter, written back to a majority before the hold is claimed.
    TwoPhase,
    /// `etcd`: the revision at which the key was created.
    Revision,
}

impl std::fmt::Display for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Tokens::None => "none",
            Tokens::Counter => "counter",
            Tokens::MajorityMax => "majority-max",
            Tokens::TwoPhase => "two-phase",
            Tokens::Revision => "revision",
        })
    }
}

/// One policy of the resource; all of a plan are judged in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Accepts everything.
    Off,
    /// Checks the token on writes.
    Writes,
    /// Checks the token on writes and registers it on reads too.
    Reads,
    /// Compares the version that was read.
    Cas,
    /// A read claims; a write is admitted if that claim is still the newest (antirez).
    Claim,
}

impl Arm {
    /// All arms, in the order of every table.
    pub const ALL: [Arm; 5] = [Arm::Off, Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Off => "off",
            Arm::Writes => "writes",
            Arm::Reads => "reads",
            Arm::Cas => "cas",
            Arm::Claim => "claim",
        }
    }

    /// Whether the fence property binds it: the arm decides by token.
    pub fn fences(self) -> bool {
        matches!(self, Arm::Writes | Arm::Reads)
    }

    /// Whether the data property binds it: on the other arms lost updates are measured.
    pub fn keeps_data(self) -> bool {
        matches!(self, Arm::Reads | Arm::Cas | Arm::Claim)
    }
}

impl std::fmt::Display for Arm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How fencing arms compare a token with the largest one seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// Refuses `token < seen`, and `token = seen` from another hold.
    #[default]
    Default,
    /// Refuses `token ≤ seen`: one write a hold. Cannot go with `reads`.
    Strict,
}

/// What clients do about their deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// Acquire, read, work, write, release: what most code does.
    #[default]
    Unchecked,
    /// They verify their deadline just before each write.
    Checking,
}

/// What clients do, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Workers: one process each, in a container of its own.
    pub workers: u32,
    /// Clients in each worker.
    pub clients_per_worker: u32,
    /// Keys, drawn evenly; 1 is the hot key.
    pub keys: u32,
    /// Critical sections offered per second, by all clients together (open model).
    pub rate_per_s: f64,
    /// Waited between read and write.
    pub work: Range,
    /// Waited between two attempts at a held lock.
    pub retry_delay: Range,
    /// What clients do about their deadline.
    pub client: ClientKind,
    /// Renew so often while holding; never, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<Duration>,
    /// Lease that renewals ask for; that of the plan, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub renew_for: Option<Duration>,
    /// Writes under one hold, each with work before it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub writes: u32,
    /// Send a write that was not answered again so often, as the same operation, until it is answered; never, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub resend: Option<Duration>,
    /// Give an attempt up that has not been answered for so long, and undo it; never, if absent.
    #[serde(with = "human::optional", default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Duration>,
}

impl Default for Workload {
    /// What `harness run` does without flags: one hot key, five workers with one client each.
    fn default() -> Workload {
        Workload {
            workers: 5,
            clients_per_worker: 1,
            keys: 1,
            rate_per_s: 3.0,
            work: Range { from: Duration::from_millis(100), to: Duration::from_millis(200) },
            retry_delay: Range { from: Duration::from_millis(50), to: Duration::from_millis(150) },
            client: ClientKind::Unchecked,
            renew: None,
            renew_for: None,
            writes: 1,
            resend: None,
            cancel: None,
        }
    }
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

/// What a run must have seen to say anything (property 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activity {
    /// Holds at least.
    pub holds: u32,
    /// Clients with holds of one shared key at least.
    pub clients: u32,
    /// Attempts refused as held at least.
    pub refused: u32,
}

impl Default for Activity {
    fn default() -> Self {
        Activity { holds: 20, clients: 2, refused: 5 }
    }
}

/// A run, fully resolved: the same plan is the same schedule, though never the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of this format: 1.
    pub schema: u32,
    /// Everything random comes from it.
    pub seed: u64,
    /// What the servers are.
    pub cluster: ClusterKind,
    /// The lock under test, by the name of its correct form. What `buggy:` names stands in `plan.toml` only.
    pub backend: String,
    /// How it makes tokens.
    pub tokens: Tokens,
    /// Length of the fault phase.
    #[serde(with = "human")]
    pub time: Duration,
    /// Asked of the lock by every attempt.
    #[serde(with = "human")]
    pub lease: Duration,
    /// Arms of the resource.
    pub arms: Vec<Arm>,
    /// How its fencing arms compare.
    pub fence: Comparison,
    /// Lock nodes.
    pub lock_nodes: Vec<NodeName>,
    /// What clients do.
    pub workload: Workload,
    /// What the run must have seen.
    pub activity: Activity,
    /// Kinds of faults that were asked for, as written; `none` is an empty list.
    pub nemesis: Vec<String>,
    /// Switches of the models, in a simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Models>,
    /// Every fault, drawn from the seed or placed.
    pub schedule: Vec<Step>,
}

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
    /// Kinds in the schedule, without repetition.
    pub fn kinds(&self) -> Vec<FaultKind> {
        let mut kinds: Vec<_> = self.schedule.iter().map(|s| s.fault.kind()).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }

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
        if self.arms.is_empty() {
            return err("arms", "there must be at least one".into());
        }
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
                Target::Holder if matches!(step.when, When::AtPoint(_)) => {
                    return err(format!("{name}: at a protocol point the target must be a node by name"));
                }
                _ => {}
            }
            match step.when {
                When::At(at) if at >= self.time => {
                    return err(format!("{name}: it is due after {at:?}, and the run is over after {:?}", self.time));
                }
                When::AtPoint(Point::AfterCheck) if self.workload.client == ClientKind::Unchecked => {
                    return err(format!(
                        "{name}: only checking clients come to `after-check`; add `--client checking`"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether this cluster can do to this target what `step` asks for.
    fn is_possible(&self, step: &Step) -> Result<(), String> {
        let kind = step.fault.kind();
        if self.cluster == ClusterKind::Docker && !matches!(kind, FaultKind::Pause | FaultKind::Kill) {
            return Err("this fault cannot be injected into containers; `--cluster sim` has it".into());
        }
        if let Fault::Clock { clock, change, .. } = &step.fault {
            if let ClockChange::JumpMs(by) = change
                && (*by == 0 || (*by < 0 && clock.is_monotonic()))
            {
                return Err(format!(
                    "a jump by {by} ms: a monotonic clock only jumps forwards, and no clock by nothing"
                ));
            }
            if let ClockChange::DriftPpm(by) = change
                && !(-500_000..=500_000).contains(by)
            {
                return Err(format!("a drift of {by} ppm is outside -500000 to 500000"));
            }
        }
        let workers_only = self.cluster == ClusterKind::Docker;
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
        let is_known = is_worker || (!workers_only && (is_lock_node || node.as_str() == "resource"));
        if !is_known {
            let workers = self.workload.workers;
            return Err(if workers_only {
                format!("`{node}` is no worker; there are worker-1 to worker-{workers}")
            } else {
                format!("`{node}` is no node; there are worker-1 to worker-{workers}, resource and the lock nodes")
            });
        }
        match kind {
            FaultKind::Amnesia | FaultKind::Powerloss if !is_lock_node => {
                Err(format!("`{node}` is no lock node, and has no data to lose"))
            }
            _ => Ok(()),
        }
    }

    /// Names of the workers.
    pub fn workers(&self) -> impl Iterator<Item = NodeName> + use<> {
        (1..=self.workload.workers).map(|n| NodeName::new(format!("worker-{n}")))
    }

    /// Reads a plan. The error says where (line and column) and what was expected.
    pub fn from_toml(text: &str) -> Result<Plan, toml::de::Error> {
        toml::from_str(text)
    }

    /// The plan as TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, FaultId};

    pub(crate) fn plan() -> Plan {
        Plan {
            schema: 1,
            seed: 42,
            cluster: ClusterKind::Docker,
            backend: "redlock".into(),
            tokens: Tokens::TwoPhase,
            time: Duration::from_secs(30),
            lease: Duration::from_secs(2),
            arms: Arm::ALL.to_vec(),
            fence: Comparison::Default,
            lock_nodes: vec!["redis-1".into()],
            workload: Workload {
                workers: 2,
                clients_per_worker: 1,
                keys: 1,
                rate_per_s: 3.0,
                work: Range { from: Duration::from_millis(100), to: Duration::from_millis(200) },
                retry_delay: Range { from: Duration::from_millis(50), to: Duration::from_millis(150) },
                client: ClientKind::Unchecked,
                renew: Some(Duration::from_millis(1500)),
                renew_for: None,
                writes: 1,
                resend: None,
                cancel: None,
            },
            activity: Activity::default(),
            nemesis: vec!["pause".into()],
            models: None,
            schedule: vec![
                Step {
                    id: FaultId(1),
                    fault: Fault::Pause { lasting: Duration::from_millis(3_250) },
                    target: Target::Holder,
                    when: When::AfterHeal(Duration::from_millis(731)),
                },
                Step {
                    id: FaultId(2),
                    fault: Fault::Kill { back_after: Duration::from_secs(1) },
                    target: Target::Node("worker-2".into()),
                    when: When::AtPoint(Point::BeforeWrite),
                },
            ],
        }
    }

    #[test]
    fn a_plan_survives_toml_and_json() {
        let plan = plan();
        assert_eq!(Plan::from_toml(&plan.to_toml().unwrap()).unwrap(), plan);
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
        let without = Plan { workload: Workload { renew: None, ..plan.workload.clone() }, ..plan };
        assert_eq!(Plan::from_toml(&without.to_toml().unwrap()).unwrap(), without);
    }

    #[test]
    fn a_broken_plan_is_refused_where_it_is_broken() {
        let text = plan().to_toml().unwrap();
        let unknown = text.replace("lease = ", "leese = ");
        let message = Plan::from_toml(&unknown).unwrap_err().to_string();
        assert!(message.contains("leese") && message.contains("line"), "{message}");
        let duration = text.replace("\"2s\"", "\"two\"");
        let message = Plan::from_toml(&duration).unwrap_err().to_string();
        assert!(message.contains("`two` is not a duration"), "{message}");
    }

    #[test]
    fn what_types_cannot_refuse_is_refused() {
        type Change = fn(&mut Plan);
        let table: [(&str, Change); 14] = [
            ("workers", |p| p.workload.workers = 0),
            ("rate", |p| p.workload.rate_per_s = f64::NAN),
            ("keys", |p| p.workload.keys = 0),
            ("work", |p| p.workload.work.from = Duration::from_secs(9)),
            ("lease", |p| p.lease = Duration::ZERO),
            ("renew", |p| p.workload.renew = Some(p.lease)),
            ("arms", |p| p.tokens = Tokens::None),
            ("fence", |p| p.fence = Comparison::Strict),
            ("seed", |p| p.seed = u64::MAX),
            ("nemesis", |p| p.schedule[1].target = Target::Node("agent".into())),
            ("nemesis", |p| p.schedule[1].target = Target::Holder),
            ("nemesis", |p| p.schedule[1].when = When::AtPoint(Point::AfterCheck)),
            ("nemesis", |p| p.schedule[1].when = When::At(p.time)),
            ("nemesis", |p| p.schedule[1].id = p.schedule[0].id),
        ];
        assert_eq!(plan().validate(), Ok(()));
        for (field, change) in table {
            let mut plan = plan();
            change(&mut plan);
            assert_eq!(plan.validate().unwrap_err().field, field);
        }
    }
}
