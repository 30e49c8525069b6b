//! Property 8: the run did enough to prove something.

use std::collections::BTreeSet;

use history::{Arm, ClientId, Event, FailureReason, Plan, When};
use rustc_hash::FxHashMap;
use serde::Serialize;
use smallvec::SmallVec;

use crate::{
    entry::Entry,
    facts::{Facts, LongestStall, UnplannedFault},
    faults::FaultRecord,
    judge::{Ending, Judge},
    per_key::PerKey,
    report::{Report, Violation, plural},
    run::{Run, millis},
    verdict::Verdict,
};

/// Property 8: the run was not vacuous.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActivityVerdict {
    /// Upheld or inconclusive.
    pub verdict: Verdict,
    /// Holds.
    pub holds: u64,
    /// The most clients that had holds of one key.
    pub clients: u64,
    /// The clients that had holds of any key.
    #[serde(skip)]
    pub holders: u64,
    /// Attempts refused as held, or, in queue locks, waiting behind another.
    pub refused: u64,
    /// The requirements that the run did not meet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Judges activity.
#[derive(Default)]
pub(crate) struct Activity {
    /// Clients that had holds of a key, in order. Most keys have few, so a list needs less memory than a set, and most
    /// clients have small numbers.
    clients: PerKey<SmallVec<[u16; 8]>>,
    /// The same for clients with larger numbers.
    others: FxHashMap<usize, BTreeSet<ClientId>>,
    refused: u64,
    /// Attempts that waited behind another.
    waited: u64,
}

impl Activity {
    /// The clients that had holds of any key.
    fn holders(&self, run: &Run) -> u64 {
        let small = run.keys().filter_map(|key| self.clients.get(key)).flatten();
        let small = small.map(|client| ClientId(u32::from(*client)));
        small.chain(self.others.values().flatten().copied()).collect::<BTreeSet<ClientId>>().len() as u64
    }
}

impl Judge for Activity {
    const NAME: &str = "activity";
    const ABOUT: &str = "The run did enough to prove something: holds, contention, and faults that were seen to work.";
    type Verdict = ActivityVerdict;

    fn new(_plan: &Plan) -> Activity {
        Activity::default()
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                let Some(hold) = run.attempt(*attempt) else { return };
                match u16::try_from(hold.client.0) {
                    Ok(client) => {
                        let clients = self.clients.of(hold.key);
                        if let Err(place) = clients.binary_search(&client) {
                            clients.insert(place, client);
                        }
                    }
                    Err(_) => {
                        self.others.entry(hold.key).or_default().insert(hold.client);
                    }
                }
            }
            // Each attempt counts once: an attempt that waited was counted when it began to wait.
            Event::AcquireFailed { why: FailureReason::Held, attempt, .. } => {
                let has_waited = run.attempt(*attempt).is_some_and(|a| a.behind.is_some());
                self.refused += u64::from(!has_waited);
            }
            Event::Behind { attempt } => {
                let first = run.attempt(*attempt).and_then(|a| a.behind);
                self.waited += u64::from(first.is_some_and(|first| first.seq == entry.seq));
            }
            _ => {}
        }
    }

    fn finish(self, run: &Run, ending: &Ending, facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let of_others = |key: usize| self.others.get(&key).map_or(0, BTreeSet::len);
        let count = |key| self.clients.get(key).map_or(0, SmallVec::len) + of_others(key);
        let clients = run.keys().map(count).max().unwrap_or(0) as u64;
        let wanted = run.plan.activity;
        let refused = self.refused + self.waited;
        let or_waiting = if self.waited > 0 { ", or waiting behind another" } else { "" };
        let mut reasons: Vec<String> = [
            (run.holds, u64::from(wanted.holds), ["hold", "holds"], ""),
            (clients, u64::from(wanted.clients), ["client", "clients"], " with holds of one key"),
            (refused, u64::from(wanted.refused), ["attempt refused as held", "attempts refused as held"], or_waiting),
        ]
        .into_iter()
        .filter(|(seen, wanted, ..)| seen < wanted)
        .map(|(seen, wanted, [one, many], of)| {
            let are = if wanted == 1 { "is" } else { "are" };
            format!("only {}{of}, {wanted} {are} needed", plural(seen, one, many))
        })
        .collect();
        reasons.extend(run.faults.iter().filter_map(|(_, line)| fault_missing(line)));
        reasons.extend(schedule_missing(run));
        let requested = |line: &&FaultRecord| line.requested.is_some() && !line.is_unplanned;
        let count = |is: &dyn Fn(&FaultRecord) -> bool| {
            run.faults.iter().map(|(_, line)| line).filter(|l| is(l)).count() as u64
        };
        facts.holds = run.holds;
        facts.refused_as_held = refused;
        facts.first_operation_ms = run.first_operation.map(|at| run.ms(at));
        facts.faults_requested = count(&|line| requested(&line));
        facts.faults_proved = count(&|line| line.proved.is_some() && !line.is_unplanned);
        facts.faults_unproved = count(&|line| line.unproved.is_some());
        facts.unplanned_faults = run.faults.unplanned().map(|line| unplanned(run, line)).collect();
        facts.missed_target = count(&|line| line.is_missed);
        facts.longest_stall =
            run.stalls.longest.as_ref().map(|(d, process)| LongestStall { process: process.clone(), ms: millis(*d) });
        let verdict = Verdict::judged(false, !ending.is_whole || !reasons.is_empty());
        let holders = self.holders(run);
        let activity = ActivityVerdict { verdict, holds: run.holds, clients, holders, refused, reasons };
        vec![(None, activity)]
    }
}

/// "kill of redis-3, from 3.210 s at the latest to 4.870 s".
fn unplanned(run: &Run, line: &FaultRecord) -> UnplannedFault {
    UnplannedFault {
        kind: line.kind,
        node: line.node.clone(),
        from_ms: line.injected.map_or(0.0, |at| run.ms(at)),
        to_ms: line.healed.map(|at| run.ms(at)),
    }
}

/// The missing proof of a fault that was requested, or of its heal.
fn fault_missing(line: &FaultRecord) -> Option<String> {
    line.requested.filter(|_| !line.is_unplanned)?;
    let was_on = line.proved.is_some() || line.injected.is_some();
    let missing_heal =
        || (was_on && !line.is_heal_proved).then(|| format!("nothing shows that the {} was healed", line.name()));
    line.missing_proof().or_else(missing_heal)
}

/// The steps of the schedule that are missing: placed steps must fire; of random steps, at least one must be proved.
fn schedule_missing(run: &Run) -> Vec<String> {
    let mut missing = Vec::new();
    for step in &run.plan.schedule {
        let is_requested = run.faults.get(step.id).is_some_and(|line| line.requested.is_some());
        let kind = step.fault.kind();
        match step.when {
            _ if is_requested => {}
            When::AtPoint(point) => {
                missing.push(format!("the {kind} placed at {point} never fired: no client that was armed came there"));
            }
            When::WhileWaits(wait) => missing.push(format!("the {kind} that goes with wait {} never fired", wait.0)),
            When::Healed(other) => {
                missing.push(format!("the {kind} that comes when fault {} is healed never fired", other.0));
            }
            When::At(at) => missing.push(format!("the {kind} due at {at:?} never fired: it found no target in time")),
            // A schedule is drawn longer than the run, so its last steps need not fire.
            When::AfterHeal(_) => {}
        }
    }
    let is_any_proved = run.faults.iter().any(|(_, line)| line.proved.is_some() && !line.is_unplanned);
    if missing.is_empty() && !run.plan.schedule.is_empty() && !is_any_proved {
        missing.push("none of the planned faults was seen to work".into());
    }
    missing
}

impl Report for ActivityVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn figures(&self) -> String {
        let holds = plural(self.holds, "hold", "holds");
        // All clients, as these are all holds.
        let clients = plural(self.holders, "client", "clients");
        format!("{holds} by {clients}, {} refused as held", plural(self.refused, "attempt", "attempts"))
    }

    fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
