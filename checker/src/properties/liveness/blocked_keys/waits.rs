//! Attempts that wait in a queue although no client can hold their key.

use history::{HoldId, Stamp};

use super::{
    super::{
        key_watch::{Finding, KeyWatch},
        open_attempts::Open,
        stuck::{StuckAttempt, StuckKind},
    },
    BlockedKeys, FOUND_MAX,
};
use crate::{
    holds::{Attempt, ClientStep, EventRef, Span},
    rules,
    run::Run,
};

impl BlockedKeys {
    /// Returns whether a service that does not show its queue has left an attempt without an answer for longer than
    /// anything takes. No fault was on meanwhile, so the client would have read an answer: the attempt waited from its
    /// sending on, and did not have the key.
    pub(super) fn is_unanswered(&self, run: &Run, attempt: &Attempt, at: Stamp) -> bool {
        let is_quiet = self.disturbances.quiet_since().is_some_and(|since| since < attempt.sent.at);
        // A client at a point reads no answer.
        let has_read = !attempt.timeline.iter().any(|(_, step)| matches!(step, ClientStep::AtPoint(..)));
        let is_hidden = !run.plan.servers.shows_waiting && run.plan.program.is_none();
        is_hidden && is_quiet && has_read && rules::is_overdue(at, attempt.sent.at, self.bound())
    }

    /// Returns a finding if an attempt has waited too long without another attempt before it: until its end, or until
    /// something disturbs it.
    pub(super) fn waited(
        &self,
        run: &Run,
        key: usize,
        open: &Open,
        saw_until: Stamp,
        mark: EventRef,
    ) -> Option<Finding> {
        let watch = self.keys.get(&key)?;
        let (behind, since) = (open.behind?, self.free_since(run, watch)?);
        let since = since.max(behind.at).max(saw_until);
        let bound = self.bound();
        let is_kept = !watch.kept.is_empty();
        let is_stuck = rules::is_overdue(mark.at, since, bound) && watch.waits_alike(is_kept, self.lease) < FOUND_MAX;
        let attempt = run.attempt(open.id).filter(|_| is_stuck)?;
        let kind = if attempt.behind.is_some() { StuckKind::Waiting } else { StuckKind::Unanswered };
        let stuck = StuckAttempt::new(run, attempt, kind, since, mark);
        Some(Finding { from: since, to: mark.at, is_waiter: true, is_kept, since, bound, lease: self.lease, stuck })
    }

    /// Judges the attempts that wait when something disturbs them, by their waits until then. No attempt is visited if
    /// the last disturbance was not long enough before.
    pub(super) fn interrupted(&mut self, run: &Run, mark: EventRef) {
        let bound = self.bound();
        let is_overdue = |since: Stamp| rules::is_overdue(mark.at, since, bound);
        if !self.quiet_since().is_some_and(is_overdue) {
            return;
        }
        let is_free = |key: &KeyWatch| self.free_since(run, key).is_some_and(is_overdue);
        let mut waiting: Vec<(usize, Open)> = Vec::new();
        for (number, key) in self.keys.iter().filter(|(_, key)| is_free(key)) {
            let open = key.open.iter().filter(|open| open.behind.is_some() && !open.is_hold);
            waiting.extend(open.map(|open| (*number, *open)));
        }
        for (key, open) in waiting {
            let finding = self.waited(run, key, &open, Stamp(0), mark);
            self.add(key, finding);
        }
    }
}

impl Finding {
    /// Counts only the part of a wait that is inside a span. Returns whether it is too long all the same. A refusal has
    /// no such part.
    pub fn counts_within(&mut self, run: &Run, (from, until): Span) -> bool {
        if !self.is_waiter {
            return false;
        }
        (self.from, self.since, self.to) = (self.from.max(from), self.since.max(from), self.to.min(until));
        self.stuck.counts_within(run, (self.since, self.to));
        rules::is_overdue(self.to, self.since, self.bound)
    }
}

impl KeyWatch {
    /// Adds the wait of an attempt. Of several waits of one attempt the longest counts, but one that a client program
    /// may excuse counts less.
    pub fn add_wait(&mut self, finding: Finding) {
        let is_same = |known: &Finding| known.is_waiter && known.stuck.attempt == finding.stuck.attempt;
        let worth = |finding: &Finding| (!finding.is_kept, finding.to.since(finding.since));
        let Some(place) = self.found.iter().position(is_same) else { return self.found.push(finding) };
        if worth(&finding) > worth(&self.found[place]) {
            self.found[place] = finding;
        }
    }

    /// Takes the wait of an attempt that has the key now, as far as it came after the last stamp at which the attempt
    /// was behind another one.
    pub fn take_wait(&mut self, run: &Run, id: HoldId, behind_until: Stamp) -> Option<Finding> {
        let is_own = |finding: &Finding| finding.is_waiter && finding.stuck.attempt == id;
        let mut own = self.found.remove(self.found.iter().position(is_own)?);
        own.counts_within(run, (behind_until, Stamp(u64::MAX))).then_some(own)
    }
}
