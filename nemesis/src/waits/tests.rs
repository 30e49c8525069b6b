use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll, Waker},
    time::Duration,
};

use history::{
    Activity, Arm, ClusterKind, Comparison, Fault, Point, ProcessName, Record, Role, Target, Tokens, Workload,
    fault::Kill,
};

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
        servers: serde_json::from_str(include_str!("../../../tests/shared/servers/redis.json")).unwrap(),
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

fn fails(wait: WaitId, error: ClusterError) {
    panic!("wait {}: {error}", wait.0);
}

/// Polls the keeping of the waits once. Returns whether it is over.
fn is_ready(keeping: Pin<&mut impl Future<Output = ()>>) -> bool {
    keeping.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Polls the keeping of the waits once. Returns all commands to the client so far.
fn commands_of(keeping: Pin<&mut impl Future<Output = ()>>, double: &Double) -> Vec<&'static str> {
    is_ready(keeping);
    double.commands.lock().clone()
}

#[test]
fn the_time_of_a_second_wait_counts_from_the_start() {
    let plan = plan([1, 4].map(|after| (Until::Time, Duration::from_secs(after))));
    let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
    let waits = ActiveWaits::new(&plan, &double, &live_view);
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut armed_at = |now_ms| {
        double.now_ms.store(now_ms, Ordering::Relaxed);
        is_ready(keeping.as_mut());
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
        let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
        let mut second_hold = || {
            is_ready(keeping.as_mut());
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
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut polled = || (is_ready(keeping.as_mut()), double.commands.lock().len());
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
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut polled = || is_ready(keeping.as_mut());
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
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut commands = || commands_of(keeping.as_mut(), &double);
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

#[test]
fn a_wait_for_a_fault_ends_with_a_fault_never_on() {
    let mut plan = plan([Until::Injected, Until::Time].map(|until| (until, Duration::ZERO)));
    let (fault, target) = (Fault::new(Kill {}, Duration::from_secs(1)), Target::Holder);
    plan.schedule = vec![Step { id: FaultId(1), fault, target, when: When::WhileWaits(WaitId(1)) }];
    let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
    let waits = ActiveWaits::new(&plan, &double, &live_view);
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut commands = || commands_of(keeping.as_mut(), &double);
    assert_eq!(commands(), ["arm"]);
    sees(&live_view, arrives(1));
    assert_eq!(commands(), ["arm"], "the fault is not on");
    waits.of(&plan.schedule[0]).unwrap().is_done();
    assert_eq!(commands()[..2], ["arm", "go"]);
}

#[test]
fn a_wait_for_the_heals_of_its_faults_ends_with_the_last_of_them() {
    let mut plan = plan([Until::Healed, Until::Time].map(|until| (until, Duration::ZERO)));
    let step = |(id, wait)| {
        let (fault, when) = (Fault::new(Kill {}, Duration::from_secs(1)), When::WhileWaits(WaitId(wait)));
        Step { id: FaultId(id), fault, target: Target::Holder, when }
    };
    plan.schedule = [(1, 1), (2, 1), (3, 2)].map(step).into();
    let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
    let waits = ActiveWaits::new(&plan, &double, &live_view);
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut commands = || commands_of(keeping.as_mut(), &double);
    assert_eq!(commands(), ["arm"]);
    sees(&live_view, arrives(1));
    let wait = waits.of(&plan.schedule[1]).unwrap();
    wait.is_on();
    wait.is_on();
    assert_eq!(commands(), ["arm"], "both faults are on");
    wait.is_done();
    assert_eq!(commands(), ["arm"], "one fault is on");
    wait.is_done();
    assert_eq!(commands()[..2], ["arm", "go"]);
}

#[test]
fn a_wait_for_another_client_ends_when_that_one_has_reached_its_point() {
    let mut plan = plan([Until::Reached(WaitId(2)), Until::Time].map(|until| (until, Duration::ZERO)));
    plan.waits[1].worker = "worker-2".into();
    let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
    starts(&live_view, "worker-2");
    connects(&live_view, "worker-2");
    let waits = ActiveWaits::new(&plan, &double, &live_view);
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut commands = || {
        // The client of the second wait is looked at after that of the first.
        is_ready(keeping.as_mut());
        commands_of(keeping.as_mut(), &double)
    };
    assert_eq!(commands(), ["arm", "arm"]);
    sees(&live_view, arrives(1));
    assert_eq!(commands(), ["arm", "arm"]);
    let event = Event::AtPoint { client: ClientId(1), hold: HoldId(2), point: Point::BeforeWrite };
    sees_of(&live_view, "worker-2", Stamp(1), event);
    assert_eq!(commands(), ["arm", "arm", "go"]);
}

#[test]
fn only_a_fault_of_its_worker_targets_the_hold_of_a_client_that_waits() {
    let plan = plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
    let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
    let waits = ActiveWaits::new(&plan, &double, &live_view);
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    is_ready(keeping.as_mut());
    sees(&live_view, arrives(1));
    is_ready(keeping.as_mut());
    let hold_on = |node: &str| waits.waits[0].hold_on(&node.into());
    assert_eq!(["worker-1", "worker-2", "redis-1"].map(hold_on), [Some(HoldId(1)), None, None]);
}

#[test]
fn a_wait_that_fails_is_told_and_ends_later_waits() {
    let plan = plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
    let (double, live_view, phase) = (Double::default(), connected(), Phase::default());
    double.is_closed.store(true, Ordering::Relaxed);
    let (waits, failed) = (ActiveWaits::new(&plan, &double, &live_view), Mutex::new(Vec::new()));
    let fails = |wait, error: ClusterError| failed.lock().push((wait, error.why));
    let mut keeping = pin!(waits.keep(&plan, &phase, &fails));
    let mut is_over = || is_ready(keeping.as_mut());
    assert!(!is_over(), "the end of the process may be reported late");
    double.now_ms.store(60_000, Ordering::Relaxed);
    assert!(is_over());
    assert_eq!(*failed.lock(), [(WaitId(1), "it is closed".to_owned())]);
    assert_eq!(*double.commands.lock(), ["arm"]);
}
