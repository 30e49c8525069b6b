//! Applies events to the shared state. No other code changes the shared state.

use std::time::Duration;

use history::{
    Answers, ClientId, Event, FailureReason, FaultPhase, HoldId, Key, NodeAnswer, NodeName, Outcome, Point,
    ProcessName, RequestKind, Stamp,
};

use crate::{
    faults::is_of_resource,
    holds::{Attempt, ClientStep, EarlyEnd, EventRef, Granted, Nodes, RenewalFailure},
    merge::Entry,
    operations::{Admission, Answer, Arrival, Breach, HoldKnown},
    run::{Closed, KeyHolds, Process, Run},
};

/// The most reasons that are kept.
const REASONS_MAX: usize = 20;

impl Run {
    /// Adds the process, and all processes with smaller numbers.
    pub fn add_process(&mut self, process: usize, name: impl Fn(usize) -> ProcessName) {
        while self.processes.len() <= process {
            let name = name(self.processes.len());
            let (node, open) = (name.node(), Vec::new());
            self.processes.push(Process { node, name, is_running: false, number: None, killed: None, open });
        }
    }

    fn add_reason(&mut self, reason: impl Into<String>) {
        if self.reasons.len() < REASONS_MAX {
            self.reasons.insert(reason.into());
        }
    }

    fn intern(&mut self, key: &Key) -> usize {
        if let Some(&i) = self.key_index.get(key) {
            return i;
        }
        self.keys.push(KeyHolds { name: key.clone(), live: Vec::new() });
        self.key_index.insert(key.clone(), self.keys.len() - 1);
        self.keys.len() - 1
    }

    /// Applies an event, before the judges see it.
    pub fn apply(&mut self, entry: &Entry) {
        let mark = EventRef { at: entry.at, seq: entry.seq };
        self.processes[entry.process].is_running = true;
        self.operations.next_event();
        match &entry.event {
            Event::Started { .. } => self.start = Some(self.start.map_or(mark.at, |start| start.min(mark.at))),
            Event::Stall { from, to, .. } => self.stalled(entry.process, (*from, *to)),
            Event::Clocks { wall_ns, boot_ns } => {
                let name = &self.processes[entry.process].name;
                self.stalls.clocks(entry.process, name, mark.at, *wall_ns, *boot_ns);
            }
            Event::Recovered { durable } => self.recovered(*durable),
            Event::PacketsDelayed { fault, from, to, since, until } => {
                self.faults.packets_delayed(*fault, from, to, (*since, *until))
            }
            Event::Fault { fault, kind, node, phase } => {
                self.faults.apply(*fault, *kind, node, phase, mark);
                if kind.kills() && matches!(phase, FaultPhase::Requested { .. }) {
                    self.killed(node, mark, EarlyEnd::Kill(*fault));
                }
            }
            Event::PointReleased { client, point } => {
                let attempt = self.current.get(client).and_then(|id| self.attempts.get_mut(id));
                if let Some(attempt) = attempt {
                    attempt.point_released(mark.at, *point);
                }
            }
            Event::Acquire { client, attempt, key, mode, .. } => {
                let key = self.intern(key);
                self.acquire(mark, Attempt::new(*attempt, key, *mode, *client, entry.process, mark));
            }
            Event::Admission { number, kind, repeat, .. } => {
                self.admission(*number, *kind, *repeat);
                self.arrived(mark, &entry.event);
            }
            event => {
                self.operation(mark, event);
                self.client(mark, event);
            }
        }
    }

    fn acquire(&mut self, mark: EventRef, attempt: Attempt) {
        let Attempt { id, client, process, .. } = attempt;
        self.first_operation.get_or_insert(mark.at);
        if let Some(last) = self.current.insert(client, id)
            && let Some(last) = self.attempts.get_mut(&last)
        {
            // The client has started another attempt. The former attempt, if it failed, is over even without a report,
            // and the client no longer waits for a renewal that was under way when the work ended.
            last.is_used_up |= last.grant.is_none();
            if last.is_used_up {
                last.unanswered = last.unanswered.or(last.renewing.take());
            }
            self.closing.push(last.id);
        }
        self.attempts.insert(id, Box::new(attempt));
        self.processes[process].open.push(id);
        self.processes[process].number = Some(id.0 / HoldId::PER_PROCESS);
    }

    /// An event of a client about one of its attempts.
    fn client(&mut self, mark: EventRef, event: &Event) {
        let Some(id) = subject(event) else { return };
        if !self.attempts.contains_key(&id) {
            if is_answer(event) {
                return;
            }
            return self.add_reason(format!(
                "there are events of attempt {id}, which the record does not know: its client never made it, or has \
                 released another hold since it released this one"
            ));
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
        let was_in_use = attempt.grant.is_some() && !attempt.is_used_up;
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
                    let loss = Some(*why).filter(|why| matches!(why, FailureReason::Lost | FailureReason::Validity));
                    let span = (sent.at, mark.at);
                    attempt.failed(RenewalFailure { span, done_on: nodes, refused_on: refused, loss });
                }
            }
            Event::LossNoticed { .. } => attempt.ends(mark, EarlyEnd::Loss),
            Event::Release { .. } => attempt.releases(mark),
            Event::Released { .. } | Event::ReleaseFailed { .. } => attempt.releasing = None,
            Event::GaveUp { .. } => attempt.gives_up(mark),
            Event::Read { op, .. } | Event::Write { op, .. } => {
                // A log that contradicts the record may have the decision already.
                if !self.operations.is_decided(id, *op) {
                    attempt.ops.push(*op);
                }
                attempt.add_step(mark, ClientStep::Request(*op));
            }
            Event::ReadOk { .. } | Event::WriteOk { .. } => attempt.add_step(mark, ClientStep::Other),
            Event::AccessFailed { op, outcome, .. } => {
                if *outcome == Outcome::Failed {
                    attempt.ops.retain(|o| o != op);
                }
                attempt.add_step(mark, ClientStep::Other);
            }
            Event::Work { planned_ns, .. } => {
                attempt.add_step(mark, ClientStep::Work(Duration::from_nanos(*planned_ns)))
            }
            Event::AtPoint { point, .. } => attempt.add_step(mark, ClientStep::AtPoint(*point, None)),
            Event::Check { passed: true, .. } => attempt.add_step(mark, ClientStep::Check),
            Event::Check { .. } | Event::LeftPoint { .. } => attempt.add_step(mark, ClientStep::Other),
            _ => {}
        }
        if was_in_use && attempt.is_used_up {
            let client = attempt.client;
            self.used_up(client, id);
        }
        self.closing.push(id);
    }

    /// Notes that a client has used up a hold. The hold that it had used up before may close.
    fn used_up(&mut self, client: ClientId, id: HoldId) {
        let last = self.used_up.insert(client, id);
        if let Some(last) = last.and_then(|last| self.attempts.get_mut(&last)) {
            last.is_superseded = true;
            // Nobody waits for the answer to a renewal that the client sent after the release.
            last.renewing = None;
            self.closing.push(last.id);
        }
    }

    /// As `nodes`, but an answer of a store as a whole counts as the answer of all its members.
    fn members(&self, answers: &Answers, wanted: &[NodeAnswer]) -> Nodes {
        let is_whole =
            |(name, answer): &(NodeName, NodeAnswer)| wanted.contains(answer) && !self.plan.lock_nodes.contains(name);
        if answers.iter().any(is_whole) { Nodes::MAX } else { self.nodes(answers, wanted) }
    }

    fn acquired(&mut self, id: HoldId, mark: EventRef, event: &Event) {
        let Event::Acquired { token, lease_ns, granted_after, promised_from, place, answers, .. } = event else {
            return;
        };
        let (nodes, refused) = (self.nodes(answers, GRANTED), self.nodes(answers, &[NodeAnswer::Refused]));
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let promised_from = promised_from.unwrap_or(attempt.sent.at);
        let (token, lease, granted_after, place) = (*token, Duration::from_nanos(*lease_ns), *granted_after, *place);
        attempt.acquired(mark, Granted { token, lease, granted_after, place, promised_from });
        (attempt.granted_on, attempt.refused_on) = (nodes, refused);
        if let Some((kill, early_end)) = self.processes[attempt.process].killed {
            attempt.ends(kill, early_end);
        }
        self.keys[attempt.key].live.push(id);
        self.holds += 1;
    }

    fn killed(&mut self, node: &NodeName, mark: EventRef, early_end: EarlyEnd) {
        for process in self.processes.iter_mut().filter(|p| p.is_running && p.node == *node) {
            process.killed.get_or_insert((mark, early_end));
            for id in &process.open {
                if let Some(hold) = self.attempts.get_mut(id)
                    && hold.grant.is_some()
                {
                    hold.ends(mark, early_end);
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

    /// Notes that the resource was started again.
    fn recovered(&mut self, durable: u64) {
        if durable > self.last_number {
            let last = self.last_number;
            self.unlogged.push((last, durable));
            self.add_reason(format!(
                "the admission log ends with number {last}, and {durable} was on disk after a restart"
            ));
        } else if durable < self.last_number && !self.plan.schedule.iter().any(is_of_resource) {
            self.add_reason("the resource was started again, and no fault of the plan did that".to_string());
        }
        self.is_recovered = true;
    }

    /// Applies an admission that did not reach the disk.
    pub fn undone(&mut self, entry: &Entry) {
        let Event::Admission { number, kind, hold, op, repeat, .. } = &entry.event else { return };
        self.processes[entry.process].is_running = true;
        self.operations.next_event();
        self.admission(*number, *kind, *repeat);
        if let (Some(hold), Some(op), false) = (hold, op, repeat) {
            self.operations.undone(*hold, *op, *number);
        }
    }

    /// Checks that the admission log has no gap: its numbers are the order in which fences are judged.
    fn admission(&mut self, number: u64, kind: RequestKind, repeat: bool) {
        if repeat {
            return;
        }
        let goes_on = std::mem::take(&mut self.is_recovered) && number > self.last_number;
        if number != self.last_number + 1 && !goes_on {
            let kind = if kind == RequestKind::Read { "read" } else { "write" };
            self.add_reason(format!("the admission log goes from number {} to {kind} {number}", self.last_number));
        }
        self.last_number = number;
    }

    /// An event of a client about one of its operations on the resource.
    fn operation(&mut self, mark: EventRef, event: &Event) {
        let operations = &mut self.operations;
        match event {
            Event::Read { hold, op } => operations.invoked(*hold, *op, RequestKind::Read),
            Event::Write { hold, op } => operations.invoked(*hold, *op, RequestKind::Write),
            Event::ReadOk { hold, op, number, arms } => {
                let answer = arms.as_deref().map_or(Answer::Unrecorded, Answer::Read);
                operations.answered(*hold, *op, *number, answer, mark.seq);
            }
            Event::WriteOk { hold, op, number, arms } => {
                let answer = arms.as_deref().map_or(Answer::Unrecorded, Answer::Write);
                operations.answered(*hold, *op, *number, answer, mark.seq);
            }
            Event::AccessFailed { hold, op, outcome: Outcome::Failed, .. } => operations.failed(*hold, *op, mark.seq),
            _ => return,
        }
        self.add_contradictions();
    }

    /// An admission that was not undone.
    fn arrived(&mut self, mark: EventRef, event: &Event) {
        let Event::Admission { number, key, kind, hold, op, token, repeat, arms, .. } = event else { return };
        let (number, kind, hold, op, token) = (*number, *kind, *hold, *op, *token);
        let admission = Admission { seq: mark.seq, number, key, kind, hold, op, token, is_repeat: *repeat, arms };
        let attempt = hold.and_then(|hold| self.attempts.get(&hold));
        let granted = attempt.and_then(|attempt| Some((&self.keys[attempt.key].name, attempt.grant?.token)));
        // Only a request whose operation is not known needs to know whether the record was cut.
        let is_cut = || hold.is_some_and(|hold| is_cut(&self.processes, hold));
        let known = HoldKnown { is_open: attempt.is_some(), granted, is_cut: &is_cut };
        self.operations.arrived(&admission, known);
        self.add_contradictions();
        let (Some(hold), Some(op)) = (hold, op) else { return };
        let Some(attempt) = self.attempts.get_mut(&hold) else { return self.operations.forget(hold, op) };
        attempt.ops.retain(|o| *o != op);
        self.closing.push(hold);
        if attempt.grant.is_none() && !*repeat && self.operations.arrival() == Arrival::Act {
            self.add_reason(format!("the resource decided an operation of attempt {hold}, which had not acquired"));
        }
    }

    fn add_contradictions(&mut self) {
        if self.operations.findings().is_empty() && self.operations.doubts().is_empty() {
            return;
        }
        let contradictions = self.operations.findings().iter().filter(|f| f.breach == Breach::Contradiction);
        let reasons: Vec<String> =
            contradictions.map(|f| f.why.clone()).chain(self.operations.doubts().iter().cloned()).collect();
        reasons.into_iter().for_each(|reason| self.add_reason(reason));
    }

    /// Compares the answers of a stamp with the log, which has every decision that was made by then.
    pub fn complete_stamp(&mut self) {
        let (processes, unlogged) = (&self.processes, &self.unlogged);
        self.operations.complete_stamp(|number| {
            // The last admissions of a killed resource may be lost.
            let resource = processes.iter().rfind(|p| p.is_running && p.node.as_str() == "resource");
            let is_down = resource.is_some_and(|p| p.killed.is_some());
            is_down || unlogged.iter().any(|(from, to)| *from < number && number <= *to)
        });
        self.add_contradictions();
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

    /// The key whose entitlements may have ended by this event, or by its stamp.
    pub fn key_touched(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Acquired { attempt: id, .. }
            | Event::Release { hold: id }
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

    /// Completes a stamp: moves the attempts that no later event can concern into `closed`.
    pub fn settle(&mut self, closed: &mut Closed) {
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
                self.operations.closed(id);
                closed.push(attempt);
            }
        }
        self.closing = closing;
    }
}

/// Returns whether the last events of the process that made an attempt may be lost, because the process was killed.
fn is_cut(processes: &[Process], attempt: HoldId) -> bool {
    let number = attempt.0 / HoldId::PER_PROCESS;
    let mut killed = processes.iter().filter(|p| p.killed.is_some() && p.node.as_str() != "resource");
    killed.any(|p| p.number.is_none_or(|known| known == number))
}

/// The answers to an acquisition by which the node had granted it. `done` is the answer of the second round.
pub(crate) const GRANTED: &[NodeAnswer] = &[NodeAnswer::Granted, NodeAnswer::Done, NodeAnswer::Late];

/// Returns whether an event only closes a request, so that the event may be ignored if its attempt is closed.
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

/// The attempt that an event of a client concerns.
pub(crate) fn subject(event: &Event) -> Option<HoldId> {
    match event {
        Event::WriteBack { attempt }
        | Event::Behind { attempt }
        | Event::WithoutKey { attempt }
        | Event::Acquired { attempt, .. }
        | Event::AcquireFailed { attempt, .. }
        | Event::Undo { attempt }
        | Event::Undone { attempt, .. } => Some(*attempt),
        // Nothing has been sent yet, so there is no attempt yet.
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
