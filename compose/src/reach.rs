//! Faults that reach into containers: the agent is told what to do to which process, and measures what came of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agent::protocol::{
    self, Answer, ClockAnswer, ClockRequest, ClocksAhead, Connection, DelayRange, FaultNumber, HeldPart, Links, Order,
    PacketFault, PacketRequest, ProbeAnswer, TargetAnswer, TargetRequest, Way,
};
use history::{ClockChange, Cut, Direction, Fault, FaultId, NodeName, Range, WhichClock};
use nemesis::{Cluster, ClusterError, Data, Doing};

use crate::{
    redis,
    running::{Member, Running},
};

/// A port on which nobody listens: the kernel there answers at once, whatever its processes do.
const CLOSED_PORT: u16 = 1;
/// How long a packet may take that no fault holds up.
const UNHELD: Duration = Duration::from_millis(400);

/// Redis tells the time when it is asked for it, on this port.
const REDIS_PORT: u16 = 6379;
/// How long they may take.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Takes an order to the agent, and brings its answer back.
pub trait Hand: Send + Sync {
    /// What the agent answers to an order about `node`, or why it could not carry it out.
    fn order<'a>(&'a self, node: &'a NodeName, order: Order) -> Doing<'a, Answer>;
}

/// A running cluster whose agent may reach into its containers.
pub struct Reached<'a> {
    running: &'a Running,
    hand: &'a dyn Hand,
    on: Mutex<On>,
}

/// What is on, to be put on again where a node gets another container, or its container another network and other processes.
#[derive(Default)]
struct On {
    links: BTreeMap<FaultId, (NodeName, PacketFault)>,
    /// What the clocks of a node were moved by and still are.
    clocks: BTreeMap<NodeName, Vec<(WhichClock, ClockChange)>>,
    /// Where a clock was ever moved.
    touched: BTreeSet<NodeName>,
}

impl<'a> Reached<'a> {
    /// The cluster `running`, whose agent is reached by `hand`.
    pub fn new(running: &'a Running, hand: &'a dyn Hand) -> Self {
        Self { running, hand, on: Mutex::default() }
    }

    fn on(&self) -> MutexGuard<'_, On> {
        self.on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self, node: &NodeName, doing: &'static str) -> Result<&'a Member, ClusterError> {
        self.running.member(node).map_err(|error| failed(node, doing, error.to_string()))
    }

    async fn pid_if_up(&self, node: &NodeName, doing: &'static str) -> Result<Option<i32>, ClusterError> {
        let member = self.member(node, doing)?;
        self.running.pid(member).await.map_err(|why| failed(node, doing, why))
    }

    pub(crate) async fn pid(&self, node: &NodeName, doing: &'static str) -> Result<i32, ClusterError> {
        self.pid_if_up(node, doing).await?.ok_or_else(|| failed(node, doing, "it has no process"))
    }

    fn address(&self, node: &NodeName, doing: &'static str) -> Result<Ipv4Addr, ClusterError> {
        Ok(self.member(node, doing)?.recipe.address)
    }

    async fn packets(&self, node: &NodeName, request: PacketRequest) -> Result<(), ClusterError> {
        self.hand.order(node, Order::Packets(request)).await.map(drop)
    }

    pub(crate) async fn clocks(&self, node: &NodeName, request: ClockRequest) -> Result<ClockAnswer, ClusterError> {
        match self.hand.order(node, Order::Clocks(request)).await? {
            Answer::Clocks(answer) => Ok(answer),
            other => Err(failed(node, "asking the agent about clocks", format!("it answered {other:?}"))),
        }
    }

    pub(crate) async fn target(&self, node: &NodeName, request: TargetRequest) -> Result<TargetAnswer, ClusterError> {
        match self.hand.order(node, Order::Target(request)).await? {
            Answer::Target(answer) => Ok(answer),
            other => Err(failed(node, "asking the agent about packets", format!("it answered {other:?}"))),
        }
    }

    /// What a fault of links does, in the words of the agent.
    fn packet_fault(&self, fault: FaultId, what: &Fault) -> Result<Option<PacketFault>, ClusterError> {
        let links = |direction: Direction, from: &[NodeName]| {
            let peers = from.iter().map(|peer| self.address(peer, "finding its address")).collect::<Result<_, _>>()?;
            let way = match direction {
                Direction::Both => Way::Both,
                Direction::Out => Way::Out,
                Direction::In => Way::In,
            };
            Ok(Links { peers, port: None, way })
        };
        let seed = u64::from(fault.0);
        Ok(Some(match what {
            Fault::Partition { direction, from, cut, .. } => {
                let cut = match cut {
                    Cut::Drop => protocol::Cut::Drop,
                    Cut::Reject => protocol::Cut::Reject,
                };
                PacketFault::Partition { links: links(*direction, from)?, cut }
            }
            Fault::Delay { by, direction, from, .. } => {
                let (links, by) = (links(*direction, from)?, range(by.range()));
                PacketFault::Delay { links, by, held: HeldPart::All, seed }
            }
            Fault::Loss { percent, direction, from, .. } => {
                PacketFault::Loss { links: links(*direction, from)?, probability: f64::from(*percent) / 100.0, seed }
            }
            Fault::Reorder { by, direction, from, .. } => {
                let (links, by) = (links(*direction, from)?, range(*by));
                PacketFault::Reorder { links, by, within_connections: false, seed }
            }
            _ => return Ok(None),
        }))
    }

    /// Whether a partition that tells the sender is on somewhere.
    fn rejects(&self) -> bool {
        let is_reject = |what: &PacketFault| matches!(what, PacketFault::Partition { cut: protocol::Cut::Reject, .. });
        self.on().links.values().any(|(_, what)| is_reject(what))
    }

    /// How long the answer to a probe may be on its way, there and back.
    fn patience(&self) -> Duration {
        let on = self.on();
        let longest_us = on.links.values().map(|(_, what)| match what {
            PacketFault::Delay { by, .. } | PacketFault::Reorder { by, .. } => by.to_us,
            PacketFault::Partition { .. } | PacketFault::Loss { .. } => 0,
        });
        Duration::from_micros(longest_us.sum()) * 2 + UNHELD
    }

    /// Puts on again what a new start of `node` has taken off.
    async fn again(&self, node: &NodeName) -> Result<(), ClusterError> {
        let (links, clocks) = {
            let on = self.on();
            let links: Vec<_> = (on.links.iter().filter(|(_, (target, _))| target == node))
                .map(|(fault, (_, what))| (FaultNumber(fault.0), what.clone()))
                .collect();
            (links, on.clocks.get(node).cloned().unwrap_or_default())
        };
        if links.is_empty() && clocks.is_empty() {
            return Ok(());
        }
        let pid = self.pid(node, "finding its new process").await?;
        for (fault, what) in links {
            self.packets(node, PacketRequest::Inject { fault, pid, what }).await?;
        }
        for (clock, change) in clocks {
            self.clocks(node, ClockRequest::Move { pid, clock: which(clock), change: by(change) }).await?;
        }
        Ok(())
    }
}

impl Reached<'_> {
    /// Puts the original code back wherever a clock was moved in this run, also where a monotonic clock is ahead, which goes back by that: for servers
    /// that outlive the run.
    ///
    /// # Errors
    /// If the agent cannot; the rest is left as it is.
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

fn failed(node: &NodeName, doing: &'static str, why: impl Into<String>) -> ClusterError {
    ClusterError { node: node.clone(), doing, why: why.into() }
}

fn range(by: Range) -> DelayRange {
    let micros = |of: Duration| u64::try_from(of.as_micros()).unwrap_or(u64::MAX);
    DelayRange { from_us: micros(by.from), to_us: micros(by.to) }
}

fn which(clock: WhichClock) -> protocol::WhichClock {
    match clock {
        WhichClock::Wall => protocol::WhichClock::Wall,
        WhichClock::Monotonic => protocol::WhichClock::Monotonic,
        WhichClock::Both => protocol::WhichClock::Both,
    }
}

fn by(change: ClockChange) -> protocol::ClockChange {
    match change {
        ClockChange::JumpMs(by) => protocol::ClockChange::JumpNs(by.saturating_mul(1_000_000)),
        ClockChange::DriftPpm(by) => protocol::ClockChange::DriftPpm(by),
        ClockChange::Strobe { by_ms, every_ms } => protocol::ClockChange::Strobe {
            by_ns: by_ms.saturating_mul(1_000_000),
            period_ns: every_ms.saturating_mul(1_000_000),
        },
    }
}

/// What is still to be done to a process that starts anew: its wall clock is wrong for as long as the fault is on, its monotonic clock starts afresh.
fn still_on(
    mut on: Vec<(WhichClock, ClockChange)>,
    clock: WhichClock,
    change: ClockChange,
) -> Vec<(WhichClock, ClockChange)> {
    if !clock.is_wall() {
        return on;
    }
    match change {
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

impl Cluster for Reached<'_> {
    fn freeze<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.running.freeze(node)
    }

    fn thaw<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.running.thaw(node)
    }

    fn stop<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.running.stop(node)
    }

    fn go_on<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.running.go_on(node)
    }

    fn slow_down<'a>(&'a self, node: &'a NodeName, percent: u8) -> Doing<'a, ()> {
        self.running.slow_down(node, percent)
    }

    fn speed_up<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.running.speed_up(node)
    }

    fn answer_time<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<Duration>> {
        self.running.answer_time(node)
    }

    fn is_frozen<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.running.is_frozen(node)
    }

    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.running.kill(node)
    }

    fn start<'a>(&'a self, node: &'a NodeName, data: Data) -> Doing<'a, ()> {
        Box::pin(async move {
            self.running.start(node, data).await?;
            self.again(node).await
        })
    }

    fn start_with_counters<'a>(&'a self, node: &'a NodeName, of: &'a [NodeName]) -> Doing<'a, ()> {
        Box::pin(async move {
            self.running.start_with_counters(node, of).await?;
            self.again(node).await
        })
    }

    fn pending_fsyncs<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<u32>> {
        self.running.pending_fsyncs(node)
    }

    fn is_running<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.running.is_running(node)
    }

    fn answers<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.running.answers(node)
    }

    fn leader(&self) -> Doing<'_, Option<NodeName>> {
        self.running.leader()
    }

    fn hold_up<'a>(&'a self, node: &'a NodeName, fault: FaultId, what: &'a Fault) -> Doing<'a, ()> {
        Box::pin(async move {
            let doing = "holding up its packets";
            let Some(what) = self.packet_fault(fault, what)? else {
                return Err(failed(node, doing, "this is no fault of links"));
            };
            let pid = self.pid(node, doing).await?;
            self.packets(node, PacketRequest::Inject { fault: FaultNumber(fault.0), pid, what: what.clone() }).await?;
            self.on().links.insert(fault, (node.clone(), what));
            Ok(())
        })
    }

    fn mend<'a>(&'a self, node: &'a NodeName, fault: FaultId) -> Doing<'a, ()> {
        Box::pin(async move {
            self.on().links.remove(&fault);
            self.packets(node, PacketRequest::Heal { fault: FaultNumber(fault.0) }).await
        })
    }

    fn latency<'a>(&'a self, from: &'a NodeName, to: &'a NodeName) -> Doing<'a, Option<Duration>> {
        Box::pin(async move {
            let doing = "probing its links";
            let (node, to) = (to, SocketAddrV4::new(self.address(to, doing)?, CLOSED_PORT));
            // Whoever does not run sends nothing that could get through.
            let Some(pid) = self.pid_if_up(from, doing).await? else { return Ok(None) };
            let timeout_ms = u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX);
            let request = if self.rejects() {
                // A port on which nobody listens is refused in any case.
                let Some(at) = self.pid_if_up(node, doing).await? else { return Ok(None) };
                TargetRequest::Knock { pid, at, to: *to.ip(), timeout_ms }
            } else {
                TargetRequest::Probe { pid, to, timeout_ms }
            };
            let is_knock = matches!(request, TargetRequest::Knock { .. });
            match self.target(from, request).await? {
                TargetAnswer::Probed(ProbeAnswer::Refused { .. }) if is_knock => Ok(None),
                TargetAnswer::Probed(ProbeAnswer::Connected { latency_ns } | ProbeAnswer::Refused { latency_ns }) => {
                    Ok(Some(Duration::from_nanos(latency_ns)))
                }
                TargetAnswer::Probed(ProbeAnswer::Silent) => Ok(None),
                other => Err(failed(from, doing, format!("the probe of {to} came to {other:?}"))),
            }
        })
    }

    fn stale_connections<'a>(&'a self, node: &'a NodeName, reset: bool) -> Doing<'a, u32> {
        Box::pin(async move {
            let pid = self.pid(node, "looking at its connections").await?;
            let all = Links::default();
            let TargetAnswer::Connections(found) =
                self.target(node, TargetRequest::Connections { pid, links: all }).await?
            else {
                return Ok(0);
            };
            let stale: Vec<&Connection> = found.iter().filter(|c| c.retransmits > 0).collect();
            if reset {
                for connection in &stale {
                    let links = Links { peers: vec![*connection.peer.ip()], port: None, way: Way::Both };
                    self.target(node, TargetRequest::Reset { pid, links }).await?;
                }
            }
            Ok(u32::try_from(stale.len()).unwrap_or(u32::MAX))
        })
    }

    fn move_clock<'a>(&'a self, node: &'a NodeName, clock: WhichClock, change: ClockChange) -> Doing<'a, ()> {
        Box::pin(async move {
            let pid = self.pid(node, "moving its clock").await?;
            self.on().touched.insert(node.clone());
            self.clocks(node, ClockRequest::Move { pid, clock: which(clock), change: by(change) }).await?;
            let mut on = self.on();
            let former = on.clocks.remove(node).unwrap_or_default();
            on.clocks.insert(node.clone(), still_on(former, clock, change));
            Ok(())
        })
    }

    fn settle_clocks<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let doing = "putting the code of its clocks back";
            if self.on().clocks.get(node).is_some_and(|on| !on.is_empty()) {
                return Ok(());
            }
            let pid = self.pid(node, doing).await?;
            match self.clocks(node, ClockRequest::Ahead { pid }).await? {
                // What a drift or a monotonic clock has gained stays, and so does the code that shows it.
                ClockAnswer::Ahead(ahead) if ahead != ClocksAhead::default() => Ok(()),
                ClockAnswer::Ahead(_) => self.clocks(node, ClockRequest::Heal { pid }).await.map(drop),
                other => Err(failed(node, doing, format!("the agent answered {other:?}"))),
            }
        })
    }

    fn told_ahead_ns<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<(i64, i64)>> {
        Box::pin(async move {
            let doing = "asking it for the time";
            let is_redis = self.member(node, doing)?.server().is_some_and(|service| service.role == redis::ROLE);
            let Some(pid) = self.pid_if_up(node, doing).await?.filter(|_| is_redis) else { return Ok(None) };
            let timeout_ms = TOLD_WITHIN.as_millis() as u64;
            match self.target(node, TargetRequest::RedisTime { pid, port: REDIS_PORT, timeout_ms }).await {
                Ok(TargetAnswer::RedisTime(told)) => Ok(Some((told.least_ns, told.most_ns))),
                Ok(other) => Err(failed(node, doing, format!("the agent answered {other:?}"))),
                // It may listen elsewhere, or want a password: then its memory has to do.
                Err(error) => {
                    tracing::debug!(%node, %error, "does not tell the time");
                    Ok(None)
                }
            }
        })
    }

    fn clock_ahead_ns<'a>(&'a self, node: &'a NodeName, clock: WhichClock) -> Doing<'a, i64> {
        Box::pin(async move {
            let doing = "reading its clock";
            let pid = self.pid(node, doing).await?;
            match self.clocks(node, ClockRequest::Ahead { pid }).await? {
                ClockAnswer::Ahead(ahead) if clock.is_wall() => Ok(ahead.wall_ns),
                ClockAnswer::Ahead(ahead) => Ok(ahead.monotonic_ns),
                other => Err(failed(node, doing, format!("the agent answered {other:?}"))),
            }
        })
    }
}
