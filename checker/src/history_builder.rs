//! Builds small histories for tests, event by event.
//!
//! Times are milliseconds. Holds are numbered by hand; their worker and client are those of the attempt. The resource
//! decides by its own rule, in the order of arrival, unless a test says otherwise.

mod grants;
mod resource;
pub(crate) mod state;

use std::{collections::BTreeMap, time::Duration};

use history::{
    Activity, Answers, Arm, ArmDecision, ClientId, ClientKind, ClusterKind, Comparison, Event, FailureReason, Fault,
    FaultId, FaultKind, FaultPhase, HoldId, Key, Mode, NodeAnswer, NodeName, OpId, Outcome, Plan, ProcessName, Range,
    Record, RequestKind, Role, ServerFacts, StallCause, Stamp, Step, Tail, Target, Token, Tokens, When, Workload,
};

use crate::{
    properties::{LockVerdict, Window},
    verdict::Verdict,
    verdicts::{Figure, Verdicts},
};

pub(crate) fn ms(ms: u64) -> Stamp {
    Stamp(ms * 1_000_000)
}

/// The facts about the servers of `redlock`.
pub(crate) fn redlock() -> ServerFacts {
    serde_json::from_str(include_str!("../../tests/shared/servers/redlock.json")).unwrap()
}

/// The facts about the servers of `redis-replicated`.
pub(crate) fn redis_replicated() -> ServerFacts {
    serde_json::from_str(include_str!("../../tests/shared/servers/redis-replicated.json")).unwrap()
}

/// The facts about the servers of `etcd`.
pub(crate) fn etcd() -> ServerFacts {
    serde_json::from_str(include_str!("../../tests/shared/servers/etcd.json")).unwrap()
}

/// A plan of two workers with a client each, three lock nodes, a lease of 2 s (promise: 1,978 ms), and no thresholds.
pub(crate) fn plan() -> Plan {
    let millis = Duration::from_millis;
    Plan {
        schema: 1,
        seed: 1,
        cluster: ClusterKind::Docker,
        backend: "redlock".into(),
        tokens: Tokens::TwoPhase,
        time: Duration::from_secs(10),
        lease: Duration::from_secs(2),
        arms: vec![Arm::Off, Arm::Writes, Arm::Reads, Arm::Cas, Arm::Claim],
        fence: Comparison::Default,
        resource: Default::default(),
        lock_nodes: (1..=3).map(|i| NodeName::new(format!("redis-{i}"))).collect(),
        servers: redlock(),
        workload: Workload {
            workers: 2,
            clients_per_worker: 1,
            keys: 1,
            rate_per_s: 3.0,
            work: Range { from: millis(100), to: millis(200) },
            retry_delay: Range { from: millis(50), to: millis(150) },
            client: ClientKind::Unchecked,
            renew: None,
            ..Workload::default()
        },
        activity: Activity { holds: 0, clients: 0, refused: 0 },
        nemesis: Vec::new(),
        models: None,
        own_servers: Default::default(),
        program: None,
        waits: Vec::new(),
        schedule: Vec::new(),
    }
}

/// A request to the resource that arrives.
#[derive(Clone)]
struct Arrival {
    at: u64,
    hold: u64,
    op: u32,
    kind: RequestKind,
    /// The version that the write is based on; if absent, the version that the hold read last.
    base: Option<u64>,
    /// Another copy of a request that has arrived before.
    repeat: bool,
}

/// A test's change of the resource's decisions.
type AlterDecisions = Box<dyn Fn(u64, &mut Vec<ArmDecision>)>;
/// A test's change of what clients and resource record of their requests.
type AlterRequests = Box<dyn Fn(&mut Event)>;

/// A history under construction.
pub(crate) struct HistoryBuilder {
    pub plan: Plan,
    events: Vec<(ProcessName, Stamp, Event)>,
    workers: BTreeMap<u64, (ProcessName, Option<Token>)>,
    arrivals: Vec<Arrival>,
    alter_decisions: Option<AlterDecisions>,
    alter_repeats: Option<AlterDecisions>,
    alter_requests: Option<AlterRequests>,
    renumbered: Vec<(u64, u64)>,
    /// The number of an admission that is not on record.
    dropped: Option<u64>,
    forgotten: Vec<(u64, u64)>,
    /// Processes that do not finish.
    pub unfinished: Vec<&'static str>,
}

impl HistoryBuilder {
    pub fn new() -> Self {
        Self::with(plan())
    }

    pub fn with(plan: Plan) -> Self {
        HistoryBuilder {
            plan,
            events: Vec::new(),
            workers: BTreeMap::new(),
            arrivals: Vec::new(),
            alter_decisions: None,
            alter_repeats: None,
            alter_requests: None,
            renumbered: Vec::new(),
            dropped: None,
            forgotten: Vec::new(),
            unfinished: Vec::new(),
        }
    }

    pub fn renewing(interval_ms: u64) -> Self {
        let mut plan = plan();
        plan.workload.renew = Some(Duration::from_millis(interval_ms));
        Self::with(plan)
    }

    /// Any event.
    pub fn event(&mut self, process: &str, at: u64, event: Event) -> &mut Self {
        self.events.push((ProcessName::from(process), ms(at), event));
        self
    }

    fn of(&mut self, hold: u64, at: u64, event: Event) -> &mut Self {
        let process = self.workers[&hold].0.clone();
        self.events.push((process, ms(at), event));
        self
    }

    pub fn answers(nodes: &[(u64, NodeAnswer)]) -> Answers {
        nodes.iter().map(|(i, answer)| (NodeName::new(format!("redis-{i}")), *answer)).collect()
    }

    pub fn try_to_acquire(&mut self, hold: u64, worker: u32, sent: u64) -> &mut Self {
        self.workers.entry(hold).or_insert((ProcessName::new(format!("worker-{worker}")), None));
        let (client, key) = (ClientId(worker - 1), Key::from("k0"));
        let event =
            Event::Acquire { client, attempt: HoldId(hold), key, intended: ms(sent), mode: Mode::Write, above: None };
        self.of(hold, sent, event)
    }

    /// A hold of a process by its name.
    pub fn acquire_in(&mut self, process: &str, hold: u64, client: u32, sent: u64, ok: u64, token: u64) -> &mut Self {
        self.workers.insert(hold, (ProcessName::from(process), None));
        self.acquire(hold, client + 1, sent, ok, token)
    }

    /// A hold of `worker` that was sent, and acquired on all nodes; `granted_after` is the send stamp.
    pub fn acquire(&mut self, hold: u64, worker: u32, sent: u64, ok: u64, token: u64) -> &mut Self {
        self.acquire_knowing(hold, worker, sent, sent, ok, token)
    }

    /// The same, where the client knew until `granted_after` that it did not hold.
    pub fn acquire_knowing(
        &mut self,
        hold: u64,
        worker: u32,
        sent: u64,
        granted_after: u64,
        ok: u64,
        token: u64,
    ) -> &mut Self {
        let answers = Self::answers(&[(1, NodeAnswer::Granted), (2, NodeAnswer::Granted), (3, NodeAnswer::Granted)]);
        self.acquire_on(hold, worker, sent, granted_after, ok, Some(token), answers)
    }

    #[expect(clippy::too_many_arguments, reason = "all that an acquisition is made of")]
    pub fn acquire_on(
        &mut self,
        hold: u64,
        worker: u32,
        sent: u64,
        granted_after: u64,
        ok: u64,
        token: Option<u64>,
        answers: Answers,
    ) -> &mut Self {
        self.try_to_acquire(hold, worker, sent);
        if let Some(entry) = self.workers.get_mut(&hold) {
            entry.1 = token.map(Token);
        }
        let event = Event::Acquired {
            attempt: HoldId(hold),
            token: token.map(Token),
            lease_ns: 2_000_000_000,
            granted_after: ms(granted_after),
            promised_from: None,
            place: None,
            valid_ns: (sent + 1_978).saturating_sub(ok) * 1_000_000,
            answers,
        };
        self.of(hold, ok, event)
    }

    pub fn acquire_failed(&mut self, hold: u64, at: u64, why: FailureReason, answers: Answers) -> &mut Self {
        let attempt = HoldId(hold);
        self.of(hold, at, Event::AcquireFailed { attempt, outcome: Outcome::Failed, why, detail: None, answers })
    }

    pub fn renew(&mut self, hold: u64, sent: u64, ok: u64) -> &mut Self {
        let id = HoldId(hold);
        let answers = Self::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::Done), (3, NodeAnswer::Done)]);
        self.of(hold, sent, Event::Renew { hold: id });
        self.of(hold, ok, Event::Renewed { hold: id, lease_ns: 2_000_000_000, answers })
    }

    pub fn renew_refused(&mut self, hold: u64, sent: u64, at: u64) -> &mut Self {
        let id = HoldId(hold);
        let event =
            Event::RenewFailed { hold: id, outcome: Outcome::Failed, why: FailureReason::Lost, answers: Vec::new() };
        self.of(hold, sent, Event::Renew { hold: id });
        self.of(hold, at, event)
    }

    /// A release that is answered 2 ms later, done on all nodes.
    pub fn release(&mut self, hold: u64, at: u64) -> &mut Self {
        let answers = Self::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::Done), (3, NodeAnswer::Done)]);
        self.release_on(hold, at, at + 2, answers)
    }

    /// A release that every node refuses.
    pub fn release_refused(&mut self, hold: u64, at: u64) -> &mut Self {
        let refused = NodeAnswer::Refused;
        self.release_on(hold, at, at + 2, Self::answers(&[(1, refused), (2, refused), (3, refused)]))
    }

    pub fn release_on(&mut self, hold: u64, at: u64, answered: u64, answers: Answers) -> &mut Self {
        let id = HoldId(hold);
        let removed = answers.iter().any(|(_, a)| *a == NodeAnswer::Done);
        self.of(hold, at, Event::Release { hold: id });
        self.of(hold, answered, Event::Released { hold: id, removed, answers })
    }

    pub fn undo(&mut self, attempt: u64, at: u64, answered: u64, answers: Answers) -> &mut Self {
        let id = HoldId(attempt);
        self.of(attempt, at, Event::Undo { attempt: id });
        self.of(attempt, answered, Event::Undone { attempt: id, answers })
    }

    pub fn work(&mut self, hold: u64, at: u64, planned: u64) -> &mut Self {
        self.of(hold, at, Event::Work { hold: HoldId(hold), planned_ns: planned * 1_000_000 })
    }

    pub fn check(&mut self, hold: u64, at: u64) -> &mut Self {
        self.of(hold, at, Event::Check { hold: HoldId(hold), passed: true })
    }

    pub fn give_up(&mut self, hold: u64, at: u64) -> &mut Self {
        self.of(hold, at, Event::GaveUp { hold: HoldId(hold) })
    }

    pub fn at_point(&mut self, hold: u64, at: u64, left: u64) -> &mut Self {
        let (id, point) = (HoldId(hold), history::Point::BeforeWrite);
        let client = ClientId(self.workers[&hold].0.as_str().trim_start_matches("worker-").parse::<u32>().unwrap() - 1);
        self.of(hold, at, Event::AtPoint { client, hold: id, point });
        self.of(hold, left, Event::LeftPoint { client, hold: id, point, released: true })
    }

    pub fn point_released(&mut self, client: u32, at: u64) -> &mut Self {
        let point = history::Point::BeforeWrite;
        self.event("agent", at, Event::PointReleased { client: ClientId(client), point })
    }

    pub fn read(&mut self, hold: u64, op: u32, sent: u64, arrival: u64) -> &mut Self {
        self.of(hold, sent, Event::Read { hold: HoldId(hold), op: OpId(op.into()) });
        self.arrivals.push(Arrival { at: arrival, hold, op, kind: RequestKind::Read, base: None, repeat: false });
        self
    }

    pub fn write(&mut self, hold: u64, op: u32, sent: u64, arrival: u64) -> &mut Self {
        self.of(hold, sent, Event::Write { hold: HoldId(hold), op: OpId(op.into()) });
        self.arrivals.push(Arrival { at: arrival, hold, op, kind: RequestKind::Write, base: None, repeat: false });
        self
    }

    /// Adds a write that is based on a version other than the last version that the hold read.
    pub fn write_over(&mut self, hold: u64, op: u32, arrival: u64, base: u64) -> &mut Self {
        self.write(hold, op, arrival, arrival);
        if let Some(last) = self.arrivals.last_mut() {
            last.base = Some(base);
        }
        self
    }

    /// Another copy of a request arrives.
    pub fn arrives_again(&mut self, hold: u64, op: u32, arrival: u64) -> &mut Self {
        self.arrivals.push(Arrival { at: arrival, hold, op, kind: RequestKind::Write, base: None, repeat: true });
        self
    }

    /// Another copy of a request arrives, and is decided as if it were the first one.
    pub fn decided_again(&mut self, hold: u64, op: u32, arrival: u64) -> &mut Self {
        self.arrivals.push(Arrival { at: arrival, hold, op, kind: RequestKind::Write, base: None, repeat: false });
        self
    }

    /// Changes the resource's decisions on admission `number`.
    pub fn alter_decisions(&mut self, alter: impl Fn(u64, &mut Vec<ArmDecision>) + 'static) -> &mut Self {
        self.alter_decisions = Some(Box::new(alter));
        self
    }

    pub fn stall(&mut self, process: &str, from: u64, to: u64) -> &mut Self {
        let event = Event::Stall { from: ms(from), to: ms(to), late: StallCause::Tick };
        self.event(process, to + 5, event)
    }

    pub fn fault(&mut self, id: u32, kind: FaultKind, node: &str, at: u64, phase: FaultPhase) -> &mut Self {
        let event = Event::Fault { fault: FaultId(id), kind, node: NodeName::from(node), phase };
        self.event("agent", at, event)
    }

    /// A pause that is requested 5 ms before the target freezes and healed when it runs again. A process of the run
    /// shows it by a stall; a server has no record of its own.
    pub fn pause(&mut self, id: u32, node: &str, from: u64, to: u64) -> &mut Self {
        let kind = FaultKind::Pause;
        self.fault(id, kind, node, from - 5, FaultPhase::Requested { asked_ns: (to - from) * 1_000_000, hold: None });
        self.fault(id, kind, node, from + 5, FaultPhase::Injected);
        self.fault(id, kind, node, to, FaultPhase::Healed);
        self.fault(id, kind, node, to + 10, FaultPhase::Proved { from: ms(from), to: ms(to) });
        self.fault(id, kind, node, to + 20, FaultPhase::HealProved);
        if self.plan.lock_nodes.iter().any(|server| server.as_str() == node) {
            self
        } else {
            self.stall(node, from, to)
        }
    }

    /// Any fault of the plan on `node`, on from `from` to `to`, proved and healed; each stamp is taken 5 ms outside or
    /// inside.
    pub fn inject(&mut self, id: u32, fault: Fault, node: &str, from: u64, to: u64) -> &mut Self {
        let kind = fault.kind();
        self.plan_fault(id, fault, node);
        let asked_ns = (to - from) * 1_000_000;
        self.fault(id, kind, node, from - 5, FaultPhase::Requested { asked_ns, hold: None });
        self.fault(id, kind, node, from + 5, FaultPhase::Injected);
        self.fault(id, kind, node, to - 5, FaultPhase::HealRequested);
        self.fault(id, kind, node, to + 5, FaultPhase::Healed);
        self.fault(id, kind, node, to + 10, FaultPhase::Proved { from: ms(from), to: ms(to) });
        self.fault(id, kind, node, to + 20, FaultPhase::HealProved)
    }

    /// A fault of `node` that nobody planned: noticed at `at`, when the node had been well at `since`, and over at
    /// `over`.
    pub fn unplanned(&mut self, id: u32, kind: FaultKind, node: &str, (since, at): (u64, u64), over: u64) -> &mut Self {
        self.fault(id, kind, node, at, FaultPhase::Unplanned { since: ms(since) });
        self.fault(id, kind, node, over, FaultPhase::UnplannedOver { since: ms(over - 5) })
    }

    /// A fault of the plan that says nothing in the history by itself.
    pub fn plan_fault(&mut self, id: u32, fault: Fault, node: &str) -> &mut Self {
        let when = When::AfterHeal(Duration::ZERO);
        self.plan.schedule.push(Step { id: FaultId(id), fault, target: Target::Node(node.into()), when });
        self
    }

    pub fn packets_delayed(&mut self, id: u32, from: &str, to: &str, since: u64, until: u64) -> &mut Self {
        let (from, to, since) = (NodeName::from(from), NodeName::from(to), ms(since));
        self.event("agent", until, Event::PacketsDelayed { fault: FaultId(id), from, to, since, until: ms(until) })
    }

    /// A worker, or the resource, is killed, and starts again 1 s later. The record has all that it did until then.
    pub fn kill(&mut self, id: u32, node: &'static str, at: u64) -> &mut Self {
        let kind = FaultKind::Kill;
        self.fault(id, kind, node, at, FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None });
        self.fault(id, kind, node, at + 20, FaultPhase::Injected);
        self.fault(id, kind, node, at + 1_000, FaultPhase::Healed);
        self.fault(id, kind, node, at + 1_300, FaultPhase::Proved { from: ms(at), to: ms(at + 1_200) });
        self.fault(id, kind, node, at + 1_300, FaultPhase::HealProved);
        let again = format!("{node}#2");
        let role = if node == "resource" { Role::Resource } else { Role::Worker };
        self.event(&again, at + 1_200, started(role));
        self.unfinished.push(node);
        self.event(node, at + 21, Event::Watermark)
    }

    /// The engine refuses to kill a worker, which goes on. The heal comes 15 ms later, and the agent calls the kill
    /// unproved at `told`.
    pub fn kill_refused(&mut self, id: u32, node: &str, at: u64, told: u64) -> &mut Self {
        let (kind, why) = (FaultKind::Kill, String::from("the engine refused"));
        self.fault(id, kind, node, at, FaultPhase::Requested { asked_ns: 1_000_000_000, hold: None });
        self.fault(id, kind, node, at + 15, FaultPhase::Healed);
        self.fault(id, kind, node, told, FaultPhase::Unproved { why })
    }

    /// The record lacks what a process did from a time on.
    pub fn lose_end(&mut self, process: &str, from: u64) -> &mut Self {
        self.events.retain(|(name, at, _)| name.as_str() != process || *at < ms(from));
        self
    }

    /// The records, in the order of their stamps.
    pub fn records(&self) -> Vec<Record> {
        let mut all = self.events.clone();
        all.extend(self.admissions());
        Self::answer(&mut all);
        let is_dropped =
            |event: &Event| matches!(event, Event::Admission { number, .. } if Some(*number) == self.dropped);
        all.retain(|(.., event)| !is_dropped(event));
        if let Some(alter) = &self.alter_requests {
            all.iter_mut().for_each(|(.., event)| alter(event));
        }
        let last = all.iter().map(|(_, at, _)| *at).max().unwrap_or_default();
        let workers = (1..=self.plan.workload.workers).map(|i| (ProcessName::new(format!("worker-{i}")), Role::Worker));
        let others = [(ProcessName::from("resource"), Role::Resource), (ProcessName::from("agent"), Role::Agent)];
        let mut records: Vec<(ProcessName, Stamp, Event)> = Vec::new();
        records.extend(workers.chain(others).map(|(name, role)| (name, Stamp(0), started(role))));
        // A restart begins with its own `started`, however its events were written down.
        all.sort_by_key(|(_, at, event)| (*at, !matches!(event, Event::Started { .. })));
        records.extend(all);
        let names: std::collections::BTreeSet<ProcessName> = records.iter().map(|(name, ..)| name.clone()).collect();
        for name in names {
            if self.unfinished.iter().any(|u| *u == name.as_str()) {
                records.push(("controller".into(), Stamp(0), Event::ProcessEnded { ended: name, code: Some(137) }));
            } else {
                records.push((name, last, Event::Finished));
            }
        }
        let plan = Event::Plan { run: "test".into(), plan: Box::new(self.plan.clone()), made_by: None };
        records.insert(0, ("controller".into(), Stamp(0), plan));
        records.push(("controller".into(), Stamp(0), Event::End));
        number(records)
    }

    pub fn verdicts(&self) -> Verdicts {
        crate::check(self.records(), Tail::Whole)
    }

    pub fn lock(&self) -> LockVerdict {
        self.verdicts().lock().cloned().unwrap()
    }

    /// The causes of the only window, as text.
    pub fn causes(&self) -> Vec<String> {
        self.window().causes.iter().map(ToString::to_string).collect()
    }

    /// The only window.
    pub fn window(&self) -> Window {
        let lock = self.lock();
        assert_eq!(lock.windows.len(), 1, "{lock:#?}");
        lock.windows[0].clone()
    }
}

pub(crate) fn started(role: Role) -> Event {
    Event::Started { role, boot_id: "one".into(), time_namespace: 1 }
}

/// Gives records the numbers that they have in a history and in their process.
pub(crate) fn number(events: Vec<(ProcessName, Stamp, Event)>) -> Vec<Record> {
    let mut next: BTreeMap<ProcessName, u64> = BTreeMap::new();
    let number = |(seq, (process, at, event)): (usize, (ProcessName, Stamp, Event))| {
        let n = next.entry(process.clone()).or_default();
        *n += 1;
        Record { seq: seq as u64, n: *n - 1, process, at, event }
    };
    events.into_iter().enumerate().map(number).collect()
}

/// The count at a path of the verdicts.
pub(crate) fn count(verdicts: &Verdicts, path: &str) -> u64 {
    match verdicts.lookup(path) {
        Some(Figure::Count(n)) => n as u64,
        other => panic!("{path}: {other:?}"),
    }
}

/// The verdict at a path of the verdicts.
pub(crate) fn verdict(verdicts: &Verdicts, path: &str) -> Verdict {
    match verdicts.lookup(path) {
        Some(Figure::Verdict(v)) => v,
        other => panic!("{path}: {other:?}"),
    }
}
