//! Planned waits: an armed client reaches its protocol point and waits there until the condition of the wait is true.
//!
//! A wait also ends with the fault phase: no fault begins afterwards, and active faults are healed first. The client
//! leaves the point when its bound is over, so an error of the nemesis cannot block the client for ever.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use futures::{
    FutureExt,
    future::{Either, join_all, select},
};
use history::{ClientId, Event, FaultId, HoldId, NodeName, Plan, Stamp, Step, Until, Wait, WaitId, When};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    cluster::{ClusterError, Doing},
    control::Control,
    first_client::FirstClient,
    live_view::{LiveView, View},
    node_slots::Phase,
};

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
            Until::Over(fault) => gates.until_over(|over| over.faults.lock().contains(fault)).await,
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
    are_all: AtomicBool,
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

    /// Records that all steps of the schedule have ended: no fault is on, and no fault begins any more.
    pub fn are_all_over(&self) {
        self.over.are_all.store(true, Ordering::Relaxed);
        self.over.changed.notify_waiters();
    }

    async fn until_over(&self, is_so: impl Fn(&Over) -> bool) {
        loop {
            let changed = self.over.changed.notified();
            if is_so(&self.over) {
                return;
            }
            changed.await;
        }
    }

    /// Carries out all waits, and tells `fails` of each wait that failed. The waits of one worker follow one another,
    /// because a client is armed for one point at a time.
    pub async fn keep(&self, plan: &Plan, phase: &Phase, fails: &(dyn Fn(WaitId, ClusterError) + Sync)) {
        let mut workers: Vec<&NodeName> = self.waits.iter().map(|gate| &gate.wait.worker).collect();
        workers.sort();
        workers.dedup();
        let one_by_one = workers.into_iter().map(|worker| async move {
            let gates = self.waits.iter().filter(|gate| gate.wait.worker == *worker);
            // The times of all waits count from here, and not from the end of the wait before.
            let gates: Vec<_> = gates.map(|gate| (gate, self.control.sleep(gate.wait.after))).collect();
            let mut released = None;
            for (gate, due) in gates {
                match keep(gate, self, due, released, plan, phase).await {
                    Ok(arrived) => released = arrived,
                    Err(error) => {
                        fails(gate.wait.id, error);
                        break;
                    }
                }
            }
        });
        join_all(one_by_one).await;
    }
}

/// Carries out one wait: arms the client at the time `due`, waits until the client reaches its point, and releases the
/// client when the condition is true, or when the fault phase has ended and no fault is on any more. Takes the hold
/// whose release ended the client's last wait, and returns the hold that it releases itself.
async fn keep(
    gate: &ActiveWait<'_>,
    gates: &ActiveWaits<'_>,
    due: Doing<'_, ()>,
    released: Option<(HoldId, Stamp)>,
    plan: &Plan,
    phase: &Phase,
) -> Result<Option<(HoldId, Stamp)>, ClusterError> {
    let Wait { worker, point, at_most, .. } = gate.wait;
    let client = FirstClient::of(plan, worker, gates.control, gates.live_view)?;
    let arriving = async {
        due.await?;
        client.arrives(*point, *at_most, released).await
    };
    let Some(arrived) = phase.unless_over(arriving).await else {
        // The client has not reached its point. Disarm the client, because after the fault phase no step releases a
        // client.
        client.let_go().await?;
        return Ok(None);
    };
    let arrived = arrived?;
    gate.open(arrived.0);
    let is_gone = |view: &View| view.arrived_at(client.id, *point) != Some(arrived);
    let gone = gates.live_view.until(|view| is_gone(view).then_some(()));
    let none_left = async {
        gates.until_over(|over| over.are_all.load(Ordering::Relaxed)).await;
        phase.ended().await;
    };
    let ended = async {
        select(std::pin::pin!(gate.ended(gates, client.id)), std::pin::pin!(none_left)).map(|_| ()).await;
    };
    if let Either::Left(_) = select(std::pin::pin!(ended), std::pin::pin!(gone)).await {
        gates.control.stamp(Event::PointReleased { client: client.id, point: *point }).await?;
        client.let_go().await?;
        return Ok(Some(arrived));
    }
    Ok(None)
}

#[cfg(test)]
pub(crate) mod tests;
