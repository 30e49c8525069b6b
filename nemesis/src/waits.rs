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
pub(crate) mod tests {
    use std::{
        future::poll_fn,
        pin::pin,
        sync::{Arc, atomic::AtomicU64},
        task::{Context, Poll, Waker},
        time::Duration,
    };

    use history::{Activity, Arm, ClusterKind, Comparison, Point, ProcessName, Record, Role, Tokens, Workload};

    use super::*;

    /// Notes the commands to the client, and has a clock that the test sets.
    #[derive(Default)]
    struct Double {
        commands: Mutex<Vec<&'static str>>,
        now_ms: Arc<AtomicU64>,
        /// True if the worker takes no commands.
        is_closed: AtomicBool,
    }

    impl Double {
        fn notes(&self, command: &'static str) -> Doing<'_, ()> {
            self.commands.lock().push(command);
            let failed = || ClusterError { node: "worker-1".into(), doing: "sending", why: "it is closed".into() };
            let is_closed = self.is_closed.load(Ordering::Relaxed);
            Box::pin(std::future::ready(if is_closed { Err(failed()) } else { Ok(()) }))
        }
    }

    impl Control for Double {
        fn stamp<'a>(&'a self, _: Event) -> Doing<'a, Stamp> {
            Box::pin(std::future::ready(Ok(Stamp(0))))
        }

        fn arm<'a>(&'a self, _: ClientId, _: Point, _: Duration) -> Doing<'a, ()> {
            self.notes("arm")
        }

        fn let_go<'a>(&'a self, _: ClientId) -> Doing<'a, ()> {
            self.notes("go")
        }

        fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
            let now_ms = self.now_ms.clone();
            let due_ms = now_ms.load(Ordering::Relaxed) + lasting.as_millis() as u64;
            Box::pin(poll_fn(move |_| match now_ms.load(Ordering::Relaxed) >= due_ms {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }))
        }
    }

    /// A plan in which the client of worker-1 waits before its write, twice.
    pub(crate) fn plan(waits: [(Until, Duration); 2]) -> Plan {
        let waits = waits.into_iter().zip(1..).map(|((until, after), id)| Wait {
            id: WaitId(id),
            worker: "worker-1".into(),
            point: Point::BeforeWrite,
            until,
            at_most: Duration::from_secs(8),
            after,
        });
        Plan {
            schema: 1,
            seed: 1,
            cluster: ClusterKind::Sim,
            backend: "redis".into(),
            tokens: Tokens::Counter,
            time: Duration::from_secs(10),
            lease: Duration::from_secs(2),
            arms: vec![Arm::Off],
            fence: Comparison::Default,
            resource: Default::default(),
            lock_nodes: vec!["redis-1".into()],
            servers: serde_json::from_str(include_str!("../../tests/shared/servers/redis.json")).unwrap(),
            workload: Workload::default(),
            activity: Activity::default(),
            nemesis: Vec::new(),
            models: None,
            own_servers: Default::default(),
            program: None,
            waits: waits.collect(),
            schedule: Vec::new(),
        }
    }

    fn sees(live_view: &LiveView, event: Event) {
        sees_at(live_view, Stamp(1), event);
    }

    fn sees_at(live_view: &LiveView, at: Stamp, event: Event) {
        sees_of(live_view, "worker-1", at, event);
    }

    fn sees_of(live_view: &LiveView, process: &str, at: Stamp, event: Event) {
        live_view.see(&Record { seq: 0, process: ProcessName::new(process), n: 0, at, event });
    }

    fn starts(live_view: &LiveView, process: &str) {
        let event = Event::Started { role: Role::Worker, boot_id: "b".into(), time_namespace: 1 };
        sees_of(live_view, process, Stamp(1), event);
    }

    fn connects(live_view: &LiveView, process: &str) {
        sees_of(live_view, process, Stamp(1), Event::Ready { servers: Vec::new() });
    }

    /// The view of a run whose worker is connected.
    fn connected() -> LiveView {
        let live_view = LiveView::new();
        starts(&live_view, "worker-1");
        connects(&live_view, "worker-1");
        live_view
    }

    fn dies(live_view: &LiveView) {
        let event = Event::ProcessEnded { ended: ProcessName::new("worker-1"), code: Some(137) };
        sees_of(live_view, "controller", Stamp(0), event);
    }

    fn arrives(hold: u64) -> Event {
        Event::AtPoint { client: ClientId(0), hold: HoldId(hold), point: Point::BeforeWrite }
    }

    fn leaves(hold: u64) -> Event {
        Event::LeftPoint { client: ClientId(0), hold: HoldId(hold), point: Point::BeforeWrite, released: true }
    }

    #[test]
    fn the_time_of_a_second_wait_counts_from_the_start() {
        let plan = plan([1, 4].map(|after| (Until::Time, Duration::from_secs(after))));
        let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
        let waits = ActiveWaits::new(&plan, &double, &live_view);
        let fails: &(dyn Fn(WaitId, ClusterError) + Sync) = &|wait, error| panic!("wait {}: {error}", wait.0);
        let mut keeping = pin!(waits.keep(&plan, &phase, fails));
        let mut armed_at = |now_ms| {
            double.now_ms.store(now_ms, Ordering::Relaxed);
            let _ = keeping.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            double.commands.lock().len()
        };
        assert_eq!([0, 999, 1_000].map(&mut armed_at), [0, 0, 1]);
        sees(&live_view, arrives(1));
        assert_eq!(armed_at(2_000), 1);
        sees(&live_view, leaves(1));
        assert_eq!([3_000, 3_999, 4_000].map(armed_at), [1, 1, 2]);
    }

    #[test]
    fn a_client_reaches_its_point_again_only_after_it_has_left() {
        // It comes back with its next hold, or, with two writes under one hold, before anybody has looked.
        for (is_seen_leaving, again) in [(true, 2), (false, 1)] {
            let plan = plan([Until::Over(FaultId(1)), Until::Time].map(|until| (until, Duration::ZERO)));
            let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
            let waits = ActiveWaits::new(&plan, &double, &live_view);
            let fails: &(dyn Fn(WaitId, ClusterError) + Sync) = &|wait, error| panic!("wait {}: {error}", wait.0);
            let mut keeping = pin!(waits.keep(&plan, &phase, fails));
            let mut second_hold = || {
                let _ = keeping.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                waits.waits[1].hold_on(&"worker-1".into())
            };
            second_hold();
            sees(&live_view, arrives(1));
            second_hold();
            waits.is_over(FaultId(1));
            assert_eq!(second_hold(), None);
            assert_eq!(*double.commands.lock(), ["arm", "go", "arm"]);
            sees(&live_view, leaves(1));
            if is_seen_leaving {
                assert_eq!(second_hold(), None);
            }
            sees_at(&live_view, Stamp(2), arrives(again));
            assert_eq!(second_hold(), Some(HoldId(again)));
        }
    }

    #[test]
    fn a_wait_ends_with_the_fault_phase_and_its_last_fault() {
        let plan = plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
        let waits = ActiveWaits::new(&plan, &double, &live_view);
        let fails: &(dyn Fn(WaitId, ClusterError) + Sync) = &|wait, error| panic!("wait {}: {error}", wait.0);
        let mut keeping = pin!(waits.keep(&plan, &phase, fails));
        let mut polled = || {
            let poll = keeping.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            (poll.is_ready(), double.commands.lock().len())
        };
        assert_eq!(polled(), (false, 1));
        sees(&live_view, arrives(1));
        assert_eq!(polled(), (false, 1));
        phase.end();
        assert_eq!(polled(), (false, 1), "a fault is on");
        waits.are_all_over();
        assert!(polled().0);
        assert_eq!(double.commands.lock()[..2], ["arm", "go"]);
    }

    #[test]
    fn an_armed_client_is_disarmed_if_the_fault_phase_ends_first() {
        let plan = plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
        let waits = ActiveWaits::new(&plan, &double, &live_view);
        let fails: &(dyn Fn(WaitId, ClusterError) + Sync) = &|wait, error| panic!("wait {}: {error}", wait.0);
        let mut keeping = pin!(waits.keep(&plan, &phase, fails));
        let mut polled = || keeping.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!polled());
        assert_eq!(*double.commands.lock(), ["arm"]);
        phase.end();
        assert!(polled());
        assert_eq!(double.commands.lock().get(1), Some(&"go"));
    }

    #[test]
    fn the_next_process_of_a_worker_is_armed_once_it_is_connected() {
        let plan = plan([Until::Over(FaultId(1)), Until::Time].map(|until| (until, Duration::ZERO)));
        let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
        let waits = ActiveWaits::new(&plan, &double, &live_view);
        let fails: &(dyn Fn(WaitId, ClusterError) + Sync) = &|wait, error| panic!("wait {}: {error}", wait.0);
        let mut keeping = pin!(waits.keep(&plan, &phase, fails));
        let mut commands = || {
            let _ = keeping.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            double.commands.lock().clone()
        };
        assert_eq!(commands(), ["arm"]);
        sees(&live_view, arrives(1));
        commands();
        // The process dies before the command to release its client.
        double.is_closed.store(true, Ordering::Relaxed);
        waits.is_over(FaultId(1));
        assert_eq!(commands(), ["arm", "go"]);
        dies(&live_view);
        commands();
        double.is_closed.store(false, Ordering::Relaxed);
        starts(&live_view, "worker-1#2");
        assert_eq!(commands(), ["arm", "go"], "it is not connected");
        connects(&live_view, "worker-1#2");
        assert_eq!(commands(), ["arm", "go", "arm"]);
    }
}
