//! The network between the nodes: connections, packets, faults of links.

use std::{sync::Arc, time::Duration};

use history::{Event, Fault, FaultId, LinkDelay, Role, Stamp, fault::LinkEffect};

use super::{Connection, State, World};
use crate::{
    exchange::Message,
    executor::{Call, Network, Packet, Payload, Process},
    link::{Delivered, Retransmitted, Sent},
    thread_bound::lock,
};

/// The least delay of a packet that is recorded.
const DELAYED_FROM: Duration = Duration::from_millis(5);

impl World {
    /// Returns whether `from` has a connection to `to`. A lost connection is made again if possible, which takes no
    /// time in this model.
    #[inline]
    pub fn is_connected(&self, from: Process, to: Process) -> bool {
        let is_lost = {
            let state = lock(&self.state);
            state.connections[from * state.nodes.len() + to].is_lost
        };
        !is_lost || self.reconnects(from, to)
    }

    /// Makes a lost connection again. Returns whether that was possible.
    fn reconnects(&self, from: Process, to: Process) -> bool {
        let mut state = lock(&self.state);
        let count = state.nodes.len();
        let at = from * count + to;
        let is_open = !state.links[at].is_cut() && !state.links[to * count + from].is_cut();
        if is_open && state.nodes[to].is_running {
            let incarnation = state.nodes[to].incarnation;
            state.connections[at] = Connection { incarnation, is_lost: false };
            return true;
        }
        false
    }

    /// Sends `call` from one node to the other, where it runs as soon as the addressed process runs. A call to a
    /// process that has ended is dropped; a reply sender that it owns tells its receiver that no reply comes.
    pub fn send(self: &Arc<Self>, from: Process, to: Process, call: Call<World>) {
        self.send_payload(from, to, Payload::Call(call));
    }

    /// Sends a request or its response.
    pub fn send_message(self: &Arc<Self>, from: Process, to: Process, leg: Message<World>) {
        self.send_payload(from, to, Payload::Message(leg));
    }

    fn send_payload(self: &Arc<Self>, from: Process, to: Process, payload: Payload<World>) {
        let now = self.executor.now();
        let sent = {
            let mut state = lock(&self.state);
            state.messages += 1;
            let at = from * state.nodes.len() + to;
            let incarnation = state.connections[at].incarnation;
            let State { links, rng, .. } = &mut *state;
            links[at].send(now, Packet { from, to, incarnation, payload }, rng.at(|| now))
        };
        match sent {
            Sent::Arrives(when, packet) => self.executor.arrives(when, packet),
            Sent::Late(when) => self.deliver_late(when, from, to),
            Sent::RetransmittedAt(when) => self.retransmit(when, from, to),
            Sent::Waits => {}
            Sent::Rejected(packet) => {
                self.lose_connection(from, to);
                // Dropping the packet tells its sender that no reply comes.
                drop(packet);
            }
        }
    }

    /// Ends the connection of two nodes for both sides.
    #[cold]
    fn lose_connection(&self, from: Process, to: Process) {
        let mut state = lock(&self.state);
        let count = state.nodes.len();
        state.connections[from * count + to].is_lost = true;
        state.connections[to * count + from].is_lost = true;
    }

    fn retransmit(&self, at: Stamp, from: Process, to: Process) {
        let again = move |world: &Arc<World>| {
            let now = world.executor.now();
            let retransmitted = {
                let mut state = lock(&world.state);
                let at = from * state.nodes.len() + to;
                let State { links, rng, .. } = &mut *state;
                links[at].retransmit(now, rng.at(|| now))
            };
            match retransmitted {
                Retransmitted::Nothing => {}
                Retransmitted::Again(at) => world.retransmit(at, from, to),
                Retransmitted::Rejected => world.lose_connection(from, to),
                Retransmitted::Late(at) => world.deliver_late(at, from, to),
                Retransmitted::Delivered(delivered) => {
                    let at = delivered.at;
                    world.executor.at(at, Box::new(move |world: &Arc<World>| world.deliver(from, to, delivered)));
                }
            }
        };
        self.executor.at(at, Box::new(again));
    }

    /// Delivers the packets that a fault delays until `at`. A heal may have delivered them before.
    fn deliver_late(&self, at: Stamp, from: Process, to: Process) {
        let deliver = move |world: &Arc<World>| {
            let arrived = {
                let mut state = lock(&world.state);
                let at = from * state.nodes.len() + to;
                state.links[at].arrived(world.executor.now())
            };
            arrived.into_iter().for_each(|delivered| world.deliver(from, to, delivered));
        };
        self.executor.at(at, Box::new(deliver));
    }

    fn deliver(self: &Arc<Self>, from: Process, to: Process, delivered: Delivered<Packet<World>>) {
        let Delivered { delayed, packets, .. } = delivered;
        self.record_delay(from, to, &delayed);
        for packet in packets {
            self.arrive(packet);
        }
    }

    /// Records the parts of a packet's delay, as events of the agent, which owns the packet queues on Docker.
    fn record_delay(&self, from: Process, to: Process, parts: &[(FaultId, Stamp)]) {
        let now = self.executor.now();
        if parts.first().is_none_or(|(_, since)| now.since(*since) < DELAYED_FROM) {
            return;
        }
        let name = |node| self.node(node, |n| n.name.clone());
        let ends = parts.iter().skip(1).map(|(_, since)| *since).chain([now]);
        for ((fault, since), until) in parts.iter().zip(ends) {
            if *since < until {
                let (fault, from, to, since) = (*fault, name(from), name(to), *since);
                self.record(self.agent(), Event::PacketsDelayed { fault, from, to, since, until });
            }
        }
    }

    /// Injects a fault into the links of `node`.
    pub fn inject_links(&self, node: Process, fault: FaultId, what: &Fault) {
        let mut state = lock(&self.state);
        let State { nodes, links, .. } = &mut *state;
        let (count, target) = (nodes.len(), &nodes[node].name);
        for from in 0..count {
            for to in 0..count {
                // The agent's connections are not part of the network under test.
                let is_agent = [from, to].iter().any(|n| nodes[*n].role == Some(Role::Agent));
                if is_agent || from == to || !what.hits(target, &nodes[from].name, &nodes[to].name) {
                    continue;
                }
                let link = &mut links[from * count + to];
                match what.link_effect() {
                    Some(LinkEffect::Cut(mode)) => link.cut(fault, mode),
                    Some(LinkEffect::Lose(percent)) => link.lose(fault, percent),
                    Some(LinkEffect::Delay(by)) => link.slow(fault, by),
                    Some(LinkEffect::Reorder(by)) => link.slow(fault, LinkDelay::Drawn(by)),
                    None => {}
                }
            }
        }
    }

    /// Heals a fault of links. Packets that only this fault delays arrive now.
    pub fn heal_links(&self, fault: FaultId) {
        let now = self.executor.now();
        let mut state = lock(&self.state);
        let count = state.nodes.len();
        for (at, link) in state.links.iter_mut().enumerate() {
            for arrival in link.heal(now, fault) {
                self.deliver_late(arrival, at / count, at % count);
            }
        }
    }

    /// Counts the connections of `node` with `peers` on which one of its packets was retransmitted and lost again. With
    /// `reset` these connections end for both sides: their packets are dropped, which tells the senders that no reply
    /// comes.
    pub fn stale_connections(&self, node: Process, peers: &[Process], reset: bool) -> u32 {
        let mut state = lock(&self.state);
        let State { nodes, links, connections, .. } = &mut *state;
        let (count, mut stale) = (nodes.len(), 0);
        for &peer in peers {
            let (to_peer, from_peer) = (node * count + peer, peer * count + node);
            if !links[to_peer].is_stale() {
                continue;
            }
            stale += 1;
            if reset {
                for way in [to_peer, from_peer] {
                    links[way].reset();
                    connections[way].is_lost = true;
                }
            }
        }
        stale
    }

    /// Returns whether no partition cuts the link.
    pub fn is_open(&self, from: Process, to: Process) -> bool {
        let state = lock(&self.state);
        !state.links[from * state.nodes.len() + to].is_cut()
    }

    /// Draws the time that a packet of a new connection takes now; none, if the packet is lost.
    pub fn probe(&self, from: Process, to: Process) -> Option<Duration> {
        let mut state = lock(&self.state);
        let at = from * state.nodes.len() + to;
        let State { links, rng, .. } = &mut *state;
        links[at].probe(rng.at(|| self.executor.now()))
    }
}

impl Network for World {
    /// Delivers the packet now, or once its process is thawed.
    fn arrive(self: &Arc<Self>, packet: Packet<World>) {
        {
            let mut state = lock(&self.state);
            let Packet { from, to, incarnation, .. } = packet;
            let node = &mut state.nodes[to];
            if !node.is_running || node.incarnation != incarnation {
                // The kernel of the other side resets the connection.
                let at = from * state.nodes.len() + to;
                state.connections[at].is_lost = true;
                drop(state);
                return drop(packet);
            }
            if node.frozen_since.is_some() {
                return node.inbox.push_back(packet);
            }
        }
        packet.payload.arrive(self);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use history::{
        CutMode, Direction, NodeName,
        fault::{Delay, Partition},
    };

    use super::*;
    use crate::{
        reply::{NoReply, reply_channel},
        world::tests::{REDIS, run_for, world},
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// Cuts the links of the first worker in this direction.
    fn cut(world: &World, direction: Direction, fault: FaultId, cut: CutMode) {
        let partition = Fault::new(Partition { cut }, SECOND).on_links(direction, Vec::new());
        world.inject_links(world.worker(0), fault, &partition);
    }

    #[test]
    fn a_retransmission_that_is_rejected_tells_its_sender() {
        let world = world(1, REDIS);
        let (node, worker) = (0, world.worker(0));
        cut(&world, Direction::Both, FaultId(1), CutMode::Drop);
        let (sender, answer) = reply_channel::<()>();
        world.send(worker, node, Box::new(move |_| sender.say(())));
        cut(&world, Direction::Both, FaultId(2), CutMode::Reject);
        world.heal_links(FaultId(1));
        run_for(&world, SECOND);
        assert_eq!(answer.now_or_never(), Some(Err(NoReply)));
        assert!(!world.is_connected(worker, node));
    }

    #[test]
    fn a_lost_connection_is_made_again_only_if_both_ways_are_open() {
        for direction in [Direction::In, Direction::Out] {
            let world = world(1, REDIS);
            let (node, worker) = (0, world.worker(0));
            world.lose_connection(worker, node);
            cut(&world, direction, FaultId(1), CutMode::Drop);
            assert!(!world.is_connected(worker, node), "{direction:?}");
            world.heal_links(FaultId(1));
            assert!(world.is_connected(worker, node), "{direction:?}");
        }
    }

    #[test]
    fn the_reset_of_a_killed_process_does_not_cross_a_partition() {
        for is_cut in [false, true] {
            let world = world(1, REDIS);
            let (node, worker) = (0, world.worker(0));
            if is_cut {
                cut(&world, Direction::Both, FaultId(1), CutMode::Drop);
            }
            world.kill(node);
            assert_eq!(world.is_connected(worker, node), is_cut);
        }
    }

    #[test]
    fn a_late_packet_is_recorded_with_its_sender_and_its_receiver() {
        let world = world(1, REDIS);
        let (node, worker) = (0, world.worker(0));
        let delay = Fault::new(Delay { by: (SECOND / 10).into() }, SECOND).on_links(Direction::Out, Vec::new());
        world.inject_links(worker, FaultId(1), &delay);
        world.send(worker, node, Box::new(|_: &Arc<World>| ()));
        let delays = run_for(&world, SECOND).into_iter().filter_map(|record| match record.event {
            Event::PacketsDelayed { from, to, .. } => Some((from, to)),
            _ => None,
        });
        assert_eq!(delays.collect::<Vec<_>>(), [(NodeName::new("worker-1"), NodeName::new("node-1"))]);
    }

    #[test]
    fn a_packet_that_two_faults_delay_is_recorded_with_the_part_of_each() {
        let world = world(1, REDIS);
        let (node, worker) = (0, world.worker(0));
        for (id, by) in [(1, SECOND / 20), (2, SECOND / 4)] {
            let delay = Fault::new(Delay { by: by.into() }, SECOND).on_links(Direction::Out, Vec::new());
            world.inject_links(worker, FaultId(id), &delay);
        }
        world.send(worker, node, Box::new(|_: &Arc<World>| ()));
        let delays = run_for(&world, SECOND).into_iter().filter_map(|record| match record.event {
            Event::PacketsDelayed { fault, since, until, .. } => Some((fault, until.since(since).as_millis())),
            _ => None,
        });
        assert_eq!(delays.collect::<Vec<_>>(), [(FaultId(1), 50), (FaultId(2), 250)]);
    }

    #[test]
    fn a_packet_to_a_killed_process_never_reaches_the_next_one() {
        for is_frozen in [false, true] {
            let world = world(1, REDIS);
            let (node, worker) = (0, world.worker(0));
            if is_frozen {
                world.freeze(node);
            }
            let (sender, answer) = reply_channel::<()>();
            world.send(worker, node, Box::new(move |_| sender.say(())));
            if is_frozen {
                // The packet arrives, and waits for the thaw.
                run_for(&world, SECOND);
            }
            world.kill(node);
            world.start(node);
            world.freeze(node);
            world.thaw(node);
            run_for(&world, SECOND);
            assert_eq!(answer.now_or_never(), Some(Err(NoReply)), "frozen: {is_frozen}");
            assert!(world.is_connected(worker, node), "frozen: {is_frozen}");
        }
    }

    #[test]
    fn a_killed_process_sends_no_lost_packet_again() {
        let world = world(1, REDIS);
        let (node, worker) = (0, world.worker(0));
        cut(&world, Direction::Both, FaultId(1), CutMode::Drop);
        let (sender, answer) = reply_channel::<()>();
        world.send(worker, node, Box::new(move |_| sender.say(())));
        world.kill(worker);
        world.heal_links(FaultId(1));
        run_for(&world, SECOND);
        assert_eq!(answer.now_or_never(), Some(Err(NoReply)));
    }
}
