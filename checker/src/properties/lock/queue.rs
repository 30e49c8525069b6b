//! The holds of one key that have a place in the queue of the service. A hold is kept as long as an earlier hold of the
//! queue may still appear in the record.
//!
//! Holds that only stamps order appear in the order of their grants. Holds that the queue orders may appear in another
//! order. A hold was confirmed and its client was slow to read the answer, so a later hold of the queue appears first.

use history::{HoldId, Stamp};

use crate::{
    hold_summary::HoldSummary,
    holds::{Attempt, Grant},
    run::Run,
};

/// One hold with a place in the queue.
pub(crate) struct Queued {
    pub summary: HoldSummary,
    pub grant: Grant,
    /// The end of the entitlement, if it has ended.
    pub ended: Option<Stamp>,
}

/// The number of holds that are kept without a check that they are still needed.
const KEPT_MIN: usize = 16;

/// The holds of one key that have a place in the queue.
#[derive(Default)]
pub(crate) struct Queue {
    /// The holds, in the order of their success.
    holds: Vec<Queued>,
    /// At this number of holds, unneeded holds are dropped.
    max: usize,
}

impl Queue {
    /// Returns the holds that are later than a hold that is acquired only now, in the order of their success.
    pub fn later_than(&self, grant: &Grant) -> impl Iterator<Item = &Queued> {
        self.holds.iter().filter(|other| other.grant.is_later(grant))
    }

    /// Adds a hold with a place that was acquired.
    pub fn add(&mut self, run: &Run, hold: &Attempt, grant: &Grant) {
        if self.holds.len() >= self.max {
            // An open attempt can precede a hold only if the attempt was sent before the hold was acquired.
            let open = run.attempts_of(hold.key).filter(|a| a.completed.is_none() && !a.is_orphan);
            let oldest = open.map(|a| a.sent.at).min().unwrap_or(grant.ok.at);
            self.holds.retain(|other| other.grant.ok.at >= oldest);
            // So many further holds pay for the next visit to all of these.
            let (kept, visited) = (self.holds.len(), run.attempts_of(hold.key).count());
            self.max = KEPT_MIN.max(kept + kept.max(visited));
        }
        self.holds.push(Queued { summary: HoldSummary::of(hold, grant), grant: *grant, ended: None });
    }

    /// Notes the end of a hold's entitlement.
    pub fn ended(&mut self, id: HoldId, end: Stamp) {
        if let Some(queued) = self.holds.iter_mut().rev().find(|queued| queued.summary.id == id) {
            queued.ended = Some(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use history::Key;

    use super::*;
    use crate::history_builder::state;

    #[test]
    fn the_first_hold_of_a_key_visits_no_attempt_at_another_key() {
        let mut run = state::with_worker();
        (1..=40_000).for_each(|n| state::sends(&mut run, n, n.into(), Key::numbered(n)));
        let key = run.intern(&Key::from("k0"));
        let hold = state::queued(50_000, key);
        let grant = hold.grant.unwrap();
        for _ in 0..100_000 {
            // The key has been quiet, so its queue begins anew.
            let mut queue = Queue::default();
            queue.add(&run, &hold, &grant);
            assert_eq!(queue.holds.len(), 1);
        }
    }
}
