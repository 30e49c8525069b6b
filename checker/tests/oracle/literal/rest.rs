//! Tokens, safe release, how long the dead block their keys, and whether the run says anything.

use std::collections::{BTreeMap, BTreeSet};

use history::{Mode, NodeAnswer, NodeName, Tokens as Makes};

use super::{
    facts::{Facts, Hold, after},
    lock,
};
use crate::expected::{Activity, Fairness, Release, Tokens, judged};

fn claimed(f: &Facts) -> impl Iterator<Item = &Hold> {
    f.holds.values().filter(|h| h.acquired.is_some())
}

pub fn tokens(f: &Facts) -> Tokens {
    if f.plan.tokens == Makes::None {
        return Tokens { verdict: "n/a".to_owned(), ..Tokens::default() };
    }
    let mut t = Tokens::default();
    for g in claimed(f) {
        let Some(token) = g.token else {
            t.missing += 1;
            continue;
        };
        let others = || claimed(f).filter(|h| h.excludes(g) && h.id != g.id && h.token.is_some());
        t.backwards += u64::from(others().any(|h| g.later_by_stamps(h) && h.token >= Some(token)));
        // Each pair once, ordered or not.
        t.shared += others().filter(|h| h.token == Some(token) && h.id < g.id).count() as u64;
    }
    t.verdict = judged(t.backwards + t.shared + t.missing > 0, false);
    t
}

/// Returns whether a node with this answer made the attempt the owner.
pub fn owned(said: NodeAnswer) -> bool {
    matches!(said, NodeAnswer::Granted | NodeAnswer::Late)
}

/// A request that took effect where its attempt was not the owner.
#[derive(Debug)]
pub struct Unsafe {
    pub attempt: u64,
    /// Which of the attempt's requests: two may have the same stamps.
    pub request: usize,
    pub owner: u64,
    pub node: NodeName,
    pub sent: u64,
}

/// The end of an owner's promise on a node, by the renewals that were answered by an instant. `end` is that of the
/// grant.
fn kept_until(owner: &Hold, node: &NodeName, mut end: u64, instant: u64) -> u64 {
    let mut of_node = end;
    for ((sent, ok, lease), (_, answers)) in owner.renewals.iter().zip(&owner.renewed_on) {
        if end <= *ok || instant < *ok {
            break;
        }
        let extended = after(*sent, *lease);
        if extended > end {
            end = extended;
            let did = answers.iter().any(|(n, said)| n == node && *said == NodeAnswer::Done);
            of_node = if did { end } else { of_node };
        }
    }
    of_node
}

/// Every pair of such a request and an owner.
pub fn unsafe_requests(f: &Facts) -> Vec<Unsafe> {
    let mut found = Vec::new();
    for a in f.holds.values() {
        for (number, request) in a.later.iter().enumerate() {
            let done = request.answers.iter().filter(|(_, said)| *said == NodeAnswer::Done);
            for (node, _) in done {
                for b in f.holds.values().filter(|b| b.id != a.id && b.key == a.key) {
                    let said = |h: &Hold| h.answers.iter().find(|(n, _)| n == node).map(|(_, said)| *said);
                    let (Some(granted), true) = (b.completed, said(b).is_some_and(owned)) else { continue };
                    // An owner value is fresh: a key that was granted, and then granted to another, never comes back.
                    let replaced = [a.mode, b.mode] == [Mode::Write; 2]
                        && said(a).is_some_and(owned)
                        && a.completed.is_some_and(|c| c < b.sent)
                        && request.sent > granted;
                    // The node granted nothing, and another attempt surely owns the key during the request.
                    let lease = if b.lease > 0 { b.lease } else { u64::try_from(f.plan.lease.as_nanos()).unwrap() };
                    let kept = kept_until(b, node, after(b.sent, lease), request.answered);
                    let sure = b.gives_back.unwrap_or(u64::MAX).min(kept);
                    let refused =
                        said(a) == Some(NodeAnswer::Refused) && request.sent > granted && request.answered < sure;
                    // If a clock was set forward meanwhile, leases may have ended early.
                    let (since, until) = (a.sent.min(b.sent), request.answered);
                    let stepped = lock::steps_forward(f).iter().any(|(from, to)| (*from).max(since) < (*to).min(until));
                    if replaced || (refused && !stepped) {
                        found.push(Unsafe {
                            attempt: a.id,
                            request: number,
                            owner: b.id,
                            node: node.clone(),
                            sent: request.sent,
                        });
                    }
                }
            }
        }
    }
    found
}

pub fn release(f: &Facts) -> Release {
    let all = unsafe_requests(f);
    let pairs: BTreeSet<_> = all.iter().map(|u| (u.attempt, u.request, &u.node)).collect();
    let unsafe_releases = pairs.len() as u64;
    Release { verdict: judged(unsafe_releases > 0, false), unsafe_releases }
}

pub fn blocked(f: &Facts) -> BTreeMap<u64, Option<u64>> {
    let mut blocked = BTreeMap::new();
    for h in claimed(f) {
        let Some((_, at)) = f.killed(h) else { continue };
        let (from, to) = lock::entitled(f, h);
        if from < at && to == at && at < h.promise() && h.marks.iter().all(|m| *m > at) {
            let next = claimed(f).filter(|g| g.excludes(h)).filter_map(|g| g.acquired).filter(|a| *a > at).min();
            blocked.insert(h.id, next.map(|n| n - at));
        }
    }
    blocked
}

pub fn activity(f: &Facts) -> Activity {
    let holds = claimed(f).count() as u64;
    let mut keys: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for h in claimed(f) {
        keys.entry(&h.key).or_default().insert(h.client);
    }
    let clients = keys.values().map(|c| c.len() as u64).max().unwrap_or(0);
    let needs = f.plan.activity;
    let enough =
        holds >= u64::from(needs.holds) && clients >= u64::from(needs.clients) && f.refused >= u64::from(needs.refused);
    let settled = f.faults.values().all(|b| (b.proved.is_some() || b.missed) && !b.unproved);
    let some = f.plan.schedule.is_empty() || f.faults.values().any(|b| b.proved.is_some());
    let has_its_moment = |s: &&history::Step| !matches!(s.when, history::When::AfterHeal(_));
    let placed = f.plan.schedule.iter().filter(has_its_moment).all(|s| f.faults.contains_key(&s.id));
    Activity { verdict: judged(false, !(enough && settled && some && placed)), holds, clients, refused: f.refused }
}

/// The clients' shares, and the holds that were granted before a hold with a smaller place.
pub fn fairness(f: &Facts) -> Fairness {
    let mut fairness = Fairness::default();
    for h in f.holds.values() {
        let (attempts, holds) = fairness.clients.entry(h.client.into()).or_default();
        *attempts += 1;
        *holds += u64::from(h.acquired.is_some());
    }
    for h in claimed(f).filter(|h| h.place.is_some()) {
        let is_first = |g: &&Hold| g.acquired.is_some_and(|at| at < h.granted_after);
        // A store that lost its state counts from the start again: what was granted before is not in this queue.
        let came_later = |g: &&Hold| g.excludes(h) && g.place > h.place && g.acquired > Some(h.sent);
        let by: BTreeSet<u64> = claimed(f).filter(is_first).filter(came_later).map(|g| g.id).collect();
        if !by.is_empty() {
            fairness.overtaken.insert(h.id, by);
        }
    }
    fairness
}
