//! How the shared state takes events in: the only place that changes it.

use std::time::Duration;

use history::{
    Answers, ClientId, Event, FaultPhase, HoldId, Key, NodeAnswer, NodeName, OpId, Point, ProcessName, RequestKind,
    Stamp, Step, Target, Why,
};

use crate::{
    holds::{Attempt, Beat, Ender, Failure, Granted, Mark, Nodes},
    merge::Entry,
    run::{Closed, KeyLine, Process, Run},
};

/// Reasons that are kept: the first few say it all.
const REASONS_MAX: usize = 20;

impl Run {
    /// Makes the process known.
    pub fn know(&mut self, process: usize, name: impl Fn(usize) -> ProcessName) {
        while self.processes.len() <= process {
            let name = name(self.processes.len());
            self.processes.push(Process { node: name.node(), name, is_running: false, killed: None, open: Vec::new() });
        }
    }

    fn doubt(&mut self, reason: impl Into<String>) {
        if self.reasons.len() < REASONS_MAX {
            self.reasons.insert(reason.into());
        }
    }

    fn intern(&mut self, key: &Key) -> usize {
        if let Some(&i) = self.key_index.get(key) {
            return i;
        }
        self.keys.push(KeyLine { name: key.clone(), live: Vec::new() });
        self.key_index.insert(key.clone(), self.keys.len() - 1);
        self.keys.len() - 1
    }

    /// Takes an event in, before the judges see it.
    pub fn take(&mut self, entry: &Entry) {
        let mark = Mark { at: entry.at, seq: entry.seq };
        self.processes[entry.process].is_running = true;
        match &entry.event {
            Event::Started { .. } => self.start = Some(self.start.map_or(mark.at, |start| start.min(mark.at))),
            Event::Stall { from, to, .. } => self.stalled(entry.process, (*from, *to)),
            Event::Clocks { wall_ns, boot_ns } => {
                let name = &self.processes[entry.process].name;
                self.stalls.clocks(entry.process, name, mark.at, *wall_ns, *boot_ns);
            }
            Event::Recovered { durable } => self.recovered(*durable),
            Event::Held { fault, from, to, since, until } => self.faults.held(*fault, from, to, (*since, *until)),
            Event::Fault { fault, kind, node, phase } => {
                self.faults.take(*fault, *kind, node, phase, mark);
                if kind.kills() && matches!(phase, FaultPhase::Requested { .. }) {
                    self.killed(node, mark, Ender::Kill(*fault));
                }
            }
            Event::PointReleased { client, point } => {
                let attempt = self.current.get(client).and_then(|id| self.attempts.get_mut(id));
                if let Some(attempt) = attempt {
                    attempt.point_released(mark.at, *point);
                }
            }
            Event::Acquire { client, attempt, key, .. } => self.acquire(entry.process, mark, *client, *attempt, key),
            Event::Admission { number, kind, hold, op, repeat, .. } => {
                self.admission(*number, *kind, *repeat);
                if let (Some(hold), Some(op)) = (hold, op) {
                    self.arrived(*hold, *op, *repeat);
                }
            }
            event => self.client(mark, event),
        }
    }

    fn acquire(&mut self, process: usize, mark: Mark, client: ClientId, id: HoldId, key: &Key) {
        self.first_operation.get_or_insert(mark.at);
        let key = self.intern(key);
        if let Some(last) = self.current.insert(client, id)
            && let Some(last) = self.attempts.get_mut(&last)
        {
            // The client has gone on: an attempt without a success came to nothing, whether or not it said so, and
            // nobody waits any longer for a renewal that was under way when the work ended.
            last.is_used_up |= last.grant.is_none();
            if last.is_used_up {
                last.renewing = None;
            }
            self.closing.push(last.id);
        }
        if self.attempts.insert(id, Box::new(Attempt::new(id, key, client, process, mark))).is_some() {
            self.doubt(format!("attempt {id} was made twice"));
        }
        self.processes[process].open.push(id);
    }

    /// An event of a client about one of its attempts.
    fn client(&mut self, mark: Mark, event: &Event) {
        let Some(id) = subject(event) else { return };
        if !self.attempts.contains_key(&id) {
            if is_answer(event) {
                return;
            }
            return self.doubt(format!("there are events of attempt {id}, which the record does not know"));
        }
        if let Event::Acquired { .. } = event {
            return self.acquired(id, mark, event);
        }
        let refused = match event {
            Event::AcquireFailed { answers, .. } => self.nodes(answers, &[NodeAnswer::Refused]),
            Event::RenewFailed { answers, .. } => self.members(answers, &[NodeAnswer::Refused]),
            _ => 0,
        };
        let nodes = match event {
            Event::Renewed { answers, .. } | Event::RenewFailed { answers, .. } => {
                self.members(answers, &[NodeAnswer::Done, NodeAnswer::Granted])
            }
            Event::AcquireFailed { answers, .. } => self.nodes(answers, GRANTED),
            _ => 0,
        };
        let (of, renew_for) = (self.plan.lock_nodes.len(), self.plan.workload.renew_for);
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        match event {
            Event::AcquireFailed { .. } => {
                attempt.completed = Some(mark);
                (attempt.granted_on, attempt.refused_on) = (nodes, refused);
            }
            Event::Behind { .. } => {
                attempt.behind.get_or_insert(mark);
            }
            Event::WithoutKey { .. } => attempt.is_without_key = true,
            Event::Undo { .. } => {
                attempt.undoing = Some(mark);
                attempt.let_go.get_or_insert(mark.at);
            }
            Event::Undone { .. } => attempt.undoing = None,
            Event::Renew { .. } => attempt.renewing = Some(mark),
            Event::Renewed { lease_ns, .. } => {
                let lease = Duration::from_nanos(*lease_ns);
                if let Some(sent) = attempt.renewing {
                    attempt.extended(sent.at, lease, nodes, of);
                }
                attempt.renewed(mark, lease, nodes);
            }
            Event::RenewFailed { why, .. } => {
                if let (Some(sent), Some(grant)) = (attempt.renewing.take(), attempt.grant) {
                    attempt.extended(sent.at, renew_for.unwrap_or(grant.lease), nodes, of);
                    let loss = Some(*why).filter(|why| matches!(why, Why::Lost | Why::Validity));
                    let span = (sent.at, mark.at);
                    attempt.failed(Failure { span, done_on: nodes, refused_on: refused, loss });
                }
            }
            Event::LossNoticed { .. } => attempt.ends(mark, Ender::Loss),
            Event::Release { .. } => {
                attempt.used_up(mark, Ender::Release);
                attempt.releasing = Some(mark);
                attempt.let_go.get_or_insert(mark.at);
            }
            Event::Released { .. } | Event::ReleaseFailed { .. } => attempt.releasing = None,
            Event::GaveUp { .. } => attempt.used_up(mark, Ender::GaveUp),
            Event::Read { op, .. } | Event::Write { op, .. } => {
                attempt.ops.push(*op);
                attempt.beat(mark, Beat::Request(*op));
            }
            Event::ReadOk { op, .. } | Event::WriteOk { op, .. } => {
                self.answered.push((id, *op));
                attempt.beat(mark, Beat::Other);
            }
            Event::AccessFailed { op, outcome, .. } => {
                if *outcome == history::Outcome::Failed {
                    attempt.ops.retain(|o| o != op);
                }
                attempt.beat(mark, Beat::Other);
            }
            Event::Work { planned_ns, .. } => attempt.beat(mark, Beat::Work(Duration::from_nanos(*planned_ns))),
            Event::AtPoint { point, .. } => attempt.beat(mark, Beat::AtPoint(*point, None)),
            Event::Check { passed: true, .. } => attempt.beat(mark, Beat::Check),
            Event::Check { .. } | Event::LeftPoint { .. } => attempt.beat(mark, Beat::Other),
            _ => {}
        }
        self.closing.push(id);
    }

    /// As `nodes`, but what a store said as a whole, all its members said.
    fn members(&self, answers: &Answers, wanted: &[NodeAnswer]) -> Nodes {
        let is_whole =
            |(name, answer): &(NodeName, NodeAnswer)| wanted.contains(answer) && !self.plan.lock_nodes.contains(name);
        if answers.iter().any(is_whole) { Nodes::MAX } else { self.nodes(answers, wanted) }
    }

    fn acquired(&mut self, id: HoldId, mark: Mark, event: &Event) {
        let Event::Acquired { token, lease_ns, granted_after, promised_from, place, answers, .. } = event else {
            return;
        };
        if *granted_after > mark.at {
            self.doubt(format!("hold {id}: its client says that it did not hold after it had been told that it does"));
        }
        let (nodes, refused) = (self.nodes(answers, GRANTED), self.nodes(answers, &[NodeAnswer::Refused]));
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let promised_from = promised_from.unwrap_or(attempt.sent.at);
        let (token, lease, granted_after, place) = (*token, Duration::from_nanos(*lease_ns), *granted_after, *place);
        attempt.acquired(mark, Granted { token, lease, granted_after, place, promised_from });
        (attempt.granted_on, attempt.refused_on) = (nodes, refused);
        if let Some((kill, ender)) = self.processes[attempt.process].killed {
            attempt.ends(kill, ender);
        }
        self.keys[attempt.key].live.push(id);
        self.holds += 1;
    }

    fn killed(&mut self, node: &NodeName, mark: Mark, ender: Ender) {
        for process in self.processes.iter_mut().filter(|p| p.is_running && p.node == *node) {
            process.killed.get_or_insert((mark, ender));
            for id in &process.open {
                if let Some(hold) = self.attempts.get_mut(id)
                    && hold.grant.is_some()
                {
                    hold.ends(mark, ender);
                }
            }
        }
    }

    fn stalled(&mut self, process: usize, span: (Stamp, Stamp)) {
        let Process { name, node, open, .. } = &self.processes[process];
        self.stalls.stalled(name, span, &self.faults.pauses_on(node));
        if node.as_str() == "resource" {
            self.attempts.values_mut().for_each(|attempt| attempt.resource_stalls.push(span));
        } else {
            for id in open {
                if let Some(attempt) = self.attempts.get_mut(id) {
                    attempt.stalls.push(span);
                }
            }
        }
    }

    /// The resource was started again.
    fn recovered(&mut self, durable: u64) {
        if durable > self.last_number {
            let last = self.last_number;
            self.doubt(format!("the admission log ends with number {last}, and {durable} was on disk after a restart"));
        } else if durable < self.last_number && !self.plan.schedule.iter().any(is_of_resource) {
            self.doubt("the resource was started again, and no fault of the plan did that".to_string());
        }
        self.is_recovered = true;
    }

    /// Takes an admission in that did not reach the disk.
    pub fn undone(&mut self, entry: &Entry) {
        let Event::Admission { number, kind, hold, op, repeat, .. } = &entry.event else { return };
        self.processes[entry.process].is_running = true;
        self.admission(*number, *kind, *repeat);
        if let (Some(hold), Some(op), false) = (hold, op, repeat) {
            self.undone.insert((*hold, *op));
        }
    }

    /// The admission log must be whole: its numbers are the order that every fence is judged by.
    fn admission(&mut self, number: u64, kind: RequestKind, repeat: bool) {
        if repeat {
            return;
        }
        let goes_on = std::mem::take(&mut self.is_recovered) && number > self.last_number;
        if number != self.last_number + 1 && !goes_on {
            let kind = if kind == RequestKind::Read { "read" } else { "write" };
            self.doubt(format!("the admission log goes from number {} to {kind} {number}", self.last_number));
        }
        self.last_number = number;
    }

    fn arrived(&mut self, hold: HoldId, op: OpId, repeat: bool) {
        let doubt = match self.attempts.get_mut(&hold) {
            Some(attempt) if attempt.grant.is_some() => {
                attempt.ops.retain(|o| *o != op);
                self.closing.push(hold);
                if !self.undone.is_empty() {
                    self.undone.remove(&(hold, op));
                }
                return;
            }
            // Another copy of a request may come at any time, also when nothing else can.
            _ if repeat => return,
            Some(_) => format!("the resource decided an operation of attempt {hold}, which had not acquired"),
            None => format!("the resource decided an operation of hold {hold}, which the record does not know"),
        };
        self.doubt(doubt);
    }

    /// The next hold of the key whose entitlement ended at `now` or before, in the order of their ends.
    pub fn next_ended(&mut self, key: usize, now: Stamp) -> Option<HoldId> {
        let live = &mut self.keys[key].live;
        let ends = live.iter().enumerate().filter_map(|(i, id)| {
            let end = self.attempts.get(id).map_or(Stamp(0), |attempt| attempt.end());
            (end <= now).then_some((end, *id, i))
        });
        let (_, id, i) = ends.min()?;
        live.swap_remove(i);
        if let Some(hold) = self.attempts.get_mut(&id) {
            hold.is_retired = true;
        }
        self.closing.push(id);
        Some(id)
    }

    /// The key whose entitlements an event may have ended, or shows the time to.
    pub fn key_touched(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Acquired { attempt: id, .. }
            | Event::Release { hold: id }
            | Event::GaveUp { hold: id }
            | Event::LossNoticed { hold: id }
            | Event::Admission { hold: Some(id), .. } => self.attempts.get(id).map(|attempt| attempt.key),
            _ => None,
        }
    }

    /// All keys.
    pub fn keys(&self) -> std::ops::Range<usize> {
        0..self.keys.len()
    }

    /// No event of the process follows.
    pub fn gone(&mut self, process: usize) {
        for id in std::mem::take(&mut self.processes[process].open) {
            if let Some(attempt) = self.attempts.get_mut(&id) {
                attempt.is_orphan = true;
                self.closing.push(id);
                self.processes[process].open.push(id);
            }
        }
    }

    /// All events of a stamp have been taken in: puts the attempts of which nothing more can be said into `closed`.
    pub fn settle(&mut self, closed: &mut Closed) {
        let mut answered = std::mem::take(&mut self.answered);
        for (id, op) in answered.drain(..) {
            if let Some(attempt) = self.attempts.get_mut(&id)
                && attempt.ops.contains(&op)
            {
                attempt.ops.retain(|o| *o != op);
                // Whether it may have been answered is judged: the property of the resource.
                if self.undone.contains(&(id, op)) {
                    continue;
                }
                self.doubt(format!("operation {op} of hold {id} was answered, and the admission log does not have it"));
            }
        }
        self.answered = answered;
        let mut closing = std::mem::take(&mut self.closing);
        if closing.len() > 1 {
            closing.sort_unstable();
            closing.dedup();
        }
        for id in closing.drain(..) {
            if !self.attempts.get(&id).is_some_and(|attempt| attempt.is_closed()) {
                continue;
            }
            if let Some(attempt) = self.attempts.remove(&id) {
                let open = &mut self.processes[attempt.process].open;
                if let Some(i) = open.iter().position(|o| *o == id) {
                    open.swap_remove(i);
                }
                closed.push(attempt);
            }
        }
        self.closing = closing;
    }
}

/// Whether a step ends the resource's process.
pub(crate) fn is_of_resource(step: &Step) -> bool {
    step.fault.kind().kills() && matches!(&step.target, Target::Node(node) if node.as_str() == "resource")
}

/// Answers to an acquisition that mean that the node had granted it. `done` is its second round.
const GRANTED: &[NodeAnswer] = &[NodeAnswer::Granted, NodeAnswer::Done, NodeAnswer::Late];

/// Whether an event only closes a request, so that nothing is missed without the attempt: one whose client has gone on.
fn is_answer(event: &Event) -> bool {
    use Event::*;
    matches!(
        event,
        Undone { .. }
            | Renewed { .. }
            | RenewFailed { .. }
            | Released { .. }
            | ReleaseFailed { .. }
            | AccessFailed { .. }
    )
}

/// Which attempt an event of a client is about.
pub(crate) fn subject(event: &Event) -> Option<HoldId> {
    match event {
        Event::WriteBack { attempt }
        | Event::Behind { attempt }
        | Event::WithoutKey { attempt }
        | Event::Acquired { attempt, .. }
        | Event::AcquireFailed { attempt, .. }
        | Event::Undo { attempt }
        | Event::Undone { attempt, .. } => Some(*attempt),
        // Nothing has been sent of it: it is no attempt yet.
        Event::AtPoint { point: Point::BeforeAcquire, .. } | Event::LeftPoint { point: Point::BeforeAcquire, .. } => {
            None
        }
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
        | Event::AccessFailed { hold, .. }
        | Event::Work { hold, .. }
        | Event::Check { hold, .. }
        | Event::Write { hold, .. }
        | Event::Resend { hold, .. }
        | Event::WriteOk { hold, .. }
        | Event::AtPoint { hold, .. }
        | Event::LeftPoint { hold, .. } => Some(*hold),
        _ => None,
    }
}
