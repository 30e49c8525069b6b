//! Property 6: safe release. No release, renewal or undo took effect on a node where the attempt was no longer the owner; and what was
//! let go is free on every node, which [`crate::leftover`] judges.

use std::collections::VecDeque;

use history::{Answers, Event, FaultKind, HoldId, NodeAnswer, Stamp};
use rustc_hash::FxHashMap;

use crate::{
    expiry,
    holds::{Attempt, Mark, Nodes},
    judge::{Ending, Judge, Unsafe},
    leftover::Leftovers,
    merge::Entry,
    property::{Property, ReleaseVerdict, UnsafeRelease},
    rules,
    run::Run,
    verdict::{Facts, Verdict},
};

/// One attempt that a node granted.
#[derive(Debug, Clone, Copy)]
struct Possession {
    owner: HoldId,
    sent: Stamp,
    completed: Mark,
    /// When its lease may have run out.
    promise: Stamp,
    let_go: Option<Stamp>,
}

/// A request that took effect somewhere.
#[derive(Debug, Clone, Copy)]
struct Effect {
    attempt: HoldId,
    key: usize,
    /// When the attempt had come out, and where it was granted.
    completed: Option<Stamp>,
    granted_on: Nodes,
    refused_on: Nodes,
    done_on: Nodes,
    invoked: Mark,
    answered: Mark,
}

/// Grants that are remembered of a key on a node. A request of an older attempt meets the newest of them.
const GRANTS_MAX: usize = 8;
/// Violations that are listed.
const LISTED: usize = 20;

/// Judges releases.
#[derive(Default)]
pub(crate) struct Release {
    /// By key and node, oldest first.
    grants: FxHashMap<(usize, usize), VecDeque<Possession>>,
    /// Requests that were sent and not answered: releases, undos and renewals apart.
    sent: FxHashMap<HoldId, [Option<Mark>; 3]>,
    /// Undos that were answered. Who refused the attempt is told only when it has come out, which is after that.
    undone: FxHashMap<HoldId, (Mark, Answers)>,
    /// Effects that were reported at this stamp. They are judged when all events of it have been seen: an owner may
    /// have begun to let go at the same one.
    effects: Vec<Effect>,
    found: Vec<Unsafe>,
    leftovers: Leftovers,
}

const RELEASE: usize = 0;
const UNDO: usize = 1;
const RENEWAL: usize = 2;

fn bits(nodes: Nodes) -> impl Iterator<Item = usize> {
    let mut left = nodes;
    std::iter::from_fn(move || {
        let node = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(node)
    })
}

impl Release {
    /// An attempt came out: nodes that granted it belong to it from now on.
    fn completed(&mut self, attempt: &Attempt, promise: Stamp) {
        let Some(completed) = attempt.completed else { return };
        for node in bits(attempt.granted_on) {
            let grants = self.grants.entry((attempt.key, node)).or_default();
            if grants.len() == GRANTS_MAX {
                grants.pop_front();
            }
            let (owner, sent, let_go) = (attempt.id, attempt.sent.at, attempt.let_go);
            grants.push_back(Possession { owner, sent, completed, promise, let_go });
        }
    }

    fn lets_go(&mut self, attempt: &Attempt, at: Stamp) {
        for node in bits(attempt.granted_on) {
            let grants = self.grants.get_mut(&(attempt.key, node));
            for grant in grants.into_iter().flatten().filter(|g| g.owner == attempt.id) {
                grant.let_go.get_or_insert(at);
            }
        }
    }

    fn invoked(&mut self, hold: HoldId, what: usize, mark: Mark) {
        self.sent.entry(hold).or_default()[what] = Some(mark);
    }

    fn answered(&mut self, run: &Run, hold: HoldId, what: usize, answered: Mark, answers: &Answers) {
        let invoked = self.sent.get_mut(&hold).and_then(|sent| sent[what].take());
        let (Some(attempt), Some(invoked)) = (run.attempt(hold), invoked) else { return };
        let done_on = run.nodes(answers, &[NodeAnswer::Done]);
        if done_on != 0 {
            self.effects.push(Effect {
                attempt: hold,
                key: attempt.key,
                completed: attempt.completed.map(|mark| mark.at),
                granted_on: attempt.granted_on,
                refused_on: attempt.refused_on,
                done_on,
                invoked,
                answered,
            });
        }
    }

    /// The owners on whom a request took effect, on each node where it did.
    fn judge(&mut self, effect: &Effect) {
        for node in bits(effect.done_on) {
            for grant in self.grants.get(&(effect.key, node)).into_iter().flatten() {
                if grant.owner == effect.attempt {
                    continue;
                }
                let is_in = |nodes: Nodes| nodes & (1 << node) != 0;
                let is_over = is_in(effect.granted_on)
                    && effect.completed.is_some_and(|completed| {
                        rules::owns_no_more(completed, grant.sent, grant.completed.at, effect.invoked.at)
                    });
                let owned_to = grant.let_go.map_or(grant.promise, |at| at.min(grant.promise));
                // One that the node granted, or may have granted, may own the key by right: then it is the grant that
                // was wrong, and another property says so.
                let is_inside_possession = is_in(effect.refused_on)
                    && rules::is_inside_possession(effect.invoked.at, effect.answered.at, grant.completed.at, owned_to);
                if is_over || is_inside_possession {
                    self.found.push(Unsafe {
                        key: effect.key,
                        node,
                        attempt: effect.attempt,
                        owner: grant.owner,
                        owner_ok: grant.completed,
                        invoked: effect.invoked,
                        answered: effect.answered,
                        is_by_order: is_over,
                    });
                }
            }
        }
    }
}

impl Judge for Release {
    fn see(&mut self, run: &Run, entry: &Entry) {
        self.leftovers.see(run, entry);
        let mark = Mark { at: entry.at, seq: entry.seq };
        match &entry.event {
            Event::Acquired { attempt, .. } => {
                if let Some((attempt, grant)) = run.attempt(*attempt).and_then(|a| Some((a, a.grant?))) {
                    self.completed(attempt, grant.first_promise);
                }
            }
            Event::AcquireFailed { attempt: id, .. } => {
                if let Some(attempt) = run.attempt(*id) {
                    self.completed(attempt, rules::promise_end(attempt.sent.at, run.plan.lease));
                }
                if let Some((answered, answers)) = self.undone.remove(id) {
                    self.answered(run, *id, UNDO, answered, &answers);
                }
            }
            Event::Release { hold: id } | Event::Undo { attempt: id } => {
                let what = if matches!(entry.event, Event::Undo { .. }) { UNDO } else { RELEASE };
                self.invoked(*id, what, mark);
                if let Some(attempt) = run.attempt(*id) {
                    self.lets_go(attempt, mark.at);
                }
            }
            Event::Renew { hold } => self.invoked(*hold, RENEWAL, mark),
            Event::Released { hold, answers, .. } | Event::ReleaseFailed { hold, answers, .. } => {
                self.answered(run, *hold, RELEASE, mark, answers);
            }
            Event::Undone { attempt: id, answers } => match run.attempt(*id) {
                Some(attempt) if attempt.completed.is_none() => {
                    self.undone.insert(*id, (mark, answers.clone()));
                }
                _ => self.answered(run, *id, UNDO, mark, answers),
            },
            Event::Renewed { hold, answers, .. } | Event::RenewFailed { hold, answers, .. } => {
                self.answered(run, *hold, RENEWAL, mark, answers);
            }
            _ => {}
        }
    }

    fn settle(&mut self, run: &Run) {
        self.leftovers.settle(run);
        if self.effects.is_empty() {
            return;
        }
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.judge(&effect);
        }
        self.effects = effects;
    }

    fn closed(&mut self, _run: &Run, attempt: &Attempt) {
        self.sent.remove(&attempt.id);
        self.undone.remove(&attempt.id);
        self.leftovers.closed(attempt);
    }

    /// Where a clock moved, or a store revoked a lease, it may have ended early and given the key to another: what rests on
    /// possession says nothing then, and where a node may have come back without what it had been told, nothing does.
    fn unsafe_releases(&self, run: &Run) -> Vec<Unsafe> {
        let is_one_store = expiry::is_one_store(run);
        let is_hit = |u: &Unsafe, by: &dyn Fn(FaultKind) -> bool| {
            run.faults.iter().any(|(_, l)| {
                by(l.kind)
                    && (is_one_store || run.plan.lock_nodes.get(u.node) == Some(&l.node))
                    && run.plan.lock_nodes.contains(&l.node)
                    && l.requested.is_some_and(|mark| mark.at < u.answered.at)
            })
        };
        let revokes = is_one_store && run.plan.models.unwrap_or_default().revokes_on_resume;
        let ends_early = |kind: FaultKind| kind == FaultKind::Clock || (kind.freezes() && revokes);
        let is_clock_safe = run.stalls.steps.is_empty();
        let sound = self.found.iter().filter(|u| {
            !is_hit(u, &|kind| expiry::forgets(run, kind))
                && (u.is_by_order || (is_clock_safe && !is_hit(u, &ends_early)))
        });
        let mut sound: Vec<Unsafe> = sound.cloned().collect();
        sound.sort_by_key(|u| (u.answered.at, u.attempt, u.invoked.at, u.node, u.owner));
        sound
    }

    fn verdicts(self: Box<Self>, run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(String, Property)> {
        let found = &ending.unsafe_releases;
        let mut places: Vec<_> = found.iter().map(|u| (u.answered, u.invoked, u.attempt, u.node)).collect();
        places.dedup();
        let faults = found.iter().take(LISTED).map(|u| UnsafeRelease {
            key: run.key(u.key).clone(),
            node: run.plan.lock_nodes[u.node].clone(),
            attempt: u.attempt,
            owner: u.owner,
            witness: vec![u.owner_ok.seq, u.invoked.seq, u.answered.seq],
        });
        let left = self.leftovers.found();
        let left_behind = left.len();
        let reason = format!("{left_behind} times a node refused an attempt for a key that everybody had let go of");
        let release = ReleaseVerdict {
            verdict: Verdict::judged(!found.is_empty() || left_behind > 0, !ending.is_whole),
            unsafe_releases: places.len() as u64,
            left_behind: left_behind as u64,
            faults: faults.collect(),
            leftovers: left.take(LISTED).cloned().collect(),
            reasons: if left_behind > 0 { vec![reason] } else { Vec::new() },
        };
        vec![("release".into(), Property::Release(release))]
    }
}

#[cfg(test)]
mod tests {
    use history::{FaultKind, FaultPhase, Why};

    use super::*;
    use crate::scene::{Scene, count, verdict};

    fn unsafe_releases(scene: &Scene) -> u64 {
        let v = scene.verdicts();
        let n = count(&v, "release.unsafe_releases");
        assert_eq!(verdict(&v, "release") == Verdict::Violated, n > 0);
        n
    }

    fn on(node: u64, answer: NodeAnswer) -> Answers {
        Scene::answers(&[(node, answer)])
    }

    #[test]
    fn a_release_that_only_touches_what_is_owned_is_safe() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).release(1, 20).acquire(2, 2, 30, 40, 42).release(2, 50);
        scene.acquire(3, 1, 60, 70, 43).acquire(4, 2, 3_000, 3_010, 44).release_refused(3, 3_020).release(4, 3_030);
        assert_eq!(unsafe_releases(&scene), 0);
    }

    #[test]
    fn a_release_done_after_another_attempt_was_granted_is_unsafe() {
        // Hold 1 ran out, hold 2 was granted, then hold 1's release was done on node 1.
        for (invoked, expected) in [(2_110, 0), (2_111, 1)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42);
            // Hold 2 lets go at once, so that only the order of the grants can tell.
            scene.release(2, 2_110).release_on(1, invoked, 2_200, on(1, NodeAnswer::Done));
            assert_eq!(unsafe_releases(&scene), expected, "invoked at {invoked}");
        }
    }

    #[test]
    fn an_attempt_that_came_out_after_the_other_was_sent_may_own_the_key() {
        for (sent, expected) in [(10, 0), (11, 3)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, sent, 30, 42).release(1, 50).release(2, 100);
            assert_eq!(unsafe_releases(&scene), expected, "sent at {sent}");
        }
    }

    #[test]
    fn an_undo_done_inside_another_attempts_possession_is_unsafe() {
        let refused = Scene::answers(&[(1, NodeAnswer::Refused), (2, NodeAnswer::Refused), (3, NodeAnswer::Refused)]);
        // Possession of hold 1: from 10 to its release at 100.
        for (invoked, answered, expected) in [(10, 50, 0), (11, 50, 1), (11, 99, 1), (11, 100, 0), (110, 120, 0)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).release(1, 100);
            scene.try_to_acquire(2, 2, 5).acquire_failed(2, 9, Why::Held, refused.clone());
            scene.undo(2, invoked, answered, on(2, NodeAnswer::Done));
            assert_eq!(unsafe_releases(&scene), expected, "undo from {invoked} to {answered}");
        }
    }

    #[test]
    fn an_undo_is_judged_though_it_is_told_before_its_attempt_has_come_out() {
        for (refusing, expected) in [(1, 1), (2, 0)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).release(1, 100).try_to_acquire(2, 2, 12);
            scene.undo(2, 20, 30, on(1, NodeAnswer::Done));
            scene.acquire_failed(2, 30, Why::Held, on(refusing, NodeAnswer::Refused));
            assert_eq!(unsafe_releases(&scene), expected, "refused by node {refusing}");
        }
    }

    #[test]
    fn possession_ends_with_the_lease() {
        for (answered, expected) in [(1_977, 1), (1_978, 0)] {
            let mut scene = Scene::new();
            scene.acquire(1, 1, 0, 10, 41).try_to_acquire(2, 2, 5);
            scene.acquire_failed(2, 9, Why::Held, on(2, NodeAnswer::Refused));
            scene.undo(2, 20, answered, on(2, NodeAnswer::Done));
            assert_eq!(unsafe_releases(&scene), expected, "answered at {answered}");
        }
    }

    #[test]
    fn a_renewal_done_on_a_node_that_another_attempt_owns_is_unsafe() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).renew(1, 2_120, 2_130).release(2, 2_200);
        scene.give_up(1, 2_210);
        assert_eq!(unsafe_releases(&scene), 3);
    }

    #[test]
    fn a_node_that_was_killed_may_have_given_the_key_to_anybody() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42).renew(1, 2_120, 2_130).release(2, 2_200);
        scene.fault(1, FaultKind::Kill, "redis-1", 50, FaultPhase::Requested { asked_ns: 1, hold: None });
        scene.give_up(1, 2_210);
        assert_eq!(unsafe_releases(&scene), 2);
    }

    #[test]
    fn the_faults_name_node_owner_and_events() {
        let mut scene = Scene::new();
        scene.acquire(1, 1, 0, 10, 41).acquire(2, 2, 2_100, 2_110, 42);
        scene.release_on(1, 2_150, 2_160, on(3, NodeAnswer::Done)).release(2, 2_200);
        let v = scene.verdicts();
        let Some(Property::Release(found)) = v.properties.get("release") else { panic!() };
        let fault = &found.faults[0];
        assert_eq!((fault.node.as_str(), fault.attempt, fault.owner), ("redis-3", HoldId(1), HoldId(2)));
        let records = scene.records();
        let is = |i: usize| &records[usize::try_from(fault.witness[i]).unwrap()].event;
        assert!(matches!(is(0), Event::Acquired { attempt: HoldId(2), .. }));
        assert!(matches!(is(1), Event::Release { hold: HoldId(1) }));
        assert!(matches!(is(2), Event::Released { hold: HoldId(1), .. }));
    }
}
