//! How long a lease may be believed, and how long a node is waited for. Pure.
//!
//! A lease starts on a node when the request arrives there, which is not before it was sent. So a client that counts
//! from the sending, and leaves a margin for clocks that do not run at one rate, stops believing first. The margin is
//! the one of the Redlock page (redis.io, "Distributed locks with Redis"): 1 % of the lease + 2 ms, the two
//! milliseconds being for the precision of a node's expiry.

use std::time::Duration;

/// The part of the lease that is given up for differences between clocks: 1 % + 2 ms.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// When a promise ends whose request was sent at `sent`: `sent + lease − drift`, in the clock of `sent`. A lease that is
/// shorter than its drift promises nothing: it ends when it is sent.
pub fn promise_end(sent: Duration, lease: Duration) -> Duration {
    sent.saturating_add(lease.saturating_sub(drift(lease)))
}

/// How long a round waits for nodes that do not answer, unless the lock was told otherwise: a tenth of the lease, but
/// from 50 ms (a node that is merely busy should be heard) to 500 ms (a retry is better than a long wait).
pub fn node_timeout(lease: Duration) -> Duration {
    (lease / 10).clamp(Duration::from_millis(50), Duration::from_millis(500))
}

/// The smallest number of nodes of which any two sets share one.
pub fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn drift_is_one_percent_and_two_milliseconds() {
        assert_eq!(drift(2000 * MS), 22 * MS);
        assert_eq!(drift(Duration::ZERO), 2 * MS);
    }

    #[test]
    fn a_lease_shorter_than_its_drift_promises_nothing() {
        assert_eq!(promise_end(7 * MS, 2 * MS), 7 * MS);
        assert_eq!(promise_end(7 * MS, 1000 * MS), (7 + 1000 - 12) * MS);
    }

    #[test]
    fn two_majorities_share_a_node() {
        assert!((1..100).all(|nodes| 2 * majority(nodes) > nodes && 2 * (majority(nodes) - 1) <= nodes));
    }

    #[test]
    fn the_node_timeout_follows_the_lease_within_its_bounds() {
        assert_eq!([100, 2000, 60_000].map(|lease| node_timeout(lease * MS)), [50 * MS, 200 * MS, 500 * MS]);
    }
}
