//! `pause`: the container freezer stops every process of the target for a while.
//!
//! Possible on every worker. The engine's calls take 10–25 ms, now and then 1.5 s, and the target may be frozen long
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

    let runs = |view: &crate::View| view.life(&site.node).filter(|(_, _, last)| *last > healed).map(drop);
    let alive = site.scene.within(site.control, PROOF, runs).await.is_some();
    if alive && !site.cluster.is_frozen(&site.node).await? {
        site.stamp(FaultPhase::HealProved).await?;
    }
    Ok(())
}
