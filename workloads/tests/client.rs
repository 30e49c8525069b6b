//! Tests of a client, over doubles of its ports: its actions and its records.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use history::{Arm, Version};
use history::{ClientId, ClientKind, Event, HoldId, Mode, Outcome, Point, Range, Stamp, Workload};
use locks::{
    Cleanup, Clock, Hold, Lock, Node, NodeError, Owner, Redis, Reentrant, Released, Renewed, Reply, Round, Step,
    StepAnswer, Watch,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use resource::{ClientError, ReadAnswer, ReadArm, WriteAnswer};
use workloads::{
    attempt::{Attempt, Recording},
    client::{AttemptIds, Client, Ended},
    generate::{Section, Taken},
    points::Points,
    ports::{Journal, Operation, Pending, Resource},
};

/// Everything that happens, in its order: events by name, and what reached the doubles in brackets.
#[derive(Default)]
struct World {
    log: Mutex<Vec<String>>,
    events: Mutex<Vec<Event>>,
    /// The stamps of the events.
    stamps: Mutex<Vec<Stamp>>,
    now_ms: AtomicU64,
    /// The time that a request for the lock takes.
    request_ms: AtomicU64,
    /// How long the client is frozen when it comes to its write.
    freeze_ms: AtomicU64,
    /// The time after which a write without an answer is sent again; 0 for never.
    resend_ms: AtomicU64,
}

impl World {
    fn say(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
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
        let name = serde_json::to_value(&event).unwrap()["event"].as_str().unwrap().to_owned();
        self.0.say(name);
        self.0.events.lock().unwrap().push(event);
        self.0.stamps.lock().unwrap().push(at);
    }
}

impl Clock for Double {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.now_ms.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        let world = self.0.clone();
        Box::pin(async move {
            world.now_ms.fetch_max(at.as_millis() as u64, Ordering::Relaxed);
        })
    }
}

impl Node for Double {
    fn name(&self) -> &str {
        "redis-1"
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        let (name, answer) = match step {
            Step::Acquire(..) => ("[acquire]", StepAnswer::Granted(locks::Token(7))),
            Step::Release(..) => ("[release]", StepAnswer::Done),
            _ => ("[other]", StepAnswer::Done),
        };
        self.0.say(name);
        self.0.now_ms.fetch_add(self.0.request_ms.load(Ordering::Relaxed), Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// A lock that never answers an attempt.
struct Silent(Arc<World>);

impl Lock for Silent {
    fn acquire<'a>(
        &'a self,
        _: &'a locks::Key,
        _: Owner,
        _: Duration,
        watch: &'a dyn Watch,
    ) -> locks::Operation<'a, Hold> {
        watch.sending(Round::Acquire);
        Box::pin(std::future::pending())
    }

    fn renew<'a>(&'a self, _: &'a mut Hold, _: Duration, _: &'a dyn Watch) -> locks::Operation<'a, Renewed> {
        unreachable!("no client has a hold")
    }

    fn release<'a>(&'a self, _: &'a Hold, _: &'a dyn Watch) -> locks::Operation<'a, Released> {
        unreachable!("no client has a hold")
    }

    fn cancel<'a>(&'a self, _: &'a locks::Key, _: &'a Owner, _: Duration, _: &'a dyn Watch) -> Cleanup<'a> {
        self.0.say("[cancel]");
        Box::pin(std::future::ready(()))
    }
}

struct Guarded {
    world: Arc<World>,
    write: fn() -> Result<WriteAnswer, ClientError>,
}

impl Resource for Guarded {
    fn read<'a>(&'a self, operation: &Operation) -> Pending<'a, ReadAnswer> {
        assert_eq!(operation.token, Some(history::Token(7)));
        self.world.say("[read]");
        let arm = ReadArm { value: Some("41".into()), version: Version(5), seen: Some(history::Token(3)) };
        Box::pin(std::future::ready(Ok(ReadAnswer {
            number: Version(6),
            repeat: false,
            arms: BTreeMap::from([(Arm::Off, arm)]),
        })))
    }

    fn final_read<'a>(&'a self, _: &history::Key) -> Pending<'a, ReadAnswer> {
        unreachable!("clients make no final reads")
    }

    fn write<'a>(&'a self, _: &Operation, values: &BTreeMap<Arm, (Version, String)>) -> Pending<'a, WriteAnswer> {
        assert_eq!(values[&Arm::Off], (Version(5), "42".to_owned()), "one more than was read, from where it was read");
        let frozen = self.world.freeze_ms.load(Ordering::Relaxed);
        self.world.now_ms.fetch_add(frozen, Ordering::Relaxed);
        let world = self.world.clone();
        let answer = (self.write)();
        Box::pin(async move {
            world.say("[write]");
            answer
        })
    }
}

fn written() -> Result<WriteAnswer, ClientError> {
    Ok(WriteAnswer { number: Version(8), repeat: false, arms: BTreeMap::new(), contrary: None })
}

fn refused() -> Result<WriteAnswer, ClientError> {
    let arm = resource::WriteArm { admitted: false, seen: Some(history::Token(9)) };
    let arms = BTreeMap::from([(Arm::Off, arm)]);
    Ok(WriteAnswer { number: Version(8), repeat: false, arms, contrary: Some(Arm::Off) })
}

fn timed_out() -> Result<WriteAnswer, ClientError> {
    Err(ClientError::Indeterminate("no answer".into()))
}

/// The request was certainly not applied.
fn not_sent() -> Result<WriteAnswer, ClientError> {
    Err(ClientError::Failed("connection refused".into()))
}

/// A client of the lock, and of a resource that answers each write like this.
fn client(
    world: &Arc<World>,
    kind: ClientKind,
    write: fn() -> Result<WriteAnswer, ClientError>,
    points: Arc<Points>,
) -> Client {
    let ms = Duration::from_millis;
    let double = || Arc::new(Double(world.clone()));
    let lock: Arc<dyn Lock> = Arc::new(Redis::new(double(), double()));
    Client {
        id: ClientId(3),
        lock,
        resource: Arc::new(Guarded { world: world.clone(), write }),
        recording: Recording { journal: double(), clock: double(), points },
        workload: Workload {
            workers: 1,
            clients_per_worker: 1,
            keys: 1,
            rate_per_s: 1.0,
            work: Range { from: ms(100), to: ms(100) },
            retry_delay: Range { from: ms(50), to: ms(50) },
            client: kind,
            renew: None,
            resend: Some(ms(world.resend_ms.load(Ordering::Relaxed))).filter(|every| !every.is_zero()),
            ..Workload::default()
        },
        lease: ms(2_000),
        namespace: "".into(),
        attempts: Arc::new(AttemptIds::new(2)),
    }
}

/// A critical section that takes these locks, works for 100 ms and writes once under each.
fn of_locks(keys: &[&str]) -> Section {
    Section {
        due: Duration::ZERO,
        above: None,
        locks: keys.iter().map(|key| Taken::new((*key).into(), Mode::Write)).collect(),
        work: Duration::from_millis(100),
        writes: 1,
        attempts: None,
    }
}

/// Runs a section of a client that gives up after one attempt. Returns none if the client waits without end.
fn run(client: &Client, section: &Section) -> Option<Ended> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    client.section(section, Stamp(0), &mut rng, &|| true, &|| Box::pin(std::future::pending())).now_or_never()
}

/// One critical section of one client; the world has its course.
fn section(world: &Arc<World>, kind: ClientKind, write: fn() -> Result<WriteAnswer, ClientError>, points: Arc<Points>) {
    assert_eq!(run(&client(world, kind, write, points), &of_locks(&["k0"])), Some(Ended::Done));
}

#[test]
fn every_invocation_is_on_record_before_its_request_leaves() {
    let world = Arc::new(World::default());
    section(&world, ClientKind::Unchecked, written, Arc::default());
    let expected = [
        "acquire",
        "[acquire]",
        "acquired",
        "read",
        "[read]",
        "read-ok",
        "work",
        "write",
        "[write]",
        "write-ok",
        "release",
        "[release]",
        "released",
    ];
    assert_eq!(world.log(), expected);
}

#[test]
fn the_stamps_of_a_hold_are_those_of_its_request_and_answer() {
    let (now_ms, request_ms) = (AtomicU64::new(1_000), AtomicU64::new(30));
    let world = Arc::new(World { now_ms, request_ms, ..World::default() });
    section(&world, ClientKind::Unchecked, written, Arc::default());
    let (events, stamps) = (world.events.lock().unwrap(), world.stamps.lock().unwrap());
    let acquired = events.iter().zip(stamps.iter()).find_map(|(event, at)| match event {
        Event::Acquired { granted_after, .. } => Some([*granted_after, *at]),
        _ => None,
    });
    assert_eq!(acquired, Some([1_000, 1_030].map(|ms: u64| Stamp(ms * 1_000_000))));
}

#[test]
fn operations_under_a_hold_are_numbered_from_one() {
    let world = Arc::new(World::default());
    let section = Section { writes: 2, ..of_locks(&["k0"]) };
    run(&client(&world, ClientKind::Unchecked, written, Arc::default()), &section);
    let events = world.events.lock().unwrap();
    let numbers = events.iter().filter_map(|e| match e {
        Event::Read { op, .. } | Event::Write { op, .. } => Some(op.0),
        _ => None,
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn only_a_client_with_a_time_to_cancel_abandons_a_silent_lock() {
    for (cancel_ms, ended, log) in
        [(None, None, "acquire"), (Some(200), Some(Ended::Dropped), "acquire [cancel] acquire-failed")]
    {
        let world = Arc::new(World::default());
        let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
        client.lock = Arc::new(Silent(world.clone()));
        client.workload.cancel = cancel_ms.map(Duration::from_millis);
        assert_eq!((run(&client, &of_locks(&["k0"])), world.log().join(" ")), (ended, log.to_owned()));
    }
}

#[test]
fn a_checking_client_writes_until_its_deadline_and_not_after_it() {
    for (deadline_ms, freeze_ms, writes) in
        [(None, 0, true), (None, 1_800, true), (None, 1_900, false), (Some(500), 350, true), (Some(500), 400, false)]
    {
        let world = Arc::new(World { freeze_ms: AtomicU64::new(freeze_ms), ..World::default() });
        let mut client = client(&world, ClientKind::Checking, written, Arc::default());
        client.workload.deadline = deadline_ms.map(Duration::from_millis);
        assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Done));
        let has = |name: &str| world.log().iter().any(|said| said == name);
        assert_eq!((has("[write]"), has("loss-noticed")), (writes, !writes), "{deadline_ms:?}, {freeze_ms}");
    }
}

#[test]
fn a_checking_client_that_was_frozen_past_its_deadline_does_not_write() {
    let world = Arc::new(World::default());
    world.freeze_ms.store(3_000, Ordering::Relaxed);
    section(&world, ClientKind::Checking, written, Arc::default());
    let log = world.log();
    assert!(!log.contains(&"[write]".to_owned()), "{log:?}");
    assert_eq!(log[log.len() - 5..], ["check", "loss-noticed", "release", "[release]", "released"]);
    let unchecked = Arc::new(World::default());
    unchecked.freeze_ms.store(3_000, Ordering::Relaxed);
    section(&unchecked, ClientKind::Unchecked, written, Arc::default());
    assert!(unchecked.log().contains(&"[write]".to_owned()), "an unchecked one does");
}

#[test]
fn after_a_write_that_may_still_arrive_the_hold_is_kept() {
    let world = Arc::new(World::default());
    section(&world, ClientKind::Unchecked, timed_out, Arc::default());
    let log = world.log();
    assert_eq!(log[log.len() - 3..], ["[write]", "access-failed", "gave-up"]);
    let events = world.events.lock().unwrap();
    let failed = events.iter().find_map(|e| match e {
        Event::AccessFailed { outcome, .. } => Some(*outcome),
        _ => None,
    });
    assert_eq!(failed, Some(Outcome::Indeterminate));
}

#[test]
fn a_write_that_may_still_arrive_is_the_last_of_its_section() {
    let world = Arc::new(World::default());
    let client = client(&world, ClientKind::Unchecked, timed_out, Arc::default());
    assert_eq!(run(&client, &of_locks(&["k0", "k1"])), Some(Ended::Done));
    let log = world.log();
    assert_eq!(log[log.len() - 3..], ["[write]", "access-failed", "gave-up"]);
    assert_eq!(log.iter().filter(|said| *said == "acquire").count(), 1, "{log:?}");
}

#[test]
fn after_a_write_that_never_left_the_hold_is_released() {
    let world = Arc::new(World { resend_ms: AtomicU64::new(50), ..World::default() });
    section(&world, ClientKind::Unchecked, not_sent, Arc::default());
    let log = world.log();
    assert_eq!(log[log.len() - 5..], ["[write]", "access-failed", "release", "[release]", "released"]);
    assert!(!log.contains(&"resend".to_owned()), "{log:?}");
}

/// The first copy of a write gets no answer, every later copy cannot be sent.
fn refused_after_a_timeout() -> Result<WriteAnswer, ClientError> {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    match COPIES.fetch_add(1, Ordering::Relaxed) {
        0 => timed_out(),
        _ => not_sent(),
    }
}

#[test]
fn a_copy_that_failed_does_not_take_back_a_copy_that_may_arrive() {
    let world = Arc::new(World::default());
    world.resend_ms.store(50, Ordering::Relaxed);
    section(&world, ClientKind::Unchecked, refused_after_a_timeout, Arc::default());
    let events = world.events.lock().unwrap();
    let outcomes: Vec<_> = events
        .iter()
        .filter_map(|e| match e {
            Event::AccessFailed { outcome, .. } => Some(*outcome),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, [Outcome::Indeterminate]);
    assert!(events.iter().any(|e| matches!(e, Event::GaveUp { .. })), "the hold is not released");
}

#[test]
fn completions_record_what_each_arm_answered() {
    let world = Arc::new(World::default());
    section(&world, ClientKind::Unchecked, refused, Arc::default());
    let events = world.events.lock().unwrap();
    let of = |name: &str| {
        let event = events.iter().map(|e| serde_json::to_value(e).unwrap()).find(|e| e["event"] == name);
        event.unwrap()["arms"].to_string()
    };
    assert_eq!(
        (of("read-ok"), of("write-ok")),
        (r#"[["off",5,3]]"#.into(), r#"[["off",false,9],["off",true,9]]"#.into())
    );
}

#[test]
fn only_an_armed_client_announces_its_point_and_waits_no_longer_than_its_bound() {
    let world = Arc::new(World::default());
    let points = Arc::new(Points::default());
    points.arm(ClientId(3), Point::BeforeWrite, Duration::from_millis(700));
    points.arm(ClientId(4), Point::AfterRead, Duration::from_millis(700));
    section(&world, ClientKind::Unchecked, written, points.clone());
    let log = world.log();
    let at = log.iter().position(|e| e == "at-point").unwrap();
    assert_eq!(log[at - 1..at + 4], ["work", "at-point", "left-point", "write", "[write]"]);
    assert!(world.now_ms.load(Ordering::Relaxed) >= 800, "100 ms of work and the bound");
    assert_eq!(log.iter().filter(|e| *e == "at-point").count(), 1, "the other client's arming is not its own");
    // It was armed for one passage.
    let again = Arc::new(World::default());
    section(&again, ClientKind::Unchecked, written, points);
    assert!(!again.log().contains(&"at-point".to_owned()));
}

#[test]
fn an_armed_client_waits_at_each_of_its_points() {
    for (point, next) in [
        (Point::BeforeAcquire, "acquire"),
        (Point::AfterSend, "acquired"),
        (Point::AfterAcquire, "read"),
        (Point::AfterRead, "work"),
        (Point::AfterCheck, "write"),
        (Point::BeforeWrite, "write"),
        (Point::BeforeRelease, "release"),
    ] {
        let (world, points) = (Arc::new(World::default()), Arc::new(Points::default()));
        points.arm(ClientId(3), point, Duration::from_millis(10));
        section(&world, ClientKind::Checking, written, points);
        let log = world.log();
        assert!(log.windows(3).any(|three| three == ["at-point", "left-point", next]), "{point:?}: {log:?}");
    }
}

#[test]
fn the_detail_of_a_failed_attempt_is_short() {
    let world = Arc::new(World::default());
    let double = || Arc::new(Double(world.clone()));
    let recording = Recording { journal: double(), clock: double(), points: Arc::default() };
    let attempt = Attempt::new(recording, ClientId(3), HoldId::of(2, 1), "k0".into(), Stamp(0), Mode::Write, None);
    let reason = locks::FailureReason::Error("ä".repeat(1 << 20));
    attempt.failed(&locks::Failure { reason, outcome: locks::Outcome::Indeterminate, answers: Vec::new() });
    let events = world.events.lock().unwrap();
    let [Event::AcquireFailed { detail: Some(detail), .. }] = &events[..] else { panic!("another event") };
    assert_eq!((detail.chars().count(), detail.ends_with('…')), (1_001, true));
}

/// A clock that goes on by 1.5 s at each reading.
#[derive(Default)]
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1_500, Ordering::Relaxed))
    }

    fn sleep_until(&self, _: Duration) -> Reply<()> {
        unreachable!("a re-entry waits for nothing")
    }
}

#[test]
fn a_hold_that_lapses_between_re_entries_is_left_and_released() {
    let world = Arc::new(World::default());
    let mut client = client(&world, ClientKind::Unchecked, written, Arc::default());
    client.workload.reenter = 3;
    // The hold of 2 s has lapsed at the third re-entry.
    client.lock = Arc::new(Reentrant::new(client.lock.clone(), Arc::new(Hasty::default())));
    assert_eq!(run(&client, &of_locks(&["k0"])), Some(Ended::Done));
    let expected = "work reentered reentered loss-noticed left left release [release] released left";
    let log = world.log();
    assert_eq!(log[log.len() - 10..].join(" "), expected);
}
