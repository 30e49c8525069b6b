//! Two holds of different keys that give access to the same data: a hold of the parent, and a hold of a child.
//!
//! A hold of the parent in the mode S or SIX holds every child in the mode S. A hold in the mode X holds every child in
//! the mode X. Two such holds exclude each other already by their modes on the parent, if the client of the child holds
//! the parent in a mode that allows the child's: `Mode::allows_below` and a test beside it in `history` show that. So
//! only a child whose client has no such hold is compared with the holds of the parent. A client that acts under the
//! hold of a child also acts under its hold of the parent, so an act after the end of the second is found there. An act
//! under a child without such a hold, after its end, is not compared with later holds of the parent: docs/checker.md
//! says so.

use crate::{holds::Attempt, rules, run::Run};

/// Returns the holds of the key above, or of the keys below, that give conflicting access to the data of a hold, and
/// that no intention excludes. Only holds that are entitled, as far as is known.
pub(super) fn across_levels<'a>(run: &'a Run, hold: &'a Attempt) -> impl Iterator<Item = &'a Attempt> {
    let keys = other_levels(run, hold, || run.busy_keys());
    keys.into_iter().flat_map(|key| run.live(key)).filter(move |other| is_across_levels(run, hold, other))
}

/// Returns the keys of other levels whose holds may give access to the data of a hold, of those that are known.
pub(super) fn other_levels(run: &Run, hold: &Attempt, known: impl FnOnce() -> Vec<usize>) -> Vec<usize> {
    match run.parent {
        // An intention gives access to no data, and most holds of a parent are intentions.
        Some(parent) if parent == hold.key && hold.mode.below().is_none() => Vec::new(),
        Some(parent) if parent == hold.key => known().into_iter().filter(|key| *key != parent).collect(),
        parent => Vec::from_iter(parent),
    }
}

/// Returns whether the hold of another level gives conflicting access to the data of a hold, and no intention excludes
/// the two.
pub(super) fn is_across_levels(run: &Run, hold: &Attempt, other: &Attempt) -> bool {
    let (whole, part) = if run.parent == Some(hold.key) { (hold, other) } else { (other, hold) };
    let is_conflict = whole.mode.below().is_some_and(|implied| rules::conflict(implied, part.mode));
    is_conflict && !is_under_intention(run, part)
}

/// Returns whether the client of a child's hold holds the parent in a mode that allows it. A hold that is closed was
/// compared while it was open.
fn is_under_intention(run: &Run, part: &Attempt) -> bool {
    part.above.is_some_and(|id| run.attempt(id).is_none_or(|above| above.mode.allows_below(part.mode)))
}

#[cfg(test)]
mod tests;
