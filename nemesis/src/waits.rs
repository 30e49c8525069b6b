//! Planned waits: a client is armed, comes to its point, and is kept there until something else has happened.
//!
//! The client leaves by itself when its bound is over, so that nothing that goes wrong here keeps it for ever.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use futures::future::{Either, join_all, select};
use history::{Event, FaultId, HoldId, NodeName, Plan, Step, Until, Wait, WaitId, When};
use tokio::sync::Notify;

use crate::{
    ClusterError,
    run::{Nemesis, first_client},
    turns::Phase,
};

/// One planned wait: whether its client has come, and how far the faults that go with it are.
pub(crate) struct Gate<'a> {
    wait: &'a Wait,
    steps: u32,
    injected: AtomicU32,
    healed: AtomicU32,
    is_open: AtomicBool,
    hold: Mutex<Option<HoldId>>,
    changed: Notify,
}

impl<'a> Gate<'a> {
    fn new(plan: &Plan, wait: &'a Wait) -> Gate<'a> {
        let steps = plan.schedule.iter().filter(|step| step.when == When::WhileWaits(wait.id)).count() as u32;
        let (injected, healed, is_open) = Default::default();
        Gate { wait, steps, injected, healed, is_open, hold: Mutex::default(), changed: Notify::new() }
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    fn open(&self, hold: HoldId) {
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
        self.is_open.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_so() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the client waits.
    pub async fn opened(&self) {
        self.until(|| self.is_open()).await;
    }

    /// The hold of the client that waits, if `node` is its worker: a fault of the worker is meant for it.
    pub fn hold_on(&self, node: &NodeName) -> Option<HoldId> {
        let hold = *self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        hold.filter(|_| self.wait.worker == *node)
    }

    /// One of the faults that go with it is on.
    pub fn is_on(&self) {
        self.injected.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// One of them is over.
    pub fn is_done(&self) {
        self.healed.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Waits for what ends the wait; for ever, if that is only its bound.
    async fn ended(&self, gates: &Gates<'_>, nemesis: &Nemesis<'_>, client: history::ClientId) {
        let is_all = |count: &AtomicU32| count.load(Ordering::Relaxed) >= self.steps;
        let wrote = |writer| nemesis.scene.until(move |view| view.another_wrote(client, writer).then_some(()));
        match &self.wait.until {
            Until::Injected => self.until(|| is_all(&self.injected) || is_all(&self.healed)).await,
            Until::Healed => self.until(|| is_all(&self.healed)).await,
            Until::Over(fault) => gates.over(*fault).await,
            Until::Reached(wait) => match gates.0.iter().find(|gate| gate.wait.id == *wait) {
                Some(gate) => gate.opened().await,
                None => std::future::pending().await,
            },
            Until::AnotherWrote => wrote(None).await,
            Until::Wrote(writer) => wrote(Some(writer)).await,
            Until::Time => std::future::pending().await,
        }
    }
}

/// All waits of a plan, in its order, and the faults that are over.
pub(crate) struct Gates<'a>(Vec<Gate<'a>>, Over);

#[derive(Default)]
struct Over {
    faults: Mutex<BTreeSet<FaultId>>,
    changed: Notify,
}

impl<'a> Gates<'a> {
    pub fn new(plan: &'a Plan) -> Gates<'a> {
        Gates(plan.waits.iter().map(|wait| Gate::new(plan, wait)).collect(), Over::default())
    }

    /// The wait that `step` goes with.
    pub fn of(&self, step: &Step) -> Option<&Gate<'a>> {
        let When::WhileWaits(id) = step.when else { return None };
        self.0.iter().find(|gate| gate.wait.id == id)
    }

    /// A step of the schedule is over, whatever goes with it.
    pub fn is_over(&self, fault: FaultId) {
        self.1.faults.lock().unwrap_or_else(PoisonError::into_inner).insert(fault);
        self.1.changed.notify_waiters();
    }

    /// Waits until it is.
    async fn over(&self, fault: FaultId) {
        loop {
            let changed = self.1.changed.notified();
            if self.1.faults.lock().unwrap_or_else(PoisonError::into_inner).contains(&fault) {
                return;
            }
            changed.await;
        }
    }

    /// Keeps every client at its point: those of one worker one after the other, for a client is armed for one point at a time.
    pub async fn keep(&self, nemesis: &Nemesis<'_>, plan: &Plan, phase: &Phase) -> Result<(), (WaitId, ClusterError)> {
        let mut workers: Vec<&NodeName> = self.0.iter().map(|gate| &gate.wait.worker).collect();
        workers.sort();
        workers.dedup();
        let one_by_one = workers.into_iter().map(|worker| async move {
            for gate in self.0.iter().filter(|gate| gate.wait.worker == *worker) {
                keep(gate, self, nemesis, plan, phase).await.map_err(|e| (gate.wait.id, e))?;
            }
            Ok(())
        });
        join_all(one_by_one).await.into_iter().collect()
    }
}

/// Arms one client, waits until it has come, keeps it, and lets it go.
async fn keep(
    gate: &Gate<'_>,
    gates: &Gates<'_>,
    nemesis: &Nemesis<'_>,
    plan: &Plan,
    phase: &Phase,
) -> Result<(), ClusterError> {
    let Wait { worker, point, at_most, after, .. } = gate.wait;
    let client = first_client(plan, worker)?;
    let arriving = async {
        nemesis.control.sleep(*after).await?;
        nemesis.control.arm(client, *point, *at_most).await?;
        Ok(nemesis.scene.until(|view| view.at_point(client, *point)).await)
    };
    let Some(hold) = phase.unless_over(arriving).await else {
        // It never came; it must not wait there when nobody is left to let it go.
        return nemesis.control.let_go(client).await;
    };
    gate.open(hold?);
    let gone = nemesis.scene.until(|view| view.at_point(client, *point).is_none().then_some(()));
    if let Either::Left(_) = select(std::pin::pin!(gate.ended(gates, nemesis, client)), std::pin::pin!(gone)).await {
        nemesis.control.stamp(Event::PointReleased { client, point: *point }).await?;
        nemesis.control.let_go(client).await?;
    }
    Ok(())
}
