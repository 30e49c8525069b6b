//! Carries out a schedule. Each fault is requested, injected, proved, healed, and proved healed.

use std::time::Duration;

use futures::{
    StreamExt,
    future::{Either, join, select},
    stream::FuturesUnordered,
};
use history::{NodeName, Plan, Step, Target, WaitId, When};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    Cluster, ClusterError, Control, LiveView, driver,
    first_client::FirstClient,
    injection::Injection,
    node_slots::NodeSlots,
    waits::{ActiveWait, ActiveWaits},
};

/// The longest time for which a client waits at its point for a placed fault.
const AT_POINT: Duration = Duration::from_secs(20);

/// A fault could not be injected or healed, or a command did not reach the run's own processes. The run ends.
#[derive(Debug, thiserror::Error)]
pub enum NemesisError {
    /// A fault failed.
    #[error("fault {fault} of the schedule: {source}")]
    Fault {
        /// The number of the fault.
        fault: u32,
        /// The cause.
        #[source]
        source: ClusterError,
    },
    /// A planned wait of a client failed.
    #[error("wait {wait} of the plan: {source}")]
    Wait {
        /// The number of the wait.
        wait: u32,
        /// The cause.
        #[source]
        source: ClusterError,
    },
}

/// Injects the faults of a plan, and heals them.
pub struct Nemesis<'a> {
    /// The cluster.
    pub cluster: &'a dyn Cluster,
    /// The run's own processes.
    pub control: &'a dyn Control,
    /// The live view of the run's events.
    pub live_view: &'a LiveView,
    /// Becomes true at the end of the fault phase. Afterwards no fault begins; active faults are healed as planned.
    pub over: watch::Receiver<bool>,
}

impl Nemesis<'_> {
    /// Carries out the schedule of `plan`. Steps with the time `after-heal` run one after the other; all other steps
    /// run concurrently. In every interleaving, at most one fault at a time is on among the workers, and at most one on
    /// each other node.
    ///
    /// The first error ends the fault phase: no fault begins afterwards, and the call returns as soon as the active
    /// faults are healed.
    ///
    /// # Errors
    /// A fault or a wait failed. Of several errors, the first.
    pub async fn run(&self, plan: &Plan) -> Result<(), NemesisError> {
        let turn = NodeSlots::new(plan);
        let first = Mutex::new(None);
        let fails = |error: NemesisError| {
            let mut first = first.lock();
            *first = first.take().or(Some(error));
            turn.phase.end();
        };
        // One task forwards the end of the phase, so steps wake up in the order of the schedule.
        let mut over = self.over.clone();
        let ending = async {
            // A sender that was dropped does not end the phase.
            if over.wait_for(|over| *over).await.is_err() {
                std::future::pending::<()>().await;
            }
            turn.phase.end();
            std::future::pending::<()>().await;
        };
        let gates = ActiveWaits::new(plan, self.control, self.live_view);
        let waits = async {
            gates.keep(plan, &turn.phase, &|WaitId(wait), source| fails(NemesisError::Wait { wait, source })).await;
        };
        let steps = async {
            self.steps(plan, &turn, &gates, &fails).await;
            gates.are_all_over();
        };
        let both = join(steps, waits);
        match select(Box::pin(both), Box::pin(ending)).await {
            Either::Left(_) => {}
            Either::Right(((), _)) => unreachable!("it waits for ever"),
        }
        let first = first.lock().take();
        first.map_or(Ok(()), Err)
    }

    async fn steps(
        &self,
        plan: &Plan,
        turn: &NodeSlots,
        gates: &ActiveWaits<'_>,
        fails: &(dyn Fn(NemesisError) + Sync),
    ) {
        let (random, own): (Vec<&Step>, Vec<&Step>) =
            plan.schedule.iter().partition(|s| matches!(s.when, When::AfterHeal(_)));
        // `FuturesUnordered` polls only the steps that were woken.
        let mut own = own.into_iter().map(|step| self.step(plan, step, turn, gates)).collect::<FuturesUnordered<_>>();
        let own = async {
            // All steps run to their end after an error, so every other fault is healed.
            while let Some(step) = own.next().await {
                if let Err(error) = step {
                    fails(error);
                }
            }
        };
        let random = async {
            for step in random {
                match self.step(plan, step, turn, gates).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        fails(error);
                        break;
                    }
                }
            }
        };
        join(own, random).await;
    }

    /// Carries out one step; returns false if the fault phase ended before the step began.
    ///
    /// A step occupies its slot **before** it arms a client or looks for a holder. Otherwise the client would wait at
    /// its point while another fault lasts, and would lose its lease because of the schedule only. A holder that was
    /// found before that fault would hold the key no longer.
    async fn step(
        &self,
        plan: &Plan,
        step: &Step,
        node_slots: &NodeSlots,
        gates: &ActiveWaits<'_>,
    ) -> Result<bool, NemesisError> {
        let failed = |source| NemesisError::Fault { fault: step.id.0, source };
        let gate = gates.of(step);
        let turn = async {
            if let Some(gate) = gate {
                // This step waits before it occupies the slot, so other steps can use the slot until the client
                // arrives.
                gate.opened().await;
            }
            if let When::AfterHeal(wait) | When::At(wait) = step.when {
                self.control.sleep(wait).await?;
            }
            if let When::Healed(other) = step.when {
                self.live_view.until(|view| view.is_healed(other).then_some(())).await;
            }
            node_slots.take(&step.target, self.cluster, self.control).await
        };
        let Some(turn) = node_slots.phase.unless_over(turn).await else { return Ok(false) };
        let (_turn, leader) = turn.map_err(failed)?;
        let target = leader.map_or_else(|| step.target.clone(), Target::Node);
        let Some(injection) = node_slots.phase.unless_over(self.injection(plan, step, target, gate)).await else {
            if let (When::AtPoint(_), Target::Node(node)) = (step.when, &step.target) {
                // The client has not reached its point. Disarm the client, because after the fault phase no step
                // releases a client.
                self.first_client(plan, node).map_err(failed)?.let_go().await.map_err(failed)?;
            }
            return Ok(false);
        };
        let injection = injection.map_err(failed)?;
        let done = driver::inject(&injection).await;
        if done.is_err() && step.fault.links.is_some() {
            // The other faults of these links are not proved healed while this one is on. The first error counts. A
            // failed run removes all its nodes, so nothing else needs a heal.
            let _ = self.cluster.heal_links(&injection.node, step.id).await;
        }
        self.live_view.end_step(step.id);
        gate.into_iter().for_each(ActiveWait::is_done);
        gates.is_over(step.id);
        done.map_err(failed)?;
        Ok(true)
    }

    fn first_client<'s>(&'s self, plan: &Plan, worker: &'s NodeName) -> Result<FirstClient<'s>, ClusterError> {
        FirstClient::of(plan, worker, self.control, self.live_view)
    }

    /// Finds the target. For a fault at a protocol point, arms the client and waits until the client reaches the point.
    async fn injection<'s>(
        &'s self,
        plan: &'s Plan,
        step: &'s Step,
        target: Target,
        gate: Option<&'s ActiveWait<'s>>,
    ) -> Result<Injection<'s>, ClusterError> {
        let (node, hold, waiting) = match (target, step.when) {
            (Target::Node(node), When::AtPoint(point)) => {
                let client = self.first_client(plan, &node)?;
                let ((hold, _), id) = (client.arrives(point, AT_POINT, None).await?, client.id);
                (node, Some(hold), Some((id, point)))
            }
            (Target::Node(node), _) => {
                let hold = gate.and_then(|gate| gate.hold_on(&node));
                (node, hold, None)
            }
            (Target::Leader, _) => unreachable!("whoever takes the turn of the leader has its name"),
            (Target::Holder, _) => {
                let holder = self.live_view.until(|view| view.holder().cloned()).await;
                (holder.node, Some(holder.hold), None)
            }
        };
        if let Some(hold) = hold {
            self.live_view.watch(step.id, hold);
        }
        let is_server = plan.lock_nodes.contains(&node);
        let Nemesis { cluster, control, live_view, .. } = *self;
        Ok(Injection { cluster, control, live_view, plan, step, node, is_server, hold, waiting, gate })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use futures::executor::block_on;
    use history::{Event, Fault, FaultId, FaultPhase, Point, Stamp, Until, fault::Partition};

    use super::*;
    use crate::{
        double::{Answers, Double, sees, starts},
        waits::tests,
    };

    /// The links are cut, and the engine reports that they are not. Notes the calls and the waits.
    #[derive(Default)]
    struct Calls {
        live_view: LiveView,
        calls: Mutex<Vec<String>>,
    }

    impl Answers for Calls {
        fn inject_links(&self, node: &NodeName) -> Result<(), ClusterError> {
            self.calls.lock().push("cut".into());
            Err(ClusterError { node: node.clone(), doing: "cutting its links", why: "no answer in time".into() })
        }

        fn heal_links(&self) -> Result<(), ClusterError> {
            self.calls.lock().push("heal".into());
            Ok(())
        }

        fn stamp(&self, event: Event) -> Stamp {
            assert!(matches!(event, Event::Fault { phase: FaultPhase::Requested { .. }, .. }), "{event:?}");
            self.calls.lock().push("request".into());
            sees(&self.live_view, "agent", Stamp(1), event);
            Stamp(1)
        }

        fn arm(&self) {
            self.calls.lock().push("arm".into());
        }

        fn let_go(&self) {
            self.calls.lock().push("disarm".into());
        }

        fn sleep(&self, lasting: Duration) {
            self.calls.lock().push(format!("wait for {lasting:?}"));
        }
    }

    fn plan(schedule: Vec<Step>) -> Plan {
        Plan { schedule, waits: Vec::new(), ..tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO))) }
    }

    /// Runs so many faults of redis-1, each of which is planned for 5 s and fails. Returns the calls, the error and the
    /// number of faults that are still on.
    fn run(faults: u32) -> (Vec<String>, String, usize) {
        let step = |id| {
            let fault = Fault::new(Partition::default(), Duration::from_secs(1));
            let (target, when) = (Target::Node("redis-1".into()), When::At(Duration::from_secs(5)));
            Step { id: FaultId(id), fault, target, when }
        };
        let plan = plan((1..=faults).map(step).collect());
        let (double, (_over, over)) = (Double::<Calls>::default(), watch::channel(false));
        let live_view = &double.0.live_view;
        let nemesis = Nemesis { cluster: &double, control: &double, live_view, over };
        let error = block_on(nemesis.run(&plan)).unwrap_err().to_string();
        let on = live_view.look(|view| view.faults_on().count());
        (double.0.calls.into_inner(), error, on)
    }

    #[test]
    fn links_are_healed_if_their_fault_failed() {
        let (calls, error, _) = run(1);
        assert!(error.contains("no answer in time"), "{error}");
        assert_eq!(calls, ["wait for 5s", "request", "cut", "heal"]);
    }

    #[test]
    fn no_fault_begins_after_an_error() {
        let (calls, error, _) = run(2);
        assert!(error.starts_with("fault 1 of the schedule"), "{error}");
        assert_eq!(calls, ["wait for 5s", "request", "cut", "heal"]);
    }

    #[test]
    fn a_fault_that_failed_is_off() {
        assert_eq!(run(1).2, 0, "the proof of another fault's heal would wait for it");
    }

    #[test]
    fn a_client_that_waits_for_no_fault_any_more_is_disarmed() {
        let (fault, target) = (Fault::new(Partition::default(), Duration::from_secs(1)), "worker-1".into());
        let (target, when) = (Target::Node(target), When::AtPoint(Point::BeforeWrite));
        let plan = plan(vec![Step { id: FaultId(1), fault, target, when }]);
        let (double, (is_over, over)) = (Double::<Calls>::default(), watch::channel(false));
        let live_view = &double.0.live_view;
        starts(live_view, "worker-1", Stamp(1));
        sees(live_view, "worker-1", Stamp(2), Event::Ready { servers: Vec::new() });
        let nemesis = Nemesis { cluster: &double, control: &double, live_view, over };
        let mut running = pin!(nemesis.run(&plan));
        let mut poll = || running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        assert_eq!(*double.0.calls.lock(), ["arm"]);
        is_over.send_replace(true);
        assert!(poll() || poll(), "no step is left");
        assert_eq!(*double.0.calls.lock(), ["arm", "disarm"]);
    }
}
