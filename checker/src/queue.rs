//! Holds of one key that have a place in the queue of the service, for as long as one that stood before them may still be heard of.
//!
//! The stamps of a hold that only they order come in the order of the grants. Where the queue orders, they need not: a hold was confirmed,
//! its client was slow to read that, and whoever stood behind it is known before it.

use history::{HoldId, Stamp};

use crate::{
    holds::{Attempt, Grant},
    lock::Brief,
    run::Run,
};

/// One of them.
pub(crate) struct Queued {
    pub brief: Brief,
    pub grant: Grant,
    /// When its entitlement ended, if it has.
    pub ended: Option<Stamp>,
}

/// So many are kept before it is asked whether they are still needed.
const KEPT_MIN: usize = 16;

/// All of them.
#[derive(Default)]
pub(crate) struct Queue {
    /// In the order of their success.
    holds: Vec<Queued>,
    /// When there are so many, it is time to look which are still needed.
    max: usize,
}

impl Queue {
    /// Those that are later than a hold which is acquired only now, the first acquired first.
    pub fn later_than(&self, grant: &Grant) -> impl Iterator<Item = &Queued> {
        self.holds.iter().filter(|other| other.grant.is_later(grant))
    }

    /// A hold with a place is acquired.
    pub fn add(&mut self, run: &Run, hold: &Attempt, grant: &Grant) {
        if self.holds.len() >= self.max {
            // Who stands before a hold had sent its own attempt before that hold was acquired.
            let open = run.attempts.values().filter(|a| a.key == hold.key && a.completed.is_none() && !a.is_orphan);
            let oldest = open.map(|a| a.sent.at).min().unwrap_or(grant.ok.at);
            self.holds.retain(|other| other.grant.ok.at >= oldest);
            self.max = KEPT_MIN.max(2 * self.holds.len());
        }
        self.holds.push(Queued { brief: Brief::of(hold, grant), grant: *grant, ended: None });
    }

    /// The entitlement of a hold has ended.
    pub fn ended(&mut self, id: HoldId, end: Stamp) {
        if let Some(queued) = self.holds.iter_mut().rev().find(|queued| queued.brief.id == id) {
            queued.ended = Some(end);
        }
    }
}
