//! `partition` and `delay`: packets between the target and some other nodes are dropped, or late.
//!
//! Possible on every node. A partition is proved by a probe that does not get through, a delay by one that takes that long; both are proved
//! healed by probes that are answered as before.

use std::time::Duration;

use history::{Fault, FaultPhase, NodeName};

use crate::{
    ClusterError,
    run::{Site, peers},
};

/// A delay is proved if a packet took this share of what was asked.
const PROVED_FROM: f64 = 0.9;
/// Between two looks whether packets get through again.
const LOOK: Duration = Duration::from_millis(100);
/// How many of them.
const LOOKS: u32 = 50;

pub(crate) async fn hold_up(site: &Site<'_>, lasting: Duration) -> Result<(), ClusterError> {
    let fault = &site.step.fault;
    let links: Vec<(NodeName, NodeName)> = peers(site.plan, &site.node)
        .flat_map(|peer| [(site.node.clone(), peer.clone()), (peer, site.node.clone())])
        .filter(|(from, to)| fault.hits(&site.node, from, to))
        .collect();
    site.requested().await?;
    site.cluster.hold_up(&site.node, site.step.id, fault).await?;
    let from = site.stamp(FaultPhase::Injected).await?;
    let mut missing = None;
    for (a, b) in &links {
        let latency = site.cluster.latency(a, b).await?;
        let shows = match fault {
            Fault::Delay { by, .. } => latency.is_none_or(|l| l >= by.mul_f64(PROVED_FROM)),
            _ => latency.is_none(),
        };
        if !shows {
            missing
                .get_or_insert(format!("a packet from {a} to {b} came through in {:?}", latency.unwrap_or_default()));
        }
    }
    site.control.sleep(lasting).await?;
    let to = site.stamp(FaultPhase::HealRequested).await?;
    site.cluster.mend(&site.node, site.step.id).await?;
    site.stamp(FaultPhase::Healed).await?;
    match missing {
        None if links.is_empty() => {
            let why = "expected links to hold up; the target has none of those that were named".into();
            site.stamp(FaultPhase::Unproved { why }).await?;
        }
        None => {
            site.stamp(FaultPhase::Proved { from, to }).await?;
        }
        Some(seen) => {
            let why = format!("expected the links to be held up; {seen}");
            site.stamp(FaultPhase::Unproved { why }).await?;
        }
    }
    for _ in 0..LOOKS {
        let mut open = true;
        for (a, b) in &links {
            open &= site.is_held_up_otherwise(a, b) || site.cluster.latency(a, b).await?.is_some();
        }
        if open {
            return site.stamp(FaultPhase::HealProved).await.map(drop);
        }
        site.control.sleep(LOOK).await?;
    }
    Ok(())
}
