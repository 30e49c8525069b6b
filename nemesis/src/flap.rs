//! `flap`: links of the target are cut and restored in turns.
//!
//! Possible on every node. The proof has two parts: no probe gets through during the first cut, and a probe of each
//! link gets through between the first two cuts. A probe that takes longer than a turn makes that turn longer. Links
//! that another fault may also cut are not probed between two cuts.

use std::{sync::atomic::AtomicBool, time::Duration};

use futures::future::{join, try_join_all};
use history::{FaultPhase, fault::Flap};

use crate::{
    ClusterError,
    drawing::Drawing,
    driver::Driver,
    injection::Injection,
    links::{self, Link},
    spec::TargetSpec,
};

impl Driver for Flap {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;

    fn draw(drawing: &mut Drawing<'_>) -> (Flap, Duration) {
        let lasting = drawing.lasting(1.0..=3.0);
        let every = Duration::from_millis(drawing.leases_ms(0.1..=0.4).max(100));
        (Flap { every: every.min(lasting / 2) }, lasting)
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        let (cluster, node, id) = (injection.cluster, &injection.node, injection.step.id);
        let links = links::hit(injection);
        injection.requested().await?;
        cluster.inject_links(node, id, &injection.step.fault).await?;
        let from = injection.stamp(FaultPhase::Injected).await?;
        injection.let_go().await?;
        let mut missing = Ok(None);
        let (mut left, mut turn) = (injection.step.fault.lasting, 0);
        loop {
            let length = self.every.min(left);
            let is_over = AtomicBool::new(false);
            let sleep = links::over_after(injection, length, &is_over);
            let (seen, slept) = join(unexpected(injection, &links, turn, &is_over), sleep).await;
            if matches!(missing, Ok(None)) {
                missing = seen;
            }
            slept?;
            left -= length;
            if left.is_zero() {
                break;
            }
            turn += 1;
            if is_cut(turn) {
                cluster.inject_links(node, id, &injection.step.fault).await?;
            } else {
                cluster.heal_links(node, id).await?;
            }
        }
        let to = injection.stamp(FaultPhase::HealRequested).await?;
        if is_cut(turn) {
            cluster.heal_links(node, id).await?;
        }
        injection.stamp(FaultPhase::Healed).await?;
        // An error of a probe comes after the heal, as for every fault of links.
        links::prove(injection, &links, missing?, (from, to)).await?;
        links::prove_healed(injection, &links).await
    }
}

fn is_cut(turn: u32) -> bool {
    turn.is_multiple_of(2)
}

/// Probes the links in the first two turns, and describes a link that is not in the state of the turn. `is_over` is
/// true from the planned end of the turn on.
async fn unexpected(
    injection: &Injection<'_>,
    links: &[Link],
    turn: u32,
    is_over: &AtomicBool,
) -> Result<Option<String>, ClusterError> {
    match turn {
        0 => links::missing(injection, links, is_over).await,
        1 => {
            let judged = links.iter().filter(|(from, to)| !injection.is_disturbed_otherwise(from, to));
            let probes = judged.map(|(from, to)| async move {
                let is_lost = injection.cluster.latency(from, to).await?.is_none();
                // Another fault may have begun during the probe.
                Ok((is_lost && !injection.is_disturbed_otherwise(from, to))
                    .then(|| format!("no packet from {from} to {to} came through between two cuts")))
            });
            Ok(try_join_all(probes).await?.into_iter().flatten().next())
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use history::{NodeName, ResourceKind, Target, fault::Parameters};
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use crate::{Draw, draw, parse};

    #[test]
    fn a_drawn_flap_has_at_least_two_turns_and_hits_a_lock_node() {
        let specs = parse("flap").unwrap();
        let (time, lease) = (std::time::Duration::from_secs(30), std::time::Duration::from_secs(2));
        let (workers, lock_nodes) = ([NodeName::new("worker-1")], [NodeName::new("redis-1")]);
        let resource = ResourceKind::Service;
        let of = Draw { specs: &specs, time, lease, workers: &workers, lock_nodes: &lock_nodes, resource };
        for seed in 0..50 {
            for step in draw(&mut ChaCha8Rng::seed_from_u64(seed), &of).unwrap() {
                assert!(matches!(step.fault.parameters, Parameters::Flap(_)));
                assert_eq!((step.target, step.fault.check()), (Target::Node("redis-1".into()), Ok(())));
            }
        }
    }
}
