//! Tests: the proof of a fault, and of its heal, while the links have another fault too.

use std::sync::atomic::AtomicU32;

use futures::executor::block_on;
use history::{
    ClusterKind, Direction, Event, FaultId, FaultKind, Plan, Record, Step, Until, When,
    fault::{Delay, Loss, Partition},
};

use super::*;
use crate::{
    LiveView,
    double::{Answers, Double},
    waits::tests,
};

/// The number of waits after which the fault has its planned length.
const PLANNED: u32 = 3;
const FAST: Duration = Duration::from_millis(1);
const SLOW: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);

/// Redis-1 has a fault of its links, and worker-1 has another fault meanwhile.
struct Disturbed {
    live_view: LiveView,
    is_over: AtomicBool,
    waits: AtomicU32,
    probes: AtomicU32,
    is_proved_healed: AtomicBool,
    /// The fault of worker-1; none, if nobody planned it.
    other: Option<Fault>,
    /// The kind of a fault that nobody planned.
    unplanned: FaultKind,
    /// True if that fault begins and ends during the first probe. Otherwise it is on at once.
    is_short: bool,
    /// True if that fault ends during the first probe, which it hits all the same.
    ends_in_probe: bool,
    /// True if that fault is requested, and not yet known to be injected.
    is_being_injected: bool,
    /// The number of waits after which worker-1 has no fault.
    until: u32,
    /// The number of probes of worker-1 after which all others are lost.
    lost_from: u32,
    /// The time of a packet to worker-1 while its fault is on, and of any other packet; none, if the packet is lost.
    hit: Option<Duration>,
    free: Option<Duration>,
}

impl Disturbed {
    fn reports(&self, phase: FaultPhase) {
        let kind = self.other.as_ref().map_or(self.unplanned, Fault::kind);
        let fault = FaultId(if self.other.is_some() { 2 } else { 9 });
        let event = Event::Fault { fault, kind, node: "worker-1".into(), phase };
        self.live_view.see(&Record { seq: 0, process: "agent".into(), n: 0, at: Stamp(1), event });
    }

    fn begins(&self) {
        if self.other.is_none() {
            return self.reports(FaultPhase::Unplanned { since: Stamp(0) });
        }
        self.reports(FaultPhase::Requested { asked_ns: 1, hold: None });
        if !self.is_being_injected {
            self.reports(FaultPhase::Injected);
        }
    }

    fn ends(&self) {
        self.reports(match self.other {
            Some(_) => FaultPhase::Healed,
            None => FaultPhase::UnplannedOver { since: Stamp(0) },
        });
    }

    /// A plan with a fault of redis-1, and with the fault of worker-1.
    fn plan(&self, fault: Fault) -> Plan {
        let step = |(id, fault, node): (u32, Fault, &str)| {
            let (target, when) = (Target::Node(node.into()), When::At(Duration::ZERO));
            Step { id: FaultId(id), fault, target, when }
        };
        let other = self.other.clone().map(|other| (2, other, "worker-1"));
        let schedule = [(1, fault, "redis-1")].into_iter().chain(other).map(step).collect();
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        Plan { cluster: ClusterKind::Docker, schedule, waits: Vec::new(), ..plan }
    }
}

impl Answers for Disturbed {
    fn latency(&self, to: &NodeName) -> Option<Duration> {
        if self.is_short && self.probes.load(Ordering::Relaxed) == 0 {
            self.begins();
            self.ends();
        }
        if to.as_str() != "worker-1" {
            return self.free;
        }
        let probe = self.probes.fetch_add(1, Ordering::Relaxed);
        let is_lost = probe >= self.lost_from;
        let is_hit = self.live_view.look(|view| view.faults_on().count() > 0);
        if self.ends_in_probe && probe == 0 {
            self.ends();
        }
        if is_lost { None } else { [self.free, self.hit][usize::from(is_hit)] }
    }

    fn sleep(&self, _: Duration) {
        let waits = self.waits.fetch_add(1, Ordering::Relaxed) + 1;
        if waits == self.until {
            self.ends();
        }
        self.is_over.fetch_or(waits == PLANNED, Ordering::Relaxed);
    }

    fn stamp(&self, event: Event) -> Stamp {
        let is_healed = matches!(event, Event::Fault { phase: FaultPhase::HealProved, .. });
        self.is_proved_healed.fetch_or(is_healed, Ordering::Relaxed);
        Stamp(2)
    }

    fn stale_connections(&self, _: &NodeName, _: &[NodeName]) -> u32 {
        0
    }
}

/// Worker-1 has a delay for so many waits, and other packets need this time.
fn slow(until: u32, free: Option<Duration>) -> Disturbed {
    Disturbed {
        live_view: LiveView::new(),
        is_over: AtomicBool::new(false),
        waits: AtomicU32::new(0),
        probes: AtomicU32::new(0),
        is_proved_healed: AtomicBool::new(false),
        other: Some(Fault::new(Delay { by: SLOW.into() }, 9 * SECOND)),
        unplanned: FaultKind::Kill,
        is_short: false,
        ends_in_probe: false,
        is_being_injected: false,
        until,
        lost_from: u32::MAX,
        hit: Some(SLOW),
        free,
    }
}

/// A loss of so few packets that its proof takes many probes.
fn loss() -> Fault {
    Fault::new(Loss { percent: 1 }, SECOND)
}

fn cut() -> Fault {
    Fault::new(Partition::default(), SECOND)
}

fn delay() -> Fault {
    Fault::new(Delay { by: SLOW.into() }, SECOND)
}

/// A fault of worker-1 that has no effect on its link with redis-1.
fn elsewhere() -> Option<Fault> {
    Some(cut().on_links(Direction::Both, vec!["worker-2".into()]))
}

/// Returns the missing proof of a fault of the links from redis-1 to these workers, and the number of waits.
fn missing_proof(fault: Fault, workers: &[&str], disturbed: Disturbed) -> (Option<String>, u32) {
    let (plan, node) = (disturbed.plan(fault), NodeName::new("redis-1"));
    if !disturbed.is_short {
        disturbed.begins();
    }
    let links: Vec<Link> = workers.iter().map(|worker| (node.clone(), NodeName::new(worker))).collect();
    let double = Double(disturbed);
    let Double(disturbed) = &double;
    let injection = double.injection(&disturbed.live_view, &plan, &plan.schedule[0], node);
    let evidence = block_on(evidence(&injection, &links, &disturbed.is_over)).unwrap();
    (evidence.missing(), disturbed.waits.load(Ordering::Relaxed))
}

/// Returns whether the heal of a fault between redis-1 and worker-1 is proved, and the number of waits.
fn heal(fault: Fault, disturbed: Disturbed) -> (bool, u32) {
    let (plan, node) = (disturbed.plan(fault), NodeName::new("redis-1"));
    disturbed.begins();
    let double = Double(disturbed);
    let Double(disturbed) = &double;
    let injection = double.injection(&disturbed.live_view, &plan, &plan.schedule[0], node.clone());
    block_on(prove_healed(&injection, &[(node, "worker-1".into())])).unwrap();
    (disturbed.is_proved_healed.load(Ordering::Relaxed), disturbed.waits.load(Ordering::Relaxed))
}

fn is_undecided((missing, waits): (Option<String>, u32)) -> bool {
    missing.is_some_and(|missing| missing.contains("another fault too")) && waits == PLANNED
}

#[test]
fn another_fault_of_the_link_proves_nothing() {
    // A slow packet looks like a lost one that was sent again.
    assert!(is_undecided(missing_proof(loss(), &["worker-1"], slow(u32::MAX, None))));
    // The probes begin again when the other fault is over.
    assert_eq!(missing_proof(loss(), &["worker-1"], slow(2, None)), (None, 2));
    let (missing, _) = missing_proof(loss(), &["worker-1"], slow(2, Some(FAST)));
    assert_eq!(missing.as_deref(), Some("1400 packets from redis-1 to worker-1 came through in 1ms to 1ms"));
}

#[test]
fn a_fault_of_the_answers_alone_proves_nothing() {
    let answers = |fault: Fault| fault.on_links(Direction::Out, vec!["redis-1".into()]);
    let delayed = slow(u32::MAX, None);
    let delayed = Disturbed { other: delayed.other.clone().map(answers), ..delayed };
    assert!(is_undecided(missing_proof(loss(), &["worker-1"], delayed)));
    let dropped = Disturbed { other: Some(answers(cut())), hit: None, ..slow(u32::MAX, None) };
    assert!(is_undecided(missing_proof(cut(), &["worker-1"], dropped)));
}

#[test]
fn a_link_without_another_fault_decides_at_once() {
    let both = ["worker-1", "worker-2"];
    assert_eq!(missing_proof(loss(), &both, slow(u32::MAX, None)), (None, 0));
    let (missing, waits) = missing_proof(loss(), &both, slow(u32::MAX, Some(FAST)));
    assert!(missing.is_some_and(|missing| missing.contains("from redis-1 to worker-2")) && waits == 0);
}

#[test]
fn one_open_link_disproves_a_partition_that_another_link_shows() {
    let disturbed = Disturbed { other: elsewhere(), lost_from: 0, ..slow(u32::MAX, Some(FAST)) };
    let (missing, waits) = missing_proof(cut(), &["worker-1", "worker-2"], disturbed);
    assert_eq!((missing.as_deref(), waits), (Some("a packet from redis-1 to worker-2 came through in 1ms"), 0));
}

#[test]
fn a_lost_packet_proves_a_loss_although_another_fault_delays_packets() {
    // The probes before it are late.
    for lost_from in [0, 5] {
        let disturbed = Disturbed { lost_from, ..slow(u32::MAX, None) };
        assert_eq!(missing_proof(loss(), &["worker-1"], disturbed), (None, 0), "{lost_from}");
    }
}

#[test]
fn a_fault_that_nobody_planned_proves_no_partition() {
    for unplanned in [FaultKind::Kill, FaultKind::Partition] {
        let hit = |until, free| Disturbed { other: None, unplanned, hit: None, ..slow(until, free) };
        assert!(is_undecided(missing_proof(cut(), &["worker-1"], hit(u32::MAX, None))), "{unplanned}");
        assert_eq!(missing_proof(cut(), &["worker-1"], hit(2, None)), (None, 2), "{unplanned}");
        let (missing, _) = missing_proof(cut(), &["worker-1"], hit(2, Some(FAST)));
        assert_eq!(missing.as_deref(), Some("a packet from redis-1 to worker-1 came through in 1ms"), "{unplanned}");
    }
}

#[test]
fn a_fault_that_was_on_only_during_the_probe_proves_nothing() {
    let disturbed = Disturbed { other: Some(cut()), is_short: true, ..slow(u32::MAX, None) };
    assert_eq!(missing_proof(cut(), &["worker-1"], disturbed), (None, 1), "the second probe is the proof");
    // A fault of other links has no effect on the probe.
    let disturbed = Disturbed { other: elsewhere(), is_short: true, ..slow(u32::MAX, None) };
    assert_eq!(missing_proof(cut(), &["worker-1"], disturbed), (None, 0));
}

#[test]
fn a_fault_that_ends_during_the_probe_proves_nothing() {
    let ends = |other, free| Disturbed { other, hit: None, ends_in_probe: true, ..slow(u32::MAX, free) };
    // The fault of worker-1 is planned, or not. Only the second probe is sent without it.
    for other in [Some(cut()), None] {
        assert_eq!(missing_proof(cut(), &["worker-1"], ends(other.clone(), None)), (None, 1));
        let (missing, waits) = missing_proof(cut(), &["worker-1"], ends(other, Some(FAST)));
        assert_eq!((missing.as_deref(), waits), (Some("a packet from redis-1 to worker-1 came through in 1ms"), 1));
    }
    // A packet that another fault delays looks like a lost one that was sent again.
    let delayed = Disturbed { ends_in_probe: true, ..slow(u32::MAX, Some(FAST)) };
    let (missing, waits) = missing_proof(loss(), &["worker-1"], delayed);
    assert!(missing.is_some_and(|missing| missing.starts_with("1400 packets from redis-1 to worker-1")) && waits == 1);
}

#[test]
fn a_probe_may_not_wait_long_enough_for_a_delay_that_is_being_injected() {
    let disturbed = Disturbed { is_being_injected: true, lost_from: 0, ..slow(u32::MAX, None) };
    assert!(is_undecided(missing_proof(loss(), &["worker-1"], disturbed)));
}

#[test]
fn a_lost_probe_proves_no_delay() {
    let free = ["worker-2"];
    let (missing, waits) = missing_proof(delay(), &free, slow(u32::MAX, None));
    let words = "a probe from redis-1 to worker-2 was lost, and a delay loses none";
    assert_eq!((missing.as_deref(), waits), (Some(words), PLANNED));
    assert_eq!(missing_proof(delay(), &free, slow(u32::MAX, Some(SLOW))), (None, 0));
    // A lost probe of a link that others cut says nothing at all.
    let dropped = Disturbed { other: Some(cut()), hit: None, ..slow(u32::MAX, None) };
    assert!(is_undecided(missing_proof(delay(), &["worker-1"], dropped)));
}

#[test]
fn the_proof_of_a_heal_waits_for_the_end_of_a_long_planned_fault() {
    // 10 minutes; and a fault that cuts only the answers.
    let long = 6_000;
    for direction in [Direction::Both, Direction::Out] {
        let other = Some(cut().on_links(direction, Vec::new()));
        let disturbed = Disturbed { other, hit: None, ..slow(long, Some(FAST)) };
        assert_eq!(heal(cut(), disturbed), (true, long), "{direction:?}");
    }
}

#[test]
fn the_proof_of_a_heal_does_not_wait_for_a_fault_that_nobody_planned() {
    let killed = Disturbed { other: None, hit: None, ..slow(u32::MAX, Some(FAST)) };
    assert_eq!(heal(cut(), killed), (false, LOOKS));
}

#[test]
fn a_lost_probe_does_not_prove_the_heal_of_a_delay() {
    let lost = Disturbed { other: elsewhere(), lost_from: 0, ..slow(u32::MAX, None) };
    assert_eq!(heal(delay(), lost), (false, LOOKS));
}
