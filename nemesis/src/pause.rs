//! `pause`: the container freezer stops every process of the target for a while.
//!
//! Possible on workers, lock nodes and the resource. The engine's calls take 10–25 ms, now and then 1.5 s, and the target may be frozen long
//! before a call returns or run again before it does: only the target's own ticks prove a pause.

use std::time::Duration;

use futures::future::join;
use history::FaultPhase;

use crate::{
    ClusterError,
    run::{PROOF, Site},
};

/// A pause is proved if the target did not run for this share of what was asked.
const PROVED_FROM: f64 = 0.9;

/// In which way a target is kept from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Still {
    /// By the container freezer.
    Frozen,
    /// By a signal.
    Stopped,
}

impl Still {
    fn name(self) -> &'static str {
        match self {
            Still::Frozen => "frozen",
            Still::Stopped => "stopped",
        }
    }

    async fn begin(self, site: &Site<'_>) -> Result<(), ClusterError> {
        match self {
            Still::Frozen => site.cluster.freeze(&site.node).await,
            Still::Stopped => site.cluster.stop(&site.node).await,
        }
    }

    async fn end(self, site: &Site<'_>) -> Result<(), ClusterError> {
        match self {
            Still::Frozen => site.cluster.thaw(&site.node).await,
            Still::Stopped => site.cluster.go_on(&site.node).await,
        }
    }
}

pub(crate) async fn pause(site: &Site<'_>, lasting: Duration) -> Result<(), ClusterError> {
    hold_still(site, Still::Frozen, lasting).await
}

/// Keeps the target from running for so long, and proves it through the target.
pub(crate) async fn hold_still(site: &Site<'_>, still: Still, lasting: Duration) -> Result<(), ClusterError> {
    if site.is_server {
        return server(site, still, lasting).await;
    }
    let Some(process) = site.scene.look(|view| view.process(&site.node)) else {
        site.requested().await?;
        let why = format!("expected a running process that could be {}; there was none", still.name());
        return site.stamp(FaultPhase::Unproved { why }).await.map(drop);
    };
    let requested = site.requested().await?;
    let injected = still.begin(site).await;
    if injected.is_ok() {
        site.stamp(FaultPhase::Injected).await?;
    }
    site.let_go().await?;
    if injected.is_ok() {
        site.control.sleep(lasting).await?;
    }
    site.stamp(FaultPhase::HealRequested).await?;
    still.end(site).await?;
    let healed = site.stamp(FaultPhase::Healed).await?;

    let least = lasting.mul_f64(PROVED_FROM);
    let gap = |view: &crate::View| view.stall(&process, requested).filter(|(from, to)| to.since(*from) >= least);
    match site.scene.within(site.control, PROOF, gap).await {
        Some((from, to)) => {
            site.stamp(FaultPhase::Proved { from, to }).await?;
            site.missed(from).await?;
        }
        None => {
            let longest =
                site.scene.look(|view| view.stall(&process, requested)).map_or(0, |(f, t)| t.since(f).as_millis());
            let engine = injected.err().map(|e| format!("; the engine said: {e}")).unwrap_or_default();
            let why = format!(
                "expected a gap of ≥ {} ms between ticks, longest seen: {longest} ms{engine}",
                least.as_millis()
            );
            site.stamp(FaultPhase::Unproved { why }).await?;
        }
    }

    site.prove_alive(healed).await
}

/// A server has no ticks that we see: it must not answer while it is kept still, and answer again afterwards. A request to one that was stopped
/// waits until it is given up, and is given that time.
async fn server(site: &Site<'_>, still: Still, lasting: Duration) -> Result<(), ClusterError> {
    site.requested().await?;
    still.begin(site).await?;
    let from = site.stamp(FaultPhase::Injected).await?;
    let (answers, slept) = join(site.cluster.answers(&site.node), site.control.sleep(lasting)).await;
    let is_silent = !answers?;
    slept?;
    let to = site.stamp(FaultPhase::HealRequested).await?;
    still.end(site).await?;
    site.stamp(FaultPhase::Healed).await?;
    if is_silent {
        site.stamp(FaultPhase::Proved { from, to }).await?;
    } else {
        let why = format!("expected no answer from a server that is {}; there was one", still.name());
        site.stamp(FaultPhase::Unproved { why }).await?;
    }
    site.prove_answers().await
}
