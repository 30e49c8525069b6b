//! What the nemesis sees of a run: holders, stalls, processes, clients waiting at points.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::{Either, select};
use history::{ClientId, Event, FaultId, FaultPhase, HoldId, Key, NodeName, Point, ProcessName, Record, Stamp};
use tokio::sync::Notify;

use crate::{Control, Doing};

/// How many stalls, ended processes and releases are remembered: a fault looks for its own within seconds.
const REMEMBERED: usize = 1_024;

/// A hold that has not ended, as far as its worker has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The hold.
    pub hold: HoldId,
    /// Of which key.
    pub key: Key,
    /// Where its client runs.
    pub node: NodeName,
}

#[derive(Debug, Clone)]
struct Life {
    node: NodeName,
    process: ProcessName,
    last: Stamp,
    started: Stamp,
    running: bool,
}

/// A client that waits at a point.
#[derive(Debug, Clone)]
struct Waiting {
    hold: HoldId,
    point: Point,
    node: NodeName,
    since: Stamp,
}

/// The state of a run as its events have told it so far.
#[derive(Debug, Default)]
pub struct View {
    attempts: BTreeMap<HoldId, (Key, NodeName)>,
    /// In the order of their acquisition.
    holders: Vec<Holder>,
    ended_holds: VecDeque<(HoldId, Stamp)>,
    waiting: BTreeMap<ClientId, Waiting>,
    /// Writes that were answered lately.
    writes: VecDeque<(HoldId, NodeName, Stamp)>,
    /// Of each node, in the order in which they were started first: there are few, and most events are of those that came last.
    lives: Vec<Life>,
    former: VecDeque<(ProcessName, Stamp)>,
    stalls: VecDeque<(ProcessName, Stamp, Stamp)>,
    healed: BTreeSet<FaultId>,
}

fn remember<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl View {
    /// Takes the next event of the run; true if somebody may wait for what it tells. (Most events tell only that their process is alive, which the
    /// next watermark tells soon enough.)
    pub fn see(&mut self, record: &Record) -> bool {
        // A process runs on one node, and few events need its name.
        if let Some(life) = self.lives.iter_mut().rev().find(|l| l.process == record.process) {
            life.last = record.at;
        }
        let node = || record.process.node();
        match &record.event {
            Event::Started { .. } => {
                let (node, process) = (node(), record.process.clone());
                let life = Life { node, process, last: record.at, started: record.at, running: true };
                match self.lives.iter_mut().find(|l| l.node == life.node) {
                    Some(known) => *known = life,
                    None => self.lives.push(life),
                }
            }
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
                }
            }
            Event::AtPoint { client, hold, point } => {
                self.waiting.insert(*client, Waiting { hold: *hold, point: *point, node: node(), since: record.at });
            }
            Event::LeftPoint { client, .. } => {
                self.waiting.remove(client);
            }
            Event::WriteOk { hold, .. } => remember(&mut self.writes, (*hold, node(), record.at)),
            Event::Fault { fault, phase: FaultPhase::HealProved, .. } => drop(self.healed.insert(*fault)),
            Event::Watermark => {}
            _ => return false,
        }
        true
    }

    fn of(&self, node: &NodeName) -> Option<&Life> {
        self.lives.iter().find(|l| l.node == *node)
    }

    fn end_process(&mut self, ended: &ProcessName) {
        let node = ended.node();
        let Some(life) = self.lives.iter_mut().find(|l| l.process == *ended) else { return };
        life.running = false;
        remember(&mut self.former, (ended.clone(), life.last));
        self.attempts.retain(|_, (_, n)| *n != node);
        self.holders.retain(|h| h.node != node);
        self.waiting.retain(|_, waiting| waiting.node != node);
    }

    /// Who holds a key now: the newest hold whose worker still runs.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.last()
    }

    /// When `hold` ended by its client's own word, if it did.
    pub fn ended(&self, hold: HoldId) -> Option<Stamp> {
        self.ended_holds.iter().rev().find(|(h, _)| *h == hold).map(|(_, at)| *at)
    }

    /// Whether `client` waits at `point`, and in which attempt or hold.
    pub fn at_point(&self, client: ClientId, point: Point) -> Option<HoldId> {
        self.waiting.get(&client).filter(|waiting| waiting.point == point).map(|waiting| waiting.hold)
    }

    /// Whether a write under another hold (of a client of `writer`, if one is named) was answered since `client` began to wait.
    pub fn another_wrote(&self, client: ClientId, writer: Option<&NodeName>) -> bool {
        let Some(waiting) = self.waiting.get(&client) else { return false };
        let is_other =
            |hold: HoldId, node: &NodeName| hold != waiting.hold && writer.is_none_or(|writer| writer == node);
        self.writes.iter().rev().any(|(hold, node, at)| *at > waiting.since && is_other(*hold, node))
    }

    /// Whether a fault is proved healed.
    pub fn is_healed(&self, fault: FaultId) -> bool {
        self.healed.contains(&fault)
    }

    /// The process that `node` runs now.
    pub fn process(&self, node: &NodeName) -> Option<ProcessName> {
        self.of(node).filter(|l| l.running).map(|l| l.process.clone())
    }

    /// First and last sign of life of the process that `node` runs, or ran last.
    pub fn life(&self, node: &NodeName) -> Option<(&ProcessName, Stamp, Stamp)> {
        self.of(node).map(|l| (&l.process, l.started, l.last))
    }

    /// Last sign of life of a process that has ended.
    pub fn end_of(&self, process: &ProcessName) -> Option<Stamp> {
        self.former.iter().rev().find(|(p, _)| p == process).map(|(_, last)| *last)
    }

    /// The longest stall of `process` that ended after `after`.
    pub fn stall(&self, process: &ProcessName, after: Stamp) -> Option<(Stamp, Stamp)> {
        let mine = self.stalls.iter().filter(|(p, _, to)| p == process && *to > after);
        mine.map(|(_, from, to)| (*from, *to)).max_by_key(|(from, to)| to.since(*from))
    }

    /// The longest stall of `process` that touches this stretch.
    pub fn stall_within(&self, process: &ProcessName, (from, to): (Stamp, Stamp)) -> Option<(Stamp, Stamp)> {
        let mine = self.stalls.iter().filter(|(p, since, until)| p == process && *until > from && *since < to);
        mine.map(|(_, from, to)| (*from, *to)).max_by_key(|(from, to)| to.since(*from))
    }
}

/// A [`View`] that can be waited on.
#[derive(Debug, Default)]
pub struct Scene {
    view: Mutex<View>,
    changed: Notify,
}

impl Scene {
    /// An empty scene.
    pub fn new() -> Scene {
        Scene::default()
    }

    fn view(&self) -> MutexGuard<'_, View> {
        // A view is only ever read or given whole events, so one that a panic left behind is still true.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next event of the run and wakes whoever waits for one.
    pub fn see(&self, record: &Record) {
        let is_news = self.view().see(record);
        if is_news {
            self.changed.notify_waiters();
        }
    }

    /// Looks once.
    pub fn look<T>(&self, at: impl FnOnce(&View) -> T) -> T {
        at(&self.view())
    }

    /// Waits until `wanted` finds what it looks for.
    pub async fn until<T>(&self, mut wanted: impl FnMut(&View) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = wanted(&self.view()) {
                return found;
            }
            changed.await;
        }
    }

    /// The same, for at most `bound`.
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
