//! What the checker said, held against what really happened.
//!
//! Nothing here is the checker's: an alarm is confirmed by who owned the key when something was claimed or arrived, as the models of the
//! servers knew it then, and by the plan's lease. And the other way round: every act that met another owner must have been reported.

use std::time::Duration;

use checker::{Property, Verdict, Verdicts, Window, WindowKind};
use history::{FaultKind, HoldId, Persistence, Plan, Stamp, Step, Target, drift};
use sim::truth::{Act, Claim, Truth};

/// An act that met another owner for less than this may go unreported: it is within what stamps can tell.
const OVERLAP_FROM: Duration = Duration::from_millis(5);

/// What came of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Windows, dead claims, tokens and properties that were reported as violated.
    pub alarms: u64,
    /// Those that the truth does not bear out.
    pub unconfirmed: Vec<String>,
    /// Holds that acted while another one owned the key, for [`OVERLAP_FROM`] at least.
    pub overlaps: u64,
    /// Those of them that were not reported, in runs of which the checker says that it cannot decide so many acts: the record does not
    /// order the grants. Such a run is never upheld.
    pub undecided: u64,
    /// Those that were not reported otherwise.
    pub missed: Vec<String>,
    /// Windows that nothing explains.
    pub unexplained: Vec<String>,
}

/// Compares.
pub fn compare(plan: &Plan, truth: &Truth, verdicts: &Verdicts) -> Compared {
    let oracle = Oracle { plan, truth };
    let mut compared = Compared::default();
    for (name, property) in verdicts.properties.iter() {
        for (what, is_true) in oracle.alarms(name, property, verdicts) {
            compared.alarms += 1;
            if !is_true {
                compared.unconfirmed.push(what);
            }
        }
    }
    let windows = verdicts.lock().into_iter().flat_map(|lock| &lock.windows);
    let unexplained = windows.filter(|w| w.causes.iter().any(|cause| cause == "unexplained"));
    compared.unexplained = unexplained.map(|w| format!("{} of {:?}: {}", w.kind, w.holds, w.headline)).collect();
    for (stale, owner) in oracle.overlaps() {
        compared.overlaps += 1;
        if !is_reported(stale.hold, verdicts) {
            let late = stale.at.since(owner.at).as_millis();
            let what = format!("hold {} acted {late} ms after hold {} had taken over", stale.hold, owner.hold);
            compared.missed.push(what);
        }
    }
    if verdicts.lock().is_some_and(|lock| lock.undecided >= compared.missed.len() as u64) {
        compared.undecided = compared.missed.drain(..).len() as u64;
    }
    compared
}

/// Whether a window or a dead claim tells of this hold.
fn is_reported(hold: HoldId, verdicts: &Verdicts) -> bool {
    let is_of = |window: &Window| match window.kind {
        WindowKind::StaleHolder => window.holds.first() == Some(&hold),
        WindowKind::LeaseOverlap => window.holds.contains(&hold),
    };
    verdicts
        .lock()
        .is_some_and(|lock| lock.windows.iter().any(is_of) || lock.dead_claims.iter().any(|claim| claim.hold == hold))
}

struct Oracle<'a> {
    plan: &'a Plan,
    truth: &'a Truth,
}

impl Oracle<'_> {
    fn claim(&self, hold: HoldId) -> Option<&Claim> {
        self.truth.claims.iter().find(|claim| claim.hold == hold)
    }

    /// What a property reports, each with whether it is true.
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
                windows.chain(dead).collect()
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
            // A correct resource lets a stale write in only where tokens went wrong, and they do only where a counter was lost.
            Property::Fence(fence) if is_violated => {
                let is_true = fence.unjustified == 0 && self.are_tokens_broken(all);
                vec![(format!("{name}: {fence:?}"), is_true)]
            }
            Property::Data(data) if is_violated => {
                let is_true = data.unjustified + data.disagreements == 0 && self.are_tokens_broken(all);
                vec![(format!("{name}: {data:?}"), name == "reads.data" && is_true)]
            }
            // The locks and the resource are correct, and what was down has come back.
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
            _ => false,
        }
    }

    /// Whether an act of this hold arrived when it did not own the key, and a later hold had been claimed.
    fn acted_stale(&self, stale: &Claim) -> bool {
        let is_later_claimed = |act: &Act| {
            let mut others = self.truth.claims.iter().filter(|c| c.key == stale.key && c.at < act.at);
            others.any(|other| self.is_later(other, stale))
        };
        let mut acts = self.truth.acts.iter().filter(|act| act.hold == stale.hold);
        acts.any(|act| act.owner != Some(stale.hold) && is_later_claimed(act))
    }

    /// Whether the second one was claimed, and truly owned the key, while the first one's promise still stood.
    fn were_both_promised(&self, first: &Claim, second: &Claim) -> bool {
        let [first, second] = if first.at <= second.at { [first, second] } else { [second, first] };
        let is_in_use = first.ended.is_none_or(|ended| ended > second.at);
        let is_owner = second.owner == Some(second.hold) || self.came_to_own(second).is_some_and(|at| at <= second.at);
        // etcd's own Lock service up to 3.4 grants where the key is gone: nobody owns it then, and it has told both that they hold it.
        // And of a majority a node may have lost the key before the others granted it: no instant had them all, and its client was told that it holds.
        let is_told = is_owner || self.plan.backend == "etcd-server-lock" || self.may_never_own();
        first.key == second.key && is_in_use && is_told && self.promise_end(first, second.at) > second.at
    }

    /// Whether a majority may be granted one after the other and never at one instant: a fault of the plan ends keys early on single nodes.
    fn may_never_own(&self) -> bool {
        let ends_keys = |step: &Step| {
            let kind = step.fault.kind();
            let is_of_node = matches!(&step.target, Target::Node(node) if self.plan.lock_nodes.contains(node));
            is_of_node && (kind == FaultKind::Clock || kind.kills())
        };
        self.plan.lock_nodes.len() > 1 && !self.plan.has_one_store() && self.plan.schedule.iter().any(ends_keys)
    }

    /// Whether one hold was truly granted after the other.
    fn is_later(&self, one: &Claim, other: &Claim) -> bool {
        let reigned_later = || self.came_to_own(one).is_some_and(|from| from > other.at);
        one.hold != other.hold && one.key == other.key && (one.sent > other.at || reigned_later())
    }

    /// When a hold came to own its key. Under contention no majority may have been its own at one instant.
    fn came_to_own(&self, claim: &Claim) -> Option<Stamp> {
        self.truth.reigns.iter().find(|reign| reign.hold == claim.hold).map(|reign| reign.from)
    }

    fn are_tokens_wrong(&self, holds: &[HoldId]) -> bool {
        let [earlier, other] = holds else { return false };
        let (Some(earlier), Some(other)) = (self.claim(*earlier), self.claim(*other)) else { return false };
        earlier.token == other.token || (self.is_later(other, earlier) && other.token <= earlier.token)
    }

    fn are_tokens_broken(&self, all: &Verdicts) -> bool {
        let tokens = all.properties.get("tokens").map(Property::verdict);
        tokens == Some(Verdict::Violated) && self.may_lose_counters()
    }

    /// Whether a fault of the plan makes a node forget its counter.
    fn may_lose_counters(&self) -> bool {
        let persistence = self.plan.models.unwrap_or_default().persistence;
        self.plan.kinds().iter().any(|kind| match kind {
            FaultKind::Amnesia => true,
            FaultKind::Powerloss => persistence != Persistence::Always,
            FaultKind::Kill => !persistence.has_log(),
            _ => false,
        })
    }

    /// The lease that is granted to an attempt that asks for `asked`: a store grants whole seconds, two at least.
    fn granted(&self, asked: Duration) -> Duration {
        if !self.plan.has_one_store() {
            return asked;
        }
        let whole = Duration::from_secs(asked.as_secs() + u64::from(asked.subsec_nanos() > 0));
        whole.max(Duration::from_secs(2))
    }

    fn first_end(&self, claim: &Claim) -> Stamp {
        let lease = self.granted(self.plan.lease);
        claim.promised.plus(lease).minus(drift(lease))
    }

    /// The end of a hold's promise as it stood at `at`.
    fn promise_end(&self, claim: &Claim, at: Stamp) -> Stamp {
        let asked = self.plan.workload.renew_for.unwrap_or(self.plan.lease);
        let lease = if self.plan.has_one_store() { self.granted(self.plan.lease) } else { asked };
        let renewed = claim.renewed.iter().filter(|(_, ok)| *ok <= at);
        renewed.map(|(sent, _)| sent.plus(lease).minus(drift(lease))).fold(self.first_end(claim), Stamp::max)
    }

    /// Each hold that acted when another one had truly taken over from it, with its last such act and that other one.
    fn overlaps(&self) -> Vec<(&Act, &Claim)> {
        let mut found: Vec<(&Act, &Claim)> = Vec::new();
        for act in self.truth.acts.iter().rev().filter(|act| act.owner != Some(act.hold)) {
            let Some(own) = self.claim(act.hold) else { continue };
            let is_taken_over = |other: &&Claim| {
                let is_owner = other.owner == Some(other.hold) && other.hold != own.hold;
                other.key == own.key && is_owner && other.at > own.at && act.at.since(other.at) >= OVERLAP_FROM
            };
            let is_known = found.iter().any(|(known, _)| known.hold == act.hold);
            if !is_known && let Some(owner) = self.truth.claims.iter().find(is_taken_over) {
                found.push((act, owner));
            }
        }
        found
    }
}
