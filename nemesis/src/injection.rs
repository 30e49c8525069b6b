//! The injection of one fault, and the steps that all kinds of faults share.

use std::time::Duration;

use history::{
    ClientId, ClusterKind, Event, FaultId, FaultKind, FaultPhase, Harm, HoldId, NodeName, Plan, Point, Stamp, Step,
};

use crate::{Cluster, ClusterError, Control, LiveView, View, waits::ActiveWait};

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

    /// Returns the effect of the other faults that are on now, planned or not, on a probe between these two nodes. A
    /// probe that may show this effect does not prove this fault.
    pub fn disturbance(&self, one: &NodeName, other: &NodeName) -> Disturbance {
        let greatest = |view: &View| self.disturbances(view, [one, other]).map(|(_, effect)| effect).max();
        self.live_view.look(greatest).unwrap_or(Disturbance::None)
    }

    /// Returns whether another planned fault that is on now may drop or delay packets between these two nodes. A fault
    /// that nobody planned may never end, so no proof of a heal waits for its end.
    pub fn is_disturbed_by_plan(&self, one: &NodeName, other: &NodeName) -> bool {
        let disturbs = |(is_planned, effect): (bool, Disturbance)| is_planned && effect != Disturbance::None;
        self.live_view.look(|view| self.disturbances(view, [one, other]).any(disturbs))
    }

    /// Returns whether another fault that may drop or delay packets between these two nodes has begun since
    /// [`Injection::begun`] was called.
    pub fn has_begun_since(&self, before: usize, ends: [&NodeName; 2]) -> bool {
        let has_effect = |view: &View, (id, kind, node): &(FaultId, FaultKind, NodeName)| {
            *id != self.step.id && self.effect(view, *id, *kind, node, ends) != Disturbance::None
        };
        self.live_view.look(|view| view.begun().iter().skip(before).any(|begun| has_effect(view, begun)))
    }

    /// Returns the number of faults that have begun.
    pub fn begun(&self) -> usize {
        self.live_view.look(|view| view.begun().len())
    }

    /// Lists the other faults that are on now: whether each is planned, and its effect on a probe between these two
    /// nodes.
    fn disturbances<'v>(
        &'v self,
        view: &'v View,
        ends: [&'v NodeName; 2],
    ) -> impl Iterator<Item = (bool, Disturbance)> {
        let others = view.faults_on().filter(move |(id, ..)| *id != self.step.id);
        others.map(move |(id, kind, node)| (self.plan.step(id).is_some(), self.effect(view, id, kind, node, ends)))
    }

    /// Returns the effect of a fault on a probe between these two nodes. On real servers a probe sends a packet and
    /// waits for the answer, so a fault of either direction has an effect. A fault that nobody planned names no links,
    /// and may hit all links of its node.
    fn effect(
        &self,
        view: &View,
        id: FaultId,
        kind: FaultKind,
        node: &NodeName,
        [one, other]: [&NodeName; 2],
    ) -> Disturbance {
        let has_answers = self.plan.cluster == ClusterKind::Docker;
        let is_end = node == one || node == other;
        let hits = match self.plan.step(id) {
            Some(step) => step.fault.hits(node, one, other) || has_answers && step.fault.hits(node, other, one),
            None => is_end,
        };
        match kind.harm() {
            Harm::Kills(_) if is_end => Disturbance::Drops,
            Harm::DropsPackets if hits => Disturbance::Drops,
            // A probe does not wait long enough for a delay that is only just being injected.
            Harm::DelaysPackets if hits && !view.is_injected(id) => Disturbance::Drops,
            Harm::DelaysPackets if hits => Disturbance::Delays,
            _ => Disturbance::None,
        }
    }
}
