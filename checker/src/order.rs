//! Which writes on an arm were stale or late: the part of fence and data that all arms have in common.

use history::{Arm, RequestKind, Stamp};

use crate::{holds::Grant, rules};

/// How a request stands to later holds of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody had come after its hold.
    Current,
    /// A later hold had been acquired, and had done nothing on the arm yet: no fence can see it.
    Late,
    /// A later hold's first operation on the arm had been admitted before.
    Stale,
}

/// The largest of what came with events before an instant, where events come in the order of their own stamps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Largest<T = Stamp> {
    before: Option<T>,
    /// When the last event was.
    at: Stamp,
    /// The largest up to it.
    all: Option<T>,
}

impl<T: Ord + Copy> Largest<T> {
    pub fn add(&mut self, at: Stamp, one: T) {
        if at > self.at {
            (self.before, self.at) = (self.all, at);
        }
        self.all = self.all.max(Some(one));
    }

    /// Of events before `at`, which is not before the last one: those of the same instant are concurrent.
    pub fn before(&self, at: Stamp) -> Option<T> {
        if rules::is_acquired_before(self.at, at) { self.all } else { self.before }
    }

    /// Of all of them.
    pub fn all(&self) -> Option<T> {
        self.all
    }
}

/// Of some holds, what says whether one of them is later than a hold: by the stamps one is exactly if the one with the largest
/// `granted_after` is, and by the queue of the service if the one with the largest place is. (Only of a queue that went back, which no
/// store with its state does, another one might be the later one; then the stamps alone decide.)
#[derive(Debug, Clone, Copy, Default)]
struct Latest {
    granted_after: Option<Stamp>,
    placed: Option<Placed>,
}

/// A place in the queue of the service, and when the hold that has it was acquired.
type Placed = (u64, Stamp);

impl Latest {
    fn has_later(&self, than: &Grant) -> bool {
        let by_stamps = self.granted_after.is_some_and(|g| rules::is_later(g, than.ok.at));
        let by_place =
            |(place, ok): Placed| rules::is_behind(Some(place), than.place) && !rules::is_later(than.granted_after, ok);
        by_stamps || self.placed.is_some_and(by_place)
    }
}

/// One key on one arm.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Of the holds that were acquired.
    acquired: Largest,
    placed: Largest<Placed>,
    /// Of the holds that have done something on the arm.
    acted: Latest,
}

fn placed(grant: &Grant) -> Option<Placed> {
    Some((grant.place?, grant.ok.at))
}

/// The order of holds on one arm.
#[derive(Debug)]
pub(crate) struct Order {
    arm: Arm,
    keys: Vec<Place>,
}

impl Order {
    pub fn new(arm: Arm) -> Self {
        Order { arm, keys: Vec::new() }
    }

    fn place(&mut self, key: usize) -> &mut Place {
        if self.keys.len() <= key {
            self.keys.resize(key + 1, Place::default());
        }
        &mut self.keys[key]
    }

    /// A hold was acquired.
    pub fn acquired(&mut self, key: usize, grant: &Grant) {
        let key = self.place(key);
        key.acquired.add(grant.ok.at, grant.granted_after);
        if let Some(placed) = placed(grant) {
            key.placed.add(grant.ok.at, placed);
        }
    }

    /// A request of a hold was admitted. Comes in the order of the log: within it nothing depends on stamps.
    pub fn admitted(&mut self, key: usize, kind: RequestKind, at: Stamp, grant: &Grant) -> Standing {
        let arm = self.arm;
        let place = self.place(key);
        let acquired = Latest { granted_after: place.acquired.before(at), placed: place.placed.before(at) };
        let standing = match (place.acted.has_later(grant), acquired.has_later(grant)) {
            (true, _) => Standing::Stale,
            (false, true) => Standing::Late,
            (false, false) => Standing::Current,
        };
        if kind == RequestKind::Write || arm != Arm::Writes {
            place.acted.granted_after = place.acted.granted_after.max(Some(grant.granted_after));
            place.acted.placed = place.acted.placed.max(placed(grant));
        }
        standing
    }
}
