//! Tokens, safe release, how long the dead block their keys, and whether the run says anything.

use std::collections::{BTreeMap, BTreeSet};

use history::{NodeAnswer, NodeName, Tokens as Makes};

use super::{
    facts::{Facts, Hold, after},
    lock,
};
use crate::expected::{Activity, Release, Resource, Tokens, judged};

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
        let others = || claimed(f).filter(|h| h.key == g.key && h.id != g.id && h.token.is_some());
        t.backwards += u64::from(others().any(|h| g.later_by_stamps(h) && h.token >= Some(token)));
        let twin = |h: &Hold| h.token == Some(token) && !g.later_by_stamps(h) && !h.later_by_stamps(g);
        t.shared += others().filter(|h| twin(h) && (h.acquired, h.id) < (g.acquired, g.id)).count() as u64;
    }
    t.verdict = judged(t.backwards + t.shared + t.missing > 0, false);
    t
}

/// Every entry of the log against every other, and against every answer.
pub fn resource(f: &Facts) -> Resource {
    let mut r = Resource::default();
    let decided = |hold: u64, op: u32| f.log.iter().find(move |e| e.hold == Some(hold) && e.op == op && !e.repeat);
    for ((hold, op), (sent, answer)) in &f.requests {
        let Some(entry) = decided(*hold, *op) else { continue };
        r.wrong_answers += u64::from(answer.is_some_and(|(_, number)| number != entry.number));
        let is_before = |other: &Option<(u64, u64)>| other.is_some_and(|(at, n)| at < *sent && n >= entry.number);
        r.misordered += u64::from(f.requests.values().any(|(_, other)| is_before(other)));
    }
    for e in f.log.iter().filter(|e| e.hold.is_some()) {
        let Some(first) = e.hold.and_then(|hold| decided(hold, e.op)) else { continue };
        r.wrong_repeats += u64::from(e.repeat && (first.number, &first.arms) != (e.number, &e.arms));
        r.applied_twice += u64::from(!e.repeat && first.number != e.number);
    }
    for e in f.log.iter().filter(|e| !e.repeat) {
        for d in e.arms.iter().filter(|d| d.arm.fences()) {
            let known = f.log.iter().filter(|o| !o.repeat && o.number < e.number && o.key == e.key).flat_map(|o| {
                let decision = o.arms.iter().find(|b| b.arm == d.arm);
                let written = decision.filter(|b| o.write && b.admitted).and(o.token);
                [decision.and_then(|b| b.seen.map(|t| t.0)), written]
            });
            r.tokens_forgotten += u64::from(known.max().flatten() > d.seen.map(|t| t.0));
        }
    }
    let counts = [r.misordered, r.wrong_answers, r.applied_twice, r.wrong_repeats, r.tokens_forgotten];
    r.verdict = judged(counts.iter().any(|n| *n > 0), false);
    r
}

/// Whether a node that said so made the attempt the owner.
pub fn owned(said: NodeAnswer) -> bool {
    matches!(said, NodeAnswer::Granted | NodeAnswer::Late)
}

/// A request that took effect where its attempt was not the owner.
#[derive(Debug)]
pub struct Unsafe {
    pub attempt: u64,
    pub owner: u64,
    pub node: NodeName,
    pub sent: u64,
    pub answered: u64,
}

/// Every pair of such a request and an owner.
pub fn unsafe_requests(f: &Facts) -> Vec<Unsafe> {
    let mut found = Vec::new();
    for a in f.holds.values() {
        for request in &a.later {
            let done = request.answers.iter().filter(|(_, said)| *said == NodeAnswer::Done);
            for (node, _) in done {
                for b in f.holds.values().filter(|b| b.id != a.id && b.key == a.key) {
                    let said = |h: &Hold| h.answers.iter().find(|(n, _)| n == node).map(|(_, said)| *said);
                    let (Some(granted), true) = (b.completed, said(b).is_some_and(owned)) else { continue };
                    // An owner value is fresh: what was granted, and then granted to another, never comes back.
                    let replaced =
                        said(a).is_some_and(owned) && a.completed.is_some_and(|c| c < b.sent) && request.sent > granted;
                    // Nothing was granted, and another surely owns it all the while.
                    let lease = if b.lease > 0 { b.lease } else { u64::try_from(f.plan.lease.as_nanos()).unwrap() };
                    let sure = b.gives_back.unwrap_or(u64::MAX).min(after(b.sent, lease));
                    let refused =
                        said(a) == Some(NodeAnswer::Refused) && request.sent > granted && request.answered < sure;
                    // Where a clock stepped, leases may have ended early.
                    if replaced || (refused && lock::steps(f).is_empty()) {
                        found.push(Unsafe {
                            attempt: a.id,
                            owner: b.id,
                            node: node.clone(),
                            sent: request.sent,
                            answered: request.answered,
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
    let pairs: BTreeSet<_> = all.iter().map(|u| (u.attempt, u.sent, u.answered, &u.node)).collect();
    let unsafe_releases = pairs.len() as u64;
    Release { verdict: judged(unsafe_releases > 0, false), unsafe_releases }
}

pub fn blocked(f: &Facts) -> BTreeMap<u64, Option<u64>> {
    let mut blocked = BTreeMap::new();
    for h in claimed(f) {
        let Some((_, at)) = f.killed(h) else { continue };
        let (from, to) = lock::entitled(f, h);
        if from < at && to == at && at < h.promise() && h.marks.iter().all(|m| *m > at) {
            let next = claimed(f).filter(|g| g.key == h.key).filter_map(|g| g.acquired).filter(|a| *a > at).min();
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
    let settled = f.faults.values().all(|b| (b.proved || b.missed) && !b.unproved);
    let some = f.plan.schedule.is_empty() || f.faults.values().any(|b| b.proved);
    let has_its_moment = |s: &&history::Step| !matches!(s.when, history::When::AfterHeal(_));
    let placed = f.plan.schedule.iter().filter(has_its_moment).all(|s| f.faults.contains_key(&s.id));
    Activity { verdict: judged(false, !(enough && settled && some && placed)), holds, clients, refused: f.refused }
}
