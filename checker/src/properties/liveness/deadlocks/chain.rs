//! The search for a cycle: from a client that waits to the holders of its key, and from each holder to those that it
//! waits for.

use history::{ClientId, Stamp};
use rustc_hash::FxHashSet;

use super::{Deadlocks, Wait, ending::over};
use crate::{holds::Attempt, rules, run::Run};

/// A client that waits, and the hold of the next client in the cycle.
type Link<'a> = (ClientId, Wait, &'a Attempt);

/// A client that waits, and the holds that keep it from its key. The last one is followed, and is dropped if it does
/// not lead back.
type Waiting<'a> = (ClientId, Wait, Vec<&'a Attempt>);

impl Deadlocks {
    /// Returns a cycle through a client that is in no known cycle; empty if there is none. A client waits for every
    /// holder of its key that conflicts with it, so each of them may lead back. A client of a known cycle is not
    /// followed: of several cycles that share a client, only the first one is known.
    pub(super) fn cycle_through<'a>(&self, run: &'a Run, first: ClientId, at: Stamp) -> Vec<Link<'a>> {
        let mut known = FxHashSet::from_iter([first]);
        let mut path: Vec<Waiting> = self.waiting(run, first, at).into_iter().collect();
        while let Some((.., holds)) = path.last_mut() {
            let Some(next) = holds.last().map(|hold| hold.client) else {
                // No holder of this key leads back, so the hold of this client does not either.
                path.pop();
                if let Some((.., holds)) = path.last_mut() {
                    holds.pop();
                }
                continue;
            };
            if next == first {
                break;
            }
            let is_new = !self.of.contains_key(&next) && known.insert(next);
            match is_new.then(|| self.waiting(run, next, at)).flatten() {
                Some(waiting) => path.push(waiting),
                None => _ = holds.pop(),
            }
        }
        path.into_iter().filter_map(|(client, wait, holds)| Some((client, wait, *holds.last()?))).collect()
    }

    /// Returns what a client waits for; none if it does not wait. A holder that does not wait leads nowhere.
    fn waiting<'a>(&self, run: &'a Run, client: ClientId, at: Stamp) -> Option<Waiting<'a>> {
        let wait = self.waits.get(&client).copied().filter(|wait| wait.over(run, at).is_none())?;
        let blocks = |hold: &&Attempt| {
            // A client keeps its session from the beginning of its wait on, unless the session is over by then.
            let waits = || self.waits.get(&hold.client).is_some_and(|wait| wait.since.at < hold.promise);
            let is_kept = hold.gave_up.is_none() && over(run, hold, false) > at;
            is_kept && rules::conflict(hold.mode, wait.mode) && waits()
        };
        let mut holds: Vec<&Attempt> = run.live(wait.key).filter(blocks).collect();
        // The first one is followed first.
        holds.reverse();
        Some((client, wait, holds))
    }
}
