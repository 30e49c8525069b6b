//! Entitlements that ended after the holds that may still act.

use history::{Mode, Stamp};

use crate::{holds::Grant, intervals::Intervals, rules};

/// Entitlements that have ended, as one: what a hold sees of them that they are all later than. Many holds may be open
/// whose requests have not arrived, and each of them sees the same.
pub(crate) struct Ended {
    pub cover: Intervals,
    /// The first acquisition, and the first stamp at which one of the clients knew that it did not hold the lock.
    pub first: Stamp,
    granted_after: Stamp,
    are_writers: bool,
}

impl Ended {
    pub fn of(ended: &[(Grant, Stamp)], earliest: Stamp) -> Ended {
        let mut cover: Intervals = ended.iter().map(|(grant, end)| (grant.ok.at, *end)).collect();
        cover.settle(earliest);
        let first = |of: fn(&Grant) -> Stamp| ended.iter().map(|(grant, _)| of(grant)).min().unwrap_or_default();
        Ended {
            cover,
            first: first(|grant| grant.ok.at),
            granted_after: first(|grant| grant.granted_after),
            are_writers: ended.iter().all(|(grant, _)| grant.mode == Mode::Write),
        }
    }

    /// Returns whether all of them are later than a hold, and begin after its end. (A writer conflicts with everybody.)
    pub fn are_later(&self, than: &Grant, end: Stamp) -> bool {
        self.are_writers && rules::is_later(self.granted_after, than.ok.at) && self.first >= end
    }
}
