//! How often each class of verdict and each cause occurs: an oracle that never sees one proves nothing of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::expected::{Judged, Window};

/// In how many histories each class was seen.
#[derive(Debug, Default)]
pub struct Shares {
    pub histories: u64,
    seen: BTreeMap<String, u64>,
}

fn windows<'a>(kind: &str, all: impl Iterator<Item = &'a Window>, classes: &mut BTreeSet<String>) {
    for w in all {
        classes.insert(format!("lock: {kind}"));
        classes.extend(w.causes.iter().map(|c| format!("lock: {kind}, {c}")));
        if w.own == Some(true) {
            classes.insert(format!("lock: {kind}, self"));
        }
        if w.reads > 0 {
            classes.insert(format!("lock: {kind}, reads"));
        }
    }
}

fn counts(name: &str, counts: &[(&str, u64)], classes: &mut BTreeSet<String>) {
    classes.extend(counts.iter().filter(|c| c.1 > 0).map(|c| format!("{name}: {}", c.0)));
}

impl Shares {
    pub fn count(&mut self, j: &Judged) {
        let mut c = BTreeSet::from([
            format!("verdict {}", j.verdict),
            format!("lock {}", j.lock.verdict),
            format!("tokens {}", j.tokens.verdict),
            format!("resource {}", j.resource.verdict),
            format!("release {}", j.release.verdict),
            format!("activity {}", j.activity.verdict),
        ]);
        windows("stale-holder", j.lock.stale.values(), &mut c);
        windows("lease-overlap", j.lock.overlaps.values(), &mut c);
        windows("cut-short", j.lock.cut_short.values(), &mut c);
        let (dead, blocked) = (j.lock.dead_claims.len() as u64, j.blocked.len() as u64);
        let overclaims = j.lock.overclaims.len() as u64;
        let minority = j.lock.minority_claims.len() as u64;
        counts("lock", &[("minority-claim", minority)], &mut c);
        let lock = [("undecided", j.lock.undecided), ("overclaims", overclaims), ("dead-claim", dead)];
        counts("lock", &lock, &mut c);
        counts("liveness", &[("blocked", blocked)], &mut c);
        let tokens = [("backwards", j.tokens.backwards), ("shared", j.tokens.shared), ("missing", j.tokens.missing)];
        counts("tokens", &tokens, &mut c);
        let resource = [("wrong_refusals", j.resource.wrong_refusals), ("wrong_tokens", j.resource.wrong_tokens)];
        counts("resource", &resource, &mut c);
        for (arm, f) in &j.fence {
            c.insert(format!("{arm}.fence {}", f.verdict));
            let all = [
                ("stale_accepted", f.stale_accepted),
                ("stale_rejected", f.stale_rejected),
                ("late", f.late),
                ("unjustified", f.unjustified),
                ("false_rejections", f.false_rejections),
                ("undecided", f.undecided),
                ("repeats", f.repeats),
                ("stale_reads", f.stale_reads),
            ];
            counts(&format!("{arm}.fence"), &all, &mut c);
        }
        for (arm, d) in &j.data {
            c.insert(format!("{arm}.data {}", d.verdict));
            let all = [
                ("lost_updates", d.lost_updates),
                ("overwrites", d.overwrites),
                ("refused", d.refused),
                ("stale_accepted", d.stale_accepted.unwrap_or(0)),
                ("late", d.late.unwrap_or(0)),
                ("unjustified", d.unjustified),
                ("disagreements", d.disagreements),
            ];
            counts(&format!("{arm}.data"), &all, &mut c);
        }
        self.histories += 1;
        for class in c {
            *self.seen.entry(class).or_default() += 1;
        }
    }

    pub fn add(&mut self, other: Shares) {
        self.histories += other.histories;
        for (class, n) in other.seen {
            *self.seen.entry(class).or_default() += n;
        }
    }

    pub fn percent(&self, class: &str) -> f64 {
        100.0 * self.seen.get(class).copied().unwrap_or(0) as f64 / self.histories as f64
    }

    /// One line a class.
    pub fn table(&self) -> String {
        let line = |(class, _): (&String, &u64)| format!("{class:<44} {:6.2} %\n", self.percent(class));
        self.seen.iter().map(line).collect()
    }
}
