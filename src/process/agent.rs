//! The hidden subcommand `agent`: stamps events for the nemesis, and carries out packet and clock faults in other
//! containers. The run lasts as long as the agent, which ends with the controller.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use agent::{
    net::PacketFaults,
    protocol::{Answer, Order, PacketFault, PacketReport, PacketRequest},
};
use anyhow::Context;
use history::{CutMode, Direction, Event, FaultId, NodeName, Role, Stamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use tokio::sync::mpsc;

use super::{commands::Commands, journal::Journal, stamp, ticks};

/// The least delay of a packet that is recorded.
const REPORTED_FROM_NS: u64 = 5_000_000;

/// One command to the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentCommand {
    /// Record this event with a stamp of the agent.
    Stamp {
        /// The event.
        event: Box<Event>,
    },
    /// Learn the addresses, so that reports of packets name nodes.
    Know {
        /// All nodes of the run.
        nodes: Vec<(NodeName, Ipv4Addr)>,
    },
    /// Carry out this order, and report the result.
    Do {
        /// The number that the answer repeats.
        number: u64,
        /// The node that the order is about.
        node: NodeName,
        /// The order.
        order: Box<Order>,
    },
    /// Record `finished`, and wait for the end of standard input.
    Finish,
}

/// Runs until standard input ends. Records nothing after `finished`.
pub async fn agent() -> anyhow::Result<()> {
    let journal = Arc::new(Journal::begin(Role::Agent)?);
    let (delayed, reports) = mpsc::unbounded_channel();
    let faults = Arc::new(Faults::new(delayed));
    let mut commands = Commands::new();
    tokio::select! {
        done = obey(&mut commands, &journal, &faults) => done?,
        stopped = ticks::tick(journal.clone()) => return Err(anyhow::Error::new(stopped).context("ticking")),
        () = report(&journal, &faults, reports) => {}
    }
    // The controller still collects logs and removes the cluster. While the agent runs, no other run does that.
    loop {
        commands.next::<IgnoredAny>().await?;
    }
}

/// Obeys commands up to the last one.
async fn obey(commands: &mut Commands, journal: &Arc<Journal>, faults: &Arc<Faults>) -> anyhow::Result<()> {
    loop {
        match commands.next().await? {
            AgentCommand::Stamp { event } => {
                journal.record(*event);
            }
            AgentCommand::Know { nodes } => {
                *faults.nodes.lock() = nodes.into_iter().map(|(node, address)| (address, node)).collect();
            }
            AgentCommand::Do { number, node, order } => {
                let (journal, faults) = (journal.clone(), faults.clone());
                // Each order has its own task, so that a probe that waits for an answer delays no other order.
                tokio::spawn(async move {
                    let done = tokio::task::spawn_blocking(move || faults.carry_out(&node, &order)).await;
                    let (events, said) = match done.context("carrying out an order") {
                        Ok(Ok((events, answer))) => (events, Ok(answer)),
                        Ok(Err(error)) | Err(error) => (Vec::new(), Err(format!("{error:#}"))),
                    };
                    for event in events {
                        journal.record(event);
                    }
                    let (answer, failed) = match said.and_then(|a| serde_json::to_value(a).map_err(|e| e.to_string())) {
                        Ok(answer) => (Some(Box::new(answer)), None),
                        Err(why) => (None, Some(why)),
                    };
                    journal.record(Event::OrderDone { order: number, answer, failed });
                });
            }
            AgentCommand::Finish => {
                journal.end();
                return Ok(());
            }
        }
    }
}

/// Records packets that a fault delayed.
async fn report(
    journal: &Journal,
    faults: &Faults,
    mut reports: mpsc::UnboundedReceiver<(FaultId, Vec<PacketReport>)>,
) {
    while let Some((fault, packets)) = reports.recv().await {
        for late in packets.iter().filter_map(|packet| faults.late(fault, packet)) {
            journal.record(late);
        }
    }
}

/// A partition that is on, at one node.
struct Partition {
    node: NodeName,
    peers: Vec<Ipv4Addr>,
    direction: Direction,
    since: Stamp,
}

/// The packet and clock faults in other containers.
struct Faults {
    nodes: Mutex<BTreeMap<Ipv4Addr, NodeName>>,
    packets: Mutex<PacketFaults>,
    cuts: Mutex<BTreeMap<FaultId, Vec<Partition>>>,
}

impl Faults {
    fn new(delayed: mpsc::UnboundedSender<(FaultId, Vec<PacketReport>)>) -> Faults {
        let report = move |fault: FaultId, packets: &[PacketReport]| {
            // The receiver lives as long as the process.
            let _ = delayed.send((fault, packets.to_vec()));
        };
        Faults {
            nodes: Mutex::default(),
            packets: Mutex::new(PacketFaults::new(Arc::new(report))),
            cuts: Mutex::default(),
        }
    }

    fn name(&self, address: Ipv4Addr) -> Option<NodeName> {
        self.nodes.lock().get(&address).cloned()
    }

    /// The event of a packet that a fault delayed, if the delay is recorded.
    fn late(&self, fault: FaultId, packet: &PacketReport) -> Option<Event> {
        let is_late = packet.released_ns.saturating_sub(packet.queued_ns) >= REPORTED_FROM_NS;
        // A late acknowledgement delays no data.
        if !is_late || packet.payload_bytes == 0 {
            return None;
        }
        let (from, to) = (self.name(*packet.from.ip())?, self.name(*packet.to.ip())?);
        let (since, until) = (Stamp(packet.queued_ns), Stamp(packet.released_ns));
        Some(Event::PacketsDelayed { fault, from, to, since, until })
    }

    /// Carries out an order. Returns the events to record before the answer, and the answer.
    fn carry_out(&self, node: &NodeName, order: &Order) -> anyhow::Result<(Vec<Event>, Answer)> {
        match order {
            Order::Target(request) => Ok((Vec::new(), Answer::Target(agent::net::obey(request)?))),
            Order::Clocks(request) => Ok((Vec::new(), Answer::Clocks(agent::clock::obey(*request)?))),
            Order::Packets(request) => {
                let before = stamp::now();
                let tally = self.packets.lock().obey(request)?;
                let after = stamp::now();
                Ok((self.cut(node, request, before, after), Answer::Packets(tally)))
            }
        }
    }

    /// Records the packets that a partition delayed. A partition drops packets, and its senders retransmit them after
    /// the heal: no packet that left during the partition arrives before the heal. A rejected packet never arrives.
    fn cut(&self, node: &NodeName, request: &PacketRequest, before: Stamp, after: Stamp) -> Vec<Event> {
        let mut cuts = self.cuts.lock();
        match request {
            PacketRequest::Inject { fault, what: PacketFault::Partition { links, cut: CutMode::Drop }, .. } => {
                let cut = Partition {
                    node: node.clone(),
                    peers: links.peers.clone(),
                    direction: links.direction,
                    since: after,
                };
                let cuts = cuts.entry(*fault).or_default();
                // The target has restarted: packets got through until the rules were in its new network.
                cuts.retain(|former| former.node != *node);
                cuts.push(cut);
                Vec::new()
            }
            PacketRequest::Inject { .. } => Vec::new(),
            PacketRequest::Heal { fault } => {
                let healed = cuts.remove(fault).unwrap_or_default();
                healed.iter().flat_map(|cut| self.delayed(*fault, cut, before)).collect()
            }
            PacketRequest::HealAll => {
                let healed = std::mem::take(&mut *cuts);
                healed
                    .iter()
                    .flat_map(|(fault, cuts)| cuts.iter().map(|cut| (*fault, cut)))
                    .flat_map(|(fault, cut)| self.delayed(fault, cut, before))
                    .collect()
            }
        }
    }

    fn delayed(&self, fault: FaultId, cut: &Partition, until: Stamp) -> Vec<Event> {
        let nodes = self.nodes.lock();
        let peers = nodes.iter().filter(|(address, _)| cut.peers.is_empty() || cut.peers.contains(address));
        let peers = peers.map(|(_, peer)| peer).filter(|peer| **peer != cut.node && peer.as_str() != "agent");
        let mut events = Vec::new();
        for peer in peers {
            let mut add = |from: &NodeName, to: &NodeName| {
                let since = cut.since;
                events.push(Event::PacketsDelayed { fault, from: from.clone(), to: to.clone(), since, until });
            };
            if cut.direction != Direction::In {
                add(&cut.node, peer);
            }
            if cut.direction != Direction::Out {
                add(peer, &cut.node);
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use agent::protocol::{Links, PacketFate};

    use super::*;

    /// No fault so far, among two servers and a worker.
    fn faults() -> (Faults, [(Ipv4Addr, NodeName); 3]) {
        let faults = Faults::new(mpsc::unbounded_channel().0);
        let nodes = [("redis-1", 2), ("redis-2", 3), ("worker-1", 4)];
        let nodes = nodes.map(|(node, number)| (Ipv4Addr::new(172, 20, 0, number), NodeName::new(node)));
        *faults.nodes.lock() = nodes.clone().into();
        (faults, nodes)
    }

    #[test]
    fn data_that_are_late_by_milliseconds_are_recorded() {
        let (faults, [(from_address, from), (to_address, to), _]) = faults();
        let packet = |late_us: u64, payload_bytes| PacketReport {
            queued_ns: 1_000,
            released_ns: 1_000 + late_us * 1_000,
            from: SocketAddrV4::new(from_address, 6_379),
            to: SocketAddrV4::new(to_address, 40_000),
            payload_bytes,
            fate: PacketFate::Due,
        };
        let late = |late_us, payload_bytes| faults.late(FaultId(1), &packet(late_us, payload_bytes));
        let (fault, since, until) = (FaultId(1), Stamp(1_000), Stamp(30_001_000));
        assert_eq!(late(30_000, 1), Some(Event::PacketsDelayed { fault, from, to, since, until }));
        assert_eq!((late(30_000, 0), late(4_999, 1)), (None, None));
    }

    #[test]
    fn the_heal_of_all_faults_ends_a_partition_too() {
        let (faults, [(_, server), _, (worker_address, worker)]) = faults();
        let (fault, links) = (FaultId(3), Links { peers: vec![worker_address], port: None, direction: Direction::In });
        let what = PacketFault::Partition { links, cut: CutMode::Drop };
        faults.cut(&server, &PacketRequest::Inject { fault, pid: 7, what }, Stamp(0), Stamp(10));
        let healed = faults.cut(&"agent".into(), &PacketRequest::HealAll, Stamp(50), Stamp(51));
        let (from, to, since, until) = (worker, server, Stamp(10), Stamp(50));
        assert_eq!(healed, [Event::PacketsDelayed { fault, from, to, since, until }]);
    }

    #[test]
    fn a_partition_injected_again_delays_packets_only_since_then() {
        let (faults, [(_, first), (_, second), (worker_address, worker)]) = faults();
        let links = Links { peers: vec![worker_address], port: None, direction: Direction::In };
        let fault = FaultId(1);
        for (node, pid, after) in [(&first, 7, 10), (&second, 8, 11), (&first, 9, 30)] {
            let what = PacketFault::Partition { links: links.clone(), cut: CutMode::Drop };
            let request = PacketRequest::Inject { fault, pid, what };
            assert!(faults.cut(node, &request, Stamp(0), Stamp(after)).is_empty());
        }
        let healed = faults.cut(&first, &PacketRequest::Heal { fault }, Stamp(50), Stamp(51));
        let delayed = [(second, Stamp(11)), (first, Stamp(30))];
        let delayed = delayed.map(|(to, since)| {
            let (from, until) = (worker.clone(), Stamp(50));
            Event::PacketsDelayed { fault, from, to, since, until }
        });
        assert_eq!(healed, delayed);
    }
}
