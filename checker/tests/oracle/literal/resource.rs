//! Property 5, the resource: every entry of the log against every other, and against every request and answer.

use history::{Arm, ArmDecision};

use super::facts::{Entry, Facts, Request, Told};
use crate::expected::{Resource, judged};

pub fn judge(f: &Facts) -> Resource {
    let mut r = Resource::default();
    for request in f.requests.iter() {
        of_request(f, request, &mut r);
    }
    for e in f.log.iter() {
        of_entry(f, e, &mut r);
    }
    let wrong = [
        r.contradictions,
        r.misordered,
        r.wrong_answers,
        r.applied_twice,
        r.wrong_repeats,
        r.wrong_arms,
        r.wrong_refusals,
        r.tokens_forgotten,
        r.wrong_tokens,
    ];
    r.verdict = judged(wrong.iter().any(|n| *n > 0), r.unrecorded_answers > 0);
    r
}

/// The first decision of an operation.
fn decided(f: &Facts, hold: u64, op: u64) -> Option<&Entry> {
    f.log.iter().find(|e| e.hold == Some(hold) && e.op == op && !e.repeat)
}

fn of_request(f: &Facts, ((hold, op), request): (&(u64, u64), &Request), r: &mut Resource) {
    let entry = decided(f, *hold, *op);
    if let Some((at, number, told)) = &request.answered {
        r.unrecorded_answers += u64::from(told.is_none());
        r.contradictions += u64::from(entry.is_none_or(|e| e.at > *at));
        if let Some(e) = entry.filter(|e| e.at <= *at) {
            let differs = told.as_ref().is_some_and(|told| !is_as_logged(e, told));
            r.wrong_answers += u64::from(*number != e.number || differs);
        }
    }
    let Some(entry) = entry else { return };
    r.wrong_answers += u64::from(request.failed.is_some_and(|at| entry.at <= at));
    let is_before =
        |other: &Request| other.answered.as_ref().is_some_and(|(at, n, _)| *at < request.sent && *n >= entry.number);
    r.misordered += u64::from(entry.at >= request.sent && f.requests.values().any(is_before));
}

/// Each arm was answered once, and as the log has it: a write with the decision and the tokens before it, a read with
/// the state after it.
fn is_as_logged(e: &Entry, told: &[Told]) -> bool {
    let logged = |d: &ArmDecision| {
        let own = e.token.filter(|_| !e.write && d.arm == Arm::Reads);
        let seen = d.seen.map(|t| t.0).max(own);
        if e.write { (d.arm, Some(d.admitted), None, seen) } else { (d.arm, None, Some(d.version), seen) }
    };
    let mut logged: Vec<Told> = e.arms.iter().map(logged).collect();
    logged.sort_by_key(|t| t.0);
    // Of an arm that the log has twice, the first decision counts.
    logged.dedup_by_key(|t| t.0);
    let mut told = told.to_vec();
    told.sort_by_key(|t| t.0);
    told == logged
}

fn of_entry(f: &Facts, e: &Entry, r: &mut Resource) {
    let first = e.hold.and_then(|hold| decided(f, hold, e.op));
    let is_as_first = first.is_some_and(|first| (first.number, &first.arms) == (e.number, &e.arms));
    let is_requested = e.hold.is_some_and(|hold| f.requests.contains_key(&(hold, e.op)));
    r.wrong_repeats += u64::from(e.repeat && is_requested && !is_as_first);
    r.applied_twice += u64::from(!e.repeat && first.is_some_and(|first| first.number != e.number));
    if e.repeat {
        return;
    }
    r.contradictions += u64::from(f.is_foreign(e));
    let mut arms: Vec<Arm> = e.arms.iter().map(|d| d.arm).collect();
    let mut all = f.plan.arms.clone();
    arms.sort();
    all.sort();
    r.wrong_arms += u64::from(arms != all);
    let never_refuses = |d: &&ArmDecision| !e.write || d.arm == Arm::Off;
    r.wrong_refusals += e.arms.iter().filter(never_refuses).filter(|d| !d.admitted).count() as u64;
    for arm in all.into_iter().filter(|arm| arm.fences()) {
        let Some(seen) = shown(e, arm) else { continue };
        let mut before = f.log.iter().filter(|o| !o.repeat && o.number < e.number && o.key == e.key);
        let last = before.rfind(|o| shown(o, arm).is_some());
        let (known, registered) = last.map_or((None, None), |last| after(last, arm));
        r.tokens_forgotten += u64::from(seen < known);
        r.wrong_tokens += u64::from(seen >= known && seen != registered);
    }
}

/// The largest token that an arm showed in an entry, if it decided it.
fn shown(e: &Entry, arm: Arm) -> Option<Option<u64>> {
    e.arms.iter().find(|d| d.arm == arm).map(|d| d.seen.map(|t| t.0))
}

/// The largest token of an arm after an entry: without the token of a read, and with it.
fn after(e: &Entry, arm: Arm) -> (Option<u64>, Option<u64>) {
    let admitted = e.arms.iter().find(|d| d.arm == arm).is_some_and(|d| d.admitted);
    let before = shown(e, arm).flatten();
    let written = before.max(e.token.filter(|_| e.write && admitted));
    (written, written.max(e.token.filter(|_| !e.write && arm == Arm::Reads)))
}
