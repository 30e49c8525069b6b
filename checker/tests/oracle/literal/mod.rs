//! The rules of the design, read literally: quadratic, over the whole record at once, sharing nothing with the checker.

mod arms;
mod cause;
mod facts;
mod lock;
mod resource;
mod rest;

use history::Record;

use crate::expected::Judged;
use facts::Facts;

/// Judges the record literally, by the definitions.
pub fn judge(records: &[Record]) -> Judged {
    let facts = Facts::of(records);
    let mut judged = Judged {
        lock: lock::judge(&facts),
        tokens: rest::tokens(&facts),
        resource: resource::judge(&facts),
        release: rest::release(&facts),
        blocked: rest::blocked(&facts),
        activity: rest::activity(&facts),
        fairness: rest::fairness(&facts),
        ..Judged::default()
    };
    for arm in facts.plan.arms.clone() {
        if arm.fences() {
            judged.fence.insert(arm.name().to_owned(), arms::fence(&facts, arm));
        }
        judged.data.insert(arm.name().to_owned(), arms::data(&facts, arm));
    }
    judged.verdict = worst(&judged);
    judged
}

fn worst(j: &Judged) -> String {
    let mut all =
        vec![&j.lock.verdict, &j.tokens.verdict, &j.resource.verdict, &j.release.verdict, &j.activity.verdict];
    all.extend(j.fence.values().map(|f| &f.verdict));
    all.extend(j.data.values().map(|d| &d.verdict));
    let any = |verdict: &str| all.iter().any(|v| *v == verdict);
    crate::expected::judged(any("violated"), any("inconclusive"))
}
