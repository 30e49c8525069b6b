//! What explains a window.
//!
//! A stale act is replayed without the frozen time on its path. If it is late even so, the work outlasts the lease.
//! Otherwise the causes are put back: each that alone makes the act late is one; if none does, the smallest set that does.
//! A checking client's check need not be made again: with less frozen time it is made earlier than it was, and it passed.
//! Only where its own clock was wrong would it have come out otherwise.

use std::time::Duration;

use history::{ClockChange, Fault, FaultId, FaultKind, NodeName, OpId, Stamp};

use crate::{
    holds::{Attempt, Beat, Ender, Failure, Span},
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

/// Everything that a counterfactual asks of one act.
struct Path<'a> {
    hold: &'a Attempt,
    arrival: Stamp,
    lease: Duration,
    promised_from: Stamp,
    first_promise: Stamp,
    ok: Stamp,
    renew: Option<Duration>,
    /// Frozen time by which steps outlasted their planned waits: what delayed the act.
    delays: Vec<Frozen>,
    /// Frozen time of the client's own process: what kept renewals from leaving, planned waits or not.
    own: Vec<Frozen>,
    /// When renewals did not come about as scheduled, and what did that.
    broken: Vec<Frozen>,
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
        blames.extend(broken.iter().map(|(_, blame)| *blame).chain(clocks.iter().copied()));
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
        let broken = broken.iter().map(|(span, blame)| Frozen { span: *span, blame: bits(blame) }).collect();
        let wrong: Blames = clocks.iter().map(bits).fold(0, |all, bit| all | bit);
        let check = last_check(hold, op).filter(|_| wrong != 0).map(|at| (at, wrong));
        Some(Path {
            hold,
            arrival,
            lease: grant.lease,
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
    /// without what made the client lose the hold, it would not have noticed anything.
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
        let broken = self.broken.iter().filter(|f| f.blame & set != 0);
        // The one that was due up to an interval before a renewal that failed is that renewal.
        let broken: Vec<Span> = broken
            .map(|f| (self.without_others(set, f.span.0).minus(interval), self.without_others(set, f.span.1)))
            .collect();
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
                Some((_, Stamp(u64::MAX))) => return promise.max(self.hold.promise),
                Some(_) => {}
                None => promise = promise.max(rules::promise_end(sent, self.lease)),
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

/// When processes of a node did not run, split into what lies inside its proved pauses, and the rest.
fn frozen(run: &Run, node: &NodeName, stalls: &[Span]) -> Vec<(Span, Blame)> {
    let pauses: Vec<(FaultId, Span)> = (run.faults.iter())
        .filter(|(_, l)| l.kind == FaultKind::Pause && l.node == *node && l.proved.is_some())
        .filter_map(|(id, l)| Some((id, l.bracket()?)))
        .collect();
    let mut found = Vec::new();
    for &stall in stalls {
        let mut rest = vec![stall];
        for &(id, pause) in &pauses {
            if let Some(span) = clip(stall, pause) {
                found.push((span, Blame::Fault(id, FaultKind::Pause)));
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
fn broken(run: &Run, hold: &Attempt, worker: &NodeName, arrival: Stamp) -> Vec<(Span, Blame)> {
    if run.plan.workload.renew.is_none() {
        return Vec::new();
    }
    let unanswered = hold.renewing.filter(|sent| rules::is_renewed_in_time(sent.at, hold.promise));
    let unanswered = unanswered.map(|sent| Failure { span: (sent.at, arrival), done_on: 0, is_last: false });
    let failures = hold.failures.iter().copied().chain(unanswered).filter(|failure| failure.span.0 < arrival);
    let mut found: Vec<(Span, Blame)> = clocks_of(run, worker, (hold.sent.at, arrival)).collect();
    for failure in failures {
        for (id, line) in run.faults.iter().filter(|(_, line)| line.proved.is_some()) {
            let nodes = run.plan.lock_nodes.iter().enumerate();
            let mut missing = nodes.filter(|(i, _)| *i >= 64 || failure.done_on & (1 << i) == 0).map(|(_, node)| node);
            let Some(bracket) = line.bracket() else { continue };
            let is_on = clip(bracket, failure.span).is_some();
            let has_come = hold.sent.at < bracket.1 && bracket.0 < failure.span.1;
            let touched = match line.kind {
                FaultKind::Pause => is_on && missing.any(|node| *node == line.node),
                // What they change stays changed when they are over.
                FaultKind::Kill | FaultKind::Amnesia | FaultKind::Powerloss | FaultKind::Clock => {
                    has_come && missing.any(|node| *node == line.node)
                }
                FaultKind::Partition | FaultKind::Delay => {
                    let step = run.plan.schedule.iter().find(|step| step.id == id);
                    let hits = |from, to| step.is_some_and(|step| step.fault.hits(&line.node, from, to));
                    is_on && missing.any(|node| hits(worker, node) || hits(node, worker))
                }
            };
            if touched {
                let until = if failure.is_last { Stamp(u64::MAX) } else { failure.span.1 };
                found.push(((failure.span.0, until), Blame::Fault(id, line.kind)));
            }
        }
    }
    found
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
mod tests {
    use history::{
        ClockChange, Direction, Event, Fault, FaultKind, FaultPhase, HoldId, NodeAnswer, OpId, Outcome, StallCause,
        WhichClock, Why,
    };

    use crate::scene::{Scene, ms};

    fn delay(by: u64) -> Fault {
        let (lasting, by) = (std::time::Duration::from_secs(1), std::time::Duration::from_millis(by));
        Fault::Delay { lasting, by, direction: Direction::Both, from: Vec::new() }
    }

    fn partition() -> Fault {
        Fault::Partition { lasting: std::time::Duration::from_secs(1), direction: Direction::Both, from: Vec::new() }
    }

    fn read_ok(hold: u64, number: u64) -> Event {
        Event::ReadOk { hold: HoldId(hold), op: OpId(1), number }
    }

    /// A hold of worker 1 whose promise ends at 1,978, acquired at 10, and a later one of worker 2.
    fn scene() -> Scene {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
        scene
    }

    #[test]
    fn a_pause_that_alone_makes_the_act_late_is_the_cause() {
        let mut s = scene();
        s.work(1, 20, 100).pause(1, "worker-1", 100, 2_500).write(1, 1, 2_501, 2_502);
        assert_eq!(s.window().causes, ["pause"]);
    }

    #[test]
    fn frozen_time_that_no_pause_brackets_is_a_stall() {
        let mut s = scene();
        s.work(1, 20, 100).stall("worker-1", 100, 2_500).write(1, 1, 2_501, 2_502);
        assert_eq!(s.window().causes, ["stall"]);
    }

    #[test]
    fn a_stall_that_is_reported_after_the_hold_has_closed_still_explains_it() {
        let mut s = scene();
        let event = Event::Stall { from: ms(100), to: ms(2_500), late: StallCause::Write };
        s.work(1, 20, 100).write(1, 1, 2_501, 2_502).release_refused(1, 2_503).event("worker-1", 2_600, event);
        assert_eq!(s.window().causes, ["stall"]);
    }

    #[test]
    fn a_pause_that_was_not_proved_explains_nothing() {
        let mut s = scene();
        s.fault(1, FaultKind::Pause, "worker-1", 95, FaultPhase::Requested { asked_ns: 1, hold: None });
        s.fault(1, FaultKind::Pause, "worker-1", 2_500, FaultPhase::Healed);
        s.fault(1, FaultKind::Pause, "worker-1", 2_510, FaultPhase::Unproved { why: "it ticked".into() });
        s.stall("worker-1", 100, 2_500).write(1, 1, 2_501, 2_502);
        assert_eq!(s.window().causes, ["stall"]);
    }

    #[test]
    fn work_that_outlasts_the_lease_by_itself_is_an_overrun() {
        let mut s = scene();
        s.work(1, 20, 2_400).write(1, 1, 2_421, 2_422);
        assert_eq!(s.window().causes, ["overrun"]);
        // A pause that only adds to it changes nothing.
        let mut s = scene();
        s.work(1, 20, 2_400).pause(1, "worker-1", 2_400, 3_000).write(1, 1, 3_001, 3_002);
        assert_eq!(s.window().causes, ["overrun"]);
    }

    #[test]
    fn a_pause_inside_a_planned_wait_does_not_make_the_act_late() {
        let mut s = scene();
        s.work(1, 20, 2_400).pause(1, "worker-1", 100, 2_300).write(1, 1, 2_421, 2_422);
        assert_eq!(s.window().causes, ["overrun"]);
    }

    #[test]
    fn where_only_two_together_suffice_they_are_joined() {
        let mut s = scene();
        s.pause(1, "worker-1", 100, 1_300).stall("worker-1", 1_400, 2_600).write(1, 1, 2_601, 2_602);
        assert_eq!(s.window().causes, ["pause+stall"]);
    }

    #[test]
    fn each_that_suffices_alone_is_listed() {
        let mut s = scene();
        s.pause(1, "worker-1", 100, 2_200).stall("worker-1", 2_300, 4_600).write(1, 1, 4_601, 4_602);
        assert_eq!(s.window().causes, ["pause", "stall"]);
        let mut s = scene();
        s.pause(1, "worker-1", 100, 2_200).pause(2, "worker-1", 2_300, 4_600).write(1, 1, 4_601, 4_602);
        assert_eq!(s.window().causes, ["pause"]);
    }

    #[test]
    fn a_pause_of_the_resource_delays_a_request_that_is_under_way() {
        let mut s = scene();
        s.write(1, 1, 100, 2_502).pause(1, "resource", 90, 2_500);
        assert_eq!(s.window().causes, ["pause"]);
        // Not one that is over when the request leaves.
        let mut s = scene();
        s.pause(1, "resource", 20, 2_400).write(1, 1, 2_450, 2_502);
        assert_eq!(s.window().causes, ["overrun"]);
    }

    #[test]
    fn waiting_at_a_point_is_planned_until_it_is_released() {
        let mut s = scene();
        s.at_point(1, 100, 2_500).pause(1, "worker-1", 120, 2_495).point_released(0, 130).write(1, 1, 2_501, 2_502);
        assert_eq!(s.window().causes, ["pause"]);
        let mut s = scene();
        s.at_point(1, 100, 2_500).pause(1, "worker-1", 120, 2_400).point_released(0, 2_490).write(1, 1, 2_501, 2_502);
        assert_eq!(s.window().causes, ["overrun"]);
        let mut s = scene();
        s.at_point(1, 100, 2_500).pause(1, "worker-1", 120, 2_400).write(1, 1, 2_501, 2_502);
        assert_eq!(s.window().causes, ["overrun"], "nobody released it: all of the wait was planned");
    }

    #[test]
    fn a_pause_of_another_worker_is_no_cause() {
        let mut s = scene();
        s.pause(1, "worker-2", 2_100, 4_000).work(1, 20, 2_400).write(1, 1, 2_421, 2_422);
        assert_eq!(s.window().causes, ["overrun"]);
        let mut s = Scene::new();
        s.plan.workload.workers = 3;
        s.acquire(1, 1, 0, 10, 41).pause(1, "worker-3", 20, 4_000).acquire(2, 2, 100, 110, 42).release(2, 200);
        s.release(1, 300);
        assert_eq!(s.window().causes, ["unexplained"]);
    }

    #[test]
    fn a_pause_that_keeps_renewals_from_leaving_is_the_cause_even_inside_a_planned_wait() {
        let mut s = Scene::renewing(600);
        s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).work(1, 20, 5_000).pause(1, "worker-1", 1_000, 4_500);
        s.renew_refused(1, 4_501, 4_505).acquire(2, 2, 3_000, 3_010, 42).release(2, 3_020).write(1, 1, 5_021, 5_022);
        assert_eq!(s.window().causes, ["pause"]);
    }

    #[test]
    fn a_pause_between_two_renewals_is_no_cause() {
        // The renewals stopped by themselves.
        let mut s = Scene::renewing(600);
        s.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 100, 500).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
        s.write(1, 1, 2_501, 2_502);
        let lock = s.lock();
        assert_eq!((lock.windows[0].causes.as_slice(), lock.unexplained), (&["unexplained".to_string()][..], 1));
    }

    #[test]
    fn two_pauses_that_keep_renewals_back_together_are_joined() {
        let mut s = Scene::renewing(600);
        // Between them the renewal that was due did not come out.
        s.acquire(1, 1, 0, 10, 41).pause(1, "worker-1", 500, 1_700).stall("worker-1", 1_700, 2_650);
        s.acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020).write(1, 1, 2_701, 2_702);
        assert_eq!(s.window().causes, ["pause+stall"]);
    }

    #[test]
    fn a_renewal_refused_inside_the_promise_by_nobodys_fault_explains_nothing() {
        let mut s = Scene::renewing(600);
        s.acquire(1, 1, 0, 10, 41).renew_refused(1, 610, 615).acquire(2, 2, 2_000, 2_010, 42).release(2, 2_020);
        s.write(1, 1, 2_501, 2_502);
        assert_eq!(s.window().causes, ["unexplained"]);
    }

    #[test]
    fn frozen_time_before_a_planned_wait_is_over_delays_nothing() {
        let mut s = scene();
        // The first freeze ends before the work was due; only the second one delays the write.
        s.work(1, 20, 1_900).pause(1, "worker-1", 100, 1_800).stall("worker-1", 1_900, 2_400).write(1, 1, 2_401, 2_402);
        assert_eq!(s.window().causes, ["stall"]);
    }

    #[test]
    fn a_packet_that_was_held_back_delays_the_request_that_it_carried() {
        let mut s = scene();
        s.write(1, 1, 100, 2_502)
            .blow(1, delay(2_400), "worker-1", 90, 2_600)
            .held(1, "worker-1", "resource", 101, 2_501);
        assert_eq!(s.window().causes, ["delay"]);
        // The answers of others do not hold up a write on its way.
        let mut s = scene();
        s.write(1, 1, 100, 2_502)
            .blow(1, delay(2_400), "resource", 90, 2_600)
            .held(1, "resource", "worker-1", 101, 2_501);
        assert_eq!(s.window().causes, ["overrun"]);
        // But that of its own read held up what came after it.
        let mut s = scene();
        s.read(1, 1, 50, 51).event("worker-1", 2_501, read_ok(1, 1)).write(1, 2, 2_502, 2_503);
        s.blow(1, partition(), "resource", 45, 2_500).held(1, "resource", "worker-1", 51, 2_500);
        assert_eq!(s.window().causes, ["partition"]);
        // Nor those of another worker.
        let mut s = scene();
        s.write(1, 1, 100, 2_502)
            .blow(1, delay(2_400), "worker-2", 90, 2_600)
            .held(1, "worker-2", "resource", 101, 2_501);
        assert_eq!(s.window().causes, ["overrun"]);
    }

    #[test]
    fn a_restart_of_the_resource_delays_a_request_until_it_is_sent_again() {
        let mut s = scene();
        s.write(1, 1, 100, 2_702).event("worker-1", 2_700, Event::Resend { hold: HoldId(1), op: OpId(1) });
        s.kill(1, "resource", 50);
        assert_eq!(s.window().causes, ["kill"]);
    }

    /// A hold that renews each 600 ms, whose second renewal two of three nodes did not do: it takes the hold to be lost and writes
    /// at 3,002 all the same.
    fn refused_renewal() -> Scene {
        let mut s = Scene::renewing(600);
        let answers = Scene::answers(&[(1, NodeAnswer::Done), (2, NodeAnswer::None), (3, NodeAnswer::Refused)]);
        s.acquire(1, 1, 0, 10, 41).renew(1, 610, 615).work(1, 20, 2_900).event(
            "worker-1",
            1_220,
            Event::Renew { hold: HoldId(1) },
        );
        let failed = Event::RenewFailed { hold: HoldId(1), outcome: Outcome::Failed, why: Why::Lost, answers };
        s.event("worker-1", 1_420, failed).acquire(2, 2, 2_650, 2_660, 42).release(2, 2_670).write(1, 1, 3_001, 3_002);
        s
    }

    #[test]
    fn a_fault_of_a_node_that_did_not_do_a_renewal_is_the_cause() {
        assert_eq!(refused_renewal().window().causes, ["unexplained"]);
        let millis = std::time::Duration::from_millis;
        let pause = Fault::Pause { lasting: millis(300) };
        let amnesia = Fault::Amnesia { back_after: millis(100) };
        let clock = Fault::Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(5_000), lasting: millis(300) };
        for (fault, node, from, to, is_cause) in [
            (pause.clone(), "redis-2", 1_200, 1_500, true),
            (pause.clone(), "redis-1", 1_200, 1_500, false), // it did the renewal
            (pause, "redis-2", 700, 1_100, false),           // it was over
            (amnesia.clone(), "redis-3", 700, 800, true),
            (amnesia, "redis-1", 700, 800, false),
            (clock, "redis-3", 700, 1_000, true),
            (partition(), "redis-2", 1_200, 1_500, true),
            (partition(), "worker-1", 1_200, 1_500, true),
            (partition(), "worker-2", 1_200, 1_500, false),
            (partition(), "redis-1", 1_200, 1_500, false),
            (delay(300), "redis-2", 700, 1_100, false),
            (delay(300), "redis-2", 1_200, 1_500, true),
        ] {
            let mut s = refused_renewal();
            let kind = fault.kind();
            s.blow(1, fault, node, from, to);
            let expected = if is_cause { kind.name() } else { "unexplained" };
            assert_eq!(s.window().causes, [expected], "{kind} of {node} from {from}");
        }
    }

    #[test]
    fn what_broke_a_renewal_is_no_cause_if_the_next_one_would_have_come_in_time() {
        // Cut off for one renewal, and then frozen: the next one would have come at 1,800.
        let mut s = Scene::renewing(600);
        let failed = Event::RenewFailed {
            hold: HoldId(1),
            outcome: Outcome::Indeterminate,
            why: Why::NoMajority,
            answers: Vec::new(),
        };
        s.acquire(1, 1, 0, 10, 41).renew(1, 605, 610).event("worker-1", 1_210, Event::Renew { hold: HoldId(1) });
        s.event("worker-1", 1_410, failed)
            .blow(1, partition(), "redis-2", 1_100, 1_500)
            .pause(2, "worker-1", 1_500, 4_000);
        s.acquire(2, 2, 3_500, 3_510, 42).release(2, 3_520).write(1, 1, 4_021, 4_022);
        assert_eq!(s.window().causes, ["pause"]);
    }

    #[test]
    fn what_broke_one_renewal_is_no_cause_if_the_next_one_came_about() {
        let mut s = Scene::renewing(600);
        let failed = Event::RenewFailed {
            hold: HoldId(1),
            outcome: Outcome::Indeterminate,
            why: Why::NoMajority,
            answers: Vec::new(),
        };
        s.acquire(1, 1, 0, 10, 41)
            .event("worker-1", 610, Event::Renew { hold: HoldId(1) })
            .event("worker-1", 810, failed);
        s.blow(1, partition(), "redis-2", 600, 900)
            .renew(1, 1_200, 1_205)
            .work(1, 20, 4_000)
            .acquire(2, 2, 3_500, 3_510, 42);
        s.release(2, 3_520).write(1, 1, 4_021, 4_022);
        assert_eq!(s.window().causes, ["unexplained"]);
    }

    #[test]
    fn a_check_that_a_slow_clock_let_pass_is_due_to_the_clock() {
        let slow = |clock| Fault::Clock {
            clock,
            change: ClockChange::DriftPpm(-500_000),
            lasting: std::time::Duration::from_millis(3_000),
        };
        let checked = || {
            let mut s = scene();
            s.plan.workload.client = history::ClientKind::Checking;
            s.work(1, 20, 2_300).check(1, 2_330).write(1, 1, 2_331, 2_332);
            s
        };
        assert_eq!(checked().window().causes, ["overrun"]);
        assert_eq!(checked().blow(1, slow(WhichClock::Monotonic), "worker-1", 50, 3_000).window().causes, ["clock"]);
        assert_eq!(checked().blow(1, slow(WhichClock::Wall), "worker-1", 50, 3_000).window().causes, ["overrun"]);
        assert_eq!(checked().blow(1, slow(WhichClock::Monotonic), "worker-2", 50, 3_000).window().causes, ["overrun"]);
        // Where the check came in time, it was the pause after it.
        let mut s = scene();
        s.work(1, 20, 100).check(1, 130).pause(1, "worker-1", 140, 2_330).write(1, 1, 2_331, 2_332);
        s.blow(2, slow(WhichClock::Monotonic), "worker-1", 50, 3_000);
        assert_eq!(s.window().causes, ["pause"]);
    }

    #[test]
    fn a_lease_that_was_kept_alive_in_the_queue_promises_from_its_last_renewal() {
        let mut s = Scene::new();
        // It waited for 5 s, and was frozen meanwhile; then its work outlasts the lease by itself.
        s.acquire_promised(1, 1, 0, 4_900, 5_000, 41).stall("worker-1", 1_000, 4_000).work(1, 5_010, 1_950);
        s.acquire(2, 2, 6_900, 6_910, 42).release(2, 6_920).write(1, 1, 6_961, 6_962);
        let window = s.window();
        assert_eq!((window.causes, window.staleness_ms), (vec!["overrun".to_string()], Some(52.0)));
        // Promise end: 6,878.
        let mut s = Scene::new();
        s.acquire_promised(1, 1, 0, 4_900, 5_000, 41)
            .acquire(2, 2, 6_860, 6_877, 42)
            .release(2, 6_920)
            .give_up(1, 6_990);
        let window = s.window();
        assert_eq!((window.kind, window.overlap_ms), (crate::WindowKind::LeaseOverlap, 1.0));
    }
}
