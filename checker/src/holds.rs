//! One attempt, and the hold that came of it: its promise, its end, what it still has under way.

use std::time::Duration;

use history::{ClientId, FaultId, HoldId, OpId, Point, Stamp, Token, Why};

use crate::rules;

/// When an event happened, and its number in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub at: Stamp,
    pub seq: u64,
}

/// A stretch of time.
pub(crate) type Span = (Stamp, Stamp);

/// Lock nodes as bits, in the order of the plan.
pub(crate) type Nodes = u64;

/// What ended an entitlement before its promise did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ender {
    /// Its release was invoked.
    Release,
    /// The client gave it up.
    GaveUp,
    /// The client noticed that it was lost.
    Loss,
    /// Its worker was about to be killed.
    Kill(FaultId),
}

/// What the service granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub ok: Mark,
    pub token: Option<Token>,
    pub lease: Duration,
    pub granted_after: Stamp,
    /// Its place in the queue of the service, if that was confirmed at the grant.
    pub place: Option<u64>,
    /// The send stamp that the promise rests on: that of the attempt, or of the last renewal of a lease that was kept alive
    /// while its owner waited in a queue.
    pub promised_from: Stamp,
    /// The promise end, without renewals.
    pub first_promise: Stamp,
}

impl Grant {
    /// Whether this hold is later than another one of the same key: by the stamps, or else by the queue of the service.
    pub fn is_later(&self, other: &Grant) -> bool {
        rules::is_later(self.granted_after, other.ok.at)
            || (rules::is_behind(self.place, other.place) && !rules::is_later(other.granted_after, self.ok.at))
    }
}

/// What the service said when it granted a hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub token: Option<Token>,
    pub lease: Duration,
    pub granted_after: Stamp,
    pub place: Option<u64>,
    pub promised_from: Stamp,
}

/// A step of the client's own timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beat {
    /// The attempt was sent.
    Acquire,
    /// A request to the resource was sent.
    Request(OpId),
    /// A planned wait of this length began.
    Work(Duration),
    /// A wait at a point began; its plan ended at that stamp, or with the wait itself.
    AtPoint(Point, Option<Stamp>),
    /// A deadline check that passed.
    Check,
    /// Anything after which nothing is waited for: an answer, a check that did not pass, leaving a point.
    Other,
}

/// A renewal that did not succeed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    /// From its send stamp to its answer.
    pub span: Span,
    /// Nodes that did it all the same, and nodes that refused.
    pub done_on: Nodes,
    pub refused_on: Nodes,
    /// Why the client took the hold to be lost, and sent none after it; none, if it did not.
    pub loss: Option<Why>,
}

/// Renewals that are kept of those that failed one after the other.
const FAILURES_MAX: usize = 16;

/// Beats that are kept of one attempt: a critical section has about a dozen.
const BEATS_MAX: usize = 256;

/// One attempt at acquiring, and its hold.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub id: HoldId,
    pub key: usize,
    pub client: ClientId,
    pub process: usize,
    pub sent: Mark,
    /// When it had come out, one way or the other.
    pub completed: Option<Mark>,
    pub grant: Option<Grant>,
    /// Nodes that granted it, and nodes that refused.
    pub granted_on: Nodes,
    pub refused_on: Nodes,
    /// Nodes that did its last renewal.
    pub renewed_on: Nodes,
    /// When each node was told of the lease, and until when it lasts there by true time at least; empty as long as nothing was
    /// renewed.
    pub leases: Vec<Span>,
    /// Renewals that failed inside the promise since the last one that succeeded.
    pub failures: Vec<Failure>,
    /// The promise end, renewals included.
    pub promise: Stamp,
    /// The request that the promise counts from.
    pub promised_by: Mark,
    /// The renewal that the promise comes from.
    pub renewed: Option<Mark>,
    /// What ended the entitlement first, promise apart.
    pub ender: Option<(Mark, Ender)>,
    /// The client's own end of use: release invoked, or given up.
    pub used_until: Option<Mark>,
    /// The entitlement has ended, and every judge has been told.
    pub is_retired: bool,
    /// The client will not use it any more.
    pub is_used_up: bool,
    /// The process that made it is no more.
    pub is_orphan: bool,
    pub renewing: Option<Mark>,
    pub releasing: Option<Mark>,
    pub undoing: Option<Mark>,
    /// When it first said that it waits behind another.
    pub behind: Option<Mark>,
    /// It was granted the lock when its key was gone.
    pub is_without_key: bool,
    /// When it first began to let go: release or undo invoked.
    pub let_go: Option<Stamp>,
    /// Requests to the resource that have not been seen to arrive.
    pub ops: Vec<OpId>,
    pub beats: Vec<(Mark, Beat)>,
    /// When its own process did not run, and when the resource did not.
    pub stalls: Vec<Span>,
    pub resource_stalls: Vec<Span>,
}

impl Attempt {
    pub fn new(id: HoldId, key: usize, client: ClientId, process: usize, sent: Mark) -> Self {
        Attempt {
            id,
            key,
            client,
            process,
            sent,
            completed: None,
            grant: None,
            granted_on: 0,
            refused_on: 0,
            renewed_on: 0,
            leases: Vec::new(),
            failures: Vec::new(),
            promise: sent.at,
            promised_by: sent,
            renewed: None,
            ender: None,
            used_until: None,
            is_retired: false,
            is_used_up: false,
            is_orphan: false,
            renewing: None,
            releasing: None,
            undoing: None,
            behind: None,
            is_without_key: false,
            let_go: None,
            ops: Vec::new(),
            beats: vec![(sent, Beat::Acquire)],
            stalls: Vec::new(),
            resource_stalls: Vec::new(),
        }
    }

    /// End of the entitlement, as far as it is known. What is not known yet can only lie later than the sweep.
    pub fn end(&self) -> Stamp {
        self.ender.map_or(self.promise, |(mark, _)| self.promise.min(mark.at))
    }

    /// Whether the entitlement ended by an event and not by the promise end.
    pub fn ended_by(&self) -> Option<(Mark, Ender)> {
        self.ender.filter(|(mark, _)| mark.at < self.promise)
    }

    pub fn acquired(&mut self, ok: Mark, granted: Granted) {
        let Granted { token, lease, granted_after, place, promised_from } = granted;
        let first_promise = rules::promise_end(promised_from, lease);
        self.grant = Some(Grant { ok, token, lease, granted_after, place, promised_from, first_promise });
        self.completed = Some(ok);
        self.promise = first_promise;
        self.beat(ok, Beat::Other);
    }

    /// Nodes did a renewal that was sent at `sent`, whatever came of it as a whole.
    pub fn extended(&mut self, sent: Stamp, lease: Duration, nodes: Nodes, of: usize) {
        let Some(grant) = self.grant else { return };
        if self.leases.is_empty() {
            self.leases = vec![(grant.promised_from, grant.promised_from.plus(grant.lease)); of.min(64)];
        }
        for (_, known) in self.leases.iter_mut().enumerate().filter(|(i, _)| nodes & (1 << i) != 0) {
            if sent.plus(lease) > known.1 {
                *known = (sent, sent.plus(lease));
            }
        }
    }

    /// A renewal did not succeed, though some nodes may have done it.
    pub fn failed(&mut self, failure: Failure) {
        if rules::is_renewed_in_time(failure.span.0, self.promise) && self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        }
    }

    /// The last renewal that was sent succeeded.
    pub fn renewed(&mut self, ok: Mark, lease: Duration, nodes: Nodes) {
        let Some(sent) = self.renewing.take() else { return };
        self.renewed_on = nodes;
        if !rules::is_renewed_in_time(ok.at, self.promise) {
            return;
        }
        let end = rules::promise_end(sent.at, lease);
        if end > self.promise {
            self.promise = end;
            self.promised_by = sent;
            self.renewed = Some(ok);
            self.failures.clear();
        }
    }

    /// Ends the entitlement, unless it had ended before.
    pub fn ends(&mut self, mark: Mark, ender: Ender) {
        if self.ender.is_none_or(|(first, _)| mark.at < first.at) {
            self.ender = Some((mark, ender));
        }
    }

    /// The client will not use it any more.
    pub fn used_up(&mut self, mark: Mark, ender: Ender) {
        self.ends(mark, ender);
        self.used_until.get_or_insert(mark);
        self.is_used_up = true;
    }

    pub fn beat(&mut self, mark: Mark, beat: Beat) {
        if self.beats.len() < BEATS_MAX {
            self.beats.push((mark, beat));
        }
    }

    /// The planned part of a wait at a point is over.
    pub fn point_released(&mut self, at: Stamp, point: Point) {
        if let Some((_, Beat::AtPoint(here, released @ None))) = self.beats.last_mut()
            && *here == point
        {
            *released = Some(at);
        }
    }

    /// Whether nothing of it can follow that a verdict could depend on.
    pub fn is_closed(&self) -> bool {
        let is_over = self.is_orphan || self.is_used_up;
        let is_quiet =
            self.is_orphan || (self.renewing.is_none() && self.releasing.is_none() && self.undoing.is_none());
        let is_ended = self.grant.is_none() || self.is_retired;
        is_over && is_quiet && is_ended && self.ops.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(ms: u64) -> Mark {
        Mark { at: Stamp(ms * 1_000_000), seq: 0 }
    }

    fn hold() -> Attempt {
        let mut hold = Attempt::new(HoldId(1), 0, ClientId(0), 0, mark(0));
        let (lease, at) = (Duration::from_secs(2), Stamp(0));
        hold.acquired(mark(5), Granted { token: None, lease, granted_after: at, place: None, promised_from: at });
        hold
    }

    #[test]
    fn a_renewal_counts_from_its_send_stamp() {
        let mut hold = hold();
        hold.renewing = Some(mark(1_000));
        hold.renewed(mark(1_100), Duration::from_secs(2), 0);
        assert_eq!(hold.end(), mark(2_978).at);
    }

    #[test]
    fn a_renewal_answered_at_the_promise_end_comes_too_late_for_good() {
        let mut hold = hold();
        hold.renewing = Some(mark(1_000));
        hold.renewed(mark(1_978), Duration::from_secs(2), 0);
        hold.renewing = Some(mark(1_990));
        hold.renewed(mark(1_995), Duration::from_secs(2), 0);
        assert_eq!(hold.end(), mark(1_978).at);
    }

    #[test]
    fn a_renewal_never_shortens() {
        let mut hold = hold();
        hold.renewing = Some(mark(100));
        hold.renewed(mark(110), Duration::from_secs(1), 0);
        assert_eq!(hold.end(), mark(1_978).at);
    }

    #[test]
    fn the_first_end_stands() {
        let mut hold = hold();
        hold.ends(mark(700), Ender::Release);
        hold.ends(mark(600), Ender::Kill(FaultId(1)));
        hold.ends(mark(650), Ender::GaveUp);
        assert_eq!((hold.end(), hold.ended_by().map(|e| e.1)), (mark(600).at, Some(Ender::Kill(FaultId(1)))));
    }
}
