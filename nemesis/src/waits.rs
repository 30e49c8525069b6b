//! Planned waits: an armed client reaches its protocol point and waits there until the condition of the wait is true.
//!
//! The client leaves the point when its bound is over, so an error of the nemesis cannot block the client for ever.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use futures::future::{Either, join_all, select};
use history::{ClientId, Event, FaultId, HoldId, NodeName, Plan, Step, Until, Wait, WaitId, When};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{cluster::ClusterError, control::Control, live_view::LiveView, node_slots::Phase};

/// A planned wait, with the state of its client and of the faults that happen during the wait.
pub(crate) struct ActiveWait<'a> {
    wait: &'a Wait,
    steps: u32,
    injected: AtomicU32,
    healed: AtomicU32,
    is_open: AtomicBool,
    hold: Mutex<Option<HoldId>>,
    changed: Notify,
}

impl<'a> ActiveWait<'a> {
    fn new(plan: &Plan, wait: &'a Wait) -> ActiveWait<'a> {
        let steps = plan.schedule.iter().filter(|step| step.when == When::WhileWaits(wait.id)).count() as u32;
        let (injected, healed, is_open) = Default::default();
        ActiveWait { wait, steps, injected, healed, is_open, hold: Mutex::default(), changed: Notify::new() }
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    fn open(&self, hold: HoldId) {
        *self.hold.lock() = Some(hold);
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

    /// Waits until the client has reached its point.
    pub async fn opened(&self) {
        self.until(|| self.is_open()).await;
    }

    /// Returns the hold of the waiting client if `node` is the client's worker: a fault of the worker targets this
    /// hold.
    pub fn hold_on(&self, node: &NodeName) -> Option<HoldId> {
        let hold = *self.hold.lock();
        hold.filter(|_| self.wait.worker == *node)
    }

    /// Counts one more fault of this wait that is injected.
    pub fn is_on(&self) {
        self.injected.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Counts one more fault of this wait that is over.
    pub fn is_done(&self) {
        self.healed.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Waits until the condition of the wait is true; for ever, if only the bound ends the wait.
    async fn ended(&self, gates: &ActiveWaits<'_>, client: ClientId) {
        let is_all = |count: &AtomicU32| count.load(Ordering::Relaxed) >= self.steps;
        let wrote = |writer| gates.live_view.until(move |view| view.another_wrote(client, writer).then_some(()));
        match &self.wait.until {
            Until::Injected => self.until(|| is_all(&self.injected) || is_all(&self.healed)).await,
            Until::Healed => self.until(|| is_all(&self.healed)).await,
            Until::Over(fault) => gates.over(*fault).await,
            Until::Reached(wait) => match gates.waits.iter().find(|gate| gate.wait.id == *wait) {
                Some(gate) => gate.opened().await,
                None => std::future::pending().await,
            },
            Until::AnotherWrote => wrote(None).await,
            Until::Wrote(writer) => wrote(Some(writer)).await,
            Until::Time => std::future::pending().await,
        }
    }
}

/// All waits of a plan, in the order of the plan, and the faults that are over.
pub(crate) struct ActiveWaits<'a> {
    waits: Vec<ActiveWait<'a>>,
    over: Over,
    control: &'a dyn Control,
    live_view: &'a LiveView,
}

#[derive(Default)]
struct Over {
    faults: Mutex<BTreeSet<FaultId>>,
    changed: Notify,
}

impl<'a> ActiveWaits<'a> {
    pub fn new(plan: &'a Plan, control: &'a dyn Control, live_view: &'a LiveView) -> ActiveWaits<'a> {
        let waits = plan.waits.iter().map(|wait| ActiveWait::new(plan, wait)).collect();
        ActiveWaits { waits, over: Over::default(), control, live_view }
    }

    /// Returns the wait during which `step` happens.
    pub fn of(&self, step: &Step) -> Option<&ActiveWait<'a>> {
        let When::WhileWaits(id) = step.when else { return None };
        self.waits.iter().find(|gate| gate.wait.id == id)
    }

    /// Records that this fault of the schedule is over.
    pub fn is_over(&self, fault: FaultId) {
        self.over.faults.lock().insert(fault);
        self.over.changed.notify_waiters();
    }

    /// Waits until this fault is over.
    async fn over(&self, fault: FaultId) {
        loop {
            let changed = self.over.changed.notified();
            if self.over.faults.lock().contains(&fault) {
                return;
            }
            changed.await;
        }
    }

    /// Carries out all waits. The waits of one worker follow one another, because a client is armed for one point at a
    /// time.
    pub async fn keep(&self, plan: &Plan, phase: &Phase) -> Result<(), (WaitId, ClusterError)> {
        let mut workers: Vec<&NodeName> = self.waits.iter().map(|gate| &gate.wait.worker).collect();
        workers.sort();
        workers.dedup();
        let one_by_one = workers.into_iter().map(|worker| async move {
            for gate in self.waits.iter().filter(|gate| gate.wait.worker == *worker) {
                keep(gate, self, plan, phase).await.map_err(|e| (gate.wait.id, e))?;
            }
            Ok(())
        });
        join_all(one_by_one).await.into_iter().collect()
    }
}

/// Carries out one wait: arms the client, waits until the client reaches its point, and releases the client when the
/// condition is true.
async fn keep(gate: &ActiveWait<'_>, gates: &ActiveWaits<'_>, plan: &Plan, phase: &Phase) -> Result<(), ClusterError> {
    let Wait { worker, point, at_most, after, .. } = gate.wait;
    let client = first_client(plan, worker)?;
    let ActiveWaits { control, live_view, .. } = gates;
    let arriving = async {
        control.sleep(*after).await?;
        control.arm(client, *point, *at_most).await?;
        Ok(live_view.until(|view| view.at_point(client, *point)).await)
    };
    let Some(hold) = phase.unless_over(arriving).await else {
        // The client has not reached its point. Disarm the client, because after the fault phase no step releases a
        // client.
        return control.let_go(client).await;
    };
    gate.open(hold?);
    let gone = live_view.until(|view| view.at_point(client, *point).is_none().then_some(()));
    if let Either::Left(_) = select(std::pin::pin!(gate.ended(gates, client)), std::pin::pin!(gone)).await {
        control.stamp(Event::PointReleased { client, point: *point }).await?;
        control.let_go(client).await?;
    }
    Ok(())
}

/// Returns the first client of a worker, which waits at points. Clients are numbered worker by worker.
pub(crate) fn first_client(plan: &Plan, node: &NodeName) -> Result<ClientId, ClusterError> {
    let worker = node.as_str().strip_prefix("worker-").and_then(|n| n.parse::<u32>().ok()).filter(|n| *n >= 1);
    let worker = worker.ok_or_else(|| ClusterError {
        node: node.clone(),
        doing: "arming a client",
        why: "only workers have clients that could wait at a protocol point".into(),
    })?;
    Ok(ClientId((worker - 1) * plan.workload.clients_per_worker))
}
