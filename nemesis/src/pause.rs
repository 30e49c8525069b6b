//! `pause` and `stop`: the target does nothing for a while.
//!
//! `pause` uses the container freezer, which freezes every process of the container. `stop` sends SIGSTOP to the first
//! process, and SIGCONT later. The other processes of the container still run, so the healthcheck of a stopped server
//! connects, and waits. Each worker and each server is the first process of its container, and the only process that
//! matters.
//!
//! Both are possible on workers, lock nodes and the resource. The engine's calls take 10–25 ms, sometimes 1.5 s. The
//! target may be frozen long before a call returns, or run again before the call returns. Therefore only the target's
//! own ticks prove a pause.

use std::time::Duration;

use futures::future::join;
use history::{
    FaultPhase,
    fault::{Pause, Stop},
};

use crate::{
    ClusterError,
    drawing::Drawing,
    driver::Driver,
    injection::{Injection, PROOF},
    spec::TargetSpec,
};

/// A pause is proved if the target did not run for this share of the planned length.
const PROVED_FROM: f64 = 0.9;

/// The mechanism that freezes the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FreezeMode {
    /// The container freezer.
    Frozen,
    /// SIGSTOP.
    Stopped,
}

impl FreezeMode {
    fn name(self) -> &'static str {
        match self {
            FreezeMode::Frozen => "frozen",
            FreezeMode::Stopped => "stopped",
        }
    }

    async fn begin(self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        match self {
            FreezeMode::Frozen => injection.cluster.freeze(&injection.node).await,
            FreezeMode::Stopped => injection.cluster.stop(&injection.node).await,
        }
    }

    async fn end(self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        match self {
            FreezeMode::Frozen => injection.cluster.thaw(&injection.node).await,
            FreezeMode::Stopped => injection.cluster.resume(&injection.node).await,
        }
    }
}

impl Driver for Pause {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::Holder;

    fn draw(drawing: &mut Drawing<'_>) -> (Pause, Duration) {
        (Pause {}, drawing.lasting(1.5..=2.5))
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        freeze_for(injection, FreezeMode::Frozen, injection.step.fault.lasting).await
    }
}

impl Driver for Stop {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::Holder;

    fn draw(drawing: &mut Drawing<'_>) -> (Stop, Duration) {
        (Stop {}, drawing.lasting(1.5..=2.5))
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        freeze_for(injection, FreezeMode::Stopped, injection.step.fault.lasting).await
    }
}

/// Freezes the target for `lasting`, and proves the fault through the target.
async fn freeze_for(injection: &Injection<'_>, mode: FreezeMode, lasting: Duration) -> Result<(), ClusterError> {
    if injection.is_server {
        return server(injection, mode, lasting).await;
    }
    let Some(process) = injection.live_view.look(|view| view.process(&injection.node)) else {
        injection.requested().await?;
        let why = format!("expected a running process that could be {}; there was none", mode.name());
        return injection.stamp(FaultPhase::Unproved { why }).await.map(drop);
    };
    let requested = injection.requested().await?;
    let injected = mode.begin(injection).await;
    if injected.is_ok() {
        injection.stamp(FaultPhase::Injected).await?;
    }
    injection.let_go().await?;
    if injected.is_ok() {
        injection.control.sleep(lasting).await?;
    }
    injection.stamp(FaultPhase::HealRequested).await?;
    mode.end(injection).await?;
    let healed = injection.stamp(FaultPhase::Healed).await?;

    let least = lasting.mul_f64(PROVED_FROM);
    // Somebody else may have frozen the target before, and the machine may stand still after a pause that the engine
    // refused: the time before the request is not of this fault, and no stall that begins after the heal is.
    let span = (requested, healed);
    let gap =
        |view: &crate::View| view.stall(&process, span).filter(|(from, to)| to.since((*from).max(requested)) >= least);
    match injection.live_view.within(injection.control, PROOF, gap).await {
        Some((from, to)) => {
            injection.stamp(FaultPhase::Proved { from, to }).await?;
            // The process runs on for up to a tick after its last one. So an event in the first half of the gap came
            // before the freeze, and an event in the second half after the thaw.
            injection.missed(from.plus(to.since(from) / 2)).await?;
        }
        None => {
            let longest = injection
                .live_view
                .look(|view| view.stall(&process, span))
                .map_or(0, |(f, t)| t.since(f.max(requested)).as_millis());
            let engine = injected.err().map(|e| format!("; the engine said: {e}")).unwrap_or_default();
            let why = format!(
                "expected a gap of ≥ {} ms between ticks, longest seen: {longest} ms{engine}",
                least.as_millis()
            );
            injection.stamp(FaultPhase::Unproved { why }).await?;
        }
    }

    injection.prove_alive(healed).await
}

/// Freezes a server. Servers report no ticks, so the proof is no answer during the fault, and an answer afterwards. A
/// request to a stopped server waits for its timeout, so the fault lasts at least that long.
async fn server(injection: &Injection<'_>, mode: FreezeMode, lasting: Duration) -> Result<(), ClusterError> {
    injection.requested().await?;
    mode.begin(injection).await?;
    let from = injection.stamp(FaultPhase::Injected).await?;
    let (answers, slept) = join(injection.cluster.answers(&injection.node), injection.control.sleep(lasting)).await;
    let is_silent = !answers?;
    slept?;
    let to = injection.stamp(FaultPhase::HealRequested).await?;
    mode.end(injection).await?;
    injection.stamp(FaultPhase::Healed).await?;
    if is_silent {
        injection.stamp(FaultPhase::Proved { from, to }).await?;
    } else {
        let why = format!("expected no answer from a server that is {}; there was one", mode.name());
        injection.stamp(FaultPhase::Unproved { why }).await?;
    }
    injection.prove_answers().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::executor::block_on;
    use history::{
        ClientId, Event, Fault, FaultId, HoldId, NodeName, Point, StallCause, Stamp, Step, Target, Until, When,
    };
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        LiveView,
        double::{Answers, Double, acquires, sees, starts},
        driver,
        waits::tests,
    };

    const LASTING: Duration = Duration::from_secs(4);

    fn at(seconds: u64) -> Stamp {
        Stamp(seconds * 1_000_000_000)
    }

    fn stall(from: u64, to: u64) -> Event {
        Event::Stall { from: at(from), to: at(to), late: StallCause::Tick }
    }

    /// Worker-1 runs. The agent stamps the request at 10 s, and each later event a second after the one before. Notes
    /// the phases of the fault, and the calls.
    struct Engine {
        live_view: LiveView,
        stamps: AtomicU64,
        /// The events of worker-1 while the engine freezes it, and while the engine thaws it, with their times.
        freezing: Vec<(u64, Event)>,
        thawing: Vec<(u64, Event)>,
        /// True if the engine reports that it could not freeze the target.
        fails: bool,
        phases: Mutex<Vec<FaultPhase>>,
        calls: Mutex<Vec<&'static str>>,
    }

    impl Engine {
        fn new() -> Engine {
            let engine = Engine {
                live_view: LiveView::new(),
                stamps: AtomicU64::new(10),
                freezing: Vec::new(),
                thawing: Vec::new(),
                fails: false,
                phases: Mutex::default(),
                calls: Mutex::default(),
            };
            starts(&engine.live_view, "worker-1", at(0));
            engine
        }

        fn happens(&self, events: &[(u64, Event)]) {
            events.iter().for_each(|(time, event)| sees(&self.live_view, "worker-1", at(*time), event.clone()));
        }
    }

    impl Answers for Engine {
        fn freeze(&self) -> Result<(), ClusterError> {
            self.calls.lock().push("freeze");
            self.happens(&self.freezing);
            let error = ClusterError { node: "worker-1".into(), doing: "freezing", why: "no answer in time".into() };
            if self.fails { Err(error) } else { Ok(()) }
        }

        fn thaw(&self) {
            self.calls.lock().push("thaw");
            self.happens(&self.thawing);
        }

        fn is_running(&self) -> bool {
            true
        }

        fn answers(&self) -> bool {
            false
        }

        fn stamp(&self, event: Event) -> Stamp {
            match event {
                Event::Fault { phase, .. } => self.phases.lock().push(phase),
                Event::PointReleased { .. } => self.calls.lock().push("stamp of the release"),
                other => unreachable!("{other:?}"),
            }
            at(self.stamps.fetch_add(1, Ordering::Relaxed))
        }

        fn let_go(&self) {
            self.calls.lock().push("release");
        }

        fn sleep(&self, _: Duration) {}
    }

    /// Pauses a node for its waiting client, whose hold is 1. Returns the phases and the calls.
    fn paused(node: &str, engine: Engine) -> (Vec<FaultPhase>, Vec<&'static str>) {
        let (node, when) = (NodeName::new(node), When::At(Duration::ZERO));
        let step = Step { id: FaultId(1), fault: Fault::new(Pause {}, LASTING), target: Target::Holder, when };
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let double = Double(engine);
        let live_view = &double.0.live_view;
        acquires(live_view, "worker-1", at(5), HoldId(1));
        live_view.watch(step.id, HoldId(1));
        let (hold, waiting) = (Some(HoldId(1)), Some((ClientId(0), Point::BeforeWrite)));
        let injection = Injection { hold, waiting, ..double.injection(live_view, &plan, &step, node) };
        block_on(driver::inject(&injection)).unwrap();
        (double.0.phases.lock().clone(), double.0.calls.lock().clone())
    }

    #[test]
    fn the_release_of_a_client_is_stamped_before_it_happens() {
        let (phases, calls) = paused("worker-1", Engine { thawing: vec![(16, stall(12, 16))], ..Engine::new() });
        assert_eq!(phases[0], FaultPhase::Requested { asked_ns: 4_000_000_000, hold: Some(HoldId(1)) });
        assert_eq!(phases[4..], [FaultPhase::Proved { from: at(12), to: at(16) }, FaultPhase::HealProved]);
        assert_eq!(calls, ["freeze", "stamp of the release", "release", "thaw"]);
    }

    #[test]
    fn a_pause_that_begins_after_a_release_misses_its_target() {
        let released = (11, Event::Release { hold: HoldId(1) });
        let engine = Engine { freezing: vec![released], thawing: vec![(16, stall(12, 16))], ..Engine::new() };
        assert!(paused("worker-1", engine).0.contains(&FaultPhase::MissedTarget));
    }

    #[test]
    fn a_release_between_the_last_tick_and_the_freeze_misses() {
        // The last tick before the freeze is at 12 s, and the first one after the thaw is at 16 s.
        for (released, is_missed) in [(12, true), (13, true), (15, false)] {
            let release = (released, Event::Release { hold: HoldId(1) });
            let engine = Engine { thawing: vec![release, (16, stall(12, 16))], ..Engine::new() };
            let (phases, _) = paused("worker-1", engine);
            assert_eq!(phases.contains(&FaultPhase::MissedTarget), is_missed, "released at {released} s");
        }
    }

    #[test]
    fn a_stall_from_before_a_pause_does_not_prove_it() {
        let engine = Engine::new();
        engine.happens(&[(8, stall(3, 8))]);
        let (phases, _) = paused("worker-1", engine);
        assert!(matches!(&phases[4], FaultPhase::Unproved { why } if why.contains("longest seen: 0 ms")), "{phases:?}");
    }

    fn is_unproved(phases: &[FaultPhase], because: &str) -> bool {
        phases.iter().any(|phase| matches!(phase, FaultPhase::Unproved { why } if why.contains(because)))
    }

    #[test]
    fn a_freeze_from_before_a_pause_does_not_prove_it() {
        // Somebody else has frozen worker-1, so the engine refuses another freeze. The heal ends the first freeze, two
        // seconds after the request.
        let engine = Engine { fails: true, thawing: vec![(12, stall(3, 12))], ..Engine::new() };
        let (phases, _) = paused("worker-1", engine);
        assert!(is_unproved(&phases, "longest seen: 2000 ms; the engine said: "), "{phases:?}");
    }

    #[test]
    fn a_stall_after_a_pause_that_the_engine_refused_does_not_prove_it() {
        // The heal is at 13 s.
        let engine = Engine { fails: true, thawing: vec![(20, stall(15, 20))], ..Engine::new() };
        let (phases, _) = paused("worker-1", engine);
        assert!(is_unproved(&phases, "longest seen: 0 ms; the engine said: "), "{phases:?}");
    }

    #[test]
    fn a_longer_stall_from_before_a_pause_does_not_hide_its_proof() {
        let engine = Engine { thawing: vec![(11, stall(1, 11)), (16, stall(12, 16))], ..Engine::new() };
        assert_eq!(paused("worker-1", engine).0[4], FaultPhase::Proved { from: at(12), to: at(16) });
    }

    #[test]
    fn a_freeze_that_failed_releases_the_client_and_thaws_the_target() {
        let (phases, calls) = paused("worker-1", Engine { fails: true, ..Engine::new() });
        assert_eq!(calls, ["freeze", "stamp of the release", "release", "thaw"]);
        assert!(phases.iter().any(|phase| matches!(phase, FaultPhase::Unproved { why } if why.contains("no answer"))));
    }

    #[test]
    fn a_target_that_shows_no_life_is_not_proved_healed() {
        for node in ["worker-1", "redis-1"] {
            let (phases, _) = paused(node, Engine::new());
            assert!(phases.contains(&FaultPhase::Healed) && !phases.contains(&FaultPhase::HealProved), "{phases:?}");
        }
    }
}
