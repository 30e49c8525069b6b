//! Promises to killed clients: a lease lasts until the promise end although nobody is left to use it. If the service
//! grants the key to another client before that end, it has broken its promise, and no two entitlements show it.

use std::collections::hash_map;

use history::{FaultId, HoldId, Promise, Stamp};
use rustc_hash::FxHashMap;

use crate::{
    hold_summary::HoldSummary,
    holds::{Attempt, EarlyEnd, Grant},
    rules,
    run::Run,
};

use super::{
    evidence::{Entitled, Overlap, Renewed},
    hierarchy,
};

/// The fewest killed holds that are kept before those whose promise has ended are dropped.
const KEPT_MIN: usize = 64;

/// The holds of killed processes, and those that were cut short.
#[derive(Default)]
pub(crate) struct KilledHolds {
    /// The holds whose promise may still run, by key. Of a hold that is open, the shared state knows more.
    running: FxHashMap<usize, Vec<Attempt>>,
    /// The number of these holds, and the number at which those whose promise has ended are dropped.
    kept: usize,
    kept_max: usize,
    /// Each killed hold, and the first that was granted inside its promise.
    cut_short: Vec<CutShort>,
    /// The places of killed holds in `cut_short`.
    places: FxHashMap<HoldId, usize>,
}

/// A killed hold, and the first that was granted inside its promise.
struct CutShort {
    /// The length is what was left of the promise.
    found: Overlap,
    kill: FaultId,
    /// The record has all that the client did with the hold until then.
    known_until: Stamp,
}

impl KilledHolds {
    /// An entitlement has ended.
    pub fn ended(&mut self, run: &Run, hold: &Attempt) {
        if ends_with_client(run) || !is_killed(hold) {
            return;
        }
        self.running.entry(hold.key).or_default().push(hold.clone());
        self.kept += 1;
        if self.kept >= self.kept_max.max(KEPT_MIN) {
            self.running.retain(|key, holds| {
                drop_ended(run, *key, holds, run.now);
                !holds.is_empty()
            });
            self.kept = self.running.values().map(Vec::len).sum();
            self.kept_max = 2 * self.kept;
        }
    }

    /// A hold was acquired: it may cut killed holds of its key short, and those of other levels of a hierarchy.
    pub fn acquired(&mut self, run: &Run, second: &Attempt, grant: &Grant) {
        if ends_with_client(run) {
            return;
        }
        let KilledHolds { running, kept, cut_short, places, .. } = self;
        let levels = hierarchy::other_levels(run, second, || running.keys().copied().collect());
        for key in levels.iter().copied().chain([second.key]) {
            if let hash_map::Entry::Occupied(mut holds) = running.entry(key) {
                *kept -= drop_ended(run, key, holds.get_mut(), grant.ok.at);
                if holds.get().is_empty() {
                    holds.remove();
                }
            }
        }
        let retired = |key: usize| running.get(&key).into_iter().flatten();
        let killed = run.live(second.key).filter(|hold| is_killed(hold)).chain(retired(second.key));
        for first in killed.filter(|first| is_cut_short_by(first, grant)) {
            add(cut_short, places, run, first, second, grant);
        }
        // The places of two queues cannot be compared.
        let grant = Grant { place: None, ..*grant };
        let others = levels.into_iter().flat_map(retired);
        let others = others.filter(|first| hierarchy::is_across_levels(run, second, first));
        let killed = hierarchy::across_levels(run, second).filter(|hold| is_killed(hold)).chain(others);
        for first in killed.filter(|first| is_cut_short_by(first, &grant)) {
            add(cut_short, places, run, first, second, &grant);
        }
    }

    /// The holds that were surely cut short.
    pub fn proved<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = &'a Overlap> {
        self.cut_short.iter().filter(|cut| cut.is_found() && cut.is_proved(run)).map(|cut| &cut.found)
    }

    /// The number of holds that were cut short, unless their clients released them and the record lost that.
    pub fn unproved(&self, run: &Run) -> u64 {
        self.cut_short.iter().filter(|cut| cut.is_found() && !cut.is_proved(run)).count() as u64
    }

    /// No later event of the attempt matters.
    pub fn closed(&mut self, run: &Run, attempt: &Attempt) {
        let mut of_key = self.running.get_mut(&attempt.key).into_iter().flatten();
        if let Some(hold) = of_key.find(|hold| hold.id == attempt.id) {
            hold.clone_from(attempt);
        }
        self.settle(run, attempt);
    }

    /// Takes in what is now known of the promise: renewals, and a release that left before the process died.
    pub fn settle(&mut self, run: &Run, attempt: &Attempt) {
        if let Some(cut) = self.places.get(&attempt.id).and_then(|place| self.cut_short.get_mut(*place)) {
            cut.found.length = end(attempt).since(cut.found.from);
            cut.known_until = run.known_until(attempt);
        }
    }
}

impl CutShort {
    fn is_found(&self) -> bool {
        !self.found.length.is_zero()
    }

    /// Returns whether the client surely kept the hold until its process was dead. An event at the stamp of the death
    /// may be lost too.
    fn is_proved(&self, run: &Run) -> bool {
        self.known_until > run.dead_by(self.kill)
    }
}

/// Returns whether the promise to a client may end with its process. The lock of a program may be a session, which ends
/// with the program.
fn ends_with_client(run: &Run) -> bool {
    run.plan.servers.promise != Promise::Lease || run.plan.program.is_some()
}

/// Takes in what is known of the killed holds of a key, and drops those whose promise has ended. Returns how many were
/// dropped. In a wrong record, an attempt at another key may have the id of a hold that has closed.
fn drop_ended(run: &Run, key: usize, holds: &mut Vec<Attempt>, now: Stamp) -> usize {
    for hold in holds.iter_mut() {
        if let Some(newer) = run.attempt(hold.id) {
            hold.clone_from(newer);
        }
    }
    let known = holds.len();
    holds.retain(|hold| hold.key == key && rules::is_renewed_in_time(now, hold.promise));
    known - holds.len()
}

/// Notes that a killed hold was cut short by another. Of several others the first counts.
fn add(
    cut_short: &mut Vec<CutShort>,
    places: &mut FxHashMap<HoldId, usize>,
    run: &Run,
    first: &Attempt,
    second: &Attempt,
    grant: &Grant,
) {
    let (Some(own), Some((_, EarlyEnd::Kill(kill)))) = (first.grant, first.ended_by()) else { return };
    let from = grant.ok.at;
    let entitled = |hold: &Attempt, grant| {
        let renewed = Renewed { last: hold.renewal_before(from), leases: hold.leases.clone() };
        Entitled::new(HoldSummary::of(hold, grant), hold.granted_on, renewed)
    };
    let is_ordered = grant.is_later(&own);
    let found = Overlap {
        key: first.key.max(second.key),
        holds: [entitled(first, &own), entitled(second, grant)],
        is_ordered,
        from,
        length: end(first).since(from),
    };
    match places.get(&first.id).and_then(|place| cut_short.get_mut(*place)) {
        None => {
            places.insert(first.id, cut_short.len());
            cut_short.push(CutShort { found, kill, known_until: run.known_until(first) });
        }
        Some(CutShort { found: known, .. }) if known.from == from && second.id < known.holds[1].hold.id => {
            *known = found;
        }
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
