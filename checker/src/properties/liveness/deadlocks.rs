//! Deadlocks: clients that wait for each other's locks in a cycle.
//!
//! A client **waits** for a key from its first attempt at the key, through attempts that fail, until one of these:
//! it acquires the key; it begins an attempt at another key; it releases or gives up a hold; it does not try again.
//! (A client releases what it holds when it has given up a wait. It does not try again if it makes no attempt for 1
//! s longer than the plan's longest retry delay, and than twice the longest time between its attempts.) A client
//! **holds** a key while its hold of the key is entitled: from the acquisition to the release, the noticed loss,
//! the kill of its process, or the promise end, renewals included. A hold that its client gave up without a release
//! still keeps the key from others, but its client does nothing more with it: a wait for such a key ends with the
//! lease, and is no deadlock.
//!
//! A **deadlock** is a cycle of clients, each of which waits for a key that the next one holds, all at the same time.
//! It begins with an attempt, because a client that acquires a key does not wait. So at each attempt the checker
//! follows the chain: the key, its holder, the key that the holder waits for, and so on. The chain is short, because
//! most holders wait for nothing. A client that waits for a key which it holds itself is a cycle of one.
//! Readers of a key do not wait for each other. A writer waits for all readers of its key, so each of them is followed.
//!
//! A deadlock ends with the first of these, and the checker tells them apart:
//!
//! - `detected`: the service found the cycle, and ended an attempt in it (`acquire-failed` with `deadlock`).
//! - `timed-out`: a client in the cycle gave up its wait, and released. If the plan gives the clients no patience, a
//!   client of the harness gives up only because the run is over. Then the deadlock is `unended` or `cut-off`, as if
//!   the record ended there. Such a client makes no further attempt, and its worker counts its `sections`.
//! - `lease-ended`: a hold in the cycle was no longer promised, or its client noticed the loss. A client that waits
//!   keeps a session that its holds share alive, and the record does not show that. So the end of such a promise counts
//!   only if another client then acquires the key of the hold.
//! - `killed`: the process of a hold in the cycle was killed.
//! - `unended`: none of these until the end of a whole record, although the cycle outlasted the longest lease of the
//!   run and the patience of its clients by 1 s, without a fault, and no lease of it ends by itself. This violates
//!   `liveness`: clients wait for ever.
//! - `cut-off`: none of these, but the record ended earlier or is not whole, or a lease would have ended the cycle
//!   later. Nobody knows whether the clients would have waited for ever.
//!
//! A client that acquires the key although the holder is still entitled waits no longer: there was no deadlock, and
//! `lock` judges the two holds. A wait that ends because its holder releases is no cycle either: a holder that waits
//! does not release.

mod chain;
mod ending;

use std::time::Duration;

use history::{ClientId, Event, FailureReason, FaultPhase, HoldId, Key, Mode, ProcessName, Promise, Stamp};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::{
    disturbance::SLACK,
    entry::Entry,
    holds::{Attempt, EventRef, Span},
    report::seconds,
    rules,
    run::{Run, millis},
};

/// The end of a deadlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadlockEnd {
    /// The service found the cycle, and ended an attempt in it.
    Detected,
    /// A client gave up its wait, and released.
    TimedOut,
    /// A hold was no longer promised.
    LeaseEnded,
    /// The process of a hold was killed.
    Killed,
    /// The clients waited until the end of the record, for longer than anything could have taken that ends a wait.
    Unended,
    /// The record or the run ended first, or the record is not whole.
    CutOff,
}

impl DeadlockEnd {
    fn text(self, by: &str) -> String {
        match self {
            DeadlockEnd::Detected => format!("the service detected it and ended the attempt of {by}"),
            DeadlockEnd::TimedOut => format!("{by} gave up its wait"),
            DeadlockEnd::LeaseEnded => format!("the lease of {by} ended"),
            DeadlockEnd::Killed => format!("{by} was killed"),
            DeadlockEnd::Unended => "it did not end".to_owned(),
            DeadlockEnd::CutOff => "the run ended, so nobody knows whether the deadlock did".to_owned(),
        }
    }
}

/// A client in a deadlock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Deadlocked {
    /// The client.
    pub client: ClientId,
    /// Its name in stories: its worker, and its number where a worker has several clients.
    pub who: String,
    /// The key that it holds and that another client in the cycle waits for.
    pub holds: Key,
    /// The hold of that key.
    pub hold: HoldId,
    /// The key that it waits for.
    pub waits_for: Key,
}

/// Clients that waited for each other in a cycle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Deadlock {
    /// The clients; each waits for the key that the next one holds, and the last for that of the first.
    pub clients: Vec<Deadlocked>,
    /// The beginning of the last wait, in milliseconds since the run's start.
    pub from_ms: f64,
    /// The length, in milliseconds.
    pub lasted_ms: f64,
    /// The end.
    pub ended: DeadlockEnd,
    /// The worker whose event ended it; null if it did not end.
    pub ended_by: Option<ProcessName>,
    /// Sequence numbers: the acquisitions of the holds, and the first attempt of each wait.
    pub witness: Vec<u64>,
}

impl Deadlock {
    /// The deadlock in one line.
    pub fn line(&self) -> String {
        let client = |c: &Deadlocked| format!("{} holds {} and waits for {}", c.who, c.holds, c.waits_for);
        let clients: Vec<String> = self.clients.iter().map(client).collect();
        let by = self.ended_by.as_ref().map(ToString::to_string).unwrap_or_default();
        let (clients, length) = (clients.join("; "), seconds(self.lasted_ms));
        format!("deadlock: {clients}; for {length}, then {}", self.ended.text(&by))
    }
}

/// A client that waits for a key.
#[derive(Debug, Clone, Copy)]
struct Wait {
    process: usize,
    key: usize,
    mode: Mode,
    since: EventRef,
    /// The end of its last attempt; none while an attempt is open.
    idle_since: Option<Stamp>,
    /// The longest time between two of its attempts.
    longest_idle: Duration,
}

impl Wait {
    /// Returns the end of the last attempt if the client has not tried again for so long that it waits no longer.
    fn over(&self, run: &Run, at: Stamp) -> Option<Stamp> {
        let usual = run.plan.workload.retry_delay.to.max(2 * self.longest_idle);
        self.idle_since.filter(|since| rules::is_overdue(at, *since, usual + SLACK))
    }
}

/// A cycle that has not ended.
#[derive(Debug)]
struct Cycle {
    from: Stamp,
    clients: Vec<ClientId>,
    holds: Vec<HoldId>,
    found: Deadlock,
    /// The longest time of the cycle in which nothing was disturbed.
    quiet: Span,
}

impl Cycle {
    /// Notes a time in which nothing was disturbed.
    fn was_quiet(&mut self, since: Stamp, until: Stamp) {
        let since = since.max(self.from);
        if until.since(since) > self.quiet.1.since(self.quiet.0) {
            self.quiet = (since, until);
        }
    }
}

/// A cycle whose client has given up its wait, perhaps because the run is over.
#[derive(Debug)]
struct GivenUp {
    cycle: Cycle,
    at: Stamp,
    process: usize,
}

/// The most deadlocks that are kept in detail.
const NAMED_MAX: usize = 100;

/// Finds deadlocks.
#[derive(Default)]
pub(crate) struct Deadlocks {
    waits: FxHashMap<ClientId, Wait>,
    /// By a number of their own.
    cycles: FxHashMap<u64, Cycle>,
    next: u64,
    /// The cycle of each client. A writer may be in several, through the readers of its key; only the first is known.
    of: FxHashMap<ClientId, u64>,
    /// Cycles that a client has given up, by the client, until it makes another attempt.
    given_up: FxHashMap<ClientId, GivenUp>,
    /// The processes that have counted their sections: the run is over for them.
    over: FxHashSet<usize>,
    /// The number of deadlocks by their ends, in the order of [`DeadlockEnd`].
    counts: [u64; 6],
    found: Vec<Deadlock>,
    /// The longest lease so far.
    lease: Duration,
    /// The stamp since which nothing has been disturbed; none while a fault is on.
    quiet_since: Option<Stamp>,
}

/// Returns whether holds do not end by themselves. A client that waits keeps the session that its holds share.
fn is_kept(run: &Run) -> bool {
    let workload = &run.plan.workload;
    workload.renew.is_some() || workload.session || run.plan.servers.promise == Promise::Session
}

/// Returns the time after which no lease and no patience will end a cycle. A lease that nobody renews ends each cycle.
fn bound(run: &Run, lease: Duration) -> Option<Duration> {
    is_kept(run).then(|| lease.max(run.plan.workload.patience.unwrap_or_default()) + SLACK)
}

/// Returns whether clients of the harness wait until the end of the run for the next lock of a section.
fn waits_for_ever(run: &Run) -> bool {
    let workload = &run.plan.workload;
    // Under a hold of the parent that nobody renews, they wait for half of the lease.
    let is_below = run.parent.is_some() && workload.renew.is_none();
    let has_attempts = workload.script.iter().any(|scripted| scripted.attempts.is_some());
    is_kept(run) && workload.patience.is_none() && !is_below && !has_attempts
}

impl Deadlocks {
    /// Takes an event, the longest lease so far, and the stamp since which nothing has been disturbed.
    pub fn on_event(&mut self, run: &Run, entry: &Entry, lease: Duration, quiet_since: Option<Stamp>) {
        self.lease = lease;
        self.disturbed(entry, quiet_since);
        match &entry.event {
            Event::Acquire { client, attempt, .. } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    self.begins(run, *client, attempt);
                }
            }
            Event::Acquired { attempt, .. } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    self.gets(run, attempt);
                }
            }
            Event::AcquireFailed { attempt, why: FailureReason::Deadlock, .. } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    self.stops(run, attempt, DeadlockEnd::Detected);
                }
            }
            Event::AcquireFailed { attempt, .. } => {
                if let Some(attempt) = run.attempt(*attempt)
                    && let Some(wait) = self.waits.get_mut(&attempt.client)
                    && (wait.process, wait.key) == (attempt.process, attempt.key)
                {
                    wait.idle_since = Some(entry.at);
                }
            }
            Event::Sections { .. } => {
                self.over.insert(entry.process);
            }
            Event::Release { hold } | Event::GaveUp { hold } => {
                if let Some(hold) = run.attempt(*hold) {
                    self.expire(run, hold.client);
                    self.stops(run, hold, DeadlockEnd::TimedOut);
                }
            }
            _ => {}
        }
    }

    /// Takes the stamp since which nothing has been disturbed. Each cycle keeps its longest time without a disturbance.
    fn disturbed(&mut self, entry: &Entry, quiet_since: Option<Stamp>) {
        let former = std::mem::replace(&mut self.quiet_since, quiet_since);
        // Some disturbances are noticed only afterwards.
        let noticed = match &entry.event {
            Event::Fault { phase: FaultPhase::Unplanned { since }, .. } | Event::PacketsDelayed { since, .. } => {
                Some(*since)
            }
            Event::Stall { from, to, .. } if to.since(*from) >= SLACK / 2 => Some(*from),
            _ => None,
        };
        if former == quiet_since && noticed.is_none() {
            return;
        }
        let until = noticed.unwrap_or(entry.at);
        let given_up = self.given_up.values_mut().map(|given_up| (&mut given_up.cycle, given_up.at));
        for (cycle, end) in self.cycles.values_mut().map(|cycle| (cycle, entry.at)).chain(given_up) {
            if let Some(since) = former {
                cycle.was_quiet(since, until.min(end));
            }
            if noticed.is_some() {
                cycle.quiet.1 = cycle.quiet.1.min(until).max(cycle.quiet.0);
            }
        }
    }

    /// A client begins an attempt, or goes on with its wait by another one.
    fn begins(&mut self, run: &Run, client: ClientId, attempt: &Attempt) {
        let (process, key) = (attempt.process, attempt.key);
        self.expire(run, client);
        let is_same = |wait: &Wait| wait.process == process && wait.key == key;
        if let Some(wait) = self.waits.get_mut(&client).filter(|wait| is_same(wait)) {
            let idle = wait.idle_since.take().map_or(Duration::ZERO, |since| attempt.sent.at.since(since));
            wait.longest_idle = wait.longest_idle.max(idle);
        } else {
            self.stops(run, attempt, DeadlockEnd::TimedOut);
            let (mode, since) = (attempt.mode, attempt.sent);
            self.waits
                .insert(client, Wait { process, key, mode, since, idle_since: None, longest_idle: Duration::ZERO });
        }
        if let Some(GivenUp { cycle, at, process }) = self.given_up.remove(&client) {
            // The run goes on for this client, so it had a reason of its own.
            self.count(run, cycle, DeadlockEnd::TimedOut, at, Some(run.process(process).name.clone()));
        }
        if !self.of.contains_key(&client) {
            self.follow(run, client, attempt.sent.at);
        }
    }

    /// Follows the chain of waits from a client, and notes the cycle if the chain comes back to the client.
    fn follow(&mut self, run: &Run, first: ClientId, at: Stamp) {
        let chain = self.cycle_through(run, first, at);
        if chain.is_empty() {
            return;
        }
        // Each client's own hold is the one that the client before it waits for.
        let own = |i: usize| chain[(i + chain.len() - 1) % chain.len()].2;
        let name = |(i, (client, wait, _)): (usize, &(ClientId, Wait, &Attempt))| Deadlocked {
            client: *client,
            who: run.who(wait.process, *client),
            holds: run.key(own(i).key).clone(),
            hold: own(i).id,
            waits_for: run.key(wait.key).clone(),
        };
        let acquired = chain.iter().filter_map(|(_, _, holder)| Some(holder.grant?.ok.seq));
        let mut witness: Vec<u64> = acquired.chain(chain.iter().map(|(_, wait, _)| wait.since.seq)).collect();
        witness.sort_unstable();
        let found = Deadlock {
            clients: chain.iter().enumerate().map(name).collect(),
            from_ms: run.ms(at),
            lasted_ms: 0.0,
            ended: DeadlockEnd::Unended,
            ended_by: None,
            witness,
        };
        let clients: Vec<ClientId> = chain.iter().map(|(client, ..)| *client).collect();
        self.next += 1;
        self.of.extend(clients.iter().map(|client| (*client, self.next)));
        let holds = chain.iter().map(|(_, _, holder)| holder.id).collect();
        self.cycles.insert(self.next, Cycle { from: at, clients, holds, found, quiet: (at, at) });
    }

    /// The client of an attempt waits no longer.
    fn stops(&mut self, run: &Run, attempt: &Attempt, ended: DeadlockEnd) {
        self.waits.remove(&attempt.client);
        let Some(id) = self.of.get(&attempt.client).copied() else { return };
        let is_over = |client: &ClientId| self.waits.get(client).is_some_and(|wait| wait.over(run, run.now).is_some());
        let may_be_stopped = ended == DeadlockEnd::TimedOut
            && waits_for_ever(run)
            && self.cycles.get(&id).is_some_and(|cycle| !cycle.clients.iter().any(is_over));
        if !may_be_stopped {
            return self.end(run, id, ended, run.now, Some(run.process(attempt.process).name.clone()));
        }
        if let Some(cycle) = self.forget(id) {
            let given_up = GivenUp { cycle, at: run.now, process: attempt.process };
            self.given_up.insert(attempt.client, given_up);
        }
    }

    fn forget(&mut self, id: u64) -> Option<Cycle> {
        let cycle = self.cycles.remove(&id)?;
        for client in &cycle.clients {
            self.of.remove(client);
        }
        Some(cycle)
    }

    fn end(&mut self, run: &Run, id: u64, ended: DeadlockEnd, at: Stamp, by: Option<ProcessName>) {
        let Some(cycle) = self.forget(id) else { return };
        // If the service has found the cycle, all its clients waited.
        let waits = cycle.clients.iter().filter_map(|client| self.waits.get(client));
        let waits = waits.filter(|_| ended != DeadlockEnd::Detected);
        let first = waits.filter_map(|wait| Some((wait.over(run, at)?, wait.process))).min();
        let (ended, at, by) = first.map_or((ended, at, by), |(over, process)| {
            (DeadlockEnd::TimedOut, over.max(cycle.from), Some(run.process(process).name.clone()))
        });
        self.count(run, cycle, ended, at, by);
    }

    /// Counts a cycle that has ended. One without an end was cut off if something could still have ended it.
    fn count(&mut self, run: &Run, mut cycle: Cycle, ended: DeadlockEnd, at: Stamp, by: Option<ProcessName>) {
        // While a server is frozen or a connection is silent, no service finds the cycle, and no client hears of it.
        if let Some(since) = self.quiet_since {
            cycle.was_quiet(since, at);
        }
        let (since, until) = cycle.quiet;
        let has_outlasted = bound(run, self.lease).is_some_and(|bound| rules::is_overdue(until, since, bound));
        let ended = if ended == DeadlockEnd::Unended && !has_outlasted { DeadlockEnd::CutOff } else { ended };
        self.counts[ended as usize] += 1;
        // A deadlock without an end is the witness of a violation. It takes the place of one that ended.
        if ended == DeadlockEnd::Unended
            && self.found.len() >= NAMED_MAX
            && let Some(last) = self.found.iter().rposition(|found| found.ended != DeadlockEnd::Unended)
        {
            self.found.remove(last);
        }
        if self.found.len() < NAMED_MAX {
            let lasted_ms = millis(at.since(cycle.from));
            self.found.push(Deadlock { lasted_ms, ended, ended_by: by, ..cycle.found });
        }
    }

    /// Ends the sweep. Returns the first deadlocks by time, and the number of all by their ends. Only a whole record
    /// shows that a cycle did not end.
    pub fn finish(mut self, run: &Run, is_whole: bool) -> (Vec<Deadlock>, impl Fn(DeadlockEnd) -> u64) {
        let mut open: Vec<u64> = self.cycles.keys().copied().collect();
        open.sort_unstable();
        for id in open {
            self.expire_cycle(run, id, None);
            self.end(run, id, DeadlockEnd::Unended, run.now, None);
        }
        let mut given_up: Vec<(ClientId, GivenUp)> = std::mem::take(&mut self.given_up).into_iter().collect();
        given_up.sort_unstable_by_key(|(client, _)| *client);
        for (_, GivenUp { cycle, at, process }) in given_up {
            // Other programs count no sections, and their clients may have a patience that the plan does not tell.
            let (ended, by) = match self.over.contains(&process) {
                true => (DeadlockEnd::Unended, None),
                false => (DeadlockEnd::TimedOut, Some(run.process(process).name.clone())),
            };
            self.count(run, cycle, ended, at, by);
        }
        if !is_whole {
            let unended = std::mem::take(&mut self.counts[DeadlockEnd::Unended as usize]);
            self.counts[DeadlockEnd::CutOff as usize] += unended;
            let found = self.found.iter_mut().filter(|found| found.ended == DeadlockEnd::Unended);
            found.for_each(|found| found.ended = DeadlockEnd::CutOff);
        }
        self.found.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
        let counts = self.counts;
        (self.found, move |ended| counts[ended as usize])
    }
}

#[cfg(test)]
mod tests;
