//! The controller's handle for the agent: commands go to it, stamps and answers come back.

use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
    time::Duration,
};

use agent::{
    net::CONNECTIONS_MAX,
    protocol::{Answer, Order, TargetRequest},
};
use anyhow::bail;
use compose::{AgentPort, Running};
use history::{Event, NodeName, Record, Stamp};
use nemesis::{ClusterError, Doing};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{process::AgentCommand, standard_input::send};

/// The time in which the agent must stamp an event.
const STAMPED: Duration = Duration::from_secs(10);
/// The time in which the agent must carry out an order, without the time for which a probe waits for packets.
const OBEYED: Duration = Duration::from_secs(60);

/// The agent of a running cluster.
pub struct Agent<'a> {
    cluster: &'a Running,
    node: NodeName,
    pending: Mutex<Pending>,
}

/// Commands that the agent has not answered.
#[derive(Default)]
struct Pending {
    /// The agent stamps events in the order of the commands.
    stamps: VecDeque<oneshot::Sender<Stamp>>,
    /// By the order's number.
    orders: BTreeMap<u64, oneshot::Sender<Result<serde_json::Value, String>>>,
    last: u64,
}

impl<'a> Agent<'a> {
    /// The agent of `cluster`.
    pub fn new(cluster: &'a Running) -> Agent<'a> {
        Agent { cluster, node: NodeName::new("agent"), pending: Mutex::default() }
    }

    fn send(&self, command: &AgentCommand) -> Result<(), ClusterError> {
        send(self.cluster, &self.node, command)
    }

    fn failed(&self, doing: &'static str, why: impl Into<String>) -> ClusterError {
        ClusterError { node: self.node.clone(), doing, why: why.into() }
    }

    /// Tells the agent the address of each node, so that it names nodes in its reports.
    pub fn know(&self, nodes: Vec<(NodeName, Ipv4Addr)>) -> Result<(), ClusterError> {
        self.send(&AgentCommand::Know { nodes })
    }

    /// Lets the agent stamp `event`, and waits for the stamp.
    pub async fn stamp(&self, event: Event) -> Result<Stamp, ClusterError> {
        let (stamped, stamp) = oneshot::channel();
        {
            // One lock for both, so that the stamps come in the order of the commands.
            let mut pending = self.pending.lock();
            self.send(&AgentCommand::Stamp { event: Box::new(event) })?;
            pending.stamps.push_back(stamped);
        }
        let failed = |why: &str| self.failed("stamping an event", why);
        match tokio::time::timeout(STAMPED, stamp).await {
            Ok(Ok(stamp)) => Ok(stamp),
            Ok(Err(_)) => Err(failed("the agent has ended")),
            Err(_) => Err(failed(&format!("no answer within {} s", STAMPED.as_secs()))),
        }
    }

    /// Lets the agent finish. The agent exits when its standard input ends.
    pub fn finish(&self) -> Result<(), ClusterError> {
        self.send(&AgentCommand::Finish)
    }

    /// Takes an event that the agent has reported, and hands stamp or answer to the command that waits.
    pub fn see(&self, record: &Record) -> anyhow::Result<()> {
        self.pending.lock().see(record)
    }
}

impl Pending {
    fn see(&mut self, record: &Record) -> anyhow::Result<()> {
        match &record.event {
            Event::Fault { .. } | Event::PointReleased { .. } => {
                let Some(waiting) = self.stamps.pop_front() else {
                    bail!("the agent stamped an event without a command to do so")
                };
                // The nemesis may have been stopped meanwhile, so nobody need wait.
                let _ = waiting.send(record.at);
            }
            Event::OrderDone { order, answer, failed } => {
                let nothing = || "the agent gave neither an answer nor a reason".to_owned();
                let answer = answer.as_deref().cloned().ok_or_else(|| failed.clone().unwrap_or_else(nothing));
                if let Some(waiting) = self.orders.remove(order) {
                    let _ = waiting.send(answer);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl AgentPort for Agent<'_> {
    fn order<'a>(&'a self, node: &'a NodeName, order: Order) -> Doing<'a, Answer> {
        Box::pin(async move {
            let failed = |why: String| ClusterError { node: node.clone(), doing: "having the agent act on it", why };
            let within = within(&order);
            let (answered, answer) = oneshot::channel();
            let number = {
                let mut pending = self.pending.lock();
                pending.last += 1;
                let number = pending.last;
                pending.orders.insert(number, answered);
                number
            };
            self.send(&AgentCommand::Do { number, node: node.clone(), order: Box::new(order) })?;
            match tokio::time::timeout(within, answer).await {
                Ok(Ok(Ok(answer))) => serde_json::from_value(answer)
                    .map_err(|e| failed(format!("this version does not know the agent's answer: {e}"))),
                Ok(Ok(Err(why))) => Err(failed(why)),
                Ok(Err(_)) => Err(failed("the agent has ended".into())),
                Err(_) => Err(failed(format!("no answer within {} s", within.as_secs()))),
            }
        })
    }
}

/// Returns the time in which the agent must carry out `order`. A probe waits as long as packets are delayed, which may
/// be minutes.
fn within(order: &Order) -> Duration {
    match order {
        Order::Target(TargetRequest::Probe { timeout_ms, .. } | TargetRequest::Knock { timeout_ms, .. }) => {
            OBEYED + Duration::from_millis(*timeout_ms) * CONNECTIONS_MAX
        }
        _ => OBEYED,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use history::{FaultId, FaultKind, FaultPhase};

    use super::*;

    #[test]
    fn each_command_gets_the_stamp_of_its_own_event() {
        let mut pending = Pending::default();
        let [(first, mut stamp_of_first), (second, mut stamp_of_second)] = [oneshot::channel(), oneshot::channel()];
        pending.stamps.extend([first, second]);
        let mut stamped = |at| {
            let (kind, node) = (FaultKind::Pause, "worker-1".into());
            let event = Event::Fault { fault: FaultId(1), kind, node, phase: FaultPhase::Injected };
            pending.see(&Record { seq: 0, process: "agent".into(), n: 0, at: Stamp(at), event })
        };
        stamped(7).unwrap();
        stamped(8).unwrap();
        assert_eq!((stamp_of_first.try_recv(), stamp_of_second.try_recv()), (Ok(Stamp(7)), Ok(Stamp(8))));
        assert!(stamped(9).is_err(), "nobody has asked for a third stamp");
    }

    #[test]
    fn each_order_gets_its_own_answer() {
        let mut pending = Pending::default();
        let [(first, mut of_first), (second, mut of_second), (third, mut of_third)] =
            [oneshot::channel(), oneshot::channel(), oneshot::channel()];
        pending.orders.extend([(1, first), (2, second), (3, third)]);
        let mut done = |order, answer: Option<serde_json::Value>, failed: Option<&str>| {
            let event = Event::OrderDone { order, answer: answer.map(Box::new), failed: failed.map(str::to_owned) };
            pending.see(&Record { seq: 0, process: "agent".into(), n: 0, at: Stamp(1), event }).unwrap();
        };
        // Nobody waits for the answer to an order that was given up.
        done(7, Some("of another order".into()), None);
        done(2, None, Some("no such process"));
        assert_eq!(of_second.try_recv(), Ok(Err("no such process".to_owned())));
        done(3, None, None);
        assert_eq!(of_third.try_recv(), Ok(Err("the agent gave neither an answer nor a reason".to_owned())));
        assert!(of_first.try_recv().is_err(), "it has no answer yet");
        done(1, Some("packets".into()), None);
        assert_eq!(of_first.try_recv(), Ok(Ok("packets".into())));
    }

    #[test]
    fn an_order_to_probe_may_take_as_long_as_its_connections() {
        let to = Ipv4Addr::new(172, 20, 0, 2);
        for timeout_ms in [400, 120_400, u64::MAX] {
            let connections = Duration::from_millis(timeout_ms) * CONNECTIONS_MAX;
            let probe = TargetRequest::Probe { pid: 7, to: SocketAddrV4::new(to, 1), timeout_ms };
            let knock = TargetRequest::Knock { pid: 7, at: 8, to, timeout_ms };
            for request in [probe, knock] {
                assert!(within(&Order::Target(request)) > connections, "{timeout_ms} ms");
            }
        }
        assert_eq!(within(&Order::Target(TargetRequest::Abilities { pid: 7 })), OBEYED);
    }
}
