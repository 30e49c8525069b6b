//! Streams of many processes, as they happen to arrive, into one sweep in the order of their stamps.
//!
//! Within a process, events are in order; between processes they are not. The *horizon* is the smallest last stamp of
//! the processes that may still report something: what lies before it is final. Events of one stamp are concurrent; they
//! come out workers first, then the agent, then the resource, by name, so that the verdicts do not depend on how the
//! streams were interleaved, and so that a hold is known when its first request is decided.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

use history::{Event, FaultPhase, NodeName, Plan, ProcessName, Record, Stamp};
use rustc_hash::FxHashMap;

use crate::intake::is_of_resource;

/// One event of the sweep.
#[derive(Debug)]
pub(crate) struct Entry {
    pub at: Stamp,
    pub seq: u64,
    /// Index of the process: dense, in the order of first appearance. It must not reach the verdicts.
    pub process: usize,
    pub event: Event,
    /// An admission that the resource had forgotten when it was started again.
    pub is_undone: bool,
}

/// What the sweep meets next.
#[derive(Debug)]
pub(crate) enum Next {
    /// An event.
    Entry(Entry),
    /// No event of this process follows.
    Gone(usize),
}

/// How a process stands to the horizon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// In the plan, and not started: the horizon waits at 0.
    Expected,
    /// It holds the horizon at its last stamp.
    Running,
    /// Its stream has ended and it had not finished. Its successor's first stamps may still be on their way, so it
    /// holds the horizon until the successor has started.
    Cut,
    /// It will not report anything.
    Over,
}

struct Stream {
    name: ProcessName,
    queue: VecDeque<Entry>,
    next_n: u64,
    last: Stamp,
    life: Life,
    cut: bool,
    /// Something of it was lost: what it says afterwards is not used.
    broken: bool,
    gone: bool,
    /// Which of its admissions were undone is known: it has finished, or another process has opened its store.
    is_settled: bool,
}

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
    heads: BinaryHeap<Reverse<(Stamp, u8, ProcessName, usize)>>,
    /// Ended streams whose last event has been swept.
    gone: VecDeque<usize>,
    horizon: Stamp,
    /// Nothing from here on is judged: something was lost.
    limit: Option<Stamp>,
    /// The end record was seen.
    whole: bool,
    /// The last stamp that was swept.
    swept: Option<Stamp>,
    kills: FxHashMap<NodeName, usize>,
    /// The plan kills the resource: its admissions wait until it is known whether they were undone.
    is_forgetful: bool,
    places: BTreeSet<(String, u64)>,
    reasons: BTreeSet<String>,
}

impl Merge {
    /// Names the processes that must start before anything is final.
    pub fn expect(&mut self, plan: &Plan) {
        let workers = (1..=plan.workload.workers).map(|i| ProcessName::new(format!("worker-{i}")));
        for name in workers.chain([ProcessName::from("resource"), ProcessName::from("agent")]) {
            let stream = self.stream(&name);
            self.streams[stream].life = Life::Expected;
        }
        self.horizon = Stamp(0);
        self.is_forgetful = plan.schedule.iter().any(is_of_resource);
    }

    /// The name of a process.
    pub fn name(&self, process: usize) -> &ProcessName {
        &self.streams[process].name
    }

    fn stream(&mut self, name: &ProcessName) -> usize {
        if let Some(&i) = self.index.get(name) {
            return i;
        }
        let i = self.streams.len();
        self.streams.push(Stream {
            name: name.clone(),
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
        i
    }

    /// Takes a record in.
    pub fn feed(&mut self, record: Record) {
        if self.whole {
            self.reasons.insert("there are events after the end record".into());
            return;
        }
        let i = self.stream(&record.process);
        if !self.is_in_order(i, &record) {
            return;
        }
        let at = record.at;
        let was = std::mem::replace(&mut self.streams[i].last, at);
        match &record.event {
            Event::Plan { .. } => {}
            Event::End => {
                self.whole = true;
                self.end_of_record();
                self.horizon = Stamp(u64::MAX);
            }
            Event::ProcessEnded { ended, .. } => self.process_ended(ended),
            event => {
                self.note(i, at, event);
                self.push(i, record);
                if was == self.horizon || self.streams[i].life == Life::Over {
                    self.move_horizon();
                }
            }
        }
    }

    /// Whether nothing of the process was lost before this record; if something was, nothing that lies at or after its last
    /// stamp is judged.
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
        let problem = if record.n != expected {
            Some(format!("{name}: its event {expected} is missing, {} follows", record.n))
        } else if record.at < stream.last {
            Some(format!("{name}: the stamp of its event {expected} goes back"))
        } else {
            None
        };
        if let Some(problem) = problem {
            self.reasons.insert(problem);
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

    fn stop_at(&mut self, at: Stamp) {
        self.limit = Some(self.limit.map_or(at, |limit| limit.min(at)));
    }

    /// What must be known before an event's turn comes.
    fn note(&mut self, i: usize, at: Stamp, event: &Event) {
        match event {
            Event::Started { boot_id, time_namespace, .. } => {
                self.places.insert((boot_id.clone(), *time_namespace));
                self.streams[i].life = Life::Running;
                if self.swept.is_some_and(|swept| at <= swept) {
                    self.reasons.insert(format!("{}: it started before events that had been judged", self.name(i)));
                }
                let (node, number) = (self.name(i).node(), incarnation(self.name(i)));
                for stream in &mut self.streams {
                    if stream.life == Life::Cut && stream.name.node() == node && incarnation(&stream.name) < number {
                        stream.life = Life::Over;
                    }
                }
                self.move_horizon();
            }
            Event::Finished => {
                self.streams[i].life = Life::Over;
                self.streams[i].is_settled = true;
            }
            Event::Recovered { durable } => self.recovered(i, *durable),
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
        let stream = &mut self.streams[i];
        if stream.queue.is_empty() {
            self.heads.push(Reverse((record.at, rank(&stream.name), stream.name.clone(), i)));
        }
        stream.gone |= matches!(record.event, Event::Finished);
        let Record { at, seq, event, .. } = record;
        stream.queue.push_back(Entry { at, seq, process: i, event, is_undone: false });
    }

    /// Process `i` has opened the store of those that were the resource before it.
    fn recovered(&mut self, i: usize, durable: u64) {
        let (node, number) = (self.name(i).node(), incarnation(self.name(i)));
        for stream in &mut self.streams {
            if stream.name.node() != node || incarnation(&stream.name) >= number {
                continue;
            }
            stream.is_settled = true;
            for entry in &mut stream.queue {
                entry.is_undone |= matches!(entry.event, Event::Admission { number, .. } if number > durable);
            }
        }
    }

    /// Whether an entry must wait until it is known if it was undone.
    fn is_pending(&self, stream: &Stream, entry: &Entry) -> bool {
        self.is_forgetful && !self.whole && !stream.is_settled && matches!(entry.event, Event::Admission { .. })
    }

    fn process_ended(&mut self, ended: &ProcessName) {
        let i = self.stream(ended);
        if self.streams[i].life == Life::Running {
            let (node, number) = (ended.node(), incarnation(ended));
            let succeeded = self.streams.iter().any(|s| {
                s.name.node() == node && incarnation(&s.name) > number && matches!(s.life, Life::Running | Life::Over)
            });
            self.streams[i].cut = true;
            self.streams[i].life = if succeeded { Life::Over } else { Life::Cut };
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
        let holding = self.streams.iter().filter_map(|s| match s.life {
            Life::Expected => Some(Stamp(0)),
            Life::Running | Life::Cut => Some(s.last),
            Life::Over => None,
        });
        self.horizon = holding.min().unwrap_or(Stamp(u64::MAX));
    }

    /// The end record: every process must have started, and every one that ended must have finished or been killed.
    fn end_of_record(&mut self) {
        let mut cut: BTreeMap<NodeName, Vec<(u32, Stamp, ProcessName)>> = BTreeMap::new();
        for stream in &self.streams {
            if stream.life == Life::Expected {
                self.reasons.insert(format!("{} never started", stream.name));
            }
            if stream.cut {
                let entry = (incarnation(&stream.name), stream.last, stream.name.clone());
                cut.entry(stream.name.node()).or_default().push(entry);
            }
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

    /// The next event that is final.
    pub fn pop(&mut self) -> Option<Next> {
        if let Some(i) = self.gone.pop_front() {
            return Some(Next::Gone(i));
        }
        let bound = self.limit.map_or(self.horizon, |limit| limit.min(self.horizon));
        let Reverse((at, .., i)) = self.heads.peek()?;
        if *at >= bound {
            return None;
        }
        let stream = &self.streams[*i];
        if stream.queue.front().is_some_and(|entry| self.is_pending(stream, entry)) {
            return None;
        }
        let Reverse((at, rank, name, i)) = self.heads.pop()?;
        self.swept = Some(at);
        let stream = &mut self.streams[i];
        let entry = stream.queue.pop_front()?;
        if let Some(next) = stream.queue.front() {
            self.heads.push(Reverse((next.at, rank, name, i)));
        } else if stream.gone {
            self.gone.push_back(i);
        }
        Some(Next::Entry(entry))
    }

    /// Why the record cannot be judged at all: its stamps are of more than one clock.
    pub fn unjudgeable(&self) -> Option<String> {
        let boots: BTreeSet<&str> = self.places.iter().map(|(boot, _)| boot.as_str()).collect();
        match (boots.len(), self.places.len()) {
            (0 | 1, 0 | 1) => None,
            (0 | 1, n) => Some(format!("the processes ran in {n} time namespaces: their stamps cannot be compared")),
            (n, _) => Some(format!("the processes ran on {n} kernels (boot ids): their stamps cannot be compared")),
        }
    }

    /// Whether the end record was seen, and why the record was not judged to its end.
    pub fn into_reasons(self) -> (bool, BTreeSet<String>) {
        (self.whole, self.reasons)
    }

    /// Up to where everything is final; `None` if to the end.
    pub fn judged_until(&self) -> Option<Stamp> {
        let bound = self.limit.map_or(self.horizon, |limit| limit.min(self.horizon));
        let pending = self.streams.iter().flat_map(|s| s.queue.iter().find(|entry| self.is_pending(s, entry)));
        let bound = pending.map(|entry| entry.at).fold(bound, Stamp::min);
        (bound < Stamp(u64::MAX)).then_some(bound)
    }
}

#[cfg(test)]
mod tests {
    use history::{FaultKind, Role, Tail};

    use super::*;
    use crate::{
        check,
        scene::{Scene, count, ms, number, started, verdict},
        verdict::{Verdict, Verdicts},
    };

    /// Two holds that overlap from 20 to 50, and quiet afterwards.
    fn overlapping() -> Scene {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 15, 20, 42).release(1, 50).release(2, 60);
        scene.acquire(3, 1, 1_000, 1_010, 43).release(3, 1_020);
        scene
    }

    fn judge(records: Vec<Record>) -> (Verdict, u64, Vec<String>) {
        let v = check(records, Tail::Whole);
        (verdict(&v, "lock"), count(&v, "lock.windows"), v.reasons)
    }

    fn quiet() -> Vec<Record> {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 50).acquire(2, 2, 60, 70, 42).release(2, 80);
        scene.records()
    }

    #[test]
    fn a_whole_record_has_no_reasons() {
        assert_eq!(judge(quiet()), (Verdict::Upheld, 0, vec![]));
    }

    #[test]
    fn a_gap_stops_the_judgement_at_the_last_event_before_it() {
        let mut records = overlapping().records();
        let lost = |r: &Record| r.process.as_str() == "worker-2" && matches!(r.event, Event::Acquired { .. });
        records.retain(|r| !lost(r));
        let (verdict, windows, reasons) = judge(records);
        assert_eq!((verdict, windows), (Verdict::Inconclusive, 0));
        assert_eq!(reasons, ["worker-2: its event 2 is missing, 3 follows"]);
    }

    #[test]
    fn a_violation_before_a_gap_stands() {
        let mut records = overlapping().records();
        let lost = records.iter().position(|r| r.at == ms(1_010)).unwrap();
        records.remove(lost);
        let (verdict, windows, reasons) = judge(records);
        assert_eq!((verdict, windows, reasons.len()), (Verdict::Violated, 1, 1));
    }

    #[test]
    fn a_stamp_that_goes_back_stops_the_judgement() {
        let mut records = quiet();
        let i = records.iter().rposition(|r| r.process.as_str() == "worker-1").unwrap();
        records[i].at = ms(1);
        let (verdict, _, reasons) = judge(records);
        assert_eq!(verdict, Verdict::Inconclusive);
        assert!(reasons[0].contains("goes back"), "{reasons:?}");
    }

    #[test]
    fn stamps_of_two_kernels_are_not_judged_at_all() {
        for (boot, namespace) in [("two", 1), ("one", 2)] {
            let mut records = overlapping().records();
            let first = records.iter_mut().find(|r| r.process.as_str() == "resource").unwrap();
            first.event = Event::Started { role: Role::Resource, boot_id: boot.into(), time_namespace: namespace };
            let (verdict, windows, reasons) = judge(records);
            assert_eq!((verdict, windows), (Verdict::Inconclusive, 0));
            assert!(reasons[0].contains("cannot be compared"), "{reasons:?}");
        }
    }

    #[test]
    fn a_record_without_its_end_is_judged_up_to_the_horizon() {
        let mut records = overlapping().records();
        let cut = records.iter().position(|r| r.at >= ms(1_000)).unwrap();
        records.truncate(cut);
        let is_idle = |r: &Record| matches!(r.process.as_str(), "resource" | "agent");
        // The resource and the agent have said nothing yet, so nothing is final.
        let v = check(records.clone(), Tail::Cut);
        assert_eq!((verdict(&v, "lock"), count(&v, "lock.windows"), v.reasons.len()), (Verdict::Inconclusive, 0, 2));
        for (i, process) in ["resource", "agent"].into_iter().enumerate() {
            let n = records.iter().filter(|r| is_idle(r) && r.process.as_str() == process).count() as u64;
            let seq = (records.len() + i) as u64;
            records.push(Record { seq, process: process.into(), n, at: ms(55), event: Event::Watermark });
        }
        let v = check(records, Tail::Cut);
        assert_eq!((verdict(&v, "lock"), count(&v, "lock.windows")), (Verdict::Violated, 1));
        assert_eq!(v.facts.judged_until_ms, 52.0, "worker-1's last word");
    }

    #[test]
    fn a_process_that_ends_unfinished_and_unkilled_makes_the_run_inconclusive() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 50);
        scene.unfinished = vec!["worker-2"];
        let (verdict, _, reasons) = judge(scene.records());
        assert_eq!(
            (verdict, reasons.as_slice()),
            (Verdict::Inconclusive, &["worker-2 ended before it had finished, and no fault killed it".to_string()][..],)
        );
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 50).kill(1, "worker-2", 100);
        assert_eq!(judge(scene.records()).2, Vec::<String>::new());
    }

    #[test]
    fn a_planned_process_that_never_starts_makes_the_run_inconclusive() {
        let records: Vec<_> = quiet().into_iter().filter(|r| r.process.as_str() != "agent").collect();
        assert_eq!(judge(records).2, ["agent never started"]);
    }

    #[test]
    fn a_gap_in_the_admission_log_makes_the_run_inconclusive() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).write(1, 1, 11, 12).write(1, 2, 13, 14).release(1, 50);
        let mut records = scene.records();
        for record in &mut records {
            if let Event::Admission { number, .. } = &mut record.event {
                *number += u64::from(*number == 2);
            }
        }
        assert_eq!(judge(records).2, ["the admission log goes from number 1 to write 3"]);
    }

    #[test]
    fn a_history_without_a_plan_is_inconclusive() {
        let records: Vec<_> = quiet().into_iter().skip(1).collect();
        let v: Verdicts = check(records, Tail::Whole);
        assert_eq!((v.verdict, v.reasons.len()), (Verdict::Inconclusive, 1));
    }

    #[test]
    fn a_successor_holds_the_horizon_of_the_process_that_was_killed() {
        let mut merge = Merge::default();
        let event = |process: &str, at, event| (ProcessName::from(process), ms(at), event);
        let kill = Event::Fault {
            fault: history::FaultId(1),
            kind: FaultKind::Kill,
            node: "worker-1".into(),
            phase: FaultPhase::Requested { asked_ns: 1, hold: None },
        };
        let ended = Event::ProcessEnded { ended: "worker-1".into(), code: None };
        let records = number(vec![
            event("worker-1", 1, started(Role::Worker)),
            event("agent", 2, started(Role::Agent)),
            event("agent", 50, kill),
            event("controller", 0, ended),
            event("agent", 500, Event::Watermark),
            event("worker-1#2", 100, started(Role::Worker)),
            event("worker-1#2", 600, Event::Watermark),
        ]);
        let mut popped = Vec::new();
        for (i, record) in records.iter().enumerate() {
            merge.feed(record.clone());
            while let Some(next) = merge.pop() {
                if let Next::Entry(entry) = next {
                    popped.push((i, entry.at));
                }
            }
        }
        // After the kill nothing is final until the successor has started.
        let expected = [(5, ms(2)), (5, ms(50)), (6, ms(100))];
        assert_eq!(popped.iter().filter(|(_, at)| *at > ms(1)).copied().collect::<Vec<_>>(), expected);
    }
}
