//! Tests of a worker, over doubles of its ports: the times and the count of its critical sections.

use std::{
    collections::BTreeMap,
    future::{pending, ready},
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use futures::executor::block_on;
use history::{
    Activity, Arm, ClientId, ClusterKind, Comparison, Event, Key, Plan, Program, Scripted, ServerFacts, Stamp, Tokens,
    Version, Workload,
};
use locks::{
    Cleanup, Client, Clock, Connected, Connecting, Hold, Lock, Node, NodeError, Owner, Redis, Released, Renewed, Reply,
    Round, ServerAddress, Servers, Step, StepAnswer, Watch,
};
use resource::{ReadAnswer, WriteAnswer};
use workloads::{
    attempt::Recording,
    backend::Backend,
    points::Points,
    ports::{Journal, Operation, Pending, Resource},
    protocol::Configuration,
    worker::Worker,
};

/// The run's clock, the clock of the worker, and all events with their times.
#[derive(Default)]
struct World {
    now_ms: AtomicU64,
    ahead_ms: AtomicU64,
    /// The worker's clock jumps so far as the next sleep begins.
    jump_ms: AtomicU64,
    events: Mutex<Vec<(u64, Event)>>,
    worker: OnceLock<Worker>,
    /// The number of the worker's process in the run.
    process: u32,
    /// The owners of all attempts.
    owners: Mutex<Vec<Owner>>,
    /// The keys that were read at the end.
    final_reads: Mutex<Vec<Key>>,
    /// The number of requests for the lock, and the number of the one during which the worker is stopped.
    requests: AtomicU64,
    stops_at: u64,
    /// The time that this request takes before the stop, and after it.
    takes_ms: (u64, u64),
    /// True if another client holds the lock for ever.
    is_held: bool,
    /// The servers round leases up to a multiple of this.
    lease_step: Duration,
    /// The lease that renewals request.
    renew_for: Option<Duration>,
}

struct Double(Arc<World>);

impl Journal for Double {
    fn now(&self) -> Stamp {
        Stamp(self.0.now_ms.load(Ordering::Relaxed) * 1_000_000)
    }

    fn record(&self, event: Event) -> Stamp {
        let at = Journal::now(self);
        self.record_at(at, event);
        at
    }

    fn record_at(&self, at: Stamp, event: Event) {
        self.0.events.lock().unwrap().push((at.0 / 1_000_000, event));
    }
}

impl Clock for Double {
    fn now(&self) -> Duration {
        let (now_ms, ahead_ms) = (&self.0.now_ms, &self.0.ahead_ms);
        Duration::from_millis(now_ms.load(Ordering::Relaxed).saturating_add(ahead_ms.load(Ordering::Relaxed)))
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        let world = self.0.clone();
        Box::pin(async move {
            let jump_ms = world.jump_ms.swap(0, Ordering::Relaxed);
            let ahead_ms = world.ahead_ms.fetch_add(jump_ms, Ordering::Relaxed) + jump_ms;
            let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
            world.now_ms.fetch_max(at_ms.saturating_sub(ahead_ms), Ordering::Relaxed);
        })
    }
}

impl Node for Double {
    fn name(&self) -> &str {
        "redis-1"
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        let answer = match step {
            Step::Acquire(_, owner, _) => {
                self.0.owners.lock().unwrap().push(owner);
                let World { now_ms, worker, requests, stops_at, takes_ms: (before, after), is_held, .. } = &*self.0;
                if requests.fetch_add(1, Ordering::Relaxed) + 1 == *stops_at {
                    now_ms.fetch_add(*before, Ordering::Relaxed);
                    worker.get().unwrap().stop();
                    now_ms.fetch_add(*after, Ordering::Relaxed);
                }
                if *is_held { StepAnswer::Refused } else { StepAnswer::Granted(locks::Token(7)) }
            }
            _ => StepAnswer::Done,
        };
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// A lock whose attempts wait in a queue without end. The worker is stopped during the first attempt.
struct Queue(Arc<World>);

impl Lock for Queue {
    fn acquire<'a>(
        &'a self,
        _: &'a locks::Key,
        _: Owner,
        _: Duration,
        watch: &'a dyn Watch,
    ) -> locks::Operation<'a, Hold> {
        watch.sending(Round::Acquire);
        Box::pin(async move {
            if self.0.requests.fetch_add(1, Ordering::Relaxed) == 0 {
                self.0.now_ms.fetch_add(self.0.takes_ms.0, Ordering::Relaxed);
                self.0.worker.get().unwrap().stop();
            }
            pending::<Result<Hold, locks::Failure>>().await
        })
    }

    fn waits(&self) -> bool {
        true
    }

    fn renew<'a>(&'a self, _: &'a mut Hold, _: Duration, _: &'a dyn Watch) -> locks::Operation<'a, Renewed> {
        unreachable!("no client has a hold")
    }

    fn release<'a>(&'a self, _: &'a Hold, _: &'a dyn Watch) -> locks::Operation<'a, Released> {
        unreachable!("no client has a hold")
    }

    fn cancel<'a>(&'a self, _: &'a locks::Key, _: &'a Owner, _: Duration, _: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(ready(()))
    }
}

/// The sections of the tests have no operations.
struct AtTheEnd(Arc<World>);

impl Resource for AtTheEnd {
    fn read<'a>(&'a self, _: &Operation) -> Pending<'a, ReadAnswer> {
        unreachable!("no section reads")
    }

    fn final_read<'a>(&'a self, key: &Key) -> Pending<'a, ReadAnswer> {
        self.0.final_reads.lock().unwrap().push(key.clone());
        let answer = ReadAnswer { number: Version(1), repeat: false, arms: BTreeMap::new() };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn write<'a>(&'a self, _: &Operation, _: &BTreeMap<Arm, (Version, String)>) -> Pending<'a, WriteAnswer> {
        unreachable!("no section writes")
    }
}

/// The second worker, with so many clients, each with so many sections, which are due at 500 ms, at 1,500 ms and so on.
fn configuration(world: &World, clients: u32, sections: u32) -> Configuration {
    let script = Scripted {
        worker: "worker-2".into(),
        from: Duration::from_millis(500),
        sections,
        every: Duration::from_secs(1),
        writes: Some(0),
        reads: None,
        attempts: None,
    };
    let servers = serde_json::from_str(include_str!("../../tests/shared/servers/redis.json")).unwrap();
    let workload = Workload { workers: 2, clients_per_worker: clients, script: vec![script], ..Workload::default() };
    let plan = Plan {
        schema: 1,
        seed: 1,
        cluster: ClusterKind::Sim,
        backend: "redis".into(),
        tokens: Tokens::Counter,
        time: Duration::from_secs(10),
        lease: Duration::from_secs(60),
        arms: vec![Arm::Off],
        fence: Comparison::Default,
        resource: Default::default(),
        lock_nodes: vec!["redis-1".into()],
        servers: ServerFacts { lease_step: world.lease_step, ..servers },
        workload: Workload { renew_for: world.renew_for, ..workload },
        activity: Activity::default(),
        nemesis: Vec::new(),
        models: None,
        own_servers: Default::default(),
        program: None,
        waits: Vec::new(),
        schedule: Vec::new(),
    };
    Configuration {
        process: world.process,
        first_client: ClientId(clients),
        plan,
        backend: "redis".into(),
        lock_nodes: Vec::new(),
        access: Default::default(),
        namespace: String::new(),
        resource: "http://resource:8080".into(),
    }
}

/// The worker of this configuration.
fn worker(world: &Arc<World>, clients: u32, sections: u32) -> &Worker {
    let double = || Arc::new(Double(world.clone()));
    worker_over(world, clients, sections, Arc::new(Redis::new(double(), double())))
}

/// The worker of this configuration, over this lock.
fn worker_over(world: &Arc<World>, clients: u32, sections: u32, lock: Arc<dyn Lock>) -> &Worker {
    let configuration = configuration(world, clients, sections);
    let double = || Arc::new(Double(world.clone()));
    let recording = Recording { journal: double(), clock: double(), points: Arc::new(Points::default()) };
    world.worker.get_or_init(|| Worker::over(configuration, recording, lock, Arc::new(AtTheEnd(world.clone()))))
}

/// Runs a worker with one client until it is stopped.
fn run(world: World) -> Vec<(u64, Event)> {
    let world = Arc::new(world);
    block_on(worker(&world, 1, 100).run());
    world.events.lock().unwrap().clone()
}

#[test]
fn a_section_that_falls_due_after_the_stop_is_not_offered() {
    let events = run(World { stops_at: 1, takes_ms: (3_000, 20_000), ..World::default() });
    // At the stop, at 3.5 s, the client is busy with the first section, and three more are due.
    assert_eq!(events.last(), Some(&(23_500, Event::Sections { offered: 4, done: 1, dropped: 3 })));
}

/// The times at which three sections began, and at which they were due, if the worker's clock jumps before the first.
fn began(jump_ms: u64) -> Vec<(u64, u64)> {
    let events = run(World { jump_ms: AtomicU64::new(jump_ms), stops_at: 3, ..World::default() });
    let began = events.iter().filter_map(|(at, event)| match event {
        Event::Acquire { intended, .. } => Some((*at, intended.0 / 1_000_000)),
        _ => None,
    });
    began.collect()
}

#[test]
fn a_jump_of_the_workers_clock_begins_no_section_early() {
    for jump_ms in [0, 60_000, 60_000_000_000] {
        assert_eq!(began(jump_ms), [(500, 500), (1_500, 1_500), (2_500, 2_500)], "{jump_ms}");
    }
}

#[test]
fn a_clock_at_its_largest_reading_stops_no_client() {
    assert_eq!(began(u64::MAX).len(), 3);
}

#[test]
fn after_the_stop_a_client_outlasts_a_dead_holder_and_no_more() {
    let events = run(World { stops_at: 1, is_held: true, ..World::default() });
    let (ended, sections) = events.last().unwrap();
    assert_eq!(*sections, Event::Sections { offered: 1, done: 0, dropped: 1 });
    // From 500 ms on: the lease of 60 s, 602 ms for the drift of the clocks, and a second. A retry comes within 150 ms.
    assert!((62_102..=62_252).contains(ended), "{ended} ms");
}

#[test]
fn an_attempt_in_a_queue_outlasts_a_dead_holder_after_the_stop() {
    let world = Arc::new(World { takes_ms: (2_000, 0), ..World::default() });
    block_on(worker_over(&world, 1, 1, Arc::new(Queue(world.clone()))).run());
    let events = world.events.lock().unwrap();
    let failed = events.iter().find(|(_, event)| matches!(event, Event::AcquireFailed { .. }));
    // From the stop at 2,500 ms on: the lease of 60 s, 602 ms for the drift of the clocks, and a second.
    assert_eq!(failed.map(|(at, _)| *at), Some(64_102));
    assert_eq!(events.last().unwrap().1, Event::Sections { offered: 1, done: 0, dropped: 1 });
}

#[test]
fn the_wait_after_the_stop_counts_the_lease_that_was_granted() {
    let s = Duration::from_secs;
    // From 500 ms on: the lease that blocks the key for longest, 1 % of it and 2 ms, and a second.
    for (lease_step, renew_for, from_ms) in [(s(45), None, 92_402), (Duration::ZERO, Some(s(80)), 82_302)] {
        let events = run(World { stops_at: 1, is_held: true, lease_step, renew_for, ..World::default() });
        let ended = events.last().unwrap().0;
        assert!((from_ms..=from_ms + 150).contains(&ended), "{ended} ms");
    }
}

#[test]
fn clients_whose_script_is_over_wait_for_the_stop() {
    let world = Arc::new(World::default());
    let worker = worker(&world, 2, 1);
    let mut running = pin!(worker.run());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(running.as_mut().poll(&mut cx).is_pending());
    worker.stop();
    assert!(running.as_mut().poll(&mut cx).is_ready());
    let events = world.events.lock().unwrap();
    let clients = events.iter().filter_map(|(_, event)| match event {
        Event::Acquire { client, .. } => Some(client.0),
        _ => None,
    });
    assert_eq!(clients.collect::<Vec<_>>(), [2, 3]);
    assert_eq!(events.last().unwrap().1, Event::Sections { offered: 2, done: 2, dropped: 0 });
}

#[test]
fn a_worker_that_is_started_again_draws_other_owners() {
    let owners = |process| {
        let world = Arc::new(World { process, stops_at: 3, ..World::default() });
        block_on(worker(&world, 1, 100).run());
        world.owners.lock().unwrap().clone()
    };
    let (first, again) = (owners(1), owners(2));
    assert_eq!((first.len(), again.len()), (3, 3));
    assert!(first.iter().all(|owner| !again.contains(owner)), "{first:?} {again:?}");
}

#[test]
fn clients_of_one_worker_draw_different_owners() {
    let world = Arc::new(World::default());
    let worker = worker(&world, 2, 3);
    let mut running = pin!(worker.run());
    assert!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let owners = world.owners.lock().unwrap();
    assert_eq!(owners.len(), 6);
    assert!(owners.iter().enumerate().all(|(n, owner)| !owners[..n].contains(owner)), "{owners:?}");
}

#[test]
fn every_key_is_read_at_the_end() {
    let world = Arc::new(World::default());
    let keys: Vec<Key> = (0..3).map(Key::numbered).collect();
    block_on(worker(&world, 1, 1).final_reads(&keys)).unwrap();
    assert_eq!(*world.final_reads.lock().unwrap(), keys);
}

#[tokio::test]
async fn only_a_worker_that_is_started_again_comes_up_without_a_lock() {
    // Two workers begin the run.
    for (process, comes_up) in [(1, false), (2, true)] {
        let world = Arc::new(World { process, ..World::default() });
        let mut configuration = configuration(&world, 1, 1);
        configuration.plan.program = Some(Program { command: vec!["/no/such/program".into()], files: Vec::new() });
        let double = || Arc::new(Double(world.clone()));
        let connected = Worker::connect(configuration, double(), double()).await;
        assert_eq!(connected.is_ok(), comes_up, "process {process}");
    }
}

/// Connects to two servers, of which only the second says its version.
fn half_connected(_: &'static str, _: Vec<ServerAddress>, _: Connecting) -> Reply<Result<Connected, NodeError>> {
    let versions = vec![Err(NodeError::Definite("no answer".into())), Ok("7.0.15".into())];
    Box::pin(std::future::ready(Ok(Connected { servers: Servers::Nodes(Vec::new()), versions })))
}

#[test]
fn only_a_late_process_comes_up_without_the_version_of_a_server() {
    let client = Client { connect: half_connected, ..*Client::named("redis").unwrap() };
    let backend = Backend { client: Box::leak(Box::new(client)), bug: None };
    let lock_nodes = vec![("redis-1".into(), "one:6379".to_owned()), ("redis-2".into(), "two:6379".to_owned())];
    let configuration = Configuration { lock_nodes, ..configuration(&World::default(), 1, 1) };
    for (is_late, expected) in [
        (false, Err(NodeError::Definite("no answer".into()))),
        (true, Ok(vec![("redis-2".into(), "7.0.15".to_owned())])),
    ] {
        let connected = block_on(backend.connect(&configuration, is_late));
        assert_eq!(connected.map(|(_, versions)| versions), expected, "late: {is_late}");
    }
}
