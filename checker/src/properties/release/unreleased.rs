//! The second half of property 6: a key that every attempt has released is free on every node.
//!
//! A release, or the undo of a failed attempt, goes to each node behind the attempt's own request, on one connection.
//! Once the longest time that a request takes has passed, the attempt therefore owns the key on no node. The nodes'
//! answers do not matter, and the client need not have waited for them.
//!
//! The checker judges an attempt that was alone. No other attempt for the key was under way from its sending to its
//! end. Every earlier attempt had released the key long enough before. For one lease and that longest time before its
//! sending the record had begun, and no fault was on. A node that refuses such an attempt as held still has the key of
//! an earlier attempt. If the lease of a released attempt may still run on that node, the node did not undo that
//! attempt. (Property 7 covers a key that outlives every lease.)
//!
//! The longest time that a request takes is [`SLACK`] plus all delays of the plan. Both rounds of an attempt may be
//! refused: only a refusal in the first round says that another client has the key.

use std::{collections::VecDeque, time::Duration};

use history::{
    Answers, Event, FailureReason, Fault, FaultPhase, Harm, HoldId, Key, LinkDelay, NodeAnswer, NodeName, Outcome,
    Plan, Stamp,
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::{
    disturbance::{Disturbances, SLACK},
    entry::Entry,
    holds::{Attempt, EventRef, Nodes, Span},
    rules,
    run::Run,
};

/// A node kept a key that every attempt had released, within the lease of one of these attempts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnreleasedKey {
    /// The key.
    pub key: Key,
    /// The node.
    pub node: NodeName,
    /// The attempts of which one has left the key behind, the newest first.
    pub left_by: Vec<HoldId>,
    /// The attempt that the node refused because of the key.
    pub refused: HoldId,
    /// The newest release or undo among them, the refused attempt, its end.
    pub witness: Vec<u64>,
}

/// Attempts that are listed with a key that one of them has left.
const LEFT_BY_MAX: usize = 5;

/// An attempt that was alone so far.
#[derive(Debug)]
struct Alone {
    id: HoldId,
    sent: EventRef,
    /// When the attempt ended, and which nodes said that another client has the key.
    out: Option<(EventRef, Nodes)>,
}

/// An attempt whose release or undo was sent.
#[derive(Debug)]
struct LetGo {
    id: HoldId,
    at: EventRef,
    /// Nodes that have said that the attempt owns the key no longer, or never did.
    free_on: Nodes,
}

#[derive(Debug, Default)]
struct KeyHistory {
    /// Attempts that have not ended, or that ended at this stamp.
    trying: FxHashSet<HoldId>,
    /// The one of them that was alone so far.
    alone: Option<Alone>,
    /// Attempts and holds that have not released the key.
    open: FxHashSet<HoldId>,
    /// Until this stamp requests of ended attempts may arrive, and leases that no client has ended may run.
    settled: Stamp,
    let_go: VecDeque<LetGo>,
}

impl KeyHistory {
    /// Notes nodes on which an attempt owns the key no longer. It let the key go once, and after it was sent.
    fn free(&mut self, id: HoldId, sent: Stamp, nodes: Nodes) {
        let since = self.let_go.iter_mut().rev().take_while(|left| left.at.at >= sent);
        if let Some(left) = { since }.find(|left| left.id == id) {
            left.free_on |= nodes;
        }
    }
}

/// Finds keys that attempts have left behind.
#[derive(Default)]
pub(crate) struct UnreleasedKeys {
    keys: FxHashMap<usize, KeyHistory>,
    /// Keys without an open attempt, and the stamp from which nothing more is to be known of them.
    quiet: VecDeque<(Stamp, usize)>,
    /// Attempts that ended at this stamp, with their keys.
    ended_now: Vec<(usize, HoldId)>,
    disturbances: Disturbances,
    /// The longest lease so far.
    lease: Duration,
    /// The longest time that a request may take to its node.
    arrival: Duration,
    /// The findings, each with the time on which it rests: from one lease before the refused attempt to its end.
    found: Vec<(Span, UnreleasedKey)>,
}

impl UnreleasedKeys {
    pub fn on_event(&mut self, run: &Run, entry: &Entry) {
        let mark = EventRef { at: entry.at, seq: entry.seq };
        match &entry.event {
            Event::Fault { fault, kind, node, phase } => {
                // A fault that nobody planned is noticed only afterwards.
                if let FaultPhase::Unplanned { since } = phase {
                    self.withdraw(*since);
                }
                let is_of_locks = run.plan.lock_nodes.contains(node);
                if kind.kills() && !is_of_locks {
                    // Requests that the killed process had queued may be lost.
                    self.disturbances.not_before(mark.at);
                } else if kind.harm() != Harm::DelaysPackets {
                    self.disturbances.disturbed(run, (*fault, *kind), phase, mark.at, is_of_locks);
                }
            }
            // A request that the process stamped before the stall may have left only after the stall.
            Event::Stall { from, to, .. } if to.since(*from) >= SLACK / 2 => {
                self.withdraw(*from);
                self.disturbances.stalled(run, &run.process(entry.process).node, (*from, *to));
            }
            Event::Renewed { hold, lease_ns, .. } if run.attempt(*hold).is_some() => {
                self.lease = self.lease.max(Duration::from_nanos(*lease_ns));
            }
            Event::Acquire { attempt: id, .. }
            | Event::Acquired { attempt: id, .. }
            | Event::AcquireFailed { attempt: id, .. }
            | Event::Undo { attempt: id }
            | Event::Undone { attempt: id, .. }
            | Event::Release { hold: id }
            | Event::Released { hold: id, .. }
            | Event::ReleaseFailed { hold: id, .. }
            | Event::GaveUp { hold: id } => {
                if let Some(attempt) = run.attempt(*id).filter(|_| !run.plan.has_one_store()) {
                    self.of_attempt(run, attempt, mark, &entry.event);
                }
            }
            _ => {}
        }
    }

    fn of_attempt(&mut self, run: &Run, attempt: &Attempt, mark: EventRef, event: &Event) {
        match event {
            Event::Acquire { .. } => self.sent(&run.plan, attempt),
            Event::Acquired { .. } => {
                self.lease = self.lease.max(attempt.grant.map_or(Duration::ZERO, |grant| grant.lease));
                self.came_out(attempt, mark, attempt.refused_on);
            }
            Event::AcquireFailed { outcome, why, answers, .. } => {
                let refused_on = if *why == FailureReason::Held { attempt.refused_on } else { 0 };
                self.key(attempt.key).free(attempt.id, attempt.sent.at, refused_on);
                self.came_out(attempt, mark, refused_on);
                // A node whose answer the client did not read may have granted the attempt.
                let is_unread = answers.iter().any(|(_, answer)| *answer == NodeAnswer::None);
                let is_refused = *outcome == Outcome::Failed && *why == FailureReason::Held;
                self.ended(attempt, mark.at, is_refused && attempt.granted_on == 0 && !is_unread);
            }
            Event::Undo { .. } | Event::Release { .. } => self.lets_go(attempt, mark),
            Event::Undone { answers, .. } | Event::Released { answers, .. } | Event::ReleaseFailed { answers, .. } => {
                self.answered(run, (attempt.key, attempt.id, attempt.sent.at), answers);
            }
            _ => self.ended(attempt, mark.at, false),
        }
    }

    /// Withdraws the findings since a stamp. They are in order: each was made when the stamp of its end was complete.
    fn withdraw(&mut self, since: Stamp) {
        let kept = self.found.partition_point(|(rests_on, _)| rests_on.1 < since);
        self.found.truncate(kept);
    }

    fn key(&mut self, key: usize) -> &mut KeyHistory {
        self.keys.entry(key).or_default()
    }

    /// Once a lease and the way of a request have passed, no attempt can have left the key behind.
    pub fn on_key_quiet(&mut self, run: &Run, key: usize) {
        if self.keys.contains_key(&key) {
            self.quiet.push_back((run.now.plus(self.lease + self.arrival), key));
        }
        while let Some((_, key)) = self.quiet.front().copied().filter(|(over, _)| *over < run.now) {
            self.quiet.pop_front();
            let is_over = |at: Stamp| rules::is_overdue(run.now, at, self.lease + self.arrival);
            let is_over =
                |key: &KeyHistory| key.settled < run.now && key.let_go.back().is_none_or(|left| is_over(left.at.at));
            if !run.is_busy(key) && self.keys.get(&key).is_some_and(is_over) {
                self.keys.remove(&key);
            }
        }
    }

    fn sent(&mut self, plan: &Plan, attempt: &Attempt) {
        if self.lease.is_zero() {
            self.lease = plan.lease.max(plan.workload.renew_for.unwrap_or_default());
            self.arrival = SLACK + plan.schedule.iter().map(|step| delay(&step.fault)).sum::<Duration>();
        }
        let key = self.key(attempt.key);
        let is_alone = key.trying.is_empty() && key.open.is_empty() && key.settled < attempt.sent.at;
        key.open.insert(attempt.id);
        key.trying.insert(attempt.id);
        key.alone = is_alone.then_some(Alone { id: attempt.id, sent: attempt.sent, out: None });
    }

    fn came_out(&mut self, attempt: &Attempt, mark: EventRef, refused_on: Nodes) {
        let key = self.key(attempt.key);
        if let Some(alone) = key.alone.as_mut().filter(|alone| alone.id == attempt.id) {
            alone.out = Some((mark, refused_on));
        }
        self.ended_now.push((attempt.key, attempt.id));
    }

    /// Notes an attempt that ended without a release or an undo.
    fn ended(&mut self, attempt: &Attempt, at: Stamp, had_nothing: bool) {
        let until = at.plus(self.lease + self.arrival);
        let key = self.key(attempt.key);
        if key.open.remove(&attempt.id) && !had_nothing {
            key.settled = key.settled.max(until);
        }
    }

    fn lets_go(&mut self, attempt: &Attempt, mark: EventRef) {
        let (arrived, lease) = (mark.at.plus(self.arrival), self.lease + self.arrival);
        let key = self.key(attempt.key);
        if key.open.remove(&attempt.id) {
            key.settled = key.settled.max(arrived);
            while key.let_go.front().is_some_and(|left| rules::is_overdue(mark.at, left.at.at, lease)) {
                key.let_go.pop_front();
            }
            let free_on = if attempt.grant.is_some() { attempt.refused_on } else { 0 };
            key.let_go.push_back(LetGo { id: attempt.id, at: mark, free_on });
        }
    }

    /// Records the nodes that answered a release or an undo of an attempt with this key, id and send stamp. A node
    /// executes the attempt's requests in order, so a node that has answered will not grant the attempt the key again.
    pub fn answered(&mut self, run: &Run, (key, id, sent): (usize, HoldId, Stamp), answers: &Answers) {
        let nodes = run.nodes(answers, &[NodeAnswer::Done, NodeAnswer::Refused]);
        if let Some(key) = self.keys.get_mut(&key) {
            key.free(id, sent, nodes);
        }
    }

    /// Judges the attempts that ended at this stamp, after all events of the stamp: no other attempt was sent while
    /// they were under way.
    pub fn on_stamp_complete(&mut self, run: &Run) {
        let mut ended = std::mem::take(&mut self.ended_now);
        for (key, id) in ended.drain(..) {
            let history = self.key(key);
            history.trying.remove(&id);
            if let Some(alone) = history.alone.take_if(|alone| alone.id == id) {
                self.judge(run, key, &alone);
            }
        }
        self.ended_now = ended;
    }

    fn judge(&mut self, run: &Run, key: usize, refused: &Alone) {
        let (sent, lease) = (refused.sent, self.lease + self.arrival);
        // Nobody knows who held the key before the record.
        let quiet_since = self.disturbances.quiet_since().map(|since| since.max(run.start.unwrap_or_default()));
        let is_quiet = quiet_since.is_some_and(|since| rules::is_overdue(sent.at, since, lease));
        let Some((out, refused_on)) = refused.out.filter(|_| is_quiet) else { return };
        for node in (0..64).filter(|node| refused_on & (1 << node) != 0) {
            let may_have_left = |left: &&LetGo| {
                left.free_on & (1 << node) == 0
                    && rules::is_overdue(sent.at, left.at.at, self.arrival)
                    && !rules::is_overdue(sent.at, left.at.at, lease)
            };
            // The newest first.
            let Some(watch) = self.keys.get(&key) else { return };
            let left: Vec<&LetGo> = watch.let_go.iter().rev().filter(may_have_left).collect();
            let Some(newest) = left.first() else { continue };
            let leftover = UnreleasedKey {
                key: run.key(key).clone(),
                node: run.plan.lock_nodes[node].clone(),
                left_by: left.iter().take(LEFT_BY_MAX).map(|left| left.id).collect(),
                refused: refused.id,
                witness: vec![newest.at.seq, sent.seq, out.seq],
            };
            self.found.push(((sent.at.minus(lease), out.at), leftover));
        }
    }

    /// Nothing more can be said of the attempt.
    pub fn on_attempt_closed(&mut self, run: &Run, attempt: &Attempt) {
        self.ended(attempt, run.now, false);
        let key = self.key(attempt.key);
        key.trying.remove(&attempt.id);
        key.alone.take_if(|alone| alone.id == attempt.id);
    }

    /// The findings, by time. If the host's clock was set back, a lease that a node had granted before may have lasted
    /// longer.
    pub fn found(&self, run: &Run) -> Vec<&UnreleasedKey> {
        let found = self.found.iter().filter(|(rests_on, _)| !run.clock_steps.may_have_put_off(*rests_on));
        found.map(|(_, leftover)| leftover).collect()
    }
}

fn delay(fault: &Fault) -> Duration {
    fault.link_delay().map_or(Duration::ZERO, LinkDelay::longest)
}

#[cfg(test)]
mod tests;
