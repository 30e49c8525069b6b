//! What explains a window.
//!
//! A stale act is replayed without the frozen time on its path. If it is late even so, the work outlasts the lease.
//! Otherwise the causes are put back: each that alone makes the act late is one; if none does, the smallest set that does.
//! A checking client's check need not be made again: with less frozen time it is made earlier than it was, and it passed.

use std::time::Duration;

use history::{FaultId, FaultKind, NodeName, OpId, Stamp};

use crate::{
    holds::{Attempt, Beat, Ender, Span},
    intervals::Intervals,
    judge::Ending,
    lock::{Act, Overlap},
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

/// A stretch in which a process did not run.
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
    first_promise: Stamp,
    ok: Stamp,
    renew: Option<Duration>,
    /// Frozen time by which steps outlasted their planned waits: what delayed the act.
    delays: Vec<Frozen>,
    /// Frozen time of the client's own process: what kept renewals from leaving, planned waits or not.
    own: Vec<Frozen>,
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
        let of_resource = frozen(run, &NodeName::from("resource"), &hold.resource_stalls);
        let kill = hold.ended_by().and_then(|(_, ender)| match ender {
            Ender::Kill(fault) => Some(Blame::Fault(fault, FaultKind::Kill)),
            _ => None,
        });
        let path = (hold.sent.at, arrival);
        let on_path = own.iter().chain(&of_resource).filter(|(span, _)| clip(*span, path).is_some());
        let mut blames: Vec<Blame> = on_path.map(|(_, blame)| *blame).chain(kill).collect();
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
            delays.extend(pick(&own, step.overdue));
            if step.is_request {
                delays.extend(pick(&of_resource, step.overdue));
            }
        }
        Some(Path {
            hold,
            arrival,
            lease: grant.lease,
            first_promise: grant.first_promise,
            ok: grant.ok.at,
            renew: run.plan.workload.renew,
            own: pick(&own, path),
            delays,
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
        at.minus(self.delay(Blames::MAX, at).saturating_sub(self.delay(set, at)))
    }

    /// Whether the act arrives after its entitlement's end with no other causes than those of `set`.
    fn is_late(&self, set: Blames) -> bool {
        let arrival = self.without_others(set, self.arrival);
        rules::is_after_end(arrival, self.end(set, arrival))
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
        let mut due = self.hold.sent.at.plus(interval).max(self.without_others(set, self.ok));
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
            promise = promise.max(rules::promise_end(sent, self.lease));
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
            Beat::Acquire | Beat::Request(_) | Beat::Other => mark.at,
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

/// The cause of a lease-overlap: on **every** node that granted both, the first thing that took the first hold's key away
/// between its attempt and the other's success.
pub(crate) fn of_overlap(run: &Run, overlap: &Overlap, ending: &Ending) -> String {
    let [first, second] = &overlap.holds;
    let between = |at: Stamp| first.sent.at < at && at < second.ok.at;
    let both = first.nodes & second.nodes;
    let nodes: Vec<usize> = (0..run.plan.lock_nodes.len().min(64)).filter(|i| both & (1 << i) != 0).collect();
    let mut names: Vec<&str> = Vec::new();
    for node in &nodes {
        let kills =
            run.faults.iter().filter(|(_, l)| l.kind == FaultKind::Kill && l.node == run.plan.lock_nodes[*node]);
        let kill = kills.filter_map(|(_, l)| l.requested).map(|mark| (mark.at, FaultKind::Kill.name()));
        let removed = ending.unsafe_releases.iter().filter(|u| u.owner == first.id && u.node == *node);
        let removed = removed.map(|u| (u.invoked.at, "unsafe-release"));
        match kill.chain(removed).filter(|(at, _)| between(*at)).min() {
            Some((_, name)) if !names.contains(&name) => names.push(name),
            Some(_) => {}
            None => {
                names.clear();
                break;
            }
        }
    }
    if !names.is_empty() {
        names.join("+")
    } else if run.stalls.stepped_within((first.sent.at, second.ok.at)) {
        HOST_CLOCK.into()
    } else {
        UNEXPLAINED.into()
    }
}

#[cfg(test)]
mod tests {
    use history::{Event, FaultKind, FaultPhase, StallCause};

    use crate::scene::{Scene, ms};

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
    fn a_kill_of_the_only_node_explains_an_overlap() {
        let requested = FaultPhase::Requested { asked_ns: 1, hold: None };
        let mut s = Scene::new();
        s.plan.lock_nodes.truncate(1);
        s.acquire(1, 1, 0, 10, 41).fault(1, FaultKind::Kill, "redis-1", 50, requested.clone());
        s.acquire(2, 2, 100, 110, 42).release(2, 200).release_refused(1, 300);
        assert_eq!(s.window().causes, ["kill"]);
        // Of three that granted both, one is not enough.
        s.plan = crate::scene::plan();
        assert_eq!(s.window().causes, ["unexplained"]);
    }
}
