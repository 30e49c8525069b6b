//! What really happened, as only the simulation can know: who owned a key when a hold was claimed, and when an act arrived.
//!
//! An oracle for whoever judges the record. It asks the models of the servers, at that very instant and by their own clocks, and uses nothing
//! that the record says of leases, promises or answers.

use std::collections::BTreeMap;

use history::{Event, HoldId, Key, Stamp};
use locks::Owner;
use rustc_hash::FxHashMap;

use crate::executor::Process;

/// A hold was claimed: its client was told that it has the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The hold.
    pub hold: HoldId,
    /// Its key.
    pub key: Key,
    /// When its attempt's first request was sent.
    pub sent: Stamp,
    /// When the request was sent that its lease rests on: the same, unless the lease was kept alive in a queue.
    pub promised: Stamp,
    /// Its renewals that succeeded: when each was sent, and when it was answered.
    pub renewed: Vec<(Stamp, Stamp)>,
    /// When it was claimed.
    pub at: Stamp,
    /// Its token.
    pub token: Option<u64>,
    /// Who owned the key then, on a majority of the nodes.
    pub owner: Option<HoldId>,
    /// When its client stopped using it: released, gave up, noticed the loss, was killed.
    pub ended: Option<Stamp>,
}

/// A request arrived at the resource under a hold, for the first time, and what it did was not undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// The hold.
    pub hold: HoldId,
    /// Its key.
    pub key: Key,
    /// Its admission number.
    pub number: u64,
    /// When.
    pub at: Stamp,
    /// Whether it writes.
    pub is_write: bool,
    /// Who owned the key then, on a majority of the nodes.
    pub owner: Option<HoldId>,
}

/// A hold came to own its key, on a majority of the nodes at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reign {
    /// The hold, or the attempt that may become one.
    pub hold: HoldId,
    /// Its key.
    pub key: Key,
    /// When.
    pub from: Stamp,
}

/// The truth about a run.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    /// In the order of their stamps.
    pub claims: Vec<Claim>,
    /// In the order of their stamps.
    pub acts: Vec<Act>,
    /// In the order of their stamps.
    pub reigns: Vec<Reign>,
}

/// Gathers it.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    pub truth: Truth,
    /// The last attempt that each process has begun, when, and for which key.
    begun: BTreeMap<Process, HoldId>,
    attempts: FxHashMap<HoldId, (Process, Key, Stamp)>,
    owners: FxHashMap<Owner, HoldId>,
    claimed: FxHashMap<HoldId, usize>,
    /// Renewals that were sent and not answered.
    renewing: FxHashMap<HoldId, Stamp>,
    /// Who owned each key when it was looked at last.
    reigning: BTreeMap<Key, HoldId>,
}

impl Witness {
    /// A process sends a request by which `owner` may come to own something: it does so for the attempt that it has just begun.
    pub fn asks(&mut self, process: Process, owner: &Owner) {
        if let Some(attempt) = self.begun.get(&process)
            && !self.owners.contains_key(owner)
        {
            self.owners.insert(owner.clone(), *attempt);
        }
    }

    /// Whose owner value this is.
    pub fn whose(&self, owner: &Owner) -> Option<HoldId> {
        self.owners.get(owner).copied()
    }

    /// An event of a process; `owner` looks up who owns a key now.
    pub fn see(
        &mut self,
        process: Process,
        at: Stamp,
        event: &Event,
        owner: impl FnOnce(&Self, &Key) -> Option<HoldId>,
    ) {
        match event {
            Event::Acquire { attempt, key, .. } => {
                self.begun.insert(process, *attempt);
                self.attempts.insert(*attempt, (process, key.clone(), at));
            }
            Event::Acquired { attempt, token, promised_from, .. } => {
                let Some((_, key, sent)) = self.attempts.get(attempt).cloned() else { return };
                let (owner, token) = (owner(self, &key), token.map(|t| t.0));
                self.claimed.insert(*attempt, self.truth.claims.len());
                let (promised, renewed) = (promised_from.unwrap_or(sent), Vec::new());
                let hold = *attempt;
                self.truth.claims.push(Claim { hold, key, sent, promised, renewed, at, token, owner, ended: None });
            }
            Event::Renew { hold } => _ = self.renewing.insert(*hold, at),
            Event::Renewed { hold, .. } => {
                if let (Some(sent), Some(claim)) = (self.renewing.remove(hold), self.claimed.get(hold)) {
                    self.truth.claims[*claim].renewed.push((sent, at));
                }
            }
            Event::Release { hold } | Event::GaveUp { hold } | Event::LossNoticed { hold } => self.end(*hold, at),
            _ => {}
        }
    }

    /// `key` is owned by this one now.
    pub fn owned(&mut self, key: &Key, at: Stamp, owner: Option<HoldId>) {
        let known = self.reigning.get(key).copied();
        if known == owner {
            return;
        }
        match owner {
            Some(hold) => {
                self.reigning.insert(key.clone(), hold);
                self.truth.reigns.push(Reign { hold, key: key.clone(), from: at });
            }
            None => _ = self.reigning.remove(key),
        }
    }

    fn end(&mut self, hold: HoldId, at: Stamp) {
        if let Some(claim) = self.claimed.get(&hold) {
            self.truth.claims[*claim].ended.get_or_insert(at);
        }
    }

    /// A process was killed.
    pub fn killed(&mut self, process: Process, at: Stamp) {
        let Self { truth, attempts, .. } = self;
        for claim in &mut truth.claims {
            if attempts.get(&claim.hold).is_some_and(|(of, ..)| *of == process) {
                claim.ended.get_or_insert(at);
            }
        }
    }
}
