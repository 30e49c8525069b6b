//! The nemesis over a double of the cluster. A freezer or a link without effect is noticed, and makes the run
//! inconclusive. Placed faults and kills.
//! Faults of links in the simulation.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use checker::Verdict;
use history::{
    Activity, Arm, ClientId, ClusterKind, Comparison, Direction, Event, Fault, FaultId, FaultKind, FaultPhase, HoldId,
    LinkDelay, Mode, NodeAnswer, NodeName, Plan, Point, ProcessName, Range, Reader, Record, Role, Stamp, Step, Tail,
    Target, Tokens, Until, Wait, WaitId, When, Workload,
    fault::{self, LinkEffect},
};
use nemesis::{Cluster, Control, Doing, LiveView, Nemesis};

use crate::support::harness;

/// The only lock node.
const SERVER: &str = "redis-1";

/// A cluster whose engine answers `Ok` and does nothing, or does what it is asked for.
struct Double {
    works: bool,
    /// Whether links that were held up are open again when it says so.
    mends: bool,
    /// True if the server loses its data when it is started without them.
    forgets: bool,
    /// True while the server is down.
    is_down: AtomicBool,
    has_marker: AtomicBool,
    held_up: Mutex<Option<Fault>>,
    probes: AtomicU64,
    killed: AtomicBool,
    let_go: Mutex<Vec<&'static str>>,
    frozen_since: Mutex<Option<Stamp>>,
    now: AtomicU64,
    seq: AtomicU64,
    records: Mutex<Vec<Record>>,
    live_view: LiveView,
}

impl Double {
    fn new(works: bool, mends: bool, forgets: bool) -> Double {
        Double {
            works,
            mends,
            forgets,
            is_down: AtomicBool::new(false),
            has_marker: AtomicBool::new(false),
            held_up: Mutex::default(),
            probes: AtomicU64::new(0),
            killed: AtomicBool::new(false),
            let_go: Mutex::default(),
            frozen_since: Mutex::default(),
            now: AtomicU64::new(1_000_000_000),
            seq: AtomicU64::new(0),
            records: Mutex::default(),
            live_view: LiveView::new(),
        }
    }

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
        self.live_view.see(&record);
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

    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        if node.as_str() == SERVER {
            self.is_down.store(self.works, Ordering::Relaxed);
        } else if self.works {
            self.killed.store(true, Ordering::Relaxed);
            self.record("controller", Event::ProcessEnded { ended: ProcessName::new("worker-1"), code: Some(137) });
        }
        done(())
    }

    fn start<'a>(&'a self, node: &'a NodeName, data: fault::Data) -> Doing<'a, ()> {
        if node.as_str() == SERVER {
            self.is_down.store(false, Ordering::Relaxed);
            if data == fault::Data::Lost && self.forgets {
                self.has_marker.store(false, Ordering::Relaxed);
            }
        } else if self.works {
            self.record("worker-1#2", started(Role::Worker));
        }
        done(())
    }

    fn answers<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(!self.is_down.load(Ordering::Relaxed))
    }

    fn leave_marker<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        self.has_marker.store(true, Ordering::Relaxed);
        done(true)
    }

    fn take_marker<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(self.has_marker.swap(false, Ordering::Relaxed))
    }

    fn is_running<'a>(&'a self, _: &'a NodeName) -> Doing<'a, bool> {
        done(true)
    }

    fn inject_links<'a>(&'a self, _: &'a NodeName, _: FaultId, what: &'a Fault) -> Doing<'a, ()> {
        *self.held_up.lock().unwrap() = self.works.then(|| what.clone());
        done(())
    }

    fn heal_links<'a>(&'a self, _: &'a NodeName, _: FaultId) -> Doing<'a, ()> {
        if self.mends {
            *self.held_up.lock().unwrap() = None;
        }
        done(())
    }

    fn latency<'a>(&'a self, _: &'a NodeName, _: &'a NodeName) -> Doing<'a, Option<Duration>> {
        let (n, open) = (self.probes.fetch_add(1, Ordering::Relaxed), Duration::from_micros(80));
        done(match (self.held_up.lock().unwrap().as_ref().and_then(Fault::link_effect), n % 5) {
            (Some(LinkEffect::Cut(_)), _) | (Some(LinkEffect::Lose(_)), 4) => None,
            (Some(LinkEffect::Delay(LinkDelay::Fixed(by))), _) => Some(by),
            (Some(LinkEffect::Reorder(by)), n) => Some(by.from + (by.to - by.from) * n as u32 / 5),
            _ => Some(open),
        })
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
        let is_probed = self.probes.load(Ordering::Relaxed) > 0;
        let when = if is_probed { "after a probe" } else { "while running" };
        self.let_go.lock().unwrap().push(if frozen { "while frozen" } else { when });
        done(())
    }

    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
        self.pass(lasting);
        if self.killed.load(Ordering::Relaxed) && self.live_view.look(|v| v.process(&"worker-1".into())).is_some() {
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
        resource: Default::default(),
        lock_nodes: vec!["redis-1".into()],
        servers: compose::ComposeFile::builtin("redis").unwrap().facts,
        workload: Workload { workers: 2, rate_per_s: 1.0, ..Workload::default() },
        activity: Activity { holds: 1, clients: 1, refused: 0 },
        nemesis: vec!["pause".into()],
        models: None,
        own_servers: Default::default(),
        program: None,
        waits: Vec::new(),
        schedule: vec![Step { id: FaultId(1), fault, target, when }],
    }
}

/// Runs the plan's one fault on the double, and gives what was recorded.
fn recorded(works: bool, plan: &Plan) -> (Double, Vec<Record>) {
    recorded_by(Double::new(works, true, true), plan)
}

fn recorded_by(double: Double, plan: &Plan) -> (Double, Vec<Record>) {
    double.record("controller", Event::Plan { run: "double".into(), plan: Box::new(plan.clone()), made_by: None });
    let roles =
        [("agent", Role::Agent), ("resource", Role::Resource), ("worker-1", Role::Worker), ("worker-2", Role::Worker)];
    for (process, role) in roles {
        double.record(process, started(role));
    }
    for worker in ["worker-1", "worker-2"] {
        double.record(worker, Event::Ready { servers: Vec::new() });
    }
    let (attempt, hold) = (HoldId(1), HoldId(1));
    let intended = double.now();
    let sent = double.record(
        "worker-1",
        Event::Acquire { client: ClientId(0), attempt, key: "k0".into(), intended, mode: Mode::Write, above: None },
    );
    let answers = vec![("redis-1".into(), NodeAnswer::Granted)];
    let (lease_ns, valid_ns, token) = (2_000_000_000, 1_900_000_000, Some(history::Token(1)));
    double.record(
        "worker-1",
        Event::Acquired {
            attempt,
            token,
            lease_ns,
            granted_after: sent,
            promised_from: None,
            place: None,
            valid_ns,
            answers,
        },
    );

    let (_over, over) = tokio::sync::watch::channel(false);
    let nemesis = Nemesis { cluster: &double, control: &double, live_view: &double.live_view, over };
    futures::executor::block_on(nemesis.run(plan)).unwrap();

    if !double.killed.load(Ordering::Relaxed) {
        double.record("worker-1", Event::Release { hold });
        double.record("worker-1", Event::Released { hold, removed: false, answers: vec![] });
    }
    let alive = double.live_view.look(|view| view.process(&"worker-1".into())).unwrap();
    for process in ["agent", "resource", alive.as_str(), "worker-2"] {
        double.record(process, Event::Finished);
    }
    double.record("controller", Event::End);
    let records = double.records.lock().unwrap().clone();
    (double, records)
}

fn paused_holder() -> Plan {
    let pause = Fault::new(fault::Pause {}, Duration::from_secs(4));
    plan(pause, Target::Holder, When::AfterHeal(Duration::from_millis(500)))
}

fn phases(records: &[Record]) -> Vec<&'static str> {
    let phase = |record: &Record| match &record.event {
        Event::Fault { phase, .. } => Some(match phase {
            FaultPhase::Requested { .. } => "requested",
            FaultPhase::Unsynced { .. } => "unsynced",
            FaultPhase::Injected => "injected",
            FaultPhase::HealRequested => "heal-requested",
            FaultPhase::Healed => "healed",
            FaultPhase::Proved { .. } => "proved",
            FaultPhase::Unproved { .. } => "unproved",
            FaultPhase::ConnectionsReset { .. } => "connections-reset",
            FaultPhase::HealProved => "heal-proved",
            FaultPhase::MissedTarget => "missed-target",
            FaultPhase::Unplanned { .. } => "unplanned",
            FaultPhase::UnplannedOver { .. } => "unplanned-over",
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
    let pause = Fault::new(fault::Pause {}, Duration::from_secs(4));
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
fn a_placed_fault_of_links_lets_its_client_go_before_it_is_proved() {
    for mut placed in of_links() {
        placed.schedule[0].when = When::AtPoint(Point::BeforeWrite);
        let (double, records) = recorded(true, &placed);
        assert_eq!(*double.let_go.lock().unwrap(), ["while running"], "{}", placed.schedule[0].fault.kind());
        let place = |wanted: fn(&Event) -> bool| records.iter().position(|r| wanted(&r.event)).unwrap();
        let injected = place(|e| matches!(e, Event::Fault { phase: FaultPhase::Injected, .. }));
        let released = place(|e| matches!(e, Event::PointReleased { .. }));
        let healed = place(|e| matches!(e, Event::Fault { phase: FaultPhase::HealRequested, .. }));
        assert!(injected < released && released < healed);
        assert!(phases(&records).contains(&"proved"));
    }
}

#[test]
fn a_fault_that_goes_with_a_wait_comes_while_its_client_waits_and_the_client_stays_until_it_is_healed() {
    let pause = Fault::new(fault::Pause {}, Duration::from_secs(4));
    let mut planned = plan(pause, Target::Node("worker-1".into()), When::WhileWaits(WaitId(1)));
    let (worker, point, until) = ("worker-1".into(), Point::BeforeWrite, Until::Healed);
    let at_most = Duration::from_secs(8);
    planned.waits = vec![Wait { id: WaitId(1), worker, point, until, at_most, after: Duration::ZERO }];
    assert_eq!(planned.validate(), Ok(()));
    let (double, records) = recorded(true, &planned);
    assert_eq!(*double.let_go.lock().unwrap(), ["while running"]);
    let stamp = |wanted: fn(&Event) -> bool| records.iter().find(|r| wanted(&r.event)).unwrap().at;
    let came = stamp(|e| matches!(e, Event::AtPoint { .. }));
    let requested =
        stamp(|e| matches!(e, Event::Fault { phase: FaultPhase::Requested { hold: Some(HoldId(1)), .. }, .. }));
    let healed = stamp(|e| matches!(e, Event::Fault { phase: FaultPhase::HealProved, .. }));
    let released = stamp(|e| matches!(e, Event::PointReleased { .. }));
    assert!(came < requested && requested < healed && healed < released);
}

#[test]
fn a_kill_is_proved_by_the_end_of_one_process_and_the_start_of_the_next() {
    let kill = Fault::new(fault::Kill {}, Duration::from_secs(1));
    let plan = plan(kill, Target::Holder, When::At(Duration::from_secs(1)));
    let (_, records) = recorded(true, &plan);
    assert_eq!(phases(&records), ["requested", "injected", "heal-requested", "healed", "proved", "heal-proved"]);
    let (_, records) = recorded(false, &plan);
    assert!(phases(&records).contains(&"unproved"), "a kill that killed nobody is not proved");
}

#[test]
fn lost_data_are_proved_by_a_marker_that_is_gone_and_not_by_the_restart() {
    let amnesia = Fault::new(fault::Amnesia::default(), Duration::from_secs(1));
    let plan = plan(amnesia, Target::Node(SERVER.into()), When::At(Duration::from_secs(1)));
    let (_, records) = recorded(true, &plan);
    assert_eq!(phases(&records), ["requested", "injected", "heal-requested", "healed", "proved", "heal-proved"]);
    let (double, records) = recorded_by(Double::new(true, true, false), &plan);
    assert_eq!(phases(&records), ["requested", "injected", "heal-requested", "healed", "unproved", "heal-proved"]);
    let why = records.iter().find_map(|record| match &record.event {
        Event::Fault { phase: FaultPhase::Unproved { why }, .. } => Some(why.as_str()),
        _ => None,
    });
    assert!(why.unwrap().contains("marker key from before the fault was still there"), "{why:?}");
    assert!(!double.has_marker.load(Ordering::Relaxed), "the marker stays");
    assert_eq!(checker::check(records, Tail::Whole).verdict, Verdict::Inconclusive);
}

/// One of each kind, on worker 1.
fn of_links() -> Vec<Plan> {
    let ms = Duration::from_millis;
    let (lasting, direction, from) = (ms(1_000), Direction::Both, Vec::new());
    let faults = [
        Fault::new(fault::Partition { cut: history::CutMode::Drop }, lasting).on_links(direction, from.clone()),
        Fault::new(fault::Delay { by: LinkDelay::Fixed(ms(300)) }, lasting).on_links(direction, from.clone()),
        Fault::new(fault::Loss { percent: 20 }, lasting).on_links(direction, from.clone()),
        Fault::new(fault::Reorder { by: Range { from: ms(10), to: ms(80) } }, lasting).on_links(direction, from),
    ];
    faults.map(|fault| plan(fault, Target::Node("worker-1".into()), When::At(ms(1_000)))).into()
}

#[test]
fn links_that_do_nothing_of_what_they_were_asked_for_are_found_out() {
    for plan in of_links() {
        let kind = plan.schedule[0].fault.kind();
        let (_, records) = recorded(true, &plan);
        let done = ["requested", "injected", "heal-requested", "healed", "proved", "heal-proved"];
        assert_eq!(phases(&records), done, "{kind}");
        let (_, records) = recorded(false, &plan);
        let hidden = ["requested", "injected", "heal-requested", "healed", "unproved", "heal-proved"];
        assert_eq!(phases(&records), hidden, "{kind}");
        assert_eq!(checker::check(records, Tail::Whole).verdict, Verdict::Inconclusive, "{kind}");
    }
}

#[test]
fn links_that_stay_held_up_are_not_proved_healed() {
    for plan in of_links() {
        let (_, records) = recorded_by(Double::new(true, false, true), &plan);
        let stays = ["requested", "injected", "heal-requested", "healed", "proved"];
        assert_eq!(phases(&records), stays, "{}", plan.schedule[0].fault.kind());
        // A later fault of the same links excuses nobody from the proof.
        let mut two = plan.clone();
        two.schedule.push(Step { id: FaultId(2), when: When::At(Duration::from_secs(9)), ..plan.schedule[0].clone() });
        let (_, records) = recorded_by(Double::new(true, false, true), &two);
        assert_eq!(phases(&records)[..5], stays);
        assert!(!phases(&records).contains(&"heal-proved"), "{}", plan.schedule[0].fault.kind());
    }
}

#[test]
fn simulated_links_that_lose_or_reorder_packets_are_proved_healed_and_tell_what_they_held() {
    for (nemesis, kind) in
        [("loss,loss:any-worker", FaultKind::Loss), ("reorder,reorder:any-worker", FaultKind::Reorder)]
    {
        let history = |dir: &std::path::Path| {
            let mut command = harness();
            command.args(["run", "--cluster", "sim", "--backend", "redlock", "--seed", "7", "--nemesis", nemesis]);
            let ran = command.arg("--runs").arg(dir).output().unwrap();
            assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
            // But for the name of the run.
            let records = Reader::open(&dir.join("latest/history.jsonl")).unwrap().skip(1);
            records.map(Result::unwrap).collect::<Vec<Record>>()
        };
        let [records, again] = [(); 2].map(|()| history(tempfile::tempdir().unwrap().path()));
        assert!(records == again, "the same plan is the same history");
        let of = |wanted: fn(&FaultPhase) -> bool| {
            let is =
                |r: &&Record| matches!(&r.event, Event::Fault { kind: k, phase, .. } if *k == kind && wanted(phase));
            records.iter().filter(is).count()
        };
        let faults = of(|phase| matches!(phase, FaultPhase::Requested { .. }));
        assert!(faults >= 8, "{faults}");
        assert_eq!(of(|phase| matches!(phase, FaultPhase::Proved { .. })), faults, "{kind}");
        assert_eq!(of(|phase| matches!(phase, FaultPhase::HealProved)), faults, "{kind}");
        let held = |r: &Record| match r.event {
            Event::PacketsDelayed { since, until, .. } => Some(until.since(since)),
            _ => None,
        };
        let held: Vec<Duration> = records.iter().filter_map(held).collect();
        let (least, most) = match kind {
            FaultKind::Loss => (Duration::from_millis(200), Duration::from_secs(10)),
            // Two faults may be on at once, one at each end. The part of one of them may be short.
            _ => (Duration::from_nanos(1), Duration::from_millis(161)),
        };
        assert!(held.len() >= 20 && held.iter().all(|d| (least..most).contains(d)), "{kind}: {held:?}");
    }
}
