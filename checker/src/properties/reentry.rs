//! A hold that its own client acquires again stays one hold: it keeps its token, and it ends with its last release.
//!
//! The count of open acquisitions begins with 1 when the hold is acquired. Each `reentered` raises it by one, and each
//! `left` lowers it by one. The property is violated in three ways:
//!
//! - **token**: a re-entry got another token than the hold has. The resource would take the two for two holders.
//! - **freed-early**: the request that frees the key was sent with inner acquisitions still open.
//! - **miscounted**: the client counted other acquisitions than the record has, or entered a hold that it had released.
//!
//! A release too many (`left` with a count of 0) must change nothing; such releases are counted. A re-entry asks no
//! server, so it cannot extend the promise: a re-entry or its deadline after the promise end is an overclaim, and
//! violates `lock`.

use std::collections::BTreeMap;

use history::{Arm, Event, HoldId, Key, Plan, ProcessName};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    holds::Attempt,
    judge::{Ending, Judge},
    report::{Report, Violation, counted, plural},
    run::Run,
    verdict::Verdict,
};

/// The way in which a hold and its inner acquisitions were not one hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReentryFault {
    /// A re-entry got another token.
    Token,
    /// The key was freed with inner acquisitions still open.
    FreedEarly,
    /// The client's count is wrong.
    Miscounted,
}

impl ReentryFault {
    fn name(self) -> &'static str {
        match self {
            ReentryFault::Token => "token",
            ReentryFault::FreedEarly => "freed-early",
            ReentryFault::Miscounted => "miscounted",
        }
    }
}

/// A re-entry or a release that went wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WrongReentry {
    /// The way.
    pub kind: ReentryFault,
    /// The key.
    pub key: Key,
    /// The hold.
    pub hold: HoldId,
    /// The worker.
    pub worker: ProcessName,
    /// The time, in milliseconds since the run's start.
    pub at_ms: f64,
    /// The acquisition of the hold, and the event that is wrong.
    pub witness: Vec<u64>,
}

/// Holds that their own clients acquired again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReentryVerdict {
    /// The verdict.
    pub verdict: Verdict,
    /// Acquisitions of a hold by its own client.
    pub reentered: u64,
    /// The most acquisitions of one hold that were open at once.
    pub deepest: u32,
    /// Releases that sent no request, because another acquisition was open.
    pub left: u64,
    /// Releases too many, which changed nothing.
    pub released_too_often: u64,
    /// The first findings; no more than 100.
    pub wrong: Vec<WrongReentry>,
}

impl ReentryVerdict {
    /// Returns whether there was nothing to judge.
    fn is_empty(&self) -> bool {
        self.reentered == 0 && self.released_too_often == 0 && self.wrong.is_empty()
    }
}

/// The most findings that are kept.
const WRONG_MAX: usize = 100;
/// The most findings that the summary shows.
const SHOWN_MAX: usize = 3;

/// Judges re-entries.
pub(crate) struct Reentry {
    /// The acquisitions of each hold that are open. Holds that were never entered again are left out.
    open: FxHashMap<HoldId, u32>,
    is_planned: bool,
    verdict: ReentryVerdict,
}

impl Reentry {
    fn wrong(&mut self, run: &Run, hold: &Attempt, entry: &Entry, kind: ReentryFault) {
        self.verdict.verdict = Verdict::Violated;
        if self.verdict.wrong.len() < WRONG_MAX {
            let acquired = hold.grant.map_or(hold.sent.seq, |grant| grant.ok.seq);
            self.verdict.wrong.push(WrongReentry {
                kind,
                key: run.key(hold.key).clone(),
                hold: hold.id,
                worker: run.process(hold.process).name.clone(),
                at_ms: run.ms(entry.at),
                witness: vec![acquired, entry.seq],
            });
        }
    }
}

impl Judge for Reentry {
    const NAME: &str = "reentry";
    const ABOUT: &str = "A hold that its own client acquires again keeps its token, and ends with its last release.";
    type Verdict = ReentryVerdict;

    fn new(plan: &Plan) -> Reentry {
        let (verdict, wrong) = (Verdict::Measured, Vec::new());
        let verdict = ReentryVerdict { verdict, reentered: 0, deepest: 0, left: 0, released_too_often: 0, wrong };
        Reentry { open: FxHashMap::default(), is_planned: plan.workload.reenter > 0, verdict }
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Reentered { hold: id, count, token, .. } => {
                let Some((hold, grant)) = run.attempt(*id).and_then(|hold| Some((hold, hold.grant?))) else { return };
                self.verdict.reentered += 1;
                self.verdict.deepest = self.verdict.deepest.max(*count);
                let open = self.open.entry(*id).or_insert(1);
                *open += 1;
                if *count != *open || hold.is_used_up {
                    self.wrong(run, hold, entry, ReentryFault::Miscounted);
                }
                if *token != grant.token {
                    self.wrong(run, hold, entry, ReentryFault::Token);
                }
            }
            Event::Left { hold: id, count: 0 } => {
                self.verdict.released_too_often += 1;
                if let Some(hold) = run.attempt(*id).filter(|hold| !hold.is_used_up) {
                    self.wrong(run, hold, entry, ReentryFault::Miscounted);
                }
            }
            Event::Left { hold: id, count } => {
                self.verdict.left += 1;
                let Some(hold) = run.attempt(*id) else { return };
                let open = self.open.entry(*id).or_insert(1);
                *open = open.saturating_sub(1);
                if *open != *count {
                    self.wrong(run, hold, entry, ReentryFault::Miscounted);
                }
            }
            Event::Release { hold: id } => {
                let open = self.open.remove(id);
                if let Some(hold) = run.attempt(*id).filter(|_| open.is_some_and(|open| open > 1)) {
                    self.wrong(run, hold, entry, ReentryFault::FreedEarly);
                }
            }
            _ => {}
        }
    }

    fn on_attempt_closed(&mut self, _run: &Run, attempt: &Attempt) {
        self.open.remove(&attempt.id);
    }

    /// Runs in which no client was to acquire a key again, and none did or released too often, have no such line.
    fn finish(mut self, _run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let is_empty = self.verdict.is_empty();
        if !self.is_planned && is_empty {
            return Vec::new();
        }
        if !is_empty {
            self.verdict.verdict = Verdict::judged(!self.verdict.wrong.is_empty(), !ending.is_whole);
        }
        vec![(None, self.verdict)]
    }
}

impl Report for ReentryVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn figures(&self) -> String {
        if self.is_empty() {
            return "no client acquired its own hold again".into();
        }
        let wrong = match self.wrong.len() {
            0 => String::new(),
            // No more than these are kept.
            WRONG_MAX => format!("{WRONG_MAX} or more wrong; "),
            n => format!("{n} wrong; "),
        };
        let times = plural(self.reentered, "time", "times");
        let too_many = plural(self.released_too_often, "release too many", "releases too many");
        format!("{wrong}holds acquired again {times}, {} deep; {too_many}, without effect", self.deepest)
    }

    fn violations(&self) -> Vec<Violation> {
        let mut kinds: BTreeMap<ReentryFault, u64> = BTreeMap::new();
        self.wrong.iter().for_each(|wrong| *kinds.entry(wrong.kind).or_default() += 1);
        counted(&kinds.into_iter().map(|(kind, count)| (count, kind.name())).collect::<Vec<_>>())
    }

    fn evidence(&self) -> Vec<String> {
        let line = |wrong: &WrongReentry| {
            let WrongReentry { kind, key, hold, worker, at_ms, .. } = wrong;
            let what = match kind {
                ReentryFault::Token => "was acquired again with another token",
                ReentryFault::FreedEarly => "was freed with inner acquisitions still open",
                ReentryFault::Miscounted => "has another number of open acquisitions than its client counted",
            };
            format!("{:>8.3} s  {worker}  hold {hold} of {key} {what}", at_ms / 1e3)
        };
        self.wrong.iter().take(SHOWN_MAX).map(line).collect()
    }
}

#[cfg(test)]
mod tests;
