//! `kill`, `amnesia`, `powerloss`: SIGKILL ends the process, and a new process starts later with all, none or some of
//! the data.
//!
//! `kill` is possible on every node, `amnesia` and `powerloss` on lock nodes only. The proof of a worker's restart is
//! the end of the old process and the first event of the new process. The old process's last event is up to 50 ms later
//! than the request. The worker's entitlement ends at the agent's stamp before the call, which is a lower bound.
//!
//! The proof of a server's restart is no answer while the server is down, and an answer afterwards. A `kill` also needs
//! a server that ran before. The proof of lost data is a marker key: the key is written before the fault, and is gone
//! after the restart. The proof of lost power is a canary file: of its two lines, only the synced line is there after
//! the restart.
//!
//! A server that keeps a log is asked for its pending fsyncs before the SIGKILL: a SIGKILL during an fsync was seen to
//! lose answered writes.

use std::time::Duration;

use history::{
    FaultPhase,
    fault::{Amnesia, Data, Kill, Parameters, Powerloss},
};
use rand::Rng;

use crate::{
    cluster::ClusterError,
    drawing::Drawing,
    driver::Driver,
    injection::{Injection, PROOF},
    spec::TargetSpec,
};

/// The downtime of a killed node, unless `--nemesis` gives one.
const BACK_AFTER: Duration = Duration::from_secs(1);
/// The drawn downtime of a lock node that loses data.
const BACK_SOON_MS: std::ops::RangeInclusive<u64> = 50..=500;

impl Driver for Kill {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::Holder;

    fn draw(drawing: &mut Drawing<'_>) -> (Kill, Duration) {
        (Kill {}, drawing.spec.lasting.unwrap_or(BACK_AFTER))
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        restart(injection, injection.step.fault.lasting, Data::Kept).await
    }
}

impl Driver for Amnesia {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;
    const IS_SHARED: bool = true;

    fn draw(drawing: &mut Drawing<'_>) -> (Amnesia, Duration) {
        (Amnesia::default(), back_soon(drawing))
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        restart(injection, injection.step.fault.lasting, Data::Lost).await
    }
}

impl Driver for Powerloss {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;
    const IS_SHARED: bool = true;

    fn draw(drawing: &mut Drawing<'_>) -> (Powerloss, Duration) {
        (Powerloss {}, back_soon(drawing))
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        restart(injection, injection.step.fault.lasting, Data::Synced).await
    }
}

fn back_soon(drawing: &mut Drawing<'_>) -> Duration {
    let drawn = Duration::from_millis(drawing.rng.random_range(BACK_SOON_MS));
    drawing.spec.lasting.unwrap_or(drawn)
}

async fn restart(injection: &Injection<'_>, back_after: Duration, data: Data) -> Result<(), ClusterError> {
    if injection.is_server {
        return server(injection, back_after, data).await;
    }
    let former = injection.live_view.look(|view| view.process(&injection.node));
    injection.requested().await?;
    let injected = injection.cluster.kill(&injection.node).await;
    if injected.is_ok() {
        injection.stamp(FaultPhase::Injected).await?;
        injection.control.sleep(back_after).await?;
    } else if injection.waiting.is_some() && injection.cluster.is_running(&injection.node).await.unwrap_or(false) {
        // A client that waits for the kill would wait until its lease is over. An engine that has not answered in time
        // may have killed the process all the same, and nobody can reach the client then.
        let _ = injection.let_go().await;
    }
    injection.stamp(FaultPhase::HealRequested).await?;
    injection.cluster.start(&injection.node, data).await?;
    let healed = injection.stamp(FaultPhase::Healed).await?;

    let Some(former) = former else {
        let why = "expected a running process to kill; there was none".into();
        injection.stamp(FaultPhase::Unproved { why }).await?;
        return injection.prove_alive(healed).await;
    };
    let replaced = |view: &crate::View| {
        let from = view.end_of(&former)?;
        let (process, started, _) = view.life(&injection.node)?;
        (*process != former).then_some((from, started))
    };
    match injection.live_view.within(injection.control, PROOF, replaced).await {
        Some((from, to)) => {
            injection.stamp(FaultPhase::Proved { from, to }).await?;
            injection.missed(from).await?;
        }
        None => {
            let engine = injected.err().map(|e| format!("; the engine said: {e}")).unwrap_or_default();
            let why = format!("expected {former} to end and another process to start in its place{engine}");
            injection.stamp(FaultPhase::Unproved { why }).await?;
        }
    }
    injection.prove_alive(healed).await
}

/// The number of requests for the pending fsyncs of a server, and the time between two requests.
const SYNCED: (u32, Duration) = (5, Duration::from_millis(20));

/// Waits for the pending fsyncs of a server that keeps a log, and records the last number of pending fsyncs. Nothing is
/// recorded if the server does not report the number.
async fn unsynced(injection: &Injection<'_>) -> Result<(), ClusterError> {
    let mut last = None;
    for _ in 0..SYNCED.0 {
        match injection.cluster.pending_fsyncs(&injection.node).await {
            Ok(fsyncs) => last = fsyncs,
            Err(error) => tracing::debug!(node = %injection.node, %error, "does not say what it has not synced"),
        }
        if last.is_none_or(|fsyncs| fsyncs == 0) {
            break;
        }
        injection.control.sleep(SYNCED.1).await?;
    }
    match last {
        Some(fsyncs) => injection.stamp(FaultPhase::Unsynced { fsyncs }).await.map(drop),
        None => Ok(()),
    }
}

async fn server(injection: &Injection<'_>, back_after: Duration, data: Data) -> Result<(), ClusterError> {
    let marker = match data {
        Data::Lost => injection.cluster.leave_marker(&injection.node).await,
        Data::Kept | Data::Synced => Ok(false),
    };
    // The server may have ended by itself. The kill ends nothing then. A loss of data has a proof of its own.
    let was_down = data == Data::Kept && !injection.cluster.is_running(&injection.node).await?;
    let from = injection.requested().await?;
    if data == Data::Kept && injection.plan.models.is_some_and(|models| models.persistence.has_log()) {
        unsynced(injection).await?;
    }
    injection.cluster.kill(&injection.node).await?;
    injection.stamp(FaultPhase::Injected).await?;
    let is_down = !injection.cluster.answers(&injection.node).await?;
    injection.control.sleep(back_after).await?;
    injection.stamp(FaultPhase::HealRequested).await?;
    match &injection.step.fault.parameters {
        Parameters::Amnesia(Amnesia { counters_of }) if !counters_of.is_empty() => {
            injection.cluster.start_with_counters(&injection.node, counters_of).await?;
        }
        _ => injection.cluster.start(&injection.node, data).await?,
    }
    let to = injection.stamp(FaultPhase::Healed).await?;
    let answers = injection.answers_again().await?;
    let missing = match marker {
        _ if was_down => Some("expected a running server to kill; the server was down already".into()),
        _ if !is_down => Some("expected no answer from a server that was killed; there was one".into()),
        Ok(is_left) if is_left => kept(injection, answers).await,
        Ok(_) if data == Data::Synced => kept_unsynced(injection, answers).await,
        Ok(_) => None,
        Err(error) => Some(format!("expected to write a marker key before the fault; {error}")),
    };
    match missing {
        None => injection.stamp(FaultPhase::Proved { from, to }).await?,
        Some(why) => injection.stamp(FaultPhase::Unproved { why }).await?,
    };
    if answers {
        injection.stamp(FaultPhase::HealProved).await?;
    }
    Ok(())
}

/// Returns the reason why a server that was to lose its unsynced data may have kept them.
async fn kept_unsynced(injection: &Injection<'_>, answers: bool) -> Option<String> {
    if !answers {
        return Some("expected the server to answer after its loss of power; there was no answer".into());
    }
    let asked = injection.cluster.kept_unsynced(&injection.node).await;
    asked.unwrap_or_else(|error| Some(format!("expected a report of the unsynced data that was lost; {error}")))
}

/// Returns the reason why a server that was to lose its data may have kept them; none if its marker key is gone.
async fn kept(injection: &Injection<'_>, answers: bool) -> Option<String> {
    if !answers {
        return Some("expected the server to answer without its marker key; there was no answer".into());
    }
    match injection.cluster.take_marker(&injection.node).await {
        Ok(false) => None,
        Ok(true) => Some("expected the data to be lost; the marker key from before the fault was still there".into()),
        Err(error) => Some(format!("expected the server to say that its marker key is gone; {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::executor::block_on;
    use history::{
        ClientId, Event, Fault, FaultId, HoldId, Models, Persistence, Plan, Point, Stamp, Step, Target, Until, When,
    };
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        LiveView,
        double::{Answers, Double, acquires, phase_of, sees, starts},
        driver,
        waits::tests,
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// The engine kills worker-1 if it runs, and starts it again. Notes the phases of the fault.
    #[derive(Default)]
    struct Restarted {
        live_view: LiveView,
        phases: Mutex<Vec<FaultPhase>>,
    }

    impl Answers for Restarted {
        fn kill(&self) {
            let event = Event::ProcessEnded { ended: "worker-1".into(), code: Some(137) };
            sees(&self.live_view, "controller", Stamp(0), event);
        }

        fn start(&self) {
            starts(&self.live_view, "worker-1#2", Stamp(9));
        }

        fn is_running(&self) -> bool {
            true
        }

        fn stamp(&self, event: Event) -> Stamp {
            self.phases.lock().push(phase_of(event));
            Stamp(1)
        }

        fn sleep(&self, _: Duration) {}
    }

    /// Carries out a fault of a node, whose servers keep a log.
    fn inject(node: &str, fault: impl Into<Parameters>, double: &Double<impl Answers>, live_view: &LiveView) {
        let (target, when) = (Target::Node(node.into()), When::At(Duration::ZERO));
        let step = Step { id: FaultId(1), fault: Fault::new(fault, SECOND), target, when };
        let models = Some(Models { persistence: Persistence::Everysec, ..Models::default() });
        let plan = Plan { models, ..tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO))) };
        block_on(driver::inject(&double.injection(live_view, &plan, &step, node.into()))).unwrap();
    }

    /// Kills worker-1.
    fn killed(restarted: Restarted) -> Vec<FaultPhase> {
        let double = Double(restarted);
        inject("worker-1", Kill {}, &double, &double.0.live_view);
        double.0.phases.into_inner()
    }

    #[test]
    fn a_worker_that_ran_no_process_is_proved_healed() {
        let phases = killed(Restarted::default());
        assert!(matches!(&phases[4], FaultPhase::Unproved { why } if why.contains("there was none")), "{phases:?}");
        assert_eq!(phases[5..], [FaultPhase::HealProved]);
    }

    #[test]
    fn a_kill_after_the_release_misses_its_target() {
        let restarted = Restarted::default();
        starts(&restarted.live_view, "worker-1", Stamp(2));
        acquires(&restarted.live_view, "worker-1", Stamp(3), HoldId(7));
        restarted.live_view.watch(FaultId(1), HoldId(7));
        sees(&restarted.live_view, "worker-1", Stamp(5), Event::Release { hold: HoldId(7) });
        let proved = FaultPhase::Proved { from: Stamp(5), to: Stamp(9) };
        assert_eq!(killed(restarted)[4..], [proved, FaultPhase::MissedTarget, FaultPhase::HealProved]);
    }

    /// The engine refuses the kill of worker-1, which has a client that waits for it. Notes the released points.
    #[derive(Default)]
    struct Refused {
        is_down: bool,
        /// True if the process ends just then.
        is_ending: bool,
        released: Mutex<Vec<Point>>,
    }

    impl Answers for Refused {
        fn refuses_kill(&self) -> Option<&'static str> {
            Some("no such process")
        }

        fn start(&self) {}

        fn is_running(&self) -> bool {
            !self.is_down
        }

        fn stamp(&self, event: Event) -> Stamp {
            if let Event::PointReleased { point, .. } = event {
                self.released.lock().push(point);
            }
            Stamp(1)
        }

        fn let_go(&self) {}

        fn refuses_to_let_go(&self) -> Option<&'static str> {
            self.is_ending.then_some("the process takes no more input")
        }

        fn sleep(&self, _: Duration) {}
    }

    #[test]
    fn a_client_does_not_wait_for_a_kill_that_the_engine_refuses() {
        let before_write = || vec![Point::BeforeWrite];
        for (is_down, is_ending, released) in
            [(false, false, before_write()), (false, true, before_write()), (true, false, Vec::new())]
        {
            let refused = Refused { is_down, is_ending, ..Refused::default() };
            let (double, live_view) = (Double(refused), LiveView::new());
            starts(&live_view, "worker-1", Stamp(0));
            let (target, when) = (Target::Node("worker-1".into()), When::AtPoint(Point::BeforeWrite));
            let step = Step { id: FaultId(1), fault: Fault::new(Kill {}, SECOND), target, when };
            let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
            let injection = double.injection(&live_view, &plan, &step, "worker-1".into());
            let waiting = Some((ClientId(0), Point::BeforeWrite));
            block_on(driver::inject(&Injection { waiting, ..injection })).unwrap();
            assert_eq!(*double.0.released.lock(), released, "down: {is_down}, ending: {is_ending}");
        }
    }

    /// A server and its engine. Notes the phases of the fault.
    #[derive(Default)]
    struct Server {
        /// True if the engine reports a kill, and the server goes on.
        survives: bool,
        /// True if the server does not come back.
        stays_down: bool,
        /// True if the server has its marker after its restart; none, if it takes no marker.
        marker: Option<bool>,
        /// True if the request to write the marker fails.
        refuses_marker: bool,
        is_down: AtomicBool,
        /// The numbers of pending fsyncs that the server reports, the last one first.
        fsyncs: Mutex<Vec<u32>>,
        phases: Mutex<Vec<FaultPhase>>,
    }

    impl Answers for Server {
        fn kill(&self) {
            self.is_down.store(!self.survives, Ordering::Relaxed);
        }

        fn start(&self) {
            self.is_down.store(self.stays_down, Ordering::Relaxed);
        }

        fn leave_marker(&self) -> Result<bool, ClusterError> {
            if self.refuses_marker {
                let (node, doing) = ("redis-1".into(), "writing a marker");
                return Err(ClusterError { node, doing, why: "no answer in time".into() });
            }
            Ok(self.marker.is_some())
        }

        fn take_marker(&self) -> bool {
            self.marker.expect("a marker was left")
        }

        fn answers(&self) -> bool {
            !self.is_down.load(Ordering::Relaxed)
        }

        fn is_running(&self) -> bool {
            !self.is_down.load(Ordering::Relaxed)
        }

        fn pending_fsyncs(&self) -> Option<u32> {
            self.fsyncs.lock().pop()
        }

        fn stamp(&self, event: Event) -> Stamp {
            self.phases.lock().push(phase_of(event));
            Stamp(1)
        }

        fn sleep(&self, _: Duration) {}
    }

    /// Carries out a fault of redis-1.
    fn restarted(fault: impl Into<Parameters>, server: Server) -> Vec<FaultPhase> {
        let double = Double(server);
        inject("redis-1", fault, &double, &LiveView::new());
        double.0.phases.into_inner()
    }

    fn is_unproved(phases: &[FaultPhase], word: &str) -> bool {
        phases.iter().any(|phase| matches!(phase, FaultPhase::Unproved { why } if why.contains(word)))
    }

    #[test]
    fn a_server_is_killed_when_its_fsyncs_are_over() {
        let phases = restarted(Kill {}, Server { fsyncs: Mutex::new(vec![0, 1, 2]), ..Server::default() });
        assert_eq!(phases[1..3], [FaultPhase::Unsynced { fsyncs: 0 }, FaultPhase::Injected]);
    }

    #[test]
    fn a_server_that_answers_after_its_kill_disproves_the_kill() {
        for (survives, is_disproved) in [(true, true), (false, false)] {
            let phases = restarted(Kill {}, Server { survives, ..Server::default() });
            assert_eq!(is_unproved(&phases, "expected no answer"), is_disproved, "{phases:?}");
            assert_eq!(phases.last(), Some(&FaultPhase::HealProved));
        }
    }

    #[test]
    fn a_kill_of_a_server_that_was_down_is_not_proved() {
        for (is_down, is_unproved_by) in [(true, true), (false, false)] {
            let phases = restarted(Kill {}, Server { is_down: AtomicBool::new(is_down), ..Server::default() });
            assert_eq!(is_unproved(&phases, "was down already"), is_unproved_by, "{phases:?}");
            assert_eq!(phases.last(), Some(&FaultPhase::HealProved));
        }
    }

    #[test]
    fn a_loss_of_power_without_a_report_is_not_proved() {
        let phases = restarted(Powerloss {}, Server::default());
        assert!(is_unproved(&phases, "expected a report of the unsynced data"), "{phases:?}");
    }

    #[test]
    fn an_amnesia_is_proved_by_a_server_that_answers_without_its_marker() {
        for (marker, stays_down, unproved) in [
            (Some(false), false, None),
            (Some(true), false, Some("was still there")),
            (Some(false), true, Some("there was no answer")),
            (None, false, None),
        ] {
            let phases = restarted(Amnesia::default(), Server { marker, stays_down, ..Server::default() });
            let is_proved = phases.iter().any(|phase| matches!(phase, FaultPhase::Proved { .. }));
            assert_eq!(is_proved, unproved.is_none(), "{phases:?}");
            assert!(unproved.is_none_or(|words| is_unproved(&phases, words)), "{phases:?}");
            assert_eq!(phases.contains(&FaultPhase::HealProved), !stays_down, "{phases:?}");
        }
    }

    #[test]
    fn an_amnesia_is_not_proved_if_the_marker_could_not_be_written() {
        let phases = restarted(Amnesia::default(), Server { refuses_marker: true, ..Server::default() });
        assert!(is_unproved(&phases, "before the fault; redis-1: writing a marker: no answer in time"), "{phases:?}");
        assert_eq!(phases.last(), Some(&FaultPhase::HealProved));
    }
}
