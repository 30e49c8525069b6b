//! Property 6: safe release. No release, renewal or undo took effect on a node where the attempt was no longer the
//! owner. A released key is free on every node, which [`unreleased`] judges.

mod unreleased;

use std::collections::hash_map;

use history::{
    Answers, Arm, ClientId, Event, FaultKind, Harm, HoldId, Key, Mode, NodeAnswer, NodeName, Persistence, Plan, Stamp,
    fault::Data,
};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    faults::FaultRecord,
    holds::{Attempt, EventRef, Nodes, bits},
    judge::{Ending, Judge, UnsafeRequest},
    key_lease,
    report::{Report, Violation, counted, plural},
    rules,
    run::Run,
    verdict::Verdict,
};

pub use unreleased::UnreleasedKey;

use unreleased::UnreleasedKeys;

/// A release, renewal or undo that took effect on a node where another attempt was the owner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnsafeRelease {
    /// The key.
    pub key: Key,
    /// The node.
    pub node: NodeName,
    /// The attempt whose request took effect.
    pub attempt: HoldId,
    /// The attempt that owned the key on the node.
    pub owner: HoldId,
    /// The owner's success, the request, its answer.
    pub witness: Vec<u64>,
}

/// Property 6: safe release.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReleaseVerdict {
    /// Violated by one unsafe release, and by one key that was left behind.
    pub verdict: Verdict,
    /// The number of unsafe requests: pairs of a request and a node.
    pub unsafe_releases: u64,
    /// The number of refusals although every attempt had released the key: pairs of an attempt and a node.
    pub left_behind: u64,
    /// The first unsafe releases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<UnsafeRelease>,
    /// The first keys that were left behind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<UnreleasedKey>,
    /// The reasons why the verdict is inconclusive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// One attempt that nodes granted.
#[derive(Debug, Clone, Copy)]
struct Possession {
    owner: HoldId,
    /// The nodes that granted the attempt, apart from those that have granted so many since that it is forgotten.
    nodes: Nodes,
    mode: Mode,
    sent: Stamp,
    completed: EventRef,
    /// The stamp at which the lease may have run out.
    promise: Stamp,
    let_go: Option<Stamp>,
}

impl Possession {
    fn is_on(&self, node: usize) -> bool {
        self.nodes & (1 << node) != 0
    }

    /// The stamp until which the attempt surely owns the key.
    fn owned_to(&self) -> Stamp {
        self.let_go.map_or(self.promise, |at| at.min(self.promise))
    }
}

/// The facts about an attempt by which its requests are judged.
#[derive(Debug, Clone, Copy)]
struct Requester {
    attempt: HoldId,
    key: usize,
    mode: Mode,
    sent: Stamp,
    /// The answer to the attempt, and the nodes that granted it.
    completed: Option<Stamp>,
    granted_on: Nodes,
    refused_on: Nodes,
}

impl Requester {
    fn of(attempt: &Attempt) -> Requester {
        Requester {
            attempt: attempt.id,
            key: attempt.key,
            mode: attempt.mode,
            sent: attempt.sent.at,
            completed: attempt.completed.map(|mark| mark.at),
            granted_on: attempt.granted_on,
            refused_on: attempt.refused_on,
        }
    }
}

/// The requests of an attempt that were sent and not answered.
#[derive(Debug, Default)]
struct Requests {
    /// Releases, undos and renewals apart.
    sent: [Option<EventRef>; 3],
    /// The facts about the attempt, if it has closed: its client has gone on without the answer.
    closed: Option<Requester>,
}

/// A request that took effect somewhere.
#[derive(Debug, Clone, Copy)]
struct Effect {
    by: Requester,
    done_on: Nodes,
    invoked: EventRef,
    answered: EventRef,
}

/// Grants that are remembered of a key on a node. A request of an older attempt meets the newest of them.
const GRANTS_MAX: usize = 8;
/// Violations that are listed.
const LISTED: usize = 20;

/// Judges releases.
#[derive(Default)]
pub(crate) struct Release {
    /// By key, oldest first.
    grants: FxHashMap<usize, Vec<Possession>>,
    sent: FxHashMap<HoldId, Requests>,
    /// The attempt of each client that closed last with a request in `sent`. Only this one is kept of the closed ones.
    closed: FxHashMap<ClientId, HoldId>,
    /// Undos that were answered. The nodes that refused the attempt are known only when the attempt has ended.
    undone: FxHashMap<HoldId, (EventRef, Answers)>,
    /// Effects that were reported at this stamp. They are judged after all events of the stamp, because an owner may
    /// have started its release at the same stamp.
    effects: Vec<Effect>,
    found: Vec<UnsafeRequest>,
    unreleased: UnreleasedKeys,
    /// True if a hold was acquired without the answers of the nodes, and with them. A store that answers as a whole
    /// tells none of them.
    holds: [bool; 2],
}

const RELEASE: usize = 0;
const UNDO: usize = 1;
const RENEWAL: usize = 2;

impl Release {
    /// Notes that an attempt has ended: from now on it owns the key on the nodes that granted it.
    fn completed(&mut self, attempt: &Attempt, promise: Stamp) {
        let Some(completed) = attempt.completed else { return };
        let nodes = attempt.granted_on;
        if nodes == 0 {
            return;
        }
        let grants = self.grants.entry(attempt.key).or_default();
        if grants.len() >= GRANTS_MAX && grants.iter().all(|grant| grant.nodes & nodes == nodes) {
            // Mostly, every node has granted every attempt.
            grants[0].nodes &= !nodes;
            grants.retain(|grant| grant.nodes != 0);
        } else if grants.len() >= GRANTS_MAX {
            for node in bits(nodes) {
                let mut of_node = grants.iter_mut().filter(|grant| grant.is_on(node));
                if let (Some(oldest), true) = (of_node.next(), of_node.count() + 1 >= GRANTS_MAX) {
                    oldest.nodes &= !(1 << node);
                }
            }
            grants.retain(|grant| grant.nodes != 0);
        }
        let (owner, mode, sent, let_go) = (attempt.id, attempt.mode, attempt.sent.at, attempt.let_go);
        grants.push(Possession { owner, nodes, mode, sent, completed, promise, let_go });
    }

    /// Notes that nodes have extended the lease of an owner.
    fn renewed(&mut self, hold: &Attempt, done_on: Nodes) {
        let Some(grants) = self.grants.get_mut(&hold.key) else { return };
        let mut others = Vec::new();
        for grant in grants.iter_mut().filter(|grant| grant.owner == hold.id && grant.nodes & done_on != 0) {
            if grant.nodes & !done_on != 0 {
                others.push(Possession { nodes: grant.nodes & !done_on, ..*grant });
            }
            (grant.nodes, grant.promise) = (grant.nodes & done_on, hold.promise);
        }
        if !others.is_empty() {
            grants.extend(others);
            grants.sort_by_key(|grant| (grant.completed.at, grant.completed.seq));
        }
    }

    fn lets_go(&mut self, attempt: &Attempt, at: Stamp) {
        let grants = self.grants.get_mut(&attempt.key).into_iter().flatten();
        for grant in grants.filter(|grant| grant.owner == attempt.id) {
            grant.let_go.get_or_insert(at);
        }
    }

    fn invoked(&mut self, hold: HoldId, what: usize, mark: EventRef) {
        self.sent.entry(hold).or_default().sent[what] = Some(mark);
    }

    fn answered(&mut self, run: &Run, id: HoldId, what: usize, answered: EventRef, answers: &Answers) {
        let Some(requests) = self.sent.get_mut(&id) else { return };
        let (invoked, closed) = (requests.sent[what].take(), requests.closed);
        let open = run.attempt(id).map(Requester::of);
        let (Some(by), Some(invoked)) = (open.or(closed), invoked) else { return };
        if open.is_none() && what == RELEASE {
            self.unreleased.answered(run, (by.key, by.attempt, by.sent), answers);
        }
        let done_on = run.nodes(answers, &[NodeAnswer::Done]);
        if done_on != 0 {
            self.effects.push(Effect { by, done_on, invoked, answered });
        }
    }

    /// Finds the owners that a request affected, on each node where the request took effect.
    fn judge(&mut self, effect: &Effect) {
        let by = &effect.by;
        let Some(grants) = self.grants.get(&by.key) else { return };
        let others = || grants.iter().filter(|grant| grant.owner != by.attempt);
        // Most requests take nothing from anybody.
        if others().all(|grant| effect.taken_from(grant) == (0, 0)) {
            return;
        }
        for node in bits(effect.done_on) {
            for grant in others() {
                let (over, inside_possession) = effect.taken_from(grant);
                let is_in = |nodes: Nodes| nodes & (1 << node) != 0;
                if is_in(over | inside_possession) {
                    self.found.push(UnsafeRequest {
                        key: by.key,
                        node,
                        attempt: by.attempt,
                        owner: grant.owner,
                        since: by.sent.min(grant.sent),
                        owner_ok: grant.completed,
                        invoked: effect.invoked,
                        answered: effect.answered,
                        is_by_order: is_in(over),
                    });
                }
            }
        }
    }
}

impl Effect {
    /// The nodes on which the request took the key from an owner: by the order of the grants, and while the owner
    /// surely owned the key.
    fn taken_from(&self, grant: &Possession) -> (Nodes, Nodes) {
        let (by, nodes) = (&self.by, self.done_on & grant.nodes);
        let (granted_too, refused) = (nodes & by.granted_on, nodes & by.refused_on);
        // Readers share a key, and a node keeps each owner apart. Then a hold that should not have been granted
        // beside another one took nothing from it.
        let is_over = granted_too != 0
            && [grant.mode, by.mode] == [Mode::Write; 2]
            && by.completed.is_some_and(|completed| {
                rules::owns_no_more(completed, grant.sent, grant.completed.at, self.invoked.at)
            });
        // An attempt that the node granted, or may have granted, may own the key rightly. Then the grant was wrong,
        // which another property reports.
        let is_inside_possession = refused != 0
            && rules::is_inside_possession(self.invoked.at, self.answered.at, grant.completed.at, grant.owned_to());
        (if is_over { granted_too } else { 0 }, if is_inside_possession { refused } else { 0 })
    }
}

impl Judge for Release {
    const NAME: &str = "release";
    const ABOUT: &str = "No release, renewal or undo takes effect on a node that another attempt owns, and a \
        released key is free on every node.";
    type Verdict = ReleaseVerdict;

    fn new(_plan: &Plan) -> Release {
        Release::default()
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        self.unreleased.on_event(run, entry);
        let mark = EventRef { at: entry.at, seq: entry.seq };
        match &entry.event {
            Event::Acquired { attempt, answers, .. } => {
                self.holds[usize::from(answers.iter().any(|(node, _)| run.plan.lock_nodes.contains(node)))] = true;
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
                let extended = run.attempt(*hold).filter(|hold| hold.renewed.is_some_and(|ok| ok.seq == mark.seq));
                if let Some(extended) = extended {
                    self.renewed(extended, run.nodes(answers, &[NodeAnswer::Done]));
                }
                self.answered(run, *hold, RENEWAL, mark, answers);
            }
            _ => {}
        }
    }

    fn on_stamp_complete(&mut self, run: &Run) {
        self.unreleased.on_stamp_complete(run);
        if self.effects.is_empty() {
            return;
        }
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.judge(&effect);
        }
        self.effects = effects;
    }

    fn on_attempt_closed(&mut self, run: &Run, attempt: &Attempt) {
        // A process that has ended gets no answer any more.
        let is_asked = |requests: &&mut Requests| !attempt.is_orphan && requests.sent.iter().any(Option::is_some);
        if let Some(requests) = self.sent.get_mut(&attempt.id).filter(is_asked) {
            requests.closed = Some(Requester::of(attempt));
            if let Some(former) = self.closed.insert(attempt.client, attempt.id) {
                self.sent.remove(&former);
            }
        } else {
            self.sent.remove(&attempt.id);
        }
        self.undone.remove(&attempt.id);
        self.unreleased.on_attempt_closed(run, attempt);
    }

    /// A request of a later attempt can only take what an attempt still owns.
    fn on_key_quiet(&mut self, run: &Run, key: usize) {
        self.unreleased.on_key_quiet(run, key);
        let hash_map::Entry::Occupied(mut grants) = self.grants.entry(key) else { return };
        grants.get_mut().retain(|grant| grant.owned_to() > run.now);
        if grants.get().is_empty() {
            grants.remove();
        }
    }

    /// After a clock fault or a revocation a lease may have ended early and the key gone to another attempt: findings
    /// that rest on possession are dropped then. After a restart that may have lost keys, all findings of the node are
    /// dropped. A fault that was never on drops nothing. A clock fault or a restart that was over before both attempts
    /// were sent changes nothing, and neither does such a step of the host's clock, or one after the answer to the
    /// request. A clock that was set back changes nothing either, unless a replica can be promoted. If one can, all
    /// findings are dropped after a fault of any of these nodes, apart from a clock fault: after a failover another
    /// node has the keys, and a record does not show which node was the primary.
    fn unsafe_requests(&self, run: &Run) -> Vec<UnsafeRequest> {
        let has_replicas = run.plan.has_replicas();
        let may_forget = |u: &UnsafeRequest, line: &FaultRecord| {
            key_lease::forgets(run, line.kind) && (has_replicas || !is_over_before(line, u.since))
        };
        let is_hit = |u: &UnsafeRequest, by: &dyn Fn(&FaultRecord) -> bool| {
            run.faults.iter().any(|(_, l)| {
                by(l)
                    && l.may_have_been_on()
                    && (has_replicas || run.plan.lock_nodes.get(u.node) == Some(&l.node))
                    && run.plan.lock_nodes.contains(&l.node)
                    && l.requested.is_some_and(|mark| mark.at < u.answered.at)
            })
        };
        let revokes = run.plan.has_one_store() && run.plan.models.unwrap_or_default().revokes_on_resume;
        let ends_early = |u: &UnsafeRequest, line: &FaultRecord| {
            let is_clock = line.kind == FaultKind::Clock && (has_replicas || !is_over_before(line, u.since));
            is_clock || (line.kind.freezes() && revokes)
        };
        let fails_over = |kind: FaultKind| run.plan.is_replicated() && kind.harm() != Harm::SetsClock;
        let is_stepped = |u: &UnsafeRequest| run.clock_steps.may_have_ended_leases(&run.plan, (u.since, u.answered.at));
        let sound = self.found.iter().filter(|u| {
            !run.faults.iter().any(|(_, line)| is_put_off(run, line, u))
                && !is_hit(u, &|line| may_forget(u, line) || fails_over(line.kind))
                && (u.is_by_order || (!is_stepped(u) && !is_hit(u, &|line| ends_early(u, line))))
        });
        let mut sound: Vec<UnsafeRequest> = sound.cloned().collect();
        sound.sort_by_key(|u| (u.answered.at, u.attempt, u.invoked.at, u.node, u.owner));
        sound
    }

    fn finish(self, run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let found = &ending.unsafe_requests;
        let mut places: Vec<_> = found.iter().map(|u| (u.answered, u.invoked, u.attempt, u.node)).collect();
        places.dedup();
        let faults = found.iter().take(LISTED).map(|u| UnsafeRelease {
            key: run.key(u.key).clone(),
            node: run.plan.lock_nodes[u.node].clone(),
            attempt: u.attempt,
            owner: u.owner,
            witness: vec![u.owner_ok.seq, u.invoked.seq, u.answered.seq],
        });
        let left = self.unreleased.found(run);
        let left_behind = left.len();
        let times = plural(left_behind as u64, "time", "times");
        let reason = format!("a node refused an attempt for a key that everybody had let go of: {times}");
        // Releases are judged by the answers of the nodes, which neither a client program nor a store as a whole tells.
        // Other records need not have them either.
        let is_told = run.plan.program.is_none() && self.holds != [true, false];
        let verdict = match is_told {
            false => Verdict::NotApplicable,
            true => Verdict::judged(!found.is_empty() || left_behind > 0, !ending.is_whole),
        };
        let release = ReleaseVerdict {
            verdict,
            unsafe_releases: places.len() as u64,
            left_behind: left_behind as u64,
            faults: faults.collect(),
            leftovers: left.into_iter().take(LISTED).cloned().collect(),
            reasons: if left_behind > 0 { vec![reason] } else { Vec::new() },
        };
        vec![(None, release)]
    }
}

/// Returns whether a fault was healed before a stamp. A restart loses nothing that was granted after it, and an offset
/// that a clock had before it granted a lease does not end the lease early.
fn is_over_before(line: &FaultRecord, at: Stamp) -> bool {
    line.healed.is_some_and(|healed| healed < at)
}

/// Returns whether a SIGKILL may have lost what the node had confirmed: the release of the attempt, and the grant of
/// the owner after it. Then the attempt had its key back. With `everysec`, Redis postpones its writes while a
/// background fsync runs; the server says before the kill whether one does.
fn is_put_off(run: &Run, line: &FaultRecord, u: &UnsafeRequest) -> bool {
    let is_of_node = run.plan.lock_nodes.get(u.node) == Some(&line.node);
    let may_lose = line.kind.harm() == Harm::Kills(Data::Kept) && run.plan.persistence() == Persistence::Everysec;
    let is_grant_kept = |killed: EventRef| line.unsynced.is_some_and(|fsyncs| fsyncs == 0) && u.owner_ok.at < killed.at;
    let may_lose = may_lose && line.may_have_been_on() && !is_over_before(line, u.since);
    is_of_node && may_lose && line.requested.is_some_and(|killed| killed.at < u.answered.at && !is_grant_kept(killed))
}

impl Report for ReleaseVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn figures(&self) -> String {
        if self.verdict == Verdict::NotApplicable {
            return "the record does not have the answers of the nodes".to_owned();
        }
        match (self.unsafe_releases, self.left_behind) {
            (0, 0) => String::new(),
            (0, n) => plural(n, "key left behind", "keys left behind"),
            (n, _) => plural(n, "unsafe release", "unsafe releases"),
        }
    }

    fn violations(&self) -> Vec<Violation> {
        counted(&[(self.unsafe_releases, "unsafe-release"), (self.left_behind, "left-behind")])
    }
}

#[cfg(test)]
mod tests;
