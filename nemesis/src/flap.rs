//! `flap`: links of the target are cut and restored in turns.
//!
//! Possible on every node. The proof has two parts: no probe gets through during the first cut, and between the first
//! two cuts a probe gets through on each link that no other fault hits, where a lost probe is repeated. If other faults
//! are on all links in the first cut, or between the first two, a later turn is the proof. Probes that take longer than
//! a turn make that turn longer. Links that another fault may also cut are not judged between two cuts.
//!
//! If other faults are on all links between all cuts, the cut alone is the proof. A flap without its second part would
//! be one long cut, and the checker treats a flap like one: packets may be lost from its request to its heal. The proof
//! of the heal shows that the links open again.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::{join, try_join_all};
use history::{FaultPhase, fault::Flap};

use crate::{
    ClusterError,
    drawing::Drawing,
    driver::Driver,
    injection::{Disturbance, Injection},
    links::{self, Evidence, Link},
    spec::TargetSpec,
};

/// The least number of probes of a link between two cuts before the link is taken for cut. A machine that stands still
/// for a second loses a probe, and a turn may be shorter than that.
const PROBES_MIN: u32 = 3;

impl Driver for Flap {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;

    fn draw(drawing: &mut Drawing<'_>) -> (Flap, Duration) {
        let drawn = drawing.lasting(1.0..=3.0);
        // However short the lease is, a drawn flap has its two turns. A given length stays as it is.
        let lasting = drawing.spec.lasting.unwrap_or(drawn.max(Flap::EVERY_MIN * 2));
        let every = Duration::from_millis(drawing.leases_ms(0.1..=0.4)).max(Flap::EVERY_MIN);
        (Flap { every: every.min(lasting / 2) }, lasting)
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        let (cluster, node, id) = (injection.cluster, &injection.node, injection.step.id);
        let links = links::hit(injection);
        injection.requested().await?;
        cluster.inject_links(node, id, &injection.step.fault).await?;
        let from = injection.stamp(FaultPhase::Injected).await?;
        injection.let_go().await?;
        let (mut seen, mut looked) = (Seen::default(), Ok(()));
        let (mut left, mut turn) = (injection.step.fault.lasting, 0);
        loop {
            let length = self.every.min(left);
            let is_over = AtomicBool::new(false);
            let sleep = links::over_after(injection, length, &is_over);
            let (result, slept) = join(seen.look(injection, &links, turn, &is_over), sleep).await;
            looked = looked.and(result);
            slept?;
            left -= length;
            if left.is_zero() {
                break;
            }
            turn += 1;
            if is_cut(turn) {
                cluster.inject_links(node, id, &injection.step.fault).await?;
            } else {
                cluster.heal_links(node, id).await?;
            }
        }
        let to = injection.stamp(FaultPhase::HealRequested).await?;
        if is_cut(turn) {
            cluster.heal_links(node, id).await?;
        }
        injection.stamp(FaultPhase::Healed).await?;
        // An error of a probe comes after the heal, as for every fault of links.
        looked?;
        links::prove(injection, &links, seen.missing(), (from, to)).await?;
        links::prove_healed(injection, &links).await
    }
}

fn is_cut(turn: u32) -> bool {
    turn.is_multiple_of(2)
}

/// The results of the probes in the turns so far.
#[derive(Default)]
struct Seen {
    /// The result of the cuts.
    cut: Option<Evidence>,
    /// The result between two cuts: a link without a packet, if there is one. None while no link could be judged.
    restored: Option<Result<(), String>>,
}

impl Seen {
    /// Probes the links in the cuts until a cut decides, and between the first two cuts. `is_over` is true from the
    /// planned end of the turn on.
    async fn look(
        &mut self,
        injection: &Injection<'_>,
        links: &[Link],
        turn: u32,
        is_over: &AtomicBool,
    ) -> Result<(), ClusterError> {
        match turn {
            0 => self.cut = Some(links::evidence(injection, links, is_over).await?),
            _ if !is_cut(turn) && self.restored.is_none() => {
                self.restored = restored(injection, links, is_over).await?;
            }
            _ if is_cut(turn) && matches!(self.cut, Some(Evidence::Undecided(_))) => {
                // While other faults drop packets on every link, probes show nothing, and make the turn longer.
                while is_hidden(injection, links) && !is_over.load(Ordering::Relaxed) {
                    injection.control.sleep(links::LOOK).await?;
                }
                if !is_over.load(Ordering::Relaxed) {
                    self.cut = Some(links::evidence(injection, links, is_over).await?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the reason why the fault is not proved; none, if it is. If no turn between two cuts could be judged, the
    /// cut alone is the proof.
    fn missing(self) -> Option<String> {
        // A link without the cut comes first: it explains the rest.
        self.cut.and_then(Evidence::missing).or(self.restored.and_then(Result::err))
    }
}

/// Returns whether other faults drop packets on every link.
fn is_hidden(injection: &Injection<'_>, links: &[Link]) -> bool {
    links.iter().all(|(from, to)| injection.disturbance(from, to) == Disturbance::Drops)
}

/// Probes the links between two cuts. The result is a link on which no packet comes through until `is_over`, if there
/// is one; none, if another fault was on each link, or began during its probe.
async fn restored(
    injection: &Injection<'_>,
    links: &[Link],
    is_over: &AtomicBool,
) -> Result<Option<Result<(), String>>, ClusterError> {
    let is_judged = |(from, to): &&Link| injection.disturbance(from, to) == Disturbance::None;
    let judged: Vec<&Link> = links.iter().filter(is_judged).collect();
    let seen = try_join_all(judged.into_iter().map(|link| opened(injection, link, is_over))).await?;
    Ok(seen.into_iter().flatten().reduce(Result::and))
}

/// Probes a link between two cuts until a packet comes through, as [`restored`].
async fn opened(
    injection: &Injection<'_>,
    (from, to): &Link,
    is_over: &AtomicBool,
) -> Result<Option<Result<(), String>>, ClusterError> {
    let mut lost = 0;
    loop {
        match links::probe(injection, from, to).await? {
            (Some(_), _) => return Ok(Some(Ok(()))),
            (None, Disturbance::None) => lost += 1,
            // The other fault may have dropped the packet.
            (None, Disturbance::Delays | Disturbance::Drops) => return Ok(None),
        }
        if lost >= PROBES_MIN && is_over.load(Ordering::Relaxed) {
            return Ok(Some(Err(format!("no packet from {from} to {to} came through between two cuts"))));
        }
        injection.control.sleep(links::LOOK).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use futures::executor::block_on;
    use history::{
        Event, Fault, FaultId, FaultKind, NodeName, Plan, Record, ResourceKind, Stamp, Step, Target, Until, When,
        fault::{Kill, Parameters},
    };
    use parking_lot::Mutex;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::{
        Draw, LiveView,
        double::{Answers, Double},
        draw, driver, parse,
        waits::tests,
    };

    const SECOND: Duration = Duration::from_secs(1);
    /// The number of waits after which a turn is over.
    const TURN: u32 = 3;

    /// No packet gets through before the probe `opens_at`; none at all if it is 0. The link to the node `shut` never
    /// opens. Worker-1 is killed during the probe `killed_at`. Counts the probes, and the waits of a turn.
    #[derive(Default)]
    struct Silent {
        live_view: LiveView,
        is_over: AtomicBool,
        opens_at: u32,
        shut: Option<NodeName>,
        killed_at: u32,
        probes: AtomicU32,
        waits: AtomicU32,
    }

    impl Silent {
        fn kill(&self, phase: FaultPhase) {
            let event = Event::Fault { fault: FaultId(2), kind: FaultKind::Kill, node: "worker-1".into(), phase };
            self.live_view.see(&Record { seq: 0, process: "agent".into(), n: 0, at: Stamp(1), event });
        }
    }

    impl Answers for Silent {
        fn latency(&self, to: &NodeName) -> Option<Duration> {
            let probe = self.probes.fetch_add(1, Ordering::Relaxed) + 1;
            if probe == self.killed_at {
                self.kill(FaultPhase::Requested { asked_ns: 1, hold: None });
            }
            let is_open = self.opens_at > 0 && probe >= self.opens_at && self.shut.as_ref() != Some(to);
            is_open.then_some(Duration::from_millis(1))
        }

        fn sleep(&self, _: Duration) {
            let waits = self.waits.fetch_add(1, Ordering::Relaxed) + 1;
            self.is_over.store(waits.is_multiple_of(TURN), Ordering::Relaxed);
        }
    }

    /// The links of redis-1 flap, and worker-1 is killed.
    fn plan() -> Plan {
        let step = |id, fault, node: &str| {
            let (target, when) = (Target::Node(node.into()), When::At(Duration::ZERO));
            Step { id: FaultId(id), fault, target, when }
        };
        let flap = step(1, Fault::new(Flap { every: SECOND }, 6 * SECOND), "redis-1");
        let kill = step(2, Fault::new(Kill {}, SECOND), "worker-1");
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        Plan { schedule: vec![flap, kill], waits: Vec::new(), ..plan }
    }

    /// Probes the link from redis-1 to worker-1 in three cuts. Worker-1 is down in the first ones. Returns the missing
    /// proof, and the number of probes after each cut.
    fn three_cuts(cuts_with_kill: u32) -> (Option<String>, [u32; 3]) {
        let (plan, double) = (plan(), Double::<Silent>::default());
        let Double(silent) = &double;
        let node = NodeName::new("redis-1");
        let links = [(node.clone(), NodeName::new("worker-1"))];
        let injection = double.injection(&silent.live_view, &plan, &plan.schedule[0], node);
        let mut seen = Seen::default();
        if cuts_with_kill > 0 {
            silent.kill(FaultPhase::Requested { asked_ns: 1, hold: None });
        }
        let probes = [0, 1, 2].map(|cut| {
            if cut == cuts_with_kill {
                silent.kill(FaultPhase::Healed);
            }
            silent.is_over.store(false, Ordering::Relaxed);
            block_on(seen.look(&injection, &links, 2 * cut, &silent.is_over)).unwrap();
            silent.probes.load(Ordering::Relaxed)
        });
        (seen.missing(), probes)
    }

    #[test]
    fn a_later_cut_proves_a_flap_whose_first_cut_another_fault_hid() {
        assert_eq!(three_cuts(0), (None, [1, 1, 1]));
        // In the first cut, a probe before each wait.
        assert_eq!(three_cuts(1), (None, [TURN, TURN + 1, TURN + 1]));
        assert_eq!(three_cuts(2), (None, [TURN, TURN, TURN + 1]));
        let (missing, probes) = three_cuts(3);
        assert!(missing.is_some_and(|missing| missing.contains("another fault too")) && probes == [TURN; 3]);
    }

    /// Probes the link between two cuts. Returns whether it is open, and the number of probes.
    fn between_two_cuts(opens_at: u32, is_over: bool) -> (bool, u32) {
        let (plan, double) = (plan(), Double(Silent { opens_at, ..Silent::default() }));
        let Double(silent) = &double;
        let node = NodeName::new("redis-1");
        let links = [(node.clone(), NodeName::new("worker-1"))];
        let injection = double.injection(&silent.live_view, &plan, &plan.schedule[0], node);
        let (mut seen, of_turn) = (Seen::default(), AtomicBool::new(true));
        let is_over = if is_over { &of_turn } else { &silent.is_over };
        block_on(seen.look(&injection, &links, 1, is_over)).unwrap();
        (seen.missing().is_none(), silent.probes.load(Ordering::Relaxed))
    }

    #[test]
    fn a_lost_probe_between_two_cuts_is_repeated() {
        for is_over in [true, false] {
            assert_eq!([1, 2, 3].map(|opens_at| between_two_cuts(opens_at, is_over)), [1, 2, 3].map(|n| (true, n)));
        }
        assert_eq!(between_two_cuts(0, true), (false, PROBES_MIN));
        // A probe before each wait, and one at the end of the turn.
        assert_eq!(between_two_cuts(0, false), (false, TURN + 1));
    }

    #[test]
    fn every_link_must_open_between_two_cuts() {
        for shut in ["worker-1", "worker-2"] {
            let silent = Silent { opens_at: 1, shut: Some(shut.into()), ..Silent::default() };
            let (plan, double) = (plan(), Double(silent));
            let Double(silent) = &double;
            let node = NodeName::new("redis-1");
            let links = ["worker-1", "worker-2"].map(|worker| (node.clone(), NodeName::new(worker)));
            let injection = double.injection(&silent.live_view, &plan, &plan.schedule[0], node);
            let mut seen = Seen::default();
            block_on(seen.look(&injection, &links, 1, &AtomicBool::new(true))).unwrap();
            let missing = format!("no packet from redis-1 to {shut} came through between two cuts");
            assert_eq!(seen.missing(), Some(missing));
        }
    }

    /// Probes the link in a cut, and between two cuts twice. Worker-1 is killed during the second probe, and is back
    /// before the last turn. Returns whether a link was judged in each of the two turns, and the missing proof.
    fn killed_between_two_cuts(opens_at: u32, is_back: bool) -> ([bool; 2], Option<String>) {
        let (plan, double) = (plan(), Double(Silent { opens_at, killed_at: 2, ..Silent::default() }));
        let Double(silent) = &double;
        let node = NodeName::new("redis-1");
        let links = [(node.clone(), NodeName::new("worker-1"))];
        let injection = double.injection(&silent.live_view, &plan, &plan.schedule[0], node);
        let mut seen = Seen::default();
        block_on(seen.look(&injection, &links, 0, &silent.is_over)).unwrap();
        let judged = [1, 3].map(|turn| {
            if turn == 3 && is_back {
                silent.kill(FaultPhase::Healed);
            }
            silent.is_over.store(false, Ordering::Relaxed);
            block_on(seen.look(&injection, &links, turn, &silent.is_over)).unwrap();
            seen.restored.is_some()
        });
        (judged, seen.missing())
    }

    #[test]
    fn a_fault_that_begins_during_a_probe_judges_no_restore() {
        let (judged, missing) = killed_between_two_cuts(0, true);
        assert_eq!(judged, [false, true], "the later turn decides");
        assert!(missing.is_some_and(|missing| missing.contains("between two cuts")), "nothing was restored");
        assert_eq!(killed_between_two_cuts(3, true), ([false, true], None));
        assert_eq!(killed_between_two_cuts(2, true), ([true, true], None), "the packet came through all the same");
    }

    #[test]
    fn other_faults_between_all_cuts_leave_a_flap_proved() {
        assert_eq!(killed_between_two_cuts(0, false), ([false, false], None));
    }

    /// Links that are cut or open at once. Notes the calls. The probes fail after so many calls.
    #[derive(Default)]
    struct Links {
        is_cut: AtomicBool,
        calls: Mutex<Vec<&'static str>>,
        fails_after: &'static [usize],
    }

    impl Answers for Links {
        fn inject_links(&self, _: &NodeName) -> Result<(), ClusterError> {
            self.is_cut.store(true, Ordering::Relaxed);
            self.calls.lock().push("cut");
            Ok(())
        }

        fn heal_links(&self) -> Result<(), ClusterError> {
            self.is_cut.store(false, Ordering::Relaxed);
            self.calls.lock().push("heal");
            Ok(())
        }

        fn probe(&self, to: &NodeName) -> Result<Option<Duration>, ClusterError> {
            let calls = self.calls.lock().len();
            if self.fails_after.contains(&calls) {
                return Err(ClusterError { node: to.clone(), doing: "probing", why: format!("after call {calls}") });
            }
            Ok((!self.is_cut.load(Ordering::Relaxed)).then_some(Duration::from_millis(1)))
        }

        fn stale_connections(&self, _: &NodeName, _: &[NodeName]) -> u32 {
            0
        }

        fn stamp(&self, _: Event) -> Stamp {
            Stamp(1)
        }

        fn sleep(&self, _: Duration) {}
    }

    /// Injects a flap of so many seconds. Returns its error, and the calls.
    fn flap(seconds: u32, fails_after: &'static [usize]) -> (Option<String>, Vec<&'static str>) {
        let mut plan = plan();
        plan.schedule[0].fault.lasting = seconds * SECOND;
        let (double, live_view) = (Double(Links { fails_after, ..Links::default() }), LiveView::new());
        let injection = double.injection(&live_view, &plan, &plan.schedule[0], "redis-1".into());
        let error = block_on(driver::inject(&injection)).err();
        (error.map(|error| error.why), double.0.calls.into_inner())
    }

    #[test]
    fn a_flap_that_ends_in_a_cut_is_healed() {
        assert_eq!(flap(2, &[]), (None, vec!["cut", "heal"]));
        assert_eq!(flap(3, &[]), (None, vec!["cut", "heal", "cut", "heal"]));
    }

    #[test]
    fn the_first_error_of_a_probe_fails_the_flap_when_it_is_healed() {
        // The last turn, a cut, needs no probe. After the fourth call the heal is proved.
        let cases: [(&'static [usize], usize); 5] = [(&[1], 1), (&[2], 2), (&[1, 2], 1), (&[2, 4], 2), (&[4], 4)];
        for (fails_after, first) in cases {
            let (error, calls) = flap(3, fails_after);
            assert_eq!(error, Some(format!("after call {first}")), "{fails_after:?}");
            assert_eq!(calls, ["cut", "heal", "cut", "heal"], "{fails_after:?}");
        }
    }

    #[test]
    fn a_drawn_flap_has_at_least_two_turns_and_hits_a_lock_node() {
        let specs = parse("flap").unwrap();
        let (time, lease) = (std::time::Duration::from_secs(30), std::time::Duration::from_secs(2));
        let (workers, lock_nodes) = ([NodeName::new("worker-1")], [NodeName::new("redis-1")]);
        let resource = ResourceKind::Service;
        let of = Draw { specs: &specs, time, lease, workers: &workers, lock_nodes: &lock_nodes, resource };
        for seed in 0..50 {
            for step in draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).unwrap() {
                assert!(matches!(step.fault.parameters, Parameters::Flap(_)));
                assert_eq!((step.target, step.fault.check()), (Target::Node("redis-1".into()), Ok(())));
            }
        }
    }
}
