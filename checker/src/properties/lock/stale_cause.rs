//! The causes of a stale-holder window.
//!
//! The checker replays a stale act without the frozen time on its path. If the act is late even then, the work outlasts
//! the lease. Otherwise the checker adds the suspects again. Each suspect that alone makes the act late is a cause. If
//! no suspect suffices alone, the smallest set that does is the cause.
//!
//! The replay assumes that a check of a checking client passes again: with less frozen time the check comes earlier,
//! and it passed. Only a check by a wrong clock could have failed.

use std::time::Duration;

use history::{FailureReason, FaultId, FaultKind, Harm, NodeName, OpId, Stamp};

use crate::{
    cause::{Cause, CauseSet},
    faults::FaultRecord,
    holds::{Attempt, ClientStep, EarlyEnd, Grant, RenewalFailure, Span},
    intervals::Intervals,
    key_lease::KeyLease,
    rules,
    run::Run,
};

use super::evidence::StaleAct;

/// The most suspects that are tried in all combinations. More suspects are tried only all together.
const CAUSES_MAX: usize = 10;

/// A fault or stall that may have made an act late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Suspect {
    Fault(FaultId, FaultKind),
    Stalls,
}

impl Suspect {
    fn cause(self) -> Cause {
        match self {
            Suspect::Fault(_, kind) => Cause::Fault(kind),
            Suspect::Stalls => Cause::Stall,
        }
    }
}

/// A set of suspects, as bits.
type SuspectSet = u32;

/// A span in which a process did not run, or packets did not arrive.
#[derive(Debug, Clone, Copy)]
struct FrozenSpan {
    span: Span,
    suspect: SuspectSet,
}

/// One step of the path of an act.
struct Step {
    /// From the end of the step's planned wait, or from its start without one, to the next step.
    overdue: Span,
    /// True for a request to the resource: the step then waits for that process too.
    is_request: bool,
}

/// A renewal that failed.
struct FailedRenewal<B> {
    /// The span in which no renewal succeeded.
    span: Span,
    /// For each node that did not execute the renewal: the suspects, each of which suffices. Empty without suspects.
    missing: Vec<B>,
    /// The number of missing nodes that makes the renewal fail.
    enough: usize,
    /// True if the client noticed by this renewal that the hold was lost.
    is_loss: bool,
}

impl<B> FailedRenewal<B> {
    fn with<C>(&self, missing: Vec<C>) -> FailedRenewal<C> {
        FailedRenewal { span: self.span, missing, enough: self.enough, is_loss: self.is_loss }
    }
}

impl FailedRenewal<SuspectSet> {
    /// Returns whether suspects of `set` make the renewal fail. At least one node must be missing because of the set. A
    /// node that is missing without a suspect fails with every set.
    fn is_by(&self, set: SuspectSet) -> bool {
        let fails = |missing: &&SuspectSet| **missing == 0 || **missing & set != 0;
        self.missing.iter().any(|missing| missing & set != 0)
            && self.missing.iter().filter(fails).count() >= self.enough
    }
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
    /// Frozen time by which steps outlasted their planned waits: it delayed the act.
    delays: Vec<FrozenSpan>,
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
        let own = || of_act(run, hold, act.mark.at, act.op);
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

fn of_act(run: &Run, hold: &Attempt, arrival: Stamp, op: Option<OpId>) -> Vec<CauseSet> {
    // No fault makes a client act under a hold that it has released itself.
    let path = ActPath::new(run, hold, arrival, op).filter(|_| !is_sent_after_release(hold, op));
    let Some(path) = path else { return vec![Cause::Unexplained.into()] };
    if path.is_late(0) {
        return vec![Cause::Overrun.into()];
    }
    let mut alone: Vec<CauseSet> = Vec::new();
    for (i, suspect) in path.suspects.iter().enumerate() {
        let cause = CauseSet::from(suspect.cause());
        if path.is_late(1 << i) && !alone.contains(&cause) {
            alone.push(cause);
        }
    }
    if !alone.is_empty() {
        return alone;
    }
    match path.smallest_set() {
        Some(set) => {
            let members = path.suspects.iter().enumerate().filter(|(i, _)| set & (1 << i) != 0);
            vec![members.map(|(_, suspect)| suspect.cause()).collect()]
        }
        None if run.stalls.stepped_within((hold.sent.at, arrival)) => vec![Cause::HostClock.into()],
        None => vec![Cause::Unexplained.into()],
    }
}

impl<'a> ActPath<'a> {
    fn new(run: &Run, hold: &'a Attempt, arrival: Stamp, op: Option<OpId>) -> Option<Self> {
        let grant = hold.grant?;
        let worker = &run.process(hold.process).node;
        let own = frozen(run, worker, &hold.stalls);
        let resource = NodeName::from("resource");
        let of_resource = frozen(run, &resource, &hold.resource_stalls);
        let down: Vec<(Span, Suspect)> = down(run, &resource).collect();
        let kill = hold.ended_by().and_then(|(_, early_end)| match early_end {
            EarlyEnd::Kill(fault) => Some(Suspect::Fault(fault, FaultKind::Kill)),
            _ => None,
        });
        // Delays before the promise began to count did not make the act late.
        let path = (grant.promised_from, arrival);
        let requests = delayed(run, worker, true);
        let answers = delayed(run, worker, false);
        let on_path = own.iter().chain(&of_resource).chain(&requests).chain(&answers).chain(&down);
        let on_path = on_path.filter(|(span, _)| clip(*span, path).is_some());
        let broken = broken(run, hold, worker, arrival);
        let has_suspects = |b: &FailedRenewal<Vec<Suspect>>| b.missing.iter().any(|missing| !missing.is_empty());
        let unanswered = hold.unanswered.filter(|_| hold.gave_up.is_some()).map(|sent| sent.at);
        let unanswered = unanswered.filter(|sent| !broken.iter().any(|b| b.span.0 == *sent && has_suspects(b)));
        let clocks: Vec<Suspect> = clocks_of(run, worker, path).map(|(_, suspect)| suspect).collect();
        let mut suspects: Vec<Suspect> = on_path.map(|(_, suspect)| *suspect).chain(kill).collect();
        suspects.extend(broken.iter().flat_map(|b| b.missing.iter().flatten()).chain(&clocks).copied());
        suspects.sort_unstable();
        suspects.dedup();
        suspects.truncate(SuspectSet::BITS as usize - 1);
        let pick = |all: &[(Span, Suspect)], within: Span| -> Vec<FrozenSpan> {
            let found = all.iter().filter_map(|(span, suspect)| {
                let i = suspects.binary_search(suspect).ok()?;
                Some(FrozenSpan { span: clip(*span, within)?, suspect: 1 << i })
            });
            found.collect()
        };
        let mut delays = Vec::new();
        for step in steps(hold, arrival, op) {
            let Some(overdue) = clip(step.overdue, path) else { continue };
            delays.extend(pick(&own, overdue));
            if step.is_request {
                delays.extend(pick(&of_resource, overdue));
                delays.extend(pick(&requests, overdue));
                // A request to a process that is down is lost, so the wait after the restart is due to the fault too.
                let lost = pick(&down, overdue);
                delays.extend(lost.into_iter().map(|f| FrozenSpan { span: (f.span.0, overdue.1), ..f }));
                if overdue.1 < arrival {
                    delays.extend(pick(&answers, overdue));
                }
            }
        }
        let bits = |suspect: &Suspect| suspects.binary_search(suspect).map_or(0, |i| 1 << i);
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
            delays,
            broken,
            check,
            suspects,
        })
    }

    /// Returns the delay of the hold's timeline up to `until` by the causes of `set`.
    fn delay(&self, set: SuspectSet, until: Stamp) -> Duration {
        let delays = self.delays.iter().filter(|f| f.suspect & set != 0);
        delays.filter_map(|f| clip(f.span, (Stamp(0), until))).collect::<Intervals>().length()
    }

    /// Returns when the event at `at` would have happened if only the causes of `set` had acted.
    fn without_others(&self, set: SuspectSet, at: Stamp) -> Stamp {
        if at == Stamp(u64::MAX) {
            return at;
        }
        at.minus(self.delay(SuspectSet::MAX, at).saturating_sub(self.delay(set, at)))
    }

    /// Returns whether the act would arrive after the end of its entitlement if only the causes of `set` had acted.
    fn is_late(&self, set: SuspectSet) -> bool {
        let arrival = self.without_others(set, self.arrival);
        let end = self.end(set, arrival);
        // With a correct clock, a check after the end would not have passed, and the client would not have acted.
        let is_held_back = self
            .check
            .is_some_and(|(at, wrong)| set & wrong == 0 && rules::is_overclaim(self.without_others(set, at), end));
        rules::is_after_end(arrival, end) && !is_held_back
    }

    /// Returns the end of the entitlement if only the causes of `set` had acted. A noticed loss of the hold is a
    /// consequence, and not an end of use. Without its causes the client would not have noticed a loss.
    fn end(&self, set: SuspectSet, arrival: Stamp) -> Stamp {
        let promise = match self.renew {
            None if self.hold.renewed.is_some() => self.hold.promise,
            None => self.first_promise,
            Some(interval) => self.renewed_promise(set, arrival, interval),
        };
        let released = self.hold.released.map(|mark| mark.at);
        let killed = self.hold.ended_by().and_then(|(mark, early_end)| {
            let EarlyEnd::Kill(fault) = early_end else { return None };
            let i = self.suspects.binary_search(&Suspect::Fault(fault, FaultKind::Kill)).ok()?;
            (set & (1 << i) != 0).then_some(mark.at)
        });
        released.into_iter().chain(killed).map(|at| self.without_others(set, at)).fold(promise, Stamp::min)
    }

    /// Returns the promise end if renewals were sent as scheduled, and only the freezes of `set` delayed them.
    fn renewed_promise(&self, set: SuspectSet, arrival: Stamp, interval: Duration) -> Stamp {
        let mut freezes: Vec<Span> = (self.own.iter())
            .filter(|f| f.suspect & set != 0)
            .map(|f| {
                let from = self.without_others(set, f.span.0);
                (from, from.plus(f.span.1.since(f.span.0)))
            })
            .collect();
        freezes.sort_unstable();
        let interval = interval.max(Duration::from_millis(1));
        let mut promise = self.first_promise;
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
        loop {
            let mut sent = due.max(told);
            for freeze in &freezes {
                if freeze.0 <= sent && sent < freeze.1 {
                    sent = freeze.1;
                }
            }
            if sent >= arrival || is_over(sent) || !rules::is_renewed_in_time(sent, promise) {
                return promise;
            }
            match broken.iter().find(|f| f.0 < sent && sent <= f.1) {
                // From here on the counterfactual timeline is the real one.
                Some((_, Stamp(u64::MAX), is_loss)) => {
                    let lost = loss.filter(|_| *is_loss).unwrap_or(Stamp(u64::MAX));
                    return promise.max(self.hold.promise).min(lost);
                }
                Some(_) => {}
                None => promise = promise.max(rules::promise_end(sent, self.renews_for)),
            }
            due = due.plus(interval).max(sent);
        }
    }

    /// The smallest set of causes that makes the act late; of several, the first.
    fn smallest_set(&self) -> Option<SuspectSet> {
        let n = self.suspects.len().min(SuspectSet::BITS as usize - 1);
        let all: SuspectSet = (1 << n) - 1;
        if n > CAUSES_MAX {
            return self.is_late(all).then_some(all);
        }
        let mut sets: Vec<SuspectSet> = (1..=all).collect();
        sets.sort_by_key(|set| (set.count_ones(), *set));
        sets.into_iter().find(|set| self.is_late(*set))
    }
}

/// The spans in which processes of a node did not run: those inside its proved faults, and the rest.
///
/// A slowed node ran in between. Only its recorded late ticks count as time in which it did not run, as for unplanned
/// stalls. So a fault never explains more than the record shows.
fn frozen(run: &Run, node: &NodeName, stalls: &[Span]) -> Vec<(Span, Suspect)> {
    let faults = || run.faults.iter().filter(|(_, l)| l.kind.takes_processor_time() && l.node == *node);
    let pauses: Vec<(Suspect, Span)> = faults()
        .filter(|(_, l)| l.proved.is_some())
        .filter_map(|(id, l)| Some((Suspect::Fault(id, l.kind), l.bracket()?)))
        .collect();
    // A process that is killed before it goes on records no stall, but the proof of the freeze shows one.
    let shown = faults().filter(|(_, l)| l.kind.freezes()).filter_map(|(_, l)| l.proved);
    let mut found = Vec::new();
    for stall in stalls.iter().copied().chain(shown) {
        let mut rest = vec![stall];
        for &(suspect, pause) in &pauses {
            if let Some(span) = clip(stall, pause) {
                found.push((span, suspect));
                rest = rest.into_iter().flat_map(|part| outside(part, pause)).collect();
            }
        }
        found.extend(rest.into_iter().map(|span| (span, Suspect::Stalls)));
    }
    found
}

/// The spans in which a node was down: a request waited until it was sent again to the next process.
fn down(run: &Run, node: &NodeName) -> impl Iterator<Item = (Span, Suspect)> {
    let kills = run.faults.iter().filter(move |(_, l)| l.kind.kills() && l.proved.is_some() && l.node == *node);
    kills.filter_map(|(id, l)| Some((l.bracket()?, Suspect::Fault(id, l.kind))))
}

/// The spans in which packets between a worker and the resource were delayed, in one direction.
fn delayed(run: &Run, worker: &NodeName, is_request: bool) -> Vec<(Span, Suspect)> {
    let held = run.faults.delayed_of(worker).filter(|(held, _)| held.is_request == is_request);
    held.map(|(held, kind)| (held.span, Suspect::Fault(held.fault, kind))).collect()
}

/// Returns the proved faults of the clock that clients of a worker use, if the faults overlap the span `within`.
fn clocks_of<'a>(run: &'a Run, worker: &'a NodeName, within: Span) -> impl Iterator<Item = (Span, Suspect)> + 'a {
    let clocks =
        run.faults.iter().filter(move |(_, l)| l.kind == FaultKind::Clock && l.proved.is_some() && l.node == *worker);
    clocks.filter_map(move |(id, l)| {
        let step = run.plan.schedule.iter().find(|step| step.id == id)?;
        let is_own = step.fault.clock().is_some_and(|fault| fault.clock.is_monotonic());
        let (from, to) = l.bracket()?;
        // A clock keeps the time that it gained or lost, so the span has no end.
        (is_own && from < within.1 && within.0 < to).then_some(((from, Stamp(u64::MAX)), Suspect::Fault(id, l.kind)))
    })
}

/// Returns the renewals that failed or did not leave because of a fault. The fault hit a lock node that did not execute
/// a renewal sent inside the promise, the links to that node, or the worker's own clock.
fn broken(run: &Run, hold: &Attempt, worker: &NodeName, arrival: Stamp) -> Vec<FailedRenewal<Vec<Suspect>>> {
    let Some(grant) = hold.grant.filter(|_| run.plan.workload.renew.is_some()) else { return Vec::new() };
    let unanswered = hold.renewing.or(hold.unanswered).filter(|sent| rules::is_renewed_in_time(sent.at, hold.promise));
    let unanswered =
        unanswered.map(|sent| RenewalFailure { span: (sent.at, arrival), done_on: 0, refused_on: 0, loss: None });
    let failures = || hold.failures.iter().copied().chain(unanswered).filter(|failure| failure.span.0 < arrival);
    // If a client noticed the loss although no node had refused, it used its own clock.
    let is_loss = !failures().any(|failure| failure.loss == Some(FailureReason::Lost));
    let clocks = clocks_of(run, worker, (hold.sent.at, arrival));
    let clocks = clocks.map(|(span, suspect)| FailedRenewal { span, missing: vec![vec![suspect]], enough: 1, is_loss });
    let mut found: Vec<FailedRenewal<Vec<Suspect>>> = clocks.collect();
    for failure in failures() {
        let nodes = 0..run.plan.lock_nodes.len();
        let missing = nodes.filter(|i| *i >= 64 || failure.done_on & (1 << i) == 0);
        let by_node = missing.map(|node| kept_from(run, hold, &grant, worker, &failure, node));
        let nodes = run.plan.lock_nodes.len();
        // The members of a store execute a renewal together, so a fault of one member may stop all.
        let (missing, enough) = match run.plan.has_one_store() {
            true => (vec![by_node.flatten().collect::<Vec<Suspect>>()], 1),
            false => (by_node.collect(), nodes - nodes / 2),
        };
        let until = if failure.loss.is_some() { Stamp(u64::MAX) } else { failure.span.1 };
        let (span, is_loss) = ((failure.span.0, until), failure.loss.is_some());
        found.push(FailedRenewal { span, missing, enough, is_loss });
    }
    found
}

/// Returns the suspects that may have kept a node from executing a renewal.
fn kept_from(
    run: &Run,
    hold: &Attempt,
    grant: &Grant,
    worker: &NodeName,
    failure: &RenewalFailure,
    node: usize,
) -> Vec<Suspect> {
    let name = &run.plan.lock_nodes[node];
    let has_refused = node < 64 && failure.refused_on & (1 << node) != 0;
    let key_lease = KeyLease::of(hold, grant, node, failure.span.1);
    // The node may have refused because the renewal reached it when the lease was over.
    let is_ready = has_refused && !rules::is_after_end(failure.span.1, hold.promise);
    let is_to_blame = |id: FaultId, line: &FaultRecord| {
        let Some(bracket) = line.bracket() else { return false };
        let is_on = clip(bracket, failure.span).is_some();
        match line.kind.harm() {
            // A node that refuses in time is running and reachable, and the hold no longer owns the key there.
            Harm::DropsPackets | Harm::DelaysPackets => {
                let step = run.plan.schedule.iter().find(|step| step.id == id);
                let hits = |from, to| step.is_some_and(|step| step.fault.hits(&line.node, from, to));
                let is_silent = line.silence().is_some_and(|silence| clip(silence, failure.span).is_some());
                // The members of a store execute a renewal together, over the links between them.
                let members = run.plan.lock_nodes.iter().filter(|_| run.plan.has_one_store());
                let mut peers = members.chain([worker]).filter(|peer| *peer != name);
                is_silent && !is_ready && peers.any(|peer| hits(peer, name) || hits(name, peer))
            }
            _ if line.node != *name => false,
            _ if has_refused && key_lease.is_taken_by(run, line) => true,
            _ if is_ready => false,
            Harm::Freezes | Harm::Starves => is_on,
            // A client notices a broken connection only when it uses the connection.
            Harm::Kills(_) => hold.sent.at < bracket.1 && bracket.0 < failure.span.1,
            // In runs, a leader of etcd 3.4 whose monotonic clock had jumped left renewals unanswered until the lease
            // had expired.
            Harm::SetsClock => (is_on && run.plan.has_one_store()) || key_lease.is_taken_by(run, line),
        }
    };
    let faults = run.faults.iter().filter(|(id, line)| line.proved.is_some() && is_to_blame(*id, line));
    faults.map(|(id, line)| Suspect::Fault(id, line.kind)).collect()
}

/// Returns the client's last check of its deadline before it sent `op`.
fn last_check(hold: &Attempt, op: Option<OpId>) -> Option<Stamp> {
    let sent = hold.timeline.iter().position(|(_, step)| matches!(step, ClientStep::Request(o) if Some(*o) == op))?;
    hold.timeline[..sent].iter().rev().find(|(_, step)| *step == ClientStep::Check).map(|(mark, _)| mark.at)
}

/// The spans between consecutive events of the hold, from the attempt to the arrival of `op`.
fn steps(hold: &Attempt, arrival: Stamp, op: Option<OpId>) -> Vec<Step> {
    let is_own = |step: &ClientStep| matches!(step, ClientStep::Request(o) if Some(*o) == op);
    let last = hold.timeline.iter().position(|(_, step)| is_own(step)).unwrap_or(hold.timeline.len() - 1);
    let mut steps = Vec::with_capacity(last + 1);
    for (i, (mark, step)) in hold.timeline[..=last].iter().enumerate() {
        let to = if i < last { hold.timeline[i + 1].0.at } else { arrival };
        let due = match step {
            ClientStep::Work(planned) => mark.at.plus(*planned),
            // Until the controller releases the client, the whole wait is planned.
            ClientStep::AtPoint(_, released) => released.unwrap_or(to),
            ClientStep::Acquire | ClientStep::Request(_) | ClientStep::Check | ClientStep::Other => mark.at,
        };
        steps.push(Step { overdue: (due, to), is_request: matches!(step, ClientStep::Request(_)) });
    }
    steps
}

fn clip(span: Span, to: Span) -> Option<Span> {
    let (from, to) = (span.0.max(to.0), span.1.min(to.1));
    (from < to).then_some((from, to))
}

/// Returns the parts of a span that lie outside another span.
fn outside(span: Span, hole: Span) -> impl Iterator<Item = Span> {
    [clip(span, (Stamp(0), hole.0)), clip(span, (hole.1, Stamp(u64::MAX)))].into_iter().flatten()
}

#[cfg(test)]
mod tests;
