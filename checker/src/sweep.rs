//! The sweep: every record goes through the merge, into the shared state, and past each property's judge.

use history::{Event, Plan, ProcessName, Record, Stamp, Tail};

use crate::{
    coherence,
    entry::Entry,
    facts::Facts,
    judge::Ending,
    merge::{Merge, Next},
    properties::Judges,
    run::{self, Run},
    subject::is_use,
    verdict::Verdict,
    verdicts::{Properties, Verdicts},
};

/// Judges a history as it is read.
///
/// The memory grows with keys, clients, requests that have not been seen to arrive, and violations found; not with the
/// history. A process that is frozen stops the horizon: what the others do meanwhile is kept until it runs again.
#[derive(Default)]
pub struct Checker {
    name: String,
    merge: Merge,
    /// Absent until the plan, which is the first record.
    sweep: Option<Sweep>,
}

/// The part that needs to know the plan.
struct Sweep {
    run: Run,
    judges: Judges,
    now: Stamp,
    /// The first contradiction: the number of its record, and the reason.
    contradiction: Option<(u64, String)>,
    /// Empty between two stamps; kept to reuse its memory.
    closed: run::Closed,
}

impl Sweep {
    fn new(plan: Plan) -> Self {
        let judges = Judges::new(&plan);
        Sweep { judges, run: Run::new(plan), now: Stamp(0), contradiction: None, closed: run::Closed::default() }
    }

    fn step(&mut self, entry: &Entry) {
        if entry.at != self.now {
            self.settle();
            self.now = entry.at;
        }
        if entry.is_undone {
            self.run.undone(entry);
            self.judges.on_undone(&self.run, entry);
            return;
        }
        if self.contradiction.is_none() {
            self.contradiction = coherence::contradiction(&self.run, entry).map(|why| (entry.seq, why));
        }
        self.run.apply(entry);
        if is_use(&entry.event) {
            return self.judges.on_use(&self.run, entry);
        }
        self.judges.on_event(&self.run, entry);
        if let Some(key) = self.run.key_touched(&entry.event) {
            self.retire(key, entry.at, None);
        }
    }

    /// Tells the judges which entitlements have ended by `now`.
    fn retire(&mut self, key: usize, now: Stamp, until: Option<Stamp>) {
        while let Some(id) = self.run.next_ended(key, now) {
            let Some(hold) = self.run.attempt(id) else { continue };
            let end = until.map_or(hold.end(), |until| hold.end().min(until));
            self.judges.on_entitlement_end(&self.run, hold, end);
        }
    }

    /// Completes a stamp: all its events have been seen.
    fn settle(&mut self) {
        self.run.complete_stamp();
        self.judges.on_stamp_complete(&self.run);
        self.run.settle(&mut self.closed);
        for attempt in self.closed.attempts.drain(..) {
            self.judges.on_attempt_closed(&self.run, &attempt);
        }
        for key in self.closed.keys.drain(..) {
            self.judges.on_key_quiet(&self.run, key);
        }
    }
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the plan, which was fed, kills the resource. Then each admission waits until the checker knows
    /// whether a restart undid it, unless [`Checker::know_recoveries`] has told.
    pub fn asks_for_recoveries(&self) -> bool {
        self.merge.is_forgetful()
    }

    /// Tells all `recovered` events of the record before their turn: process and largest number on disk
    /// ([`history::Reader::recoveries`]). Comes after the plan and before the next record.
    pub fn know_recoveries(&mut self, recoveries: Vec<(ProcessName, u64)>) {
        self.merge.know_recoveries(recoveries);
    }

    /// Judges the next record of the history.
    pub fn feed(&mut self, record: Record) {
        if let (None, Event::Plan { run, plan, .. }) = (&self.sweep, &record.event) {
            self.name.clone_from(run);
            self.merge.expect(plan);
            self.sweep = Some(Sweep::new(Plan::clone(plan)));
        }
        if let Some(process) = self.merge.see(&record) {
            let (at, seq) = (record.at, record.seq);
            self.merge.keep(Entry { at, seq, process, event: record.event, is_undone: false });
        }
        if let Some(sweep) = &mut self.sweep {
            advance(&mut self.merge, sweep);
        }
    }

    /// Returns the verdicts. `tail` says how the history ended; a history that was cut short is judged as far as it
    /// goes.
    pub fn finish(mut self, tail: Tail) -> Verdicts {
        let Some(mut sweep) = self.sweep else { return unplanned() };
        advance(&mut self.merge, &mut sweep);
        let (unjudgeable, until) = (self.merge.unjudgeable(), self.merge.judged_until());
        // If the judgement ends at an admission whose fate is not known, its stamp is not complete.
        if until.is_none_or(|until| sweep.now < until) {
            sweep.settle();
        }
        let (is_ended, mut reasons) = self.merge.into_reasons();
        if tail == Tail::Cut {
            reasons.insert("the history was cut short in the middle of a line".into());
        }
        if !is_ended {
            reasons.insert("the history has no end record: the run was not recorded to its end".into());
        }
        reasons.extend(sweep.run.reasons().iter().cloned());
        let contradiction = sweep
            .contradiction
            .take()
            .map(|(seq, why)| format!("the record contradicts itself at seq {seq}, so nothing in it is judged: {why}"));
        if let Some(why) = unjudgeable.or(contradiction) {
            // Stamps of two clocks cannot be compared, and of a contradiction nobody knows which half is wrong. So all
            // results of the sweep are void.
            let start = sweep.run.start;
            sweep = Sweep::new(sweep.run.plan);
            sweep.run.start = start;
            reasons.insert(why);
        }
        if sweep.run.plan.schedule.is_empty() {
            reasons.extend(sweep.run.faults.unplanned().map(|line| {
                format!("{}: a run without planned faults is a control run only if nothing else fails", line.name())
            }));
        }
        for key in sweep.run.busy_keys() {
            sweep.retire(key, Stamp(u64::MAX), until);
        }
        sweep.verdicts(self.name, reasons.into_iter().collect(), until)
    }
}

/// Sweeps over all events that are final.
fn advance(merge: &mut Merge, sweep: &mut Sweep) {
    while let Some(next) = merge.next() {
        match next {
            Next::Entry(process) => {
                sweep.run.add_process(process, |i| merge.name(i).clone());
                if let Some(entry) = merge.first(process) {
                    sweep.step(entry);
                }
                merge.taken(process);
            }
            Next::Gone { process, cut_at } => {
                sweep.run.add_process(process, |i| merge.name(i).clone());
                sweep.run.gone(process, cut_at);
            }
        }
    }
}

impl Sweep {
    fn verdicts(self, name: String, reasons: Vec<String>, until: Option<Stamp>) -> Verdicts {
        let Sweep { run, judges, now, .. } = self;
        let ending = Ending::new(reasons.is_empty(), judges.unsafe_requests(&run));
        let mut facts = Facts { judged_until_ms: run.ms(until.unwrap_or(now)).max(0.0), ..Facts::default() };
        let properties = Properties(judges.finish(&run, &ending, &mut facts));
        Verdicts {
            schema: 1,
            run: name,
            cluster: cluster(&run.plan),
            verdict: properties.worst(!ending.is_whole),
            as_expected: None,
            reasons,
            properties,
            facts,
        }
    }
}

fn cluster(plan: &Plan) -> String {
    plan.cluster.name().into()
}

/// A history that does not begin with a plan says nothing that could be judged.
fn unplanned() -> Verdicts {
    Verdicts {
        schema: 1,
        run: String::new(),
        cluster: String::new(),
        verdict: Verdict::Inconclusive,
        as_expected: None,
        reasons: vec!["the history does not begin with a plan".into()],
        properties: Properties::default(),
        facts: Facts::default(),
    }
}

#[cfg(test)]
mod tests;
