//! A store with revisions and leases, after etcd 3.4.23: one linearizable state, whoever of the servers keeps it.
//!
//! Left out: raft itself (when there is a leader, and who, is told from outside, and so are the leader's clocks), transactions other than
//! those of [`Op`], reads that are not linearizable, watch streams (an [`Op::AwaitGone`] that cannot be answered yet is asked again),
//! compaction, and restarts (a member that was killed has lost nothing that was answered).
//!
//! The Lock service ([`Op::Lock`]) is that of 3.4, or with [`Models::lock_checks_key`] that of 3.5. Left out of it: a request that breaks off
//! while it waits takes its key with it; here the key stays until its lease ends.
//!
//! Leases are kept by the leader, by its clocks. Three things are as in etcd and matter to a lock:
//!
//! - A lease that has run out keeps its keys until the leader has looked through its leases, which it does every
//!   [`StoreModel::LOOKS_EVERY`]; but it is not renewed any more. (etcd lets such a renewal wait until the lease is revoked. Here it is
//!   answered at once: no such lease.)
//! - In 3.4 the leader finds leases by the wall clock and then asks the monotonic clock too, so that both must have passed; a renewal asks
//!   the monotonic clock alone.
//! - A new leader gives every lease its whole time again, since renewals were never replicated. (etcd adds an election timeout.)

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use history::{LeaseClock, Models};
use locks::{Key, LeaseId, Op, Owner, Revision, Seen};

/// What the leader's clocks show.
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

/// A lease, as the leader knows it.
#[derive(Debug, Clone)]
struct Lease {
    granted: Duration,
    /// When its time is over, by each clock.
    deadline: StoreClocks,
    keys: BTreeSet<(Key, Revision)>,
}

impl Lease {
    fn has_run_out(&self, now: StoreClocks) -> bool {
        now.monotonic >= self.deadline.monotonic
    }
}

/// When each lease runs out as one leader knew it at one time. One that is frozen goes on knowing just this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderView(BTreeMap<LeaseId, StoreClocks>);

/// The store.
#[derive(Debug, Clone)]
pub struct StoreModel {
    models: Models,
    revision: Revision,
    last_lease: LeaseId,
    leases: BTreeMap<LeaseId, Lease>,
    queues: BTreeMap<Key, BTreeMap<Revision, (Owner, LeaseId)>>,
    /// Requests to the Lock service that wait, and the revision at which the key of each was created, whether it still stands or not.
    locking: BTreeMap<(Key, LeaseId), Revision>,
}

impl StoreModel {
    /// The least time that is granted: one and a half election timeouts of a second, in whole seconds.
    pub const LEAST_LEASE: Duration = Duration::from_secs(2);
    /// How often a leader looks for leases that have run out: whoever drives the model calls [`StoreModel::expire`] so often.
    pub const LOOKS_EVERY: Duration = Duration::from_millis(500);

    /// An empty store.
    pub fn new(models: Models) -> Self {
        let (leases, queues, locking) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { models, revision: Revision(1), last_lease: LeaseId(0), leases, queues, locking }
    }

    /// Does `op`. None: an [`Op::AwaitGone`] or [`Op::Lock`] still waits; to be asked again when a key may have gone, which is after any
    /// [`Op::Delete`], [`Op::Unlock`], [`Op::Revoke`] or [`Op::DeleteAll`], and whenever [`StoreModel::expire`] or [`StoreModel::resumed`] says so.
    pub fn apply(&mut self, op: &Op, now: StoreClocks) -> Option<Seen> {
        Some(match op {
            Op::Grant(asked) => self.grant(*asked, now),
            Op::KeepAlive(id) => match self.leases.get_mut(id).filter(|lease| !lease.has_run_out(now)) {
                Some(lease) => {
                    lease.deadline = now.after(lease.granted);
                    Seen::Leased(*id, lease.granted)
                }
                None => Seen::Leased(*id, Duration::ZERO),
            },
            Op::TimeToLive(id) => {
                let deadline = self.leases.get(id).map(|lease| lease.deadline.monotonic);
                Seen::Leased(*id, deadline.unwrap_or_default().saturating_sub(now.monotonic))
            }
            Op::Revoke(id) => done_or_gone(self.revoke(*id)),
            Op::Create(key, owner, lease) => self.create(key, owner, *lease),
            Op::Before(key, revision) => {
                let older = self.queue(key).and_then(|queue| queue.range(..revision).next_back());
                older.map_or(Seen::Gone, |(older, _)| Seen::At(*older))
            }
            Op::AwaitGone(key, revision) if self.stands(key, *revision) => return None,
            Op::AwaitGone(..) => Seen::Gone,
            Op::Confirm(key, revision) => {
                let is_oldest = self.holder(key).is_some_and(|(oldest, _)| oldest == *revision);
                if is_oldest { Seen::Done } else { Seen::Refused }
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
            Op::OfLease(key, lease) => self.of_lease(key, *lease).map_or(Seen::Gone, Seen::At),
            Op::Unlock(key, lease) => {
                if let Some(revision) = self.of_lease(key, *lease) {
                    self.remove(key, revision);
                    self.revision.0 += 1;
                }
                Seen::Done
            }
            Op::DeleteAll(key) => {
                let all: Vec<Revision> = self.queue(key).into_iter().flatten().map(|(revision, _)| *revision).collect();
                all.iter().for_each(|revision| self.remove(key, *revision));
                self.revision.0 += i64::from(!all.is_empty());
                Seen::Done
            }
        })
    }

    /// The leader looks for leases that have run out, and revokes them. Whether a key went.
    pub fn expire(&mut self, now: StoreClocks) -> bool {
        let over = |lease: &Lease| self.is_over(lease.deadline, now);
        let over: Vec<LeaseId> = self.leases.iter().filter(|(_, lease)| over(lease)).map(|(id, _)| *id).collect();
        self.revoke_all(&over)
    }

    /// Another leader, whose clocks show `now`: all leases get their full time again.
    pub fn leader_changed(&mut self, now: StoreClocks) {
        self.leases.values_mut().for_each(|lease| lease.deadline = now.after(lease.granted));
    }

    /// What the leader knows of the leases: to be taken when it is frozen, for [`StoreModel::resumed`].
    pub fn leader_view(&self) -> LeaderView {
        LeaderView(self.leases.iter().map(|(id, lease)| (*id, lease.deadline)).collect())
    }

    /// A leader that was frozen when `view` was taken goes on, and its clocks show `now`. With `revokes_on_resume` it revokes what ran out by
    /// what it knows before it learns that another leads, though that one has renewed it (etcd#15247). Whether a key went.
    pub fn resumed(&mut self, view: &LeaderView, now: StoreClocks) -> bool {
        if !self.models.revokes_on_resume {
            return false;
        }
        let over: Vec<LeaseId> =
            view.0.iter().filter(|(_, deadline)| self.is_over(**deadline, now)).map(|(id, _)| *id).collect();
        self.revoke_all(&over)
    }

    /// The truth: who has the oldest key of the queue.
    pub fn holder(&self, key: &Key) -> Option<(Revision, &Owner)> {
        self.queue(key)?.first_key_value().map(|(revision, (owner, _))| (*revision, owner))
    }

    /// The lease under which the oldest key of the queue stands.
    pub fn holder_lease(&self, key: &Key) -> Option<LeaseId> {
        self.queue(key)?.first_key_value().map(|(_, (_, lease))| *lease)
    }

    /// Who stands in the queue, the oldest key first.
    pub fn waiting(&self, key: &Key) -> impl Iterator<Item = (Revision, &Owner)> {
        self.queue(key).into_iter().flatten().map(|(revision, (owner, _))| (*revision, owner))
    }

    /// The revision of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How many leases there are.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    fn queue(&self, key: &Key) -> Option<&BTreeMap<Revision, (Owner, LeaseId)>> {
        self.queues.get(key)
    }

    fn stands(&self, key: &Key, revision: Revision) -> bool {
        self.queue(key).is_some_and(|queue| queue.contains_key(&revision))
    }

    fn is_over(&self, deadline: StoreClocks, now: StoreClocks) -> bool {
        let monotonic = now.monotonic >= deadline.monotonic;
        match self.models.lease_clock {
            LeaseClock::Both => monotonic && now.wall >= deadline.wall,
            LeaseClock::Monotonic => monotonic,
        }
    }

    fn grant(&mut self, asked: Duration, now: StoreClocks) -> Seen {
        let seconds = asked.as_secs().saturating_add(u64::from(asked.subsec_nanos() > 0));
        let granted = Duration::from_secs(seconds).max(Self::LEAST_LEASE);
        self.last_lease.0 += 1;
        self.leases.insert(self.last_lease, Lease { granted, deadline: now.after(granted), keys: BTreeSet::new() });
        Seen::Leased(self.last_lease, granted)
    }

    fn create(&mut self, key: &Key, owner: &Owner, id: LeaseId) -> Seen {
        if let Some((revision, _)) = self.waiting(key).find(|(_, waiting)| *waiting == owner) {
            return Seen::At(revision);
        }
        // One that has run out and is not revoked yet will do, as in etcd: the key goes with it.
        let Some(lease) = self.leases.get_mut(&id) else { return Seen::Gone };
        self.revision.0 += 1;
        lease.keys.insert((key.clone(), self.revision));
        self.queues.entry(key.clone()).or_default().insert(self.revision, (owner.clone(), id));
        Seen::At(self.revision)
    }

    /// The Lock service. It waits for the newest of the older keys to go and looks again, which comes to this: until there is no older one. Then it
    /// grants the lock, up to 3.4 without a look at the key that waited.
    fn lock(&mut self, key: &Key, id: LeaseId) -> Option<Seen> {
        let waited = self.locking.remove(&(key.clone(), id));
        let own = match waited {
            Some(own) => own,
            None => match self.create(key, &owner_of(id), id) {
                Seen::At(own) => own,
                gone => return Some(gone),
            },
        };
        if self.queue(key).is_some_and(|queue| queue.range(..own).next().is_some()) {
            self.locking.insert((key.clone(), id), own);
            return None;
        }
        let is_refused = waited.is_some() && self.models.lock_checks_key && !self.stands(key, own);
        Some(if is_refused { Seen::Gone } else { Seen::Locked(self.revision) })
    }

    /// When the Lock service's key of this lease was created, if it stands.
    fn of_lease(&self, key: &Key, id: LeaseId) -> Option<Revision> {
        let owner = owner_of(id);
        self.waiting(key).find(|(_, waiting)| **waiting == owner).map(|(revision, _)| revision)
    }

    /// Removes one key, of its queue and of its lease. The revision is the caller's: all that goes at once goes at one.
    fn remove(&mut self, key: &Key, revision: Revision) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if let Some((_, lease)) = queue.remove(&revision)
            && let Some(lease) = self.leases.get_mut(&lease)
        {
            lease.keys.remove(&(key.clone(), revision));
        }
        if self.queues.get(key).is_some_and(BTreeMap::is_empty) {
            self.queues.remove(key);
        }
    }

    /// Whether there was such a lease.
    fn revoke(&mut self, id: LeaseId) -> bool {
        let Some(lease) = self.leases.remove(&id) else { return false };
        lease.keys.iter().for_each(|(key, revision)| self.remove(key, *revision));
        self.revision.0 += i64::from(!lease.keys.is_empty());
        true
    }

    /// Whether a key went.
    fn revoke_all(&mut self, ids: &[LeaseId]) -> bool {
        let before = self.revision;
        ids.iter().for_each(|id| _ = self.revoke(*id));
        self.revision != before
    }
}

/// By which name the Lock service puts a lease into the queue.
fn owner_of(lease: LeaseId) -> Owner {
    Owner::new(format!("{:x}", lease.0))
}

fn done_or_gone(is_done: bool) -> Seen {
    if is_done { Seen::Done } else { Seen::Gone }
}

#[cfg(test)]
mod tests;
