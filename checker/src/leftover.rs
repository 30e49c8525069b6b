//! The other half of property 6: what everybody has let go of is free on every node.
//!
//! A release, or the undo of an attempt that failed, goes to each node behind the attempt's own request, on one connection. So when it
//! was sent longer ago than requests take, the attempt owns the key nowhere, whatever the nodes have answered and whether or not the
//! answer was waited for. An attempt is judged that was alone: from its sending to its end no other one of the key was under way, every
//! one before it had let go so long ago, and for a lease before that no fault was on. A node that refuses it as held keeps the key of
//! an attempt that is over; and while the lease of one that had let go may still run there, that one was not undone on this node. (A key
//! that outlives every lease is for property 7.)
//!
//! What requests take is [`SLACK`], and all delays of the plan. Two rounds of an attempt may refuse: only the first says that somebody
//! else has the key.

use std::{collections::VecDeque, time::Duration};

use history::{Answers, Event, Fault, FaultKind, HoldId, Late, NodeAnswer, Outcome, Plan, Stamp, Why};

use crate::{
    expiry,
    holds::{Attempt, Mark, Nodes},
    merge::Entry,
    property::Leftover,
    quiet::Quiet,
    rules,
    run::Run,
    stuck::SLACK,
};

/// Attempts that are listed with a key that one of them has left.
const LEFT_BY_MAX: usize = 5;

/// An attempt that has not come out, or only at this stamp.
#[derive(Debug)]
struct Trying {
    id: HoldId,
    sent: Mark,
    is_alone: bool,
    /// When it came out, and which nodes said that somebody else has the key.
    out: Option<(Mark, Nodes)>,
}

/// An attempt whose release or undo was sent.
#[derive(Debug)]
struct LetGo {
    id: HoldId,
    at: Mark,
    /// Nodes that have said that it owns the key no more, or never did.
    free_on: Nodes,
}

#[derive(Debug, Default)]
struct KeyLine {
    trying: Vec<Trying>,
    /// Attempts and holds that have not let go.
    open: Vec<HoldId>,
    /// Until then requests of those that are over may arrive, or leases run that nobody has ended.
    settled: Stamp,
    let_go: VecDeque<LetGo>,
}

impl KeyLine {
    fn take(&mut self, id: HoldId) -> bool {
        let found = self.open.iter().position(|open| *open == id);
        found.map(|i| self.open.swap_remove(i)).is_some()
    }

    fn free(&mut self, id: HoldId, nodes: Nodes) {
        self.let_go.iter_mut().filter(|left| left.id == id).for_each(|left| left.free_on |= nodes);
    }
}

/// Judges what is left behind.
#[derive(Default)]
pub(crate) struct Leftovers {
    keys: Vec<KeyLine>,
    /// Keys of which an attempt came out at this stamp.
    touched: Vec<usize>,
    quiet: Quiet,
    /// The longest lease so far.
    lease: Duration,
    /// What a request may take to its node.
    arrival: Duration,
    now: Stamp,
    found: Vec<(Mark, Leftover)>,
}

impl Leftovers {
    pub fn see(&mut self, run: &Run, entry: &Entry) {
        let mark = Mark { at: entry.at, seq: entry.seq };
        self.now = entry.at;
        match &entry.event {
            Event::Fault { fault, kind, node, phase } => {
                let is_of_locks = run.plan.lock_nodes.contains(node);
                if kind.kills() && !is_of_locks {
                    // What it had queued may be lost.
                    self.quiet.not_before(mark.at);
                } else if !matches!(kind, FaultKind::Delay | FaultKind::Reorder) {
                    self.quiet.disturbed(&run.plan, *fault, phase, mark.at, is_of_locks);
                }
            }
            // What it had stamped may not have left before it went on.
            Event::Stall { from, to, .. } if to.since(*from) >= SLACK / 2 => {
                self.found.retain(|(out, _)| out.at < *from);
                self.quiet.not_before(*to);
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
                if let Some(attempt) = run.attempt(*id).filter(|_| !expiry::is_one_store(run)) {
                    self.of_attempt(run, attempt, mark, &entry.event);
                }
            }
            _ => {}
        }
    }

    fn of_attempt(&mut self, run: &Run, attempt: &Attempt, mark: Mark, event: &Event) {
        match event {
            Event::Acquire { .. } => self.sent(&run.plan, attempt),
            Event::Acquired { .. } => {
                self.lease = self.lease.max(attempt.grant.map_or(Duration::ZERO, |grant| grant.lease));
                self.came_out(attempt, mark, attempt.refused_on);
            }
            Event::AcquireFailed { outcome, why, .. } => {
                let refused_on = if *why == Why::Held { attempt.refused_on } else { 0 };
                self.key(attempt.key).free(attempt.id, refused_on);
                self.came_out(attempt, mark, refused_on);
                let had_nothing = *outcome == Outcome::Failed && *why == Why::Held && attempt.granted_on == 0;
                self.ended(attempt, mark.at, had_nothing);
            }
            Event::Undo { .. } | Event::Release { .. } => self.lets_go(attempt, mark),
            Event::Undone { answers, .. } | Event::Released { answers, .. } | Event::ReleaseFailed { answers, .. } => {
                self.answered(run, attempt, answers);
            }
            _ => self.ended(attempt, mark.at, false),
        }
    }

    fn key(&mut self, key: usize) -> &mut KeyLine {
        if self.keys.len() <= key {
            self.keys.resize_with(key + 1, KeyLine::default);
        }
        &mut self.keys[key]
    }

    fn sent(&mut self, plan: &Plan, attempt: &Attempt) {
        if self.lease.is_zero() {
            self.lease = plan.lease.max(plan.workload.renew_for.unwrap_or_default());
            self.arrival = SLACK + plan.schedule.iter().map(|step| delay(&step.fault)).sum::<Duration>();
        }
        let key = self.key(attempt.key);
        key.trying.iter_mut().for_each(|other| other.is_alone = false);
        let is_alone = key.trying.is_empty() && key.open.is_empty() && key.settled < attempt.sent.at;
        key.open.push(attempt.id);
        key.trying.push(Trying { id: attempt.id, sent: attempt.sent, is_alone, out: None });
    }

    fn came_out(&mut self, attempt: &Attempt, mark: Mark, refused_on: Nodes) {
        let trying = self.key(attempt.key).trying.iter_mut().find(|trying| trying.id == attempt.id);
        if let Some(trying) = trying {
            trying.out = Some((mark, refused_on));
            self.touched.push(attempt.key);
        }
    }

    /// It is over, and nobody told the nodes.
    fn ended(&mut self, attempt: &Attempt, at: Stamp, had_nothing: bool) {
        let until = at.plus(self.lease + self.arrival);
        let key = self.key(attempt.key);
        if key.take(attempt.id) && !had_nothing {
            key.settled = key.settled.max(until);
        }
    }

    fn lets_go(&mut self, attempt: &Attempt, mark: Mark) {
        let (arrived, lease) = (mark.at.plus(self.arrival), self.lease + self.arrival);
        let key = self.key(attempt.key);
        if key.take(attempt.id) {
            key.settled = key.settled.max(arrived);
            while key.let_go.front().is_some_and(|left| rules::is_overdue(mark.at, left.at.at, lease)) {
                key.let_go.pop_front();
            }
            let free_on = if attempt.grant.is_some() { attempt.refused_on } else { 0 };
            key.let_go.push_back(LetGo { id: attempt.id, at: mark, free_on });
        }
    }

    /// Its requests are done in their order: who has answered this one will not grant it the key any more.
    fn answered(&mut self, run: &Run, attempt: &Attempt, answers: &Answers) {
        let nodes = run.nodes(answers, &[NodeAnswer::Done, NodeAnswer::Refused]);
        self.key(attempt.key).free(attempt.id, nodes);
    }

    /// All events of a stamp have been seen: no other attempt was sent while these were under way.
    pub fn settle(&mut self, run: &Run) {
        let mut touched = std::mem::take(&mut self.touched);
        for key in touched.drain(..) {
            let out: Vec<Trying> = self.keys[key].trying.extract_if(.., |trying| trying.out.is_some()).collect();
            out.iter().filter(|trying| trying.is_alone).for_each(|trying| self.judge(run, key, trying));
        }
        self.touched = touched;
    }

    fn judge(&mut self, run: &Run, key: usize, refused: &Trying) {
        let (sent, lease) = (refused.sent, self.lease + self.arrival);
        let is_quiet = self.quiet.since().is_some_and(|since| rules::is_overdue(sent.at, since, lease));
        let Some((out, refused_on)) = refused.out.filter(|_| is_quiet) else { return };
        for node in (0..64).filter(|node| refused_on & (1 << node) != 0) {
            let may_have_left = |left: &&LetGo| {
                left.free_on & (1 << node) == 0
                    && rules::is_overdue(sent.at, left.at.at, self.arrival)
                    && !rules::is_overdue(sent.at, left.at.at, lease)
            };
            // The newest first.
            let left: Vec<&LetGo> = self.keys[key].let_go.iter().rev().filter(may_have_left).collect();
            let Some(newest) = left.first() else { continue };
            let leftover = Leftover {
                key: run.key(key).clone(),
                node: run.plan.lock_nodes[node].clone(),
                left_by: left.iter().take(LEFT_BY_MAX).map(|left| left.id).collect(),
                refused: refused.id,
                witness: vec![newest.at.seq, sent.seq, out.seq],
            };
            self.found.push((out, leftover));
        }
    }

    /// Nothing more can be said of the attempt.
    pub fn closed(&mut self, attempt: &Attempt) {
        self.ended(attempt, self.now, false);
        self.key(attempt.key).trying.retain(|trying| trying.id != attempt.id || trying.out.is_some());
    }

    /// What was found, by time.
    pub fn found(&self) -> impl ExactSizeIterator<Item = &Leftover> {
        self.found.iter().map(|(_, leftover)| leftover)
    }
}

fn delay(fault: &Fault) -> Duration {
    fault.late().map_or(Duration::ZERO, Late::longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        scene::{Scene, count, verdict},
        verdict::Verdict,
    };

    fn on(node: u64, answer: NodeAnswer) -> Answers {
        Scene::answers(&[(node, answer)])
    }

    fn left_behind(scene: &Scene) -> u64 {
        let v = scene.verdicts();
        let n = count(&v, "release.left_behind");
        assert_eq!(verdict(&v, "release") == Verdict::Violated, n > 0);
        n
    }

    /// Attempt 1 is refused by node 1 and undone, and node 3 says nothing of that unless it is `told`; attempt 2 is refused by node 3.
    fn scene(sent: u64, told: Option<NodeAnswer>) -> Scene {
        let mut scene = Scene::new();
        scene.try_to_acquire(1, 1, 10_000).undo(1, 10_010, 10_020, on(3, told.unwrap_or(NodeAnswer::None)));
        scene.acquire_failed(1, 10_020, Why::Held, on(1, NodeAnswer::Refused));
        scene.try_to_acquire(2, 2, sent).acquire_failed(2, sent + 10, Why::Held, on(3, NodeAnswer::Refused));
        scene
    }

    #[test]
    fn a_node_that_keeps_the_key_of_an_attempt_that_was_undone_violates_it() {
        // Its undo has arrived by 11,010, and its lease of 2,000 is over by 13,010.
        for (sent, expected) in [(11_010, 0), (11_011, 1), (13_010, 1), (13_011, 0)] {
            assert_eq!(left_behind(&scene(sent, None)), expected, "sent at {sent}");
        }
    }

    #[test]
    fn a_node_that_has_answered_has_no_key_of_it() {
        for (told, expected) in [(NodeAnswer::None, 1), (NodeAnswer::Done, 0), (NodeAnswer::Refused, 0)] {
            assert_eq!(left_behind(&scene(11_500, Some(told))), expected, "{told:?}");
        }
    }

    #[test]
    fn whoever_else_may_have_the_key_there_excuses_the_node() {
        let mut with_other = scene(11_500, None);
        with_other.plan.workload.workers = 3;
        assert_eq!(left_behind(with_other.try_to_acquire(3, 3, 11_505)), 0, "sent while the other was under way");
        let mut with_other = scene(11_500, None);
        with_other.plan.workload.workers = 3;
        assert_eq!(left_behind(with_other.try_to_acquire(3, 3, 11_511)), 1, "sent after it");
        let mut with_holder = scene(11_500, None);
        with_holder.plan.workload.workers = 3;
        assert_eq!(left_behind(with_holder.acquire(3, 3, 10_100, 10_110, 41).release(3, 10_500)), 0, "just released");
    }
}
