//! Promises to killed clients: a lease lasts until the promise end although nobody is left to use it. If the service
//! grants the key to another client before that end, it has broken its promise, and no two entitlements show it.

use history::{Promise, Stamp};

use crate::{
    holds::{Attempt, EarlyEnd, Grant, HoldSummary},
    rules,
    run::Run,
};

use super::evidence::{Entitled, Overlap, Renewed};

/// The holds of killed processes, and those that were cut short.
#[derive(Default)]
pub(crate) struct KilledHolds {
    /// The holds whose promise may still run. Of a hold that is open, the shared state knows more.
    running: Vec<Attempt>,
    /// Each killed hold, and the first that was granted inside its promise. The length is what was left of the promise.
    pub cut_short: Vec<Overlap>,
}

impl KilledHolds {
    /// An entitlement has ended.
    pub fn ended(&mut self, hold: &Attempt) {
        if is_killed(hold) {
            self.running.push(hold.clone());
        }
    }

    /// A hold was acquired: it may cut killed holds short.
    pub fn acquired(&mut self, run: &Run, second: &Attempt, grant: &Grant) {
        // The lock of a program may be a session, which ends with the program.
        if run.plan.servers.promise != Promise::Lease || run.plan.program.is_some() {
            return;
        }
        for hold in &mut self.running {
            if let Some(newer) = run.attempt(hold.id) {
                hold.clone_from(newer);
            }
        }
        self.running.retain(|hold| rules::is_renewed_in_time(grant.ok.at, hold.promise));
        let retired = self.running.iter().filter(|hold| hold.key == second.key);
        let killed = run.live(second.key).filter(|hold| is_killed(hold)).chain(retired);
        for first in killed.filter(|first| is_cut_short_by(first, grant)) {
            add(&mut self.cut_short, first, second, grant);
        }
    }

    /// No later event of the attempt matters.
    pub fn closed(&mut self, attempt: &Attempt) {
        if let Some(hold) = self.running.iter_mut().find(|hold| hold.id == attempt.id) {
            hold.clone_from(attempt);
        }
        self.settle(attempt);
    }

    /// Takes in what is now known of the promise: renewals, and a release that left before the process died.
    pub fn settle(&mut self, attempt: &Attempt) {
        for cut in self.cut_short.iter_mut().filter(|cut| cut.holds[0].hold.id == attempt.id) {
            cut.length = end(attempt).since(cut.from);
        }
    }
}

/// Notes that a killed hold was cut short by another. Of several others the first counts.
fn add(cut_short: &mut Vec<Overlap>, first: &Attempt, second: &Attempt, grant: &Grant) {
    let Some(own) = first.grant else { return };
    let from = grant.ok.at;
    let entitled = |hold: &Attempt, grant| {
        let renewed = Renewed { nodes: hold.renewed_on_before(from), leases: hold.leases.clone() };
        Entitled::new(HoldSummary::of(hold, grant), hold.granted_on, renewed)
    };
    let is_ordered = grant.is_later(&own);
    let found = Overlap {
        key: first.key,
        holds: [entitled(first, &own), entitled(second, grant)],
        is_ordered,
        from,
        length: end(first).since(from),
    };
    match cut_short.iter_mut().find(|known| known.holds[0].hold.id == first.id) {
        None => cut_short.push(found),
        Some(known) if known.from == from && second.id < known.holds[1].hold.id => *known = found,
        Some(_) => {}
    }
}

fn is_killed(hold: &Attempt) -> bool {
    matches!(hold.ended_by(), Some((_, EarlyEnd::Kill(_))))
}

/// The end of the promise, or the first request that gave the key back.
fn end(hold: &Attempt) -> Stamp {
    hold.let_go.map_or(hold.promise, |at| at.min(hold.promise))
}

/// Returns whether the service granted another hold inside the promise of a killed hold.
fn is_cut_short_by(first: &Attempt, second: &Grant) -> bool {
    let (Some(grant), Some((killed, _))) = (first.grant, first.ended_by()) else { return false };
    let is_inside = grant.conflicts(second) && rules::is_between(second.ok.at, killed.at, end(first));
    // If the order of the grants is unknown, both promises must run at one instant.
    let is_promised = !rules::is_dead_claim(second.ok.at, second.first_promise) && !grant.is_later(second);
    is_inside && rules::is_acquired_before(grant.ok.at, second.ok.at) && (second.is_later(&grant) || is_promised)
}

#[cfg(test)]
mod tests;
