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

/// The largest of the stamps that came with events before an instant, where events come in the order of their own stamps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Largest {
    before: Option<Stamp>,
    /// When the last event was.
    at: Stamp,
    /// The largest up to it.
    all: Option<Stamp>,
}

impl Largest {
    pub fn add(&mut self, at: Stamp, stamp: Stamp) {
        if at > self.at {
            (self.before, self.at) = (self.all, at);
        }
        self.all = self.all.max(Some(stamp));
    }

    /// Of events before `at`, which is not before the last one: those of the same instant are concurrent.
    pub fn before(&self, at: Stamp) -> Option<Stamp> {
        if rules::is_acquired_before(self.at, at) { self.all } else { self.before }
    }

    /// Of all of them.
    pub fn all(&self) -> Option<Stamp> {
        self.all
    }
}

/// One key on one arm.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// The largest `granted_after` of the holds that were acquired: one of them is later than a hold exactly if the one with
    /// the largest is.
    acquired: Largest,
    /// The largest `granted_after` of the holds that have done something on the arm.
    acted: Option<Stamp>,
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
        self.place(key).acquired.add(grant.ok.at, grant.granted_after);
    }

    /// A request of a hold was admitted. Comes in the order of the log: within it nothing depends on stamps.
    pub fn admitted(&mut self, key: usize, kind: RequestKind, at: Stamp, grant: &Grant) -> Standing {
        let arm = self.arm;
        let place = self.place(key);
        let is_later = |granted_after: Option<Stamp>| granted_after.is_some_and(|g| rules::is_later(g, grant.ok.at));
        let standing = match (is_later(place.acted), is_later(place.acquired.before(at))) {
            (true, _) => Standing::Stale,
            (false, true) => Standing::Late,
            (false, false) => Standing::Current,
        };
        if kind == RequestKind::Write || arm != Arm::Writes {
            place.acted = place.acted.max(Some(grant.granted_after));
        }
        standing
    }
}
