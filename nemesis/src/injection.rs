//! The injection of one fault, and the steps that all kinds of faults share.

use std::time::Duration;

use history::{ClientId, Event, FaultPhase, Harm, HoldId, NodeName, Plan, Point, Stamp, Step};

use crate::{Cluster, ClusterError, Control, LiveView, waits::ActiveWait};

/// How long a target may take to prove a fault or its heal. An engine's call returns up to 1.5 s late.
pub(crate) const PROOF: Duration = Duration::from_secs(5);
/// The time between two checks whether a server answers.
const LOOK: Duration = Duration::from_millis(100);

/// The effect of other faults on the packets between two nodes; the greatest one, if there are several faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// No other fault hits the packets.
    None,
    /// Packets may be late, and none is lost: a probe waits longer than the delays that are on when it begins.
    Delays,
    /// Packets may be lost.
    Drops,
}

/// One fault that is being injected, with its target and its ports.
pub(crate) struct Injection<'a> {
    pub cluster: &'a dyn Cluster,
    pub control: &'a dyn Control,
    pub live_view: &'a LiveView,
    pub plan: &'a Plan,
    pub step: &'a Step,
    pub node: NodeName,
    /// True if the target is a server of the backend. Servers record no events.
    pub is_server: bool,
    /// The hold that the fault targets.
    pub hold: Option<HoldId>,
    /// The client that waits for the fault at a protocol point.
    pub waiting: Option<(ClientId, Point)>,
    /// The planned wait during which the fault happens.
    pub gate: Option<&'a ActiveWait<'a>>,
}

impl Injection<'_> {
    /// Has the agent stamp a phase of the fault.
    pub async fn stamp(&self, phase: FaultPhase) -> Result<Stamp, ClusterError> {
        let (fault, kind, node) = (self.step.id, self.step.fault.kind(), self.node.clone());
        if let (FaultPhase::Injected, Some(gate)) = (&phase, self.gate) {
            gate.is_on();
        }
        self.control.stamp(Event::Fault { fault, kind, node, phase }).await
    }

    pub async fn requested(&self) -> Result<Stamp, ClusterError> {
        let asked_ns = self.step.fault.lasting.as_nanos() as u64;
        self.stamp(FaultPhase::Requested { asked_ns, hold: self.hold }).await
    }

    /// Records that the fault missed its target if the targeted hold had ended before the fault was effective at
    /// `from`.
    pub async fn missed(&self, from: Stamp) -> Result<(), ClusterError> {
        let ended = self.live_view.look(|view| view.end_of_target(self.step.id));
        // The last event of a killed process may be the release of the hold: equal stamps mean a miss too.
        if ended.is_some_and(|at| at <= from) {
            self.stamp(FaultPhase::MissedTarget).await?;
        }
        Ok(())
    }

    /// Releases the client that waits at its point. After this stamp only the fault delays the client.
    pub async fn let_go(&self) -> Result<(), ClusterError> {
        if let Some((client, point)) = self.waiting {
            self.control.stamp(Event::PointReleased { client, point }).await?;
            self.control.let_go(client).await?;
        }
        Ok(())
    }

    /// Waits for an event of the target, one of our processes, that is newer than the heal.
    pub async fn prove_alive(&self, healed: Stamp) -> Result<(), ClusterError> {
        let runs = |view: &crate::View| view.life(&self.node).filter(|(_, _, last)| *last > healed).map(drop);
        let alive = self.live_view.within(self.control, PROOF, runs).await.is_some();
        if alive && self.cluster.is_running(&self.node).await? && !self.cluster.is_frozen(&self.node).await? {
            self.stamp(FaultPhase::HealProved).await?;
        }
        Ok(())
    }

    /// Waits until the target, a server, answers again, which proves the heal.
    pub async fn prove_answers(&self) -> Result<(), ClusterError> {
        if self.answers_again().await? {
            self.stamp(FaultPhase::HealProved).await?;
        }
        Ok(())
    }

    /// Waits until the target, a server, answers again. Returns false if it does not.
    pub async fn answers_again(&self) -> Result<bool, ClusterError> {
        for _ in 0..PROOF.as_millis() / LOOK.as_millis() {
            if self.cluster.answers(&self.node).await? {
                return Ok(true);
            }
            self.control.sleep(LOOK).await?;
        }
        Ok(false)
    }

    /// Returns the effect of the other faults that are on now on packets between these two nodes. A probe that may show
    /// this effect proves neither this fault nor its heal.
    pub fn disturbance(&self, from: &NodeName, to: &NodeName) -> Disturbance {
        self.live_view.look(|view| {
            let others = view.faults_on().filter(|(id, _)| *id != self.step.id);
            // A fault that nobody planned may never end, so nothing waits for its end.
            let planned = others.filter_map(|(id, node)| Some((&self.plan.step(id)?.fault, node)));
            let disturbances = planned.map(|(fault, node)| match fault.kind().harm() {
                Harm::Kills(_) if node == from || node == to => Disturbance::Drops,
                Harm::DropsPackets if fault.hits(node, from, to) => Disturbance::Drops,
                Harm::DelaysPackets if fault.hits(node, from, to) => Disturbance::Delays,
                _ => Disturbance::None,
            });
            disturbances.max().unwrap_or(Disturbance::None)
        })
    }

    /// Returns whether another fault that is on now may drop or delay packets between these two nodes.
    pub fn is_disturbed_otherwise(&self, from: &NodeName, to: &NodeName) -> bool {
        self.disturbance(from, to) != Disturbance::None
    }
}
