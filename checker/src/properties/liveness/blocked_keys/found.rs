//! The findings at the end of a run.

use history::Stamp;
use rustc_hash::FxHashMap;

use super::{
    super::{key_watch::Finding, open_attempts::Open, stuck::Found},
    BlockedKeys,
};
use crate::run::Run;

impl BlockedKeys {
    /// Returns the findings, ordered by time. If the record was cut short, only findings that no later event can
    /// refute. After a step of the host's clock no attempt counts as stuck: leases may rest on the clock.
    pub fn found(self, run: &Run, is_whole: bool) -> Found {
        let mut found = Found::default();
        let stepped = run.clock_steps.steps.iter().map(|step| step.span.0).min();
        // In a record that was cut short, a later event could show that such a hold was in use.
        let presumed_over = self.presumed_over.iter().filter(|_| !is_whole).filter_map(|hold| run.attempt(*hold));
        let mut first_over: FxHashMap<usize, Stamp> = FxHashMap::default();
        for hold in presumed_over {
            let first = first_over.entry(hold.key).or_insert(hold.sent.at);
            *first = hold.sent.at.min(*first);
        }
        for (number, key) in self.keys {
            // An open hold is not counted: the record shows when a hold had the key.
            let first_sent = |waits_alike: bool| {
                let is_counted = |open: &&Open| !open.is_hold && (open.behind.is_none() || !waits_alike);
                let open = key.open.iter().filter(is_counted).map(|open| open.sent.at);
                open.chain(first_over.get(&number).copied()).min()
            };
            let first_sent = [false, true].map(first_sent);
            let may_have_had = |finding: &Finding| {
                let waits_alike = is_whole && finding.is_waiter;
                first_sent[usize::from(waits_alike)].is_some_and(|sent| sent <= finding.to)
            };
            let stands = |finding: &&Finding| finding.stands(self.lease) && !may_have_had(finding);
            // Of the refusals of a key, one counts.
            let mut is_told = [false; 2];
            for finding in key.found.iter().filter(stands) {
                if !finding.is_waiter && std::mem::replace(&mut is_told[usize::from(finding.is_kept)], true) {
                    continue;
                }
                if stepped.is_some_and(|stepped| stepped <= finding.to) {
                    found.after_step += 1;
                } else if finding.is_kept {
                    found.kept += 1;
                } else {
                    found.stuck.push(finding.stuck.clone());
                }
            }
        }
        found.stuck.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms).then(a.attempt.cmp(&b.attempt)));
        found
    }
}
