//! `kill`, `amnesia`, `powerloss`: SIGKILL, and a new process in its place after a while, with all, none or some of its data.
//!
//! Possible on workers (`kill`) and lock nodes. A worker's restart is proved by the end of one process and the first event of the next; its
//! last sign of life lies up to 50 ms after the request: its entitlement ends at the agent's stamp before the call, which is a lower bound.
//! A server's restart is proved by its answers: none while it is down, one afterwards. Where it keeps a log it is asked before what of that is not
//! synced yet: a SIGKILL while an fsync is under way was seen to lose what had been answered.

use std::time::Duration;

use history::{Fault, FaultPhase};

use crate::{
    ClusterError, Data,
    run::{PROOF, Site},
};

pub(crate) async fn restart(site: &Site<'_>, back_after: Duration, data: Data) -> Result<(), ClusterError> {
    if site.is_server {
        return server(site, back_after, data).await;
    }
    let former = site.scene.look(|view| view.process(&site.node));
    site.requested().await?;
    let injected = site.cluster.kill(&site.node).await;
    if injected.is_ok() {
        site.stamp(FaultPhase::Injected).await?;
        site.control.sleep(back_after).await?;
    }
    site.stamp(FaultPhase::HealRequested).await?;
    site.cluster.start(&site.node, data).await?;
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
    site.prove_alive(healed).await
}

/// How often a server is asked whether an fsync is still under way, and how long after each time.
const SYNCED: (u32, Duration) = (5, Duration::from_millis(20));

/// Waits a moment until a server that keeps a log has synced what it answered, and has it told in any case. One that does not say leaves it open.
async fn unsynced(site: &Site<'_>) -> Result<(), ClusterError> {
    let mut last = None;
    for _ in 0..SYNCED.0 {
        match site.cluster.pending_fsyncs(&site.node).await {
            Ok(fsyncs) => last = fsyncs,
            Err(error) => tracing::debug!(node = %site.node, %error, "does not say what it has not synced"),
        }
        if last.is_none_or(|fsyncs| fsyncs == 0) {
            break;
        }
        site.control.sleep(SYNCED.1).await?;
    }
    match last {
        Some(fsyncs) => site.stamp(FaultPhase::Unsynced { fsyncs }).await.map(drop),
        None => Ok(()),
    }
}

async fn server(site: &Site<'_>, back_after: Duration, data: Data) -> Result<(), ClusterError> {
    let from = site.requested().await?;
    if data == Data::Kept && site.plan.models.is_some_and(|models| models.persistence.has_log()) {
        unsynced(site).await?;
    }
    site.cluster.kill(&site.node).await?;
    site.stamp(FaultPhase::Injected).await?;
    let is_down = !site.cluster.answers(&site.node).await?;
    site.control.sleep(back_after).await?;
    site.stamp(FaultPhase::HealRequested).await?;
    match &site.step.fault {
        Fault::Amnesia { counters_of, .. } if !counters_of.is_empty() => {
            site.cluster.start_with_counters(&site.node, counters_of).await?;
        }
        _ => site.cluster.start(&site.node, data).await?,
    }
    let to = site.stamp(FaultPhase::Healed).await?;
    if is_down {
        site.stamp(FaultPhase::Proved { from, to }).await?;
    } else {
        let why = "expected no answer from a server that was killed; there was one".into();
        site.stamp(FaultPhase::Unproved { why }).await?;
    }
    site.prove_answers().await
}
