//! What nodes send each other: connections, links, packets that are held up, and their arrival.

use std::{sync::Arc, time::Duration};

use history::{Event, Fault, FaultId, Role, Stamp};

use super::{Connection, State, World};
use crate::{
    exchange::Leg,
    executor::{Call, Load, Packet, Process, Stage},
    link::{Retransmitted, Sent},
    local::lock,
};

/// A packet that was late by less than this is not worth a record.
const HELD_FROM: Duration = Duration::from_millis(5);

impl World {
    /// Whether `from` has a connection to `to`; if it was lost, it is made again where that is possible. Left out: the time that this takes.
    pub fn is_connected(&self, from: Process, to: Process) -> bool {
        let mut state = lock(&self.state);
        let count = state.nodes.len();
        let at = from * count + to;
        if !state.connections[at].is_lost {
            return true;
        }
        let is_open = !state.links[at].is_cut() && !state.links[to * count + from].is_cut();
        if is_open && state.nodes[to].is_running {
            let incarnation = state.nodes[to].incarnation;
            state.connections[at] = Connection { incarnation, is_lost: false };
            return true;
        }
        false
    }

    /// Sends something from one node to the other; there it runs, once, as soon as the process that it was sent to runs. What is sent to a
    /// process that is gone is dropped, and so is what it owns: whoever waits for its answer learns that there will be none.
    pub fn send(self: &Arc<Self>, from: Process, to: Process, call: Call<World>) {
        self.send_load(from, to, Load::Call(call));
    }

    /// The same for one way of an exchange.
    pub fn send_leg(self: &Arc<Self>, from: Process, to: Process, leg: Leg<World>) {
        self.send_load(from, to, Load::Leg(leg));
    }

    fn send_load(self: &Arc<Self>, from: Process, to: Process, load: Load<World>) {
        let now = self.executor.now();
        let sent = {
            let mut state = lock(&self.state);
            state.messages += 1;
            let at = from * state.nodes.len() + to;
            let incarnation = state.connections[at].incarnation;
            let State { links, rng, .. } = &mut *state;
            links[at].send(now, Packet { from, to, incarnation, load }, rng)
        };
        match sent {
            Sent::Arrives(when, packet) => self.executor.arrives(when, packet),
            Sent::ArrivesLate(when, fault, packet) => {
                let late = move |world: &Arc<World>| {
                    world.held(fault, from, to, now);
                    world.arrive(packet);
                };
                self.executor.at(when, Box::new(late));
            }
            Sent::RetransmittedAt(when) => self.retransmit(when, from, to),
            Sent::Waits => {}
            Sent::Rejected(packet) => {
                {
                    let mut state = lock(&self.state);
                    let count = state.nodes.len();
                    state.connections[from * count + to].is_lost = true;
                    state.connections[to * count + from].is_lost = true;
                }
                // Whoever waits for its answer learns that there will be none.
                drop(packet);
            }
        }
    }

    fn retransmit(&self, at: Stamp, from: Process, to: Process) {
        let again = move |world: &Arc<World>| {
            let now = world.executor.now();
            let retransmitted = {
                let mut state = lock(&world.state);
                let at = from * state.nodes.len() + to;
                let State { links, rng, .. } = &mut *state;
                links[at].retransmit(now, rng)
            };
            match retransmitted {
                Retransmitted::Nothing => {}
                Retransmitted::Again(at) => world.retransmit(at, from, to),
                Retransmitted::Delivered(delivered) => {
                    let deliver = move |world: &Arc<World>| {
                        if let Some((fault, since)) = delivered.held {
                            world.held(fault, from, to, since);
                        }
                        for packet in delivered.packets {
                            world.arrive(packet);
                        }
                    };
                    world.executor.at(delivered.at, Box::new(deliver));
                }
            }
        };
        self.executor.at(at, Box::new(again));
    }

    /// The agent, which owns the queues of packets, tells what was held.
    fn held(&self, fault: FaultId, from: Process, to: Process, since: Stamp) {
        let until = self.executor.now();
        if until.since(since) >= HELD_FROM {
            let (from, to) = (self.node(from, |n| n.name.clone()), self.node(to, |n| n.name.clone()));
            self.record(self.agent(), Event::Held { fault, from, to, since, until });
        }
    }

    /// Begins a fault of links around `node`.
    pub fn hold_up(&self, node: Process, fault: FaultId, what: &Fault) {
        let mut state = lock(&self.state);
        let State { nodes, links, .. } = &mut *state;
        let (count, target) = (nodes.len(), &nodes[node].name);
        for from in 0..count {
            for to in 0..count {
                // The agent's own channels are not part of the network under test.
                let is_agent = [from, to].iter().any(|n| nodes[*n].role == Some(Role::Agent));
                if is_agent || from == to || !what.hits(target, &nodes[from].name, &nodes[to].name) {
                    continue;
                }
                let link = &mut links[from * count + to];
                match what {
                    Fault::Partition { cut, .. } => link.cut(fault, *cut),
                    Fault::Loss { percent, .. } => link.lose(fault, *percent),
                    _ => what.late().into_iter().for_each(|by| link.slow(fault, by)),
                }
            }
        }
    }

    /// Ends it.
    pub fn mend(&self, fault: FaultId) {
        lock(&self.state).links.iter_mut().for_each(|link| link.mend(fault));
    }

    /// Whether what is sent arrives sooner or later.
    pub fn is_open(&self, from: Process, to: Process) -> bool {
        let state = lock(&self.state);
        !state.links[from * state.nodes.len() + to].is_cut()
    }

    /// How long a packet of a connection of its own takes now; none, if it is lost.
    pub fn probe(&self, from: Process, to: Process) -> Option<Duration> {
        let mut state = lock(&self.state);
        let at = from * state.nodes.len() + to;
        let State { links, rng, .. } = &mut *state;
        links[at].probe(rng)
    }
}

impl Stage for World {
    /// The process takes it now, or when it goes on.
    fn arrive(self: &Arc<Self>, packet: Packet<World>) {
        {
            let mut state = lock(&self.state);
            let Packet { from, to, incarnation, .. } = packet;
            let node = &mut state.nodes[to];
            if !node.is_running || node.incarnation != incarnation {
                // The other side's kernel answers with a reset.
                let at = from * state.nodes.len() + to;
                state.connections[at].is_lost = true;
                drop(state);
                return drop(packet);
            }
            if node.frozen_since.is_some() {
                return node.inbox.push_back(packet);
            }
        }
        packet.load.arrive(self);
    }
}
