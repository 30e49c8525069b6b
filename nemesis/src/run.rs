//! Carrying out a schedule: one fault at a time, each requested, injected, proved, healed, proved healed.

use std::time::Duration;

use futures::{
    StreamExt,
    future::{Either, join, ready, select},
    stream::FuturesUnordered,
};
use history::{ClientId, Event, Fault, FaultPhase, HoldId, NodeName, Plan, Point, Stamp, Step, Target, WaitId, When};
use tokio::sync::watch;

use crate::{
    Cluster, ClusterError, Control, Data, Scene, clock, links, pause, restart, slow, stop,
    turns::Turns,
    waits::{Gate, Gates},
};

/// How long a target may take to show that a fault was on, or is off. An engine's call returns up to 1.5 s late.
pub(crate) const PROOF: Duration = Duration::from_secs(5);
/// Between two looks whether a server answers.
const LOOK: Duration = Duration::from_millis(100);
/// A client waits at its point for the fault that was placed there, and no longer than this.
const AT_POINT: Duration = Duration::from_secs(20);

/// A fault could not be taken back, or the run's own processes could not be reached: the run is over.
#[derive(Debug, thiserror::Error)]
pub enum NemesisError {
    /// A fault.
    #[error("fault {fault} of the schedule: {source}")]
    Fault {
        /// Which step.
        fault: u32,
        /// What went wrong.
        #[source]
        source: ClusterError,
    },
    /// A planned wait of a client.
    #[error("wait {wait} of the plan: {source}")]
    Wait {
        /// Which.
        wait: u32,
        /// What went wrong.
        #[source]
        source: ClusterError,
    },
}

/// Injects the faults of a plan.
pub struct Nemesis<'a> {
    /// What it acts on.
    pub cluster: &'a dyn Cluster,
    /// The run's own processes.
    pub control: &'a dyn Control,
    /// What it sees.
    pub scene: &'a Scene,
    /// Becomes true at the end of the fault phase: no fault begins after it; one that is on is healed as planned.
    pub over: watch::Receiver<bool>,
}

/// One fault on its way: what every kind needs.
pub(crate) struct Site<'a> {
    pub cluster: &'a dyn Cluster,
    pub control: &'a dyn Control,
    pub scene: &'a Scene,
    pub plan: &'a Plan,
    pub step: &'a Step,
    pub node: NodeName,
    /// A server of the backend: it reports nothing by itself.
    pub is_server: bool,
    /// The hold that it is meant for.
    pub hold: Option<HoldId>,
    /// The client that waits for it at a point.
    pub waiting: Option<(ClientId, Point)>,
    /// The planned wait that it goes with.
    pub gate: Option<&'a Gate<'a>>,
}

impl Site<'_> {
    /// Has the agent stamp how far the fault has come.
    pub async fn stamp(&self, phase: FaultPhase) -> Result<Stamp, ClusterError> {
        let (fault, kind, node) = (self.step.id, self.step.fault.kind(), self.node.clone());
        if let (FaultPhase::Injected, Some(gate)) = (&phase, self.gate) {
            gate.is_on();
        }
        self.control.stamp(Event::Fault { fault, kind, node, phase }).await
    }

    pub async fn requested(&self) -> Result<Stamp, ClusterError> {
        let asked_ns = self.step.fault.lasting().as_nanos() as u64;
        self.stamp(FaultPhase::Requested { asked_ns, hold: self.hold }).await
    }

    /// The fault took hold from `from` on: tells whether its hold had ended by then.
    pub async fn missed(&self, from: Stamp) -> Result<(), ClusterError> {
        let ended = self.hold.and_then(|hold| self.scene.look(|view| view.ended(hold)));
        // A process that was killed may have had the release as its last word: equal is too late as well.
        if ended.is_some_and(|at| at <= from) {
            self.stamp(FaultPhase::MissedTarget).await?;
        }
        Ok(())
    }

    /// Ends the planned wait of the client at its point: what the fault adds after this stamp is the fault's.
    pub async fn let_go(&self) -> Result<(), ClusterError> {
        if let Some((client, point)) = self.waiting {
            self.control.stamp(Event::PointReleased { client, point }).await?;
            self.control.let_go(client).await?;
        }
        Ok(())
    }

    /// Waits for a sign of life of one of our processes that is newer than the heal.
    pub async fn prove_alive(&self, healed: Stamp) -> Result<(), ClusterError> {
        let runs = |view: &crate::View| view.life(&self.node).filter(|(_, _, last)| *last > healed).map(drop);
        let alive = self.scene.within(self.control, PROOF, runs).await.is_some();
        if alive && self.cluster.is_running(&self.node).await? && !self.cluster.is_frozen(&self.node).await? {
            self.stamp(FaultPhase::HealProved).await?;
        }
        Ok(())
    }

    /// Waits until a server answers again.
    pub async fn prove_answers(&self) -> Result<(), ClusterError> {
        for _ in 0..PROOF.as_millis() / LOOK.as_millis() {
            if self.cluster.answers(&self.node).await? {
                return self.stamp(FaultPhase::HealProved).await.map(drop);
            }
            self.control.sleep(LOOK).await?;
        }
        Ok(())
    }

    /// Whether another fault of the schedule may hold up packets between these two: their silence is then no sign that this fault is on.
    pub fn is_held_up_otherwise(&self, from: &NodeName, to: &NodeName) -> bool {
        let others = self.plan.schedule.iter().filter(|s| s.id != self.step.id);
        let mut others = others.filter(|s| match &s.target {
            Target::Node(node) => {
                s.fault.hits(node, from, to) || s.fault.kind().kills() && (node == from || node == to)
            }
            Target::Leader => {
                let is_of_servers = [from, to].iter().any(|node| self.plan.lock_nodes.contains(node));
                is_of_servers && (s.fault.kind().is_of_links() || s.fault.kind().kills())
            }
            Target::Holder => s.fault.kind().is_of_links(),
        });
        others.next().is_some()
    }
}

/// The nodes that `node` exchanges packets with: workers talk to lock nodes and to the resource, lock nodes to each other.
pub(crate) fn peers<'p>(plan: &'p Plan, node: &'p NodeName) -> impl Iterator<Item = NodeName> + 'p {
    let is_worker = plan.workers().any(|w| w == *node);
    let is_lock_node = plan.lock_nodes.contains(node);
    let lock_nodes = plan.lock_nodes.iter().filter(move |n| *n != node && (is_worker || is_lock_node)).cloned();
    let workers = plan.workers().filter(move |_| !is_worker);
    lock_nodes.chain(workers).chain(is_worker.then(|| NodeName::new("resource")))
}

impl Nemesis<'_> {
    /// Carries out the schedule of `plan`. Steps with a moment of their own (a time, a protocol point) wait for it side by
    /// side; random ones come one after the other. However that interleaves, one fault is on at a time among workers, and one
    /// on each other node.
    pub async fn run(&self, plan: &Plan) -> Result<(), NemesisError> {
        let turn = Turns::new(plan);
        // Told on from here, so that steps are woken in the order of the schedule.
        let mut over = self.over.clone();
        let ending = async {
            // Whoever is gone without a word does not end the phase.
            if over.wait_for(|over| *over).await.is_err() {
                std::future::pending::<()>().await;
            }
            turn.phase.end();
            std::future::pending::<()>().await;
        };
        let gates = Gates::new(plan);
        let waits = async {
            let failed = |(WaitId(wait), source)| NemesisError::Wait { wait, source };
            gates.keep(self, plan, &turn.phase).await.map_err(failed)
        };
        let both = join(self.steps(plan, &turn, &gates), waits);
        match select(Box::pin(both), Box::pin(ending)).await {
            Either::Left(((steps, waits), _)) => steps.and(waits),
            Either::Right(((), _)) => unreachable!("it waits for ever"),
        }
    }

    async fn steps(&self, plan: &Plan, turn: &Turns, gates: &Gates<'_>) -> Result<(), NemesisError> {
        let (random, own): (Vec<&Step>, Vec<&Step>) =
            plan.schedule.iter().partition(|s| matches!(s.when, When::AfterHeal(_)));
        // Of many steps that wait, only those are looked at that something has happened for.
        let own = own.into_iter().map(|step| self.step(plan, step, turn, gates)).collect::<FuturesUnordered<_>>();
        // One that fails keeps no other from being healed.
        let own = own.fold(Ok(()), |all, step| ready(all.and(step.map(drop))));
        let random = async {
            for step in random {
                if !self.step(plan, step, turn, gates).await? {
                    break;
                }
            }
            Ok(())
        };
        let (own, random) = join(own, random).await;
        own.and(random)
    }

    /// One step; false if the fault phase was over before it could begin.
    ///
    /// A step takes its turn **before** it arms a client or looks for a holder: a client that waits at its point for as long as another
    /// fault lasts would lose its lease to nothing but the schedule, and a holder that was found that long ago holds nothing any more.
    async fn step(&self, plan: &Plan, step: &Step, turns: &Turns, gates: &Gates<'_>) -> Result<bool, NemesisError> {
        let failed = |source| NemesisError::Fault { fault: step.id.0, source };
        let gate = gates.of(step);
        let turn = async {
            if let Some(gate) = gate {
                // The other way round: nothing else shall wait for it as long as the client has not come.
                gate.opened().await;
            }
            if let When::AfterHeal(wait) | When::At(wait) = step.when {
                self.control.sleep(wait).await?;
            }
            if let When::Healed(other) = step.when {
                self.scene.until(|view| view.is_healed(other).then_some(())).await;
            }
            turns.take(&step.target, self).await
        };
        let Some(turn) = turns.phase.unless_over(turn).await else { return Ok(false) };
        let (_turn, leader) = turn.map_err(failed)?;
        let target = leader.map_or_else(|| step.target.clone(), Target::Node);
        let Some(site) = turns.phase.unless_over(self.site(plan, step, target, gate)).await else {
            if let (When::AtPoint(_), Target::Node(node)) = (step.when, &step.target) {
                // It never came to its point; it must not wait there when nobody is left to let it go.
                self.control.let_go(first_client(plan, node).map_err(failed)?).await.map_err(failed)?;
            }
            return Ok(false);
        };
        let site = site.map_err(failed)?;
        let done = match &step.fault {
            Fault::Pause { lasting } => pause::pause(&site, *lasting).await,
            Fault::Stop { lasting } => stop::stop(&site, *lasting).await,
            Fault::Slow { lasting, percent } => slow::slow(&site, *lasting, *percent).await,
            Fault::Kill { back_after } => restart::restart(&site, *back_after, Data::Kept).await,
            Fault::Amnesia { back_after, .. } => restart::restart(&site, *back_after, Data::Lost).await,
            Fault::Powerloss { back_after } => restart::restart(&site, *back_after, Data::Synced).await,
            Fault::Clock { clock, change, lasting } => clock::clock(&site, *clock, *change, *lasting).await,
            Fault::Partition { lasting, .. }
            | Fault::Delay { lasting, .. }
            | Fault::Loss { lasting, .. }
            | Fault::Reorder { lasting, .. } => links::hold_up(&site, *lasting).await,
        };
        gate.into_iter().for_each(Gate::is_done);
        gates.is_over(step.id);
        done.map_err(failed)?;
        Ok(true)
    }

    /// Finds the target, and waits for the client that is to be met at a point.
    async fn site<'s>(
        &'s self,
        plan: &'s Plan,
        step: &'s Step,
        target: Target,
        gate: Option<&'s Gate<'s>>,
    ) -> Result<Site<'s>, ClusterError> {
        let (node, hold, waiting) = match (target, step.when) {
            (Target::Node(node), When::AtPoint(point)) => {
                let client = first_client(plan, &node)?;
                self.control.arm(client, point, AT_POINT).await?;
                let hold = self.scene.until(|view| view.at_point(client, point)).await;
                (node, Some(hold), Some((client, point)))
            }
            (Target::Node(node), _) => {
                let hold = gate.and_then(|gate| gate.hold_on(&node));
                (node, hold, None)
            }
            (Target::Leader, _) => unreachable!("whoever takes the turn of the leader has its name"),
            (Target::Holder, _) => {
                let holder = self.scene.until(|view| view.holder().cloned()).await;
                (holder.node, Some(holder.hold), None)
            }
        };
        let is_server = plan.lock_nodes.contains(&node);
        let Nemesis { cluster, control, scene, .. } = *self;
        Ok(Site { cluster, control, scene, plan, step, node, is_server, hold, waiting, gate })
    }
}

/// The client that stands for a worker: clients are numbered worker by worker.
pub(crate) fn first_client(plan: &Plan, node: &NodeName) -> Result<ClientId, ClusterError> {
    let worker = node.as_str().strip_prefix("worker-").and_then(|n| n.parse::<u32>().ok()).filter(|n| *n >= 1);
    let worker = worker.ok_or_else(|| ClusterError {
        node: node.clone(),
        doing: "arming a client",
        why: "only workers have clients that could wait at a protocol point".into(),
    })?;
    Ok(ClientId((worker - 1) * plan.workload.clients_per_worker))
}
