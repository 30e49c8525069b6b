//! Tests: the proof of a fault whose links have another fault too.

use std::sync::atomic::AtomicU32;

use futures::executor::block_on;
use history::{
    Event, FaultId, Plan, Record, Step, Until, When,
    fault::{Delay, Loss},
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

/// The links of redis-1 lose packets, and those of worker-1 are slow meanwhile.
#[derive(Default)]
struct Disturbed {
    live_view: LiveView,
    is_over: AtomicBool,
    waits: AtomicU32,
    /// The number of waits after which worker-1 is no longer slow.
    slow_until: u32,
    /// The time of a packet on a slow link, and on any other; none, if the link loses the packet.
    slow: Option<Duration>,
    other: Option<Duration>,
}

impl Disturbed {
    fn slow_links(&self, phase: FaultPhase) {
        let event = Event::Fault { fault: FaultId(2), kind: history::FaultKind::Delay, node: "worker-1".into(), phase };
        self.live_view.see(&Record { seq: 0, process: "agent".into(), n: 0, at: Stamp(1), event });
    }
}

impl Answers for Disturbed {
    fn latency(&self, to: &NodeName) -> Option<Duration> {
        let is_slow = to.as_str() == "worker-1" && self.live_view.look(|view| view.faults_on().count() > 0);
        if is_slow { self.slow } else { self.other }
    }

    fn sleep(&self, _: Duration) {
        let waits = self.waits.fetch_add(1, Ordering::Relaxed) + 1;
        if waits == self.slow_until {
            self.slow_links(FaultPhase::Healed);
        }
        self.is_over.fetch_or(waits == PLANNED, Ordering::Relaxed);
    }
}

/// Returns the missing proof of a loss on the links from redis-1 to these workers, and the number of waits.
fn missing_proof(workers: &[&str], disturbed: Disturbed) -> (Option<String>, u32) {
    let (node, when) = (NodeName::new("redis-1"), When::At(Duration::ZERO));
    let step = |id: u32, fault: Fault, node: &NodeName| {
        let target = Target::Node(node.clone());
        Step { id: FaultId(id), fault, target, when }
    };
    let loss = step(1, Fault::new(Loss { percent: 1 }, Duration::from_secs(1)), &node);
    let delay = step(2, Fault::new(Delay { by: SLOW.into() }, Duration::from_secs(9)), &"worker-1".into());
    let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
    let plan = Plan { schedule: vec![loss.clone(), delay], waits: Vec::new(), ..plan };
    disturbed.slow_links(FaultPhase::Requested { asked_ns: 1, hold: None });
    let links: Vec<Link> = workers.iter().map(|worker| (node.clone(), NodeName::new(worker))).collect();
    let double = Double(disturbed);
    let Double(disturbed) = &double;
    let injection = double.injection(&disturbed.live_view, &plan, &loss, node);
    let missing = block_on(missing(&injection, &links, &disturbed.is_over)).unwrap();
    (missing, disturbed.waits.load(Ordering::Relaxed))
}

/// Worker-1 is slow for so many waits, and the other links need this time.
fn slow(slow_until: u32, other: Option<Duration>) -> Disturbed {
    Disturbed { slow_until, slow: Some(SLOW), other, ..Disturbed::default() }
}

#[test]
fn another_fault_of_the_link_proves_nothing() {
    // A slow packet looks like a lost one that was sent again.
    let (missing, waits) = missing_proof(&["worker-1"], slow(u32::MAX, None));
    assert!(missing.is_some_and(|missing| missing.contains("another fault too")) && waits == PLANNED);
    // The probes begin again when the other fault is over.
    assert_eq!(missing_proof(&["worker-1"], slow(2, None)), (None, 2));
    let (missing, _) = missing_proof(&["worker-1"], slow(2, Some(FAST)));
    assert_eq!(missing.as_deref(), Some("1400 packets from redis-1 to worker-1 came through in 1ms to 1ms"));
}

#[test]
fn a_link_without_another_fault_decides_at_once() {
    let both = ["worker-1", "worker-2"];
    assert_eq!(missing_proof(&both, slow(u32::MAX, None)), (None, 0));
    let (missing, waits) = missing_proof(&both, slow(u32::MAX, Some(FAST)));
    assert!(missing.is_some_and(|missing| missing.contains("from redis-1 to worker-2")) && waits == 0);
}

#[test]
fn a_lost_packet_proves_a_loss_although_another_fault_delays_packets() {
    assert_eq!(missing_proof(&["worker-1"], Disturbed { slow: None, ..slow(u32::MAX, None) }), (None, 0));
}
