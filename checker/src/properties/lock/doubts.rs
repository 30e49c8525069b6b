//! Why a lock without a violation is not upheld, and notes on one that is.

use crate::{
    report::plural,
    rules,
    run::{Run, millis},
};

use super::Lock;

impl Lock {
    pub(super) fn unproved(&self, run: &Run) -> u64 {
        self.unproved + self.killed.unproved(run)
    }

    /// The reasons why a lock without a violation is not upheld.
    pub(super) fn reasons(&self, run: &Run) -> Vec<String> {
        let mut reasons: Vec<String> = run.faults.unproved().collect();
        if self.undecided > 0 {
            let acts = plural(self.undecided, "act came after its own end", "acts came after their own end");
            reasons.push(format!("{acts}, and the order of grants does not say who held then"));
        }
        if let unproved @ 1.. = self.unproved(run) {
            let times = plural(unproved, "time", "times");
            reasons.push(format!(
                "{times} a key was granted during the promise to a client that was killed; the client may \
                 have released the key in its last moments, of which the record has nothing"
            ));
        }
        if let Some(step) = run.clock_steps.steps.iter().min_by_key(|step| (step.span, &step.process)) {
            let (ms, at, who) = (millis(step.moved), run.ms(step.span.1) / 1e3, &step.process);
            reasons.push(format!(
                "the host's clock stepped by {ms:.0} ms about {at:.3} s (seen by {who}): leases rest on it"
            ));
        }
        if let Some((stall, process)) = &run.stalls.longest
            && run.plan.schedule.is_empty()
            && rules::spoils_control(*stall, run.plan.lease)
        {
            let ms = millis(*stall);
            reasons.push(format!(
                "{process} stalled for {ms:.0} ms, more than a quarter of the lease: too long for a control run"
            ));
        }
        reasons
    }

    /// Notes on an upheld lock.
    pub(super) fn notes(&self, run: &Run) -> Vec<String> {
        let mut proved = run.faults.iter().filter_map(|(_, line)| Some((line, line.proved?))).peekable();
        if self.is_tested || proved.peek().is_none() {
            return Vec::new();
        }
        let pauses = proved.filter(|(line, _)| line.kind.freezes());
        match pauses.map(|(_, (from, to))| to.since(from)).max() {
            Some(longest) if longest < run.plan.lease => {
                let (longest, lease) = (longest.as_secs_f64(), run.plan.lease.as_secs_f64());
                vec![format!("no pause outlasted the lease: the longest was {longest:.3} s, the lease is {lease:.3} s")]
            }
            _ => vec!["no hold outlived its lease: the faults did not put the lock to the test".into()],
        }
    }
}
