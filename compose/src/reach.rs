//! Faults inside containers: sends orders to the agent, which injects each fault into a process and measures its
//! effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

use agent::protocol::{
    Answer, ClockAnswer, ClockRequest, DelayRange, DelayedPart, Links, Order, PacketFault, PacketRequest, TargetAnswer,
    TargetRequest,
};
use history::{ClockChange, CutMode, Direction, Fault, FaultId, NodeName, Range, WhichClock, fault::LinkEffect};
use nemesis::{ClusterError, Doing};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::sleep;

use crate::running::{Member, Running};

/// A port without a listener. The kernel of the node answers at once, even if the node's processes do nothing.
pub(crate) const CLOSED_PORT: u16 = 1;
/// The longest time of a packet that no fault delays.
const UNHELD: Duration = Duration::from_millis(400);

/// The port on which Redis reports its time.
pub(crate) const REDIS_PORT: u16 = 6379;
/// The time between two checks whether a process has ended, and their number.
const ENDED_LOOK: Duration = Duration::from_millis(50);
const ENDED_LOOKS: u32 = 20;
/// The timeout of a request for the time.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// The port that carries orders to the agent.
pub trait AgentPort: Send + Sync {
    /// Sends an order about `node`, and returns the agent's answer. Fails if the agent could not carry out the order.
    fn order<'a>(&'a self, node: &'a NodeName, order: Order) -> Doing<'a, Answer>;
}

/// A running cluster, with an agent that can act inside its containers.
pub struct DockerCluster<'a> {
    pub(crate) running: &'a Running,
    agent: &'a dyn AgentPort,
    /// The seed of the plan, from which packets draw their delays and losses.
    seed: u64,
    on: Mutex<On>,
}

/// An active fault of links.
pub(crate) struct LinkFault {
    pub(crate) node: NodeName,
    pub(crate) what: PacketFault,
    /// The process in whose network the fault is.
    pub(crate) pid: i32,
}

/// The active clock changes of one node.
pub(crate) struct SetClocks {
    pub(crate) changes: Vec<(WhichClock, ClockChange)>,
    /// The process whose clocks are changed.
    pub(crate) pid: i32,
}

/// The active faults. They are injected again if a node gets a new container, a new network or new processes.
#[derive(Default)]
pub(crate) struct On {
    pub(crate) links: BTreeMap<FaultId, LinkFault>,
    /// The faults of links that are being injected.
    pub(crate) coming: BTreeMap<FaultId, PacketFault>,
    /// The active clock changes of each node.
    pub(crate) clocks: BTreeMap<NodeName, SetClocks>,
    /// The nodes that had a clock fault in this run.
    pub(crate) touched: BTreeSet<NodeName>,
}

impl On {
    /// Notes that a fault of links is active.
    pub(crate) fn comes(&mut self, fault: FaultId, link: LinkFault) {
        self.coming.remove(&fault);
        self.links.insert(fault, link);
    }

    /// Notes that a fault of links is healed, or was never active.
    pub(crate) fn goes(&mut self, fault: FaultId) {
        self.coming.remove(&fault);
        self.links.remove(&fault);
    }
}

impl<'a> DockerCluster<'a> {
    /// Returns the cluster `running`, with its agent. Faults of links draw their delays and losses from `seed`.
    pub fn new(running: &'a Running, agent: &'a dyn AgentPort, seed: u64) -> Self {
        Self { running, agent, seed, on: Mutex::default() }
    }

    pub(crate) fn on(&self) -> MutexGuard<'_, On> {
        self.on.lock()
    }

    pub(crate) fn member(&self, node: &NodeName, doing: &'static str) -> Result<&'a Member, ClusterError> {
        self.running.member(node).map_err(|error| failed(node, doing, error.to_string()))
    }

    pub(crate) async fn pid_if_up(&self, node: &NodeName, doing: &'static str) -> Result<Option<i32>, ClusterError> {
        let member = self.member(node, doing)?;
        self.running.pid(member).await.map_err(|why| failed(node, doing, why))
    }

    pub(crate) async fn pid(&self, node: &NodeName, doing: &'static str) -> Result<i32, ClusterError> {
        self.pid_if_up(node, doing).await?.ok_or_else(|| failed(node, doing, "it has no process"))
    }

    pub(crate) fn address(&self, node: &NodeName, doing: &'static str) -> Result<Ipv4Addr, ClusterError> {
        if let Some(server) = self.running.own_server(node) {
            return Ok(*server.ip());
        }
        Ok(self.member(node, doing)?.recipe.address)
    }

    pub(crate) async fn packets(&self, node: &NodeName, request: PacketRequest) -> Result<(), ClusterError> {
        self.agent.order(node, Order::Packets(request)).await.map(drop)
    }

    pub(crate) async fn clocks(&self, node: &NodeName, request: ClockRequest) -> Result<ClockAnswer, ClusterError> {
        match self.agent.order(node, Order::Clocks(request)).await? {
            Answer::Clocks(answer) => Ok(answer),
            other => Err(failed(node, "asking the agent about clocks", format!("it answered {other:?}"))),
        }
    }

    pub(crate) async fn target(&self, node: &NodeName, request: TargetRequest) -> Result<TargetAnswer, ClusterError> {
        match self.agent.order(node, Order::Target(request)).await? {
            Answer::Target(answer) => Ok(answer),
            other => Err(failed(node, "asking the agent about packets", format!("it answered {other:?}"))),
        }
    }

    /// As [`DockerCluster::target`] of the first node; none, if one of these processes has ended meanwhile. Another
    /// fault may kill a node between the engine's answer and the agent's request.
    pub(crate) async fn target_if_up(
        &self,
        processes: &[(&NodeName, i32)],
        request: TargetRequest,
    ) -> Result<Option<TargetAnswer>, ClusterError> {
        let [(first, _), ..] = processes else { return Ok(None) };
        match self.target(first, request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(_) if self.has_ended(processes).await? => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether one of these processes has ended. The engine learns late of the end of a process.
    pub(crate) async fn has_ended(&self, processes: &[(&NodeName, i32)]) -> Result<bool, ClusterError> {
        for _ in 0..ENDED_LOOKS {
            for &(node, pid) in processes {
                if self.pid_if_up(node, "looking whether it still runs").await? != Some(pid) {
                    return Ok(true);
                }
            }
            sleep(ENDED_LOOK).await;
        }
        Ok(false)
    }

    /// Converts a fault of links to the agent's protocol; none, if the fault is no fault of links.
    pub(crate) fn packet_fault(&self, fault: FaultId, what: &Fault) -> Result<Option<PacketFault>, ClusterError> {
        let links = |direction: Direction, from: &[NodeName]| {
            let peers = from.iter().map(|peer| self.address(peer, "finding its address")).collect::<Result<_, _>>()?;
            Ok(Links { peers, port: None, direction })
        };
        let seed = packet_seed(self.seed, fault);
        let (Some(effect), Some(over)) = (what.link_effect(), &what.links) else { return Ok(None) };
        let links = links(over.direction, &over.from)?;
        Ok(Some(match effect {
            LinkEffect::Cut(cut) => PacketFault::Partition { links, cut },
            LinkEffect::Delay(by) => PacketFault::Delay { links, by: range(by.range()), part: DelayedPart::All, seed },
            LinkEffect::Lose(percent) => PacketFault::Loss { links, probability: f64::from(percent) / 100.0, seed },
            LinkEffect::Reorder(by) => PacketFault::Reorder { links, by: range(by), within_connections: false, seed },
        }))
    }

    /// Returns whether a partition that rejects packets is active on any node, or is being injected.
    pub(crate) fn rejects(&self) -> bool {
        let is_reject = |what: &PacketFault| matches!(what, PacketFault::Partition { cut: CutMode::Reject, .. });
        let on = self.on();
        on.links.values().map(|link| &link.what).chain(on.coming.values()).any(is_reject)
    }

    /// Returns the longest round trip of a probe under the active faults.
    pub(crate) fn patience(&self) -> Duration {
        let on = self.on();
        let longest_us = on.links.values().map(|link| match &link.what {
            PacketFault::Delay { by, .. } | PacketFault::Reorder { by, .. } => by.to_us,
            PacketFault::Partition { .. } | PacketFault::Loss { .. } => 0,
        });
        Duration::from_micros(longest_us.sum()) * 2 + UNHELD
    }
}

impl DockerCluster<'_> {
    /// Restores the original code of the clocks on every node that had a clock fault. A monotonic clock that is ahead
    /// goes back. For servers that run on after the run.
    ///
    /// # Errors
    /// The agent could not restore a node. The remaining nodes keep the changed code.
    pub async fn restore_clocks(&self) -> Result<(), ClusterError> {
        let touched = self.on().touched.clone();
        for node in &touched {
            if let Some(pid) = self.pid_if_up(node, "putting its clocks right").await? {
                self.clocks(node, ClockRequest::Restore { pid }).await?;
            }
        }
        Ok(())
    }
}

pub(crate) fn failed(node: &NodeName, doing: &'static str, why: impl Into<String>) -> ClusterError {
    ClusterError { node: node.clone(), doing, why: why.into() }
}

fn range(by: Range) -> DelayRange {
    let micros = |of: Duration| u64::try_from(of.as_micros()).unwrap_or(u64::MAX);
    DelayRange { from_us: micros(by.from), to_us: micros(by.to) }
}

/// Returns the clock changes that a new process needs while the fault is on: all but the jump of a monotonic clock,
/// which ends with its process.
pub(crate) fn still_on(
    mut on: Vec<(WhichClock, ClockChange)>,
    clock: WhichClock,
    change: ClockChange,
) -> Vec<(WhichClock, ClockChange)> {
    match change {
        ClockChange::JumpMs(_) if !clock.is_wall() => {}
        ClockChange::JumpMs(by) => {
            let taken_back = on.iter().position(|(_, on)| *on == ClockChange::JumpMs(-by));
            match taken_back {
                Some(taken_back) => drop(on.remove(taken_back)),
                None => on.push((WhichClock::Wall, change)),
            }
        }
        ClockChange::DriftPpm(ppm) => {
            on.retain(|(_, on)| !matches!(on, ClockChange::DriftPpm(_)));
            if ppm != 0 {
                on.push((clock, change));
            }
        }
        ClockChange::Strobe { by_ms, .. } => {
            on.retain(|(_, on)| !matches!(on, ClockChange::Strobe { .. }));
            if by_ms != 0 {
                on.push((clock, change));
            }
        }
    }
    on
}

/// The seed of the packets of one fault: another one for each fault and for each seed of a plan. An odd multiplier
/// spreads the numbers of faults over all bits (the golden ratio, as in Knuth's multiplicative hashing).
fn packet_seed(seed: u64, fault: FaultId) -> u64 {
    seed ^ u64::from(fault.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use history::fault::Partition;
    use nemesis::Cluster;
    use tokio::time::timeout;

    use super::*;
    use crate::fake_engine;

    /// An agent that gets no order.
    struct Idle;

    impl AgentPort for Idle {
        fn order<'a>(&'a self, _: &'a NodeName, order: Order) -> Doing<'a, Answer> {
            unreachable!("{order:?}")
        }
    }

    #[tokio::test]
    async fn a_probe_waits_for_the_longest_delays_of_all_nodes_together_there_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake_engine::start(&dir, |_| (Duration::ZERO, String::new())).await;
        let running = fake_engine::running(&engine).await;
        let cluster = DockerCluster::new(&running, &Idle, 1);
        let links = Links::default;
        let by = |from_ms: u64, to_ms: u64| DelayRange { from_us: from_ms * 1_000, to_us: to_ms * 1_000 };
        assert_eq!(cluster.patience(), UNHELD);
        let faults = [
            (PacketFault::Delay { links: links(), by: by(4_000, 4_000), part: DelayedPart::All, seed: 1 }, 8_000),
            (PacketFault::Partition { links: links(), cut: CutMode::Drop }, 8_000),
            (PacketFault::Delay { links: links(), by: by(1_000, 3_000), part: DelayedPart::All, seed: 2 }, 14_000),
            (PacketFault::Reorder { links: links(), by: by(0, 500), within_connections: false, seed: 3 }, 15_000),
            (PacketFault::Loss { links: links(), probability: 0.3, seed: 4 }, 15_000),
        ];
        for ((what, round_trip_ms), number) in faults.into_iter().zip(1..) {
            let node = NodeName::new(format!("redis-{number}"));
            cluster.on().links.insert(FaultId(number), LinkFault { node, what, pid: 7 });
            assert_eq!(cluster.patience(), Duration::from_millis(round_trip_ms) + UNHELD, "{number} faults");
        }
    }

    /// An agent that is still at work.
    struct Busy;

    impl AgentPort for Busy {
        fn order<'a>(&'a self, _: &'a NodeName, _: Order) -> Doing<'a, Answer> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn packets_may_be_rejected_from_the_order_to_do_so_until_the_heal() {
        let dir = tempfile::tempdir().unwrap();
        let running = fake_engine::all_running(&dir).await;
        let node = NodeName::new("worker-1");
        let cut = Fault::new(Partition { cut: CutMode::Reject }, Duration::from_secs(1));
        let cut = cut.on_links(Direction::Both, Vec::new());
        let cluster = DockerCluster::new(&running, &Busy, 1);
        let injecting = cluster.inject_links(&node, FaultId(1), &cut);
        assert!(timeout(Duration::from_millis(100), injecting).await.is_err());
        assert!(cluster.rejects(), "the agent may have injected it already");
        let cluster = DockerCluster::new(&running, &Busy, 1);
        let what = PacketFault::Partition { links: Links::default(), cut: CutMode::Reject };
        cluster.on().comes(FaultId(1), LinkFault { node: node.clone(), what, pid: 7 });
        assert!(timeout(Duration::from_millis(100), cluster.heal_links(&node, FaultId(1))).await.is_err());
        assert!(cluster.rejects(), "the agent may not have healed it yet");
    }

    #[test]
    fn a_new_process_gets_every_change_but_the_jump_of_a_monotonic_clock() {
        let (jump, drift) = (ClockChange::JumpMs(500), ClockChange::DriftPpm(-200_000));
        let strobe = |by_ms| ClockChange::Strobe { by_ms, every_ms: 50 };
        for (clock, change, expected) in [
            (WhichClock::Wall, jump, vec![(WhichClock::Wall, jump)]),
            (WhichClock::Both, jump, vec![(WhichClock::Wall, jump)]),
            (WhichClock::Monotonic, jump, Vec::new()),
            (WhichClock::Monotonic, drift, vec![(WhichClock::Monotonic, drift)]),
            (WhichClock::Both, drift, vec![(WhichClock::Both, drift)]),
            (WhichClock::Wall, strobe(500), vec![(WhichClock::Wall, strobe(500))]),
        ] {
            let on = still_on(Vec::new(), clock, change);
            assert_eq!(on, expected, "{clock:?} {change:?}");
            let healed = match change {
                ClockChange::JumpMs(by) => ClockChange::JumpMs(-by),
                ClockChange::DriftPpm(_) => ClockChange::DriftPpm(0),
                ClockChange::Strobe { .. } => strobe(0),
            };
            assert!(still_on(on, clock, healed).is_empty(), "{clock:?} {change:?}");
        }
    }

    #[test]
    fn packets_draw_from_the_seed_of_the_plan() {
        assert_ne!(packet_seed(1, FaultId(1)), packet_seed(2, FaultId(1)));
        assert_ne!(packet_seed(1, FaultId(1)), packet_seed(1, FaultId(2)));
        assert_eq!(packet_seed(7, FaultId(3)), packet_seed(7, FaultId(3)));
    }
}
