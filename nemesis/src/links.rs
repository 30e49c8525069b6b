//! `partition`, `delay`, `loss` and `reorder`: packets between the target and some other nodes are dropped, or late.
//!
//! Possible on every node. On each link a partition is proved by a probe that does not get through, a delay by one that takes that long. Chance is
//! probed more often: a loss is proved as soon as one of many probes is lost, and delays that are drawn as soon as two of many differ by half of the
//! range. A fault is on or off for all of its links, so they share as many probes that show nothing of it to prove that it is healed. It is proved
//! while it is on; one that takes longer to show itself than it was asked to last is on until it has.

use std::time::Duration;

use futures::future::{join, join_all};
use history::{Fault, FaultPhase, Late, NodeName};

use crate::{
    ClusterError,
    run::{Site, peers},
};

/// A delay is proved if a packet took this share of what was asked.
const PROVED_FROM: f64 = 0.9;
/// Some probe is lost of so many, divided by how many of a hundred are lost, but for one time in a million: (1 − p)^(14 / p) < e^−14.
const PROBES_OF_LOSS: u32 = 1_400;
/// What is lost may be sent again by the prober's kernel: it is late by Linux's least retransmission timeout then.
const SENT_AGAIN: Duration = Duration::from_millis(200);
/// Of n draws all lie within half of the range n / 2^(n−1) − (n−1) / 2^n times: of so many surely not, and if links share them, each with as many as
/// make a difference, one time in a million.
const PROBES_OF_DRAWS: u32 = 60;
const PROBES_OF_A_LINK: u32 = 3;
/// Between two looks whether packets get through again.
const LOOK: Duration = Duration::from_millis(100);
/// How many of them.
const LOOKS: u32 = 50;
/// How many looks established connections have to come to life again. A cut of 2 s was seen to need 1.3 s.
const CONNECTION_LOOKS: u32 = 20;

pub(crate) async fn hold_up(site: &Site<'_>, lasting: Duration) -> Result<(), ClusterError> {
    let fault = &site.step.fault;
    let links: Vec<(NodeName, NodeName)> = peers(site.plan, &site.node)
        .flat_map(|peer| [(site.node.clone(), peer.clone()), (peer, site.node.clone())])
        .filter(|(from, to)| fault.hits(&site.node, from, to))
        .collect();
    site.requested().await?;
    site.cluster.hold_up(&site.node, site.step.id, fault).await?;
    let from = site.stamp(FaultPhase::Injected).await?;
    // A client that waits for the fault does not wait for its proof: a probe takes as long as packets are late, and a lease would run out meanwhile.
    site.let_go().await?;
    let (missing, slept) = join(missing(site, &links), site.control.sleep(lasting)).await;
    let missing = missing?;
    slept?;
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
    let judged: Vec<_> = links.iter().filter(|(a, b)| !site.is_held_up_otherwise(a, b)).collect();
    let share = probes(fault).div_ceil(judged.len().max(1) as u32).max(PROBES_OF_A_LINK).min(probes(fault));
    for _ in 0..LOOKS {
        let seen = join_all(judged.iter().map(|(a, b)| hidden(site, a, b, share))).await;
        let seen = seen.into_iter().collect::<Result<Vec<_>, _>>()?;
        if seen.iter().all(Option::is_some) {
            settle(site).await?;
            return site.stamp(FaultPhase::HealProved).await.map(drop);
        }
        site.control.sleep(LOOK).await?;
    }
    Ok(())
}

/// Probes all links; tells of one, if there is, that shows nothing of the fault.
async fn missing(site: &Site<'_>, links: &[(NodeName, NodeName)]) -> Result<Option<String>, ClusterError> {
    let probes = probes(&site.step.fault);
    let seen = join_all(links.iter().map(|(a, b)| hidden(site, a, b, probes))).await;
    let mut missing = None;
    for (seen, (a, b)) in seen.into_iter().zip(links) {
        if let Some((fastest, slowest)) = seen? {
            missing.get_or_insert_with(|| match probes {
                1 => format!("a packet from {a} to {b} came through in {slowest:?}"),
                n => format!("{n} packets from {a} to {b} came through in {fastest:?} to {slowest:?}"),
            });
        }
    }
    Ok(missing)
}

/// Lets connections that still wait for a retransmission come to life again, and resets those that do not: the fault is over for them as well.
async fn settle(site: &Site<'_>) -> Result<(), ClusterError> {
    for _ in 0..CONNECTION_LOOKS {
        if site.cluster.stale_connections(&site.node, false).await? == 0 {
            return Ok(());
        }
        site.control.sleep(LOOK).await?;
    }
    let count = site.cluster.stale_connections(&site.node, true).await?;
    if count > 0 {
        site.stamp(FaultPhase::ConnectionsReset { count }).await?;
    }
    Ok(())
}

/// Probes a link until it shows the fault; if it does not, tells the fastest and the slowest probe.
async fn hidden(
    site: &Site<'_>,
    from: &NodeName,
    to: &NodeName,
    probes: u32,
) -> Result<Option<(Duration, Duration)>, ClusterError> {
    let mut seen: Option<(Duration, Duration)> = None;
    for _ in 0..probes {
        let Some(latency) = site.cluster.latency(from, to).await? else { return Ok(None) };
        let (fastest, slowest) = seen.map_or((latency, latency), |(f, s)| (f.min(latency), s.max(latency)));
        if shows(&site.step.fault, fastest, slowest) {
            return Ok(None);
        }
        seen = Some((fastest, slowest));
    }
    Ok(seen)
}

/// How many of one link show the fault, if it is on.
fn probes(fault: &Fault) -> u32 {
    match (fault, fault.late()) {
        (Fault::Loss { percent, .. }, _) => PROBES_OF_LOSS / u32::from(*percent).max(1),
        (_, Some(Late::Drawn(_))) => PROBES_OF_DRAWS,
        _ => 1,
    }
}

/// Whether probes that came through show it.
fn shows(fault: &Fault, fastest: Duration, slowest: Duration) -> bool {
    match (fault, fault.late()) {
        (_, Some(Late::Fixed(by))) => slowest >= by.mul_f64(PROVED_FROM),
        (_, Some(Late::Drawn(by))) => {
            fastest >= by.from.mul_f64(PROVED_FROM) && slowest - fastest >= by.to.saturating_sub(by.from) / 2
        }
        (Fault::Loss { .. }, None) => slowest >= SENT_AGAIN,
        _ => false,
    }
}
