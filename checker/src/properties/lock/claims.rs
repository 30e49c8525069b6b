//! Claims that the promise of the lock service does not cover: dead claims, overclaims, and claims by a minority.
//!
//! A clock of the worker that ran slow explains a dead claim or an overclaim, and no other fault does. Such a fault is
//! proved at the end only, so the claims are collected with the spans in which the clock must have lost the
//! time.

use std::time::Duration;

use history::{Answers, ClientId, ClockChange, HoldId, Key, NodeName, ProcessName, Stamp, fault};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    apply_event::GRANTED,
    holds::{Attempt, EventRef, Grant, Nodes, Span},
    rules,
    run::{Run, millis},
};

/// Stamps and readings of a clock are rounded: a clock that lost this much less than the claim was late explains it.
const ROUNDED: Duration = Duration::from_micros(1);

/// A hold that was claimed when its promise had ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeadClaim {
    /// The key.
    pub key: Key,
    /// The hold.
    pub hold: HoldId,
    /// The client.
    pub client: ClientId,
    /// The worker.
    pub worker: ProcessName,
    /// The time of the claim, in milliseconds since the run's start.
    pub at_ms: f64,
    /// The time from the promise end to the claim, in milliseconds; may be 0.
    pub late_ms: f64,
    /// The attempt and its success.
    pub witness: Vec<u64>,
}

/// A hold that fewer nodes than a majority had granted, by its own recorded answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MinorityClaim {
    /// The key.
    pub key: Key,
    /// The hold.
    pub hold: HoldId,
    /// The client.
    pub client: ClientId,
    /// The worker.
    pub worker: ProcessName,
    /// The time of the claim, in milliseconds since the run's start.
    pub at_ms: f64,
    /// The nodes that had granted the hold.
    pub granted: u64,
    /// All lock nodes.
    pub nodes: u64,
    /// The attempt and its success.
    pub witness: Vec<u64>,
}

/// The evidence of an overclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverclaimedBy {
    /// The client's deadline, when it acquired.
    Deadline,
    /// A check of the deadline that passed.
    Check,
    /// The client's deadline when it acquired its own hold again, or this acquisition itself, after the promise end.
    Reentry,
}

/// A hold in which its client believed after the promise had ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overclaim {
    /// The key.
    pub key: Key,
    /// The hold.
    pub hold: HoldId,
    /// The client.
    pub client: ClientId,
    /// The worker.
    pub worker: ProcessName,
    /// The first evidence that no slow clock of the worker explains.
    pub by: OverclaimedBy,
    /// The time of this evidence, in milliseconds since the run's start.
    pub at_ms: f64,
    /// The time from the promise end to the deadline or to the check, in milliseconds.
    pub past_ms: f64,
    /// The checks of the hold that passed after the promise end.
    pub checks: u64,
    /// The request that the promise counts from, and the evidence.
    pub witness: Vec<u64>,
}

/// The time that a worker's clock must have lost within a span to explain a claim.
#[derive(Debug, Clone, Copy)]
struct Lost {
    within: Span,
    late: Duration,
}

impl Lost {
    /// Returns whether a clock of the worker ran so slow.
    fn is_explained(self, run: &Run, worker: &NodeName) -> bool {
        let lost = run.faults.iter().filter(|(_, l)| l.proved.is_some() && l.node == *worker).filter_map(|(id, l)| {
            let step = run.plan.step(id)?;
            let fault::Clock { clock, change: ClockChange::DriftPpm(ppm) } = step.fault.clock()? else { return None };
            let slow = u32::try_from(-ppm).ok().filter(|_| clock.is_monotonic())?;
            Some(rules::overlap(l.bracket()?, self.within)?.mul_f64(f64::from(slow) / 1e6))
        });
        let lost: Duration = lost.sum();
        !lost.is_zero() && lost + ROUNDED > self.late
    }
}

/// One instant at which a client believed in its hold after the promise end.
#[derive(Debug)]
struct Belief {
    worker: NodeName,
    lost: Lost,
    /// If the client had taken renewals for done that were answered after the promise end: what the clock must have
    /// lost for that, and since the last of them. All of it is needed.
    by_renewals: Vec<Lost>,
    claim: Overclaim,
    at: Stamp,
}

/// The renewals of a hold that succeeded after the promise end. A client with a slow clock takes them for done.
#[derive(Debug)]
struct LateRenewals {
    /// The first of them, and each that was answered after the promise of those before had ended, too.
    late: Vec<Lost>,
    /// The promise in which the client believes then: from the request on which it rests to its end.
    promise: Span,
}

/// All such claims of a run.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    dead: Vec<(Lost, DeadClaim)>,
    /// In the order of their stamps.
    pub minority: Vec<MinorityClaim>,
    /// In the order of their stamps.
    beliefs: Vec<Belief>,
    /// Of open holds.
    renewals: FxHashMap<HoldId, LateRenewals>,
}

/// The claims that remain when the faults are known.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub dead: Vec<DeadClaim>,
    pub overclaims: Vec<Overclaim>,
    pub minority: Vec<MinorityClaim>,
    /// Claims that a slow clock explains.
    pub explained: u64,
    /// The first overclaim of each hold.
    pub since: FxHashMap<HoldId, Stamp>,
}

impl Judged {
    /// Returns whether the claims violate the lock.
    pub fn violate(&self) -> bool {
        !self.dead.is_empty() || !self.overclaims.is_empty() || !self.minority.is_empty()
    }
}

impl Claims {
    /// A hold was acquired. `valid` is the time for which its client believed in it.
    pub fn acquired(&mut self, run: &Run, hold: &Attempt, grant: &Grant, valid: Duration) {
        let (ok, promise) = (grant.ok, grant.first_promise);
        let within = (grant.promised_from, ok.at);
        if rules::is_dead_claim(ok.at, promise) {
            let late = ok.at.since(promise);
            let claim = DeadClaim {
                key: run.key(hold.key).clone(),
                hold: hold.id,
                client: hold.client,
                worker: run.process(hold.process).name.clone(),
                at_ms: run.ms(ok.at),
                late_ms: millis(late),
                witness: vec![hold.sent.seq, ok.seq],
            };
            self.dead.push((Lost { within, late }, claim));
        }
        // Of a deadline that has passed, the client does not say how long ago.
        let deadline = ok.at.plus(valid);
        if !valid.is_zero() && rules::is_overclaim(deadline, promise) {
            let lost = Lost { within, late: deadline.since(promise) };
            self.beliefs.push(Belief::new(run, hold, OverclaimedBy::Deadline, ok, lost));
        }
    }

    /// Compares the nodes that granted a hold with a majority.
    pub fn counted(&mut self, run: &Run, hold: &Attempt, ok: EventRef, answers: &Answers) {
        let nodes = run.plan.lock_nodes.len();
        let granted = hold.granted_on.count_ones() as usize;
        // A primary grants by itself, and a store decides as a whole, whichever member gave its answer.
        if run.plan.has_replicas() && granted > 0 {
            return;
        }
        // Of more nodes than a set of nodes can hold, and of a hold without answers, nothing is known.
        if rules::is_majority(granted, nodes) || nodes > Nodes::BITS as usize || answers.is_empty() {
            return;
        }
        // The answer of a store as a whole counts as the answer of all its members.
        let is_whole = |name: &NodeName| !run.plan.lock_nodes.contains(name);
        if answers.iter().any(|(name, answer)| is_whole(name) && GRANTED.contains(answer)) {
            return;
        }
        self.minority.push(MinorityClaim {
            key: run.key(hold.key).clone(),
            hold: hold.id,
            client: hold.client,
            worker: run.process(hold.process).name.clone(),
            at_ms: run.ms(ok.at),
            granted: granted as u64,
            nodes: nodes as u64,
            witness: vec![hold.sent.seq, ok.seq],
        });
    }

    /// A check of a hold's deadline passed.
    pub fn checked(&mut self, run: &Run, hold: &Attempt, check: EventRef) {
        if !rules::is_overclaim(check.at, hold.promise) {
            return;
        }
        let lost = Lost { within: (promised_from(hold), check.at), late: check.at.since(hold.promise) };
        let by_renewals = self.by_renewals(hold.id, check.at, check.at);
        self.beliefs.push(Belief { by_renewals, ..Belief::new(run, hold, OverclaimedBy::Check, check, lost) });
    }

    /// A client acquired its own hold again, and believes in it for `valid`. A re-entry asks no server, so its deadline
    /// is that of the hold. The stamp is taken before the client reads its clock, as that of a check.
    pub fn reentered(&mut self, run: &Run, hold: &Attempt, mark: EventRef, valid: Duration) {
        let deadline = mark.at.plus(valid);
        if !rules::is_overclaim(deadline, hold.promise) {
            return;
        }
        let lost = Lost { within: (promised_from(hold), mark.at), late: deadline.since(hold.promise) };
        let by_renewals = self.by_renewals(hold.id, mark.at, deadline);
        self.beliefs.push(Belief { by_renewals, ..Belief::new(run, hold, OverclaimedBy::Reentry, mark, lost) });
    }

    /// A renewal of a hold succeeded. The promise has taken it in, if it came in time.
    pub fn renewed(&mut self, hold: &Attempt, ok: Stamp) {
        if rules::is_renewed_in_time(ok, hold.promise) {
            return;
        }
        let ((_, sent), lease) = (hold.renewal_before(Stamp(u64::MAX)), hold.renewed_for.unwrap_or_default());
        let first = || LateRenewals { late: Vec::new(), promise: (promised_from(hold), hold.promise) };
        let known = self.renewals.entry(hold.id).or_insert_with(first);
        let (from, end) = known.promise;
        if !rules::is_renewed_in_time(ok, end) {
            known.late.push(Lost { within: (from, ok), late: ok.since(end) });
        }
        let renewed_to = rules::promise_end(sent, lease);
        if renewed_to > end {
            known.promise = (sent, renewed_to);
        }
    }

    /// Returns what a slow clock must have lost for a belief until `believed`, at the stamp `at`, if the client had
    /// taken late renewals for done. Empty if there was none.
    fn by_renewals(&self, hold: HoldId, at: Stamp, believed: Stamp) -> Vec<Lost> {
        let Some(known) = self.renewals.get(&hold) else { return Vec::new() };
        let mut all = known.late.clone();
        let (from, end) = known.promise;
        if rules::is_overclaim(believed, end) {
            all.push(Lost { within: (from, at), late: believed.since(end) });
        }
        all
    }

    pub fn closed(&mut self, hold: HoldId) {
        self.renewals.remove(&hold);
    }

    /// Judges all claims.
    pub fn judge(&self, run: &Run) -> Judged {
        let mut judged = Judged { minority: self.minority.clone(), ..Judged::default() };
        judged.minority.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms).then(a.hold.cmp(&b.hold)));
        for (lost, claim) in &self.dead {
            if lost.is_explained(run, &claim.worker.node()) {
                judged.explained += 1;
            } else {
                judged.dead.push(claim.clone());
            }
        }
        judged.dead.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms).then(a.hold.cmp(&b.hold)));
        let mut places: FxHashMap<HoldId, usize> = FxHashMap::default();
        for belief in &self.beliefs {
            let explains = |lost: Lost| lost.is_explained(run, &belief.worker);
            let by_renewals = || !belief.by_renewals.is_empty() && belief.by_renewals.iter().copied().all(explains);
            if explains(belief.lost) || by_renewals() {
                judged.explained += 1;
                continue;
            }
            let place = *places.entry(belief.claim.hold).or_insert_with(|| {
                judged.since.insert(belief.claim.hold, belief.at);
                judged.overclaims.push(belief.claim.clone());
                judged.overclaims.len() - 1
            });
            judged.overclaims[place].checks += u64::from(belief.claim.by == OverclaimedBy::Check);
        }
        judged.overclaims.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms).then(a.hold.cmp(&b.hold)));
        judged
    }
}

impl Belief {
    fn new(run: &Run, hold: &Attempt, by: OverclaimedBy, mark: EventRef, lost: Lost) -> Belief {
        let claim = Overclaim {
            key: run.key(hold.key).clone(),
            hold: hold.id,
            client: hold.client,
            worker: run.process(hold.process).name.clone(),
            by,
            at_ms: run.ms(mark.at),
            past_ms: millis(lost.late),
            checks: 0,
            witness: vec![hold.promised_by.seq, mark.seq],
        };
        Belief { worker: run.process(hold.process).node.clone(), lost, by_renewals: Vec::new(), claim, at: mark.at }
    }
}

/// The stamp that the promise of a hold rests on.
fn promised_from(hold: &Attempt) -> Stamp {
    match (hold.renewed, hold.grant) {
        (None, Some(grant)) => grant.promised_from,
        _ => hold.promised_by.at,
    }
}

#[cfg(test)]
mod tests;
