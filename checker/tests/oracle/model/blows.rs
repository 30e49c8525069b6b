//! Pauses, stalls and kills of processes, and the reports about them by the agent and by the processes.

use history::{Event, FaultId, FaultKind, FaultPhase, HoldId, Role, StallCause};
use rand::Rng;

use super::{
    client::What,
    knobs::{Blow, Spot},
    truth::Froze,
    world::{AGENT, Happens, UNIT_NS, World, stamp},
};

impl World {
    /// Strikes the client with the blows that are aimed at this spot of its section.
    pub fn spot(&mut self, client: usize, spot: Spot) {
        let section = self.clients[client].section;
        for i in 0..self.k.aims.len() {
            let a = &self.k.aims[i];
            if self.fired[i] || a.client != client || a.section != section || a.spot != spot {
                continue;
            }
            self.fired[i] = true;
            let (blow, lag, len) = (a.blow, a.lag, a.len);
            let hold = self.clients[client].attempt.as_ref().filter(|a| a.claimed).map(|a| HoldId(a.id));
            let process = self.process_of(client);
            match blow {
                Blow::Kill(fault) => self.kill(self.worker_of(client), fault, lag, len),
                _ if lag == 0 => self.freeze(process, blow, len, hold),
                _ => self.push(lag, Happens::Frozen { process, blow, len }),
            }
        }
    }

    fn fault(&self, fault: FaultId, kind: FaultKind, process: usize, phase: FaultPhase) -> Event {
        Event::Fault { fault, kind, node: self.processes[process].name.node(), phase }
    }

    fn agent(&mut self, after: u64, fault: FaultId, kind: FaultKind, process: usize, phase: FaultPhase) {
        let event = self.fault(fault, kind, process, phase);
        if after == 0 { self.emit(AGENT, event) } else { self.push(after, Happens::Agent(event)) }
    }

    pub(super) fn freeze(&mut self, process: usize, blow: Blow, len: u64, hold: Option<HoldId>) {
        if !self.processes[process].alive {
            return;
        }
        let slack = self.k.slack;
        let by = match blow {
            Blow::Pause(fault) => {
                let kind = FaultKind::Pause;
                self.requested.insert(fault, true);
                let asked_ns = len * UNIT_NS;
                self.agent(0, fault, kind, process, FaultPhase::Requested { asked_ns, hold });
                self.agent(slack, fault, kind, process, FaultPhase::Injected);
                self.agent(len, fault, kind, process, FaultPhase::HealRequested);
                self.agent(len + slack, fault, kind, process, FaultPhase::Healed);
                let proof = if self.chance(self.k.unproved) {
                    FaultPhase::Unproved { why: "it went on ticking".into() }
                } else {
                    FaultPhase::Proved { from: stamp(self.now), to: stamp(self.now + len) }
                };
                self.agent(len + slack + 1, fault, kind, process, proof);
                self.agent(len + slack + 1, fault, kind, process, FaultPhase::HealProved);
                if self.chance(self.k.missed) {
                    self.agent(len + slack + 1, fault, kind, process, FaultPhase::MissedTarget);
                }
                Froze::Pause(fault)
            }
            _ => Froze::Stall,
        };
        let (from, to) = (self.now, self.now + len);
        self.processes[process].freezes.push((from, to, by));
        let late = if by == Froze::Stall && self.rng.random_bool(0.2) { StallCause::Write } else { StallCause::Tick };
        self.push(len, Happens::Stalled { process, from, to, late });
    }

    /// A process that runs again says how long it did not, in one piece.
    pub(super) fn stalled(&mut self, process: usize, mut from: u64, mut to: u64, late: StallCause) {
        let p = &mut self.processes[process];
        if !p.alive || to <= p.stalled {
            return;
        }
        while let Some(f) = p.freezes.iter().find(|f| f.0 <= to && to < f.1) {
            to = f.1;
        }
        if to > self.now {
            return self.push(to - self.now, Happens::Stalled { process, from, to, late });
        }
        while let Some(f) = p.freezes.iter().find(|f| f.0 < from && from <= f.1) {
            from = f.0;
        }
        let from = from.max(p.stalled);
        p.stalled = to;
        self.emit(process, Event::Stall { from: stamp(from), to: stamp(to), late });
    }

    fn kill(&mut self, worker: usize, fault: FaultId, lag: u64, len: u64) {
        self.requested.insert(fault, true);
        let process = self.workers[worker];
        self.agent(0, fault, FaultKind::Kill, process, FaultPhase::Requested { asked_ns: len * UNIT_NS, hold: None });
        // Holds that were given up too: their promise may still run.
        let per_worker = self.k.per_worker;
        let holds = self.truth.holds.values_mut();
        for h in holds.filter(|h| h.client / per_worker == worker && h.over.is_none()) {
            h.over = Some(self.now);
            h.killed = true;
        }
        self.clients.iter_mut().filter(|c| c.worker == worker).for_each(|c| c.doomed = Some(self.now));
        self.push(lag, Happens::Dies { worker, fault, len });
    }

    pub(super) fn dies(&mut self, worker: usize, fault: FaultId, len: u64) {
        let process = self.workers[worker];
        self.processes[process].alive = false;
        for c in self.clients.iter_mut().filter(|c| c.worker == worker) {
            c.epoch += 1;
            (c.attempt, c.former) = (None, None);
            c.section += 1;
            c.tries = 0;
        }
        self.agent(0, fault, FaultKind::Kill, process, FaultPhase::Injected);
        let last = self.processes[process].reported.last().map_or(0, |r| r.0);
        // Nothing of the record is lost, unless a test drops it.
        self.processes[process].reported.push((self.now + 1, Event::Watermark));
        self.agent(len, fault, FaultKind::Kill, process, FaultPhase::HealRequested);
        self.push(len + 1, Happens::Starts { worker, fault });
        let to = stamp(self.now + len + 1);
        self.agent(len + 2, fault, FaultKind::Kill, process, FaultPhase::Proved { from: stamp(last), to });
        self.agent(len + 2, fault, FaultKind::Kill, process, FaultPhase::HealProved);
    }

    pub(super) fn starts(&mut self, worker: usize, fault: FaultId) {
        let process = self.process(&format!("worker-{}", worker + 1), 2, Role::Worker);
        self.workers[worker] = process;
        self.agent(0, fault, FaultKind::Kill, process, FaultPhase::Healed);
        for client in 0..self.clients.len() {
            if self.worker_of(client) == worker {
                self.clients[client].doomed = None;
                let (gap, epoch) = (self.between(self.k.gap), self.clients[client].epoch);
                self.push(gap, Happens::Client { client, epoch, what: What::Begin });
            }
        }
    }
}
