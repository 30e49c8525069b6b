//! The validity of a lease and the timeout of a node. Pure.
//!
//! A lease starts on a node when the request arrives there, which is not before the request was sent. So a client that
//! counts from the sending, with a margin for clocks that run at different rates, stops believing in the lease before
//! the node ends it. The margin is that of the Redlock page (redis.io, "Distributed locks with Redis"): 1 % of the
//! lease for the clocks, and 2 ms for the precision of a node's expiry.

use std::time::Duration;

/// The margin for clocks that run at different rates: 1 % of the lease + 2 ms.
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// The end of the promise of a request that was sent at `sent`: `sent + lease − drift`, in the clock of `sent`. A lease
/// that is shorter than its drift promises nothing: its promise ends when it is sent.
pub fn promise_end(sent: Duration, lease: Duration) -> Duration {
    sent.saturating_add(lease.saturating_sub(drift(lease)))
}

/// The default timeout of a round: a tenth of the lease, from 50 ms (a node that is only busy should be heard) to 500
/// ms (a retry is better than a long wait).
pub fn node_timeout(lease: Duration) -> Duration {
    (lease / 10).clamp(Duration::from_millis(50), Duration::from_millis(500))
}

/// The default timeout of a request to a store that all clients share: a quarter of the lease, from 50 ms to 2 s, so
/// that a renewal can still be tried again.
pub(crate) fn request_timeout(lease: Duration) -> Duration {
    (lease / 4).clamp(Duration::from_millis(50), Duration::from_secs(2))
}

/// The lease in milliseconds, rounded up: a key must not expire before the client's belief ends.
pub(crate) fn whole_ms(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

/// A lease in a message: whole milliseconds.
pub(crate) mod lease_ms;

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
    fn a_lease_is_rounded_up_to_whole_milliseconds() {
        let leases = [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(2001), Duration::from_secs(2)];
        assert_eq!(leases.map(whole_ms), [1, 1, 3, 2000]);
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

    #[test]
    fn the_request_timeout_follows_the_lease_within_its_bounds() {
        assert_eq!([100, 2000, 60_000].map(|lease| request_timeout(lease * MS)), [50 * MS, 500 * MS, 2000 * MS]);
    }
}
