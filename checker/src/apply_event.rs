//! Applies events to the shared state. No other code changes the shared state.

use std::{
    collections::{VecDeque, hash_map},
    time::Duration,
};

use history::{
    Answers, ClientId, Event, FailureReason, FaultPhase, HoldId, NodeAnswer, NodeName, Outcome, Point, ProcessName,
    RequestKind, Stamp,
};
use indexmap::IndexSet;

use crate::{
    entry::Entry,
    faults::is_of_resource,
    holds::{Attempt, ClientStep, EarlyEnd, EventRef, Granted, Nodes, RenewalFailure},
    operations::{Admission, Answer, Arrival, Breach, HoldKnown},
    run::{self, Closed, Process, Run},
    subject::{is_answer, subject},
};

/// The most reasons that are kept.
const REASONS_MAX: usize = 20;

impl Run {
    /// Adds the process, and all processes with smaller numbers.
    pub fn add_process(&mut self, process: usize, name: impl Fn(usize) -> ProcessName) {
        while self.processes.len() <= process {
            let place = self.processes.len();
            let name = name(place);
            let (node, incarnation) = (name.node(), name.incarnation());
            let of_node = self.of_node.entry(node.clone()).or_default();
            of_node.insert(of_node.partition_point(|(other, _)| *other <= incarnation), (incarnation, place));
            self.processes.push(Process {
                node,
                name,
                is_running: false,
                number: None,
                killed: None,
                cut_at: None,
                open: IndexSet::default(),
                stalls: VecDeque::new(),
            });
        }
    }

    fn add_reason(&mut self, reason: impl Into<String>) {
        if self.reasons.len() < REASONS_MAX {
            self.reasons.insert(reason.into());
        }
    }

    /// Applies an event, before the judges see it.
    pub fn apply(&mut self, entry: &Entry) {
        let mark = EventRef { at: entry.at, seq: entry.seq };
        self.now = entry.at;
        self.processes[entry.process].is_running = true;
        self.operations.next_event();
        match &entry.event {
            Event::Started { .. } => {
                self.start = Some(self.start.map_or(mark.at, |start| start.min(mark.at)));
                let Process { name, node, .. } = &self.processes[entry.process];
                self.is_opening |= node.as_str() == "resource" && name.incarnation() > 1;
            }
            Event::Stall { from, to, .. } => self.stalled(entry.process, (*from, *to)),
            Event::Clocks { wall_ns, boot_ns } => {
                let name = &self.processes[entry.process].name;
                self.clock_steps.sampled(entry.process, name, mark.at, *wall_ns, *boot_ns);
            }
            Event::Recovered { durable } => self.recovered(*durable),
            Event::PacketsDelayed { fault, from, to, since, until } => {
                self.faults.packets_delayed(*fault, from, to, (*since, *until))
            }
            Event::Fault { fault, kind, node, phase } => {
                self.faults.apply(&self.plan, *fault, *kind, node, phase, mark);
                match phase {
                    FaultPhase::Requested { .. } if kind.kills() => self.killed(node, mark, EarlyEnd::Kill(*fault)),
                    FaultPhase::Healed | FaultPhase::Unproved { .. } if kind.kills() => self.survived(*fault),
                    _ => {}
                }
            }
            Event::PointReleased { client, point } => {
                if let Some(hold) = self.at_point.get(client).copied() {
                    self.with_those_above(hold, |attempt| attempt.point_released(mark.at, *point));
                }
            }
            event @ (Event::AtPoint { client, hold, point } | Event::LeftPoint { client, hold, point, .. }) => {
                let is_before = *point == Point::BeforeAcquire;
                let above = is_before.then(|| self.hold_of_parent(*client, entry.process)).flatten();
                if let Event::AtPoint { .. } = event {
                    self.at_point.insert(*client, above.unwrap_or(*hold));
                }
                if let Some(above) = above {
                    self.step(above, mark, event);
                }
                self.client(mark, event);
            }
            Event::Acquire { client, attempt, key, mode, above, .. } => {
                let key = self.intern(key);
                let mut attempt = Attempt::new(*attempt, key, *mode, *client, entry.process, mark);
                attempt.above = *above;
                attempt.resource_stalls_before = self.of_resource.count();
                self.acquire(mark, attempt);
            }
            Event::Admission { number, key, kind, repeat, .. } => {
                // The record may have lost the attempts at the key.
                self.intern(key);
                self.admission(*number, *kind, *repeat);
                self.arrived(mark, &entry.event);
            }
            event => {
                self.operation(mark, event);
                self.client(mark, event);
            }
        }
    }

    /// The hold of the parent that a client of a process uses. The client waits under it before it sends its attempt at
    /// a child.
    fn hold_of_parent(&self, client: ClientId, process: usize) -> Option<HoldId> {
        let parent = self.parent?;
        let is_used = |a: &&Attempt| a.client == client && a.key == parent && a.grant.is_some() && !a.is_used_up;
        self.open_on(process).find(is_used).map(|hold| hold.id)
    }

    fn acquire(&mut self, mark: EventRef, attempt: Attempt) {
        let Attempt { id, client, process, .. } = attempt;
        self.first_operation.get_or_insert(mark.at);
        if let Some(last) = self.current.insert(client, id)
            && let Some(last) = self.attempts.get_mut(last)
        {
            // The client has started another attempt. The former attempt, if it failed, is over even without a report,
            // and the client no longer waits for a renewal that was under way when the work ended.
            last.is_used_up |= last.grant.is_none();
            if last.is_used_up {
                last.waits_no_more();
            }
            self.closing.push(last.id);
        }
        if let Some(above) = attempt.above {
            self.with_those_above(above, |hold| hold.add_step(mark, ClientStep::Acquire));
        }
        self.busy.entry(attempt.key).or_default().known.insert(id);
        self.attempts.insert(Box::new(attempt));
        self.processes[process].open.insert(id);
        self.processes[process].number = Some(id.0 / HoldId::PER_PROCESS);
    }

    /// An event of a client about one of its attempts.
    fn client(&mut self, mark: EventRef, event: &Event) {
        let Some(id) = subject(event) else { return };
        if !self.attempts.contains(id) {
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
        let Some(attempt) = self.attempts.get_mut(id) else { return };
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
                    attempt.extended((sent.at, mark.at), lease, nodes, of);
                }
                attempt.renewed(mark, lease, nodes);
            }
            Event::RenewFailed { why, .. } => {
                if let (Some(sent), Some(grant)) = (attempt.renewing.take(), attempt.grant) {
                    let span = (sent.at, mark.at);
                    attempt.extended(span, renew_for.unwrap_or(grant.lease), nodes, of);
                    let loss = Some(*why).filter(|why| matches!(why, FailureReason::Lost | FailureReason::Validity));
                    attempt.failed(RenewalFailure { span, done_on: nodes, refused_on: refused, loss });
                }
            }
            Event::LossNoticed { .. } => attempt.ends(mark, EarlyEnd::Loss),
            Event::Release { .. } => attempt.releases(mark),
            Event::Released { .. } | Event::ReleaseFailed { .. } => attempt.releasing = None,
            Event::GaveUp { .. } => attempt.gives_up(mark),
            _ => {}
        }
        let (may_close, client) = (attempt.may_close(), attempt.client);
        if was_in_use && attempt.is_used_up {
            self.used_up(client, id);
        }
        self.step(id, mark, event);
        if may_close {
            self.closing.push(id);
        }
    }

    /// Notes that a client has used up a hold. The hold that it had used up before may close.
    fn used_up(&mut self, client: ClientId, id: HoldId) {
        let last = self.used_up.insert(client, id);
        if let Some(last) = last.and_then(|last| self.attempts.get_mut(last)) {
            last.is_superseded = true;
            last.waits_no_more();
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
        let Some(attempt) = self.attempts.get_mut(id) else { return };
        let promised_from = promised_from.unwrap_or(attempt.sent.at);
        self.processes[attempt.process].stalled_since(promised_from, attempt);
        let (token, lease, granted_after, place) = (*token, Duration::from_nanos(*lease_ns), *granted_after, *place);
        attempt.acquired(mark, Granted { token, lease, granted_after, place, promised_from });
        (attempt.granted_on, attempt.refused_on) = (nodes, refused);
        if let Some((kill, early_end)) = self.processes[attempt.process].killed {
            attempt.ends(kill, early_end);
        }
        self.busy.entry(attempt.key).or_default().live.push(id);
        self.holds += 1;
    }

    /// Notes a kill of the last process of a node. The former ones have ended, perhaps although no fault killed them.
    fn killed(&mut self, node: &NodeName, mark: EventRef, early_end: EarlyEnd) {
        let Some(process) = self.newest_on(node) else { return };
        let process = &mut self.processes[process];
        process.killed.get_or_insert((mark, early_end));
        for id in &process.open {
            if let Some(hold) = self.attempts.get_mut(*id)
                && hold.grant.is_some()
            {
                hold.ends(mark, early_end);
            }
        }
    }

    /// Notes that the resource was started again.
    fn recovered(&mut self, durable: u64) {
        self.is_opening = false;
        self.operations.recovered(durable);
        if durable > self.last_number {
            let last = self.last_number;
            self.unlogged.push((last, durable));
            self.is_log_broken = true;
            self.add_reason(format!(
                "the admission log ends with number {last}, and {durable} was on disk after a restart"
            ));
        } else if durable < self.last_number && !self.plan.schedule.iter().any(is_of_resource) {
            self.is_log_broken = true;
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
        self.is_opening = false;
        if repeat {
            return;
        }
        let goes_on = std::mem::take(&mut self.is_recovered) && number > self.last_number;
        if self.last_number.checked_add(1) != Some(number) && !goes_on {
            let kind = if kind == RequestKind::Read { "read" } else { "write" };
            self.is_log_broken |= number > self.last_number;
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
        let attempt = hold.and_then(|hold| self.attempts.get(hold));
        let granted = attempt.and_then(|attempt| {
            let holds_all = self.parent == Some(attempt.key) && attempt.mode.below().is_some();
            let of = if holds_all { key } else { self.keys.name(attempt.key) };
            Some((of, attempt.grant?.token))
        });
        // Only a request whose operation is not known needs to know whether the record was cut.
        let is_cut = || hold.is_some_and(|hold| is_cut(&self.processes, hold));
        let is_unlogged = || self.unlogged.iter().any(|(from, to)| *from < number && number <= *to);
        let known = HoldKnown { is_open: attempt.is_some(), granted, is_cut: &is_cut, is_unlogged: &is_unlogged };
        self.operations.arrived(&admission, known);
        self.add_contradictions();
        let (Some(hold), Some(op)) = (hold, op) else { return };
        let mut closing = std::mem::take(&mut self.closing);
        self.with_those_above(hold, |attempt| {
            attempt.awaits_no_more(op);
            closing.extend(attempt.may_close().then_some(attempt.id));
        });
        self.closing = closing;
        let Some(attempt) = self.attempts.get(hold) else { return self.operations.forget(hold, op) };
        if attempt.grant.is_none() && !*repeat && self.operations.arrival() == Arrival::Act {
            self.add_reason(format!("the resource decided an operation of attempt {hold}, which had not acquired"));
        }
    }

    fn add_contradictions(&mut self) {
        if self.operations.has_shown() {
            self.note_contradictions();
        }
    }

    fn note_contradictions(&mut self) {
        let contradictions = self.operations.findings().iter().filter(|f| f.breach == Breach::Contradiction);
        let reasons: Vec<String> =
            contradictions.map(|f| f.why.clone()).chain(self.operations.doubts().iter().cloned()).collect();
        reasons.into_iter().for_each(|reason| self.add_reason(reason));
    }

    /// Compares the answers of a stamp with the log, which has every decision that was made by then.
    pub fn complete_stamp(&mut self) {
        let (processes, of_node) = (&self.processes, &self.of_node);
        let (unlogged, is_opening) = (&self.unlogged, self.is_opening);
        self.operations.complete_stamp(|number| {
            // The last admissions of a killed resource may be lost, and its next process has answered nobody yet.
            let of_resource = of_node.get(&NodeName::from("resource")).and_then(|all| run::newest(processes, all));
            let is_down = of_resource.is_some_and(|process| processes[process].is_cut());
            is_down || is_opening || unlogged.iter().any(|(from, to)| *from < number && number <= *to)
        });
        self.add_contradictions();
    }

    /// The next hold of the key whose entitlement ended at `now` or before, in the order of their ends.
    pub fn next_ended(&mut self, key: usize, now: Stamp) -> Option<HoldId> {
        let live = &mut self.busy.get_mut(&key)?.live;
        let ends = live.iter().enumerate().filter_map(|(i, id)| {
            let end = self.attempts.get(*id).map_or(Stamp(0), |attempt| attempt.end());
            (end <= now).then_some((end, *id, i))
        });
        let (_, id, i) = ends.min()?;
        live.swap_remove(i);
        if let Some(hold) = self.attempts.get_mut(id) {
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
            | Event::Admission { hold: Some(id), .. } => self.attempts.get(*id).map(|attempt| attempt.key),
            _ => None,
        }
    }

    /// All keys.
    pub fn keys(&self) -> std::ops::Range<usize> {
        0..self.keys.len()
    }

    /// The keys that have an attempt which is not closed, in a fixed order.
    pub fn busy_keys(&self) -> Vec<usize> {
        let mut keys: Vec<usize> = self.busy.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    /// No event of the process follows.
    pub fn gone(&mut self, process: usize, cut_at: Option<Stamp>) {
        self.processes[process].cut_at = cut_at;
        for id in std::mem::take(&mut self.processes[process].open) {
            if let Some(attempt) = self.attempts.get_mut(id) {
                attempt.is_orphan = true;
                self.closing.push(id);
                self.processes[process].open.insert(id);
            }
        }
    }

    /// Completes a stamp: moves the attempts that no later event can concern into `closed.attempts`, and the keys that
    /// have no other attempt into `closed.keys`.
    pub fn settle(&mut self, closed: &mut Closed) {
        let mut closing = std::mem::take(&mut self.closing);
        if closing.len() > 1 {
            closing.sort_unstable();
            closing.dedup();
        }
        for id in closing.drain(..) {
            if !self.attempts.get(id).is_some_and(|attempt| attempt.is_closed()) {
                continue;
            }
            if let Some(attempt) = self.attempts.remove(id) {
                self.processes[attempt.process].open.swap_remove(&id);
                self.operations.closed(id);
                if self.is_last_of(attempt.key, id) {
                    closed.keys.push(attempt.key);
                }
                closed.attempts.push(attempt);
            }
        }
        self.closing = closing;
    }

    /// Notes that an attempt of the key has closed. Returns whether the key has no other.
    fn is_last_of(&mut self, key: usize, id: HoldId) -> bool {
        let hash_map::Entry::Occupied(mut busy) = self.busy.entry(key) else { return false };
        busy.get_mut().known.remove(&id);
        let is_last = busy.get().known.is_empty();
        if is_last {
            busy.remove();
        }
        is_last
    }
}

/// Returns whether the last events of the process that made an attempt may be lost, because the process died.
fn is_cut(processes: &[Process], attempt: HoldId) -> bool {
    let number = attempt.0 / HoldId::PER_PROCESS;
    let mut killed = processes.iter().filter(|p| p.is_cut() && p.node.as_str() != "resource");
    killed.any(|p| p.number.is_none_or(|known| known == number))
}

/// The answers to an acquisition by which the node had granted it. `done` is the answer of the second round.
pub(crate) const GRANTED: &[NodeAnswer] = &[NodeAnswer::Granted, NodeAnswer::Done, NodeAnswer::Late];
