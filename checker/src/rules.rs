//! Every comparison that a verdict rests on, as small pure functions, each with the argument why it is sound.
//!
//! Two facts carry all of them. An invocation is stamped *before* its request leaves and a completion *after* its
//! answer was received, so what the request did happened between its stamps. And equal stamps are concurrent: the clock
//! does not order the two events, so no comparison here may either. A rule that needs "before" is strict; turning a
//! `<` into a `<=` in this file changes a verdict, and a test says which.

use std::time::Duration;

use history::{HoldId, Stamp, Token, drift};

/// Whether a hold is *later* than another of the same key: the other's `acquire` ok lies before the latest stamp at which
/// this one's client knew that it did not hold.
///
/// At `granted_after` the service had not granted this hold; at `acquire` ok the other had been granted. So with
/// `acquired < granted_after` the service granted the other one first. Ordering by "invoked after completed" would be
/// sound too, and would miss most pairs under contention.
pub(crate) fn is_later(granted_after: Stamp, acquired_of_other: Stamp) -> bool {
    granted_after > acquired_of_other
}

/// Whether a hold stands behind another one in the queue of the service, where both were confirmed there at their grants.
///
/// A place is the revision at which the hold's own key was created; one transaction said at the grant that this very key stood and that
/// none of the queue was older. Let `place > other`. When this hold was confirmed, the other's key, which had been created before, was not
/// there; a key is created once, and what is gone stays gone; so the other, which was confirmed while its key stood, had been granted
/// before. Nothing in this asks for a clock or a lease: only for revisions that grow, which is why a key that was not confirmed has no
/// place. A store that lost its state would count again from the start: so the stamps come first (`Grant::is_later`), and where they say
/// the opposite the places say nothing.
///
/// Never for tokens: they may be these very numbers, and would be compared with themselves.
pub(crate) fn is_behind(place: Option<u64>, other: Option<u64>) -> bool {
    matches!((place, other), (Some(place), Some(other)) if place > other)
}

/// When the service's promise ends: it cannot have started to count before the request was sent, so until
/// `sent + lease` it still counts; `drift` is what clocks of different speed may take from that.
pub(crate) fn promise_end(sent: Stamp, lease: Duration) -> Stamp {
    sent.plus(lease).minus(drift(lease))
}

/// Whether a renewal that was answered at `ok` extends a promise that ends at `end`. Only renewals answered before an
/// instant count at that instant: at `end` itself this one does not, and a promise that has ended has ended for good.
pub(crate) fn is_renewed_in_time(ok: Stamp, end: Stamp) -> bool {
    ok < end
}

/// Whether a hold was claimed when its promise had ended. The promise covers the instants before its end; a claim at
/// the end is entitled at no instant at all.
pub(crate) fn is_dead_claim(acquired: Stamp, promise_end: Stamp) -> bool {
    acquired >= promise_end
}

/// Whether a deadline check that passed was wrong. Its stamp is taken before the client reads its clock, so a stamp
/// after the promise end proves that the clock was read after it.
pub(crate) fn is_overclaim(check: Stamp, promise_end: Stamp) -> bool {
    check > promise_end
}

/// Whether an act arrived after its hold's entitlement had ended: at the end itself it is concurrent with it.
pub(crate) fn is_after_end(arrival: Stamp, end: Stamp) -> bool {
    arrival > end
}

/// Whether a hold's `acquire` ok came before an arrival. The hold had been granted by its ok, so the act met a holder.
pub(crate) fn is_acquired_before(acquired: Stamp, arrival: Stamp) -> bool {
    acquired < arrival
}

/// For how long two entitlements `[from, to)` intersect; `None` if for no time. Both ends are inner bounds: a hold is
/// entitled from its ok, when it had surely been granted, and at most until the promise end, when it had surely not run out.
pub(crate) fn overlap(a: (Stamp, Stamp), b: (Stamp, Stamp)) -> Option<Duration> {
    let (from, to) = (a.0.max(b.0), a.1.min(b.1));
    (to > from).then(|| to.since(from))
}

/// Whether a lease that lasts until `until` by true time at least may be over at `at`: a node that let the key go then needs
/// no excuse.
pub(crate) fn is_lease_over(at: Stamp, until: Stamp) -> bool {
    at >= until
}

/// The same for a node whose clock had been moved ahead by so many nanoseconds since it granted the lease.
pub(crate) fn is_lease_over_by(at: Stamp, ahead_ns: i128, until: Stamp) -> bool {
    i128::from(at.0) + ahead_ns >= i128::from(until.0)
}

/// Whether something came after a hold's attempt was sent and before another's success: at these stamps it is concurrent with
/// them, and need not have come between.
pub(crate) fn is_between(at: Stamp, sent: Stamp, other_ok: Stamp) -> bool {
    sent < at && at < other_ok
}

/// Whether the token of a later hold fails to be larger than one that was given out before it.
pub(crate) fn goes_back(token: Token, earlier: Token) -> bool {
    token <= earlier
}

/// Whether the token that a resource shows is smaller than one that it had registered.
pub(crate) fn is_smaller(shown: Token, registered: Token) -> bool {
    shown < registered
}

/// Whether a fencing arm must refuse a write, and why, from what its log registered before: the largest token, and the
/// hold that first brought it.
///
/// Exact, because the log is the order in which the resource decided: nothing here is inferred from stamps.
pub(crate) fn must_refuse(token: Token, hold: HoldId, seen: Option<(Token, HoldId)>, strict: bool) -> Refusal {
    match seen {
        Some((largest, _)) if token < largest => Refusal::Justified,
        Some((largest, first)) if token == largest && first != hold => Refusal::Justified,
        Some((largest, _)) if token == largest && strict => Refusal::Repeat,
        _ => Refusal::Unjustified,
    }
}

/// What the log says about a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A larger token, or an equal one of another hold, was registered.
    Justified,
    /// Strict comparison, and the largest token is the hold's own.
    Repeat,
    /// Nothing that was registered forbids the write.
    Unjustified,
}

/// Whether an attempt can never again own the key on a node: it had completed before another one was sent, that one was
/// granted there, and the request in question left after that one's completion.
///
/// The node granted the first before its completion, the second after the second was sent, so the first's key was gone by
/// then; owner values are fresh for each attempt, so it never came back; and the request reached the node after that.
pub(crate) fn owns_no_more(completed: Stamp, other_sent: Stamp, other_completed: Stamp, invoked: Stamp) -> bool {
    completed < other_sent && other_completed < invoked
}

/// Whether a request took effect while another attempt surely owned the key on the node. It took effect between its two
/// stamps; the other owned the key from its completion until it first let go or its lease could have run out.
pub(crate) fn is_inside_possession(invoked: Stamp, answered: Stamp, owned_from: Stamp, owned_to: Stamp) -> bool {
    owned_from < invoked && answered < owned_to
}

/// Whether the difference of two of the kernel's clocks moved further between two samples than clocks drift.
pub(crate) fn is_clock_step(moved_ns: u64, elapsed: Duration) -> bool {
    Duration::from_nanos(moved_ns) > drift(elapsed)
}

/// Whether a stall spoils a control run: nobody planned it, and it is long enough to matter.
pub(crate) fn spoils_control(stall: Duration, lease: Duration) -> bool {
    stall > lease / 4
}

/// Whether more than `bound` has gone by since an instant.
pub(crate) fn is_overdue(at: Stamp, since: Stamp, bound: Duration) -> bool {
    at > since.plus(bound)
}

/// Whether an acquisition ends the blocking of a key by a kill.
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
        assert!(is_between(s(2), s(1), s(3)) && !is_between(s(1), s(1), s(3)) && !is_between(s(3), s(1), s(3)));
        assert!(is_overdue(s(3), s(1), Duration::from_millis(1)) && !is_overdue(s(2), s(1), Duration::from_millis(1)));
        assert!(owns_no_more(s(1), s(2), s(3), s(4)));
        assert!(!owns_no_more(s(2), s(2), s(3), s(4)) && !owns_no_more(s(1), s(2), s(4), s(4)));
        assert!(is_inside_possession(s(2), s(3), s(1), s(4)));
        assert!(!is_inside_possession(s(1), s(3), s(1), s(4)) && !is_inside_possession(s(2), s(4), s(1), s(4)));
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
