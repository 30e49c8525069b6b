//! The truth about a run, which only a simulation knows: the owners of each key at every claim and at every act.
//!
//! The self-test compares the checker's verdicts with this oracle. The oracle asks the models of the servers, by their
//! own clocks, and uses nothing that the history says of leases, promises or answers.

use std::collections::BTreeMap;

use history::{ClientId, Event, HoldId, Key, Mode, Stamp};
use locks::Owner;
use rustc_hash::FxHashMap;

use crate::executor::Process;

/// A claim: a client got the answer that it has the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The hold.
    pub hold: HoldId,
    /// Its key.
    pub key: Key,
    /// The time at which the attempt sent its first request.
    pub sent: Stamp,
    /// The time at which the request for the current lease was sent. It differs from `sent` if the lease was renewed in
    /// a queue, or rests on an earlier request of the client's session.
    pub promised: Stamp,
    /// The successful renewals: when each was sent, and when it was answered.
    pub renewed: Vec<(Stamp, Stamp)>,
    /// The time of the claim.
    pub at: Stamp,
    /// The token.
    pub token: Option<u64>,
    /// The mode.
    pub mode: Mode,
    /// True if the hold owned the key at that time, on a majority of the nodes.
    pub owns: bool,
    /// The time at which the client released the lock, noticed the loss or was killed.
    pub ended: Option<Stamp>,
}

/// An act: the first arrival of a request at the resource, unless a restart lost the request's effect. A request under
/// a hold is an act of this hold, and one of the hold of the key above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// The hold.
    pub hold: HoldId,
    /// Its key.
    pub key: Key,
    /// The admission number.
    pub number: u64,
    /// The time.
    pub at: Stamp,
    /// True if the act writes.
    pub is_write: bool,
    /// True if the hold owned the key at that time, on a majority of the nodes.
    pub owns: bool,
}

/// The beginning of an ownership: a hold owns its key on a majority of the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The hold, or the attempt that may become a hold.
    pub hold: HoldId,
    /// Its key.
    pub key: Key,
    /// The time.
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
    pub ownerships: Vec<Ownership>,
}

/// An attempt, as its client announced it.
#[derive(Debug, Clone)]
struct Attempt {
    process: Process,
    client: ClientId,
    key: Key,
    mode: Mode,
    above: Option<HoldId>,
    sent: Stamp,
}

/// Gathers the truth during a run.
#[derive(Debug, Default)]
pub(crate) struct TruthRecorder {
    pub truth: Truth,
    /// The last attempt that each process has begun.
    begun: BTreeMap<Process, HoldId>,
    /// The last attempt that each client has begun.
    begun_by: BTreeMap<ClientId, HoldId>,
    attempts: FxHashMap<HoldId, Attempt>,
    owners: FxHashMap<Owner, HoldId>,
    claimed: FxHashMap<HoldId, usize>,
    /// Unanswered renewals, by the time of sending.
    renewing: FxHashMap<HoldId, Stamp>,
    /// The owners of each key at the last look.
    reigning: BTreeMap<Key, Vec<HoldId>>,
}

impl TruthRecorder {
    /// Notes that a process requests a lock for `owner`, which belongs to the attempt that the process has just begun.
    /// Under the lease of `grantee`, `owner` belongs to the last attempt of that client: in a session, the lease is one
    /// that an earlier attempt requested.
    #[inline(never)]
    pub fn asks(&mut self, process: Process, owner: &Owner, grantee: Option<&Owner>) {
        let attempt = match grantee {
            None => self.begun.get(&process),
            Some(grantee) => {
                let first = self.whose(grantee).and_then(|first| self.attempts.get(&first));
                first.and_then(|first| self.begun_by.get(&first.client))
            }
        };
        if let Some(attempt) = attempt.copied()
            && !self.owners.contains_key(owner)
        {
            self.owners.insert(owner.clone(), attempt);
        }
    }

    /// The key of a hold, and the hold of the key above.
    pub fn lock_of(&self, hold: HoldId) -> Option<(Key, Option<HoldId>)> {
        self.attempts.get(&hold).map(|attempt| (attempt.key.clone(), attempt.above))
    }

    /// The attempt of an owner value.
    pub fn whose(&self, owner: &Owner) -> Option<HoldId> {
        self.owners.get(owner).copied()
    }

    /// Takes an event of a process. `owners` looks up the owners of a key.
    pub fn see(&mut self, process: Process, at: Stamp, event: &Event, owners: impl FnOnce(&Self, &Key) -> Vec<HoldId>) {
        match event {
            Event::Acquire { client, attempt, key, mode, above, .. } => {
                self.begun.insert(process, *attempt);
                self.begun_by.insert(*client, *attempt);
                let (client, key, mode, above) = (*client, key.clone(), *mode, *above);
                self.attempts.insert(*attempt, Attempt { process, client, key, mode, above, sent: at });
            }
            Event::Acquired { attempt, token, promised_from, .. } => {
                let Some(Attempt { key, mode, sent, .. }) = self.attempts.get(attempt).cloned() else { return };
                let (owns, token) = (owners(self, &key).contains(attempt), token.map(|t| t.0));
                self.claimed.insert(*attempt, self.truth.claims.len());
                let (promised, renewed) = (promised_from.unwrap_or(sent), Vec::new());
                let hold = *attempt;
                let claim = Claim { hold, key, sent, promised, renewed, at, token, mode, owns, ended: None };
                self.truth.claims.push(claim);
            }
            Event::Renew { hold } => _ = self.renewing.insert(*hold, at),
            Event::Renewed { hold, .. } => {
                if let (Some(sent), Some(claim)) = (self.renewing.remove(hold), self.claimed.get(hold)) {
                    self.truth.claims[*claim].renewed.push((sent, at));
                }
            }
            Event::Release { hold } | Event::LossNoticed { hold } => self.end(*hold, at),
            _ => {}
        }
    }

    /// Notes the owners of `key` now.
    pub fn owned(&mut self, key: &Key, at: Stamp, owners: Vec<HoldId>) {
        let known = self.reigning.get(key).map_or(&[][..], Vec::as_slice);
        if known == owners {
            return;
        }
        let new = owners.iter().filter(|hold| !known.contains(hold));
        self.truth.ownerships.extend(new.map(|hold| Ownership { hold: *hold, key: key.clone(), from: at }));
        self.reigning.insert(key.clone(), owners);
    }

    fn end(&mut self, hold: HoldId, at: Stamp) {
        if let Some(claim) = self.claimed.get(&hold) {
            self.truth.claims[*claim].ended.get_or_insert(at);
        }
    }

    /// Ends the claims of a process that was killed.
    pub fn killed(&mut self, process: Process, at: Stamp) {
        let Self { truth, attempts, .. } = self;
        for claim in &mut truth.claims {
            if attempts.get(&claim.hold).is_some_and(|attempt| attempt.process == process) {
                claim.ended.get_or_insert(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_ends_when_its_client_notices_the_loss_and_not_later() {
        let (mut recorder, hold) = (TruthRecorder::default(), HoldId(1));
        let mut see = |at, event| recorder.see(0, Stamp(at), &event, |_, _| Vec::new());
        let (client, key, mode) = (ClientId(0), Key::numbered(0), Mode::Write);
        see(1, Event::Acquire { client, attempt: hold, key, intended: Stamp(1), mode, above: None });
        let (token, promised_from, place, answers) = (None, None, None, Vec::new());
        let (attempt, lease_ns, granted_after, valid_ns) = (hold, 100, Stamp(1), 100);
        let acquired =
            Event::Acquired { attempt, token, lease_ns, granted_after, promised_from, place, valid_ns, answers };
        see(2, acquired);
        see(5, Event::LossNoticed { hold });
        see(9, Event::Release { hold });
        assert_eq!(recorder.truth.claims[0].ended, Some(Stamp(5)));
    }

    #[test]
    fn a_key_under_the_lease_of_an_earlier_attempt_belongs_to_the_last_attempt_of_its_client() {
        let mut recorder = TruthRecorder::default();
        let begins = |recorder: &mut TruthRecorder, client, attempt| {
            let (client, attempt, key, intended) = (ClientId(client), HoldId(attempt), Key::numbered(0), Stamp(1));
            let event = Event::Acquire { client, attempt, key, intended, mode: Mode::Write, above: None };
            recorder.see(0, Stamp(1), &event, |_, _| Vec::new());
        };
        let leases = ["lease of client 0", "lease of client 1"].map(Owner::new);
        begins(&mut recorder, 0, 1);
        recorder.asks(0, &leases[0], None);
        begins(&mut recorder, 1, 2);
        recorder.asks(0, &leases[1], None);
        recorder.asks(0, &Owner::new("a"), Some(&leases[0]));
        begins(&mut recorder, 0, 3);
        begins(&mut recorder, 1, 4);
        recorder.asks(0, &Owner::new("b"), Some(&leases[0]));
        // The first key is requested again, and nobody knows this lease.
        recorder.asks(0, &Owner::new("a"), Some(&leases[0]));
        recorder.asks(0, &Owner::new("c"), Some(&Owner::new("unknown")));
        let whose = ["a", "b", "c"].map(|name| recorder.whose(&Owner::new(name)));
        assert_eq!(whose, [Some(HoldId(1)), Some(HoldId(3)), None]);
    }
}
