//! Keys that no client can get although no client can hold them: the part of liveness that is judged.
//!
//! A key may be held from the moment at which an attempt was sent, or last saw another attempt before it. It may be
//! held until one lease after the last event of its client. An attempt that was refused, and that no node granted, held
//! nothing. The key is free at every other time.
//!
//! An attempt that is refused as held after the key has been free for longer than the slack proves that some state
//! outlives its lease. A later event may show that another attempt held the key meanwhile: then the finding is
//! withdrawn.

use std::{
    collections::{BTreeMap, btree_map},
    time::Duration,
};

use history::{ClientId, Event, FailureReason, FaultPhase, HoldId, Key, LeaseClock, Outcome, ProcessName, Stamp};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::{
    disturbance::{Disturbances, SLACK},
    entry::Entry,
    holds::{Attempt, EventRef},
    per_key::PerKey,
    rules,
    run::{Run, millis},
};

/// The way in which an attempt was kept from a key that no client can have held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StuckKind {
    /// The attempt was refused as held.
    Refused,
    /// The attempt waited in the queue, with no other attempt before it.
    Waiting,
}

/// An attempt that did not get a key although no client can have held the key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StuckAttempt {
    /// The way in which the attempt was kept from the key.
    pub kind: StuckKind,
    /// The key.
    pub key: Key,
    /// The attempt that shows it.
    pub attempt: HoldId,
    /// The worker.
    pub worker: ProcessName,
    /// The end of the attempt, in milliseconds since the run's start.
    pub at_ms: f64,
    /// Milliseconds for which no client can have held the key by then.
    pub free_ms: f64,
    /// Sequence numbers of the attempt, of its waiting, and of its end.
    pub witness: Vec<u64>,
}

/// The most findings that are kept of a key.
const FOUND_MAX: usize = 20;

/// An attempt that has not ended, or a hold that is in use.
#[derive(Debug, Clone, Copy)]
struct Open {
    id: HoldId,
    process: usize,
    sent: EventRef,
    is_hold: bool,
    behind: Option<EventRef>,
}

/// A wait or a refusal that is wrong unless the key turns out to have been held between two stamps.
#[derive(Debug)]
struct Finding {
    from: Stamp,
    to: Stamp,
    is_waiter: bool,
    stuck: StuckAttempt,
}

/// The last client that may have held a key.
#[derive(Debug, Clone, Copy, Default)]
struct LastHolder {
    /// The stamp until which it may have held the key.
    until: Stamp,
    /// True if it was killed.
    is_after_kill: bool,
}

impl LastHolder {
    /// The one that may have held the key for longer.
    fn later(self, other: LastHolder) -> LastHolder {
        if other.until > self.until { other } else { self }
    }
}

/// The last holder of each key, of which few were killed.
#[derive(Default)]
struct LastHolders {
    until: PerKey<Stamp>,
    after_kill: FxHashSet<usize>,
}

impl LastHolders {
    fn of(&self, key: usize) -> LastHolder {
        let until = self.until.get(key).copied().unwrap_or_default();
        LastHolder { until, is_after_kill: self.after_kill.contains(&key) }
    }

    fn set(&mut self, key: usize, LastHolder { until, is_after_kill }: LastHolder) {
        *self.until.of(key) = until;
        if is_after_kill {
            self.after_kill.insert(key);
        } else {
            self.after_kill.remove(&key);
        }
    }
}

/// A key that has open attempts, or findings.
#[derive(Debug, Default)]
struct KeyWatch {
    open: Vec<Open>,
    last: LastHolder,
    /// Holds that a client program may still renew, each with its process: the program has not said that it released
    /// the hold.
    kept: Vec<(HoldId, usize)>,
    found: Vec<Finding>,
    /// The end of the first refused attempt of each process since the key was free, and the stamp since which it was.
    looks: BTreeMap<usize, (Stamp, Stamp)>,
}

impl KeyWatch {
    /// Notes that a client may have held the key until this stamp.
    fn extend(&mut self, until: Stamp, is_after_kill: bool) {
        self.last = self.last.later(LastHolder { until, is_after_kill });
    }

    /// Withdraws findings: a client may have held the key from one stamp to the other.
    fn possessed(&mut self, from: Stamp, until: Stamp) {
        self.found.retain(|finding| finding.to < from || until < finding.from);
        self.extend(until, false);
    }

    /// Notes that a waiting attempt has given up. Its entry in the queue may stay for a lease. While two attempts
    /// waited, the first waited behind no other attempt, which says nothing about the second.
    fn waited_in_vain(&mut self, from: Stamp, until: Stamp) {
        self.found.retain(|finding| finding.is_waiter || finding.to < from || until < finding.from);
        self.extend(until, false);
    }

    /// Returns the end of the first attempt of a process that was refused since the key was free. Another attempt was
    /// refused now.
    fn first_look(&mut self, process: usize, since: Stamp, now: Stamp) -> Stamp {
        let look = self.looks.entry(process).or_insert((since, now));
        if look.0 != since {
            *look = (since, now);
        }
        look.1
    }

    /// The programs of these holds have released them, or have ended.
    fn forgets(&mut self, until: Stamp, is_over: impl Fn(&(HoldId, usize)) -> bool) {
        if self.kept.extract_if(.., |kept| is_over(kept)).count() > 0 {
            self.extend(until, false);
        }
    }

    fn take(&mut self, id: HoldId) -> Option<Open> {
        let i = self.open.iter().position(|open| open.id == id)?;
        Some(self.open.swap_remove(i))
    }
}

/// Watches all keys.
#[derive(Default)]
pub(crate) struct BlockedKeys {
    keys: BTreeMap<usize, KeyWatch>,
    /// Of the other keys.
    quiet: LastHolders,
    /// A client that may have held any key.
    of_any: LastHolder,
    /// The last attempt of each client, and its key.
    last: FxHashMap<ClientId, (usize, HoldId)>,
    /// Nothing else is judged.
    disturbances: Disturbances,
    /// The longest lease so far.
    lease: Duration,
    now: Stamp,
}

impl BlockedKeys {
    pub fn on_event(&mut self, run: &Run, entry: &Entry) {
        self.now = entry.at;
        let mark = EventRef { at: entry.at, seq: entry.seq };
        match &entry.event {
            Event::Acquire { client, attempt, .. } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    self.sent(run, *client, attempt);
                }
            }
            Event::Behind { attempt } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    let open = self.key(attempt.key).open.iter_mut().find(|open| open.id == attempt.id);
                    open.into_iter().for_each(|open| open.behind = attempt.behind);
                }
            }
            Event::Acquired { attempt, .. } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    self.acquired(run, attempt, mark);
                }
            }
            Event::AcquireFailed { attempt, outcome, why, .. } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    let is_refused =
                        *outcome == Outcome::Failed && *why == FailureReason::Held && attempt.granted_on == 0;
                    self.failed(run, attempt, mark, is_refused);
                }
            }
            Event::Release { hold } | Event::GaveUp { hold } => {
                if let Some(hold) = run.attempt(*hold) {
                    let (until, has_program) = (mark.at.plus(self.lease), run.plan.program.is_some());
                    let key = self.key(hold.key);
                    if key.take(hold.id).is_some() {
                        key.extend(until, false);
                        key.kept.extend(has_program.then_some((hold.id, hold.process)));
                    }
                }
            }
            Event::Released { hold, .. } => {
                let until = mark.at.plus(self.lease);
                let key = run.attempt(*hold).and_then(|hold| self.keys.get_mut(&hold.key));
                key.into_iter().for_each(|key| key.forgets(until, |(kept, _)| *kept == *hold));
            }
            Event::Fault { fault, phase, node, kind } => {
                let is_of_locks = run.plan.lock_nodes.contains(node);
                if !kind.kills() || is_of_locks {
                    self.disturbances.disturbed(&run.plan, (*fault, *kind), phase, mark.at, is_of_locks);
                    if let FaultPhase::Unplanned { since } = phase {
                        self.withdraw(*since, mark.at);
                    }
                } else if matches!(phase, FaultPhase::Injected | FaultPhase::Unplanned { .. }) {
                    // When a death that nobody planned is noticed, the next process may run already.
                    let is_dead = |p: &usize| *phase == FaultPhase::Injected || run.process(*p).cut_at.is_some();
                    let processes: Vec<usize> = run.processes_on(node).filter(is_dead).collect();
                    self.killed(&processes, mark.at);
                    processes.iter().for_each(|process| self.may_have_tried(run, *process, mark.at));
                }
            }
            Event::PacketsDelayed { since, until, .. } => {
                self.disturbances.not_before(*until);
                // The report comes when the delay is over. A connection is silent until its next retransmission, long
                // after the heal, and the first attempt in a queue may not know that it is first.
                self.withdraw(*since, *until);
            }
            // A process notices a stall only afterwards. Meanwhile it read no answer, and a request that it had stamped
            // may have left only after the stall.
            Event::Stall { from, to, .. } if to.since(*from) >= SLACK / 2 => {
                self.disturbances.not_before(*to);
                self.withdraw(*from, *to);
            }
            Event::Renewed { hold, lease_ns, .. } if run.attempt(*hold).is_some() => {
                self.lease = self.lease.max(Duration::from_nanos(*lease_ns));
            }
            Event::Finished => self.finished(run, entry.process, mark),
            _ => {}
        }
    }

    /// Withdraws the findings that rest on anything between two stamps.
    fn withdraw(&mut self, from: Stamp, until: Stamp) {
        for key in self.keys.values_mut() {
            key.found.retain(|finding| finding.to < from || until < finding.from);
        }
    }

    fn key(&mut self, key: usize) -> &mut KeyWatch {
        let last = || self.quiet.of(key).later(self.of_any);
        self.keys.entry(key).or_insert_with(|| KeyWatch { last: last(), ..KeyWatch::default() })
    }

    /// Keeps of a key only who may have held it last, if nothing else is known.
    pub fn on_key_quiet(&mut self, key: usize) {
        let btree_map::Entry::Occupied(watch) = self.keys.entry(key) else { return };
        let KeyWatch { open, last, kept, found, looks } = watch.get();
        if open.is_empty() && kept.is_empty() && found.is_empty() && looks.is_empty() {
            self.quiet.set(key, *last);
            watch.remove();
        }
    }

    fn sent(&mut self, run: &Run, client: ClientId, attempt: &Attempt) {
        if self.lease.is_zero() {
            let renewed = run.plan.workload.renew_for.unwrap_or_default();
            self.lease = run.plan.lease.max(renewed);
        }
        if let Some((key, id)) = self.last.insert(client, (attempt.key, attempt.id)) {
            let takes_several = run.plan.workload.locks_per_section > 1 || run.parent.is_some();
            // The client has begun another attempt, whether or not it reported the end of this attempt.
            let until = attempt.sent.at.plus(self.lease);
            // Under a hold the client may take a further lock, and the hold ends with its release.
            let is_in_use = |open: &Open| takes_several && open.id == id && open.is_hold;
            let key = self.keys.get_mut(&key).filter(|key| !key.open.iter().any(is_in_use));
            if let Some((key, open)) = key.and_then(|key| key.take(id).map(|open| (key, open))) {
                key.possessed(open.sent.at, until);
            }
        }
        let open = Open { id: attempt.id, process: attempt.process, sent: attempt.sent, is_hold: false, behind: None };
        self.key(attempt.key).open.push(open);
    }

    fn acquired(&mut self, run: &Run, hold: &Attempt, mark: EventRef) {
        let Some(grant) = hold.grant else { return };
        self.lease = self.lease.max(grant.lease);
        let until = mark.at.plus(self.lease);
        let Some(open) = self.key(hold.key).take(hold.id) else { return };
        // Until `granted_after` the attempt waited behind another attempt.
        let finding = self.waited(run, hold.key, &open, grant.granted_after, mark);
        let key = self.key(hold.key);
        key.possessed(grant.granted_after.max(open.sent.at), until);
        key.found.extend(finding);
        key.open.push(Open { is_hold: true, ..open });
    }

    fn failed(&mut self, run: &Run, attempt: &Attempt, mark: EventRef, is_refused: bool) {
        let until = mark.at.plus(self.lease);
        let Some(open) = self.key(attempt.key).take(attempt.id) else { return };
        let finding = self.waited(run, attempt.key, &open, Stamp(0), mark);
        if is_refused {
            self.refused(run, attempt, mark);
        } else if open.behind.is_some() {
            self.key(attempt.key).waited_in_vain(open.sent.at, until);
        } else {
            self.key(attempt.key).possessed(open.sent.at, until);
        }
        self.key(attempt.key).found.extend(finding);
    }

    /// Returns the stamp since which no client can have had the key, if the record shows that.
    fn free_since(&self, key: &KeyWatch) -> Option<Stamp> {
        let is_free = key.kept.is_empty() && !key.open.iter().any(|open| open.is_hold);
        self.disturbances.quiet_since().filter(|_| is_free).map(|since| key.last.until.max(since))
    }

    fn refused(&mut self, run: &Run, attempt: &Attempt, mark: EventRef) {
        let Some(since) = self.keys.get(&attempt.key).and_then(|key| self.free_since(key)) else { return };
        let Some(key) = self.keys.get_mut(&attempt.key) else { return };
        // A process that measures leases by its own clock may have looked at the key for the first time just now.
        let since = match run.plan.servers.lease_clock {
            LeaseClock::Waiter => key.first_look(attempt.process, since, mark.at),
            _ => since,
        };
        // If only a kill ended the last hold, its lease cannot block the key for longer than until `since`, unless a
        // clock was ahead when the lease was granted, and was set back later.
        let is_by_right_clocks = self.disturbances.clocks_right_since().plus(self.lease) <= since;
        let is_after_kill = key.last.is_after_kill && key.last.until == since && is_by_right_clocks;
        let bound = if is_after_kill { SLACK } else { self.lease + SLACK };
        if !rules::is_overdue(attempt.sent.at, since, bound) || key.found.iter().any(|finding| !finding.is_waiter) {
            return;
        }
        key.found.push(Finding {
            from: attempt.sent.at,
            to: mark.at,
            is_waiter: false,
            stuck: stuck(run, attempt.key, attempt, StuckKind::Refused, since, mark),
        });
    }

    /// Returns a finding if an attempt that ends has waited too long without another attempt before it.
    fn waited(&self, run: &Run, key: usize, open: &Open, saw_until: Stamp, mark: EventRef) -> Option<Finding> {
        let watch = self.keys.get(&key)?;
        let (behind, since) = (open.behind?, self.free_since(watch)?);
        let since = since.max(behind.at).max(saw_until);
        let is_stuck = rules::is_overdue(mark.at, since, self.lease + SLACK) && watch.found.len() < FOUND_MAX;
        let attempt = run.attempt(open.id).filter(|_| is_stuck)?;
        let stuck = stuck(run, key, attempt, StuckKind::Waiting, since, mark);
        Some(Finding { from: since, to: mark.at, is_waiter: true, stuck })
    }

    /// Judges the attempts of a process that ends in good order, because they wait no longer.
    fn finished(&mut self, run: &Run, process: usize, mark: EventRef) {
        let until = mark.at.plus(self.lease);
        self.keys.values_mut().for_each(|key| key.forgets(until, |(_, of)| *of == process));
        let is_waiter = |open: &&Open| open.process == process && open.behind.is_some() && !open.is_hold;
        let of_key = |(key, watch): (&usize, &KeyWatch)| {
            let waiters: Vec<Open> = watch.open.iter().filter(is_waiter).copied().collect();
            waiters.into_iter().map(|open| (*key, open)).collect::<Vec<_>>()
        };
        for (key, open) in self.keys.iter().flat_map(of_key).collect::<Vec<_>>() {
            let finding = self.waited(run, key, &open, Stamp(0), mark);
            self.key(key).found.extend(finding);
        }
    }

    /// Notes the end of killed processes. Their keys stay blocked for a lease, which their last requests may have
    /// renewed.
    fn killed(&mut self, processes: &[usize], at: Stamp) {
        let until = at.plus(self.lease);
        for key in self.keys.values_mut() {
            key.forgets(until, |(_, of)| processes.contains(of));
            let is_dead = |open: &Open| processes.contains(&open.process);
            if let Some(first) = key.open.iter().filter(|open| is_dead(open)).map(|open| open.sent.at).min() {
                let has_hold = key.open.iter().any(|open| is_dead(open) && open.is_hold);
                key.open.retain(|open| !is_dead(open));
                if !has_hold {
                    key.possessed(first, until);
                }
                key.last.is_after_kill = true;
                key.extend(until, true);
            }
        }
    }

    /// Notes that a process that was dead by `dead` may have made attempts of which the record has nothing, at any key.
    fn may_have_tried(&mut self, run: &Run, process: usize, dead: Stamp) {
        let Some(last) = run.unknown_since(process, dead) else { return };
        let until = dead.plus(self.lease);
        for key in self.keys.values_mut() {
            key.found.retain(|finding| finding.to < last || until < finding.from);
            key.extend(until, true);
        }
        self.of_any = self.of_any.later(LastHolder { until, is_after_kill: true });
    }

    /// Returns the findings, ordered by time. If the record was cut short, only findings that no later event can
    /// refute. After a step of the host's clock nothing is found: leases may rest on it.
    pub fn found(self, run: &Run, is_whole: bool) -> Vec<StuckAttempt> {
        let mut found = Vec::new();
        let stepped = run.stalls.steps.iter().map(|step| step.span.0).min();
        for key in self.keys.into_values() {
            let is_after_step = |finding: &&Finding| stepped.is_some_and(|stepped| stepped <= finding.to);
            let may_have_had = |finding: &Finding| {
                // An open hold is not counted: the record shows when a hold had the key.
                let waits_alike = is_whole && finding.is_waiter;
                let is_counted = |open: &&Open| !open.is_hold && (open.behind.is_none() || !waits_alike);
                key.open.iter().filter(is_counted).any(|open| open.sent.at <= finding.to)
            };
            let stands = key.found.iter().filter(|finding| !may_have_had(finding) && !is_after_step(finding));
            found.extend(stands.map(|finding| finding.stuck.clone()));
        }
        found.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms).then(a.attempt.cmp(&b.attempt)));
        found
    }

    /// The time after a kill within which the key must be free again.
    pub fn bound(&self) -> Duration {
        self.lease + SLACK
    }
}

fn stuck(run: &Run, key: usize, attempt: &Attempt, kind: StuckKind, since: Stamp, mark: EventRef) -> StuckAttempt {
    let mut witness = vec![attempt.sent.seq];
    witness.extend(attempt.behind.map(|mark| mark.seq));
    witness.push(mark.seq);
    StuckAttempt {
        kind,
        key: run.key(key).clone(),
        attempt: attempt.id,
        worker: run.process(attempt.process).name.clone(),
        at_ms: run.ms(mark.at),
        free_ms: millis(mark.at.since(since)),
        witness,
    }
}
