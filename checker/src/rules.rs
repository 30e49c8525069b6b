//! All comparisons that verdicts rest on: small pure functions, each with the argument why the comparison is sound.
//!
//! All arguments use two facts. An invocation is stamped *before* its request leaves and a completion *after* its
//! answer was received, so the effect of a request lies between its stamps. And equal stamps are concurrent: the clock
//! does not order the two events, so no comparison here may either. A rule that needs "before" is strict; turning a
//! `<` into a `<=` in this file changes a verdict, and a test says which.

use std::time::Duration;

use history::{HoldId, Mode, Stamp, Token, drift};

/// Returns whether two holds of one key exclude each other, by their modes. The lock promises nothing to two holds that
/// do not conflict: both may be entitled at once, neither is later than the other, their tokens need no order and may
/// be equal, and an act of the one is never stale because of the other.
pub(crate) fn conflict(mode: Mode, other: Mode) -> bool {
    mode.conflicts(other)
}

/// Returns whether a hold is *later* than another hold of the same key, which conflicts with it. The other hold's
/// `acquire` ok must lie before `granted_after`, the latest stamp at which this hold's client knew that it did not hold
/// the lock.
///
/// At `granted_after` the service had not granted this hold; at its `acquire` ok the other hold had been granted. So
/// with `acquired_of_other < granted_after` the service granted the other hold first. Ordering by "invoked after
/// completed" would be sound too, but would miss most pairs under contention.
pub(crate) fn is_later(granted_after: Stamp, acquired_of_other: Stamp) -> bool {
    granted_after > acquired_of_other
}

/// Returns whether a hold stands behind another hold in the queue of the service, which conflicts with it. The service
/// confirmed both holds at their grants.
///
/// A place is the revision at which the hold's own key was created. At the grant, one transaction confirmed that this
/// key existed and that no older key of the queue conflicted with it. Let `place > other`. When the service confirmed
/// this hold, the other hold's key, which is older, was gone. A key is created once, and a removed key does not come
/// back. The other hold was confirmed while its key existed, so the other hold was granted first.
///
/// The argument needs no clock and no lease, only revisions that grow. A hold that was not confirmed therefore has no
/// place. A store that lost its state counts from the start again, so the stamps come first (`Grant::is_later`). If the
/// stamps say the opposite, the places say nothing.
///
/// Tokens are never judged by places: a token may be the place itself, and would be compared with itself.
pub(crate) fn is_behind(place: Option<u64>, other: Option<u64>) -> bool {
    matches!((place, other), (Some(place), Some(other)) if place > other)
}

/// Returns the end of the service's promise. The service cannot start to count before the request was sent, so the
/// lease lasts at least until `sent + lease`. `drift` is the time that clocks of different speeds may take from the
/// lease.
pub fn promise_end(sent: Stamp, lease: Duration) -> Stamp {
    sent.plus(lease).minus(drift(lease))
}

/// Returns whether a renewal that was answered at `ok` extends a promise that ends at `end`. A renewal counts at an
/// instant only if it was answered before that instant. So a renewal answered at `end` is too late: a promise that has
/// ended stays ended.
pub fn is_renewed_in_time(ok: Stamp, end: Stamp) -> bool {
    ok < end
}

/// Returns whether a hold was claimed when its promise had ended. The promise covers the instants before its end, so a
/// claim at the end is entitled at no instant.
pub(crate) fn is_dead_claim(acquired: Stamp, promise_end: Stamp) -> bool {
    acquired >= promise_end
}

/// Returns whether so many of all nodes are a majority: any two such sets share a node.
pub(crate) fn is_majority(granted: usize, nodes: usize) -> bool {
    2 * granted > nodes
}

/// Returns whether a client believed in its hold for too long: at a check of its deadline that passed, or until its
/// deadline. Stamps are taken before the client reads its clock. So a check's stamp after the promise end proves that
/// the client read its clock after the promise end, and the stamp of an `acquire` ok + the validity that the client
/// computed is not after its deadline.
pub(crate) fn is_overclaim(believed: Stamp, promise_end: Stamp) -> bool {
    believed > promise_end
}

/// Returns whether an act arrived after its hold's entitlement had ended. An arrival at the end itself is concurrent
/// with the end.
pub(crate) fn is_after_end(arrival: Stamp, end: Stamp) -> bool {
    arrival > end
}

/// Returns whether a hold's `acquire` ok came before an arrival. The hold had been granted by its ok, so the act met a
/// holder.
pub(crate) fn is_acquired_before(acquired: Stamp, arrival: Stamp) -> bool {
    acquired < arrival
}

/// Returns how long two entitlements `[from, to)` intersect, or `None` if they do not. Both ends are inner bounds. At
/// its ok a hold had surely been granted; until the promise end the hold had surely not run out.
pub(crate) fn overlap(a: (Stamp, Stamp), b: (Stamp, Stamp)) -> Option<Duration> {
    let (from, to) = (a.0.max(b.0), a.1.min(b.1));
    (to > from).then(|| to.since(from))
}

/// Returns whether an entitlement that ended no later than it began, because its client was killed by then, lies inside
/// another entitlement. The promise must have run at that instant (`is_dead_claim`). Then the service had promised the
/// key to both: the other hold was entitled before the instant and after it. At either end the two are concurrent.
pub(crate) fn is_instant_inside(own: (Stamp, Stamp), other: (Stamp, Stamp)) -> bool {
    own.1 <= own.0 && is_between(own.0, other.0, other.1)
}

/// Returns whether a lease that lasts at least until `until` by true time may be over at `at`. A node that removed the
/// key then needs no explanation.
pub(crate) fn is_lease_over(at: Stamp, until: Stamp) -> bool {
    at >= until
}

/// Returns the same for a node whose clock has gained `ahead_ns` nanoseconds since the node granted the lease.
pub(crate) fn is_lease_over_by(at: Stamp, ahead_ns: i128, until: Stamp) -> bool {
    i128::from(at.0) + ahead_ns >= i128::from(until.0)
}

/// Returns whether an event came after a hold's attempt was sent and before another hold's success. At these two stamps
/// the event is concurrent, and need not lie between them.
pub(crate) fn is_between(at: Stamp, sent: Stamp, other_ok: Stamp) -> bool {
    sent < at && at < other_ok
}

/// Returns whether the token of a later hold is not larger than a token that was given out earlier.
pub(crate) fn goes_back(token: Token, earlier: Token) -> bool {
    token <= earlier
}

/// Returns whether the token that a resource shows is smaller than a token that the resource had registered.
pub(crate) fn is_smaller(shown: Token, registered: Token) -> bool {
    shown < registered
}

/// Returns whether a fencing arm must refuse a write, and why. `seen` is the largest token that the arm's log
/// registered before, and the first hold with that token.
///
/// The answer is exact: the log is the order in which the resource decided, so nothing is inferred from stamps.
pub(crate) fn must_refuse(token: Token, hold: HoldId, seen: Option<(Token, HoldId)>, strict: bool) -> Refusal {
    match seen {
        Some((largest, _)) if token < largest => Refusal::Justified,
        Some((largest, first)) if token == largest && first != hold => Refusal::Justified,
        Some((largest, _)) if token == largest && strict => Refusal::Repeat,
        _ => Refusal::Unjustified,
    }
}

/// The verdict of the log on a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A larger token, or an equal one of another hold, was registered.
    Justified,
    /// Strict comparison, and the largest token is the hold's own.
    Repeat,
    /// No registered token forbids the write.
    Unjustified,
}

/// Returns whether an attempt can never again own the key on a node. The attempt completed before another attempt was
/// sent. The node granted the other attempt, and the request in question left after the other attempt's completion.
///
/// The node granted the first attempt before its completion, and the second attempt after it was sent. So the first
/// attempt's key was gone by then. Owner values are fresh for each attempt, so the key never came back. The request
/// reached the node after that.
pub(crate) fn owns_no_more(completed: Stamp, other_sent: Stamp, other_completed: Stamp, invoked: Stamp) -> bool {
    completed < other_sent && other_completed < invoked
}

/// Returns whether a request took effect while another attempt surely owned the key on the node. The request took
/// effect between its two stamps. The other attempt owned the key from its completion until its first release or until
/// its lease could have run out.
pub(crate) fn is_inside_possession(invoked: Stamp, answered: Stamp, owned_from: Stamp, owned_to: Stamp) -> bool {
    owned_from < invoked && answered < owned_to
}

/// Returns whether the difference of two kernel clocks changed more between two samples than clocks drift.
pub(crate) fn is_clock_step(moved_ns: u64, elapsed: Duration) -> bool {
    Duration::from_nanos(moved_ns) > drift(elapsed)
}

/// Returns whether a stall spoils a control run: no fault of the plan caused the stall, and it is long enough to
/// matter.
pub(crate) fn spoils_control(stall: Duration, lease: Duration) -> bool {
    stall > lease / 4
}

/// Returns whether more than `bound` has passed since an instant.
pub(crate) fn is_overdue(at: Stamp, since: Stamp, bound: Duration) -> bool {
    at > since.plus(bound)
}

/// Returns whether an acquisition ends the blocking of a key by a kill.
pub(crate) fn is_unblocked(acquired: Stamp, killed: Stamp) -> bool {
    acquired > killed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    #[test]
    fn equal_stamps_order_nothing() {
        assert!(is_later(s(2), s(1)) && !is_later(s(1), s(1)) && !is_later(s(1), s(2)));
        assert!(is_after_end(s(2), s(1)) && !is_after_end(s(1), s(1)));
        assert!(is_acquired_before(s(1), s(2)) && !is_acquired_before(s(1), s(1)));
        assert!(is_overclaim(s(2), s(1)) && !is_overclaim(s(1), s(1)));
        assert!(is_unblocked(s(2), s(1)) && !is_unblocked(s(1), s(1)));
        assert!(overlap((s(0), s(1)), (s(1), s(2))).is_none());
        assert_eq!(overlap((s(0), s(3)), (s(1), s(2))), Some(Duration::from_millis(1)));
        let instant = (s(2), s(2));
        assert!(is_instant_inside(instant, (s(1), s(3))) && is_instant_inside((s(2), s(0)), (s(1), s(3))));
        assert!(!is_instant_inside(instant, (s(2), s(3))) && !is_instant_inside(instant, (s(1), s(2))));
        assert!(!is_instant_inside((s(2), s(3)), (s(1), s(4))));
        assert!(is_between(s(2), s(1), s(3)) && !is_between(s(1), s(1), s(3)) && !is_between(s(3), s(1), s(3)));
        assert!(is_overdue(s(3), s(1), Duration::from_millis(1)) && !is_overdue(s(2), s(1), Duration::from_millis(1)));
        assert!(owns_no_more(s(1), s(2), s(3), s(4)));
        assert!(!owns_no_more(s(2), s(2), s(3), s(4)) && !owns_no_more(s(1), s(2), s(4), s(4)));
        assert!(is_inside_possession(s(2), s(3), s(1), s(4)));
        assert!(!is_inside_possession(s(1), s(3), s(1), s(4)) && !is_inside_possession(s(2), s(4), s(1), s(4)));
    }

    #[test]
    fn a_majority_is_more_than_half() {
        assert!([(1, 1), (2, 2), (2, 3), (3, 4), (3, 5)].iter().all(|(granted, nodes)| is_majority(*granted, *nodes)));
        assert!([(0, 1), (1, 2), (1, 3), (2, 4), (2, 5)].iter().all(|(granted, nodes)| !is_majority(*granted, *nodes)));
    }

    #[test]
    fn a_promise_excludes_its_end() {
        assert_eq!(promise_end(s(0), Duration::from_secs(2)), s(1978));
        assert!(is_renewed_in_time(s(1), s(2)) && !is_renewed_in_time(s(2), s(2)));
        assert!(is_dead_claim(s(2), s(2)) && !is_dead_claim(s(1), s(2)));
        assert!(is_lease_over(s(2), s(2)) && !is_lease_over(s(1), s(2)));
        assert!(is_lease_over_by(s(1), 1_000_000, s(2)) && !is_lease_over_by(s(1), 999_999, s(2)));
        assert!(is_lease_over_by(s(3), -1_000_000, s(2)) && !is_lease_over_by(s(3), -1_000_001, s(2)));
    }

    #[test]
    fn a_fence_refuses_smaller_tokens_and_equal_ones_of_others() {
        let (a, b) = (HoldId(1), HoldId(2));
        let cases = [
            (None, false, Refusal::Unjustified),
            (Some((Token(6), a)), false, Refusal::Unjustified),
            (Some((Token(7), a)), false, Refusal::Unjustified),
            (Some((Token(7), a)), true, Refusal::Repeat),
            (Some((Token(7), b)), false, Refusal::Justified),
            (Some((Token(7), b)), true, Refusal::Justified),
            (Some((Token(8), a)), false, Refusal::Justified),
        ];
        for (seen, strict, expected) in cases {
            assert_eq!(must_refuse(Token(7), a, seen, strict), expected, "{seen:?} strict={strict}");
        }
        assert!(goes_back(Token(1), Token(1)) && goes_back(Token(1), Token(2)) && !goes_back(Token(2), Token(1)));
    }

    #[test]
    fn thresholds_exclude_their_value() {
        let lease = Duration::from_secs(2);
        assert!(!spoils_control(lease / 4, lease));
        assert!(spoils_control(lease / 4 + Duration::from_nanos(1), lease));
        assert!(!is_clock_step(12_000_000, Duration::from_secs(1)));
        assert!(is_clock_step(12_000_001, Duration::from_secs(1)));
    }
}
