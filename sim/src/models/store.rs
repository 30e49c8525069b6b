//! A model of a store with revisions and leases, after etcd 3.4.23: one linearizable state for all members.
//!
//! The model leaves out raft (its caller elects the leader and gives the leader's clocks), transactions other than
//! those of [`Op`], reads that are not linearizable, watch streams (an [`Op::AwaitGone`] without an answer is applied
//! again), compaction, and restarts (a killed member loses nothing that was acknowledged).
//!
//! The Lock service ([`Op::Lock`]) is that of 3.4, or with [`Models::lock_checks_key`] that of 3.5. In etcd, a waiting
//! request that is cancelled deletes its key; here the key stays until its lease ends.
//!
//! The leader expires leases by its own clocks. Three details of etcd matter to a lock:
//!
//! - An expired lease keeps its keys until the leader checks its leases, every [`StoreModel::LOOKS_EVERY`], but it
//!   cannot be renewed. (In etcd such a renewal waits until the lease is revoked. Here it is answered at once: no such
//!   lease.)
//! - In 3.4 a lease expires once both the wall clock and the monotonic clock have passed its end. A renewal reads the
//!   monotonic clock alone.
//! - A new leader gives every lease its whole time again, because renewals are not replicated. (etcd adds an election
//!   timeout.)

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use history::{Models, ServerFacts, WhichClock};
use locks::{Key, LeaseId, Mode, Op, Owner, Revision, StoreAnswer, planted::PlantedOp};

/// The leader's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreClocks {
    /// The wall clock.
    pub wall: Duration,
    /// The monotonic clock.
    pub monotonic: Duration,
}

impl StoreClocks {
    fn after(self, time: Duration) -> Self {
        Self { wall: self.wall.saturating_add(time), monotonic: self.monotonic.saturating_add(time) }
    }
}

/// A lease of the leader.
#[derive(Debug, Clone)]
struct Lease {
    granted: Duration,
    /// The end of the lease, by each clock.
    deadline: StoreClocks,
    keys: BTreeSet<(Key, Revision)>,
}

impl Lease {
    fn has_run_out(&self, now: StoreClocks) -> bool {
        now.monotonic >= self.deadline.monotonic
    }
}

/// A key in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Queued {
    owner: Owner,
    lease: LeaseId,
    mode: Mode,
}

/// The end of each lease, as a leader knew it when it was frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderView(BTreeMap<LeaseId, StoreClocks>);

/// The store.
#[derive(Debug, Clone)]
pub struct StoreModel {
    models: Models,
    facts: ServerFacts,
    revision: Revision,
    last_lease: LeaseId,
    leases: BTreeMap<LeaseId, Lease>,
    queues: BTreeMap<Key, BTreeMap<Revision, Queued>>,
    /// Waiting requests to the Lock service, each with the creation revision of its key, which may be deleted
    /// meanwhile.
    locking: BTreeMap<(Key, LeaseId), Revision>,
}

impl StoreModel {
    /// The period of the leader's search for expired leases, in which the caller calls [`StoreModel::expire`].
    pub const LOOKS_EVERY: Duration = Duration::from_millis(500);

    /// An empty store.
    pub fn new(facts: &ServerFacts, models: Models) -> Self {
        let (leases, queues, locking) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (revision, last_lease) = (Revision(1), LeaseId(0));
        Self { models, facts: facts.clone(), revision, last_lease, leases, queues, locking }
    }

    /// Applies `op`. Returns none if an [`Op::AwaitGone`] or [`Op::Lock`] must wait. Apply a waiting operation again
    /// after each [`Op::Delete`], [`Op::Unlock`], [`Op::Revoke`] and [`PlantedOp::DeleteAll`], and whenever
    /// [`StoreModel::expire`] or [`StoreModel::resumed`] returns true.
    pub fn apply(&mut self, op: &Op, now: StoreClocks) -> Option<StoreAnswer> {
        Some(match op {
            Op::Grant(asked) => self.grant(*asked, now),
            Op::KeepAlive(id) => match self.leases.get_mut(id).filter(|lease| !lease.has_run_out(now)) {
                Some(lease) => {
                    lease.deadline = now.after(lease.granted);
                    StoreAnswer::Leased(*id, lease.granted)
                }
                None => StoreAnswer::Leased(*id, Duration::ZERO),
            },
            Op::TimeToLive(id) => {
                let deadline = self.leases.get(id).map(|lease| lease.deadline.monotonic);
                StoreAnswer::Leased(*id, deadline.unwrap_or_default().saturating_sub(now.monotonic))
            }
            Op::Revoke(id) => done_or_gone(self.revoke(*id)),
            Op::Create(key, owner, lease, mode) => self.create(key, owner, *lease, *mode),
            Op::Before(key, revision, mode) => {
                self.before(key, *revision, *mode).map_or(StoreAnswer::Gone, StoreAnswer::At)
            }
            Op::AwaitGone(key, revision) if self.stands(key, *revision) => return None,
            Op::AwaitGone(..) => StoreAnswer::Gone,
            Op::Confirm(key, revision, mode) => {
                let is_free = self.stands(key, *revision) && self.before(key, *revision, *mode).is_none();
                if is_free { StoreAnswer::Done } else { StoreAnswer::Refused }
            }
            Op::Delete(key, revision) => {
                let is_there = self.stands(key, *revision);
                if is_there {
                    self.remove(key, *revision);
                    self.revision.0 += 1;
                }
                done_or_gone(is_there)
            }
            Op::Lock(key, lease) => return self.lock(key, *lease),
            Op::OfLease(key, lease) => self.of_lease(key, *lease).map_or(StoreAnswer::Gone, StoreAnswer::At),
            Op::Unlock(key, lease) => {
                if let Some(revision) = self.of_lease(key, *lease) {
                    self.remove(key, revision);
                    self.revision.0 += 1;
                }
                StoreAnswer::Done
            }
            Op::Planted(PlantedOp::DeleteAll(key)) => {
                let all: Vec<Revision> = self.queue(key).into_iter().flatten().map(|(revision, _)| *revision).collect();
                all.iter().for_each(|revision| self.remove(key, *revision));
                self.revision.0 += i64::from(!all.is_empty());
                StoreAnswer::Done
            }
        })
    }

    /// Revokes the expired leases. Returns whether a key was deleted.
    pub fn expire(&mut self, now: StoreClocks) -> bool {
        let over = |lease: &Lease| self.is_over(lease.deadline, now);
        let over: Vec<LeaseId> = self.leases.iter().filter(|(_, lease)| over(lease)).map(|(id, _)| *id).collect();
        self.revoke_all(&over)
    }

    /// Changes the leader to one with the clocks `now`. All leases get their whole time again.
    pub fn leader_changed(&mut self, now: StoreClocks) {
        self.leases.values_mut().for_each(|lease| lease.deadline = now.after(lease.granted));
    }

    /// The leader's knowledge of the leases. Take it as the leader is frozen, for [`StoreModel::resumed`].
    pub fn leader_view(&self) -> LeaderView {
        LeaderView(self.leases.iter().map(|(id, lease)| (*id, lease.deadline)).collect())
    }

    /// Thaws a leader that was frozen with `view`, at the clocks `now`. With `revokes_on_resume`, it revokes the leases
    /// that have expired by its old knowledge before it learns of the new leader, which may have renewed them
    /// (etcd#15247). Returns whether a key was deleted.
    pub fn resumed(&mut self, view: &LeaderView, now: StoreClocks) -> bool {
        if !self.models.revokes_on_resume {
            return false;
        }
        let over: Vec<LeaseId> =
            view.0.iter().filter(|(_, deadline)| self.is_over(**deadline, now)).map(|(id, _)| *id).collect();
        self.revoke_all(&over)
    }

    /// The truth: the keys of the queue that no older key conflicts with, with their owners and leases.
    pub fn holders(&self, key: &Key) -> impl Iterator<Item = (Revision, &Owner, LeaseId)> {
        let all = self.queue(key).into_iter().flatten();
        let holding = all.filter(|(revision, queued)| self.before(key, **revision, queued.mode).is_none());
        holding.map(|(revision, queued)| (*revision, &queued.owner, queued.lease))
    }

    /// The owners in the queue, the oldest key first.
    pub fn waiting(&self, key: &Key) -> impl Iterator<Item = (Revision, &Owner)> {
        self.queue(key).into_iter().flatten().map(|(revision, queued)| (*revision, &queued.owner))
    }

    /// The revision of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The number of leases.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Returns whether a lease exists.
    pub fn has_lease(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    fn queue(&self, key: &Key) -> Option<&BTreeMap<Revision, Queued>> {
        self.queues.get(key)
    }

    /// The newest key of the queue before `revision` whose mode conflicts with `mode`.
    fn before(&self, key: &Key, revision: Revision, mode: Mode) -> Option<Revision> {
        let older = self.queue(key)?.range(..revision).rev();
        older.filter(|(_, queued)| queued.mode.conflicts(mode)).map(|(older, _)| *older).next()
    }

    fn stands(&self, key: &Key, revision: Revision) -> bool {
        self.queue(key).is_some_and(|queue| queue.contains_key(&revision))
    }

    fn is_over(&self, deadline: StoreClocks, now: StoreClocks) -> bool {
        let monotonic = now.monotonic >= deadline.monotonic;
        let wall = now.wall >= deadline.wall;
        match self.facts.lease_clock.of_servers() {
            Some(WhichClock::Wall) => wall,
            Some(WhichClock::Monotonic) => monotonic,
            Some(WhichClock::Both) => monotonic && wall,
            None => false,
        }
    }

    fn grant(&mut self, asked: Duration, now: StoreClocks) -> StoreAnswer {
        let granted = self.facts.granted(asked);
        self.last_lease.0 += 1;
        self.leases.insert(self.last_lease, Lease { granted, deadline: now.after(granted), keys: BTreeSet::new() });
        StoreAnswer::Leased(self.last_lease, granted)
    }

    fn create(&mut self, key: &Key, owner: &Owner, id: LeaseId, mode: Mode) -> StoreAnswer {
        if let Some((revision, _)) = self.waiting(key).find(|(_, waiting)| *waiting == owner) {
            return self.created(key, revision, mode);
        }
        // An expired lease that is not revoked yet suffices, as in etcd: the key ends with the lease.
        let Some(lease) = self.leases.get_mut(&id) else { return StoreAnswer::Gone };
        self.revision.0 += 1;
        lease.keys.insert((key.clone(), self.revision));
        self.queues
            .entry(key.clone())
            .or_default()
            .insert(self.revision, Queued { owner: owner.clone(), lease: id, mode });
        self.created(key, self.revision, mode)
    }

    /// The answer to the creation of a key, as etcd's client gives it: only for writers does it look for older keys.
    fn created(&self, key: &Key, revision: Revision, mode: Mode) -> StoreAnswer {
        let is_first = mode == Mode::Write && self.before(key, revision, mode).is_none();
        if is_first { StoreAnswer::First(revision) } else { StoreAnswer::At(revision) }
    }

    /// The Lock service. It waits until no older key is left, then grants the lock. Up to 3.4, it does not check that
    /// the waiting key still exists.
    fn lock(&mut self, key: &Key, id: LeaseId) -> Option<StoreAnswer> {
        let waited = self.locking.remove(&(key.clone(), id));
        let own = match waited {
            Some(own) => own,
            None => match self.create(key, &owner_of(id), id, Mode::Write) {
                StoreAnswer::At(own) | StoreAnswer::First(own) => own,
                gone => return Some(gone),
            },
        };
        if self.queue(key).is_some_and(|queue| queue.range(..own).next().is_some()) {
            self.locking.insert((key.clone(), id), own);
            return None;
        }
        let is_refused = waited.is_some() && self.models.lock_checks_key && !self.stands(key, own);
        Some(if is_refused { StoreAnswer::Gone } else { StoreAnswer::Locked(self.revision) })
    }

    /// The creation revision of the Lock service's key of this lease, if the key exists.
    fn of_lease(&self, key: &Key, id: LeaseId) -> Option<Revision> {
        let owner = owner_of(id);
        self.waiting(key).find(|(_, waiting)| **waiting == owner).map(|(revision, _)| revision)
    }

    /// Deletes one key from its queue and its lease. The caller gives the revision, because keys that are deleted
    /// together share one.
    fn remove(&mut self, key: &Key, revision: Revision) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if let Some(Queued { lease, .. }) = queue.remove(&revision)
            && let Some(lease) = self.leases.get_mut(&lease)
        {
            lease.keys.remove(&(key.clone(), revision));
        }
        if self.queues.get(key).is_some_and(BTreeMap::is_empty) {
            self.queues.remove(key);
        }
    }

    /// Revokes a lease. Returns whether it existed.
    fn revoke(&mut self, id: LeaseId) -> bool {
        let Some(lease) = self.leases.remove(&id) else { return false };
        lease.keys.iter().for_each(|(key, revision)| self.remove(key, *revision));
        self.revision.0 += i64::from(!lease.keys.is_empty());
        true
    }

    /// Returns whether a key was deleted.
    fn revoke_all(&mut self, ids: &[LeaseId]) -> bool {
        let before = self.revision;
        ids.iter().for_each(|id| _ = self.revoke(*id));
        self.revision != before
    }
}

/// The name of a lease in the queue of the Lock service.
fn owner_of(lease: LeaseId) -> Owner {
    Owner::new(format!("{:x}", lease.0))
}

fn done_or_gone(is_done: bool) -> StoreAnswer {
    if is_done { StoreAnswer::Done } else { StoreAnswer::Gone }
}

#[cfg(test)]
mod tests;
