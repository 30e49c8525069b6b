//! Compares the verdicts of the checker with the truth of the simulation.
//!
//! The oracle shares no code with the checker. It confirms an alarm by the owner of the key at that time, as the models
//! of the servers know it, and by the plan's lease. In the other direction, the checker must have reported every act
//! that arrived while another client owned the key.

use std::time::Duration;

use checker::{Cause, Property, Verdict, Verdicts, Window, WindowKind};
use history::{FaultKind, Harm, HoldId, Persistence, Plan, Stamp, Step, Target, drift, fault::Data};
use sim::truth::{Act, Claim, Truth};

/// The checker need not report an overlap that is shorter than this: stamps do not distinguish it.
const OVERLAP_FROM: Duration = Duration::from_millis(5);

/// The comparison of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The number of reported windows, dead claims, overclaims, minority claims, token faults and violated properties.
    pub alarms: u64,
    /// Alarms that the truth does not confirm.
    pub unconfirmed: Vec<String>,
    /// Holds that acted while another hold owned the key, for at least [`OVERLAP_FROM`].
    pub overlaps: u64,
    /// Unreported overlaps in runs in which the checker says that it cannot decide so many acts, because the record
    /// does not order the grants. Such a run is never upheld.
    pub undecided: u64,
    /// Other unreported overlaps.
    pub missed: Vec<String>,
    /// Windows without an explanation.
    pub unexplained: Vec<String>,
}

impl Comparison {
    /// Returns whether every alarm is true, and every overlap is reported or undecided.
    pub fn agrees(&self) -> bool {
        self.unconfirmed.is_empty() && self.missed.is_empty()
    }

    /// Takes the missed overlaps as undecided if the checker says of so many acts that it cannot decide them.
    fn leave_undecided(&mut self, acts: u64) {
        if acts >= self.missed.len() as u64 {
            self.undecided = self.missed.drain(..).len() as u64;
        }
    }
}

/// Compares the verdicts on a run with its truth.
pub fn compare(plan: &Plan, truth: &Truth, verdicts: &Verdicts) -> Comparison {
    let oracle = Oracle { plan, truth };
    let mut compared = Comparison::default();
    for (name, property) in verdicts.properties.iter() {
        for (what, is_true) in oracle.alarms(name, property, verdicts) {
            compared.alarms += 1;
            if !is_true {
                compared.unconfirmed.push(what);
            }
        }
    }
    let windows = verdicts.lock().into_iter().flat_map(|lock| &lock.windows);
    let unexplained = windows.filter(|w| w.causes.iter().any(|cause| cause.is(Cause::Unexplained)));
    compared.unexplained = unexplained.map(|w| format!("{} of {:?}: {}", w.kind, w.holds, w.headline)).collect();
    for (stale, owner) in oracle.overlaps() {
        compared.overlaps += 1;
        if !is_reported(stale.hold, verdicts) {
            let late = stale.at.since(owner.at).as_millis();
            let what = format!("hold {} acted {late} ms after hold {} had taken over", stale.hold, owner.hold);
            compared.missed.push(what);
        }
    }
    compared.leave_undecided(verdicts.lock().map_or(0, |lock| lock.undecided));
    compared
}

/// Returns whether a window or a dead claim names this hold.
fn is_reported(hold: HoldId, verdicts: &Verdicts) -> bool {
    let is_of = |window: &Window| match window.kind {
        WindowKind::StaleHolder => window.holds.first() == Some(&hold),
        WindowKind::LeaseOverlap => window.holds.contains(&hold),
        // The first hold can act no more, and the second is entitled.
        WindowKind::CutShort => false,
    };
    verdicts
        .lock()
        .is_some_and(|lock| lock.windows.iter().any(is_of) || lock.dead_claims.iter().any(|claim| claim.hold == hold))
}

/// The longest time from the stamp of a kill to the death of the process.
const KILLED_WITHIN: Duration = Duration::from_millis(50);

/// Returns whether two holds exclude each other.
fn conflict(one: &Claim, other: &Claim) -> bool {
    one.key == other.key && one.mode.conflicts(other.mode)
}

struct Oracle<'a> {
    plan: &'a Plan,
    truth: &'a Truth,
}

impl Oracle<'_> {
    fn claim(&self, hold: HoldId) -> Option<&Claim> {
        self.truth.claims.iter().find(|claim| claim.hold == hold)
    }

    /// Lists the alarms of a property, and whether each is true.
    fn alarms(&self, name: &str, property: &Property, all: &Verdicts) -> Vec<(String, bool)> {
        let is_violated = property.verdict() == Verdict::Violated;
        match property {
            Property::Lock(lock) => {
                let windows = lock.windows.iter().map(|w| {
                    let what = format!("{} of {:?}: {}", w.kind, w.holds, w.headline);
                    (what, self.is_window(w))
                });
                let dead = lock.dead_claims.iter().map(|dead| {
                    let is_dead = self.claim(dead.hold).is_some_and(|claim| claim.at >= self.first_end(claim));
                    (format!("dead claim of hold {}", dead.hold), is_dead)
                });
                // A correct client never believes in its hold for too long, unless its clock runs slow.
                let overclaims = lock.overclaims.iter().map(|over| (format!("overclaim: {over:?}"), false));
                // Nor does it take a minority for a majority.
                let minority = lock.minority_claims.iter().map(|claim| (format!("minority claim: {claim:?}"), false));
                windows.chain(dead).chain(overclaims).chain(minority).collect()
            }
            Property::Tokens(tokens) => {
                let mut found: Vec<_> = (tokens.faults.iter())
                    .map(|f| (format!("tokens {:?} of holds {:?}", f.tokens, f.holds), self.are_tokens_wrong(&f.holds)))
                    .collect();
                if is_violated && found.is_empty() {
                    found.push(("tokens violated without a pair of holds".into(), false));
                }
                found
            }
            // A correct resource accepts a stale write only with wrong tokens, which need a lost counter.
            Property::Fence(fence) if is_violated => {
                let is_true = fence.unjustified == 0 && self.are_tokens_broken(all);
                vec![(format!("{name}: {fence:?}"), is_true)]
            }
            Property::Data(data) if is_violated => {
                let is_true = data.unjustified + data.disagreements == 0 && self.are_tokens_broken(all);
                vec![(format!("{name}: {data:?}"), name == "reads.data" && is_true)]
            }
            // The locks and the resource are correct, and all killed processes have restarted.
            other if is_violated => vec![(format!("{name}: {other:?}"), false)],
            _ => Vec::new(),
        }
    }

    fn is_window(&self, window: &Window) -> bool {
        match (window.kind, window.holds.as_slice()) {
            (WindowKind::StaleHolder, [stale, ..]) => self.claim(*stale).is_some_and(|stale| self.acted_stale(stale)),
            (WindowKind::LeaseOverlap, [first, second]) => match (self.claim(*first), self.claim(*second)) {
                (Some(first), Some(second)) => self.were_both_promised(first, second),
                _ => false,
            },
            // The truth of a killed hold is that of any other: it owned the key when it was claimed, and lost it early.
            (WindowKind::CutShort, [first, second]) => match (self.claim(*first), self.claim(*second)) {
                (Some(first), Some(second)) => self.was_cut_short(first, second),
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns whether an act of this hold arrived when the hold did not own the key, after a client had claimed a
    /// later hold.
    fn acted_stale(&self, stale: &Claim) -> bool {
        let is_later_claimed = |act: &Act| {
            let mut others = self.truth.claims.iter().filter(|c| c.key == stale.key && c.at < act.at);
            others.any(|other| self.is_later(other, stale))
        };
        let mut acts = self.truth.acts.iter().filter(|act| act.hold == stale.hold);
        acts.any(|act| !act.owns && is_later_claimed(act))
    }

    /// Returns whether the second hold was claimed, and owned the key, before the promise of the first hold ended.
    fn were_both_promised(&self, first: &Claim, second: &Claim) -> bool {
        let [first, second] = if first.at <= second.at { [first, second] } else { [second, first] };
        let is_in_use = first.ended.is_none_or(|ended| ended > second.at);
        is_in_use && self.is_granted_inside(first, second)
    }

    /// Returns whether the second hold was claimed, and owned the key, before the promise of the first hold ended,
    /// whose client had been killed. The record has only a lower bound of the kill.
    fn was_cut_short(&self, first: &Claim, second: &Claim) -> bool {
        let is_ended = |ended: Stamp| ended < second.at.plus(KILLED_WITHIN);
        let is_killed = first.at < second.at && first.ended.is_some_and(is_ended);
        is_killed && self.is_granted_inside(first, second)
    }

    fn is_granted_inside(&self, first: &Claim, second: &Claim) -> bool {
        let is_owner = second.owns || self.came_to_own(second).is_some_and(|at| at <= second.at);
        // A server that keeps the queue (etcd's Lock service up to 3.4) grants a lock whose key is gone: then no hold
        // owns the key, and both clients were told that they hold. A node of a majority may also lose the key before
        // the other nodes grant it.
        let is_told = is_owner || !self.plan.servers.shows_waiting || self.may_never_own();
        conflict(first, second) && is_told && self.promise_end(first, second.at) > second.at
    }

    /// Returns whether a hold may never own a majority at one instant, because a fault ends keys early on single nodes.
    fn may_never_own(&self) -> bool {
        let ends_keys = |step: &Step| {
            let kind = step.fault.kind();
            let is_of_node = matches!(&step.target, Target::Node(node) if self.plan.lock_nodes.contains(node));
            is_of_node && (kind == FaultKind::Clock || kind.kills())
        };
        self.plan.lock_nodes.len() > 1 && !self.plan.has_one_store() && self.plan.schedule.iter().any(ends_keys)
    }

    /// Returns whether one hold was granted after the other.
    fn is_later(&self, one: &Claim, other: &Claim) -> bool {
        let reigned_later = || self.came_to_own(one).is_some_and(|from| from > other.at);
        one.hold != other.hold && conflict(one, other) && (one.sent > other.at || reigned_later())
    }

    /// Returns the time from which a hold owned its key. Under contention a hold may never own a majority at once.
    fn came_to_own(&self, claim: &Claim) -> Option<Stamp> {
        self.truth.ownerships.iter().find(|reign| reign.hold == claim.hold).map(|reign| reign.from)
    }

    fn are_tokens_wrong(&self, holds: &[HoldId]) -> bool {
        let [earlier, other] = holds else { return false };
        let (Some(earlier), Some(other)) = (self.claim(*earlier), self.claim(*other)) else { return false };
        conflict(earlier, other) && earlier.token == other.token
            || (self.is_later(other, earlier) && other.token <= earlier.token)
    }

    fn are_tokens_broken(&self, all: &Verdicts) -> bool {
        let tokens = all.properties.get("tokens").map(Property::verdict);
        tokens == Some(Verdict::Violated) && self.may_lose_counters()
    }

    /// Returns whether a fault of the plan can make a node forget its counter.
    fn may_lose_counters(&self) -> bool {
        let persistence = self.plan.persistence();
        self.plan.kinds().iter().any(|kind| match kind.harm() {
            Harm::Kills(Data::Lost) => true,
            Harm::Kills(Data::Synced) => persistence != Persistence::Always,
            Harm::Kills(Data::Kept) => !persistence.has_log(),
            _ => false,
        })
    }

    fn first_end(&self, claim: &Claim) -> Stamp {
        let lease = self.plan.servers.granted(self.plan.lease);
        claim.promised.plus(lease).minus(drift(lease))
    }

    /// Returns the end of a hold's promise, with the renewals up to `at`.
    fn promise_end(&self, claim: &Claim, at: Stamp) -> Stamp {
        let asked = self.plan.workload.renew_for.unwrap_or(self.plan.lease);
        let lease = if self.plan.has_one_store() { self.plan.servers.granted(self.plan.lease) } else { asked };
        let renewed = claim.renewed.iter().filter(|(_, ok)| *ok <= at);
        renewed.map(|(sent, _)| sent.plus(lease).minus(drift(lease))).fold(self.first_end(claim), Stamp::max)
    }

    /// Lists each hold that acted after another hold had taken over, with its last such act and the other hold.
    fn overlaps(&self) -> Vec<(&Act, &Claim)> {
        let mut found: Vec<(&Act, &Claim)> = Vec::new();
        for act in self.truth.acts.iter().rev().filter(|act| !act.owns) {
            let Some(own) = self.claim(act.hold) else { continue };
            let is_taken_over = |other: &&Claim| {
                let is_owner = other.owns && other.hold != own.hold && conflict(other, own);
                // A hold that ended in the instant of its claim overlaps with no promise.
                let is_told = other.ended != Some(other.at) || act.at >= self.promise_end(own, act.at);
                let is_late = other.at > own.at && act.at.since(other.at) >= OVERLAP_FROM;
                is_owner && is_told && is_late
            };
            let is_known = found.iter().any(|(known, _)| known.hold == act.hold);
            if !is_known && let Some(owner) = self.truth.claims.iter().find(is_taken_over) {
                found.push((act, owner));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use history::{Event, Mode, Reader, Record, Tail};

    use super::*;

    #[test]
    fn fewer_undecided_acts_than_missed_overlaps_excuse_none() {
        for (acts, missed, undecided) in [(0, 2, 0), (1, 2, 0), (2, 0, 2), (3, 0, 2)] {
            let mut compared = Comparison { missed: vec!["an overlap".into(); 2], ..Comparison::default() };
            compared.leave_undecided(acts);
            assert_eq!((compared.missed.len(), compared.undecided), (missed, undecided), "{acts} undecided acts");
        }
    }

    fn claim(hold: u64, at_ms: u64) -> Claim {
        let (hold, key, at) = (HoldId(hold), "k0".into(), Stamp(at_ms * 1_000_000));
        let (renewed, token, mode, owns, ended) = (Vec::new(), None, Mode::Write, true, None);
        Claim { hold, key, sent: at, promised: at, renewed, at, token, mode, owns, ended }
    }

    #[test]
    fn only_an_act_without_ownership_confirms_a_stale_holder() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let records: Vec<Record> = Reader::open(path.as_ref()).unwrap().map(Result::unwrap).collect();
        let Event::Plan { plan, .. } = &records[0].event else { panic!("a history begins with its plan") };
        let verdicts = checker::check(records.iter().cloned(), Tail::Whole);
        for (owns, is_confirmed) in [(false, true), (true, false)] {
            let (hold, key, at) = (HoldId(1), "k0".into(), Stamp(17_102_000_000));
            let stale = Act { hold, key, number: 4, at, is_write: true, owns };
            let claims = vec![claim(1, 12_013), claim(1_000_000_001, 14_051)];
            let truth = Truth { claims, acts: vec![stale], ownerships: Vec::new() };
            let compared = compare(plan, &truth, &verdicts);
            assert_eq!((compared.alarms, compared.agrees()), (1, is_confirmed), "{compared:?}");
        }
    }
}
