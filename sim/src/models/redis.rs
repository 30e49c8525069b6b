//! One Redis node, as far as the lock clients see it: what it keeps, what each [`Step`] does to it, and what a restart leaves.
//!
//! A key runs out at a time of the node's own **wall** clock, in whole milliseconds: it is set for `now + lease`, and is gone once the
//! clock shows more than that (`now > expires`; in the very millisecond it is still there). So a clock that jumps forward ends leases, and
//! one that jumps back prolongs them. A restart changes no time at which a key runs out: the append-only file holds absolute times.
//!
//! `tests/redis_conformance.rs` holds this against a real server: every answer, what can be seen of expiry from outside, and restarts.
//!
//! What is left out:
//!
//! - Time within a script. Here it stands still; a 7.0 decides by the start of the script whether a key is there, but adds the lease to
//!   the time at which it does so, some microseconds later.
//! - The cycle that removes expired keys ten times a second. Only a clock that goes back can tell; see [`RedisModel::sweep`].
//! - Slow commands, the limit of memory and eviction, replication, other clients' commands: a step takes no time, and always succeeds.
//! - Counters above 2^53, which a script rounds, and leases so long that a server refuses them.
//! - The rewriting of the append-only file, and the time that a snapshot takes: it is on the disk at the instant at which it begins.
//! - Writes that a kernel was not given yet. While a background fsync runs, `everysec` may put off its writes for up to two seconds, and a
//!   SIGKILL in that time loses what was answered; here a SIGKILL with an append-only file loses nothing.
//! - The fsync that takes its time. Here it is over at once when a full second begins; on a real disk a loss of power may cost the second
//!   before as well. And with `always` a step that was done and not answered survives here, and may not on a server.

use std::{collections::BTreeMap, time::Duration};

use history::Persistence;
use locks::{Answer, Key, Owner, Step, Token};
use nemesis::Data;
use rustc_hash::FxHashMap;

/// One node. It knows no time but the one that it is told: the wall clock of the node, since the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisModel {
    persistence: Persistence,
    drops_counters: bool,
    /// Where each key's entry is. Its order means nothing, and reaches nobody.
    index: FxHashMap<Key, usize>,
    entries: Vec<Entry>,
    /// The entry of the last step.
    recent: usize,
    /// The full second up to which all is on the disk; for `everysec` only.
    synced_s: u64,
    /// For snapshots only.
    snapshots: Snapshots,
}

/// When a snapshot is due: [`Persistence::SNAPSHOT_EVERY`] after the one before (or the start), if anything has changed since. The server looks ten
/// times a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Snapshots {
    last: Option<Duration>,
    /// When the first change came of those that it does not have.
    changed: Option<Duration>,
}

/// All about one key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: Key,
    now: Kept,
    /// What was there when the second `touched_s` began, for `everysec`; the last snapshot, where there are snapshots.
    synced: Kept,
    touched_s: u64,
}

/// What a node keeps of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Kept {
    lock: Option<Lock>,
    counter: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lock {
    owner: Owner,
    /// The last millisecond in which it is there; none if it never runs out.
    expires_ms: Option<u64>,
}

impl RedisModel {
    /// An empty node.
    pub fn new(persistence: Persistence) -> Self {
        let (index, entries) = (FxHashMap::default(), Vec::new());
        let (drops_counters, recent, synced_s, snapshots) = Default::default();
        Self { persistence, drops_counters, index, entries, recent, synced_s, snapshots }
    }

    /// The planted bug of a server: a restart that keeps keys drops the counters.
    #[must_use]
    pub fn dropping_counters(self) -> Self {
        Self { drops_counters: true, ..self }
    }

    /// A server that was started when its wall clock showed `wall`. For snapshots only; without it the first step counts as the start.
    #[must_use]
    pub fn started(self, wall: Duration) -> Self {
        Self { snapshots: Snapshots { last: Some(wall), changed: None }, ..self }
    }

    /// Does `step` while the wall clock shows `wall`.
    pub fn apply(&mut self, step: &Step, wall: Duration) -> Answer {
        let now_ms = whole_ms(wall);
        let everysec_s = (self.persistence == Persistence::Everysec).then(|| self.sync(wall));
        if self.persistence == Persistence::Snapshot {
            self.take_snapshot_if_due(wall);
            self.snapshots.changed.get_or_insert(wall);
        }
        let entry = self.entry(key(step));
        if let Some(second) = everysec_s
            && entry.touched_s < second
        {
            entry.synced.clone_from(&entry.now);
            entry.touched_s = second;
        }
        entry.now.expire(now_ms);
        entry.now.apply(step, now_ms)
    }

    /// A new process in the place of the one that was killed when its wall clock showed `killed`: time that it is down syncs nothing.
    ///
    /// `Kept` is what the kernel had, which without an append-only file is the last snapshot or nothing; `Synced` what was on the disk.
    pub fn restart(&mut self, data: Data, killed: Duration) {
        let second = self.sync(killed);
        self.take_snapshot_if_due(killed);
        for entry in &mut self.entries {
            let mut left = match (data, self.persistence) {
                (Data::Lost, _) => Kept::default(),
                // Without a log and snapshots nothing is ever put there but what was taken over.
                (_, Persistence::No | Persistence::Snapshot) => std::mem::take(&mut entry.synced),
                (Data::Synced, Persistence::Everysec) if entry.touched_s == second => std::mem::take(&mut entry.synced),
                (Data::Synced | Data::Kept, _) => std::mem::take(&mut entry.now),
            };
            if self.drops_counters {
                left.counter = 0;
            }
            (entry.now, entry.synced, entry.touched_s) = (left.clone(), left, 0);
        }
        (self.synced_s, self.snapshots) = (0, Snapshots::default());
    }

    /// Background fsyncs that are due: none, since here they take no time. None at all without an append-only file.
    pub fn pending_fsyncs(&self) -> Option<u32> {
        self.persistence.has_log().then_some(0)
    }

    /// The counters that it has, by their keys.
    pub fn counters(&self) -> BTreeMap<Key, u64> {
        self.entries.iter().map(|entry| (entry.key.clone(), entry.now.counter)).collect()
    }

    /// Raises a counter to `at_least`, if it is smaller: by a snapshot that is put there before the server starts, and stays.
    pub fn raise_counter(&mut self, key: &Key, at_least: u64) {
        let Entry { now, synced, .. } = self.entry(key);
        (now.counter, synced.counter) = (now.counter.max(at_least), synced.counter.max(at_least));
    }

    fn take_snapshot_if_due(&mut self, wall: Duration) {
        let last = *self.snapshots.last.get_or_insert(wall);
        let Some(changed) = self.snapshots.changed else { return };
        let due = next_look(changed.max(last + Persistence::SNAPSHOT_EVERY));
        if due < wall {
            self.entries.iter_mut().for_each(|entry| entry.synced.clone_from(&entry.now));
            self.snapshots = Snapshots { last: Some(due), changed: None };
        }
    }

    /// Removes all that has run out at `wall`. A server does so by itself ten times a second, which nobody can tell until its clock goes
    /// back: to be called before that, or keys come back that a server has removed.
    pub fn sweep(&mut self, wall: Duration) {
        for entry in &mut self.entries {
            entry.now.expire(whole_ms(wall));
        }
    }

    /// Who owns `key` when the wall clock shows `wall`.
    pub fn owner(&self, key: &Key, wall: Duration) -> Option<&Owner> {
        let lock = self.kept(key)?.lock.as_ref()?;
        (!lock.is_over(whole_ms(wall))).then_some(&lock.owner)
    }

    /// The counter of `key`.
    pub fn counter(&self, key: &Key) -> u64 {
        self.kept(key).map_or(0, |kept| kept.counter)
    }

    fn kept(&self, key: &Key) -> Option<&Kept> {
        self.index.get(key).map(|&at| &self.entries[at].now)
    }

    fn entry(&mut self, key: &Key) -> &mut Entry {
        // Steps of one key come in a row; this costs less than the index.
        if self.entries.get(self.recent).is_none_or(|entry| entry.key != *key) {
            self.recent = self.find(key);
        }
        &mut self.entries[self.recent]
    }

    fn find(&mut self, key: &Key) -> usize {
        match self.index.get(key) {
            Some(&at) => at,
            None => {
                let at = self.entries.len();
                self.index.insert(key.clone(), at);
                self.entries.push(Entry {
                    key: key.clone(),
                    now: Kept::default(),
                    synced: Kept::default(),
                    touched_s: 0,
                });
                at
            }
        }
    }

    /// The last full second at `wall`. It never goes back: a server whose wall clock does syncs nothing until it has caught up.
    fn sync(&mut self, wall: Duration) -> u64 {
        self.synced_s = self.synced_s.max(wall.as_secs());
        self.synced_s
    }
}

impl Kept {
    fn expire(&mut self, now_ms: u64) {
        if self.lock.as_ref().is_some_and(|lock| lock.is_over(now_ms)) {
            self.lock = None;
        }
    }

    /// The scripts of `locks`, on a key that has not run out.
    fn apply(&mut self, step: &Step, now_ms: u64) -> Answer {
        match step {
            Step::Acquire(..) | Step::AcquireUncounted(..) | Step::AcquireForever(..) if self.lock.is_some() => {
                Answer::Refused
            }
            Step::Acquire(_, owner, lease) | Step::Overwrite(_, owner, lease) => {
                self.set(owner, Some(end(now_ms, *lease)));
                self.count()
            }
            Step::AcquireUncounted(_, owner, lease) => self.set(owner, Some(end(now_ms, *lease))),
            Step::AcquireForever(_, owner) => {
                self.set(owner, None);
                self.count()
            }
            Step::CountOnly(_) => self.count(),
            Step::ExtendOrSet(_, owner, lease) if self.lock.is_none() => self.set(owner, Some(end(now_ms, *lease))),
            Step::Extend(_, owner, lease) | Step::ExtendOrSet(_, owner, lease) => {
                done(self.owned_by(owner).map(|lock| lock.extend(end(now_ms, *lease))).is_some())
            }
            Step::ExtendAny(_, lease) => {
                done(self.lock.as_mut().map(|lock| lock.extend(end(now_ms, *lease))).is_some())
            }
            Step::SetExpiry(_, owner, lease) => {
                done(self.owned_by(owner).map(|lock| lock.expires_ms = Some(end(now_ms, *lease))).is_some())
            }
            Step::IsOwner(_, owner) => done(self.owned_by(owner).is_some()),
            Step::Release(_, owner) => done(self.owned_by(owner).is_some() && self.lock.take().is_some()),
            Step::RemoveAny(_) => done(self.lock.take().is_some()),
            Step::RaiseFence(_, owner, Token(token)) => {
                let may = self.owned_by(owner).is_some() && self.counter <= *token;
                self.set_counter(*token, may)
            }
            Step::RaiseAny(_, Token(token)) => self.set_counter(*token, self.counter <= *token),
            Step::SetFence(_, owner, Token(token)) => {
                let may = self.owned_by(owner).is_some();
                self.set_counter(*token, may)
            }
        }
    }

    fn owned_by(&mut self, owner: &Owner) -> Option<&mut Lock> {
        self.lock.as_mut().filter(|lock| lock.owner == *owner)
    }

    fn set(&mut self, owner: &Owner, expires_ms: Option<u64>) -> Answer {
        self.lock = Some(Lock { owner: owner.clone(), expires_ms });
        Answer::Done
    }

    fn count(&mut self) -> Answer {
        self.counter += 1;
        Answer::Granted(Token(self.counter))
    }

    fn set_counter(&mut self, token: u64, may: bool) -> Answer {
        if may {
            self.counter = token;
        }
        done(may)
    }
}

impl Lock {
    fn is_over(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| now_ms > expires_ms)
    }

    /// Never shortens; one that would never have run out gets an end.
    fn extend(&mut self, end_ms: u64) {
        self.expires_ms = Some(self.expires_ms.map_or(end_ms, |expires_ms| expires_ms.max(end_ms)));
    }
}

fn key(step: &Step) -> &Key {
    match step {
        Step::Acquire(key, ..)
        | Step::AcquireUncounted(key, ..)
        | Step::Extend(key, ..)
        | Step::Release(key, ..)
        | Step::RaiseFence(key, ..)
        | Step::Overwrite(key, ..)
        | Step::AcquireForever(key, ..)
        | Step::CountOnly(key)
        | Step::IsOwner(key, ..)
        | Step::RemoveAny(key)
        | Step::ExtendAny(key, ..)
        | Step::ExtendOrSet(key, ..)
        | Step::SetExpiry(key, ..)
        | Step::RaiseAny(key, ..)
        | Step::SetFence(key, ..) => key,
    }
}

fn done(was: bool) -> Answer {
    if was { Answer::Done } else { Answer::Refused }
}

/// When a server looks next whether anything is to be done by itself.
fn next_look(at: Duration) -> Duration {
    Duration::from_millis((whole_ms(at) / 100 + 1) * 100)
}

/// A server's clock in milliseconds: what is begun does not count.
fn whole_ms(wall: Duration) -> u64 {
    u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)
}

/// When a lease ends that is given now. The client rounds leases up to whole milliseconds, and asks for one at least.
fn end(now_ms: u64, lease: Duration) -> u64 {
    let lease_ms = u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1);
    now_ms.saturating_add(lease_ms)
}

#[cfg(test)]
mod tests;
