//! Keys that no client can get although no client can hold them: the part of liveness that is judged.
//!
//! A key may be held from the moment at which an attempt was sent, or last saw another attempt before it. It may be
//! held until one lease after its client released the hold, gave it up, died, or made another attempt. An attempt that
//! was refused, and that no node granted, held nothing. The key is free at every other time. So a hold that is not over
//! counts even if its lease has ended: a client may have renewed the hold in a way that the record does not show.
//!
//! Attempts may refuse each other without any hold: each has some of the servers and none has enough, or each takes
//! several steps. So if attempts overlap and are refused, the time for which the key was free counts from the first of
//! them.
//!
//! Nobody knows who held a key before the record. So no key counts as free until a lease after the record's start.
//!
//! A service may not show its queue. Then an attempt that its client cancels after a long time without an answer waited
//! from its sending on.
//!
//! An attempt that waits is judged when its wait ends, and when something disturbs the wait: the time before counts.
//!
//! An attempt that is refused as held after the key has been free for longer than the slack proves that some state
//! outlives its lease. A later event may show that another attempt held the key meanwhile: then the finding is
//! withdrawn.
//!
//! A client program may renew a hold that its worker gave up, failed to release, or did not take although the program
//! may have granted it. The program may do so until it says that it released the hold, or a later hold excludes it.
//! Meanwhile a finding decides nothing. `docs/client-protocol.md` says which holds a program may renew.

mod found;
mod waits;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    time::Duration,
};

use history::{
    ClientId, Event, FailureReason, FaultId, FaultPhase, HoldId, LeaseClock, NodeAnswer, NodeName, Outcome, Promise,
    Stamp,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    disturbance::{Disturbances, SLACK},
    entry::Entry,
    holds::{Attempt, EarlyEnd, EventRef},
    rules,
    run::Run,
    subject::subject,
};

use super::{
    key_watch::{Finding, Kept, KeyWatch, LastHolder, LastHolders},
    open_attempts::Open,
    stuck::{StuckAttempt, StuckKind},
};

/// The most stuck waits that are kept of a key, and the most of those that a client program's hold may excuse.
const FOUND_MAX: usize = 20;

/// Watches all keys.
#[derive(Default)]
pub(crate) struct BlockedKeys {
    keys: BTreeMap<usize, KeyWatch>,
    /// The open attempts of each process, with their keys.
    of_process: FxHashMap<usize, FxHashMap<HoldId, usize>>,
    /// Keys that may have findings.
    with_findings: FxHashSet<usize>,
    /// Of the other keys.
    quiet: LastHolders,
    /// A client that may have held any key.
    of_any: LastHolder,
    /// The last attempt of each client, and its key.
    last: FxHashMap<ClientId, (usize, HoldId)>,
    /// Holds that count as over because their client has made another attempt, or because a later hold excludes them. A
    /// later event of a hold revokes this.
    presumed_over: FxHashSet<HoldId>,
    /// Nothing else is judged.
    disturbances: Disturbances,
    /// Processes of workers whose end is known.
    ended: FxHashSet<usize>,
    /// The longest lease so far.
    lease: Duration,
}

impl BlockedKeys {
    pub fn on_event(&mut self, run: &Run, entry: &Entry) {
        let mark = EventRef { at: entry.at, seq: entry.seq };
        match &entry.event {
            Event::Acquire { client, attempt, .. } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    self.sent(run, *client, attempt);
                }
            }
            Event::Behind { attempt } => {
                if let Some(attempt) = run.attempt(*attempt) {
                    let open = self.key(attempt.key).open.get_mut(attempt.id);
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
                    self.failed(run, attempt, mark, is_refused, *why);
                }
            }
            Event::Undone { attempt, answers } if run.plan.program.is_some() => {
                let is_gone = |(_, answer): &(_, NodeAnswer)| matches!(answer, NodeAnswer::Done | NodeAnswer::Refused);
                if let Some(attempt) = run.attempt(*attempt).filter(|_| answers.iter().any(is_gone)) {
                    let until = mark.at.plus(self.lease);
                    let key = self.key(attempt.key);
                    key.open.get_mut(attempt.id).into_iter().for_each(|open| open.is_undone = true);
                    key.forgets(until, |kept| kept.id == attempt.id);
                }
            }
            Event::Release { hold } | Event::GaveUp { hold } => {
                if let Some(hold) = run.attempt(*hold) {
                    let until = mark.at.plus(self.lease);
                    let is_kept = run.plan.program.is_some() && hold.grant.is_some();
                    let kept = is_kept.then(|| Kept::of(hold, mark.at));
                    let key = self.key(hold.key);
                    if let Some(open) = key.take(hold.id) {
                        key.extend(until, false);
                        key.kept.extend(kept);
                        self.closes(&open);
                    }
                }
            }
            Event::Released { hold, removed, .. } => {
                let until = mark.at.plus(self.lease);
                if let Some(hold) = run.attempt(*hold)
                    && let Some(key) = self.keys.get_mut(&hold.key)
                {
                    // A program that has removed its key only now had the key until now.
                    if *removed && key.kept.iter().any(|kept| kept.id == hold.id) {
                        key.possessed(hold.sent.at, until);
                    }
                    key.forgets(until, |kept| kept.id == hold.id);
                }
            }
            Event::Fault { fault, phase, node, kind } => {
                let is_of_locks = run.plan.lock_nodes.contains(node);
                if !kind.kills() || is_of_locks {
                    let from = if let FaultPhase::Unplanned { since } = phase { *since } else { mark.at };
                    self.interrupted(run, EventRef { at: from, ..mark });
                    self.disturbances.disturbed(run, (*fault, *kind), phase, mark.at, is_of_locks);
                    if let FaultPhase::Unplanned { since } = phase {
                        self.withdraw(run, *since, mark.at);
                    }
                } else if matches!(phase, FaultPhase::Injected | FaultPhase::Unplanned { .. })
                    && run.plan.has_worker(node)
                {
                    self.died(run, *fault, phase, node);
                }
            }
            Event::PacketsDelayed { since, until, .. } => {
                self.interrupted(run, EventRef { at: *since, ..mark });
                self.disturbances.not_before(*until);
                // The report comes when the delay is over. A connection is silent until its next retransmission, long
                // after the heal, and the first attempt in a queue may not know that it is first.
                self.withdraw(run, *since, *until);
            }
            // A process notices a stall only afterwards. Meanwhile it read no answer, and a request that it had stamped
            // may have left only after the stall.
            Event::Stall { from, to, .. } if to.since(*from) >= SLACK / 2 => {
                self.interrupted(run, EventRef { at: *from, ..mark });
                self.disturbances.stalled(run, &run.process(entry.process).node, (*from, *to));
                self.withdraw(run, *from, *to);
            }
            Event::Renewed { hold, lease_ns, .. } if run.attempt(*hold).is_some() => {
                self.lease = self.lease.max(Duration::from_nanos(*lease_ns));
            }
            Event::Finished => self.finished(run, entry.process, mark),
            _ => {}
        }
        self.on_use(run, entry);
    }

    /// Takes back that a hold counts as over, if the event is one of this hold.
    pub fn on_use(&mut self, run: &Run, entry: &Entry) {
        if self.presumed_over.is_empty() {
            return;
        }
        let known = subject(&entry.event).filter(|hold| self.presumed_over.contains(hold));
        let Some(hold) = known.and_then(|hold| run.attempt(hold)) else { return };
        let until = run.now.plus(self.lease);
        self.key(hold.key).possessed(hold.sent.at, until);
        if hold.is_used_up {
            self.presumed_over.remove(&hold.id);
        }
    }

    /// Notes that a process of a worker has died.
    fn died(&mut self, run: &Run, fault: FaultId, phase: &FaultPhase, node: &NodeName) {
        let (processes, dead) = (self.ended_by(run, fault, phase, node), run.now);
        self.killed(run, &processes, dead);
        let unknown_since = if processes.is_empty() {
            // The record has nothing of the process, which began after the end of every known process of the node.
            let ends = run.processes_on(node).filter_map(|process| run.process(process).cut_at);
            Some(ends.max().unwrap_or_default())
        } else {
            processes.iter().filter_map(|process| run.unknown_since(*process, dead)).min()
        };
        unknown_since.into_iter().for_each(|last| self.may_have_tried(last, dead));
    }

    /// The processes of a node that a fault has ended, and no others that ended before.
    fn ended_by(&mut self, run: &Run, fault: FaultId, phase: &FaultPhase, node: &NodeName) -> Vec<usize> {
        let is_ended = |p: &usize| match (phase, run.process(*p).killed) {
            // A process whose kill failed has that kill on record, and may be killed by another one later.
            (FaultPhase::Injected, Some((_, EarlyEnd::Kill(kill)))) => {
                kill == fault || run.dead_by(kill) == Stamp(u64::MAX) && !self.ended.contains(p)
            }
            // The process may have started after the request of its kill. When a death that nobody planned is noticed,
            // the next process may run already.
            _ => run.process(*p).cut_at.is_some() && !self.ended.contains(p),
        };
        let processes: Vec<usize> = run.processes_on(node).filter(is_ended).collect();
        self.ended.extend(&processes);
        processes
    }

    /// Withdraws the findings that rest on anything between two stamps. A wait counts until the first of them.
    fn withdraw(&mut self, run: &Run, from: Stamp, until: Stamp) {
        let BlockedKeys { keys, with_findings, .. } = self;
        with_findings.retain(|number| {
            let Some(key) = keys.get_mut(number) else { return false };
            let before = (Stamp(0), from);
            key.found.retain_mut(|found| found.to < from || until < found.from || found.counts_within(run, before));
            !key.found.is_empty()
        });
    }

    /// Notes that an attempt is open no longer.
    fn closes(&mut self, open: &Open) {
        self.of_process.get_mut(&open.process).into_iter().for_each(|of| _ = of.remove(&open.id));
    }

    fn add(&mut self, key: usize, finding: Option<Finding>) {
        if let Some(finding) = finding {
            self.with_findings.insert(key);
            self.key(key).add_wait(finding);
        }
    }

    fn key(&mut self, key: usize) -> &mut KeyWatch {
        let last = || self.quiet.of(key).later(self.of_any);
        self.keys.entry(key).or_insert_with(|| KeyWatch { last: last(), ..KeyWatch::default() })
    }

    /// Keeps of a key only who may have held it last, if nothing else is known.
    pub fn on_key_quiet(&mut self, key: usize) {
        let btree_map::Entry::Occupied(watch) = self.keys.entry(key) else { return };
        let KeyWatch { open, last, kept, found, looks, contended, .. } = watch.get();
        // A hold since then is over later.
        let is_uncontended = contended.is_none_or(|contended| contended.until <= last.until);
        if open.is_empty() && kept.is_empty() && found.is_empty() && looks.is_empty() && is_uncontended {
            self.quiet.set(key, *last);
            watch.remove();
        }
    }

    fn sent(&mut self, run: &Run, client: ClientId, attempt: &Attempt) {
        if self.lease.is_zero() {
            self.lease = run.plan.longest_lease();
        }
        if let Some((key, id)) = self.last.insert(client, (attempt.key, attempt.id)) {
            // A session keeps the lock until its client lets go of the hold, whatever else the client does.
            let takes_several = run.plan.workload.locks_per_section > 1
                || run.parent.is_some()
                || run.plan.servers.promise == Promise::Session;
            // The client has begun another attempt, whether or not it reported the end of this attempt.
            let until = attempt.sent.at.plus(self.lease);
            // Under a hold the client may take a further lock, and the hold ends with its release.
            let is_in_use = |open: &Open| takes_several && open.is_hold;
            let key = self.keys.get_mut(&key).filter(|key| !key.open.get(id).is_some_and(is_in_use));
            if let Some((key, open)) = key.and_then(|key| key.take(id).map(|open| (key, open))) {
                key.possessed(open.sent.at, until);
                if open.is_hold {
                    self.presumed_over.insert(id);
                }
                self.closes(&open);
            }
        }
        self.of_process.entry(attempt.process).or_default().insert(attempt.id, attempt.key);
        let (left_until, bound) = (attempt.sent.at.plus(self.lease), self.bound());
        self.key(attempt.key).sent(attempt, left_until, bound);
    }

    fn acquired(&mut self, run: &Run, hold: &Attempt, mark: EventRef) {
        let Some(grant) = hold.grant else { return };
        self.lease = self.lease.max(grant.lease);
        let until = mark.at.plus(self.lease);
        let Some(open) = self.key(hold.key).take(hold.id) else { return };
        // Until `granted_after` the attempt waited behind another attempt.
        let finding = self.waited(run, hold.key, &open, grant.granted_after, mark);
        let key = self.key(hold.key);
        let before = key.take_wait(run, hold.id, grant.granted_after);
        key.possessed(grant.granted_after.max(open.sent.at), until);
        // A hold that was granted before, and that this one excludes, is over.
        key.forgets(until, |kept| kept.is_excluded_by(&grant));
        let granted = |open: &Open| run.attempt(open.id).and_then(|hold| hold.grant);
        let is_excluded = |open: &Open| granted(open).is_some_and(|former| grant.is_later(&former));
        let excluded = key.open.remove_holds(is_excluded);
        key.open.push(Open { is_hold: true, ..open });
        self.add(hold.key, before);
        self.add(hold.key, finding);
        excluded.iter().for_each(|open| self.closes(open));
        self.presumed_over.extend(excluded.iter().map(|open| open.id));
    }

    fn failed(&mut self, run: &Run, attempt: &Attempt, mark: EventRef, is_refused: bool, why: FailureReason) {
        let until = mark.at.plus(self.lease);
        let Some(mut open) = self.key(attempt.key).take(attempt.id) else { return };
        self.closes(&open);
        if why == FailureReason::Cancelled && self.is_unanswered(run, attempt, mark.at) {
            open.behind.get_or_insert(attempt.sent);
        }
        let finding = self.waited(run, attempt.key, &open, Stamp(0), mark);
        if is_refused {
            self.key(attempt.key).refused(attempt.client, &open, mark.at, until);
            self.refused(run, attempt, mark);
        } else if open.behind.is_some() {
            self.key(attempt.key).waited_in_vain(open.sent.at, until);
        } else {
            self.key(attempt.key).possessed(open.sent.at, until);
        }
        // The client did not take the lock, but its program may have granted it.
        let is_left = matches!(why, FailureReason::Validity | FailureReason::Cancelled) && !open.is_undone;
        let kept = (run.plan.program.is_some() && is_left).then(|| Kept::of(attempt, mark.at));
        self.key(attempt.key).kept.extend(kept);
        self.add(attempt.key, finding);
    }

    /// Returns the stamp since which no client can have had the key, if the record shows that. A client program may
    /// still keep the key.
    fn free_since(&self, run: &Run, key: &KeyWatch) -> Option<Stamp> {
        let is_free = !key.open.has_hold();
        let from_before = run.start.unwrap_or_default().plus(self.lease);
        self.disturbances.quiet_since().filter(|_| is_free).map(|since| key.last.until.max(since).max(from_before))
    }

    fn refused(&mut self, run: &Run, attempt: &Attempt, mark: EventRef) {
        let Some(since) = self.keys.get(&attempt.key).and_then(|key| self.free_since(run, key)) else { return };
        let Some(key) = self.keys.get_mut(&attempt.key) else { return };
        let quiet = self.disturbances.quiet_since().unwrap_or_default();
        // A process that measures leases by its own clock may have looked at the key for the first time just now.
        let since = match run.plan.servers.lease_clock {
            LeaseClock::Waiter => key.first_look(attempt.process, since, quiet, mark.at),
            _ => since,
        };
        let since = key.contended_since(attempt.sent.at).map_or(since, |contended| since.max(contended));
        // If only a kill ended the last hold, its lease cannot block the key for longer than until `since`, unless
        // something was disturbed after the death: a server that was frozen, or a link that delayed packets, may then
        // have done the last request of the dead client late, an election may have started its lease anew, and a clock
        // that was ahead when the lease was granted may have been set back.
        let is_undisturbed = quiet.plus(self.lease) <= since;
        let is_after_kill = key.last.is_after_kill && key.last.until == since && is_undisturbed;
        // The lease that a client program tells may be less than the time that its session lasts.
        let is_known = is_after_kill && run.plan.program.is_none();
        let bound = if is_known { SLACK } else { self.lease + SLACK };
        let is_kept = !key.kept.is_empty();
        if !rules::is_overdue(attempt.sent.at, since, bound) {
            return;
        }
        self.with_findings.insert(attempt.key);
        let finding = Finding {
            from: attempt.sent.at,
            to: mark.at,
            is_waiter: false,
            is_kept,
            since,
            bound,
            lease: self.lease,
            stuck: StuckAttempt::new(run, attempt, StuckKind::Refused, since, mark),
        };
        key.add_refusal(finding, self.lease);
    }

    /// Judges the attempts of a process that ends in good order, because they wait no longer. Its holds are over.
    fn finished(&mut self, run: &Run, process: usize, mark: EventRef) {
        let until = mark.at.plus(self.lease);
        self.renews_no_more(run, &[process], until);
        let of_process = self.of_process.get(&process).into_iter().flatten();
        let open = of_process.filter_map(|(id, key)| {
            let open = &self.keys.get(key)?.open;
            Some((*key, open.place(*id)?, *open.get(*id)?))
        });
        let mut open: Vec<(usize, usize, Open)> = open.collect();
        open.sort_unstable_by_key(|(key, place, _)| (*key, *place));
        for (key, _, open) in open.iter().filter(|(.., open)| open.behind.is_some() && !open.is_hold) {
            let finding = self.waited(run, *key, open, Stamp(0), mark);
            self.add(*key, finding);
        }
        // A process that has finished renews nothing.
        for (number, ..) in open.iter().filter(|(.., open)| open.is_hold) {
            let key = self.key(*number);
            let over = key.open.remove_holds(|open| open.process == process);
            key.extend(until, false);
            over.iter().for_each(|open| self.closes(open));
        }
    }

    /// No program of these processes renews a hold any more.
    fn renews_no_more(&mut self, run: &Run, processes: &[usize], until: Stamp) {
        if run.plan.program.is_some() {
            self.keys.values_mut().for_each(|key| key.forgets(until, |kept| processes.contains(&kept.process)));
        }
    }

    /// Notes the end of killed processes. Their keys stay blocked for a lease, which their last requests may have
    /// renewed.
    fn killed(&mut self, run: &Run, processes: &[usize], at: Stamp) {
        let until = at.plus(self.lease);
        self.renews_no_more(run, processes, until);
        let of_processes = processes.iter().filter_map(|process| self.of_process.remove(process));
        let keys: BTreeSet<usize> = of_processes.flat_map(FxHashMap::into_values).collect();
        for number in keys {
            let Some(key) = self.keys.get_mut(&number) else { continue };
            let dead = key.open.remove(|open| processes.contains(&open.process));
            let Some(first) = dead.iter().map(|open| open.sent.at).min() else { continue };
            if !dead.iter().any(|open| open.is_hold) {
                key.possessed(first, until);
            }
            key.last.is_after_kill = true;
            key.extend(until, true);
        }
    }

    /// Notes that a process may have made attempts of which the record has nothing, at any key: after its last known
    /// stamp, and before it was dead.
    fn may_have_tried(&mut self, last: Stamp, dead: Stamp) {
        let until = dead.plus(self.lease);
        for key in self.keys.values_mut() {
            key.found.retain(|finding| finding.to < last || until < finding.from);
            key.extend(until, true);
        }
        self.of_any = self.of_any.later(LastHolder { until, is_after_kill: true });
    }

    /// The stamp since which nothing has been disturbed; `None` while a fault is on.
    pub fn quiet_since(&self) -> Option<Stamp> {
        self.disturbances.quiet_since()
    }

    /// The longest lease so far.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The time after a kill within which the key must be free again.
    pub fn bound(&self) -> Duration {
        self.lease + SLACK
    }
}
