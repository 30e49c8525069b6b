//! `kill`: SIGKILL to a worker, and a new process in its place after a while.
//!
//! Proved by the end of one process and the first event of the next. The killed process's last sign of life lies up to 50 ms after the
//! request: its entitlement ends at the agent's stamp before the call, which is a lower bound.

use std::time::Duration;

use history::FaultPhase;

use crate::{
    ClusterError,
    run::{PROOF, Site},
};

pub(crate) async fn kill(site: &Site<'_>, back_after: Duration) -> Result<(), ClusterError> {
    let former = site.scene.look(|view| view.process(&site.node));
    site.requested().await?;
    let injected = site.cluster.kill(&site.node).await;
    if injected.is_ok() {
        site.stamp(FaultPhase::Injected).await?;
        site.control.sleep(back_after).await?;
    }
    site.stamp(FaultPhase::HealRequested).await?;
    site.cluster.start(&site.node).await?;
    let healed = site.stamp(FaultPhase::Healed).await?;

    let Some(former) = former else {
        let why = "expected a running process to kill; there was none".into();
        return site.stamp(FaultPhase::Unproved { why }).await.map(drop);
    };
    let replaced = |view: &crate::View| {
        let from = view.end_of(&former)?;
        let (process, started, _) = view.life(&site.node)?;
        (*process != former).then_some((from, started))
    };
    match site.scene.within(site.control, PROOF, replaced).await {
        Some((from, to)) => {
            site.stamp(FaultPhase::Proved { from, to }).await?;
            site.missed(from).await?;
        }
        None => {
            let engine = injected.err().map(|e| format!("; the engine said: {e}")).unwrap_or_default();
            let why = format!("expected {former} to end and another process to start in its place{engine}");
            site.stamp(FaultPhase::Unproved { why }).await?;
        }
    }

    let runs = |view: &crate::View| view.life(&site.node).filter(|(_, _, last)| *last > healed).map(drop);
    let alive = site.scene.within(site.control, PROOF, runs).await.is_some();
    if alive && site.cluster.is_running(&site.node).await? {
        site.stamp(FaultPhase::HealProved).await?;
    }
    Ok(())
}
