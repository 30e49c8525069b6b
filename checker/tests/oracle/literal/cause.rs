//! Why a window came about, by the hold's own timeline.

use std::collections::BTreeSet;

use history::{Answers, FaultId, FaultKind, NodeAnswer, NodeName};

use super::{
    facts::{Entry, Facts, Hold, Step, after},
    lock, rest,
};

/// A possible cause of a late act. Faults sort by their number, before stalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Fault(FaultId, FaultKind),
    Stall,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::Fault(_, kind) => kind.name(),
            Cause::Stall => "stall",
        }
    }
}

/// A piece of frozen time on the path of an act.
struct Piece {
    from: u64,
    to: u64,
    cause: Cause,
}

/// Adds the pieces of `from..to` in which `process` was frozen, each with its cause.
fn pieces(f: &Facts, process: &str, from: u64, to: u64, all: &mut Vec<Piece>) {
    let node = process.split('#').next().unwrap_or_default();
    let pauses: Vec<_> =
        f.faults.values().filter(|b| b.kind == FaultKind::Pause && b.node == node && b.proved.is_some()).collect();
    let mut edges = vec![from, to];
    let mut stalls = f.stalls.get(process).cloned().unwrap_or_default();
    stalls.extend(pauses.iter().filter_map(|p| p.proved));
    edges.extend(stalls.iter().flat_map(|s| [s.0, s.1]));
    edges.extend(pauses.iter().flat_map(|b| [b.requested, b.healed.unwrap_or(u64::MAX)]));
    edges.retain(|e| (from..=to).contains(e));
    edges.sort_unstable();
    edges.dedup();
    for w in edges.windows(2) {
        let (from, to) = (w[0], w[1]);
        if !stalls.iter().any(|s| s.0 <= from && to <= s.1) {
            continue;
        }
        let inside: Vec<_> =
            pauses.iter().filter(|p| p.requested <= from && p.healed.is_none_or(|h| to <= h)).collect();
        if inside.is_empty() {
            all.push(Piece { from, to, cause: Cause::Stall });
        }
        all.extend(inside.iter().map(|p| Piece { from, to, cause: Cause::Fault(p.id, p.kind) }));
    }
}

/// A step on the path of an act: begun, its planned wait over, the next step begun, and whether it is a request.
struct Leg {
    from: u64,
    due: u64,
    to: u64,
    request: bool,
    queue: bool,
}

/// The path of an act, from the attempt to the arrival.
fn legs(f: &Facts, h: &Hold, act: &Entry) -> Vec<Leg> {
    let mut path: Vec<_> = h.path.clone();
    if let Some(sent) = path.iter().position(|(_, s)| *s == Step::Request(act.op)) {
        path.truncate(sent + 1);
    }
    let ends: Vec<_> = path.iter().skip(1).map(|s| s.0).chain([act.at]).collect();
    let leg = |((from, step), to): (&(u64, Step), u64)| {
        let due = match step {
            Step::Plain | Step::Request(_) => *from,
            Step::Work(planned) => from + planned,
            Step::Point(point) => {
                let told =
                    |r: &&(u32, history::Point, u64)| r.0 == h.client && r.1 == *point && (*from..=to).contains(&r.2);
                f.released.iter().find(told).map_or(to, |r| r.2)
            }
        };
        Leg {
            from: *from,
            due,
            to,
            request: matches!(step, Step::Request(_)),
            queue: (h.queued || !f.plan.servers.shows_waiting) && *from == h.sent,
        }
    };
    path.iter().zip(ends).map(leg).collect()
}

/// The frozen time on the path of an act: in each step, what lies after the end of its planned wait. The second part
/// delayed the act's own request on its way, and not the client.
fn frozen(f: &Facts, h: &Hold, legs: &[Leg]) -> (Vec<Piece>, Vec<Piece>) {
    let (mut all, mut in_flight) = (Vec::new(), Vec::new());
    for (i, leg) in legs.iter().enumerate().filter(|(_, leg)| leg.due < leg.to) {
        pieces(f, &h.process, leg.due, leg.to, &mut all);
        if leg.request {
            let waiting = if i + 1 == legs.len() { &mut in_flight } else { &mut all };
            pieces(f, "resource", leg.due, leg.to, waiting);
        }
    }
    (all, in_flight)
}

/// For how long before `until` one of these pieces froze the path.
fn length<'a>(pieces: impl Iterator<Item = &'a Piece>, until: u64) -> u64 {
    lock::measure(pieces.map(|p| (p.from, p.to.min(until))).collect())
}

/// One act with some of its causes put back.
struct Replay<'a> {
    f: &'a Facts,
    h: &'a Hold,
    act: &'a Entry,
    legs: Vec<Leg>,
    frozen: Vec<Piece>,
    in_flight: Vec<Piece>,
    /// The freezes of the client, inside and outside planned waits: they stopped its renewals.
    own: Vec<Piece>,
    kill: Option<(Cause, u64)>,
}

impl Replay<'_> {
    /// Returns when the event of the client at `at` would have happened if only the causes of `with` had acted.
    fn moved(&self, with: &[Cause], at: u64) -> u64 {
        at - (length(self.frozen.iter(), at) - length(self.frozen.iter().filter(|p| with.contains(&p.cause)), at))
    }

    /// Returns the same for the path of the act, which its own request ends.
    fn on_path(&self, with: &[Cause], at: u64) -> u64 {
        let all = || self.frozen.iter().chain(&self.in_flight);
        at - (length(all(), at) - length(all().filter(|p| with.contains(&p.cause)), at))
    }

    /// Returns the promise end if renewals are sent as scheduled and only the causes of `with` delay them, and the
    /// request that it counts from.
    fn promise(&self, with: &[Cause], arrival: u64) -> (u64, u64) {
        let h = self.h;
        let mut promise = (h.sent, after(h.sent, h.lease));
        let Some(every) = self.f.plan.workload.renew else { return promise };
        let every = u64::try_from(every.as_nanos()).unwrap();
        let freezes = self.own.iter().filter(|p| with.contains(&p.cause));
        let mut freezes: Vec<_> = freezes.map(|p| (self.moved(with, p.from), p.to - p.from)).collect();
        freezes.sort_unstable();
        let mut due = h.sent + every;
        let told = self.moved(with, h.acquired.unwrap_or(0));
        // A client that gives up renews no more, and waits no longer for the renewal that is under way: the one that
        // was due in the interval before that was sent.
        let over = h.gave_up.map_or(u64::MAX, |at| self.moved(with, at));
        let last = h.renewing.filter(|_| h.gave_up.is_some());
        let last = last.map_or(u64::MAX, |at| self.moved(with, at).saturating_sub(every));
        loop {
            let mut sent = due.max(told);
            for (from, lasting) in &freezes {
                if *from <= sent && sent < from + lasting {
                    sent = from + lasting;
                }
            }
            if sent >= promise.1 || sent >= arrival || sent >= over || sent > last {
                return promise;
            }
            if after(sent, h.lease) > promise.1 {
                promise = (sent, after(sent, h.lease));
            }
            due = (due + every).max(sent);
        }
    }

    fn late(&self, with: &[Cause]) -> bool {
        let arrival = self.on_path(with, self.act.at);
        let used = self.h.released.iter().map(|at| self.moved(with, *at));
        let killed = self.kill.filter(|k| with.contains(&k.0)).map(|k| self.moved(with, k.1));
        let end = used.chain(killed).fold(self.promise(with, arrival).1, u64::min);
        arrival > end
    }

    /// Returns whether the planned waits alone outlast the lease when nothing else delays the act: those after the
    /// request that the promise counts from. No process tells of less than 30 ms in which it did not run, so the rest
    /// of each step counts too, up to that much; the wait in the lock's queue counts whole.
    fn outlasted(&self) -> bool {
        let at = |at| self.on_path(&[], at);
        let (from, to) = self.promise(&[], at(self.act.at));
        let within = |a: u64, b: u64| at(b).max(from) - at(a).max(from);
        let waited = |leg: &Leg| {
            let due = leg.due.min(leg.to);
            within(leg.from, due) + within(due, leg.to).min(if leg.queue { u64::MAX } else { 30_000_000 })
        };
        self.legs.iter().map(waited).sum::<u64>() > to - from
    }
}

/// The causes of one stale act.
pub fn stale(f: &Facts, h: &Hold, act: &Entry) -> BTreeSet<String> {
    let legs = legs(f, h, act);
    let (frozen, in_flight) = frozen(f, h, &legs);
    let mut own = Vec::new();
    pieces(f, &h.process, h.sent, act.at, &mut own);
    let mut causes: BTreeSet<Cause> = frozen.iter().chain(&in_flight).chain(&own).map(|p| p.cause).collect();
    let killed = f.killed(h).filter(|(_, at)| *at < h.promise() && h.marks.iter().all(|m| m > at));
    let kill = killed.map(|(fault, at)| (Cause::Fault(fault, FaultKind::Kill), at));
    causes.extend(kill.map(|k| k.0));
    let causes: Vec<_> = causes.into_iter().collect();
    let replay = Replay { f, h, act, legs, frozen, in_flight, own, kill };
    let sent = h.path.iter().find(|(_, step)| *step == Step::Request(act.op)).map(|(at, _)| *at);
    if sent.zip(h.released).is_some_and(|(sent, released)| sent > released) {
        return BTreeSet::from(["unexplained".to_owned()]);
    }
    let has_granted = |said: NodeAnswer| rest::owned(said) || said == NodeAnswer::Done;
    let granted_on = |n: &NodeName| h.answers.iter().any(|(name, said)| name == n && has_granted(*said));
    let granted: Vec<_> = f.plan.lock_nodes.iter().filter(|n| granted_on(n)).collect();
    let since = had_since(f, h, act.at, |did| granted.iter().copied().all(did));
    if replay.late(&[]) {
        let planned = replay.outlasted();
        return BTreeSet::from([if planned { "overrun".to_owned() } else { unexplained(f, since, act.at) }]);
    }
    let alone: BTreeSet<_> = causes.iter().filter(|c| replay.late(&[**c])).map(|c| c.name().to_owned()).collect();
    if !alone.is_empty() {
        return alone;
    }
    let mut sets: Vec<Vec<Cause>> = vec![Vec::new()];
    for cause in &causes {
        let more: Vec<_> = sets.iter().map(|s| [s.as_slice(), &[*cause]].concat()).collect();
        sets.extend(more);
    }
    sets.sort_by_key(|s| (s.len(), s.clone()));
    let joined = |set: &Vec<Cause>| set.iter().map(|c| c.name()).collect::<Vec<_>>().join("+");
    let found = sets.iter().find(|s| replay.late(s)).map(joined);
    BTreeSet::from([found.unwrap_or_else(|| unexplained(f, since, act.at))])
}

fn unexplained(f: &Facts, from: u64, to: u64) -> String {
    let stepped = lock::steps_forward(f).iter().any(|(a, b)| (*a).max(from) < (*b).min(to));
    if stepped { "host-clock" } else { "unexplained" }.to_owned()
}

/// A node that did a renewal had the key then, so only a later step can have ended the lease there. The request of the
/// last renewal that was answered before `at`, if enough nodes did it; otherwise that of the attempt.
fn had_since(f: &Facts, h: &Hold, at: u64, is_enough: impl Fn(&dyn Fn(&NodeName) -> bool) -> bool) -> u64 {
    let did = |answers: &Answers, node: &NodeName| {
        let speaks_for = |name: &NodeName| name == node || !f.plan.lock_nodes.contains(name);
        let is_done = |said: &NodeAnswer| matches!(said, NodeAnswer::Done | NodeAnswer::Granted);
        answers.iter().any(|(name, said)| speaks_for(name) && is_done(said))
    };
    let last = h.renewals.iter().zip(&h.renewed_on).rev().find(|((_, ok, _), _)| *ok < at);
    let last = last.filter(|(_, (_, answers))| f.plan.lock_nodes.iter().any(|n| did(answers, n)));
    let last = last.filter(|(_, (_, answers))| is_enough(&|node: &NodeName| did(answers, node)));
    last.map_or(h.sent, |((sent, ..), _)| *sent)
}

/// The causes of two entitlements at once: on every node that had granted both when the overlap began, somebody else
/// removed the key of the one that the node granted first. If nobody knows which that was, it may be either.
pub fn overlap(f: &Facts, a: &Hold, b: &Hold) -> BTreeSet<String> {
    let (first, second) = if (a.acquired, a.id) <= (b.acquired, b.id) { (a, b) } else { (b, a) };
    let (first, second) = if first.later_than(second) { (second, first) } else { (first, second) };
    let ordered = second.later_than(first);
    let began = a.acquired.max(b.acquired).unwrap_or(0);
    let granted = |h: &Hold, node: &NodeName| {
        let renewed = h.renewed_on.iter().rev().find(|(at, _)| *at < began).map(|(_, answers)| answers);
        let mut last = h.answers.iter().chain(renewed.into_iter().flatten());
        last.any(|(n, said)| n == node && (rest::owned(*said) || *said == NodeAnswer::Done))
    };
    let both: Vec<_> = f.plan.lock_nodes.iter().filter(|n| granted(first, n) && granted(second, n)).collect();
    let removals = rest::unsafe_requests(f);
    let taken = |first: &Hold, second: &Hold, node: &NodeName| {
        let (from, to) = (first.sent, second.acquired.unwrap_or(0));
        removals.iter().any(|u| u.owner == first.id && u.node == *node && from < u.sent && u.sent < to)
    };
    let removed = |node: &NodeName| taken(first, second, node) || (!ordered && taken(second, first, node));
    let explained = !both.is_empty() && both.iter().all(|n| removed(n));
    // Each node needs an event, so the step must explain those that did the renewal, too.
    let left: Vec<_> = both.iter().copied().filter(|n| !removed(n)).collect();
    let of = |first: &Hold, second: &Hold| {
        let since = had_since(f, first, began, |did| left.is_empty() || left.iter().copied().any(did));
        let to = second.acquired.unwrap_or(0);
        // A step ends a lease at most so much too early as it set the clock forward.
        match after(since, first.lease) <= to.saturating_add(lock::set_forward(f, since, to)) {
            true => unexplained(f, since, to),
            false => "unexplained".to_owned(),
        }
    };
    let by_clock = of(first, second);
    let by_clock = if ordered || by_clock == "host-clock" { by_clock } else { of(second, first) };
    BTreeSet::from([if explained { "unsafe-release".to_owned() } else { by_clock }])
}
