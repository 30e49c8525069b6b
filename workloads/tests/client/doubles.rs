//! The doubles of a client's ports, and a client over them.

use std::{
    collections::BTreeMap,
    future::{pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use history::{Arm, ClientId, ClientKind, Event, Mode, Range, Stamp, Version, Workload};
use locks::{
    Cleanup, Clock, Hold, Lock, Node, NodeError, Owner, Redis, Released, Renewed, Reply, Round, Step, StepAnswer, Watch,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use resource::{ClientError, ReadAnswer, ReadArm, WriteAnswer};
use workloads::{
    attempt::Recording,
    client::{AttemptIds, Client, Ended},
    generate::{Section, Taken},
    points::Points,
    ports::{Journal, Operation, Pending, Resource},
};

/// Everything that happens, in its order: events by name, and what reached the doubles in brackets.
#[derive(Default)]
pub struct World {
    pub log: Mutex<Vec<String>>,
    pub events: Mutex<Vec<Event>>,
    /// The stamps of the events.
    pub stamps: Mutex<Vec<Stamp>>,
    pub now_ms: AtomicU64,
    /// The time that a request for the lock takes.
    pub request_ms: AtomicU64,
    /// How long the client is frozen when it comes to its write.
    pub freeze_ms: AtomicU64,
    /// The time after which a write without an answer is sent again; 0 for never.
    pub resend_ms: AtomicU64,
    /// No sleep beyond this time ever ends; 0 for no limit.
    pub last_sleep_ms: AtomicU64,
    /// True if no answer comes to a read.
    pub loses_reads: bool,
    /// True if no answer comes to a release.
    pub loses_releases: bool,
    /// True if another client holds the lock.
    pub is_held: bool,
    /// True if the service finds that a client would wait for a silent lock in a cycle.
    pub has_cycle: bool,
    /// The key whose hold is lost at its first renewal.
    pub lost: Option<&'static str>,
    /// True if the resource has the arm `deadline` too.
    pub has_deadlines: bool,
    /// The deadlines of all writes.
    pub deadlines: Mutex<Vec<Option<u64>>>,
}

impl World {
    pub fn say(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

pub struct Double(pub Arc<World>);

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
        let (world, at_ms) = (self.0.clone(), at.as_millis() as u64);
        Box::pin(async move {
            let last_ms = world.last_sleep_ms.load(Ordering::Relaxed);
            if last_ms > 0 && at_ms > last_ms {
                pending::<()>().await;
            }
            world.now_ms.fetch_max(at_ms, Ordering::Relaxed);
        })
    }
}

impl Node for Double {
    fn name(&self) -> &str {
        "redis-1"
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        let (name, answer) = match &step {
            Step::Acquire(..) if self.0.is_held => ("[acquire]", StepAnswer::Refused),
            Step::Acquire(..) => ("[acquire]", StepAnswer::Granted(locks::Token(7))),
            Step::Release(..) => ("[release]", StepAnswer::Done),
            Step::Extend(key, ..) if self.0.lost == Some(key.as_str()) => ("[other]", StepAnswer::Refused),
            _ => ("[other]", StepAnswer::Done),
        };
        self.0.say(name);
        self.0.now_ms.fetch_add(self.0.request_ms.load(Ordering::Relaxed), Ordering::Relaxed);
        let is_lost = self.0.loses_releases && name == "[release]";
        let answer = if is_lost { Err(NodeError::Indeterminate("no answer".into())) } else { Ok(answer) };
        Box::pin(ready(answer))
    }
}

/// A lock that never answers an attempt, unless there is a cycle.
pub struct Silent(pub Arc<World>);

impl Lock for Silent {
    fn acquire<'a>(
        &'a self,
        _: &'a locks::Key,
        _: Owner,
        _: Duration,
        watch: &'a dyn Watch,
    ) -> locks::Operation<'a, Hold> {
        watch.sending(Round::Acquire);
        if self.0.has_cycle {
            let (reason, outcome) = (locks::FailureReason::Deadlock, locks::Outcome::Failed);
            return Box::pin(ready(Err(locks::Failure { reason, outcome, answers: Vec::new() })));
        }
        Box::pin(pending())
    }

    fn renew<'a>(&'a self, _: &'a mut Hold, _: Duration, _: &'a dyn Watch) -> locks::Operation<'a, Renewed> {
        unreachable!("no client has a hold")
    }

    fn release<'a>(&'a self, _: &'a Hold, _: &'a dyn Watch) -> locks::Operation<'a, Released> {
        unreachable!("no client has a hold")
    }

    fn cancel<'a>(&'a self, _: &'a locks::Key, _: &'a Owner, _: Duration, _: &'a dyn Watch) -> Cleanup<'a> {
        self.0.say("[cancel]");
        Box::pin(ready(()))
    }
}

/// A lock that never answers an attempt at `key`, and whose attempts may wait.
pub struct SilentAt {
    pub key: &'static str,
    pub silent: Silent,
    pub lock: Arc<dyn Lock>,
}

impl Lock for SilentAt {
    fn acquire<'a>(
        &'a self,
        key: &'a locks::Key,
        owner: Owner,
        lease: Duration,
        watch: &'a dyn Watch,
    ) -> locks::Operation<'a, Hold> {
        let lock: &dyn Lock = if key.as_str() == self.key { &self.silent } else { &*self.lock };
        lock.acquire(key, owner, lease, watch)
    }

    fn waits(&self) -> bool {
        true
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> locks::Operation<'a, Renewed> {
        self.lock.renew(hold, lease, watch)
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> locks::Operation<'a, Released> {
        self.lock.release(hold, watch)
    }

    fn cancel<'a>(
        &'a self,
        key: &'a locks::Key,
        owner: &'a Owner,
        lease: Duration,
        watch: &'a dyn Watch,
    ) -> Cleanup<'a> {
        self.silent.cancel(key, owner, lease, watch)
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
        if self.world.loses_reads {
            return Box::pin(ready(Err(ClientError::Indeterminate("no answer".into()))));
        }
        let arm = ReadArm { value: Some("41".into()), version: Version(5), seen: Some(history::Token(3)) };
        let arms = [Some(Arm::Off), self.world.has_deadlines.then_some(Arm::Deadline)];
        let arms = arms.into_iter().flatten().map(|name| (name, arm.clone())).collect();
        Box::pin(ready(Ok(ReadAnswer { number: Version(6), repeat: false, arms })))
    }

    fn final_read<'a>(&'a self, _: &history::Key) -> Pending<'a, ReadAnswer> {
        unreachable!("clients make no final reads")
    }

    fn write<'a>(
        &'a self,
        operation: &Operation,
        values: &BTreeMap<Arm, (Version, String)>,
    ) -> Pending<'a, WriteAnswer> {
        self.world.deadlines.lock().unwrap().push(operation.deadline_us);
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

pub fn written() -> Result<WriteAnswer, ClientError> {
    Ok(WriteAnswer { number: Version(8), repeat: false, arms: BTreeMap::new(), contrary: None })
}

pub fn refused() -> Result<WriteAnswer, ClientError> {
    let arm = resource::WriteArm { admitted: false, seen: Some(history::Token(9)) };
    let arms = BTreeMap::from([(Arm::Off, arm)]);
    Ok(WriteAnswer { number: Version(8), repeat: false, arms, contrary: Some(Arm::Off) })
}

pub fn timed_out() -> Result<WriteAnswer, ClientError> {
    Err(ClientError::Indeterminate("no answer".into()))
}

/// The request was certainly not applied.
pub fn not_sent() -> Result<WriteAnswer, ClientError> {
    Err(ClientError::Failed("connection refused".into()))
}

/// A client of the lock, and of a resource that answers each write like this.
pub fn client(
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
pub fn of_locks(keys: &[&str]) -> Section {
    Section {
        due: Duration::ZERO,
        above: None,
        locks: keys.iter().map(|key| Taken::new((*key).into(), Mode::Write)).collect(),
        work: Duration::from_millis(100),
        writes: 1,
        attempts: None,
    }
}

/// Gives a client keys below a parent. Returns a critical section that takes the parent k0, and then writes k1.
pub fn of_parent(client: &mut Client) -> Section {
    client.workload = Workload { keys: 2, hierarchy: 0.5, ..client.workload.clone() };
    let parent = Taken { key: "k0".into(), mode: Mode::Write, data: Vec::new() };
    Section { locks: vec![parent, Taken::new("k1".into(), Mode::Write)], ..of_locks(&[]) }
}

/// Runs a section of a client that gives up after one attempt. Returns none if the client waits without end.
pub fn run(client: &Client, section: &Section) -> Option<Ended> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    client.section(section, Stamp(0), &mut rng, &|| true, &|| Box::pin(pending())).now_or_never()
}

/// One critical section of one client; the world has its course.
pub fn section(
    world: &Arc<World>,
    kind: ClientKind,
    write: fn() -> Result<WriteAnswer, ClientError>,
    points: Arc<Points>,
) {
    assert_eq!(run(&client(world, kind, write, points), &of_locks(&["k0"])), Some(Ended::Done));
}
