//! What the nemesis asks of the run's own processes, over the engine.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use agent::protocol::{Answer, Order};
use compose::{Hand, Running};
use history::{ClientId, Event, FaultPhase, NodeName, Plan, Point, Stamp};
use nemesis::{ClusterError, Control, Doing};
use serde::Serialize;
use tokio::sync::oneshot;
use workloads::protocol::Command;

use crate::{
    process::AgentCommand,
    pump::{Answers, Stamps},
    report::Terminal,
};

/// How long the agent may take to answer: it has nothing else to do.
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take to carry an order out. A probe waits for as long as packets are held.
const OBEYED: Duration = Duration::from_secs(60);

/// The agent and the workers of a running cluster.
pub struct Processes<'a> {
    pub cluster: &'a Running,
    pub stamps: Stamps,
    pub orders: Answers,
    pub plan: &'a Plan,
    pub terminal: &'a Terminal,
}

impl Processes<'_> {
    /// Sends one command, as one line.
    pub fn send(&self, node: &NodeName, command: &impl Serialize) -> Result<(), ClusterError> {
        let failed = |why| ClusterError { node: node.clone(), doing: "sending a command", why };
        let line = serde_json::to_string(command).map_err(|e| failed(e.to_string()))?;
        self.cluster.send(node, line).map_err(|e| failed(e.to_string()))
    }
}

impl Hand for Processes<'_> {
    fn order<'a>(&'a self, node: &'a NodeName, order: Order) -> Doing<'a, Answer> {
        Box::pin(async move {
            let failed = |why: String| ClusterError { node: node.clone(), doing: "having the agent act on it", why };
            let (number, answer) = self.orders.expect();
            let (node, order) = (node.clone(), Box::new(order));
            self.send(&NodeName::new("agent"), &AgentCommand::Do { number, node, order })?;
            match tokio::time::timeout(OBEYED, answer).await {
                Ok(Ok(Ok(answer))) => serde_json::from_value(answer)
                    .map_err(|e| failed(format!("its answer is none that this version knows: {e}"))),
                Ok(Ok(Err(why))) => Err(failed(why)),
                Ok(Err(_)) => Err(failed("the agent is gone".into())),
                Err(_) => Err(failed(format!("no answer within {} s", OBEYED.as_secs()))),
            }
        })
    }
}

/// What people want to hear of a fault while it goes on.
fn news(event: &Event) -> Option<String> {
    let Event::Fault { fault, kind, node, phase } = event else { return None };
    let what = match phase {
        FaultPhase::Requested { asked_ns, .. } => format!("for {:.1} s", *asked_ns as f64 / 1e9),
        FaultPhase::Unproved { why } => format!("NOT PROVED: {why}"),
        FaultPhase::MissedTarget => "missed its target: the hold had been released".into(),
        _ => return None,
    };
    Some(format!("fault {}: {kind} {node} {what}", fault.0))
}

impl Control for Processes<'_> {
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp> {
        Box::pin(async move {
            let agent = NodeName::new("agent");
            if let Some(news) = news(&event) {
                self.terminal.progress(&news);
            }
            let (stamped, stamp) = oneshot::channel();
            {
                // Asked and queued under one lock: answers come in the order of the questions.
                let mut stamps = Arc::as_ref(&self.stamps).lock().unwrap_or_else(PoisonError::into_inner);
                self.send(&agent, &AgentCommand::Stamp { event: Box::new(event) })?;
                stamps.push_back(stamped);
            }
            let failed = |why: &str| ClusterError { node: agent, doing: "stamping an event", why: why.into() };
            match tokio::time::timeout(ANSWER, stamp).await {
                Ok(Ok(stamp)) => Ok(stamp),
                Ok(Err(_)) => Err(failed("the agent is gone")),
                Err(_) => Err(failed("no answer within 10 s")),
            }
        })
    }

    fn arm<'a>(&'a self, client: ClientId, point: Point, bound: Duration) -> Doing<'a, ()> {
        let bound_ms = bound.as_millis() as u64;
        let sent = self.send(&self.plan.worker_of(client), &Command::Arm { client, point, bound_ms });
        Box::pin(std::future::ready(sent))
    }

    fn let_go<'a>(&'a self, client: ClientId) -> Doing<'a, ()> {
        let sent = self.send(&self.plan.worker_of(client), &Command::Go { client });
        Box::pin(std::future::ready(sent))
    }

    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
        Box::pin(async move {
            tokio::time::sleep(lasting).await;
            Ok(())
        })
    }
}
