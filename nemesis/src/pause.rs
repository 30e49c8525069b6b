//! `pause`: the container freezer stops every process of the target for a while.
//!
//! Possible on workers, lock nodes and the resource. The engine's calls take 10–25 ms, now and then 1.5 s, and the target may be frozen long
//! before a call returns or run again before it does: only the target's own ticks prove a pause.

use std::time::Duration;

use history::FaultPhase;

use crate::{
    ClusterError,
    run::{PROOF, Site},
};

/// A pause is proved if the target did not run for this share of what was asked.
const PROVED_FROM: f64 = 0.9;

pub(crate) async fn pause(site: &Site<'_>, lasting: Duration) -> Result<(), ClusterError> {
    if site.is_server {
        return server(site, lasting).await;
    }
    let Some(process) = site.scene.look(|view| view.process(&site.node)) else {
        site.requested().await?;
        let why = "expected a running process to freeze; there was none".into();
        return site.stamp(FaultPhase::Unproved { why }).await.map(drop);
    };
    let requested = site.requested().await?;
    let injected = site.cluster.freeze(&site.node).await;
    if injected.is_ok() {
        site.stamp(FaultPhase::Injected).await?;
    }
    site.let_go().await?;
    if injected.is_ok() {
        site.control.sleep(lasting).await?;
    }
    site.stamp(FaultPhase::HealRequested).await?;
    site.cluster.thaw(&site.node).await?;
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

/// A server has no ticks that we see: it must not answer while it is frozen, and answer again afterwards.
async fn server(site: &Site<'_>, lasting: Duration) -> Result<(), ClusterError> {
    site.requested().await?;
    site.cluster.freeze(&site.node).await?;
    let from = site.stamp(FaultPhase::Injected).await?;
    let is_silent = !site.cluster.answers(&site.node).await?;
    site.control.sleep(lasting).await?;
    let to = site.stamp(FaultPhase::HealRequested).await?;
    site.cluster.thaw(&site.node).await?;
    site.stamp(FaultPhase::Healed).await?;
    if is_silent {
        site.stamp(FaultPhase::Proved { from, to }).await?;
    } else {
        let why = "expected no answer from a frozen server; there was one".into();
        site.stamp(FaultPhase::Unproved { why }).await?;
    }
    site.prove_answers().await
}
