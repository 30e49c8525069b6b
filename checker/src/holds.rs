//! One attempt and its hold: the promise, the end of the entitlement, and the requests that are still under way.

use std::time::Duration;

use history::{ClientId, FailureReason, FaultId, HoldId, Mode, OpId, Point, Stamp, Token};
use smallvec::SmallVec;

use crate::rules;

/// The stamp of an event, and its number in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventRef {
    pub at: Stamp,
    pub seq: u64,
}

/// A span of time.
pub(crate) type Span = (Stamp, Stamp);

/// A hold's lease on one lock node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeLease {
    /// The stamps between which the node granted or renewed it.
    pub told: Span,
    /// Its earliest true end.
    pub until: Stamp,
    /// True if the node has renewed it.
    pub is_renewed: bool,
}

/// Lock nodes as bits, in the order of the plan.
pub(crate) type Nodes = u64;

/// The nodes that did a renewal, and the stamp of its request.
pub(crate) type LastRenewal = (Nodes, Stamp);

/// The places of the bits that are set.
pub(crate) fn bits(of: u64) -> impl Iterator<Item = usize> {
    let mut left = of;
    std::iter::from_fn(move || {
        let place = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(place)
    })
}

/// An event that ended an entitlement before the promise end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyEnd {
    /// The client invoked the release.
    Release,
    /// The client noticed the loss of the hold.
    Loss,
    /// The agent was about to kill the worker.
    Kill(FaultId),
}

/// The grant of the lock service, as the checker uses it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub ok: EventRef,
    pub mode: Mode,
    pub token: Option<Token>,
    pub lease: Duration,
    pub granted_after: Stamp,
    /// The place in the queue of the service, if the service confirmed the place at the grant.
    pub place: Option<u64>,
    /// The send stamp that the promise counts from: that of the attempt, or of the last renewal of a lease that was
    /// kept alive while its owner waited in a queue. In a session it may be that of an earlier attempt of the client.
    pub promised_from: Stamp,
    /// The promise end, without renewals.
    pub first_promise: Stamp,
}

impl Grant {
    /// Returns whether this hold and another hold of the key exclude each other.
    pub fn conflicts(&self, other: &Grant) -> bool {
        rules::conflict(self.mode, other.mode)
    }

    /// Returns whether this hold is later than another hold of the key, with which it conflicts: by the stamps,
    /// otherwise by the queue of the service.
    pub fn is_later(&self, other: &Grant) -> bool {
        let by_stamps = || rules::is_later(self.granted_after, other.ok.at);
        let by_place =
            || rules::is_behind(self.place, other.place) && !rules::is_later(other.granted_after, self.ok.at);
        self.conflicts(other) && (by_stamps() || by_place())
    }
}

/// The service's answer when it granted a hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub token: Option<Token>,
    pub lease: Duration,
    pub granted_after: Stamp,
    pub place: Option<u64>,
    pub promised_from: Stamp,
}

/// A step on the timeline of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientStep {
    /// The attempt was sent.
    Acquire,
    /// A request to the resource was sent.
    Request(OpId),
    /// A planned wait of this length began.
    Work(Duration),
    /// A wait at a point began. The planned part ended at that stamp, or with the wait itself.
    AtPoint(Point, Option<Stamp>),
    /// A deadline check that passed.
    Check,
    /// A step without a wait after it: an answer, a check that did not pass, leaving a point.
    Other,
}

/// A renewal that failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenewalFailure {
    /// From the send stamp to the answer.
    pub span: Span,
    /// The nodes that did the renewal although it failed as a whole, and the nodes that refused.
    pub done_on: Nodes,
    pub refused_on: Nodes,
    /// The reason for which the client took the hold for lost and renewed no more, if it did.
    pub loss: Option<FailureReason>,
}

/// The most failed renewals in a row that are kept of one hold; later ones are joined with the last.
const FAILURES_MAX: usize = 16;

/// The steps of a usual critical section.
const STEPS: usize = 10;

/// The most steps that are kept of one attempt. Under a hold of a parent a client may act on the data of many keys.
const TIMELINE_MAX: usize = 4_096;

/// One attempt at acquiring, and its hold if it succeeded.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub id: HoldId,
    pub key: usize,
    pub client: ClientId,
    pub process: usize,
    pub mode: Mode,
    /// The client's hold of the key above.
    pub above: Option<HoldId>,
    pub sent: EventRef,
    /// The answer to the attempt, whatever the outcome.
    pub completed: Option<EventRef>,
    pub grant: Option<Grant>,
    /// The nodes that granted the attempt, and the nodes that refused.
    pub granted_on: Nodes,
    pub refused_on: Nodes,
    /// The last renewal that succeeded, in time or not, by the stamp of its answer, and the renewal before it.
    renewed_on: (Stamp, LastRenewal),
    renewed_before: LastRenewal,
    /// The lease of each node. Empty as long as nothing was renewed.
    pub leases: Vec<NodeLease>,
    /// Renewals that failed inside the promise since the last one that succeeded.
    pub failures: Vec<RenewalFailure>,
    /// The promise end, renewals included.
    pub promise: Stamp,
    /// The request that the promise counts from.
    pub promised_by: EventRef,
    /// The renewal that the promise comes from.
    pub renewed: Option<EventRef>,
    /// The lease that the server gave at the last renewal; a server may give another one than the client asked for.
    pub renewed_for: Option<Duration>,
    /// The first event that ended the entitlement, apart from the promise end.
    pub early_end: Option<(EventRef, EarlyEnd)>,
    /// The client's first release.
    pub released: Option<EventRef>,
    /// The client gave the hold up: it renews no more, and still relies on the promise.
    pub gave_up: Option<EventRef>,
    /// The renewal that was under way when the client gave the hold up, or was done with it.
    pub unanswered: Option<EventRef>,
    /// True if the entitlement has ended and every judge has processed the end.
    pub is_retired: bool,
    /// True if the client has ended its use of the hold.
    pub is_used_up: bool,
    /// True if the client has used up another hold since. Up to then the client may act under this hold, although the
    /// client has released it.
    pub is_superseded: bool,
    /// True if the process that made the attempt has ended.
    pub is_orphan: bool,
    pub renewing: Option<EventRef>,
    pub releasing: Option<EventRef>,
    pub undoing: Option<EventRef>,
    /// The first report that the attempt waits behind another attempt.
    pub behind: Option<EventRef>,
    /// True if the service granted the lock after the attempt's key was gone.
    pub is_without_key: bool,
    /// The first stamp of a release or an undo.
    pub let_go: Option<Stamp>,
    /// Requests to the resource whose decision has not been seen.
    pub ops: SmallVec<[OpId; 2]>,
    pub timeline: Vec<(EventRef, ClientStep)>,
    /// Spans in which the attempt's own process did not run.
    pub stalls: Vec<Span>,
    /// The number of stalls of the resource that were reported before the attempt was sent.
    pub resource_stalls_before: usize,
    /// Spans in which the resource did not run, of an attempt that is closed: see
    /// [`Run::resource_stalls`](crate::run::Run::resource_stalls).
    pub resource_stalls: Option<Vec<Span>>,
}

/// A timeline with room for a usual critical section.
fn first_step(sent: EventRef) -> Vec<(EventRef, ClientStep)> {
    let mut timeline = Vec::with_capacity(STEPS);
    timeline.push((sent, ClientStep::Acquire));
    timeline
}

impl Attempt {
    pub fn new(id: HoldId, key: usize, mode: Mode, client: ClientId, process: usize, sent: EventRef) -> Self {
        Attempt {
            id,
            key,
            client,
            process,
            mode,
            above: None,
            sent,
            completed: None,
            grant: None,
            granted_on: 0,
            refused_on: 0,
            renewed_on: (Stamp(0), (0, Stamp(0))),
            renewed_before: (0, Stamp(0)),
            leases: Vec::new(),
            failures: Vec::new(),
            promise: sent.at,
            promised_by: sent,
            renewed: None,
            renewed_for: None,
            early_end: None,
            released: None,
            gave_up: None,
            unanswered: None,
            is_retired: false,
            is_used_up: false,
            is_superseded: false,
            is_orphan: false,
            renewing: None,
            releasing: None,
            undoing: None,
            behind: None,
            is_without_key: false,
            let_go: None,
            ops: SmallVec::new(),
            timeline: first_step(sent),
            stalls: Vec::new(),
            resource_stalls_before: 0,
            resource_stalls: None,
        }
    }

    /// The stamp from which a fault may have ended the lease of this attempt. In a session the promise may rest on a
    /// request that was sent before the attempt.
    pub fn relies_since(&self) -> Stamp {
        self.grant.map_or(self.sent.at, |grant| self.sent.at.min(grant.promised_from))
    }

    /// The end of the entitlement, as far as it is known. An event that is not known yet can only lie after the sweep.
    pub fn end(&self) -> Stamp {
        self.early_end.map_or(self.promise, |(mark, _)| self.promise.min(mark.at))
    }

    /// The event that ended the entitlement, if it was not the promise end.
    pub fn ended_by(&self) -> Option<(EventRef, EarlyEnd)> {
        self.early_end.filter(|(mark, _)| mark.at < self.promise)
    }

    pub fn acquired(&mut self, ok: EventRef, granted: Granted) {
        let Granted { token, lease, granted_after, place, promised_from } = granted;
        let first_promise = rules::promise_end(promised_from, lease);
        let mode = self.mode;
        // Before the attempt was sent, the service cannot have granted it.
        let granted_after = granted_after.max(self.sent.at);
        self.grant = Some(Grant { ok, mode, token, lease, granted_after, place, promised_from, first_promise });
        self.completed = Some(ok);
        self.promise = first_promise;
        self.add_step(ok, ClientStep::Other);
    }

    /// Notes the nodes that did a renewal between its request and its answer, whether or not the renewal succeeded as a
    /// whole.
    pub fn extended(&mut self, told: Span, lease: Duration, nodes: Nodes, of: usize) {
        let Some(grant) = self.grant else { return };
        if self.leases.is_empty() {
            let (told, until) = ((grant.promised_from, grant.ok.at), grant.promised_from.plus(grant.lease));
            self.leases = vec![NodeLease { told, until, is_renewed: false }; of.min(64)];
        }
        for (_, known) in self.leases.iter_mut().enumerate().filter(|(i, _)| nodes & (1 << i) != 0) {
            let until = told.0.plus(lease);
            if until > known.until {
                *known = NodeLease { told, until, is_renewed: true };
            }
        }
    }

    /// The last renewal that was answered before an instant, which is not before the last events.
    pub fn renewal_before(&self, at: Stamp) -> LastRenewal {
        if self.renewed_on.0 < at { self.renewed_on.1 } else { self.renewed_before }
    }

    /// The nodes that did this renewal.
    pub fn renewed_on_before(&self, at: Stamp) -> Nodes {
        self.renewal_before(at).0
    }

    /// Notes a renewal that failed, though some nodes may have done it.
    pub fn failed(&mut self, failure: RenewalFailure) {
        if !rules::is_renewed_in_time(failure.span.0, self.promise) {
            return;
        }
        // The renewal by which the client noticed the loss is the last one.
        if self.failures.len() < FAILURES_MAX + usize::from(failure.loss.is_some()) {
            self.failures.push(failure);
        } else if let Some(last) = self.failures.last_mut() {
            last.span.1 = failure.span.1;
            last.done_on &= failure.done_on;
            last.refused_on &= failure.refused_on;
            last.loss = last.loss.or(failure.loss);
        }
    }

    /// Extends the promise: the last renewal that was sent succeeded.
    pub fn renewed(&mut self, ok: EventRef, lease: Duration, nodes: Nodes) {
        let Some(sent) = self.renewing.take() else { return };
        self.renewed_before = self.renewal_before(ok.at);
        self.renewed_on = (ok.at, (nodes, sent.at));
        self.renewed_for = Some(lease);
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

    /// Ends the entitlement, unless an earlier event has ended it.
    pub fn ends(&mut self, mark: EventRef, early_end: EarlyEnd) {
        if self.early_end.is_none_or(|(first, _)| mark.at < first.at) {
            self.early_end = Some((mark, early_end));
        }
    }

    /// Records that the client releases the hold.
    pub fn releases(&mut self, mark: EventRef) {
        self.ends(mark, EarlyEnd::Release);
        self.released.get_or_insert(mark);
        self.releasing = Some(mark);
        self.let_go.get_or_insert(mark.at);
        self.is_used_up = true;
    }

    /// Records that the client gives the hold up. The entitlement does not end: a write whose answer did not come may
    /// still be on its way, and relies on the promise.
    pub fn gives_up(&mut self, mark: EventRef) {
        self.gave_up.get_or_insert(mark);
        self.unanswered = self.unanswered.or(self.renewing);
        self.is_used_up = true;
    }

    /// Records that the client waits no longer for a renewal that is under way.
    pub fn waits_no_more(&mut self) {
        self.unanswered = self.unanswered.or(self.renewing.take());
    }

    pub fn add_step(&mut self, mark: EventRef, step: ClientStep) {
        if self.timeline.len() < TIMELINE_MAX {
            self.timeline.push((mark, step));
        }
    }

    /// Returns the stamp before which the client surely does nothing with the hold, because it is in a planned wait.
    /// The controller ends a wait at a point, and the record of the agent has that. Otherwise the client leaves the
    /// point by itself after `bound`.
    pub fn idle_until(&self, bound: impl Fn(Point) -> Duration) -> Stamp {
        match self.timeline.last() {
            _ if self.timeline.len() >= TIMELINE_MAX => Stamp(0),
            Some((begun, ClientStep::Work(planned))) => begun.at.plus(*planned),
            Some((begun, ClientStep::AtPoint(point, None))) => begun.at.plus(bound(*point)),
            _ => Stamp(0),
        }
    }

    /// Notes that the planned part of a wait at a point is over.
    pub fn point_released(&mut self, at: Stamp, point: Point) {
        if let Some((_, ClientStep::AtPoint(here, released @ None))) = self.timeline.last_mut()
            && *here == point
        {
            *released = Some(at);
        }
    }

    /// Returns whether the attempt may be closed: its client, or its process, does nothing more with it.
    pub fn may_close(&self) -> bool {
        self.is_orphan || self.is_used_up
    }

    /// Returns whether no later event of the attempt can matter to a verdict.
    pub fn is_closed(&self) -> bool {
        let is_over = self.is_orphan || (self.is_used_up && (self.is_superseded || self.grant.is_none()));
        // A release may have no answer in the record. The client has gone on, so nothing waits for it.
        let is_released = self.releasing.is_none() || self.is_superseded;
        let is_quiet = self.is_orphan || (self.renewing.is_none() && is_released && self.undoing.is_none());
        let is_ended = self.grant.is_none() || self.is_retired;
        is_over && is_quiet && is_ended && self.ops.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(ms: u64) -> EventRef {
        EventRef { at: Stamp(ms * 1_000_000), seq: 0 }
    }

    fn hold() -> Attempt {
        let mut hold = Attempt::new(HoldId(1), 0, Mode::Write, ClientId(0), 0, mark(0));
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
    fn a_renewal_that_was_answered_at_an_instant_is_not_known_before_it() {
        let mut hold = hold();
        for (ok, nodes) in [(100, 0b011), (200, 0b110)] {
            hold.renewing = Some(mark(ok - 10));
            hold.renewed(mark(ok), Duration::from_secs(2), nodes);
        }
        assert_eq!([200, 201].map(|at| hold.renewed_on_before(mark(at).at)), [0b011, 0b110]);
    }

    #[test]
    fn a_release_without_an_answer_keeps_no_hold_whose_client_has_gone_on() {
        let mut hold = hold();
        hold.releases(mark(700));
        hold.is_retired = true;
        assert!(!hold.is_closed());
        hold.is_superseded = true;
        assert!(hold.is_closed());
    }

    #[test]
    fn the_first_end_stands() {
        let mut hold = hold();
        hold.ends(mark(700), EarlyEnd::Release);
        hold.ends(mark(600), EarlyEnd::Kill(FaultId(1)));
        hold.ends(mark(650), EarlyEnd::Loss);
        assert_eq!((hold.end(), hold.ended_by().map(|e| e.1)), (mark(600).at, Some(EarlyEnd::Kill(FaultId(1)))));
    }
}
