//! Property 1, mutual exclusion.

use std::collections::BTreeSet;

use history::{NodeAnswer, NodeName};

use super::{
    cause,
    facts::{Facts, Hold},
    rest,
};
use crate::expected::{Lock, Window, judged};

/// When the entitlement of a hold ends, given that it was claimed.
pub fn end(f: &Facts, h: &Hold) -> u64 {
    let killed = f.killed(h).map(|k| k.1);
    let marks = h.marks.iter().copied().chain(killed);
    marks.fold(h.promise(), u64::min)
}

/// The entitlement: empty for a dead claim.
pub fn entitled(f: &Facts, h: &Hold) -> (u64, u64) {
    let from = h.acquired.unwrap_or(u64::MAX);
    (from, end(f, h).max(from))
}

fn claimed(f: &Facts) -> Vec<&Hold> {
    f.holds.values().filter(|h| h.acquired.is_some()).collect()
}

/// Length of the union of intervals.
pub fn measure(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut length, mut reached) = (0, 0);
    for (from, to) in intervals {
        let from = from.max(reached);
        if to > from {
            length += to - from;
            reached = to;
        }
    }
    length
}

pub fn judge(f: &Facts) -> Lock {
    let holds = claimed(f);
    let mut lock = Lock::default();
    for h in &holds {
        let acquired = h.acquired.unwrap_or(0);
        if is_dead(h) {
            lock.dead_claims.insert(h.id, acquired - super::facts::after(h.sent, h.lease));
        }
        if let Some(granted) = minority(f, h) {
            lock.minority_claims.insert(h.id, granted);
        }
        if let Some((_, past)) = overclaims(h).first() {
            let checks = overclaimed_checks(h).count() as u64;
            lock.overclaims.insert(h.id, (*past, checks));
        }
        stale(f, h, &holds, &mut lock);
    }
    for (i, a) in holds.iter().enumerate() {
        for b in &holds[i + 1..] {
            let ((a0, a1), (b0, b1)) = (entitled(f, a), entitled(f, b));
            let (from, to) = (a0.max(b0), a1.min(b1));
            let at_once =
                from < to || is_instant_inside(a, (a0, a1), (b0, b1)) || is_instant_inside(b, (b0, b1), (a0, a1));
            if a.excludes(b) && at_once {
                let causes = cause::overlap(f, a, b);
                let own = Some(a.client == b.client);
                let window = Window { overlap: to - from, staleness: None, own, causes, ..Window::default() };
                lock.overlaps.insert((a.id.min(b.id), a.id.max(b.id)), window);
            }
        }
    }
    for h in &holds {
        lock.cut_short.extend(cut_short(f, h, &holds));
    }
    let windows = || lock.stale.values().chain(lock.overlaps.values()).chain(lock.cut_short.values());
    lock.unexplained = windows().filter(|w| w.causes.contains("unexplained")).count() as u64;
    // A step of the host's clock excuses what nothing else explains.
    let claims = !lock.dead_claims.is_empty() || !lock.overclaims.is_empty() || !lock.minority_claims.is_empty();
    let violated = claims || windows().any(|w| w.causes.iter().any(|c| c != "host-clock"));
    lock.verdict = judged(violated, lock.undecided > 0 || open_questions(f));
    lock
}

fn is_dead(h: &Hold) -> bool {
    h.acquired.is_some_and(|acquired| acquired >= super::facts::after(h.sent, h.lease))
}

/// Returns whether a live claim whose client was killed by then falls inside the entitlement of another hold.
fn is_instant_inside(h: &Hold, own: (u64, u64), other: (u64, u64)) -> bool {
    own.0 == own.1 && !is_dead(h) && other.0 < own.0 && own.0 < other.1
}

/// The number of nodes that had granted a hold, if they were no majority. Without any answer nothing is known.
fn minority(f: &Facts, h: &Hold) -> Option<u64> {
    let granted = |said: &NodeAnswer| rest::owned(*said) || *said == NodeAnswer::Done;
    let by = |node: &NodeName| h.answers.iter().any(|(n, said)| n == node && granted(said));
    let as_one = h.answers.iter().any(|(n, said)| !f.plan.lock_nodes.contains(n) && granted(said));
    let nodes = f.plan.lock_nodes.iter().filter(|node| by(node)).count();
    (!h.answers.is_empty() && !as_one && 2 * nodes <= f.plan.lock_nodes.len()).then_some(nodes as u64)
}

/// The checks of a hold that passed after its promise end: when, and how long after it.
fn overclaimed_checks(h: &Hold) -> impl Iterator<Item = (u64, u64)> {
    let late = |at: u64| at.saturating_sub(h.promise_at(at));
    h.checks.iter().map(move |at| (*at, late(*at))).filter(|(_, late)| *late > 0)
}

/// The instants at which the client of a hold believed in it beyond its promise, and how far: by its own deadline when
/// it acquired, and by its checks.
pub fn overclaims(h: &Hold) -> Vec<(u64, u64)> {
    let at = h.acquired.unwrap_or(u64::MAX);
    // A client whose deadline has passed does not say how long ago.
    let deadline = (h.valid > 0).then(|| at.saturating_add(h.valid));
    let past = deadline.map(|deadline| deadline.saturating_sub(super::facts::after(h.sent, h.lease)));
    let by_deadline = past.filter(|past| *past > 0).map(|past| (at, past));
    by_deadline.into_iter().chain(overclaimed_checks(h)).collect()
}

/// A hold whose process was killed, and the first hold that was granted inside its promise.
fn cut_short(f: &Facts, h: &Hold, holds: &[&Hold]) -> Option<((u64, u64), Window)> {
    let (_, killed) = f.killed(h).filter(|(_, at)| *at < h.promise() && h.marks.iter().all(|m| m > at))?;
    let end = h.promise().min(h.gives_back.unwrap_or(u64::MAX));
    let inside = |g: &&&Hold| {
        let at = g.acquired.unwrap_or(0);
        let both = !is_dead(g) && !h.later_than(g);
        g.id != h.id
            && g.excludes(h)
            && at > killed
            && at > h.acquired.unwrap_or(u64::MAX)
            && at < end
            && (g.later_than(h) || both)
    };
    let first = holds.iter().filter(inside).min_by_key(|g| (g.acquired, g.id))?;
    let left = end - first.acquired.unwrap_or(end);
    let own = Some(first.client == h.client);
    let causes = cause::overlap(f, h, first);
    Some(((h.id, first.id), Window { overlap: left, own, causes, ..Window::default() }))
}

fn stale(f: &Facts, h: &Hold, holds: &[&Hold], lock: &mut Lock) {
    let end = end(f, h);
    let later: Vec<_> = holds.iter().filter(|g| g.later_than(h)).collect();
    let acts = f.log.iter().filter(|e| e.hold == Some(h.id) && !e.repeat && !f.is_contradicted(e) && e.at > end);
    let before = |g: &Hold, at: u64| g.acquired.is_some_and(|a| a < at);
    let mut window = Window::default();
    let mut last = None;
    for act in acts {
        if later.iter().any(|g| before(g, act.at)) {
            window.reads += u64::from(!act.write);
            window.writes += u64::from(act.write);
            last = last.max(Some(act.at));
            if overclaims(h).iter().any(|(at, _)| *at <= act.at) {
                window.causes.insert("overclaim".to_owned());
            } else {
                window.causes.extend(cause::stale(f, h, act));
            }
        } else if holds
            .iter()
            .any(|g| g.id != h.id && g.excludes(h) && before(g, act.at) && !g.later_than(h) && !h.later_than(g))
        {
            lock.undecided += 1;
        }
    }
    let Some(last) = last else { return };
    let first = later.iter().filter_map(|g| g.acquired).min().unwrap_or(last);
    let owners: BTreeSet<_> =
        later.iter().filter(|g| g.acquired == Some(first)).map(|g| g.client == h.client).collect();
    window.own = if owners.len() == 1 { owners.first().copied() } else { None };
    window.staleness = Some(last - first);
    let clipped = later.iter().map(|g| entitled(f, g)).map(|(a, b)| (a.max(end), b.min(last)));
    window.overlap = measure(clipped.collect());
    lock.stale.insert(h.id, window);
}

/// Returns whether the record has a gap that forbids the verdict `upheld`.
fn open_questions(f: &Facts) -> bool {
    let unproved = f.faults.values().any(|b| b.unproved);
    let quarter = u64::try_from(f.plan.lease.as_nanos()).unwrap() / 4;
    let control = f.plan.schedule.is_empty() && f.stalls.values().flatten().any(|(from, to)| to - from > quarter);
    unproved || control || !steps(f).is_empty()
}

/// Returns the spans between two samples in which a kernel clock changed more than clocks may drift.
fn steps(f: &Facts) -> Vec<(u64, u64)> {
    changes(f, i64::unsigned_abs)
}

/// Returns the steps that may have ended a lease early: a clock that was set back lets a lease last longer.
pub fn steps_forward(f: &Facts) -> Vec<(u64, u64)> {
    changes(f, |change| u64::try_from(change).unwrap_or(0))
}

fn changes(f: &Facts, length: impl Fn(i64) -> u64) -> Vec<(u64, u64)> {
    let pairs = f.clocks.values().flat_map(|samples| samples.windows(2));
    let moved = |w: &&[(u64, i64, i64)]| {
        let (wall, boot) = (length(w[1].1 - w[0].1), length(w[1].2 - w[0].2));
        wall.max(boot) > (w[1].0 - w[0].0) / 100 + 2_000_000
    };
    pairs.filter(moved).map(|w| (w[0].0, w[1].0)).collect()
}

/// Returns how far steps between two instants set the kernel clocks forward, by the process that saw most of them.
pub fn set_forward(f: &Facts, from: u64, to: u64) -> u64 {
    let forward = |w: &[(u64, i64, i64)]| {
        let by = u64::try_from((w[1].1 - w[0].1).max(w[1].2 - w[0].2)).unwrap_or(0);
        let is_met = w[0].0.max(from) < w[1].0.min(to);
        if is_met && by > (w[1].0 - w[0].0) / 100 + 2_000_000 { by } else { 0 }
    };
    let by_process = f.clocks.values().map(|samples| samples.windows(2).map(forward).sum::<u64>());
    by_process.max().unwrap_or(0)
}
