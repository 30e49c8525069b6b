//! Decides which writes on an arm were stale or late: the common part of the properties `fence` and `data`.

use history::{Arm, RequestKind, Stamp};
use rustc_hash::FxHashMap;

use crate::{
    by_mode::ByMode,
    holds::{Grant, bits},
    rules,
};

/// Some arms, as bits.
pub(crate) type Arms = u64;

/// The bit of an arm.
pub(crate) fn bit(arm: Arm) -> Arms {
    1 << arm as u32
}

/// The standing of a request among the later holds of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// No later hold had been acquired.
    Current,
    /// A later hold had been acquired but had not acted on the arm yet: no rule about tokens can see the later hold.
    Late,
    /// A later hold's first operation on the arm had been admitted before.
    Stale,
}

/// The most writes of one standing that are listed.
const LISTED: usize = 10_000;

/// The admitted writes of one arm that were stale or late, by the sequence number of their admission: for drawings.
/// The first 10,000 of each; the counts of the verdict are of all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standings {
    /// Writes that were admitted after a later hold's first operation on the arm.
    pub stale: Vec<u64>,
    /// Writes that were admitted after a later hold was acquired and before its first operation on the arm.
    pub late: Vec<u64>,
}

impl Standings {
    /// Adds an admitted write.
    pub(crate) fn add(&mut self, seq: u64, standing: Standing) {
        let list = match standing {
            Standing::Current => return,
            Standing::Late => &mut self.late,
            Standing::Stale => &mut self.stale,
        };
        if list.len() < LISTED {
            list.push(seq);
        }
    }
}

/// The largest value that came with an event before an instant; events come in the order of their stamps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Largest<T = Stamp> {
    before: Option<T>,
    /// The stamp of the last event.
    at: Stamp,
    /// The largest value so far.
    all: Option<T>,
}

impl<T: Ord + Copy> Largest<T> {
    pub fn add(&mut self, at: Stamp, one: T) {
        if at > self.at {
            (self.before, self.at) = (self.all, at);
        }
        self.all = self.all.max(Some(one));
    }

    /// The largest value of events before `at`, where `at` is not before the last event. Equal stamps are concurrent.
    pub fn before(&self, at: Stamp) -> Option<T> {
        if rules::is_acquired_before(self.at, at) { self.all } else { self.before }
    }

    /// The largest value of all events.
    pub fn all(&self) -> Option<T> {
        self.all
    }
}

/// The figures of some holds that decide whether any of them is later than a given hold, with which they conflict. By
/// the stamps, one is later exactly if the hold with the largest `granted_after` is. By the queue of the service, one
/// is later exactly if the hold with the largest place is. (Only a store that lost its state has a queue that goes
/// back. Then the stamps alone decide.)
#[derive(Debug, Clone, Copy, Default)]
struct Latest {
    granted_after: Option<Stamp>,
    placed: Option<Placed>,
}

/// A place in the queue of the service, and the acquisition of its hold.
type Placed = (u64, Stamp);

impl Latest {
    fn has_later(&self, than: &Grant) -> bool {
        let by_stamps = self.granted_after.is_some_and(|g| rules::is_later(g, than.ok.at));
        let by_place =
            |(place, ok): Placed| rules::is_behind(Some(place), than.place) && !rules::is_later(than.granted_after, ok);
        by_stamps || self.placed.is_some_and(by_place)
    }
}

/// The holds of one key and one mode.
#[derive(Debug, Clone, Copy, Default)]
struct KeyOrder {
    /// The holds that were acquired.
    acquired: Largest,
    placed: Largest<Placed>,
    /// The holds that have acted on each arm.
    acted: [Latest; Arm::ALL.len()],
}

impl KeyOrder {
    /// Returns whether a hold that was acquired before `at` is later than the given hold.
    fn has_acquired_later(&self, at: Stamp, than: &Grant) -> bool {
        Latest { granted_after: self.acquired.before(at), placed: self.placed.before(at) }.has_later(than)
    }
}

fn placed(grant: &Grant) -> Option<Placed> {
    Some((grant.place?, grant.ok.at))
}

/// The standing of one request on each arm that admitted it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OnArms {
    /// The arms on which a later hold had acted.
    stale: Arms,
    /// True if a later hold had been acquired.
    is_late: bool,
}

impl OnArms {
    pub fn on(self, arm: Arm) -> Standing {
        if self.stale & bit(arm) != 0 {
            Standing::Stale
        } else if self.is_late {
            Standing::Late
        } else {
            Standing::Current
        }
    }

    /// Of each arm the worse standing.
    pub fn or_worse(self, other: OnArms) -> OnArms {
        OnArms { stale: self.stale | other.stale, is_late: self.is_late || other.is_late }
    }
}

/// The order of holds, on all arms.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The keys that have an open attempt.
    keys: FxHashMap<usize, ByMode<KeyOrder>>,
}

impl Order {
    /// Adds a hold that was acquired.
    pub fn acquired(&mut self, key: usize, grant: &Grant) {
        let key = self.keys.entry(key).or_default().of(grant.mode);
        key.acquired.add(grant.ok.at, grant.granted_after);
        if let Some(placed) = placed(grant) {
            key.placed.add(grant.ok.at, placed);
        }
    }

    /// Adds a request that some arms admitted, and returns its standing on them. Requests come in the order of the log,
    /// so stamps do not matter.
    pub fn admitted(&mut self, key: usize, kind: RequestKind, at: Stamp, grant: &Grant, arms: Arms) -> OnArms {
        let place = self.keys.entry(key).or_default();
        let is_late = place.against(grant.mode).any(|others| others.has_acquired_later(at, grant));
        let mut standing = OnArms { stale: 0, is_late };
        for others in place.against(grant.mode) {
            let stale = bits(arms).filter(|arm| others.acted[*arm].has_later(grant));
            standing.stale = stale.fold(standing.stale, |all, arm| all | 1 << arm);
        }
        let (own, placed) = (place.of(grant.mode), placed(grant));
        let acts_on = if kind == RequestKind::Write { arms } else { arms & !bit(Arm::Writes) };
        for arm in bits(acts_on) {
            let acted = &mut own.acted[arm];
            if acted.granted_after.is_none_or(|latest| latest < grant.granted_after) {
                acted.granted_after = Some(grant.granted_after);
            }
            if placed.is_some() {
                acted.placed = acted.placed.max(placed);
            }
        }
        standing
    }

    /// Every later hold of the key is later than every former one.
    pub fn quiet(&mut self, key: usize) {
        self.keys.remove(&key);
    }
}
