//! The agent: anchor of the run. It stamps what the nemesis tells it, reaches into other containers, and ends when the controller does.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};

use agent::{
    net::PacketFaults,
    protocol::{Answer, Cut as How, FaultNumber, HeldPacket, Order, PacketFault, PacketRequest, Way},
};
use anyhow::Context;
use history::{Event, FaultId, NodeName, Role, Stamp};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{journal::Journal, orders::Orders, stamp, ticks};

/// A packet that was held for less is not worth a record.
const HELD_FROM_NS: u64 = 5_000_000;

/// One command to the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentCommand {
    /// Report this event with a stamp of your own.
    Stamp {
        /// What.
        event: Box<Event>,
    },
    /// Who has which address: packets are reported by the names of their nodes.
    Know {
        /// All nodes of the run.
        nodes: Vec<(NodeName, Ipv4Addr)>,
    },
    /// Do this, and report what came of it.
    Do {
        /// A number for the answer.
        number: u64,
        /// The node that it is about.
        node: NodeName,
        /// What.
        order: Box<Order>,
    },
    /// Say `finished`, and exit.
    Finish,
}

/// Runs until told to finish, or until standard input ends.
pub async fn agent() -> anyhow::Result<()> {
    let journal = Arc::new(Journal::begin(Role::Agent)?);
    let (held, reports) = mpsc::unbounded_channel();
    let reach = Arc::new(Reach::new(held));
    tokio::select! {
        done = obey(&journal, &reach) => done,
        stopped = ticks::tick(journal.clone()) => Err(anyhow::Error::new(stopped).context("ticking")),
        () = report(&journal, &reach, reports) => Ok(()),
    }
}

async fn obey(journal: &Arc<Journal>, reach: &Arc<Reach>) -> anyhow::Result<()> {
    let mut orders = Orders::new();
    loop {
        match orders.next().await? {
            AgentCommand::Stamp { event } => {
                journal.record(*event);
            }
            AgentCommand::Know { nodes } => {
                *lock(&reach.nodes) = nodes.into_iter().map(|(node, address)| (address, node)).collect();
            }
            AgentCommand::Do { number, node, order } => {
                let (journal, reach) = (journal.clone(), reach.clone());
                // Each by itself: a probe that waits for an answer keeps nobody else waiting.
                tokio::spawn(async move {
                    let done = tokio::task::spawn_blocking(move || reach.done(&node, &order)).await;
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
                    journal.record(Event::Obeyed { order: number, answer, failed });
                });
            }
            AgentCommand::Finish => {
                journal.record(Event::Finished);
                std::process::exit(0)
            }
        };
    }
}

/// Reports packets that a fault held back.
async fn report(
    journal: &Journal,
    reach: &Reach,
    mut reports: mpsc::UnboundedReceiver<(FaultNumber, Vec<HeldPacket>)>,
) {
    while let Some((fault, packets)) = reports.recv().await {
        for packet in packets {
            let is_late = packet.released_ns.saturating_sub(packet.held_ns) >= HELD_FROM_NS;
            // An acknowledgement that is late keeps nobody waiting.
            if !is_late || packet.payload_bytes == 0 {
                continue;
            }
            let (from, to) = (reach.name(*packet.from.ip()), reach.name(*packet.to.ip()));
            if let (Some(from), Some(to)) = (from, to) {
                let (since, until) = (Stamp(packet.held_ns), Stamp(packet.released_ns));
                journal.record(Event::Held { fault: FaultId(fault.0), from, to, since, until });
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A partition that is on.
struct Cut {
    node: NodeName,
    peers: Vec<Ipv4Addr>,
    way: Way,
    since: Stamp,
}

/// What reaches into other containers.
struct Reach {
    nodes: Mutex<BTreeMap<Ipv4Addr, NodeName>>,
    packets: Mutex<PacketFaults>,
    cuts: Mutex<BTreeMap<FaultNumber, Vec<Cut>>>,
}

impl Reach {
    fn new(held: mpsc::UnboundedSender<(FaultNumber, Vec<HeldPacket>)>) -> Reach {
        let report = move |fault: FaultNumber, packets: &[HeldPacket]| {
            // The process ends before its reports do: nobody can be gone.
            let _ = held.send((fault, packets.to_vec()));
        };
        Reach {
            nodes: Mutex::default(),
            packets: Mutex::new(PacketFaults::new(Arc::new(report))),
            cuts: Mutex::default(),
        }
    }

    fn name(&self, address: Ipv4Addr) -> Option<NodeName> {
        lock(&self.nodes).get(&address).cloned()
    }

    /// Carries an order out; the events that are to be reported before its answer are given too.
    fn done(&self, node: &NodeName, order: &Order) -> anyhow::Result<(Vec<Event>, Answer)> {
        match order {
            Order::Target(request) => Ok((Vec::new(), Answer::Target(agent::net::obey(request)?))),
            Order::Clocks(request) => Ok((Vec::new(), Answer::Clocks(agent::clock::obey(*request)?))),
            Order::Packets(request) => {
                let before = stamp::now();
                let tally = lock(&self.packets).obey(request)?;
                let after = stamp::now();
                Ok((self.cut(node, request, before, after), Answer::Packets(tally)))
            }
        }
    }

    /// A partition drops packets and holds none, but nothing that left while it was on arrived before its heal. What is rejected never arrives.
    fn cut(&self, node: &NodeName, request: &PacketRequest, before: Stamp, after: Stamp) -> Vec<Event> {
        let mut cuts = lock(&self.cuts);
        match request {
            PacketRequest::Inject { fault, what: PacketFault::Partition { links, cut: How::Drop }, .. } => {
                let cut = Cut { node: node.clone(), peers: links.peers.clone(), way: links.way, since: after };
                cuts.entry(*fault).or_default().push(cut);
                Vec::new()
            }
            PacketRequest::Inject { .. } => Vec::new(),
            PacketRequest::Heal { fault } => {
                let healed = cuts.remove(fault).unwrap_or_default();
                healed.iter().flat_map(|cut| self.held(*fault, cut, before)).collect()
            }
            PacketRequest::HealAll => {
                let healed = std::mem::take(&mut *cuts);
                healed
                    .iter()
                    .flat_map(|(fault, cuts)| cuts.iter().map(|cut| (*fault, cut)))
                    .flat_map(|(fault, cut)| self.held(fault, cut, before))
                    .collect()
            }
        }
    }

    fn held(&self, fault: FaultNumber, cut: &Cut, until: Stamp) -> Vec<Event> {
        let nodes = lock(&self.nodes);
        let peers = nodes.iter().filter(|(address, _)| cut.peers.is_empty() || cut.peers.contains(address));
        let peers = peers.map(|(_, peer)| peer).filter(|peer| **peer != cut.node && peer.as_str() != "agent");
        let mut events = Vec::new();
        for peer in peers {
            let mut add = |from: &NodeName, to: &NodeName| {
                let (fault, since) = (FaultId(fault.0), cut.since);
                events.push(Event::Held { fault, from: from.clone(), to: to.clone(), since, until });
            };
            if cut.way != Way::In {
                add(&cut.node, peer);
            }
            if cut.way != Way::Out {
                add(peer, &cut.node);
            }
        }
        events
    }
}
