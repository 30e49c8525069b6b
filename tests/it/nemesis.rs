//! The nemesis over a double of the cluster: a freezer that does nothing is found out, and the run says nothing; placed faults and kills.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use checker::Verdict;
use history::{
    Activity, Arm, ClientId, ClientKind, ClusterKind, Comparison, Event, Fault, FaultId, FaultPhase, HoldId,
    NodeAnswer, NodeName, Plan, Point, ProcessName, Range, Record, Role, Stamp, Step, Tail, Target, Tokens, When,
    Workload,
};
use nemesis::{Cluster, Control, Doing, Nemesis, Scene};

/// A cluster whose engine answers `Ok` and does nothing, or does what it is asked for.
struct Double {
    works: bool,
    killed: AtomicBool,
    let_go: Mutex<Vec<&'static str>>,
    frozen_since: Mutex<Option<Stamp>>,
    now: AtomicU64,
    seq: AtomicU64,
    records: Mutex<Vec<Record>>,
    scene: Scene,
}

impl Double {
    fn now(&self) -> Stamp {
        Stamp(self.now.load(Ordering::Relaxed))
    }

    fn record(&self, process: &str, event: Event) -> Stamp {
        let at = Stamp(self.now.fetch_add(1_000, Ordering::Relaxed));
        let mut records = self.records.lock().unwrap();
        let n = records.iter().filter(|r| r.process.as_str() == process).count() as u64;
        let at = if process == "controller" { Stamp(0) } else { at };
        let record =
            Record { seq: self.seq.fetch_add(1, Ordering::Relaxed), process: ProcessName::new(process), n, at, event };
        records.push(record.clone());
        drop(records);
        self.scene.see(&record);
        at
    }

    /// Time goes by: whoever runs says so.
    fn pass(&self, by: Duration) {
        self.now.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        if self.frozen_since.lock().unwrap().is_none() && !self.killed.load(Ordering::Relaxed) {
            self.record("worker-1", Event::Watermark);
        }
        for process in ["worker-2", "resource", "agent"] {
            self.record(process, Event::Watermark);
        }
    }
}

fn done<'a, T: Send + 'a>(value: T) -> Doing<'a, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Cluster for Double {
    fn freeze<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        if self.works {
            *self.frozen_since.lock().unwrap() = Some(self.now());
        }
        done(())
    }

    fn thaw<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        let since = self.frozen_since.lock().unwrap().take();
        if let Some(from) = since {
            let to = self.now();
            self.record("worker-1", Event::Stall { from, to, late: history::StallCause::Tick });
        }
        done(())
    }

    fn is_frozen<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(self.frozen_since.lock().unwrap().is_some())
    }

    fn kill<'a>(&'a self, _: &'a NodeName) -> Doing<'a, ()> {
        if self.works {
            self.killed.store(true, Ordering::Relaxed);
            self.record("controller", Event::ProcessEnded { ended: ProcessName::new("worker-1"), code: Some(137) });
        }
        done(())
    }

    fn start<'a>(&'a self, _: &'a NodeName, _: nemesis::Data) -> Doing<'a, ()> {
        if self.works {
            self.record("worker-1#2", started(Role::Worker));
        }
        done(())
    }

    fn is_running<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(true)
    }
}

impl Control for Double {
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp> {
        done(self.record("agent", event))
    }

    fn arm<'a>(&'a self, client: ClientId, point: Point, _: Duration) -> Doing<'a, ()> {
        self.record("worker-1", Event::AtPoint { client, hold: HoldId(1), point });
        done(())
    }

    fn let_go<'a>(&'a self, _: ClientId) -> Doing<'a, ()> {
        let frozen = self.frozen_since.lock().unwrap().is_some();
        self.let_go.lock().unwrap().push(if frozen { "while frozen" } else { "while running" });
        done(())
    }

    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
        self.pass(lasting);
        if self.killed.load(Ordering::Relaxed) && self.scene.look(|v| v.process(&"worker-1".into())).is_some() {
            self.record("worker-1#2", Event::Watermark);
        }
        done(())
    }
}

fn started(role: Role) -> Event {
    Event::Started { role, boot_id: "b".into(), time_namespace: 1 }
}

fn plan(fault: Fault, target: Target, when: When) -> Plan {
    let ms = Duration::from_millis;
    Plan {
        schema: 1,
        seed: 1,
        cluster: ClusterKind::Docker,
        backend: "redis".into(),
        tokens: Tokens::Counter,
        time: ms(10_000),
        lease: ms(2_000),
        arms: vec![Arm::Off, Arm::Writes],
        fence: Comparison::Default,
        lock_nodes: vec!["redis-1".into()],
        workload: Workload {
            workers: 2,
            clients_per_worker: 1,
            keys: 1,
            rate_per_s: 1.0,
            work: Range { from: ms(100), to: ms(200) },
            retry_delay: Range { from: ms(50), to: ms(150) },
            client: ClientKind::Unchecked,
            renew: None,
            ..Workload::default()
        },
        activity: Activity { holds: 1, clients: 1, refused: 0 },
        nemesis: vec!["pause".into()],
        models: None,
        schedule: vec![Step { id: FaultId(1), fault, target, when }],
    }
}

/// Runs the plan's one fault on the double, and gives what was recorded.
fn recorded(works: bool, plan: &Plan) -> (Double, Vec<Record>) {
    let double = Double {
        works,
        killed: AtomicBool::new(false),
        let_go: Mutex::default(),
        frozen_since: Mutex::default(),
        now: AtomicU64::new(1_000_000_000),
        seq: AtomicU64::new(0),
        records: Mutex::default(),
        scene: Scene::new(),
    };
    double.record("controller", Event::Plan { run: "double".into(), plan: Box::new(plan.clone()) });
    let roles =
        [("agent", Role::Agent), ("resource", Role::Resource), ("worker-1", Role::Worker), ("worker-2", Role::Worker)];
    for (process, role) in roles {
        double.record(process, started(role));
    }
    let (attempt, hold) = (HoldId(1), HoldId(1));
    let intended = double.now();
    let sent = double.record("worker-1", Event::Acquire { client: ClientId(0), attempt, key: "k0".into(), intended });
    let answers = vec![("redis-1".into(), NodeAnswer::Granted)];
    let (lease_ns, valid_ns, token) = (2_000_000_000, 1_900_000_000, Some(history::Token(1)));
    double.record(
        "worker-1",
        Event::Acquired { attempt, token, lease_ns, granted_after: sent, promised_from: None, valid_ns, answers },
    );

    let (_over, over) = tokio::sync::watch::channel(false);
    let nemesis = Nemesis { cluster: &double, control: &double, scene: &double.scene, over };
    futures::executor::block_on(nemesis.run(plan)).unwrap();

    if !double.killed.load(Ordering::Relaxed) {
        double.record("worker-1", Event::Release { hold });
        double.record("worker-1", Event::Released { hold, removed: false, answers: vec![] });
    }
    let alive = double.scene.look(|view| view.process(&"worker-1".into())).unwrap();
    for process in ["agent", "resource", alive.as_str(), "worker-2"] {
        double.record(process, Event::Finished);
    }
    double.record("controller", Event::End);
    let records = double.records.lock().unwrap().clone();
    (double, records)
}

fn paused_holder() -> Plan {
    let pause = Fault::Pause { lasting: Duration::from_secs(4) };
    plan(pause, Target::Holder, When::AfterHeal(Duration::from_millis(500)))
}

fn phases(records: &[Record]) -> Vec<&'static str> {
    let phase = |record: &Record| match &record.event {
        Event::Fault { phase, .. } => Some(match phase {
            FaultPhase::Requested { .. } => "requested",
            FaultPhase::Injected => "injected",
            FaultPhase::HealRequested => "heal-requested",
            FaultPhase::Healed => "healed",
            FaultPhase::Proved { .. } => "proved",
            FaultPhase::Unproved { .. } => "unproved",
            FaultPhase::HealProved => "heal-proved",
            FaultPhase::MissedTarget => "missed-target",
        }),
        _ => None,
    };
    records.iter().filter_map(phase).collect()
}

#[test]
fn a_freezer_that_does_nothing_makes_the_run_inconclusive_and_never_violated() {
    let (_, records) = recorded(false, &paused_holder());
    assert_eq!(phases(&records), ["requested", "injected", "heal-requested", "healed", "unproved", "heal-proved"]);
    let verdicts = checker::check(records, Tail::Whole);
    assert_eq!(verdicts.verdict, Verdict::Inconclusive);
    let lock = verdicts.lock().unwrap();
    assert_eq!((lock.verdict, lock.windows.len()), (Verdict::Inconclusive, 0));
    assert!(lock.reasons.iter().any(|r| r.contains("pause")), "{:?}", lock.reasons);
}

#[test]
fn the_same_run_with_a_freezer_that_works_is_proved() {
    let (_, records) = recorded(true, &paused_holder());
    assert_eq!(phases(&records), ["requested", "injected", "heal-requested", "healed", "proved", "heal-proved"]);
    let verdicts = checker::check(records, Tail::Whole);
    assert_eq!(verdicts.lock().unwrap().verdict, Verdict::Upheld, "{:?}", verdicts.lock());
}

#[test]
fn a_placed_pause_lets_its_client_go_while_it_is_frozen() {
    let pause = Fault::Pause { lasting: Duration::from_secs(4) };
    let placed = plan(pause, Target::Node("worker-1".into()), When::AtPoint(Point::BeforeWrite));
    let (double, records) = recorded(true, &placed);
    assert_eq!(*double.let_go.lock().unwrap(), ["while frozen"]);
    let stamp = |wanted: fn(&Event) -> bool| records.iter().find(|r| wanted(&r.event)).unwrap().at;
    let injected = stamp(|e| matches!(e, Event::Fault { phase: FaultPhase::Injected, .. }));
    let released = stamp(|e| matches!(e, Event::PointReleased { .. }));
    let healed = stamp(|e| matches!(e, Event::Fault { phase: FaultPhase::HealRequested, .. }));
    assert!(injected < released && released < healed, "the planned wait ends inside the pause");
}

#[test]
fn a_kill_is_proved_by_the_end_of_one_process_and_the_start_of_the_next() {
    let kill = Fault::Kill { back_after: Duration::from_secs(1) };
    let plan = plan(kill, Target::Holder, When::At(Duration::from_secs(1)));
    let (_, records) = recorded(true, &plan);
    assert_eq!(phases(&records), ["requested", "injected", "heal-requested", "healed", "proved", "heal-proved"]);
    let (_, records) = recorded(false, &plan);
    assert!(phases(&records).contains(&"unproved"), "a kill that killed nobody is not proved");
}
