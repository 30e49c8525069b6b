//! The live view of a run for the nemesis: holders, stalls, processes, and clients that wait at points.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use futures::future::{Either, select};
use history::{
    ClientId, Event, FaultId, FaultKind, FaultPhase, HoldId, Key, NodeName, Point, ProcessName, Record, Stamp,
};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::{Control, Doing};

/// The number of stalls, ended processes and releases that the view keeps. A fault looks for its own within seconds.
const REMEMBERED: usize = 1_024;

/// A hold that has not ended, according to its worker's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The hold.
    pub hold: HoldId,
    /// The key.
    pub key: Key,
    /// The node of the client.
    pub node: NodeName,
}

/// The last step that one of the run's own processes has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The process runs.
    Started,
    /// A worker is connected to the lock nodes and to the resource.
    Connected,
    /// A worker has ended its critical sections.
    Drained,
    /// The process has reported everything.
    Finished,
}

#[derive(Debug, Clone)]
struct Life {
    node: NodeName,
    process: ProcessName,
    last: Stamp,
    started: Stamp,
    running: bool,
    progress: Progress,
}

/// A client that waits at a point.
#[derive(Debug, Clone)]
struct Waiting {
    hold: HoldId,
    point: Point,
    node: NodeName,
    since: Stamp,
}

/// The state of a run according to its events so far.
#[derive(Debug, Default)]
pub struct View {
    attempts: BTreeMap<HoldId, (Key, NodeName)>,
    /// The holders, in the order of their acquisition.
    holders: Vec<Holder>,
    ended_holds: VecDeque<(HoldId, Stamp)>,
    /// The targeted holds of active faults, and their ends. At a high rate thousands of holds end during one fault.
    watched: BTreeMap<FaultId, (HoldId, Option<Stamp>)>,
    waiting: BTreeMap<ClientId, Waiting>,
    /// The writes that were answered recently.
    writes: VecDeque<(HoldId, NodeName, Stamp)>,
    /// One entry for each node, in the order of the first start.
    lives: Vec<Life>,
    /// The place of each current process in `lives`. Each event looks for its process, and names compare slowly.
    by_process: FxHashMap<ProcessName, usize>,
    former: VecDeque<(ProcessName, Stamp)>,
    stalls: VecDeque<(ProcessName, Stamp, Stamp)>,
    healed: BTreeSet<FaultId>,
    /// The faults that are on, planned or not, with their kinds and their nodes.
    on: BTreeMap<FaultId, (FaultKind, NodeName)>,
    /// All faults that have begun, planned or not, with their kinds and their nodes.
    begun: Vec<(FaultId, FaultKind, NodeName)>,
    /// The faults that are injected.
    injected: BTreeSet<FaultId>,
    /// The faults whose step has ended.
    ended_steps: BTreeSet<FaultId>,
}

fn remember<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl View {
    /// Applies the next event of the run; returns true if a fault or the controller may wait for the event. (Most
    /// events show only that their process is alive, and the next watermark shows that too.)
    pub fn see(&mut self, record: &Record) -> bool {
        let life = self.by_process.get(&record.process).copied();
        if let Some(life) = life {
            self.lives[life].last = record.at;
        }
        // Most events need no node name.
        let node = || life.map_or_else(|| record.process.node(), |life| self.lives[life].node.clone());
        match &record.event {
            Event::Started { .. } => {
                let (node, process) = (node(), record.process.clone());
                let progress = Progress::Started;
                let life = Life { node, process, last: record.at, started: record.at, running: true, progress };
                self.begin(life);
            }
            Event::Ready { .. } => self.advance(&record.process, Progress::Connected),
            Event::Sections { .. } => self.advance(&record.process, Progress::Drained),
            Event::Finished => self.advance(&record.process, Progress::Finished),
            Event::ProcessEnded { ended, .. } => self.end_process(ended),
            Event::Stall { from, to, .. } => remember(&mut self.stalls, (record.process.clone(), *from, *to)),
            Event::Acquire { attempt, key, .. } => {
                self.attempts.insert(*attempt, (key.clone(), node()));
                return false;
            }
            Event::Acquired { attempt, .. } => {
                if let Some((key, node)) = self.attempts.remove(attempt) {
                    self.holders.push(Holder { hold: *attempt, key, node });
                }
            }
            Event::AcquireFailed { attempt, .. } => {
                self.attempts.remove(attempt);
                return false;
            }
            Event::Release { hold } | Event::GaveUp { hold } | Event::LossNoticed { hold } => {
                if let Some(held) = self.holders.iter().position(|h| h.hold == *hold) {
                    self.holders.remove(held);
                    remember(&mut self.ended_holds, (*hold, record.at));
                    let of_faults = self.watched.values_mut().filter(|(watched, _)| watched == hold);
                    of_faults.for_each(|(_, ended)| *ended = Some(record.at));
                }
            }
            Event::AtPoint { client, hold, point } => {
                self.waiting.insert(*client, Waiting { hold: *hold, point: *point, node: node(), since: record.at });
            }
            Event::LeftPoint { client, .. } => {
                self.waiting.remove(client);
            }
            Event::WriteOk { hold, .. } => remember(&mut self.writes, (*hold, node(), record.at)),
            Event::Fault { fault, kind, node, phase } => match phase {
                FaultPhase::Requested { .. } | FaultPhase::Unplanned { .. } => {
                    self.on.insert(*fault, (*kind, node.clone()));
                    self.begun.push((*fault, *kind, node.clone()));
                    return false;
                }
                FaultPhase::Healed | FaultPhase::UnplannedOver { .. } => {
                    self.on.remove(fault);
                    return false;
                }
                FaultPhase::Injected => {
                    self.injected.insert(*fault);
                    return false;
                }
                FaultPhase::HealProved => drop(self.healed.insert(*fault)),
                _ => return false,
            },
            Event::Watermark => {}
            _ => return false,
        }
        true
    }

    fn begin(&mut self, life: Life) {
        let place = self.lives.iter().position(|known| known.node == life.node).unwrap_or(self.lives.len());
        if let Some(former) = self.lives.get(place) {
            self.by_process.remove(&former.process);
        }
        self.by_process.insert(life.process.clone(), place);
        match self.lives.get_mut(place) {
            Some(former) => *former = life,
            None => self.lives.push(life),
        }
    }

    fn of(&self, node: &NodeName) -> Option<&Life> {
        self.lives.iter().find(|l| l.node == *node)
    }

    fn advance(&mut self, process: &ProcessName, progress: Progress) {
        if let Some(life) = self.by_process.get(process) {
            self.lives[*life].progress = progress;
        }
    }

    fn end_process(&mut self, ended: &ProcessName) {
        let node = ended.node();
        let Some(life) = self.by_process.get(ended) else { return };
        let life = &mut self.lives[*life];
        life.running = false;
        remember(&mut self.former, (ended.clone(), life.last));
        self.attempts.retain(|_, (_, n)| *n != node);
        self.holders.retain(|h| h.node != node);
        self.waiting.retain(|_, waiting| waiting.node != node);
    }

    /// Returns the newest hold whose worker still runs.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.last()
    }

    /// Returns the time at which the hold that `fault` targets ended according to its client, if it has ended. The
    /// fault must be watched.
    pub fn end_of_target(&self, fault: FaultId) -> Option<Stamp> {
        self.watched.get(&fault).and_then(|(_, ended)| *ended)
    }

    fn watch(&mut self, fault: FaultId, hold: HoldId) {
        let ended = self.ended_holds.iter().rev().find(|(ended, _)| *ended == hold).map(|(_, at)| *at);
        self.watched.insert(fault, (hold, ended));
    }

    /// Returns the attempt or hold of `client` and the time of its arrival, if the client waits at `point`.
    pub fn arrived_at(&self, client: ClientId, point: Point) -> Option<(HoldId, Stamp)> {
        self.waiting.get(&client).filter(|waiting| waiting.point == point).map(|waiting| (waiting.hold, waiting.since))
    }

    /// Returns whether a write under another hold was answered since `client` began to wait. If `writer` is given, only
    /// writes of this worker count.
    pub fn another_wrote(&self, client: ClientId, writer: Option<&NodeName>) -> bool {
        let Some(waiting) = self.waiting.get(&client) else { return false };
        let is_other =
            |hold: HoldId, node: &NodeName| hold != waiting.hold && writer.is_none_or(|writer| writer == node);
        self.writes.iter().rev().any(|(hold, node, at)| *at > waiting.since && is_other(*hold, node))
    }

    /// Returns the faults that are on, with their kinds and their nodes. A fault whose step has failed counts no more:
    /// nothing waits for its heal.
    pub fn faults_on(&self) -> impl Iterator<Item = (FaultId, FaultKind, &NodeName)> {
        let on = self.on.iter().filter(|(fault, _)| !self.ended_steps.contains(fault));
        on.map(|(fault, (kind, node))| (*fault, *kind, node))
    }

    /// Returns all faults that have begun, planned or not, with their kinds and their nodes.
    pub fn begun(&self) -> &[(FaultId, FaultKind, NodeName)] {
        &self.begun
    }

    /// Returns whether a fault is injected, or was.
    pub fn is_injected(&self, fault: FaultId) -> bool {
        self.injected.contains(&fault)
    }

    /// Returns whether a fault is proved healed.
    pub fn is_healed(&self, fault: FaultId) -> bool {
        self.healed.contains(&fault)
    }

    /// Returns the process that `node` runs now.
    pub fn process(&self, node: &NodeName) -> Option<ProcessName> {
        self.of(node).filter(|l| l.running).map(|l| l.process.clone())
    }

    /// Returns whether `node` runs this process now.
    pub fn runs(&self, node: &NodeName, process: &ProcessName) -> bool {
        self.of(node).is_some_and(|l| l.running && l.process == *process)
    }

    /// Returns the process that `node`, a worker, runs now, if the process is connected.
    pub fn connected(&self, node: &NodeName) -> Option<ProcessName> {
        self.process(node).filter(|_| self.progress(node) >= Some(Progress::Connected))
    }

    /// Returns the progress of the process that `node` runs now; none, if no process runs.
    pub fn progress(&self, node: &NodeName) -> Option<Progress> {
        self.of(node).filter(|l| l.running).map(|l| l.progress)
    }

    /// Returns the current or last process of `node`, with the stamps of its first and its last event.
    pub fn life(&self, node: &NodeName) -> Option<(&ProcessName, Stamp, Stamp)> {
        self.of(node).map(|l| (&l.process, l.started, l.last))
    }

    /// Returns the stamp of the last event of a process that has ended.
    pub fn end_of(&self, process: &ProcessName) -> Option<Stamp> {
        self.former.iter().rev().find(|(p, _)| p == process).map(|(_, last)| *last)
    }

    /// Returns the stall of `process` with the longest part after `after`, of those that began before `before`.
    pub fn stall(&self, process: &ProcessName, (after, before): (Stamp, Stamp)) -> Option<(Stamp, Stamp)> {
        let mine = self.stalls.iter().filter(|(p, from, to)| p == process && *to > after && *from < before);
        mine.map(|(_, from, to)| (*from, *to)).max_by_key(|(from, to)| to.since((*from).max(after)))
    }

    /// Returns the longest stall of `process` that overlaps with this span, without its part before the span.
    pub fn stall_within(&self, process: &ProcessName, (from, to): (Stamp, Stamp)) -> Option<(Stamp, Stamp)> {
        let mine = self.stalls.iter().filter(|(p, since, until)| p == process && *until > from && *since < to);
        mine.map(|(_, since, until)| ((*since).max(from), *until)).max_by_key(|(from, to)| to.since(*from))
    }
}

/// A [`View`] with functions that wait for a change.
#[derive(Debug, Default)]
pub struct LiveView {
    view: Mutex<View>,
    changed: Notify,
}

impl LiveView {
    /// Returns a live view of no events.
    pub fn new() -> LiveView {
        LiveView::default()
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock()
    }

    /// Applies the next event of the run, and wakes the functions that wait for a change.
    pub fn see(&self, record: &Record) {
        let is_news = self.view().see(record);
        if is_news {
            self.changed.notify_waiters();
        }
    }

    /// Keeps the end of the hold that `fault` targets, until [`LiveView::end_step`].
    pub fn watch(&self, fault: FaultId, hold: HoldId) {
        self.view().watch(fault, hold);
    }

    /// Notes that the step of `fault` has ended, and forgets the hold that the fault targeted.
    pub fn end_step(&self, fault: FaultId) {
        let mut view = self.view();
        view.watched.remove(&fault);
        view.ended_steps.insert(fault);
    }

    /// Calls `at` once with the current view.
    pub fn look<T>(&self, at: impl FnOnce(&View) -> T) -> T {
        at(&self.view())
    }

    /// Waits until `wanted` returns a value, and returns this value.
    pub async fn until<T>(&self, mut wanted: impl FnMut(&View) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = wanted(&self.view()) {
                return found;
            }
            changed.await;
        }
    }

    /// Waits until `wanted` returns a value, for at most `bound`; none, if the time is over.
    pub async fn within<T>(
        &self,
        control: &dyn Control,
        bound: Duration,
        wanted: impl FnMut(&View) -> Option<T>,
    ) -> Option<T> {
        let timer: Doing<'_, ()> = control.sleep(bound);
        match select(std::pin::pin!(self.until(wanted)), timer).await {
            Either::Left((found, _)) => Some(found),
            Either::Right(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
