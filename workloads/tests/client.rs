//! Tests of a client, over doubles of its ports: its actions and its records.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::executor::block_on;
use history::{Arm, Version};
use history::{ClientId, ClientKind, Event, HoldId, Mode, Outcome, Point, Range, Stamp, Workload};
use locks::{Clock, Lock, Node, NodeError, Redis, Reply, Step, StepAnswer};
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
    now_ms: AtomicU64,
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

    fn record_at(&self, _: Stamp, event: Event) {
        let name = serde_json::to_value(&event).unwrap()["event"].as_str().unwrap().to_owned();
        self.0.say(name);
        self.0.events.lock().unwrap().push(event);
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
        Box::pin(std::future::ready(Ok(answer)))
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

/// One critical section of one client; what became of it stands in the world.
fn section(world: &Arc<World>, kind: ClientKind, write: fn() -> Result<WriteAnswer, ClientError>, points: Arc<Points>) {
    let ms = Duration::from_millis;
    let double = || Arc::new(Double(world.clone()));
    let lock: Arc<dyn Lock> = Arc::new(Redis::new(double(), double()));
    let client = Client {
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
    };
    let section = Section {
        due: ms(0),
        above: None,
        locks: vec![Taken::new("k0".into(), Mode::Write)],
        work: ms(100),
        writes: 1,
        attempts: None,
    };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    assert_eq!(
        block_on(client.section(&section, Stamp(0), &mut rng, &|| false, &|| Box::pin(std::future::pending()))),
        Ended::Done
    );
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

/// The first copy of a write gets no answer, every later copy cannot be sent.
fn refused_after_a_timeout() -> Result<WriteAnswer, ClientError> {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    match COPIES.fetch_add(1, Ordering::Relaxed) {
        0 => timed_out(),
        _ => Err(ClientError::Failed("connection refused".into())),
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
