//! Merges the streams of many processes, as they arrive, into one sweep in the order of stamps.
//!
//! Events of one process are in order; events of different processes are not. The *horizon* is the smallest last stamp
//! of the processes that may still report: events before the horizon are final. Events of one stamp are concurrent;
//! the merge returns workers first, then the agent, then the resource, by name. So the verdicts do not depend on the
//! interleaving of the streams, and a hold is known when its first request is decided.

mod ending;
mod heads;
mod stream;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, binary_heap::PeekMut},
};

use history::{Event, FaultPhase, NodeName, Plan, ProcessName, Record, Stamp};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{entry::Entry, faults::is_of_resource};
use heads::{Head, Heads};
use stream::{GONE, Life, Recoveries, Stream, is_larger};

/// The next item of the sweep.
#[derive(Debug)]
pub(crate) enum Next {
    /// The first event of this process that is kept: see [`Merge::first`].
    Entry(usize),
    /// No event of this process follows. If the process ended without a finish, `cut_at` is its last stamp: it may have
    /// done more, of which the record has nothing.
    Gone { process: usize, cut_at: Option<Stamp> },
}

/// Places for streams that were asked for lately.
const RECENT: usize = 16;

/// The most processes that a record may have.
const PROCESSES_MAX: usize = 10_000;

/// Merges the streams.
#[derive(Default)]
pub(crate) struct Merge {
    streams: Vec<Stream>,
    index: FxHashMap<ProcessName, usize>,
    of_node: FxHashMap<NodeName, Vec<usize>>,
    /// The streams that hold the horizon, each with a stamp at which it held it; a stamp may have grown since.
    holding: BinaryHeap<Reverse<(Stamp, usize)>>,
    /// Streams that were asked for lately, each in the place that its name has here.
    recent: [usize; RECENT],
    /// The next event of each stream; of a stream that has ended, its end at its last stamp.
    heads: Heads,
    /// True if a record was seen.
    is_begun: bool,
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
    recoveries: Option<FxHashMap<NodeName, Recoveries>>,
    /// The same, to look one up: a record may have a million of them.
    known_recoveries: FxHashSet<(ProcessName, u64)>,
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
            self.streams[stream].is_planned = true;
            self.lives(stream, Life::Expected);
        }
        self.horizon = Stamp(0);
        self.is_forgetful = plan.schedule.iter().any(is_of_resource);
    }

    /// Takes in what the restarted processes of the resource found on disk: all `recovered` events of the record.
    pub fn know_recoveries(&mut self, recoveries: Vec<(ProcessName, u64)>) {
        let mut of_node: FxHashMap<NodeName, Vec<(u32, u64)>> = FxHashMap::default();
        for (name, durable) in &recoveries {
            of_node.entry(name.node()).or_default().push((name.incarnation(), *durable));
        }
        let of_node = of_node.into_iter().map(|(node, found)| (node, Recoveries::of(found))).collect();
        self.known_recoveries = recoveries.into_iter().collect();
        let known = self.recoveries.insert(of_node);
        for stream in &mut self.streams {
            known.get(&stream.node).into_iter().for_each(|of_node| stream.knows(of_node));
        }
    }

    /// Returns whether the plan kills the resource.
    pub fn is_forgetful(&self) -> bool {
        self.is_forgetful
    }

    /// The name of a process.
    pub fn name(&self, process: usize) -> &ProcessName {
        &self.streams[process].name
    }

    /// The stream of a process; none if the record has too many.
    fn stream(&mut self, name: &ProcessName) -> Option<usize> {
        // Few processes report most events; this costs less than the index.
        let text = name.as_str();
        let place = text.as_bytes().last().map_or(0, |last| usize::from(*last)) % RECENT;
        let recent = self.recent[place];
        if self.streams.get(recent).is_some_and(|stream| stream.name.as_str() == text) {
            return Some(recent);
        }
        let found = self.find(name)?;
        self.recent[place] = found;
        Some(found)
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
        let of_node = self.recoveries.as_ref().and_then(|known| known.get(&node));
        let mut stream = Stream::new(name.clone(), node);
        of_node.into_iter().for_each(|of_node| stream.knows(of_node));
        self.streams.push(stream);
        self.index.insert(name.clone(), i);
        Some(i)
    }

    fn lives(&mut self, i: usize, life: Life) {
        let has_held = self.streams[i].holds_at().is_some();
        self.streams[i].life = life;
        let holds_at = self.streams[i].holds_at().filter(|_| !has_held);
        self.holding.extend(holds_at.map(|at| Reverse((at, i))));
    }

    /// The streams of the earlier, or of the later, processes of a process's node.
    fn of_same_node(&self, i: usize, is_wanted: impl Fn(u32, u32) -> bool) -> Vec<usize> {
        let own = self.streams[i].incarnation;
        let all = self.of_node.get(&self.streams[i].node).into_iter().flatten().copied();
        all.filter(|other| is_wanted(self.streams[*other].incarnation, own)).collect()
    }

    /// Takes in a record. Returns its process, if its event belongs to the sweep: then [`Merge::keep`] takes the event.
    /// These are two steps, because an event is large, and each call that takes one moves it.
    pub fn see(&mut self, record: &Record) -> Option<usize> {
        if self.whole {
            self.contradicts(record.seq, "it comes after the record of the end".into());
            return None;
        }
        if self.contradiction.is_some() {
            // Nothing is judged.
            self.whole = matches!(record.event, Event::End);
            return None;
        }
        let Some(i) = self.stream(&record.process) else {
            self.contradicts(record.seq, format!("it is of more than {PROCESSES_MAX} processes"));
            return None;
        };
        if !self.is_in_order(i, record) {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        let at = record.at;
        let was = std::mem::replace(&mut self.streams[i].last, at);
        match &record.event {
            Event::Plan { .. } if is_first => {}
            Event::Plan { .. } => self.contradicts(record.seq, "the plan comes twice, or not first".into()),
            Event::End => {
                self.whole = true;
                self.end_of_record(record.seq);
                self.horizon = Stamp(u64::MAX);
            }
            Event::ProcessEnded { ended, .. } => self.process_ended(ended),
            event => {
                self.note(i, (at, record.seq), event);
                let is_over = self.limit.is_some_and(|limit| at >= limit);
                self.streams[i].gone |= matches!(event, Event::Finished) && !is_over;
                if was == self.horizon || self.streams[i].life == Life::Over {
                    self.move_horizon();
                }
                // No property looks at an answer of the agent, which may be large.
                let is_of_sweep = !is_over && !matches!(event, Event::Watermark | Event::OrderDone { .. });
                return is_of_sweep.then_some(i);
            }
        }
        None
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
            let (why, is_cut) = (format!("{name}: there are events after its end"), stream.cut);
            if is_cut {
                // Nothing is inferred from what is missing after the last stamp of a process that was cut off.
                self.reasons.insert(why);
            } else {
                // Other events may have been judged as if the process had done nothing more.
                self.contradicts(record.seq, why);
            }
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
        if record.at == Stamp(u64::MAX) {
            let why = format!("{}: the stamp of its event {} is no time", stream.name, record.n);
            self.contradicts(record.seq, why);
            return false;
        }
        // The stamps of the controller are all 0, and no event of it is in the sweep.
        let is_of_controller = matches!(record.event, Event::Plan { .. } | Event::ProcessEnded { .. } | Event::End);
        if is_of_controller != stream.is_controller {
            let whose = if is_of_controller { "only the controller has" } else { "the controller does not have" };
            let why = format!("{} reports an event that {whose}", stream.name);
            self.contradicts(record.seq, why);
            return false;
        }
        if record.n == 0 && !is_of_controller && !matches!(record.event, Event::Started { .. }) {
            let why = format!("{}: it did not say first on which kernel it runs", stream.name);
            self.contradicts(record.seq, why);
            return false;
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
                    // Those events were judged without what this process did meanwhile.
                    let why = format!("nothing is judged: {} started before events that had been judged", self.name(i));
                    self.contradiction.get_or_insert(why);
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
            Event::Admission { number, .. } => {
                let admitted = &mut self.streams[i].admitted;
                *admitted = (*admitted).max(*number);
                if self.streams[i].is_undone(event) {
                    self.undone();
                }
            }
            Event::Recovered { durable } => {
                let is_known = || self.known_recoveries.contains(&(self.name(i).clone(), *durable));
                if self.recoveries.is_some() && !is_known() {
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

    /// Keeps an event until its turn.
    #[inline]
    pub fn keep(&mut self, mut entry: Entry) {
        let i = entry.process;
        let stream = &mut self.streams[i];
        entry.is_undone = stream.is_undone(&entry.event);
        let (is_first, head) = (stream.queue.is_empty(), Head { at: entry.at, rank: stream.rank, stream: i });
        stream.queue.push_back(entry);
        if is_first {
            self.heads.push(head, &self.streams);
        }
    }

    /// Notes that process `i` has opened the store of the resource's former processes.
    fn recovered(&mut self, i: usize, durable: u64) {
        let mut admitted = 0;
        for earlier in self.of_same_node(i, |other, own| other < own) {
            let stream = &mut self.streams[earlier];
            stream.is_settled = true;
            stream.durable = stream.durable.min(durable);
            admitted = admitted.max(stream.admitted);
            let Stream { queue, durable, .. } = stream;
            for entry in queue {
                entry.is_undone |= is_larger(&entry.event, *durable);
            }
        }
        if admitted > durable {
            self.undone();
        }
    }

    /// Notes that a restart has undone an admission. If no fault of the plan kills the resource, no admission has
    /// waited for a restart, so some that are undone may have been judged.
    fn undone(&mut self) {
        if !self.is_forgetful {
            let why = "nothing is judged: the resource was started again, which no fault of the plan does, and \
                       admissions that it had reported are undone";
            self.contradiction.get_or_insert_with(|| why.to_owned());
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
        let stream = &mut self.streams[i];
        if !stream.gone {
            stream.gone = true;
            if stream.queue.is_empty() {
                let head = Head { at: stream.last, rank: GONE, stream: i };
                self.heads.push(head, &self.streams);
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

    /// The next event that is final. The event stays here until it was [`taken`](Merge::taken): events are large.
    pub fn next(&mut self) -> Option<Next> {
        let Head { at, rank, stream: i } = self.heads.first()?;
        let is_gone = rank == GONE;
        if at >= self.horizon || self.limit.is_some_and(|limit| at > limit || at == limit && !is_gone) {
            return None;
        }
        if is_gone {
            self.heads.pop(&self.streams);
            let stream = &self.streams[i];
            return Some(Next::Gone { process: i, cut_at: stream.cut.then_some(stream.last) });
        }
        let stream = &self.streams[i];
        if stream.queue.front().is_some_and(|entry| self.is_pending(stream, entry)) {
            return None;
        }
        self.swept = Some(at);
        Some(Next::Entry(i))
    }

    /// The first event of a process that is kept.
    pub fn first(&self, process: usize) -> Option<&Entry> {
        self.streams[process].queue.front()
    }

    /// Drops the event that was the next one.
    pub fn taken(&mut self, process: usize) {
        let stream = &mut self.streams[process];
        stream.queue.pop_front();
        let next = match stream.queue.front() {
            Some(next) => (next.at, stream.rank),
            None if stream.gone => (stream.last, GONE),
            None => return self.heads.pop(&self.streams),
        };
        self.heads.replace_first(Head { at: next.0, rank: next.1, stream: process }, &self.streams);
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
