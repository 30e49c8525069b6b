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
    let gap = |view: &crate::View| view.stall(&process, requested).filter(|(from, to)| to.since(*from) >= least);
    match injection.live_view.within(injection.control, PROOF, gap).await {
        Some((from, to)) => {
            injection.stamp(FaultPhase::Proved { from, to }).await?;
            injection.missed(from).await?;
        }
        None => {
            let longest = injection
                .live_view
                .look(|view| view.stall(&process, requested))
                .map_or(0, |(f, t)| t.since(f).as_millis());
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
