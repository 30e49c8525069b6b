//! What explains a window.
//!
//! A stale act is replayed without the frozen time on its path. If it is late even so, the work outlasts the lease.
//! Otherwise the causes are put back: each that alone makes the act late is one; if none does, the smallest set that does.
//! A checking client's check need not be made again: with less frozen time it is made earlier than it was, and it passed.
//! Only where its own clock was wrong would it have come out otherwise.

use std::time::Duration;

use history::{ClockChange, Fault, FaultId, FaultKind, NodeName, OpId, Stamp, Why};

use crate::{
    expiry::{self, Kept},
    faults::Line,
    holds::{Attempt, Beat, Ender, Failure, Grant, Span},
    intervals::Intervals,
    lock::{Act, millis},
    property::DeadClaim,
    rules,
    run::Run,
};

/// Nothing explains it.
pub(crate) const UNEXPLAINED: &str = "unexplained";
/// The kernel's clocks stepped, and nobody injected that.
pub(crate) const HOST_CLOCK: &str = "host-clock";
/// The work outlasts the lease.
const OVERRUN: &str = "overrun";

/// Causes that are tried in all combinations; of more than these, only all together.
const CAUSES_MAX: usize = 10;

/// Something that may have made an act late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    Fault(FaultId, FaultKind),
    Stalls,
}

impl Blame {
    fn name(self) -> &'static str {
        match self {
            Blame::Fault(_, kind) => kind.name(),
            Blame::Stalls => "stall",
        }
    }
}

/// A set of causes, as bits.
type Blames = u32;

/// A stretch in which a process did not run, or packets did not arrive.
#[derive(Debug, Clone, Copy)]
struct Frozen {
    span: Span,
    blame: Blames,
}

/// One step of the path of an act.
struct Step {
    /// From the end of its planned wait, or its begin if nothing was planned, to the next step.
    overdue: Span,
    /// A request to the resource: it waits for that process too.
    is_request: bool,
}

/// A renewal that did not come about.
struct Broken<B> {
    /// Until when none came about.
    span: Span,
    /// Of each node that did not do it, what kept it from that: each by itself. Of some nobody knows.
    missing: Vec<B>,
    /// It fails for want of so many nodes.
    enough: usize,
    /// By it the client noticed that the hold is lost.
    is_loss: bool,
}

impl<B> Broken<B> {
    fn with<C>(&self, missing: Vec<C>) -> Broken<C> {
        Broken { span: self.span, missing, enough: self.enough, is_loss: self.is_loss }
    }
}

impl Broken<Blames> {
    /// Whether it fails with no other causes than those of `set`, and because of one of them. Nodes of which nobody knows fail in any case.
    fn is_by(&self, set: Blames) -> bool {
        let fails = |missing: &&Blames| **missing == 0 || **missing & set != 0;
        self.missing.iter().any(|missing| missing & set != 0)
            && self.missing.iter().filter(fails).count() >= self.enough
    }
}

/// Everything that a counterfactual asks of one act.
struct Path<'a> {
    hold: &'a Attempt,
    arrival: Stamp,
    renews_for: Duration,
    promised_from: Stamp,
    first_promise: Stamp,
    ok: Stamp,
    renew: Option<Duration>,
    /// Frozen time by which steps outlasted their planned waits: what delayed the act.
    delays: Vec<Frozen>,
    /// Frozen time of the client's own process: what kept renewals from leaving, planned waits or not.
    own: Vec<Frozen>,
    /// Renewals that did not come about as scheduled.
    broken: Vec<Broken<Blames>>,
    /// When the client last looked at its deadline before the act, and the faults of the clock that it looked at.
    check: Option<(Stamp, Blames)>,
    blames: Vec<Blame>,
}

/// The causes of a stale-holder window: those of its acts.
pub(crate) fn of_acts(run: &Run, hold: &Attempt, acts: &[Act]) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    for act in acts {
        for cause in of_act(run, hold, act.mark.at, act.op) {
            if !causes.contains(&cause) {
                causes.push(cause);
            }
        }
    }
    causes
}

fn of_act(run: &Run, hold: &Attempt, arrival: Stamp, op: Option<OpId>) -> Vec<String> {
    let Some(path) = Path::new(run, hold, arrival, op) else { return vec![UNEXPLAINED.into()] };
    if path.is_late(0) {
        return vec![OVERRUN.into()];
    }
    let mut alone: Vec<&str> = Vec::new();
    for (i, blame) in path.blames.iter().enumerate() {
        if path.is_late(1 << i) && !alone.contains(&blame.name()) {
            alone.push(blame.name());
        }
    }
    if !alone.is_empty() {
        return alone.into_iter().map(String::from).collect();
    }
    match path.smallest_set() {
        Some(set) => {
            let members = path.blames.iter().enumerate().filter(|(i, _)| set & (1 << i) != 0);
            vec![members.map(|(_, blame)| blame.name()).collect::<Vec<_>>().join("+")]
        }
        None if run.stalls.stepped_within((hold.sent.at, arrival)) => vec![HOST_CLOCK.into()],
        None => vec![UNEXPLAINED.into()],
    }
}

impl<'a> Path<'a> {
    fn new(run: &Run, hold: &'a Attempt, arrival: Stamp, op: Option<OpId>) -> Option<Self> {
        let grant = hold.grant?;
        let worker = &run.process(hold.process).node;
        let own = frozen(run, worker, &hold.stalls);
        let resource = NodeName::from("resource");
        let of_resource = frozen(run, &resource, &hold.resource_stalls);
        let down: Vec<(Span, Blame)> = down(run, &resource).collect();
        let kill = hold.ended_by().and_then(|(_, ender)| match ender {
            Ender::Kill(fault) => Some(Blame::Fault(fault, FaultKind::Kill)),
            _ => None,
        });
        // Nothing that came before the promise began to count made the act late.
        let path = (grant.promised_from, arrival);
        let requests = held(run, worker, true);
        let answers = held(run, worker, false);
        let on_path = own.iter().chain(&of_resource).chain(&requests).chain(&answers).chain(&down);
        let on_path = on_path.filter(|(span, _)| clip(*span, path).is_some());
        let broken = broken(run, hold, worker, arrival);
        let clocks: Vec<Blame> = clocks_of(run, worker, path).map(|(_, blame)| blame).collect();
        let mut blames: Vec<Blame> = on_path.map(|(_, blame)| *blame).chain(kill).collect();
        blames.extend(broken.iter().flat_map(|b| b.missing.iter().flatten()).chain(&clocks).copied());
        blames.sort_unstable();
        blames.dedup();
        blames.truncate(Blames::BITS as usize - 1);
        let pick = |all: &[(Span, Blame)], within: Span| -> Vec<Frozen> {
            let found = all.iter().filter_map(|(span, blame)| {
                let i = blames.binary_search(blame).ok()?;
                Some(Frozen { span: clip(*span, within)?, blame: 1 << i })
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
                // A request that met nobody is lost: what is waited for it afterwards is due to that too.
                let lost = pick(&down, overdue);
                delays.extend(lost.into_iter().map(|f| Frozen { span: (f.span.0, overdue.1), ..f }));
                if overdue.1 < arrival {
                    delays.extend(pick(&answers, overdue));
                }
            }
        }
        let bits = |blame: &Blame| blames.binary_search(blame).map_or(0, |i| 1 << i);
        let all = |blames: &Vec<Blame>| blames.iter().map(bits).fold(0, |all, bit| all | bit);
        let broken = broken.iter().map(|b| b.with(b.missing.iter().map(all).collect())).collect();
        let wrong: Blames = clocks.iter().map(bits).fold(0, |all, bit| all | bit);
        let check = last_check(hold, op).filter(|_| wrong != 0).map(|at| (at, wrong));
        Some(Path {
            hold,
            arrival,
            renews_for: run.plan.workload.renew_for.unwrap_or(grant.lease),
            promised_from: grant.promised_from,
            first_promise: grant.first_promise,
            ok: grant.ok.at,
            renew: run.plan.workload.renew,
            own: pick(&own, path),
            delays,
            broken,
            check,
            blames,
        })
    }

    /// By how much causes of `set` had delayed the hold's timeline at an instant.
    fn delay(&self, set: Blames, until: Stamp) -> Duration {
        let delays = self.delays.iter().filter(|f| f.blame & set != 0);
        delays.filter_map(|f| clip(f.span, (Stamp(0), until))).collect::<Intervals>().length()
    }

    /// When what happened at `at` would have happened with no other causes than those of `set`.
    fn without_others(&self, set: Blames, at: Stamp) -> Stamp {
        if at == Stamp(u64::MAX) {
            return at;
        }
        at.minus(self.delay(Blames::MAX, at).saturating_sub(self.delay(set, at)))
    }

    /// Whether the act arrives after its entitlement's end with no other causes than those of `set`.
    fn is_late(&self, set: Blames) -> bool {
        let arrival = self.without_others(set, self.arrival);
        let end = self.end(set, arrival);
        // By a clock that was right, a check after the end would not have passed, and the act would not have been tried.
        let is_held_back = self
            .check
            .is_some_and(|(at, wrong)| set & wrong == 0 && rules::is_overclaim(self.without_others(set, at), end));
        rules::is_after_end(arrival, end) && !is_held_back
    }

    /// End of the entitlement with no other causes than those of `set`. Losing it is a consequence and not an end of use:
    /// without what made the client lose the hold, it would not have noticed anything; with it, it notices the same.
    fn end(&self, set: Blames, arrival: Stamp) -> Stamp {
        let promise = match self.renew {
            None if self.hold.renewed.is_some() => self.hold.promise,
            None => self.first_promise,
            Some(interval) => self.renewed_promise(set, arrival, interval),
        };
        let used = self.hold.used_until.map(|mark| mark.at);
        let killed = self.hold.ended_by().and_then(|(mark, ender)| {
            let Ender::Kill(fault) = ender else { return None };
            let i = self.blames.binary_search(&Blame::Fault(fault, FaultKind::Kill)).ok()?;
            (set & (1 << i) != 0).then_some(mark.at)
        });
        used.into_iter().chain(killed).map(|at| self.without_others(set, at)).fold(promise, Stamp::min)
    }

    /// The promise end if renewals went on as scheduled, held up by the freezes of `set` only.
    fn renewed_promise(&self, set: Blames, arrival: Stamp, interval: Duration) -> Stamp {
        let mut freezes: Vec<Span> = (self.own.iter())
            .filter(|f| f.blame & set != 0)
            .map(|f| {
                let from = self.without_others(set, f.span.0);
                (from, from.plus(f.span.1.since(f.span.0)))
            })
            .collect();
        freezes.sort_unstable();
        let interval = interval.max(Duration::from_millis(1));
        let mut promise = self.first_promise;
        let mut due = self.promised_from.plus(interval).max(self.without_others(set, self.ok));
        // The one that was due up to an interval before a renewal that failed is that renewal.
        let shifted = |at: Stamp| self.without_others(set, at);
        let moved = |b: &Broken<Blames>| (shifted(b.span.0).minus(interval), shifted(b.span.1), b.is_loss);
        let broken: Vec<(Stamp, Stamp, bool)> = self.broken.iter().filter(|b| b.is_by(set)).map(moved).collect();
        let loss = self.hold.ended_by().filter(|(_, ender)| *ender == Ender::Loss).map(|(mark, _)| shifted(mark.at));
        loop {
            let mut sent = due;
            for freeze in &freezes {
                if freeze.0 <= sent && sent < freeze.1 {
                    sent = freeze.1;
                }
            }
            if sent >= arrival || !rules::is_renewed_in_time(sent, promise) {
                return promise;
            }
            match broken.iter().find(|f| f.0 < sent && sent <= f.1) {
                // From there on it is as it was.
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
    fn smallest_set(&self) -> Option<Blames> {
        let n = self.blames.len().min(Blames::BITS as usize - 1);
        let all: Blames = (1 << n) - 1;
        if n > CAUSES_MAX {
            return self.is_late(all).then_some(all);
        }
        let mut sets: Vec<Blames> = (1..=all).collect();
        sets.sort_by_key(|set| (set.count_ones(), *set));
        sets.into_iter().find(|set| self.is_late(*set))
    }
}

/// When processes of a node did not run, split into what lies inside its proved faults that held it up, and the rest.
///
/// A node that was slowed ran in between: only ticks that it has recorded as late are taken for time in which it did not, as for stalls that
/// nobody planned. So what is called its doing is never more than what its record shows.
fn frozen(run: &Run, node: &NodeName, stalls: &[Span]) -> Vec<(Span, Blame)> {
    let pauses: Vec<(Blame, Span)> = (run.faults.iter())
        .filter(|(_, l)| l.kind.holds_up() && l.node == *node && l.proved.is_some())
        .filter_map(|(id, l)| Some((Blame::Fault(id, l.kind), l.bracket()?)))
        .collect();
    let mut found = Vec::new();
    for &stall in stalls {
        let mut rest = vec![stall];
        for &(blame, pause) in &pauses {
            if let Some(span) = clip(stall, pause) {
                found.push((span, blame));
                rest = rest.into_iter().flat_map(|part| outside(part, pause)).collect();
            }
        }
        found.extend(rest.into_iter().map(|span| (span, Blame::Stalls)));
    }
    found
}

/// When a node was down: a request that came meanwhile waited until it was sent again to the process that took its place.
fn down(run: &Run, node: &NodeName) -> impl Iterator<Item = (Span, Blame)> {
    let kills = run.faults.iter().filter(move |(_, l)| l.kind.kills() && l.proved.is_some() && l.node == *node);
    kills.filter_map(|(id, l)| Some((l.bracket()?, Blame::Fault(id, l.kind))))
}

/// When packets between a worker and the resource were held back, one way.
fn held(run: &Run, worker: &NodeName, is_request: bool) -> Vec<(Span, Blame)> {
    let held = run.faults.held_of(worker).filter(|(held, _)| held.is_request == is_request);
    held.map(|(held, kind)| (held.span, Blame::Fault(held.fault, kind))).collect()
}

/// Proved faults of the clock by which clients of a worker go, if they had begun before a stretch was over.
fn clocks_of<'a>(run: &'a Run, worker: &'a NodeName, within: Span) -> impl Iterator<Item = (Span, Blame)> + 'a {
    let clocks =
        run.faults.iter().filter(move |(_, l)| l.kind == FaultKind::Clock && l.proved.is_some() && l.node == *worker);
    clocks.filter_map(move |(id, l)| {
        let step = run.plan.schedule.iter().find(|step| step.id == id)?;
        let is_own = matches!(step.fault, Fault::Clock { clock, .. } if clock.is_monotonic());
        let (from, to) = l.bracket()?;
        // What it has gained or lost stays.
        (is_own && from < within.1 && within.0 < to).then_some(((from, Stamp(u64::MAX)), Blame::Fault(id, l.kind)))
    })
}

/// When renewals failed, or did not leave, because of a fault: of a lock node that did not do one that was sent inside
/// the promise, of the links to it, or of the worker's own clock.
fn broken(run: &Run, hold: &Attempt, worker: &NodeName, arrival: Stamp) -> Vec<Broken<Vec<Blame>>> {
    let Some(grant) = hold.grant.filter(|_| run.plan.workload.renew.is_some()) else { return Vec::new() };
    let unanswered = hold.renewing.filter(|sent| rules::is_renewed_in_time(sent.at, hold.promise));
    let unanswered = unanswered.map(|sent| Failure { span: (sent.at, arrival), done_on: 0, refused_on: 0, loss: None });
    let failures = || hold.failures.iter().copied().chain(unanswered).filter(|failure| failure.span.0 < arrival);
    // A client that noticed the loss though no node had refused goes by its own clock.
    let is_loss = !failures().any(|failure| failure.loss == Some(Why::Lost));
    let clocks = clocks_of(run, worker, (hold.sent.at, arrival));
    let clocks = clocks.map(|(span, blame)| Broken { span, missing: vec![vec![blame]], enough: 1, is_loss });
    let mut found: Vec<Broken<Vec<Blame>>> = clocks.collect();
    for failure in failures() {
        let nodes = 0..run.plan.lock_nodes.len();
        let missing = nodes.filter(|i| *i >= 64 || failure.done_on & (1 << i) == 0);
        let by_node = missing.map(|node| kept_from(run, hold, &grant, worker, &failure, node));
        let nodes = run.plan.lock_nodes.len();
        // The members of a store do it together, and what keeps one from it may keep all.
        let (missing, enough) = match expiry::is_one_store(run) {
            true => (vec![by_node.flatten().collect::<Vec<Blame>>()], 1),
            false => (by_node.collect(), nodes - nodes / 2),
        };
        let until = if failure.loss.is_some() { Stamp(u64::MAX) } else { failure.span.1 };
        let (span, is_loss) = ((failure.span.0, until), failure.loss.is_some());
        found.push(Broken { span, missing, enough, is_loss });
    }
    found
}

/// What may have kept a node from doing a renewal.
fn kept_from(
    run: &Run,
    hold: &Attempt,
    grant: &Grant,
    worker: &NodeName,
    failure: &Failure,
    node: usize,
) -> Vec<Blame> {
    let name = &run.plan.lock_nodes[node];
    let has_refused = node < 64 && failure.refused_on & (1 << node) != 0;
    let kept = Kept::of(hold, grant, node, failure.span.1);
    let is_to_blame = |id: FaultId, line: &Line| {
        let Some(bracket) = line.bracket() else { return false };
        let is_on = clip(bracket, failure.span).is_some();
        match line.kind {
            // A node that refuses runs and is reached, and does not own the key any more.
            FaultKind::Partition | FaultKind::Delay | FaultKind::Loss | FaultKind::Reorder => {
                let step = run.plan.schedule.iter().find(|step| step.id == id);
                let hits = |from, to| step.is_some_and(|step| step.fault.hits(&line.node, from, to));
                let is_silent = line.silence().is_some_and(|silence| clip(silence, failure.span).is_some());
                is_silent && !has_refused && (hits(worker, name) || hits(name, worker))
            }
            _ if line.node != *name => false,
            _ if has_refused => kept.is_taken_by(run, line),
            FaultKind::Pause | FaultKind::Stop | FaultKind::Slow => is_on,
            // A connection that broke is found to be broken when it is used.
            FaultKind::Kill | FaultKind::Amnesia | FaultKind::Powerloss => {
                hold.sent.at < bracket.1 && bracket.0 < failure.span.1
            }
            // A leader of etcd 3.4 whose monotonic clock has jumped was seen to leave renewals without an answer until the lease had run out.
            FaultKind::Clock => (is_on && expiry::is_one_store(run)) || kept.is_taken_by(run, line),
        }
    };
    let faults = run.faults.iter().filter(|(id, line)| line.proved.is_some() && is_to_blame(*id, line));
    faults.map(|(id, line)| Blame::Fault(id, line.kind)).collect()
}

/// Whether a hold was claimed after its promise end because its client's clock ran slow: what it lost between the stamp that the
/// promise rests on and the claim is more than the claim was late.
pub(crate) fn is_claimed_by_slow_clock(run: &Run, claim: &DeadClaim, span: Span) -> bool {
    let worker = claim.worker.node();
    let lost = run.faults.iter().filter(|(_, l)| l.proved.is_some() && l.node == worker).filter_map(|(id, l)| {
        let step = run.plan.schedule.iter().find(|step| step.id == id)?;
        let Fault::Clock { clock, change: ClockChange::DriftPpm(ppm), .. } = step.fault else { return None };
        let slow = u32::try_from(-ppm).ok().filter(|_| clock.is_monotonic())?;
        Some(rules::overlap(l.bracket()?, span)?.mul_f64(f64::from(slow) / 1e6))
    });
    millis(lost.sum()) > claim.late_ms
}

/// When the client last looked at its deadline before it sent `op`.
fn last_check(hold: &Attempt, op: Option<OpId>) -> Option<Stamp> {
    let sent = hold.beats.iter().position(|(_, beat)| matches!(beat, Beat::Request(o) if Some(*o) == op))?;
    hold.beats[..sent].iter().rev().find(|(_, beat)| *beat == Beat::Check).map(|(mark, _)| mark.at)
}

/// The spans between consecutive events of the hold, from the attempt to the arrival of `op`.
fn steps(hold: &Attempt, arrival: Stamp, op: Option<OpId>) -> Vec<Step> {
    let is_own = |beat: &Beat| matches!(beat, Beat::Request(o) if Some(*o) == op);
    let last = hold.beats.iter().position(|(_, beat)| is_own(beat)).unwrap_or(hold.beats.len() - 1);
    let mut steps = Vec::with_capacity(last + 1);
    for (i, (mark, beat)) in hold.beats[..=last].iter().enumerate() {
        let to = if i < last { hold.beats[i + 1].0.at } else { arrival };
        let due = match beat {
            Beat::Work(planned) => mark.at.plus(*planned),
            // As long as nobody says that it goes on, all of the wait is planned.
            Beat::AtPoint(_, released) => released.unwrap_or(to),
            Beat::Acquire | Beat::Request(_) | Beat::Check | Beat::Other => mark.at,
        };
        steps.push(Step { overdue: (due, to), is_request: matches!(beat, Beat::Request(_)) });
    }
    steps
}

fn clip(span: Span, to: Span) -> Option<Span> {
    let (from, to) = (span.0.max(to.0), span.1.min(to.1));
    (from < to).then_some((from, to))
}

/// What of a span lies outside another one.
fn outside(span: Span, hole: Span) -> impl Iterator<Item = Span> {
    [clip(span, (Stamp(0), hole.0)), clip(span, (hole.1, Stamp(u64::MAX)))].into_iter().flatten()
}

#[cfg(test)]
mod tests;
