//! Merges the streams of many processes, as they arrive, into one sweep in the order of stamps.
//!
//! Events of one process are in order; events of different processes are not. The *horizon* is the smallest last stamp
//! of the processes that may still report: events before the horizon are final. Events of one stamp are concurrent;
//! the merge returns workers first, then the agent, then the resource, by name. So the verdicts do not depend on the
//! interleaving of the streams, and a hold is known when its first request is decided.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque, binary_heap::PeekMut},
    time::Duration,
};

use history::{Event, FaultPhase, NodeName, Plan, ProcessName, Record, Stamp};
use rustc_hash::FxHashMap;

use crate::faults::is_of_resource;

/// One event of the sweep.
#[derive(Debug)]
pub(crate) struct Entry {
    pub at: Stamp,
    pub seq: u64,
    /// Index of the process, in the order of first appearance. The index must not influence the verdicts.
    pub process: usize,
    pub event: Event,
    /// True if the event is an admission that the resource had forgotten when it started again.
    pub is_undone: bool,
}

/// The next item of the sweep.
#[derive(Debug)]
pub(crate) enum Next {
    /// An event.
    Entry(Entry),
    /// No event of this process follows. If the process ended without a finish, `cut_at` is its last stamp: it may have
    /// done more, of which the record has nothing.
    Gone { process: usize, cut_at: Option<Stamp> },
}

/// The state of a process with regard to the horizon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// In the plan, and not started: the horizon waits at 0.
    Expected,
    /// The process may report more: the horizon waits at its last stamp.
    Running,
    /// The stream has ended without a finish. The successor's first stamps may still be on their way, so the process
    /// holds the horizon until the successor has started.
    Cut,
    /// The process reports nothing more.
    Over,
}

struct Stream {
    name: ProcessName,
    node: NodeName,
    incarnation: u32,
    queue: VecDeque<Entry>,
    next_n: u64,
    last: Stamp,
    life: Life,
    cut: bool,
    /// True if an event of the stream was lost. Later events are not used.
    broken: bool,
    gone: bool,
    /// True if the undone admissions are known: the process has finished, or a later process has opened the store.
    is_settled: bool,
}

impl Stream {
    /// The stamp at which the process holds the horizon.
    fn holds_at(&self) -> Option<Stamp> {
        match self.life {
            Life::Expected => Some(Stamp(0)),
            Life::Running | Life::Cut => Some(self.last),
            Life::Over => None,
        }
    }
}

/// The most processes that a record may have.
const PROCESSES_MAX: usize = 10_000;

/// How much later than the agent's last stamp a stamp may be. The processes end within seconds.
const FUTURE: Duration = Duration::from_secs(60);

/// Workers first, then the agent, then the resource.
fn rank(name: &ProcessName) -> u8 {
    match name.as_str().split('#').next() {
        Some("resource") => 2,
        Some("agent") => 1,
        _ => 0,
    }
}

fn incarnation(name: &ProcessName) -> u32 {
    name.as_str().split_once('#').and_then(|(_, n)| n.parse().ok()).unwrap_or(1)
}

/// Merges the streams.
#[derive(Default)]
pub(crate) struct Merge {
    streams: Vec<Stream>,
    index: FxHashMap<ProcessName, usize>,
    of_node: FxHashMap<NodeName, Vec<usize>>,
    /// The streams that hold the horizon, each with a stamp at which it held it; a stamp may have grown since.
    holding: BinaryHeap<Reverse<(Stamp, usize)>>,
    /// The stream that was asked for last.
    recent: usize,
    heads: BinaryHeap<Reverse<(Stamp, u8, ProcessName, usize)>>,
    /// Ended streams whose last event has been swept.
    gone: VecDeque<usize>,
    horizon: Stamp,
    /// Nothing is judged from this stamp on, because an event was lost.
    limit: Option<Stamp>,
    /// The end record was seen.
    whole: bool,
    /// The last stamp that was swept.
    swept: Option<Stamp>,
    kills: FxHashMap<NodeName, usize>,
    /// True if the plan kills the resource. Each admission then waits until the merge knows whether the resource undid
    /// it.
    is_forgetful: bool,
    /// The largest number that each restarted process of the resource found on disk, if known before its turn.
    recoveries: Option<Vec<(ProcessName, u64)>>,
    places: BTreeSet<(String, u64)>,
    /// The first contradiction: the record cannot be judged at all.
    contradiction: Option<String>,
    reasons: BTreeSet<String>,
}

impl Merge {
    /// Names the processes that must start before anything is final.
    pub fn expect(&mut self, plan: &Plan) {
        let workers = (1..=plan.workload.workers).map(|i| ProcessName::new(format!("worker-{i}")));
        for name in [ProcessName::from("resource"), ProcessName::from("agent")].into_iter().chain(workers) {
            let Some(stream) = self.stream(&name) else {
                let workers = plan.workload.workers;
                return self
                    .contradicts(0, format!("the plan has {workers} workers; at most {PROCESSES_MAX} are judged"));
            };
            self.lives(stream, Life::Expected);
        }
        self.horizon = Stamp(0);
        self.is_forgetful = plan.schedule.iter().any(is_of_resource);
    }

    /// Takes in what the restarted processes of the resource found on disk: all `recovered` events of the record.
    pub fn know_recoveries(&mut self, recoveries: Vec<(ProcessName, u64)>) {
        self.recoveries = Some(recoveries);
    }

    /// Returns whether the plan kills the resource.
    pub fn is_forgetful(&self) -> bool {
        self.is_forgetful
    }

    /// Returns whether a later process of the node did not find an admission on disk.
    fn is_known_undone(&self, stream: &Stream, event: &Event) -> bool {
        let (Some(known), Event::Admission { number, .. }) = (&self.recoveries, event) else { return false };
        let is_later = |name: &ProcessName| incarnation(name) > stream.incarnation && name.node() == stream.node;
        known.iter().any(|(name, durable)| number > durable && is_later(name))
    }

    /// The name of a process.
    pub fn name(&self, process: usize) -> &ProcessName {
        &self.streams[process].name
    }

    /// The stream of a process; none if the record has too many.
    fn stream(&mut self, name: &ProcessName) -> Option<usize> {
        // Events of one process come in a row; this costs less than the index.
        if self.streams.get(self.recent).is_some_and(|stream| stream.name == *name) {
            return Some(self.recent);
        }
        self.recent = self.find(name)?;
        Some(self.recent)
    }

    fn find(&mut self, name: &ProcessName) -> Option<usize> {
        if let Some(&i) = self.index.get(name) {
            return Some(i);
        }
        let i = self.streams.len();
        if i == PROCESSES_MAX {
            return None;
        }
        let node = name.node();
        self.of_node.entry(node.clone()).or_default().push(i);
        self.streams.push(Stream {
            name: name.clone(),
            node,
            incarnation: incarnation(name),
            queue: VecDeque::new(),
            next_n: 0,
            last: Stamp(0),
            life: Life::Over,
            cut: false,
            broken: false,
            gone: false,
            is_settled: false,
        });
        self.index.insert(name.clone(), i);
        Some(i)
    }

    fn lives(&mut self, i: usize, life: Life) {
        self.streams[i].life = life;
        self.holding.extend(self.streams[i].holds_at().map(|at| Reverse((at, i))));
    }

    /// The streams of the earlier, or of the later, processes of a process's node.
    fn of_same_node(&self, i: usize, is_wanted: impl Fn(u32, u32) -> bool) -> Vec<usize> {
        let own = self.streams[i].incarnation;
        let all = self.of_node.get(&self.streams[i].node).into_iter().flatten().copied();
        all.filter(|other| is_wanted(self.streams[*other].incarnation, own)).collect()
    }

    /// Adds a record.
    pub fn feed(&mut self, record: Record) {
        if self.whole {
            self.contradicts(record.seq, "it comes after the record of the end".into());
            return;
        }
        let Some(i) = self.stream(&record.process) else {
            return self.contradicts(record.seq, format!("it is of more than {PROCESSES_MAX} processes"));
        };
        if !self.is_in_order(i, &record) {
            return;
        }
        let at = record.at;
        let was = std::mem::replace(&mut self.streams[i].last, at);
        match &record.event {
            Event::Plan { .. } if record.seq == 0 => {}
            Event::Plan { .. } => self.contradicts(record.seq, "the plan comes twice, or not first".into()),
            Event::End => {
                self.whole = true;
                self.end_of_record(record.seq);
                self.horizon = Stamp(u64::MAX);
            }
            Event::ProcessEnded { ended, .. } => self.process_ended(ended),
            event => {
                self.note(i, (at, record.seq), event);
                self.push(i, record);
                if was == self.horizon || self.streams[i].life == Life::Over {
                    self.move_horizon();
                }
            }
        }
    }

    /// Returns whether no event of the process was lost before this record. If an event was lost, nothing at or after
    /// the last stamp of the process is judged.
    fn is_in_order(&mut self, i: usize, record: &Record) -> bool {
        let stream = &mut self.streams[i];
        if stream.broken {
            return false;
        }
        let (name, expected) = (&stream.name, stream.next_n);
        if stream.gone {
            self.reasons.insert(format!("{name}: there are events after its end"));
            return false;
        }
        if record.at < stream.last {
            // The earlier stamp may be the wrong one, and other events may have been judged by it.
            let why = format!("{name}: the stamp of its event {expected} goes back");
            self.contradicts(record.seq, why);
            return false;
        }
        if record.n < expected {
            let why = format!("{name}: its event {} comes twice", record.n);
            self.contradicts(record.seq, why);
            return false;
        }
        if record.n != expected {
            self.reasons.insert(format!("{name}: its event {expected} is missing, {} follows", record.n));
            stream.broken = true;
            let at = stream.last;
            self.stop_at(at);
            return false;
        }
        stream.next_n += 1;
        if record.n == 0 && !matches!(record.event, Event::Started { .. } | Event::Plan { .. }) {
            self.reasons.insert(format!("{}: it did not say first on which kernel it runs", record.process));
        }
        true
    }

    fn contradicts(&mut self, seq: u64, why: String) {
        self.contradiction.get_or_insert_with(|| {
            format!("the record contradicts itself at seq {seq}, so nothing in it is judged: {why}")
        });
    }

    fn stop_at(&mut self, at: Stamp) {
        self.limit = Some(self.limit.map_or(at, |limit| limit.min(at)));
    }

    /// Notes the facts that must be known before the event's turn comes.
    fn note(&mut self, i: usize, (at, seq): (Stamp, u64), event: &Event) {
        match event {
            Event::Started { boot_id, time_namespace, .. } => {
                self.places.insert((boot_id.clone(), *time_namespace));
                self.lives(i, Life::Running);
                if self.swept.is_some_and(|swept| at <= swept) {
                    self.reasons.insert(format!("{}: it started before events that had been judged", self.name(i)));
                }
                for earlier in self.of_same_node(i, |other, own| other < own) {
                    if self.streams[earlier].life == Life::Cut {
                        self.streams[earlier].life = Life::Over;
                    }
                }
                self.move_horizon();
            }
            Event::Finished => {
                self.streams[i].life = Life::Over;
                self.streams[i].is_settled = true;
            }
            Event::Recovered { durable } => {
                if self.recoveries.as_ref().is_some_and(|known| !known.contains(&(self.name(i).clone(), *durable))) {
                    // The file has changed, or writes this event in a way that nobody writes it.
                    self.contradicts(seq, "a restart of the resource is told that was not known before".into());
                }
                self.recovered(i, *durable);
            }
            Event::Fault { kind, node, phase: FaultPhase::Requested { .. }, .. } if kind.kills() => {
                *self.kills.entry(node.clone()).or_default() += 1;
            }
            _ => {}
        }
    }

    fn push(&mut self, i: usize, record: Record) {
        let is_over = self.limit.is_some_and(|limit| record.at >= limit);
        if is_over || matches!(record.event, Event::Watermark) {
            return;
        }
        let is_undone = self.is_known_undone(&self.streams[i], &record.event);
        let stream = &mut self.streams[i];
        if stream.queue.is_empty() {
            self.heads.push(Reverse((record.at, rank(&stream.name), stream.name.clone(), i)));
        }
        stream.gone |= matches!(record.event, Event::Finished);
        let Record { at, seq, event, .. } = record;
        stream.queue.push_back(Entry { at, seq, process: i, event, is_undone });
    }

    /// Notes that process `i` has opened the store of the resource's former processes.
    fn recovered(&mut self, i: usize, durable: u64) {
        for earlier in self.of_same_node(i, |other, own| other < own) {
            let stream = &mut self.streams[earlier];
            stream.is_settled = true;
            for entry in &mut stream.queue {
                entry.is_undone |= matches!(entry.event, Event::Admission { number, .. } if number > durable);
            }
        }
    }

    /// Returns whether an entry must wait until the merge knows whether the resource undid it.
    fn is_pending(&self, stream: &Stream, entry: &Entry) -> bool {
        let is_asked = self.is_forgetful && self.recoveries.is_none();
        is_asked && !self.whole && !stream.is_settled && matches!(entry.event, Event::Admission { .. })
    }

    fn process_ended(&mut self, ended: &ProcessName) {
        let Some(i) = self.stream(ended) else { return };
        if self.streams[i].life == Life::Running {
            let later = self.of_same_node(i, |other, own| other > own);
            let succeeded = later.iter().any(|i| matches!(self.streams[*i].life, Life::Running | Life::Over));
            self.streams[i].cut = true;
            self.lives(i, if succeeded { Life::Over } else { Life::Cut });
        }
        if !self.streams[i].gone {
            self.streams[i].gone = true;
            if self.streams[i].queue.is_empty() {
                self.gone.push_back(i);
            }
        }
        self.move_horizon();
    }

    fn move_horizon(&mut self) {
        while let Some(mut first) = self.holding.peek_mut() {
            let Reverse((at, i)) = *first;
            match self.streams[i].holds_at() {
                Some(now) if now == at => break,
                // A stamp of a process only grows, so the heap is never behind.
                Some(now) => first.0.0 = now,
                None => _ = PeekMut::pop(first),
            }
        }
        self.horizon = self.holding.peek().map_or(Stamp(u64::MAX), |first| first.0.0);
    }

    /// Takes the end record, `seq`: every process must have started and ended, and every ended process must have
    /// finished or been killed.
    fn end_of_record(&mut self, seq: u64) {
        self.compare_with_agent(seq);
        let mut cut: BTreeMap<NodeName, Vec<(u32, Stamp, ProcessName)>> = BTreeMap::new();
        let mut running: Option<Stamp> = None;
        for stream in &self.streams {
            if stream.life == Life::Expected {
                self.reasons.insert(format!("{} never started", stream.name));
            }
            if stream.life == Life::Running && !stream.broken {
                self.reasons.insert(format!("{}: the record ends, and the process has not", stream.name));
                running = Some(running.map_or(stream.last, |first: Stamp| first.min(stream.last)));
            }
            if stream.cut {
                let entry = (incarnation(&stream.name), stream.last, stream.name.clone());
                cut.entry(stream.name.node()).or_default().push(entry);
            }
        }
        if let Some(last) = running {
            self.stop_at(last);
        }
        for (node, mut ended) in cut {
            ended.sort();
            let killed = self.kills.get(&node).copied().unwrap_or(0);
            for (_, last, name) in ended.into_iter().skip(killed) {
                self.reasons.insert(format!("{name} ended before it had finished, and no fault killed it"));
                self.stop_at(last);
            }
        }
    }

    /// The agent finishes last, so no other process can have a stamp much later than the agent's last one.
    fn compare_with_agent(&mut self, seq: u64) {
        let agents = self.streams.iter().filter(|s| s.name.as_str() == "agent" && s.is_settled);
        let Some(finished) = agents.map(|s| s.last).next() else { return };
        let late = self.streams.iter().find(|s| s.last > finished.plus(FUTURE));
        if let Some((name, by)) = late.map(|s| (&s.name, s.last.since(finished).as_secs())) {
            let why = format!("{name}: its last stamp is {by} s later than that of the agent, which ends last");
            self.contradicts(seq, why);
        }
    }

    /// The next event that is final.
    pub fn pop(&mut self) -> Option<Next> {
        if let Some(i) = self.gone.pop_front() {
            let stream = &self.streams[i];
            return Some(Next::Gone { process: i, cut_at: stream.cut.then_some(stream.last) });
        }
        let bound = self.limit.map_or(self.horizon, |limit| limit.min(self.horizon));
        let &Reverse((at, .., i)) = self.heads.peek()?;
        if at >= bound {
            return None;
        }
        let stream = &self.streams[i];
        if stream.queue.front().is_some_and(|entry| self.is_pending(stream, entry)) {
            return None;
        }
        self.swept = Some(at);
        let stream = &mut self.streams[i];
        let entry = stream.queue.pop_front()?;
        let mut head = self.heads.peek_mut()?;
        if let Some(next) = stream.queue.front() {
            // Changing the head in place is cheaper than removing and adding it.
            head.0.0 = next.at;
        } else {
            PeekMut::pop(head);
            if stream.gone {
                self.gone.push_back(i);
            }
        }
        Some(Next::Entry(entry))
    }

    /// The reason why the record cannot be judged at all: it contradicts itself, or its stamps come from more than one
    /// clock.
    pub fn unjudgeable(&self) -> Option<String> {
        if self.contradiction.is_some() {
            return self.contradiction.clone();
        }
        let boots: BTreeSet<&str> = self.places.iter().map(|(boot, _)| boot.as_str()).collect();
        match (boots.len(), self.places.len()) {
            (0 | 1, 0 | 1) => None,
            (0 | 1, n) => Some(format!("the processes ran in {n} time namespaces: their stamps cannot be compared")),
            (n, _) => Some(format!("the processes ran on {n} kernels (boot ids): their stamps cannot be compared")),
        }
    }

    /// Returns whether the end record was seen, and the reasons why the record was not judged to its end.
    pub fn into_reasons(self) -> (bool, BTreeSet<String>) {
        (self.whole, self.reasons)
    }

    /// Returns the stamp up to which everything is final, or `None` if the whole record is final.
    pub fn judged_until(&self) -> Option<Stamp> {
        let bound = self.limit.map_or(self.horizon, |limit| limit.min(self.horizon));
        let pending = self.streams.iter().flat_map(|s| s.queue.iter().find(|entry| self.is_pending(s, entry)));
        let bound = pending.map(|entry| entry.at).fold(bound, Stamp::min);
        (bound < Stamp(u64::MAX)).then_some(bound)
    }
}

#[cfg(test)]
mod tests;
