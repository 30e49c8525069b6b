//! Hunts planted bugs: the checker must catch each bug, and must not alarm on its correct twin with the same plans.

use checker::{Property, Verdict, Verdicts};
use history::Plan;
use sim::SimError;

use super::{
    seeds::{Seeds, across},
    trial::{Subject, mentions, verdicts},
};
use crate::scenario::Scenario;

/// Seeds that a hunt tries until the bug shows.
const PATIENCE: u64 = 200;

/// A planted bug, and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A bug of the lock, as `buggy:<bug>@<backend>`.
    Lock { bug: &'static str, on: &'static str },
    /// A bug of the resource, used with this lock. The lock is correct unless the bug shows only with a buggy lock.
    Resource { bug: &'static str, under: &'static str },
    /// The token source `majority-max`, which is unsafe by design.
    MajorityMax,
}

/// The violation that must show a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// A double-holder window of this kind.
    LeaseOverlap,
    /// A promise to a killed client that was cut short.
    CutShort,
    /// A stale holder.
    StaleHolder,
    /// A hold that a client claimed after the end of its promise.
    DeadClaim,
    /// A client that believed in its hold after the end of its promise.
    Overclaim,
    /// A client that took a minority of the nodes for a majority.
    MinorityClaim,
    /// The property `tokens`.
    Tokens,
    /// The property `fence`: the resource accepted a stale write.
    StaleAccepted,
    /// The property `fence`: the registered tokens do not justify a decision.
    Unjustified,
    /// The property `resource`.
    Resource,
    /// The property `release`.
    Release,
    /// The property `liveness`.
    Liveness,
    /// The property `fairness`.
    Fairness,
    /// The property `reentry`.
    Reentry,
    /// No verdict: the simulation saw a request leave before its invocation was recorded, and ended with an error.
    SentEarly,
}

impl Shows {
    /// Returns the name for the table.
    pub fn name(self) -> &'static str {
        match self {
            Shows::LeaseOverlap => "lock, lease-overlap",
            Shows::CutShort => "lock, cut-short",
            Shows::StaleHolder => "lock, stale-holder",
            Shows::DeadClaim => "lock, dead claim",
            Shows::Overclaim => "lock, overclaim",
            Shows::MinorityClaim => "lock, minority claim",
            Shows::Tokens => "tokens",
            Shows::StaleAccepted => "fence, stale accepted",
            Shows::Unjustified => "fence, unjustified",
            Shows::Resource => "resource",
            Shows::Release => "release",
            Shows::Liveness => "liveness",
            Shows::Fairness => "fairness",
            Shows::Reentry => "reentry",
            Shows::SentEarly => "error, sent early",
        }
    }

    /// Returns whether the simulation had to end with this error.
    pub fn is_error(self, error: &SimError) -> bool {
        self == Shows::SentEarly && matches!(error, SimError::SentEarly(_))
    }

    /// Returns whether the verdicts show this violation.
    pub fn is_in(self, verdicts: &Verdicts) -> bool {
        let of = |property: &Property| match (self, property) {
            (Shows::LeaseOverlap, Property::Lock(lock)) => lock.lease_overlap > 0,
            (Shows::CutShort, Property::Lock(lock)) => lock.cut_short > 0,
            (Shows::StaleHolder, Property::Lock(lock)) => lock.stale_holder > 0,
            (Shows::DeadClaim, Property::Lock(lock)) => !lock.dead_claims.is_empty(),
            (Shows::MinorityClaim, Property::Lock(lock)) => !lock.minority_claims.is_empty(),
            (Shows::Overclaim, Property::Lock(lock)) => !lock.overclaims.is_empty(),
            (Shows::StaleAccepted, Property::Fence(fence)) => fence.stale_accepted > 0,
            (Shows::Unjustified, Property::Fence(fence)) => fence.unjustified > 0,
            (Shows::Tokens, Property::Tokens(_))
            | (Shows::Resource, Property::Resource(_))
            | (Shows::Release, Property::Release(_))
            | (Shows::Liveness, Property::Liveness(_))
            | (Shows::Fairness, Property::Fairness(_))
            | (Shows::Reentry, Property::Reentry(_)) => true,
            _ => false,
        };
        verdicts.properties.iter().any(|(_, p)| p.verdict() == Verdict::Violated && of(p))
    }

    /// Returns whether the verdicts decide the property that shows this violation. An inconclusive one says nothing
    /// about a twin.
    pub fn is_decided_in(self, verdicts: &Verdicts) -> bool {
        let of_lock = [
            Shows::LeaseOverlap,
            Shows::CutShort,
            Shows::StaleHolder,
            Shows::DeadClaim,
            Shows::Overclaim,
            Shows::MinorityClaim,
        ];
        let is_of = |property: &Property| match property {
            Property::Lock(_) => of_lock.contains(&self),
            Property::Tokens(_) => self == Shows::Tokens,
            Property::Fence(_) => matches!(self, Shows::StaleAccepted | Shows::Unjustified),
            Property::Resource(_) => self == Shows::Resource,
            Property::Release(_) => self == Shows::Release,
            Property::Liveness(_) => self == Shows::Liveness,
            Property::Fairness(_) => self == Shows::Fairness,
            Property::Reentry(_) => self == Shows::Reentry,
            _ => false,
        };
        // Of liveness, a run without a kill in which nobody got stuck is only measured.
        let is_decided = |verdict| match verdict {
            Verdict::Measured => self == Shows::Liveness,
            _ => matches!(verdict, Verdict::Upheld | Verdict::Violated),
        };
        self == Shows::SentEarly || verdicts.properties.iter().any(|(_, p)| is_of(p) && is_decided(p.verdict()))
    }
}

/// One planted bug, the violation that must show it, and the scenario that provokes it.
#[derive(Clone, Copy)]
pub struct Hunt {
    /// The bug.
    pub planted: Planted,
    /// The violation that must show a bug.
    pub shows: Shows,
    /// The scenario. The correct twin does not show the violation in it.
    pub scenario: fn() -> Scenario,
}

impl Hunt {
    /// Returns the name of the bug, and its place.
    pub fn name(&self) -> String {
        match self.planted {
            Planted::Lock { bug, on } => format!("{bug}, {on}"),
            Planted::Resource { bug, .. } => format!("{bug}, resource"),
            Planted::MajorityMax => "majority-max, redlock".into(),
        }
    }

    /// Makes the plan of a seed, with the bug or without.
    pub fn plan(&self, seed: u64, is_buggy: bool) -> Result<Plan, String> {
        let scenario = (self.scenario)();
        let scenario = match self.planted {
            Planted::MajorityMax if is_buggy => scenario.tokens(history::Tokens::MajorityMax),
            _ => scenario,
        };
        scenario.plan(seed).map_err(|e| format!("{e:#}"))
    }

    /// Returns the lock, as `--backend` names it, and the bug of the resource.
    pub fn under(&self, is_buggy: bool) -> (String, Option<&'static str>) {
        match self.planted {
            Planted::Lock { bug, on } if is_buggy => (format!("buggy:{bug}@{on}"), None),
            Planted::Lock { on, .. } => (on.into(), None),
            Planted::Resource { bug, under } => (under.into(), is_buggy.then_some(bug)),
            Planted::MajorityMax => ("redlock".into(), None),
        }
    }

    /// Returns a word that would give the bug away.
    fn word(&self) -> Option<&'static str> {
        match self.planted {
            Planted::Lock { bug, .. } | Planted::Resource { bug, .. } => Some(bug),
            Planted::MajorityMax => None,
        }
    }

    fn seen(&self, seed: u64, is_buggy: bool) -> Result<Seen, String> {
        let (backend, resource_bug) = self.under(is_buggy);
        match verdicts(&self.plan(seed, is_buggy)?, Subject { backend: &backend, resource_bug }) {
            Ok(verdicts) if self.shows.is_in(&verdicts) => Ok(Seen::Shown),
            Ok(verdicts) if self.shows.is_decided_in(&verdicts) => Ok(Seen::Decided),
            Ok(_) => Ok(Seen::Undecided),
            Err(error) if self.shows.is_error(&error) => Ok(Seen::Shown),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether the history names the bug.
    fn is_given_away(&self, seed: u64) -> Result<bool, String> {
        let Some(word) = self.word() else { return Ok(false) };
        let (backend, resource_bug) = self.under(true);
        mentions(&self.plan(seed, true)?, Subject { backend: &backend, resource_bug }, word)
    }
}

/// The outcome of one seed of a hunt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The violation that shows the bug.
    Shown,
    /// The property was decided, without that violation.
    Decided,
    /// The property was not decided.
    Undecided,
}

/// The result of a hunt.
#[derive(Clone)]
pub struct HuntResult {
    /// The hunt.
    pub hunt: Hunt,
    /// The first seed that showed the bug.
    pub caught_at: Option<u64>,
    /// True if the history of that seed names the bug, so that a checker could read the answer from the history.
    pub is_given_away: bool,
    /// Seeds that the twin ran.
    pub twins: u64,
    /// Seeds of the twin at which the property was decided, or the violation shown.
    pub twins_decided: u64,
    /// Seeds at which the twin showed the violation.
    pub twins_shown: Vec<u64>,
}

impl HuntResult {
    /// Runs a hunt. The twin runs `twins` seeds, and at least as many as the bug needed.
    ///
    /// # Errors
    /// A plan cannot be simulated.
    pub fn of(hunt: &Hunt, twins: Seeds) -> Result<HuntResult, String> {
        let jobs = twins.jobs;
        let mut caught_at = None;
        for seed in 0..PATIENCE {
            if hunt.seen(seed, true)? == Seen::Shown {
                caught_at = Some(seed);
                break;
            }
        }
        let is_given_away = caught_at.map_or(Ok(false), |seed| hunt.is_given_away(seed))?;
        let count = twins.count.max(caught_at.map_or(0, |seed| seed + 1));
        let seen = across(Seeds { first: 0, count, jobs }, &|seed| hunt.seen(seed, false))?;
        let twins_decided = seen.iter().filter(|(_, seen)| *seen != Seen::Undecided).count() as u64;
        let twins_shown = seen.into_iter().filter(|(_, seen)| *seen == Seen::Shown).map(|(seed, _)| seed).collect();
        Ok(HuntResult { hunt: *hunt, caught_at, is_given_away, twins: count, twins_decided, twins_shown })
    }

    /// Returns whether the bug was caught, and the twin was not. A twin whose property was decided at no seed says
    /// nothing.
    pub fn is_right(&self) -> bool {
        self.caught_at.is_some() && !self.is_given_away && self.twins_decided > 0 && self.twins_shown.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::bugs::HUNTS;

    #[test]
    fn a_hunt_is_right_if_only_the_bug_is_caught() {
        let right = HuntResult {
            hunt: HUNTS[0],
            caught_at: Some(2),
            is_given_away: false,
            twins: 3,
            twins_decided: 1,
            twins_shown: Vec::new(),
        };
        assert!(right.is_right());
        assert!(!HuntResult { caught_at: None, ..right.clone() }.is_right());
        assert!(!HuntResult { is_given_away: true, ..right.clone() }.is_right());
        assert!(!HuntResult { twins_decided: 0, ..right.clone() }.is_right(), "nothing was decided");
        assert!(!HuntResult { twins_shown: vec![1], ..right }.is_right());
    }

    #[test]
    fn the_twin_runs_every_seed_that_the_bug_needed() {
        let result = HuntResult::of(&HUNTS[0], Seeds { first: 0, count: 0, jobs: 1 }).unwrap();
        assert_eq!(result.twins, result.caught_at.unwrap() + 1);
        assert!(0 < result.twins_decided && result.twins_decided <= result.twins, "{}", result.twins_decided);
    }
}
