//! [`nemesis::Cluster`] on real containers: the engine acts on whole containers, and the agent acts inside them.

use std::{net::SocketAddrV4, time::Duration};

use agent::protocol::{
    ClockAnswer, ClockRequest, ClocksAhead, Connection, Links, MarkerStep, PacketRequest, ProbeAnswer, TargetAnswer,
    TargetRequest,
};
use history::{ClockChange, Fault, FaultId, NodeName, WhichClock, fault::Data};
use nemesis::{AnswerTime, Cluster, ClusterError, Doing};
use tokio::time::Instant;

use crate::{
    faults::{Act, NO_QUOTA, PERIOD_US},
    health, leader,
    reach::{CLOSED_PORT, DockerCluster, LinkFault, REDIS_PORT, SetClocks, TOLD_WITHIN, failed, still_on},
    redis,
};

impl Cluster for DockerCluster<'_> {
    fn freeze<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "freezing" };
            let member = act.member()?;
            let mut control = member.control.lock().await;
            if act.inspect(member).await?.paused == Some(true) {
                return Err(act.failed("it is frozen already"));
            }
            act.toggle(member, &mut control, true).await
        })
    }

    fn thaw<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "thawing" };
            let member = act.member()?;
            let mut control = member.control.lock().await;
            if act.inspect(member).await?.paused != Some(true) {
                return Ok(());
            }
            act.toggle(member, &mut control, false).await
        })
    }

    fn stop<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move { Act { running: self.running, node, doing: "stopping" }.set_stopped(true).await })
    }

    fn resume<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move { Act { running: self.running, node, doing: "resuming it" }.set_stopped(false).await })
    }

    fn slow_down<'a>(&'a self, node: &'a NodeName, percent: u8) -> Doing<'a, ()> {
        let act = Act { running: self.running, node, doing: "slowing it down" };
        Box::pin(async move { act.quota(PERIOD_US * i64::from(percent) / 100).await })
    }

    fn speed_up<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(
            async move { Act { running: self.running, node, doing: "taking its quota off" }.quota(NO_QUOTA).await },
        )
    }

    fn answer_time<'a>(&'a self, node: &'a NodeName) -> Doing<'a, AnswerTime> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "measuring its answer" };
            let member = act.member()?;
            let service = member.server().ok_or_else(|| act.failed("it is no server"))?;
            let asked = Instant::now();
            let passes = health::passes_in_time(self.running.engine(), &member.container(), service).await;
            Ok(match passes {
                Some(true) => AnswerTime::Well(asked.elapsed()),
                Some(false) => AnswerTime::Failed(asked.elapsed()),
                None => AnswerTime::Silent,
            })
        })
    }

    fn held_back<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<Duration>> {
        Box::pin(async move {
            Act { running: self.running, node, doing: "asking how long its quota held it back" }.held_back().await
        })
    }

    fn is_frozen<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "looking whether it is frozen" };
            Ok(act.inspect(act.member()?).await?.paused == Some(true))
        })
    }

    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "killing" };
            let member = act.member()?;
            let mut control = member.control.lock().await;
            act.kill(member, &mut control).await
        })
    }

    fn start<'a>(&'a self, node: &'a NodeName, data: Data) -> Doing<'a, ()> {
        Box::pin(async move {
            self.running.start_node(node, data).await?;
            self.again(node).await
        })
    }

    fn start_with_counters<'a>(&'a self, node: &'a NodeName, of: &'a [NodeName]) -> Doing<'a, ()> {
        Box::pin(async move {
            self.running.start_node_with_counters(node, of).await?;
            self.again(node).await
        })
    }

    fn pending_fsyncs<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<u32>> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "asking what it has not synced yet" };
            let member = act.member()?;
            self.running.pending_fsyncs_of(member).await.map_err(|why| act.failed(why))
        })
    }

    fn leave_marker<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move { Ok(self.marker(node, MarkerStep::Leave).await?.is_some()) })
    }

    fn take_marker<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move { Ok(self.marker(node, MarkerStep::Take).await?.unwrap_or(false)) })
    }

    fn kept_unsynced<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<String>> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "asking what its loss of power has lost" };
            self.running.kept_unsynced(act.member()?).await.map_err(|why| act.failed(why))
        })
    }

    fn is_running<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "looking whether it runs" };
            Ok(act.inspect(act.member()?).await?.running == Some(true))
        })
    }

    fn leader(&self) -> Doing<'_, Option<NodeName>> {
        Box::pin(async move { Ok(leader::ask(self.running).await) })
    }

    fn answers<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        Box::pin(async move {
            let act = Act { running: self.running, node, doing: "asking whether it answers" };
            let member = act.member()?;
            let service = member.server().ok_or_else(|| act.failed("it is no server"))?;
            // The engine refuses to run a command in a container that is frozen or down.
            Ok(health::passes(self.running.engine(), &member.container(), service).await)
        })
    }

    fn inject_links<'a>(&'a self, node: &'a NodeName, fault: FaultId, what: &'a Fault) -> Doing<'a, ()> {
        Box::pin(async move {
            let doing = "injecting a fault of its links";
            let Some(what) = self.packet_fault(fault, what)? else {
                return Err(failed(node, doing, "this is no fault of links"));
            };
            let _alone = self.member(node, doing)?.control.lock().await;
            let inject = |pid| {
                let request = PacketRequest::Inject { fault, pid, what: what.clone() };
                async move { self.packets(node, request).await.map(|()| pid) }
            };
            // A probe meanwhile must tell a packet that is rejected already from a closed port.
            self.on().coming.insert(fault, what.clone());
            // Somebody may restart the node meanwhile.
            let injected = self.with_process(node, doing, inject).await;
            self.on().comes(fault, LinkFault { node: node.clone(), what, pid: injected? });
            Ok(())
        })
    }

    fn heal_links<'a>(&'a self, node: &'a NodeName, fault: FaultId) -> Doing<'a, ()> {
        Box::pin(async move {
            let _alone = self.member(node, "healing a fault of its links")?.control.lock().await;
            let healed = self.packets(node, PacketRequest::Heal { fault }).await;
            self.on().goes(fault);
            healed
        })
    }

    fn latency<'a>(&'a self, from: &'a NodeName, to: &'a NodeName) -> Doing<'a, Option<Duration>> {
        Box::pin(async move {
            let doing = "probing its links";
            if let Some(server) = self.running.own_server(to) {
                return self.round_trip(from, server).await;
            }
            if let Some(server) = self.running.own_server(from) {
                return self.round_trip(to, server).await;
            }
            let (node, to) = (to, SocketAddrV4::new(self.address(to, doing)?, CLOSED_PORT));
            // A node that does not run sends no packet.
            let Some(pid) = self.pid_if_up(from, doing).await? else { return Ok(None) };
            let timeout_ms = u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX);
            let mut processes = vec![(from, pid)];
            let request = if self.rejects() {
                // A connection to a closed port is refused with and without the fault, so the agent opens a port for
                // the probe.
                let Some(at) = self.pid_if_up(node, doing).await? else { return Ok(None) };
                processes.push((node, at));
                TargetRequest::Knock { pid, at, to: *to.ip(), timeout_ms }
            } else {
                TargetRequest::Probe { pid, to, timeout_ms }
            };
            let is_knock = matches!(request, TargetRequest::Knock { .. });
            match self.target_if_up(&processes, request).await? {
                None | Some(TargetAnswer::Probed(ProbeAnswer::Silent)) => Ok(None),
                Some(TargetAnswer::Probed(ProbeAnswer::Refused { .. })) if is_knock => Ok(None),
                Some(TargetAnswer::Probed(
                    ProbeAnswer::Connected { latency_ns } | ProbeAnswer::Refused { latency_ns },
                )) => Ok(Some(Duration::from_nanos(latency_ns))),
                Some(other) => Err(failed(from, doing, format!("the probe of {to} came to {other:?}"))),
            }
        })
    }

    fn stale_connections<'a>(&'a self, node: &'a NodeName, peers: &'a [NodeName], reset: bool) -> Doing<'a, u32> {
        Box::pin(async move {
            let doing = "looking at its connections";
            // The harness cannot look into a server that exists already.
            if self.running.own_server(node).is_some() {
                return Ok(0);
            }
            // A node that does not run has no connections.
            let Some(pid) = self.pid_if_up(node, doing).await? else { return Ok(0) };
            let peers = peers.iter().map(|peer| self.address(peer, doing)).collect::<Result<_, _>>()?;
            let links = Links { peers, ..Links::default() };
            let request = TargetRequest::Connections { pid, links: links.clone() };
            let asked = self.target_if_up(&[(node, pid)], request).await?;
            let Some(TargetAnswer::Connections(found)) = asked else { return Ok(0) };
            let stale: Vec<&Connection> = found.iter().filter(|c| c.is_stale()).collect();
            if reset && !stale.is_empty() {
                self.target_if_up(&[(node, pid)], TargetRequest::Reset { pid, links }).await?;
            }
            Ok(u32::try_from(stale.len()).unwrap_or(u32::MAX))
        })
    }

    fn set_clock<'a>(&'a self, node: &'a NodeName, clock: WhichClock, change: ClockChange) -> Doing<'a, ()> {
        Box::pin(async move {
            let doing = "setting its clock";
            let _alone = self.member(node, doing)?.control.lock().await;
            // A heal changes a clock back, so a process that has just been started must have the fault first.
            self.on().touched.insert(node.clone());
            let change_it = |pid| async move {
                self.change_clock(node, pid, clock, change).await?;
                Ok(pid)
            };
            let pid = self.with_process(node, doing, change_it).await?;
            let mut on = self.on();
            let former = on.clocks.remove(node).map(|set| set.changes).unwrap_or_default();
            on.clocks.insert(node.clone(), SetClocks { changes: still_on(former, clock, change), pid });
            Ok(())
        })
    }

    fn remove_clock_patch<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        Box::pin(async move {
            let doing = "putting the code of its clocks back";
            if self.on().clocks.get(node).is_some_and(|set| !set.changes.is_empty()) {
                return Ok(());
            }
            let _alone = self.member(node, doing)?.control.lock().await;
            let put_back = |pid| async move {
                match self.clocks(node, ClockRequest::Ahead { pid }).await? {
                    // The offset of a drift or of a monotonic clock stays, so the changed code stays too.
                    ClockAnswer::Ahead(ahead) if ahead != ClocksAhead::default() => Ok(()),
                    ClockAnswer::Ahead(_) => self.clocks(node, ClockRequest::Heal { pid }).await.map(drop),
                    other => Err(failed(node, doing, format!("the agent answered {other:?}"))),
                }
            };
            self.with_process(node, doing, put_back).await
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
                // The server may use another port or a password. Then the memory alone proves the fault.
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
            let _alone = self.member(node, doing)?.control.lock().await;
            let read = |pid| self.clocks(node, ClockRequest::Ahead { pid });
            match self.with_process(node, doing, read).await? {
                ClockAnswer::Ahead(ahead) if clock.is_wall() => Ok(ahead.wall_ns),
                ClockAnswer::Ahead(ahead) => Ok(ahead.monotonic_ns),
                other => Err(failed(node, doing, format!("the agent answered {other:?}"))),
            }
        })
    }
}

impl DockerCluster<'_> {
    /// Measures the time of a new connection from `node` to a server that exists already; none, if there is no
    /// connection. The harness cannot probe from the server's end, so one probe stands for both directions: a fault of
    /// either direction shows in the time until the connection is there.
    ///
    /// The probe uses the server's own port, because a firewall may drop packets to any other.
    async fn round_trip(&self, node: &NodeName, server: SocketAddrV4) -> Result<Option<Duration>, ClusterError> {
        let doing = "probing its links to a server of your own";
        let Some(pid) = self.pid_if_up(node, doing).await? else { return Ok(None) };
        let timeout_ms = u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX);
        let probe = TargetRequest::Probe { pid, to: server, timeout_ms };
        match self.target_if_up(&[(node, pid)], probe).await? {
            Some(TargetAnswer::Probed(ProbeAnswer::Connected { latency_ns })) => {
                Ok(Some(Duration::from_nanos(latency_ns)))
            }
            // A fault that rejects packets, or a server that is down: no packet of the client reaches it.
            None | Some(TargetAnswer::Probed(ProbeAnswer::Silent | ProbeAnswer::Refused { .. })) => Ok(None),
            Some(other) => Err(failed(node, doing, format!("the probe of {server} came to {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use agent::protocol::{Answer, Order, PacketFault};
    use history::CutMode;
    use parking_lot::Mutex;

    use super::*;
    use crate::{fake_engine, reach::AgentPort, running::Running};

    const LATENCY_NS: u64 = 5;
    const CONNECTED: ProbeAnswer = ProbeAnswer::Connected { latency_ns: LATENCY_NS };
    const REFUSED: ProbeAnswer = ProbeAnswer::Refused { latency_ns: LATENCY_NS };

    /// An agent that finds this at every target, and clocks with these offsets. Notes the orders.
    struct Agent {
        found: TargetAnswer,
        ahead: ClocksAhead,
        orders: Mutex<Vec<Order>>,
    }

    impl Agent {
        fn new(found: TargetAnswer) -> Agent {
            Agent { found, ahead: ClocksAhead::default(), orders: Mutex::default() }
        }

        fn with_clocks(ahead: ClocksAhead) -> Agent {
            Agent { ahead, ..Agent::new(TargetAnswer::Connections(Vec::new())) }
        }
    }

    impl AgentPort for Agent {
        fn order<'a>(&'a self, _: &'a NodeName, order: Order) -> Doing<'a, Answer> {
            let answer = match &order {
                Order::Target(_) => Answer::Target(self.found.clone()),
                Order::Clocks(ClockRequest::Ahead { .. }) => Answer::Clocks(ClockAnswer::Ahead(self.ahead)),
                Order::Clocks(_) => Answer::Clocks(ClockAnswer::Done { pids: vec![7] }),
                Order::Packets(_) => unreachable!("{order:?}"),
            };
            self.orders.lock().push(order);
            Box::pin(std::future::ready(Ok(answer)))
        }
    }

    /// A cluster with worker-1, which runs as process 7, and with redis-1, a server that exists already.
    async fn running(dir: &tempfile::TempDir) -> Running {
        let state = fake_engine::json(r#"{"State":{"Running":true,"Pid":7}}"#);
        let engine = fake_engine::start(dir, move |_| (Duration::ZERO, state.clone())).await;
        fake_engine::running(&engine).await
    }

    #[tokio::test]
    async fn a_refused_probe_came_through_and_a_refused_knock_did_not() {
        let dir = tempfile::tempdir().unwrap();
        let (running, node) = (running(&dir).await, NodeName::new("worker-1"));
        for (cut, answer, came_through) in [
            (None, REFUSED, true),
            (None, CONNECTED, true),
            (None, ProbeAnswer::Silent, false),
            (Some(CutMode::Drop), REFUSED, true),
            (Some(CutMode::Reject), REFUSED, false),
            (Some(CutMode::Reject), CONNECTED, true),
            (Some(CutMode::Reject), ProbeAnswer::Silent, false),
        ] {
            let agent = Agent::new(TargetAnswer::Probed(answer.clone()));
            let cluster = DockerCluster::new(&running, &agent, 1);
            if let Some(cut) = cut {
                let what = PacketFault::Partition { links: Links::default(), cut };
                cluster.on().links.insert(FaultId(1), LinkFault { node: node.clone(), what, pid: 7 });
            }
            let latency = cluster.latency(&node, &node).await.unwrap();
            assert_eq!(latency, came_through.then_some(Duration::from_nanos(LATENCY_NS)), "{cut:?} {answer:?}");
            let orders = agent.orders.lock();
            let is_knock = matches!(orders[..], [Order::Target(TargetRequest::Knock { pid: 7, at: 7, .. })]);
            assert_eq!(is_knock, cut == Some(CutMode::Reject), "{orders:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_exists_already_is_not_reached_if_it_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let running = running(&dir).await;
        let [worker, server] = ["worker-1", "redis-1"].map(NodeName::new);
        for (answer, came_through) in [(CONNECTED, true), (REFUSED, false), (ProbeAnswer::Silent, false)] {
            for (from, to) in [(&worker, &server), (&server, &worker)] {
                let agent = Agent::new(TargetAnswer::Probed(answer.clone()));
                let cluster = DockerCluster::new(&running, &agent, 1);
                let latency = cluster.latency(from, to).await.unwrap();
                assert_eq!(latency, came_through.then_some(Duration::from_nanos(LATENCY_NS)), "{from}: {answer:?}");
                let timeout_ms = cluster.patience().as_millis() as u64;
                let probe = TargetRequest::Probe { pid: 7, to: "10.0.0.1:6379".parse().unwrap(), timeout_ms };
                assert_eq!(*agent.orders.lock(), [Order::Target(probe)]);
            }
        }
    }

    #[tokio::test]
    async fn only_connections_that_wait_for_a_retransmission_are_counted_and_reset() {
        let dir = tempfile::tempdir().unwrap();
        let (running, node) = (running(&dir).await, NodeName::new("worker-1"));
        let connection = |retransmits: u8| Connection {
            local: "10.0.0.2:50000".parse().unwrap(),
            peer: "10.0.0.1:6379".parse().unwrap(),
            retransmits,
            next_retransmit_ms: None,
            unacknowledged_bytes: 0,
        };
        for (retransmits, reset, count, is_reset) in [
            (vec![0, 2, 0, 1, 0], true, 2, true),
            (vec![0, 2, 0, 1, 0], false, 2, false),
            (vec![0, 0], true, 0, false),
            (Vec::new(), true, 0, false),
        ] {
            let found = retransmits.iter().copied().map(connection).collect();
            let agent = Agent::new(TargetAnswer::Connections(found));
            let cluster = DockerCluster::new(&running, &agent, 1);
            let stale = cluster.stale_connections(&node, &["redis-1".into()], reset).await.unwrap();
            assert_eq!(stale, count, "{retransmits:?}");
            let links = Links { peers: vec!["10.0.0.1".parse().unwrap()], ..Links::default() };
            let looks = TargetRequest::Connections { pid: 7, links: links.clone() };
            let resets = is_reset.then_some(TargetRequest::Reset { pid: 7, links });
            let orders: Vec<Order> = [looks].into_iter().chain(resets).map(Order::Target).collect();
            assert_eq!(*agent.orders.lock(), orders, "{retransmits:?}, {reset}");
        }
    }

    #[tokio::test]
    async fn the_code_of_a_clock_that_is_not_right_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (running, node) = (running(&dir).await, NodeName::new("worker-1"));
        let jump = (WhichClock::Wall, ClockChange::JumpMs(500));
        for (offsets, on, is_put_back) in [
            ([0, 0, 0], None, true),
            ([-1, 0, 0], None, false),
            ([0, 1, 0], None, false),
            ([0, 0, 1], None, false),
            ([0, 0, 0], Some(jump), false),
        ] {
            let [wall_ns, monotonic_ns, boottime_ns] = offsets;
            let agent = Agent::with_clocks(ClocksAhead { wall_ns, monotonic_ns, boottime_ns });
            let cluster = DockerCluster::new(&running, &agent, 1);
            let set = SetClocks { changes: on.into_iter().collect(), pid: 7 };
            cluster.on().clocks.insert(node.clone(), set);
            cluster.remove_clock_patch(&node).await.unwrap();
            let heal = Order::Clocks(ClockRequest::Heal { pid: 7 });
            assert_eq!(agent.orders.lock().contains(&heal), is_put_back, "{offsets:?} {on:?}");
        }
    }

    #[tokio::test]
    async fn the_clocks_of_a_node_whose_fault_is_healed_are_restored_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (running, node) = (running(&dir).await, NodeName::new("worker-1"));
        let agent = Agent::with_clocks(ClocksAhead::default());
        let cluster = DockerCluster::new(&running, &agent, 1);
        cluster.restore_clocks().await.unwrap();
        assert!(agent.orders.lock().is_empty(), "no clock was changed");
        for by in [500, -500] {
            cluster.set_clock(&node, WhichClock::Wall, ClockChange::JumpMs(by)).await.unwrap();
        }
        assert!(cluster.on().clocks[&node].changes.is_empty());
        cluster.restore_clocks().await.unwrap();
        assert_eq!(agent.orders.lock().last(), Some(&Order::Clocks(ClockRequest::Restore { pid: 7 })));
    }
}
