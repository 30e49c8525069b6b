//! `partition`, `delay`, `loss` and `reorder`: packets between the target and some other nodes are dropped, or late.
//!
//! These faults are possible on every node. The proof needs each link: for a partition, one probe that does not get
//! through; for a fixed delay, one probe that takes as long as the delay. Random effects need several probes: a loss is
//! proved when one probe is lost, and a drawn delay when two probes differ by half of the range.
//!
//! A fault is on or off on all of its links. So the links share the probes that prove the heal, of which none may show
//! the fault. And while other faults are on some of the links, the links without another fault prove it.
//!
//! A probe is a packet and its answer, so a fault of either direction may be the reason for a late or lost probe. A
//! lost probe proves no delay: a probe waits longer than all delays that are on.
//!
//! The probes run while the fault is on. If the proof takes longer than the planned length, the fault stays on until
//! the proof ends.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::{join, join_all, try_join_all};
use history::{Fault, FaultPhase, LinkDelay, NodeName, Stamp, Target, fault::LinkEffect};

use crate::{
    ClusterError,
    injection::{Disturbance, Injection},
};

/// A delay is proved if a packet took this share of the planned delay.
const PROVED_FROM: f64 = 0.9;
/// The number of probes that prove a loss, times the percentage of the loss. With probability 1 − 10⁻⁶ at least one
/// probe is lost: (1 − p)^(14 / p) < e^−14.
const PROBES_OF_LOSS: u32 = 1_400;
/// The shortest retransmission timeout of Linux: the delay of a lost probe that the prober's kernel sends again.
const SENT_AGAIN: Duration = Duration::from_millis(200);
/// The number of probes that prove a drawn delay. All of n draws lie within half of the range with probability n /
/// 2^(n−1) − (n−1) / 2^n: for 60 draws practically never. If links share the probes, with at least `PROBES_OF_A_LINK`
/// probes each, the probability is one in a million.
const PROBES_OF_DRAWS: u32 = 60;
const PROBES_OF_A_LINK: u32 = 3;
/// The time between two checks whether packets get through again.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// The number of these checks. Checks while other planned faults are on the same links do not count.
const LOOKS: u32 = 50;
/// The number of checks until established connections must have recovered. After a cut of 2 s, a connection needed 1.3
/// s.
const CONNECTION_LOOKS: u32 = 20;
/// The server of the resource's own store. Only the resource has connections with it, and no fault names it.
const STORE: &str = "resource-store";

/// The two ends of a link, in the direction of its packets.
pub(crate) type Link = (NodeName, NodeName);

/// Returns the links that the fault hits.
pub(crate) fn hit(injection: &Injection<'_>) -> Vec<Link> {
    let node = &injection.node;
    let peers = injection.plan.peers(&Target::Node(node.clone()));
    peers
        .into_iter()
        .flat_map(|peer| [(node.clone(), peer.clone()), (peer, node.clone())])
        .filter(|(from, to)| injection.step.fault.hits(node, from, to))
        .collect()
}

/// Carries out a fault that has the same effect on its links all the time, from its request to the proof of its heal.
pub(crate) async fn inject(injection: &Injection<'_>) -> Result<(), ClusterError> {
    let links = hit(injection);
    injection.requested().await?;
    injection.cluster.inject_links(&injection.node, injection.step.id, &injection.step.fault).await?;
    let from = injection.stamp(FaultPhase::Injected).await?;
    // A client that waits for the fault does not wait for the proof: a probe takes as long as the delay of a packet,
    // and a lease would expire meanwhile.
    injection.let_go().await?;
    let is_over = AtomicBool::new(false);
    let sleep = over_after(injection, injection.step.fault.lasting, &is_over);
    let (evidence, slept) = join(evidence(injection, &links, &is_over), sleep).await;
    slept?;
    let to = injection.stamp(FaultPhase::HealRequested).await?;
    injection.cluster.heal_links(&injection.node, injection.step.id).await?;
    injection.stamp(FaultPhase::Healed).await?;
    // An error of a probe comes after the heal: other faults wait until their links are free of this one.
    prove(injection, &links, evidence?.missing(), (from, to)).await?;
    prove_healed(injection, &links).await
}

/// Waits until the planned end of a fault or of a turn, and sets `is_over` then. The time counts from the call.
pub(crate) fn over_after<'a>(
    injection: &'a Injection<'_>,
    lasting: Duration,
    is_over: &'a AtomicBool,
) -> impl Future<Output = Result<(), ClusterError>> + Send + 'a {
    let sleep = injection.control.sleep(lasting);
    async move {
        let slept = sleep.await;
        is_over.store(true, Ordering::Relaxed);
        slept
    }
}

/// Records that the fault is proved from `from` to `to`, unless something is missing.
pub(crate) async fn prove(
    injection: &Injection<'_>,
    links: &[Link],
    missing: Option<String>,
    (from, to): (Stamp, Stamp),
) -> Result<(), ClusterError> {
    let why = match missing {
        _ if links.is_empty() => "expected links between the target and the named nodes; there are none".into(),
        Some(seen) => format!("expected the fault on every link; {seen}"),
        None => {
            injection.stamp(FaultPhase::Proved { from, to }).await?;
            return injection.missed(from).await;
        }
    };
    injection.stamp(FaultPhase::Unproved { why }).await.map(drop)
}

/// Probes the links until each was seen without the fault, and records that the fault is proved healed. While another
/// fault is on, a probe that shows no effect proves the heal all the same; any other probe proves nothing, and is
/// repeated. Each planned fault has an end, so these repetitions have one too.
pub(crate) async fn prove_healed(injection: &Injection<'_>, links: &[Link]) -> Result<(), ClusterError> {
    let fault = &injection.step.fault;
    let share = probes(fault).div_ceil(links.len().max(1) as u32).max(PROBES_OF_A_LINK).min(probes(fault));
    let (mut left, mut looks) = (links.to_vec(), LOOKS);
    while !left.is_empty() && looks > 0 {
        let seen = join_all(left.iter().map(|(a, b)| probed(injection, a, b, share, None))).await;
        let mut shown = Vec::new();
        for (seen, link) in seen.into_iter().zip(left) {
            if !matches!(seen?, Seen::NoFault(..)) {
                shown.push(link);
            }
        }
        left = shown;
        if !left.is_empty() {
            if !left.iter().all(|(a, b)| injection.is_disturbed_by_plan(a, b)) {
                looks -= 1;
            }
            injection.control.sleep(LOOK).await?;
        }
    }
    if !links.is_empty() && left.is_empty() {
        settle(injection, links).await?;
        injection.stamp(FaultPhase::HealProved).await?;
    }
    Ok(())
}

/// The result of the probes of all links of a fault.
pub(crate) enum Evidence {
    /// The probes show the fault.
    Shown,
    /// A link does not show the fault.
    Missing(String),
    /// No link decides: each probe may show something else than the fault.
    Undecided(String),
}

impl Evidence {
    /// Returns the reason why the fault is not proved; none, if it is.
    pub fn missing(self) -> Option<String> {
        match self {
            Evidence::Shown => None,
            Evidence::Missing(why) | Evidence::Undecided(why) => Some(why),
        }
    }
}

/// Probes all links. If no link decides, the probes are repeated until `is_over`.
pub(crate) async fn evidence(
    injection: &Injection<'_>,
    links: &[Link],
    is_over: &AtomicBool,
) -> Result<Evidence, ClusterError> {
    let probes = probes(&injection.step.fault);
    loop {
        let seen = join_all(links.iter().map(|(a, b)| probed(injection, a, b, probes, Some(is_over)))).await;
        let (mut missing, mut unclear, mut is_proved) = (None, None, links.is_empty());
        for (seen, (a, b)) in seen.into_iter().zip(links) {
            match seen? {
                Seen::Fault => is_proved = true,
                Seen::FaultOrAnother => {}
                Seen::Lost => {
                    unclear.get_or_insert_with(|| format!("a probe from {a} to {b} was lost, and a delay loses none"));
                }
                Seen::NoFault(fastest, slowest) => {
                    missing.get_or_insert_with(|| match probes {
                        1 => format!("a packet from {a} to {b} came through in {slowest:?}"),
                        n => format!("{n} packets from {a} to {b} came through in {fastest:?} to {slowest:?}"),
                    });
                }
            }
        }
        match missing {
            Some(missing) => return Ok(Evidence::Missing(missing)),
            None if is_proved => return Ok(Evidence::Shown),
            None => {}
        }
        if !is_over.load(Ordering::Relaxed) {
            injection.control.sleep(LOOK).await?;
        }
        if is_over.load(Ordering::Relaxed) {
            let of_others = || "each link had another fault too, and no probe tells the two apart".into();
            return Ok(Evidence::Undecided(unclear.unwrap_or_else(of_others)));
        }
    }
}

/// Waits for connections that still wait for a retransmission, and resets the connections that do not recover, so that
/// the fault ends for all connections. Asks both ends of the links: only the sender of a lost packet waits for its
/// retransmission.
async fn settle(injection: &Injection<'_>, links: &[Link]) -> Result<(), ClusterError> {
    let (cluster, node) = (injection.cluster, &injection.node);
    let peers: BTreeSet<&NodeName> = links.iter().map(|(from, to)| if from == node { to } else { from }).collect();
    let mut peers: Vec<NodeName> = peers.into_iter().cloned().collect();
    // A fault of all links of the resource hits the connections with its store too.
    let is_of_all = injection.step.fault.links.as_ref().is_some_and(|links| links.from.is_empty());
    if is_of_all && node.as_str() == "resource" && injection.plan.resource.has_own_server() {
        peers.push(NodeName::new(STORE));
    }
    let mut ends = vec![(node, peers.as_slice())];
    ends.extend(peers.iter().map(|peer| (peer, std::slice::from_ref(node))));
    for _ in 0..CONNECTION_LOOKS {
        let looks: Vec<_> = ends.iter().map(|&(end, others)| cluster.stale_connections(end, others, false)).collect();
        if try_join_all(looks).await?.into_iter().sum::<u32>() == 0 {
            return Ok(());
        }
        injection.control.sleep(LOOK).await?;
    }
    // One after the other: a reset ends a connection at its other end too.
    let mut count = 0;
    for &(end, others) in &ends {
        count += cluster.stale_connections(end, others, true).await?;
    }
    if count > 0 {
        injection.stamp(FaultPhase::ConnectionsReset { count }).await?;
    }
    Ok(())
}

/// The results of the probes of one link.
enum Seen {
    /// A probe shows the fault.
    Fault,
    /// A probe shows the fault or another one, which was on meanwhile.
    FaultOrAnother,
    /// A probe of a fault that only delays packets was lost, and no other fault is known: perhaps a node has just
    /// ended, or the host was too busy.
    Lost,
    /// No probe shows the fault: the fastest and the slowest time.
    NoFault(Duration, Duration),
}

/// Probes a link until a probe shows the fault. While other faults only delay packets, a late probe does not tell a
/// loss from a delay, and a lost probe does: until `is_over`, the probes go on after a late one.
async fn probed(
    injection: &Injection<'_>,
    from: &NodeName,
    to: &NodeName,
    probes: u32,
    is_over: Option<&AtomicBool>,
) -> Result<Seen, ClusterError> {
    let fault = &injection.step.fault;
    let is_loss = matches!(fault.link_effect(), Some(LinkEffect::Lose(_)));
    let (mut seen, mut disturbance, mut is_late) = (None::<(Duration, Duration)>, Disturbance::None, false);
    for _ in 0..probes {
        let (latency, of_others) = probe(injection, from, to).await?;
        let Some(latency) = latency else { return Ok(lost(fault, of_others)) };
        if is_loss && of_others == Disturbance::Delays && shows(fault, latency, latency) {
            is_late = true;
            if is_over.is_none_or(|is_over| is_over.load(Ordering::Relaxed)) {
                break;
            }
            continue;
        }
        disturbance = disturbance.max(of_others);
        let (fastest, slowest) = seen.map_or((latency, latency), |(f, s)| (f.min(latency), s.max(latency)));
        if shows(fault, fastest, slowest) {
            return Ok(if disturbance == Disturbance::None { Seen::Fault } else { Seen::FaultOrAnother });
        }
        seen = Some((fastest, slowest));
    }
    let (fastest, slowest) = seen.unwrap_or_default();
    Ok(if is_late { Seen::FaultOrAnother } else { Seen::NoFault(fastest, slowest) })
}

/// Sends one probe. Returns its time, none if it was lost, and the greatest effect that another fault may have had on
/// it.
pub(crate) async fn probe(
    injection: &Injection<'_>,
    from: &NodeName,
    to: &NodeName,
) -> Result<(Option<Duration>, Disturbance), ClusterError> {
    let begun = injection.begun();
    let before = injection.disturbance(from, to);
    let latency = injection.cluster.latency(from, to).await?;
    // A fault that has begun meanwhile may be over again. If it is a delay, the probe may not have waited long enough.
    let is_new = injection.has_begun_since(begun, [from, to]);
    Ok((latency, if is_new { Disturbance::Drops } else { before }))
}

/// Returns the meaning of a lost probe.
fn lost(fault: &Fault, of_others: Disturbance) -> Seen {
    match fault.link_effect() {
        _ if of_others == Disturbance::Drops => Seen::FaultOrAnother,
        Some(LinkEffect::Cut(_) | LinkEffect::Lose(_)) => Seen::Fault,
        Some(LinkEffect::Delay(_) | LinkEffect::Reorder(_)) | None => Seen::Lost,
    }
}

/// Returns the number of probes of one link that show the fault, if the fault is on.
fn probes(fault: &Fault) -> u32 {
    match fault.link_effect() {
        Some(LinkEffect::Lose(percent)) => PROBES_OF_LOSS / u32::from(percent).max(1),
        Some(LinkEffect::Delay(LinkDelay::Drawn(_)) | LinkEffect::Reorder(_)) => PROBES_OF_DRAWS,
        _ => 1,
    }
}

/// Returns whether probes that got through show the fault.
fn shows(fault: &Fault, fastest: Duration, slowest: Duration) -> bool {
    match fault.link_effect() {
        Some(LinkEffect::Delay(LinkDelay::Fixed(by))) => slowest >= by.mul_f64(PROVED_FROM),
        Some(LinkEffect::Delay(LinkDelay::Drawn(by)) | LinkEffect::Reorder(by)) => {
            fastest >= by.from.mul_f64(PROVED_FROM) && slowest - fastest >= by.to.saturating_sub(by.from) / 2
        }
        Some(LinkEffect::Lose(_)) => slowest >= SENT_AGAIN,
        Some(LinkEffect::Cut(_)) | None => false,
    }
}

#[cfg(test)]
mod disturbed;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use futures::executor::block_on;
    use history::{Direction, Event, FaultId, Plan, ResourceKind, Step, Until, When, fault::Partition};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        LiveView,
        double::{Answers, Double, phase_of},
        waits::tests,
    };

    /// No connection is silent. Notes each node that is asked for them, and about which peers.
    #[derive(Default)]
    struct Asked(Mutex<Vec<(NodeName, Vec<NodeName>)>>);

    impl Answers for Asked {
        fn stale_connections(&self, node: &NodeName, peers: &[NodeName]) -> u32 {
            self.0.lock().push((node.clone(), peers.to_vec()));
            0
        }
    }

    /// The nodes that are asked for silent connections after a fault of the resource's links, each with the peers.
    fn asked(from: Vec<NodeName>) -> Vec<(NodeName, Vec<NodeName>)> {
        let fault = Fault::new(Partition::default(), Duration::from_secs(1)).on_links(Direction::Both, from);
        let (node, when) = (NodeName::new("resource"), When::At(Duration::ZERO));
        let step = Step { id: FaultId(1), fault, target: Target::Node(node.clone()), when };
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let plan = Plan { resource: ResourceKind::Postgres, ..plan };
        let (double, live_view) = (Double::<Asked>::default(), LiveView::new());
        let injection = double.injection(&live_view, &plan, &step, node);
        block_on(settle(&injection, &hit(&injection))).unwrap();
        double.0.0.into_inner()
    }

    #[test]
    fn a_fault_of_all_links_waits_for_every_connection_of_its_target() {
        let [resource, store, worker] = ["resource", STORE, "worker-1"].map(NodeName::new);
        let all = asked(Vec::new());
        assert!(all[0].0 == resource && all[0].1.contains(&worker) && all[0].1.contains(&store), "{all:?}");
        assert!(all.contains(&(store, vec![resource.clone()])), "{all:?}");
        // The links with other nodes are not of this fault.
        let (target, other) = ((resource.clone(), vec![worker.clone()]), (worker.clone(), vec![resource]));
        assert_eq!(asked(vec![worker]), [target, other]);
    }

    /// Connections that are silent at both ends of a link for so many looks. Each reset ends this number of them. Notes
    /// the phases of the fault.
    struct Silent {
        for_looks: u32,
        at_each_end: u32,
        asked: AtomicU32,
        phases: Mutex<Vec<FaultPhase>>,
    }

    impl Answers for Silent {
        fn stale_connections(&self, _: &NodeName, _: &[NodeName]) -> u32 {
            u32::from(self.asked.fetch_add(1, Ordering::Relaxed) / 2 < self.for_looks)
        }

        fn reset_connections(&self) -> u32 {
            self.at_each_end
        }

        fn stamp(&self, event: Event) -> Stamp {
            self.phases.lock().push(phase_of(event));
            Stamp(1)
        }

        fn sleep(&self, _: Duration) {}
    }

    #[test]
    fn connections_that_do_not_recover_are_reset_at_both_ends_and_counted() {
        let [node, worker] = ["redis-1", "worker-1"].map(NodeName::new);
        let fault = Fault::new(Partition::default(), Duration::from_secs(1));
        let fault = fault.on_links(Direction::Both, vec![worker.clone()]);
        let step = Step { id: FaultId(1), fault, target: Target::Node(node.clone()), when: When::At(Duration::ZERO) };
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        for (for_looks, at_each_end, reset) in [
            (0, 2, None),
            (CONNECTION_LOOKS - 1, 2, None),
            (CONNECTION_LOOKS, 2, Some(4)),
            // The last of them have recovered just now.
            (CONNECTION_LOOKS, 0, None),
        ] {
            let double = Double(Silent { for_looks, at_each_end, asked: AtomicU32::new(0), phases: Mutex::default() });
            let live_view = LiveView::new();
            let injection = double.injection(&live_view, &plan, &step, node.clone());
            block_on(settle(&injection, &[(node.clone(), worker.clone())])).unwrap();
            let stamped = reset.map(|count| FaultPhase::ConnectionsReset { count });
            assert_eq!(double.0.phases.into_inner(), Vec::from_iter(stamped), "{for_looks} looks");
        }
    }
}
