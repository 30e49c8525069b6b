//! Failovers of a primary with replicas: the faults that may make the sentinels promote a replica.

use std::time::Duration;

use history::{FaultId, Harm, NodeName};

use crate::{faults::FaultRecord, holds::Span, run::Run};

/// The longest time for which a primary that was replaced may still grant locks after the fault. Sentinel turns it into
/// a replica when it has seen it in its old role for 8 s (four times `SENTINEL_PUBLISH_PERIOD`), and asks a healthy
/// server for its role every 10 s (`SENTINEL_INFO_PERIOD`, both in sentinel.c of Redis 7.0).
pub(crate) const DEMOTED_WITHIN: Duration = Duration::from_secs(18);

/// Returns the span in which a proved fault may have made the sentinels promote another node in the place of `primary`,
/// or in which both may have been primaries. A fault of a replica promotes nothing.
pub(crate) fn promotion(run: &Run, id: FaultId, line: &FaultRecord, primary: &NodeName) -> Option<Span> {
    let is_cut = || {
        let Some(step) = run.plan.step(id) else { return line.node == *primary };
        let hits = |from, to| step.fault.hits(&line.node, from, to);
        let mut peers = run.plan.lock_nodes.iter().filter(|peer| *peer != primary);
        peers.any(|peer| hits(peer, primary) || hits(primary, peer))
    };
    let is_promoting = match line.kind.harm() {
        Harm::Freezes | Harm::Starves | Harm::Kills(_) => line.node == *primary,
        Harm::DropsPackets | Harm::DelaysPackets => is_cut(),
        Harm::SetsClock => false,
    };
    let (from, to) = line.silence().filter(|_| is_promoting && line.proved.is_some())?;
    Some((from, to.plus(DEMOTED_WITHIN)))
}

#[cfg(test)]
mod tests {
    use history::{CutMode, Direction, Fault, NodeAnswer, fault};

    use super::*;
    use crate::history_builder::{HistoryBuilder, redis_replicated};

    const SECOND: Duration = Duration::from_secs(1);

    /// Node 1 grants hold 1, sent at 30,000, until 32,000. Node 2 grants hold 2 at 31,010.
    fn of_two_primaries() -> HistoryBuilder {
        let on = |node| HistoryBuilder::answers(&[(node, NodeAnswer::Granted)]);
        let mut s = HistoryBuilder::new();
        s.plan.servers = redis_replicated();
        s.acquire_on(1, 1, 30_000, 30_000, 30_010, Some(41), on(1));
        s.acquire_on(2, 2, 31_000, 31_000, 31_010, Some(42), on(2)).release(2, 31_100).release_refused(1, 31_200);
        s
    }

    fn partition() -> Fault {
        Fault::new(fault::Partition { cut: CutMode::Drop }, SECOND)
    }

    #[test]
    fn a_cut_of_either_direction_promotes_a_replica() {
        for direction in [Direction::In, Direction::Out] {
            let mut s = of_two_primaries();
            s.inject(1, partition().on_links(direction, Vec::new()), "redis-1", 30_500, 30_900);
            assert_eq!(s.causes(), ["partition"], "{direction:?}");
        }
    }

    #[test]
    fn a_primary_that_was_cut_off_is_demoted_after_the_silence_of_its_connections() {
        // The cut begins at 8,000. If it is healed at 9,801, the connections may be silent until 12,002, and if it is
        // healed at 9,800, until 12,000. Hold 1 is sent 18 s after 12,000.
        for (to, expected) in [(9_796, "partition"), (9_795, "unexplained")] {
            let mut s = of_two_primaries();
            assert_eq!(s.inject(1, partition(), "redis-1", 8_005, to).causes(), [expected], "healed 5 ms after {to}");
        }
        // The delay is healed at 9,005, and its last packet arrives later.
        for (until, expected) in [(12_001, "delay"), (12_000, "unexplained")] {
            let delay = Fault::new(fault::Delay { by: SECOND.into() }, SECOND);
            let mut s = of_two_primaries();
            s.inject(1, delay, "redis-1", 8_005, 9_000).packets_delayed(1, "redis-1", "redis-2", 8_500, until);
            assert_eq!(s.causes(), [expected], "delayed until {until}");
        }
    }
}
