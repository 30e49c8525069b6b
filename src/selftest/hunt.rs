//! Hunting planted bugs: each must be caught for what it does, and its correct twin, on the same plans, must not be.

use checker::{Property, Verdict, Verdicts};
use history::Plan;

use super::{
    bugs::HUNTS,
    seeds::{Seeds, across},
    shape::Shape,
    trial::{Under, judged, says},
};

/// Plans that are tried until a bug shows.
const PATIENCE: u64 = 200;

/// What is wrong, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The lock, as `buggy:<bug>@<backend>`.
    Lock { bug: &'static str, on: &'static str },
    /// The resource, under this lock: a correct one, unless the bug shows under a wrong one only.
    Resource { bug: &'static str, under: &'static str },
    /// Tokens `majority-max`, which are no bug of the code: their counters are counted alone.
    MajorityMax,
}

/// What must show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// A double-holder window of this kind.
    LeaseOverlap,
    /// The other kind.
    StaleHolder,
    /// A hold that was claimed when its promise had ended.
    DeadClaim,
    /// Property 2.
    Tokens,
    /// Property 3: a stale write was admitted.
    StaleAccepted,
    /// Property 3: a decision that the registered tokens do not justify.
    Unjustified,
    /// Property 5.
    Resource,
    /// Property 6.
    Release,
    /// Property 7.
    Liveness,
}

impl Shows {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Shows::LeaseOverlap => "lock, lease-overlap",
            Shows::StaleHolder => "lock, stale-holder",
            Shows::DeadClaim => "lock, dead claim",
            Shows::Tokens => "tokens",
            Shows::StaleAccepted => "fence, stale accepted",
            Shows::Unjustified => "fence, unjustified",
            Shows::Resource => "resource",
            Shows::Release => "release",
            Shows::Liveness => "liveness",
        }
    }

    /// Whether the verdicts show it: as a violation, nothing less.
    pub fn is_in(self, verdicts: &Verdicts) -> bool {
        let of = |property: &Property| match (self, property) {
            (Shows::LeaseOverlap, Property::Lock(lock)) => lock.lease_overlap > 0,
            (Shows::StaleHolder, Property::Lock(lock)) => lock.stale_holder > 0,
            (Shows::DeadClaim, Property::Lock(lock)) => !lock.dead_claims.is_empty(),
            (Shows::StaleAccepted, Property::Fence(fence)) => fence.stale_accepted > 0,
            (Shows::Unjustified, Property::Fence(fence)) => fence.unjustified > 0,
            (Shows::Tokens, Property::Tokens(_))
            | (Shows::Resource, Property::Resource(_))
            | (Shows::Release, Property::Release(_))
            | (Shows::Liveness, Property::Liveness(_)) => true,
            _ => false,
        };
        verdicts.properties.iter().any(|(_, p)| p.verdict() == Verdict::Violated && of(p))
    }
}

/// One planted bug, what must show it, and the plans on which it wakes.
#[derive(Clone, Copy)]
pub struct Hunt {
    /// The bug.
    pub planted: Planted,
    /// What must show it.
    pub shows: Shows,
    /// From a seed to a plan, on which the correct twin does not show the same.
    pub wakes: fn(u64) -> Shape,
}

impl Hunt {
    /// All of them.
    pub fn all() -> &'static [Hunt] {
        HUNTS
    }

    /// Its name, and where it is.
    pub fn name(&self) -> String {
        match self.planted {
            Planted::Lock { bug, on } => format!("{bug}, {on}"),
            Planted::Resource { bug, .. } => format!("{bug}, resource"),
            Planted::MajorityMax => "majority-max, redlock".into(),
        }
    }

    /// The plan of a seed, with the bug or without.
    pub fn plan(&self, seed: u64, is_buggy: bool) -> Result<Plan, String> {
        let shape = (self.wakes)(seed);
        match self.planted {
            Planted::MajorityMax if is_buggy => shape.tokens(history::Tokens::MajorityMax).plan(),
            _ => shape.plan(),
        }
    }

    /// What is run: the lock as a user names it, and the bug of the resource.
    pub fn under(&self, is_buggy: bool) -> (String, Option<&'static str>) {
        match self.planted {
            Planted::Lock { bug, on } if is_buggy => (format!("buggy:{bug}@{on}"), None),
            Planted::Lock { on, .. } => (on.into(), None),
            Planted::Resource { bug, under } => (under.into(), is_buggy.then_some(bug)),
            Planted::MajorityMax => ("redlock".into(), None),
        }
    }

    /// A word that would give the bug away.
    fn word(&self) -> Option<&'static str> {
        match self.planted {
            Planted::Lock { bug, .. } | Planted::Resource { bug, .. } => Some(bug),
            Planted::MajorityMax => None,
        }
    }

    fn is_shown(&self, seed: u64, is_buggy: bool) -> Result<bool, String> {
        let (backend, resource_bug) = self.under(is_buggy);
        let verdicts = judged(&self.plan(seed, is_buggy)?, Under { backend: &backend, resource_bug })?;
        Ok(self.shows.is_in(&verdicts))
    }

    /// Whether the history says by its words what is wrong.
    fn is_given_away(&self, seed: u64) -> Result<bool, String> {
        let Some(word) = self.word() else { return Ok(false) };
        let (backend, resource_bug) = self.under(true);
        says(&self.plan(seed, true)?, Under { backend: &backend, resource_bug }, word)
    }
}

/// What came of a hunt.
#[derive(Clone)]
pub struct Hunted {
    /// For what.
    pub hunt: Hunt,
    /// The first seed that showed it.
    pub caught_at: Option<u64>,
    /// Whether the history of that seed names the bug: a checker could then read the answer from it.
    pub is_given_away: bool,
    /// Plans that the twin went through.
    pub twins: u64,
    /// Seeds at which the twin showed the same.
    pub twins_shown: Vec<u64>,
}

impl Hunted {
    /// Hunts `hunt`; its twin goes through at least as many seeds as were needed, and through `twins` of them.
    ///
    /// # Errors
    /// A plan that cannot be simulated.
    pub fn of(hunt: &Hunt, twins: Seeds) -> Result<Hunted, String> {
        let jobs = twins.jobs;
        let mut caught_at = None;
        for seed in 0..PATIENCE {
            if hunt.is_shown(seed, true)? {
                caught_at = Some(seed);
                break;
            }
        }
        let is_given_away = caught_at.map_or(Ok(false), |seed| hunt.is_given_away(seed))?;
        let count = twins.count.max(caught_at.map_or(0, |seed| seed + 1));
        let shown = across(Seeds { count, jobs }, &|seed| hunt.is_shown(seed, false))?;
        let twins_shown = shown.into_iter().filter(|(_, is_shown)| *is_shown).map(|(seed, _)| seed).collect();
        Ok(Hunted { hunt: *hunt, caught_at, is_given_away, twins: count, twins_shown })
    }

    /// Whether all is as it must be.
    pub fn is_right(&self) -> bool {
        self.caught_at.is_some() && !self.is_given_away && self.twins_shown.is_empty()
    }
}
