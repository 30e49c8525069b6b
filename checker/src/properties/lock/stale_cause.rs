//! The causes of a stale-holder window.
//!
//! The checker replays a stale act without the frozen time on its path. If the act is late even then, the planned waits
//! must outlast the lease: an overrun. If they do not, the record does not show what took the time. If the act is in
//! time, the checker adds the suspects again. Each suspect that alone makes the act late is a cause. If no suspect
//! suffices alone, the smallest set that does is the cause.
//!
//! The replay assumes that a check of a checking client passes again: with less frozen time the check comes earlier,
//! and it passed. Only a check by a wrong clock could have failed.

use std::time::Duration;

use history::{FaultKind, NodeName, OpId, Point, STALL_FROM, Stamp, When};

use crate::{
    cause::{Cause, CauseSet},
    holds::{Attempt, ClientStep, EarlyEnd, Span},
    rules,
    run::Run,
};

use super::evidence::StaleAct;
use delays::{LockDelay, Quorum};
use failed_renewal::FailedRenewal;
use suspect::{FrozenSpan, Suspect, SuspectSet, bit_of, clip};

mod delays;
mod failed_renewal;
mod suspect;

/// The most suspects that are tried in all combinations. More suspects are tried only all together.
const CAUSES_MAX: usize = 10;

/// One step of the path of an act.
struct Step {
    /// The planned wait; empty without one.
    planned: Span,
    /// From the end of the step's planned wait, or from its start without one, to the next step.
    overdue: Span,
    /// True for a request to the resource: the step then waits for that process, and for its store, too.
    is_request: bool,
    /// True for a step of an attempt that may have waited in the lock's queue.
    is_queued: bool,
    /// True for an attempt at a key below that of the hold.
    is_below: bool,
    /// True for work: the client waits by its own clock.
    is_work: bool,
}

/// The path of one act, as counterfactuals need it.
struct ActPath<'a> {
    hold: &'a Attempt,
    arrival: Stamp,
    renews_for: Duration,
    promised_from: Stamp,
    first_promise: Stamp,
    ok: Stamp,
    renew: Option<Duration>,
    /// The renewal that was under way when the client gave the hold up, if no fault kept its answer back.
    unanswered: Option<Stamp>,
    steps: Vec<Step>,
    /// Frozen time, and time that the client's clock lost, by which steps outlasted their planned waits: it delayed the
    /// act.
    delays: Vec<FrozenSpan>,
    /// Time for which the resource, or packets, kept the act's own request waiting: it delayed the act, and no event of
    /// the client.
    in_flight: Vec<FrozenSpan>,
    /// Time in which lock nodes kept the attempt, or one at a key below, waiting, and the nodes that it needed.
    lock_delays: (Vec<LockDelay<SuspectSet>>, Quorum),
    /// Frozen time of the client's own process: it kept renewals from leaving.
    own: Vec<FrozenSpan>,
    /// Renewals that failed or did not leave.
    broken: Vec<FailedRenewal<SuspectSet>>,
    /// The last check of the deadline before the act, and the faults of the client's clock.
    check: Option<(Stamp, SuspectSet)>,
    suspects: Vec<Suspect>,
}

/// The causes of a stale-holder window: those of its acts. An overclaim before an act comes before all other causes.
pub(crate) fn of_acts(run: &Run, hold: &Attempt, acts: &[StaleAct], overclaimed: Option<Stamp>) -> Vec<CauseSet> {
    let mut causes: Vec<CauseSet> = Vec::new();
    for act in acts {
        let is_overclaimed = overclaimed.is_some_and(|at| at <= act.mark.at);
        let own = || of_act(run, hold, act);
        for cause in if is_overclaimed { vec![Cause::Overclaim.into()] } else { own() } {
            if !causes.contains(&cause) {
                causes.push(cause);
            }
        }
    }
    causes
}

fn is_sent_after_release(hold: &Attempt, op: Option<OpId>) -> bool {
    let sent = hold.timeline.iter().find(|(_, step)| matches!(step, ClientStep::Request(o) if Some(*o) == op));
    sent.zip(hold.released).is_some_and(|((sent, _), released)| sent.at > released.at)
}

fn of_act(run: &Run, hold: &Attempt, act: &StaleAct) -> Vec<CauseSet> {
    let StaleAct { op, had_since, .. } = *act;
    let arrival = act.mark.at;
    // No fault makes a client act under a hold that it has released itself.
    let is_early = is_sent_after_release(hold, op);
    // Packets that may have been lost explain an act only if nothing else does.
    let paths = [false, true].into_iter().filter_map(|may_be_lost| ActPath::new(run, hold, arrival, op, may_be_lost));
    let found = paths.filter(|_| !is_early).map(|path| path.causes()).find(|causes| !causes.is_empty());
    let span = (had_since, arrival);
    // A client of the harness measures no lease by the wall clock, so it does not believe for longer when that clock is
    // set back. Nobody knows the clock of a client program.
    let is_stepped = || match run.plan.program {
        None => run.clock_steps.may_have_ended_leases(&run.plan, span),
        Some(_) => run.clock_steps.stepped_within(span),
    };
    found.unwrap_or_else(|| match !is_early && is_stepped() {
        true => vec![Cause::HostClock.into()],
        false => vec![Cause::Unexplained.into()],
    })
}

/// Returns the stamp after which a step of the host's clock may have ended the lease of a hold that acts now: every
/// node that had granted the hold had its key when it did the last renewal. But a replica that did not receive the key
/// may be promoted some time after that.
pub(crate) fn had_since(run: &Run, hold: &Attempt, now: Stamp) -> Stamp {
    let ((done_on, sent), relies_since) = (hold.renewal_before(now), hold.relies_since());
    let is_done = done_on != 0 && hold.granted_on & !done_on == 0;
    if is_done && !run.plan.is_replicated() { sent.max(relies_since) } else { relies_since }
}

impl<'a> ActPath<'a> {
    fn new(run: &Run, hold: &'a Attempt, arrival: Stamp, op: Option<OpId>, may_be_lost: bool) -> Option<Self> {
        let grant = hold.grant?;
        let worker = &run.process(hold.process).node;
        // Delays before the promise began to count did not make the act late.
        let path = (grant.promised_from, arrival);
        let own = delays::frozen(run, worker, &hold.stalls, path);
        let resource = NodeName::from("resource");
        let of_resource = delays::frozen(run, &resource, &run.resource_stalls(hold), path);
        let down: Vec<(Span, Suspect)> = delays::down(run, &resource).collect();
        let kill = hold.ended_by().and_then(|(_, early_end)| match early_end {
            EarlyEnd::Kill(fault) if run.has_killed(fault) => Some(Suspect::Fault(fault, FaultKind::Kill)),
            _ => None,
        });
        let mut requests = delays::delayed(run, worker, &resource, may_be_lost);
        let answers = delays::delayed(run, &resource, worker, may_be_lost);
        // The lock nodes delayed nothing before the attempt was sent, even if the promise rests on an earlier request.
        let attempt = (grant.promised_from.max(hold.sent.at), grant.ok.at);
        let waits = hold.behind.is_some() || !run.plan.servers.shows_waiting;
        let steps = steps(hold, arrival, op, waits, |point| planned_at(run, worker, point, hold.relies_since()));
        let asked = steps.iter().filter(|step| step.is_request);
        requests.extend(asked.flat_map(|step| delays::of_store(run, step.overdue, may_be_lost)));
        // The client needed their answers to its attempts at keys below, too. In a planned wait it needs no answer.
        let below = steps.iter().filter(|step| step.is_below).map(|step| step.overdue);
        let attempts = below.chain([attempt]);
        let of_locks = attempts.flat_map(|attempt| delays::of_lock_nodes(run, worker, attempt, may_be_lost));
        let overdue = |delay: LockDelay| {
            let spans = steps.iter().filter_map(move |step| clip(delay.span, step.overdue));
            spans.map(move |span| LockDelay { span, ..delay })
        };
        let of_locks: Vec<LockDelay> = of_locks.flat_map(overdue).collect();
        let on_path = own.iter().chain(&of_resource).chain(&requests).chain(&answers).chain(&down);
        let on_path = on_path.filter(|(span, _)| clip(*span, path).is_some());
        let broken = failed_renewal::broken(run, hold, worker, arrival);
        let has_suspects = |b: &FailedRenewal<Vec<Suspect>>| b.missing.iter().any(|missing| !missing.is_empty());
        let unanswered = hold.unanswered.filter(|_| hold.gave_up.is_some()).map(|sent| sent.at);
        let unanswered = unanswered.filter(|sent| !broken.iter().any(|b| b.span.0 == *sent && has_suspects(b)));
        let clocks: Vec<Suspect> = delays::clocks_of(run, worker, path).map(|(_, suspect)| suspect).collect();
        let mut suspects: Vec<Suspect> = on_path.map(|(_, suspect)| *suspect).chain(kill).collect();
        suspects.extend(broken.iter().flat_map(|b| b.missing.iter().flatten()).chain(&clocks).copied());
        suspects.extend(of_locks.iter().map(|delay| delay.suspect));
        suspects.sort_unstable();
        suspects.dedup();
        let pick = |all: &[(Span, Suspect)], within: Span| -> Vec<FrozenSpan> {
            let found = all.iter().filter_map(|(span, suspect)| {
                let i = suspects.binary_search(suspect).ok()?;
                Some(FrozenSpan { span: clip(*span, within)?, suspect: bit_of(i) })
            });
            found.collect()
        };
        let bit = |delay: &LockDelay| {
            let i = suspects.binary_search(&delay.suspect).ok()?;
            Some(LockDelay { node: delay.node, span: delay.span, suspect: bit_of(i) })
        };
        let nodes = run.plan.lock_nodes.len();
        let quorum = match run.plan.has_replicas() {
            true => Quorum { enough: 1, refused_on: 0 },
            false => Quorum { enough: nodes - nodes / 2, refused_on: hold.refused_on },
        };
        let lock_delays = (of_locks.iter().filter_map(bit).collect(), quorum);
        let (mut delays, mut in_flight) = (Vec::new(), Vec::new());
        for (i, step) in steps.iter().enumerate() {
            let Some(overdue) = clip(step.overdue, path) else { continue };
            delays.extend(pick(&own, overdue));
            if step.is_work {
                delays.extend(pick(&delays::slowed(run, worker, step.planned.0, step.overdue), overdue));
            }
            if step.is_request {
                let waiting = if i + 1 == steps.len() { &mut in_flight } else { &mut delays };
                waiting.extend(pick(&of_resource, overdue));
                waiting.extend(pick(&requests, overdue));
                // A request to a process that is down is lost, so the wait after the restart is due to the fault too.
                let lost = pick(&down, overdue);
                waiting.extend(lost.into_iter().map(|f| FrozenSpan { span: (f.span.0, overdue.1), ..f }));
                if overdue.1 < arrival {
                    delays.extend(pick(&answers, overdue));
                }
            }
        }
        let bits = |suspect: &Suspect| suspects.binary_search(suspect).map_or(0, bit_of);
        let all = |suspects: &Vec<Suspect>| suspects.iter().map(bits).fold(0, |all, bit| all | bit);
        let broken = broken.iter().map(|b| b.with(b.missing.iter().map(all).collect())).collect();
        let wrong: SuspectSet = clocks.iter().map(bits).fold(0, |all, bit| all | bit);
        let check = last_check(hold, op).filter(|_| wrong != 0).map(|at| (at, wrong));
        Some(ActPath {
            hold,
            arrival,
            renews_for: hold.renewed_for.or(run.plan.workload.renew_for).unwrap_or(grant.lease),
            promised_from: grant.promised_from,
            first_promise: grant.first_promise,
            ok: grant.ok.at,
            renew: run.plan.workload.renew,
            unanswered,
            own: pick(&own, path),
            steps,
            delays,
            in_flight,
            lock_delays,
            broken,
            check,
            suspects,
        })
    }

    /// Returns the causes of the act; none if the record shows none.
    fn causes(&self) -> Vec<CauseSet> {
        if self.is_late(0) {
            return Vec::from_iter(self.is_outlasted().then(|| Cause::Overrun.into()));
        }
        let members = |set: SuspectSet| {
            let members = self.suspects.iter().enumerate().filter(move |(i, _)| set & bit_of(*i) != 0);
            members.map(|(_, suspect)| suspect.cause()).collect::<CauseSet>()
        };
        let mut alone: Vec<CauseSet> = Vec::new();
        for i in 0..self.suspects.len().min(SuspectSet::BITS as usize) {
            let cause = members(bit_of(i));
            if self.is_late(bit_of(i)) && !alone.contains(&cause) {
                alone.push(cause);
            }
        }
        if !alone.is_empty() {
            return alone;
        }
        self.smallest_set().into_iter().map(members).collect()
    }

    /// Returns the delay of the client's timeline up to `until` by the causes of `set`, together with that of `more`.
    fn delay(&self, set: SuspectSet, until: Stamp, more: &[FrozenSpan]) -> Duration {
        let (of_locks, quorum) = &self.lock_delays;
        let more = more.iter().filter(|f| f.suspect & set != 0).map(|f| f.span);
        let others = delays::without_majority(of_locks, set, *quorum).into_iter().chain(more).collect();
        delays::length(&self.delays, others, set, until)
    }

    /// Returns the time of `at` without the delays by causes that are not in `set`.
    fn moved(&self, set: SuspectSet, at: Stamp, more: &[FrozenSpan]) -> Stamp {
        if at == Stamp(u64::MAX) {
            return at;
        }
        at.minus(self.delay(SuspectSet::MAX, at, more).saturating_sub(self.delay(set, at, more)))
    }

    /// Returns when the path of the act would have come to `at` if only the causes of `set` had acted.
    fn on_path(&self, set: SuspectSet, at: Stamp) -> Stamp {
        self.moved(set, at, &self.in_flight)
    }

    /// Returns when an event of the client, or its kill, would have happened if only the causes of `set` had acted. The
    /// client does not wait for the act's own request: it may go on without the answer, or be killed meanwhile.
    fn without_others(&self, set: SuspectSet, at: Stamp) -> Stamp {
        self.moved(set, at, &[])
    }

    /// Returns whether the act would arrive after the end of its entitlement if only the causes of `set` had acted.
    fn is_late(&self, set: SuspectSet) -> bool {
        let arrival = self.on_path(set, self.arrival);
        let end = self.end(set, arrival);
        // With a correct clock, a check after the end would not have passed, and the client would not have acted.
        let is_held_back = self
            .check
            .is_some_and(|(at, wrong)| set & wrong == 0 && rules::is_overclaim(self.without_others(set, at), end));
        rules::is_after_end(arrival, end) && !is_held_back
    }

    /// Returns whether the planned waits alone outlast the lease, if nothing else delayed the act. They count from the
    /// request on which the promise rests.
    ///
    /// The rest of each step is the time of ordinary code, servers and networks. It counts as far as it is shorter than
    /// every stall that a process records: of such a short time the record never shows a cause. An attempt that waits
    /// in the lock's queue waits for another holder, as it should, so all of its time counts.
    fn is_outlasted(&self) -> bool {
        let shifted = |at: Stamp| self.on_path(0, at);
        let promise = self.promise(0, shifted(self.arrival));
        let within = |span: Span| shifted(span.1).max(promise.0).since(shifted(span.0).max(promise.0));
        let ordinary = |step: &Step| if step.is_queued { Duration::MAX } else { STALL_FROM };
        let waited = |step: &Step| within(step.planned) + within(step.overdue).min(ordinary(step));
        self.steps.iter().map(waited).sum::<Duration>() > promise.1.since(promise.0)
    }

    /// Returns the end of the entitlement if only the causes of `set` had acted. A noticed loss of the hold is a
    /// consequence, and not an end of use. Without its causes the client would not have noticed a loss.
    fn end(&self, set: SuspectSet, arrival: Stamp) -> Stamp {
        let promise = self.promise(set, arrival).1;
        let released = self.hold.released.map(|mark| mark.at);
        let killed = self.hold.ended_by().and_then(|(mark, early_end)| {
            let EarlyEnd::Kill(fault) = early_end else { return None };
            let i = self.suspects.binary_search(&Suspect::Fault(fault, FaultKind::Kill)).ok()?;
            (set & bit_of(i) != 0).then_some(mark.at)
        });
        released.into_iter().chain(killed).map(|at| self.without_others(set, at)).fold(promise, Stamp::min)
    }

    /// Returns the promise if only the causes of `set` had acted: from the request on which it rests to its end.
    fn promise(&self, set: SuspectSet, arrival: Stamp) -> Span {
        match self.renew {
            None if self.hold.renewed.is_some() => {
                (self.without_others(set, self.hold.promised_by.at), self.hold.promise)
            }
            None => (self.promised_from, self.first_promise),
            Some(interval) => self.renewed_promise(set, arrival, interval),
        }
    }

    /// Returns the promise if renewals were sent as scheduled, and only the freezes of `set` delayed them.
    fn renewed_promise(&self, set: SuspectSet, arrival: Stamp, interval: Duration) -> Span {
        let mut freezes: Vec<Span> = (self.own.iter())
            .filter(|f| f.suspect & set != 0)
            .map(|f| {
                let from = self.without_others(set, f.span.0);
                (from, from.plus(f.span.1.since(f.span.0)))
            })
            .collect();
        freezes.sort_unstable();
        let interval = interval.max(Duration::from_millis(1));
        let mut promise = (self.promised_from, self.first_promise);
        // Renewals are due at fixed times from the attempt on. One due before the client is told is sent then.
        let told = self.without_others(set, self.ok);
        let mut due = self.promised_from.plus(interval);
        // A renewal that was due at most one interval before a failed renewal is that failed renewal.
        let shifted = |at: Stamp| self.without_others(set, at);
        let moved = |b: &FailedRenewal<SuspectSet>| (shifted(b.span.0).minus(interval), shifted(b.span.1), b.is_loss);
        let broken: Vec<(Stamp, Stamp, bool)> = self.broken.iter().filter(|b| b.is_by(set)).map(moved).collect();
        let loss = self
            .hold
            .ended_by()
            .filter(|(_, early_end)| *early_end == EarlyEnd::Loss)
            .map(|(mark, _)| shifted(mark.at));
        // A client that gives up sends no more renewals, and waits no longer for the last one.
        let gave_up = self.hold.gave_up.map(|mark| shifted(mark.at));
        let last = self.unanswered.map(|sent| shifted(sent).minus(interval));
        let is_over = |sent: Stamp| gave_up.is_some_and(|at| sent >= at) || last.is_some_and(|at| sent > at);
        // A clock that jumped forward makes a renewal early. Its loss comes before the time at which it was due.
        let lost_early =
            loss.filter(|at| *at < arrival && broken.iter().any(|f| f.2 && f.1 == Stamp(u64::MAX) && f.0 < *at));
        loop {
            let mut sent = due.max(told);
            for freeze in &freezes {
                if freeze.0 <= sent && sent < freeze.1 {
                    sent = freeze.1;
                }
            }
            if sent >= arrival || is_over(sent) || !rules::is_renewed_in_time(sent, promise.1) {
                let end = lost_early.map_or(promise.1, |lost| promise.1.max(self.hold.promise).min(lost));
                return (promise.0, end);
            }
            match broken.iter().find(|f| f.0 < sent && sent <= f.1) {
                // From here on the counterfactual timeline is the real one.
                Some((_, Stamp(u64::MAX), is_loss)) => {
                    let lost = loss.filter(|_| *is_loss).unwrap_or(Stamp(u64::MAX));
                    return (promise.0, promise.1.max(self.hold.promise).min(lost));
                }
                Some(_) => {}
                None => {
                    let end = rules::promise_end(sent, self.renews_for);
                    promise = if end > promise.1 { (sent, end) } else { promise };
                }
            }
            due = due.plus(interval).max(sent);
        }
    }

    /// The smallest set of causes that makes the act late; of several, the first.
    fn smallest_set(&self) -> Option<SuspectSet> {
        let n = self.suspects.len();
        let all = (0..n).fold(0, |all, i| all | bit_of(i));
        if n > CAUSES_MAX {
            return self.is_late(all).then_some(all);
        }
        let mut sets: Vec<SuspectSet> = (1..=all).collect();
        sets.sort_by_key(|set| (set.count_ones(), *set));
        sets.into_iter().find(|set| self.is_late(*set))
    }
}

/// Returns the client's last check of its deadline before it sent `op`.
fn last_check(hold: &Attempt, op: Option<OpId>) -> Option<Stamp> {
    let sent = hold.timeline.iter().position(|(_, step)| matches!(step, ClientStep::Request(o) if Some(*o) == op))?;
    hold.timeline[..sent].iter().rev().find(|(_, step)| *step == ClientStep::Check).map(|(mark, _)| mark.at)
}

/// Returns the longest time for which the plan keeps a client of the worker at a point, by the client's own clock since
/// a stamp. Of several waits at one point nobody knows which one it was, and a wait for a fault at the point ends with
/// that fault.
fn planned_at(run: &Run, worker: &NodeName, point: Point, since: Stamp) -> Duration {
    let has_fault = run.plan.schedule.iter().any(|step| step.when == When::AtPoint(point));
    let is_unknown = has_fault || run.may_be_set(worker, since);
    run.bounds_at(worker, point).max().filter(|_| !is_unknown).unwrap_or(Duration::MAX)
}

/// The spans between consecutive events of the hold, from the attempt to the arrival of `op`. With `waits` the attempt
/// waited in the lock's queue, or may have: some servers do not answer before they grant the lock. `bound` returns how
/// long a wait at a point is at most.
fn steps(
    hold: &Attempt,
    arrival: Stamp,
    op: Option<OpId>,
    waits: bool,
    bound: impl Fn(Point) -> Duration,
) -> Vec<Step> {
    let is_own = |step: &ClientStep| matches!(step, ClientStep::Request(o) if Some(*o) == op);
    let last = hold.timeline.iter().position(|(_, step)| is_own(step)).unwrap_or(hold.timeline.len() - 1);
    let mut steps = Vec::with_capacity(last + 2);
    // The promise may rest on an earlier request of the client's session. The time since then counts in full, as the
    // time in a queue does: it is the client that has taken it off its lease.
    let (since, sent) = (hold.relies_since(), hold.sent.at);
    if since < sent {
        let (planned, overdue) = ((since, since), (since, sent));
        steps.push(Step { planned, overdue, is_request: false, is_queued: true, is_below: false, is_work: false });
    }
    for (i, (mark, step)) in hold.timeline[..=last].iter().enumerate() {
        let to = if i < last { hold.timeline[i + 1].0.at } else { arrival };
        let due = match step {
            ClientStep::Work(planned) => mark.at.plus(*planned),
            // Until the controller releases the client, or the bound is over, the whole wait is planned.
            ClientStep::AtPoint(point, released) => released.unwrap_or(to).min(mark.at.plus(bound(*point))),
            ClientStep::Acquire | ClientStep::Request(_) | ClientStep::Check | ClientStep::Other => mark.at,
        };
        // A wait at a point may come between the request and the grant. A later attempt is one at a key below.
        let is_below = i > 0 && *step == ClientStep::Acquire;
        let is_queued = is_below || waits && hold.grant.is_some_and(|grant| mark.at < grant.ok.at);
        let (is_request, is_work) = (matches!(step, ClientStep::Request(_)), matches!(step, ClientStep::Work(_)));
        let (planned, overdue) = ((mark.at, due.min(to)), (due, to));
        steps.push(Step { planned, overdue, is_request, is_queued, is_below, is_work });
    }
    steps
}

#[cfg(test)]
mod tests;
