//! A model of one Redis node: its keys and counters, the effect of each [`Step`], and the data after a restart.
//!
//! A key expires by the node's **wall** clock, in whole milliseconds. The key is set to expire at `now + lease`, and is
//! gone once `now > expires`; in that very millisecond the key still exists. A clock that jumps forward therefore ends
//! leases, and a clock that jumps back extends them. A restart changes no expiry, because the append-only file has
//! absolute times.
//!
//! `tests/it/redis_conformance.rs` compares the model with a real server: every answer, visible expiry, and restarts.
//!
//! The model leaves out:
//!
//! - Time within a script, which stands still here. Redis 7.0 uses the start of the script to decide whether a key
//!   exists, but adds the lease to the time of the command, some microseconds later.
//! - The cycle that removes expired keys ten times a second. Only a clock that goes back shows the difference; see
//!   [`RedisModel::sweep`].
//! - Slow commands, memory limits, eviction, replication, other clients' commands. A step takes no time and always
//!   succeeds.
//! - Counters above 2^53, which a script rounds, and leases that are so long that a server refuses them.
//! - Rewrites of the append-only file, and the duration of a snapshot. A snapshot is on the disk as soon as it begins.
//! - Writes that the kernel does not have yet. During a background fsync, `everysec` may delay writes for up to two
//!   seconds, and a SIGKILL in that time loses acknowledged steps. Here a SIGKILL with an append-only file loses
//!   nothing.
//! - The duration of an fsync, which here ends as a full second begins. On a real disk a loss of power may also cost
//!   the second before. With `always`, a step that was done and not answered survives here, but may be lost on a
//!   server.

use std::{collections::BTreeMap, time::Duration};

use history::Persistence;
use history::fault::Data;
use locks::{
    Key, Owner, Step, StepAnswer,
    key_state::{KeyState, clock_ms},
};
use rustc_hash::FxHashMap;

/// One node. Its caller gives it the time: the wall clock of the node, since the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisModel {
    persistence: Persistence,
    drops_counters: bool,
    keeps_expired: bool,
    has_marker: bool,
    /// The index of each key's entry. Nothing depends on the order of this map.
    index: FxHashMap<Key, usize>,
    entries: Vec<Entry>,
    /// The entry of the last step.
    recent: usize,
    /// The full second up to which all steps are on the disk; for `everysec` only.
    synced_s: u64,
    /// The schedule of snapshots; for snapshots only.
    snapshots: Snapshots,
}

/// The schedule of snapshots. A snapshot is due more than [`Persistence::SNAPSHOT_EVERY`] after the previous one (or
/// the start), if anything has changed since. The server counts whole seconds, and checks ten times a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Snapshots {
    last: Option<Duration>,
    /// The time of the first change that the last snapshot lacks.
    changed: Option<Duration>,
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: Key,
    now: KeyState,
    /// The value at the beginning of the second `touched_s`, for `everysec`; or the value in the last snapshot.
    synced: KeyState,
    touched_s: u64,
}

impl RedisModel {
    /// An empty node.
    pub fn new(persistence: Persistence) -> Self {
        let (index, entries) = (FxHashMap::default(), Vec::new());
        let (drops_counters, keeps_expired, has_marker, recent, synced_s, snapshots) = Default::default();
        Self { persistence, drops_counters, keeps_expired, has_marker, index, entries, recent, synced_s, snapshots }
    }

    /// Plants a bug: a restart that keeps the keys drops the counters.
    #[must_use]
    pub fn dropping_counters(self) -> Self {
        Self { drops_counters: true, ..self }
    }

    /// Sets whether the lock of an expired lease stays until another one takes its place, as in a row of Postgres.
    #[must_use]
    pub fn keeping_expired(self, keeps_expired: bool) -> Self {
        Self { keeps_expired, ..self }
    }

    /// Sets the time of the start, which only snapshots need. Without it, the first step counts as the start.
    #[must_use]
    pub fn started(self, wall: Duration) -> Self {
        Self { snapshots: Snapshots { last: Some(wall), changed: None }, ..self }
    }

    /// Applies `step` at the wall clock `wall`.
    pub fn apply(&mut self, step: &Step, wall: Duration) -> StepAnswer {
        let now_ms = clock_ms(wall);
        let everysec_s = (self.persistence == Persistence::Everysec).then(|| self.sync(wall));
        let (makes_snapshots, keeps_expired) = (self.persistence == Persistence::Snapshot, self.keeps_expired);
        if makes_snapshots {
            self.take_snapshot_if_due(wall);
        }
        let entry = self.entry(step.key());
        if let Some(second) = everysec_s
            && entry.touched_s < second
        {
            entry.synced.clone_from(&entry.now);
            entry.touched_s = second;
        }
        if !keeps_expired {
            entry.now.expire(now_ms);
        }
        // A step that was refused, or that only looks, is no reason for a snapshot.
        let before = makes_snapshots.then(|| entry.now.clone());
        let answer = match keeps_expired {
            true => entry.now.apply_keeping_expired(step, now_ms),
            false => entry.now.apply(step, now_ms),
        };
        if before.is_some_and(|before| before != entry.now) {
            self.snapshots.changed.get_or_insert(wall);
        }
        answer
    }

    /// Notes the start of the next process, after which its first snapshot is due.
    pub fn starts(&mut self, wall: Duration) {
        self.snapshots.last = Some(wall);
    }

    /// Restarts the server, which was killed at the wall clock `killed`. A server that is down syncs nothing.
    ///
    /// `Kept` is the data that the kernel had: without an append-only file, the last snapshot or nothing. `Synced` is
    /// the data on the disk.
    pub fn restart(&mut self, data: Data, killed: Duration) {
        let second = self.sync(killed);
        self.has_marker &= data != Data::Lost;
        self.take_snapshot_if_due(killed);
        for entry in &mut self.entries {
            let mut left = match (data, self.persistence) {
                (Data::Lost, _) => KeyState::default(),
                // Without a log and snapshots nothing is ever put there but what was taken over.
                (_, Persistence::No | Persistence::Snapshot) => std::mem::take(&mut entry.synced),
                (Data::Synced, Persistence::Everysec) if entry.touched_s == second => std::mem::take(&mut entry.synced),
                (Data::Synced | Data::Kept, _) => std::mem::take(&mut entry.now),
            };
            if self.drops_counters {
                left.set_counter(0);
            }
            (entry.now, entry.synced, entry.touched_s) = (left.clone(), left, 0);
        }
        (self.synced_s, self.snapshots) = (0, Snapshots::default());
    }

    /// The number of background fsyncs that are due: 0, because they take no time here. None without an append-only
    /// file.
    pub fn pending_fsyncs(&self) -> Option<u32> {
        self.persistence.has_log().then_some(0)
    }

    /// Sets a key that no client uses, and that only a restart without data loses.
    pub fn leave_marker(&mut self) {
        self.has_marker = true;
    }

    /// Removes this key. Returns whether it was there.
    pub fn take_marker(&mut self) -> bool {
        std::mem::take(&mut self.has_marker)
    }

    /// The counters, by key.
    pub fn counters(&self) -> BTreeMap<Key, u64> {
        self.entries.iter().map(|entry| (entry.key.clone(), entry.now.counter())).collect()
    }

    /// Raises a smaller counter to `at_least`, by a snapshot that is installed before the server starts.
    pub fn raise_counter(&mut self, key: &Key, at_least: u64) {
        let Entry { now, synced, .. } = self.entry(key);
        now.set_counter(now.counter().max(at_least));
        synced.set_counter(synced.counter().max(at_least));
    }

    fn take_snapshot_if_due(&mut self, wall: Duration) {
        let last = *self.snapshots.last.get_or_insert(wall);
        let Some(changed) = self.snapshots.changed else { return };
        let due = next_look(changed.max(may_follow(last)));
        if due < wall {
            self.entries.iter_mut().for_each(|entry| entry.synced.clone_from(&entry.now));
            self.snapshots = Snapshots { last: Some(due), changed: None };
        }
    }

    /// Does what a server does by itself, ten times a second, up to `wall`: the server syncs its log, or makes the
    /// snapshot that is due, and removes expired keys. Call this before the clock goes back: the disk then keeps its
    /// data, and the removed keys never come back. A server that keeps expired keys removes nothing.
    pub fn sweep(&mut self, wall: Duration) {
        match self.persistence {
            Persistence::Everysec => _ = self.sync(wall),
            Persistence::Snapshot => self.take_snapshot_if_due(wall),
            Persistence::No | Persistence::Always => {}
        }
        if self.keeps_expired {
            return;
        }
        for entry in &mut self.entries {
            entry.now.expire(clock_ms(wall));
        }
    }

    /// The owner of `key` at the wall clock `wall`.
    pub fn owner(&self, key: &Key, wall: Duration) -> Option<&Owner> {
        self.kept(key)?.owner(clock_ms(wall))
    }

    /// The counter of `key`.
    pub fn counter(&self, key: &Key) -> u64 {
        self.kept(key).map_or(0, KeyState::counter)
    }

    fn kept(&self, key: &Key) -> Option<&KeyState> {
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
                    now: KeyState::default(),
                    synced: KeyState::default(),
                    touched_s: 0,
                });
                at
            }
        }
    }

    /// The last full second at `wall`. It never goes back: after a backward jump, the server syncs nothing until its
    /// clock has caught up.
    fn sync(&mut self, wall: Duration) -> u64 {
        self.synced_s = self.synced_s.max(wall.as_secs());
        self.synced_s
    }
}

/// The earliest time of a snapshot after the one at `last`. The server has both times in whole seconds, and wants more
/// than the configured number of them (`serverCron` of Redis 7.0: `unixtime - lastsave > seconds`).
fn may_follow(last: Duration) -> Duration {
    Duration::from_secs(last.as_secs()) + Persistence::SNAPSHOT_EVERY + Duration::from_secs(1)
}

/// The server's next periodic check after `wall`.
fn next_look(at: Duration) -> Duration {
    Duration::from_millis((clock_ms(at) / 100 + 1) * 100)
}

#[cfg(test)]
mod tests;
