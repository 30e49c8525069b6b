//! The record, sorted by what it is about. Stamps are plain numbers here.

use std::collections::BTreeMap;

use history::{
    Answers, Arm, ArmDecision, ArmReadAnswer, ArmWriteAnswer, Event, FailureReason, FaultId, FaultKind, FaultPhase,
    Mode, Outcome, Plan, Point, Record, RequestKind, drift,
};

use crate::model::lock::exclude;

/// A step of a hold's own path begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// Nothing planned: the next one could follow at once.
    Plain,
    /// A request to the resource is under way.
    Request(u64),
    /// So long was planned.
    Work(u64),
    /// Waits to be told.
    Point(Point),
}

/// A request to the lock nodes after the acquisition: sent, answered, what they said.
#[derive(Debug, Clone)]
pub struct Later {
    pub sent: u64,
    pub answered: u64,
    pub answers: Answers,
}

/// One attempt, and the hold that came of it.
#[derive(Debug, Clone)]
pub struct Hold {
    pub id: u64,
    pub key: String,
    pub mode: Mode,
    pub client: u32,
    pub process: String,
    pub node: String,
    pub sent: u64,
    /// When the acquiring operation was over, and what was said.
    pub completed: Option<u64>,
    pub answers: Answers,
    /// When it was claimed.
    pub acquired: Option<u64>,
    pub token: Option<u64>,
    pub lease: u64,
    /// For how long from then on its client believed in it.
    pub valid: u64,
    pub granted_after: u64,
    pub place: Option<u64>,
    /// Sent, answered, lease.
    pub renewals: Vec<(u64, u64, u64)>,
    /// Release invoked, loss noticed.
    pub marks: Vec<u64>,
    pub gives_back: Option<u64>,
    /// The first release.
    pub released: Option<u64>,
    /// Given up: the client renews no more, and still relies on the promise.
    pub gave_up: Option<u64>,
    /// When the renewal was sent that is not answered yet, or never will be.
    pub renewing: Option<u64>,
    /// The renewals that succeeded: when they were answered, and the nodes' answers.
    pub renewed_on: Vec<(u64, Answers)>,
    pub later: Vec<Later>,
    pub path: Vec<(u64, Step)>,
    /// Waited in the lock's queue.
    pub queued: bool,
    pub checks: Vec<u64>,
}

/// An admission.
#[derive(Debug, Clone)]
pub struct Entry {
    pub number: u64,
    pub at: u64,
    pub key: String,
    pub write: bool,
    pub hold: Option<u64>,
    pub op: u64,
    pub token: Option<u64>,
    pub repeat: bool,
    pub arms: Vec<ArmDecision>,
}

/// The answer of one arm: admitted (writes only), version (reads only), the largest token.
pub type Told = (Arm, Option<bool>, Option<u64>, Option<u64>);

/// A request to the resource, as its client reports it.
#[derive(Debug, Clone)]
pub struct Request {
    pub write: bool,
    pub sent: u64,
    /// When it was answered, with which number, and as what by each arm.
    pub answered: Option<(u64, u64, Option<Vec<Told>>)>,
    /// When its client learned that it certainly did not happen.
    pub failed: Option<u64>,
}

/// A fault by its stamps.
#[derive(Debug, Clone)]
pub struct Blow {
    pub id: FaultId,
    pub kind: FaultKind,
    pub node: String,
    pub requested: u64,
    pub healed: Option<u64>,
    pub proved: Option<(u64, u64)>,
    pub unproved: bool,
    pub missed: bool,
}

#[derive(Debug)]
pub struct Facts {
    pub plan: Plan,
    pub holds: BTreeMap<u64, Hold>,
    /// In the order of their numbers.
    pub log: Vec<Entry>,
    pub faults: BTreeMap<FaultId, Blow>,
    /// Process: from, to.
    pub stalls: BTreeMap<String, Vec<(u64, u64)>>,
    pub started: BTreeMap<String, u64>,
    /// Client, point, when.
    pub released: Vec<(u32, Point, u64)>,
    /// Process: when, wall, boot.
    pub clocks: BTreeMap<String, Vec<(u64, i64, i64)>>,
    pub refused: u64,
    /// By hold and operation.
    pub requests: BTreeMap<(u64, u64), Request>,
}

fn node_of(process: &str) -> String {
    process.split('#').next().unwrap_or_default().to_owned()
}

impl Facts {
    pub fn of(records: &[Record]) -> Facts {
        let plan = records.iter().find_map(|r| match &r.event {
            Event::Plan { plan, .. } => Some((**plan).clone()),
            _ => None,
        });
        let mut f = Facts {
            plan: plan.expect("a history begins with its plan"),
            holds: BTreeMap::new(),
            log: Vec::new(),
            faults: BTreeMap::new(),
            stalls: BTreeMap::new(),
            started: BTreeMap::new(),
            released: Vec::new(),
            clocks: BTreeMap::new(),
            refused: 0,
            requests: BTreeMap::new(),
        };
        let mut sorted: Vec<_> = records.iter().collect();
        sorted.sort_by_key(|r| (r.process.clone(), r.n));
        let mut open = BTreeMap::new();
        for r in sorted {
            f.take(r, &mut open);
        }
        f.log.sort_by_key(|e| e.number);
        f
    }

    /// `open`: when the last renewal, release or undo of an attempt was sent.
    fn take(&mut self, r: &Record, open: &mut BTreeMap<(u64, bool), u64>) {
        let (at, process) = (r.at.0, r.process.as_str().to_owned());
        match &r.event {
            Event::Started { .. } => {
                self.started.insert(process, at);
            }
            Event::Stall { from, to, .. } => self.stalls.entry(process).or_default().push((from.0, to.0)),
            Event::Clocks { wall_ns, boot_ns } => {
                self.clocks.entry(process).or_default().push((at, *wall_ns, *boot_ns));
            }
            Event::Acquire { client, attempt, key, mode, .. } => {
                let hold = Hold {
                    id: attempt.0,
                    key: key.as_str().to_owned(),
                    mode: *mode,
                    client: client.0,
                    node: node_of(&process),
                    process,
                    sent: at,
                    completed: None,
                    answers: Vec::new(),
                    acquired: None,
                    token: None,
                    lease: 0,
                    valid: 0,
                    granted_after: 0,
                    place: None,
                    renewals: Vec::new(),
                    marks: Vec::new(),
                    gives_back: None,
                    released: None,
                    gave_up: None,
                    renewing: None,
                    renewed_on: Vec::new(),
                    later: Vec::new(),
                    path: vec![(at, Step::Plain)],
                    queued: false,
                    checks: Vec::new(),
                };
                self.holds.insert(attempt.0, hold);
            }
            Event::Admission { number, key, kind, hold, op, token, repeat, arms, .. } => self.log.push(Entry {
                number: *number,
                at,
                key: key.as_str().to_owned(),
                write: *kind == RequestKind::Write,
                hold: hold.map(|h| h.0),
                op: op.map_or(0, |o| o.0),
                token: token.map(|t| t.0),
                repeat: *repeat,
                arms: arms.clone(),
            }),
            Event::Fault { fault, kind, node, phase } => {
                let new = Blow {
                    id: *fault,
                    kind: *kind,
                    node: node.as_str().to_owned(),
                    requested: at,
                    healed: None,
                    proved: None,
                    unproved: false,
                    missed: false,
                };
                let b = self.faults.entry(*fault).or_insert(new);
                match phase {
                    FaultPhase::Healed => b.healed = Some(at),
                    FaultPhase::Proved { from, to } => b.proved = Some((from.0, to.0)),
                    FaultPhase::Unproved { .. } => b.unproved = true,
                    FaultPhase::MissedTarget => b.missed = true,
                    _ => {}
                }
            }
            Event::PointReleased { client, point } => self.released.push((client.0, *point, at)),
            event => self.of_hold(at, event, open),
        }
    }

    fn of_hold(&mut self, at: u64, event: &Event, open: &mut BTreeMap<(u64, bool), u64>) {
        let id = match event {
            Event::Acquired { attempt, .. }
            | Event::AcquireFailed { attempt, .. }
            | Event::Behind { attempt }
            | Event::Undo { attempt }
            | Event::Undone { attempt, .. } => attempt.0,
            Event::Renew { hold }
            | Event::Renewed { hold, .. }
            | Event::RenewFailed { hold, .. }
            | Event::LossNoticed { hold }
            | Event::Release { hold }
            | Event::Released { hold, .. }
            | Event::ReleaseFailed { hold, .. }
            | Event::GaveUp { hold }
            | Event::Read { hold, .. }
            | Event::ReadOk { hold, .. }
            | Event::Work { hold, .. }
            | Event::Check { hold, .. }
            | Event::Write { hold, .. }
            | Event::WriteOk { hold, .. }
            | Event::AccessFailed { hold, .. }
            | Event::AtPoint { hold, .. }
            | Event::LeftPoint { hold, .. } => hold.0,
            _ => return,
        };
        self.of_request(at, id, event);
        let Some(h) = self.holds.get_mut(&id) else { return };
        match event {
            Event::Acquired { token, lease_ns, granted_after, place, valid_ns, answers, .. } => {
                (h.acquired, h.completed) = (Some(at), Some(at));
                (h.token, h.lease, h.granted_after) = (token.map(|t| t.0), *lease_ns, granted_after.0);
                (h.place, h.valid) = (*place, *valid_ns);
                h.answers.clone_from(answers);
                h.path.push((at, Step::Plain));
            }
            Event::AcquireFailed { why, answers, .. } => {
                h.completed = Some(at);
                h.answers.clone_from(answers);
                self.refused += u64::from(*why == FailureReason::Held);
            }
            Event::Renew { .. } => {
                open.insert((id, true), at);
                h.renewing = Some(at);
            }
            Event::Undo { .. } | Event::Release { .. } => {
                open.insert((id, false), at);
                h.gives_back.get_or_insert(at);
                if matches!(event, Event::Release { .. }) {
                    h.marks.push(at);
                    h.released.get_or_insert(at);
                }
            }
            Event::Renewed { lease_ns, answers, .. } => {
                let sent = open.get(&(id, true)).copied().unwrap_or(at);
                h.renewals.push((sent, at, *lease_ns));
                h.renewing = None;
                h.renewed_on.push((at, answers.clone()));
                h.later.push(Later { sent, answered: at, answers: answers.clone() });
            }
            Event::RenewFailed { answers, .. } => {
                h.renewing = None;
                let sent = open.get(&(id, true)).copied().unwrap_or(at);
                h.later.push(Later { sent, answered: at, answers: answers.clone() });
            }
            Event::Undone { answers, .. } | Event::Released { answers, .. } | Event::ReleaseFailed { answers, .. } => {
                let sent = open.get(&(id, false)).copied().unwrap_or(at);
                h.later.push(Later { sent, answered: at, answers: answers.clone() });
            }
            Event::LossNoticed { .. } => h.marks.push(at),
            Event::Behind { .. } => h.queued = true,
            Event::GaveUp { .. } => _ = h.gave_up.get_or_insert(at),
            Event::Read { op, .. } | Event::Write { op, .. } => h.path.push((at, Step::Request(op.0))),
            Event::Work { planned_ns, .. } => h.path.push((at, Step::Work(*planned_ns))),
            Event::AtPoint { point, .. } => h.path.push((at, Step::Point(*point))),
            Event::Check { passed, .. } => {
                if *passed {
                    h.checks.push(at);
                }
                h.path.push((at, Step::Plain));
            }
            Event::ReadOk { .. } | Event::WriteOk { .. } | Event::AccessFailed { .. } | Event::LeftPoint { .. } => {
                h.path.push((at, Step::Plain));
            }
            _ => {}
        }
    }

    fn of_request(&mut self, at: u64, id: u64, event: &Event) {
        match event {
            Event::Read { op, .. } | Event::Write { op, .. } => {
                let write = matches!(event, Event::Write { .. });
                self.requests.insert((id, op.0), Request { write, sent: at, answered: None, failed: None });
            }
            Event::ReadOk { op, number, arms, .. } => {
                let told = |a: &ArmReadAnswer| (a.arm, None, Some(a.version), a.seen.map(|t| t.0));
                let told = arms.as_ref().map(|arms| arms.iter().map(told).collect());
                self.requests.entry((id, op.0)).and_modify(|r| r.answered = Some((at, *number, told)));
            }
            Event::WriteOk { op, number, arms, .. } => {
                let told = |a: &ArmWriteAnswer| (a.arm, Some(a.admitted), None, a.seen.map(|t| t.0));
                let told = arms.as_ref().map(|arms| arms.iter().map(told).collect());
                self.requests.entry((id, op.0)).and_modify(|r| r.answered = Some((at, *number, told)));
            }
            Event::AccessFailed { op, outcome: Outcome::Failed, .. } => {
                self.requests.entry((id, op.0)).and_modify(|r| r.failed = Some(at));
            }
            _ => {}
        }
    }

    /// Returns whether an entry of the log is none of the requests that the clients report: nobody had sent it by then,
    /// or it failed, or its client sent it with another key or token.
    pub fn is_foreign(&self, e: &Entry) -> bool {
        // The final reads have neither hold nor token.
        let Some(hold) = e.hold else { return e.write || e.token.is_some() };
        let Some(request) = self.requests.get(&(hold, e.op)) else { return true };
        let differs = |h: &Hold| h.acquired.is_some() && (h.key != e.key || h.token != e.token);
        request.sent > e.at
            || request.failed.is_some_and(|at| at < e.at)
            || request.write != e.write
            || self.holds.get(&hold).is_some_and(differs)
    }

    /// Returns whether log and clients contradict each other about an entry: it is foreign, or came after its answer.
    pub fn is_contradicted(&self, e: &Entry) -> bool {
        let request = e.hold.and_then(|hold| self.requests.get(&(hold, e.op)));
        let answered = request.and_then(|r| r.answered.as_ref());
        self.is_foreign(e) || answered.is_some_and(|answered| answered.0 < e.at)
    }

    /// Returns the first kill of the process of `h`, and the stamp of its request.
    pub fn killed(&self, h: &Hold) -> Option<(FaultId, u64)> {
        let born = self.started.get(&h.process).copied().unwrap_or(0);
        let siblings = || self.started.iter().filter(|(p, _)| node_of(p) == h.node && **p != h.process);
        let kills = self.faults.values().filter(|b| b.kind == FaultKind::Kill && b.node == h.node);
        kills
            .filter(|b| b.requested >= born && !siblings().any(|(_, s)| *s > born && *s <= b.requested))
            .map(|b| (b.id, b.requested))
            .min_by_key(|k| k.1)
    }
}

impl Hold {
    /// The promise end when nothing more is known than the answers: renewals count from their answer on, and one that
    /// is answered after the end comes too late for good.
    pub fn promise(&self) -> u64 {
        let mut end = after(self.sent, self.lease);
        for (sent, ok, lease) in &self.renewals {
            if end <= *ok {
                break;
            }
            end = end.max(after(*sent, *lease));
        }
        end
    }

    /// The same at an instant.
    pub fn promise_at(&self, instant: u64) -> u64 {
        let known = self.renewals.iter().filter(|r| r.1 < instant).copied().collect();
        Hold { renewals: known, ..self.clone() }.promise()
    }

    /// Returns whether `self` is later than `other`: the stamps say so, or the service's own queue, unless the stamps
    /// say the opposite.
    pub fn later_than(&self, other: &Hold) -> bool {
        let queued = matches!((self.place, other.place), (Some(own), Some(of_other)) if own > of_other);
        let by_queue = self.excludes(other) && queued && !other.later_by_stamps(self);
        self.later_by_stamps(other) || by_queue
    }

    /// Returns whether the stamps alone say that `self` is later than `other`. Only the stamps count for tokens.
    pub fn later_by_stamps(&self, other: &Hold) -> bool {
        self.excludes(other) && other.acquired.is_some_and(|a| self.granted_after > a)
    }

    /// Returns whether the lock promises that it keeps the two holds apart.
    pub fn excludes(&self, other: &Hold) -> bool {
        self.key == other.key && exclude(self.mode, other.mode)
    }
}

/// Promise of a request sent at `sent`.
pub fn after(sent: u64, lease: u64) -> u64 {
    let lease_of = std::time::Duration::from_nanos(lease);
    sent + lease - u64::try_from(drift(lease_of).as_nanos()).unwrap()
}
