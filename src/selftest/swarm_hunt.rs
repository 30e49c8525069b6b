//! Searches for planted bugs with a swarm that knows nothing of them: the search gets the backend, and no plan.

use std::ops::ControlFlow;

use history::{Plan, Tokens};

use super::{
    hunt::{Hunt, Planted},
    seeds::{Seeds, across},
    trial::{Subject, verdicts, verdicts_and_signal},
};
use crate::explore::{
    swarm::{Swarm, search::search, signal::Signal},
    sweep::{self, SeedError},
};

/// The first seeds of two searches differ by this number.
const APART: u64 = 1 << 32;

/// The searches for one planted bug.
#[derive(Clone)]
pub struct SwarmResult {
    /// The bug, and the violation that must show it.
    pub hunt: Hunt,
    /// The most schedules of a search.
    pub most: u64,
    /// For each search the schedules up to the first that shows the bug; none if the search did not find it.
    pub found: Vec<Option<u64>>,
    /// The schedules of all searches that ended with an error.
    pub failed: Vec<SeedError>,
}

/// One search.
#[derive(Default)]
struct Search {
    found: Option<u64>,
    failed: Vec<SeedError>,
}

impl SwarmResult {
    /// Searches for each bug several times, with up to `most` schedules each, one search on each thread. `progress`
    /// gets the result of each search.
    ///
    /// # Errors
    /// A plan cannot be drawn.
    pub fn all(
        hunts: &[&Hunt],
        most: u64,
        searches: Seeds,
        progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Vec<SwarmResult>, String> {
        let Seeds { count, jobs, .. } = searches;
        let run = |n: u64| {
            let (hunt, search) = (hunts[(n / count) as usize], n % count);
            let seeds = sweep::Seeds { first: search * APART, count: most, kept: 0, jobs: 1 };
            let searched = schedules(hunt, seeds).map_err(|e| format!("{}: {e}", hunt.name()))?;
            progress(&match searched.found {
                Some(schedules) => format!("{}: search {search} found it after {schedules}", hunt.name()),
                None => format!("{}: search {search} found nothing", hunt.name()),
            });
            Ok(searched)
        };
        let mut searches = across(Seeds { first: 0, count: count * hunts.len() as u64, jobs }, &run)?.into_iter();
        let row = |hunt: &&Hunt| {
            let (mut found, mut failed) = (Vec::new(), Vec::new());
            for (_, search) in searches.by_ref().take(count as usize) {
                found.push(search.found);
                failed.extend(search.failed);
            }
            SwarmResult { hunt: **hunt, most, found, failed }
        };
        Ok(hunts.iter().map(row).collect())
    }

    /// The median of the schedules that the searches needed; none if half of them found nothing.
    pub fn median(&self) -> Option<u64> {
        let mut found: Vec<u64> = self.found.iter().map(|found| found.unwrap_or(u64::MAX)).collect();
        found.sort_unstable();
        found.get(found.len() / 2).copied().filter(|median| *median < u64::MAX)
    }
}

/// Counts the schedules up to the first that shows the bug, and whose correct twin does not show the same.
fn schedules(hunt: &Hunt, seeds: sweep::Seeds) -> Result<Search, String> {
    let (backend, resource_bug) = hunt.under(true);
    let (correct, _) = hunt.under(false);
    let is_unsafe = hunt.planted == Planted::MajorityMax;
    let swarm = Swarm::of(&backend, is_unsafe.then_some(Tokens::MajorityMax)).map_err(|e| format!("{e:#}"))?;
    let judge = |plan: &Plan| {
        let judged = verdicts_and_signal(plan, Subject { backend: &backend, resource_bug });
        let (verdicts_of_bug, signal) = match judged {
            Err(error) if hunt.shows.is_error(&error) => return Ok((true, Signal::default())),
            judged => judged?,
        };
        let mut is_found = hunt.shows.is_in(&verdicts_of_bug);
        if is_found {
            let twin = if is_unsafe { Plan { tokens: Tokens::TwoPhase, ..plan.clone() } } else { plan.clone() };
            is_found = !hunt.shows.is_in(&verdicts(&twin, Subject::correct(&correct))?);
        }
        Ok((is_found, signal))
    };
    let mut this = Search::default();
    let searched = search(&swarm, seeds, &judge, &mut |seed, _, is_found| {
        match is_found {
            Ok(true) => {
                this.found = Some(seed - seeds.first + 1);
                return ControlFlow::Break(());
            }
            Ok(false) => {}
            Err(why) => this.failed.push(SeedError { seed, why }),
        }
        ControlFlow::Continue(())
    });
    searched.map_err(|e| e.to_string())?;
    Ok(this)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::bugs::HUNTS;

    #[test]
    fn a_bug_that_half_the_searches_miss_has_no_median() {
        let median = |found: &[Option<u64>]| {
            SwarmResult { hunt: HUNTS[0], most: 10, found: found.to_vec(), failed: Vec::new() }.median()
        };
        assert_eq!(median(&[Some(3), None]), None);
        assert_eq!(median(&[Some(9), None, Some(3)]), Some(9));
    }
}
