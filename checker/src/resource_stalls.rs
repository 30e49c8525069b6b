//! The stalls of the resource. Each concerns all attempts that are open, so it is kept once, and not with each of them.

use std::collections::VecDeque;

use crate::holds::Span;

/// The stalls of the resource, as far back as an open attempt has seen them. They concern every attempt that is open.
#[derive(Debug, Default)]
pub(crate) struct ResourceStalls {
    spans: VecDeque<Span>,
    /// The number of stalls that were dropped.
    dropped: usize,
    /// At this number of stalls, unneeded ones are dropped.
    max: usize,
}

/// The number of stalls that are kept without a check that they are still needed.
const KEPT_MIN: usize = 64;

impl ResourceStalls {
    /// The number of all stalls so far.
    pub fn count(&self) -> usize {
        self.dropped + self.spans.len()
    }

    /// Adds a stall. `before` are the numbers of stalls before the attempts that are open.
    pub fn add(&mut self, span: Span, before: impl Iterator<Item = usize>) {
        self.spans.push_back(span);
        if self.spans.len() < self.max.max(KEPT_MIN) {
            return;
        }
        let (mut open, mut needed) = (0, self.count());
        before.for_each(|before| (open, needed) = (open + 1, needed.min(before)));
        self.spans.drain(..needed.saturating_sub(self.dropped));
        self.dropped = self.dropped.max(needed);
        // So many further stalls pay for the next visit to all attempts.
        self.max = self.spans.len() + self.spans.len().max(open);
    }

    /// The stalls after the first ones.
    pub fn after(&self, before: usize) -> impl Iterator<Item = Span> {
        self.spans.iter().skip(before.saturating_sub(self.dropped)).copied()
    }
}

#[cfg(test)]
mod tests {
    use history::{HoldId, Key, ProcessName, Stamp};

    use super::*;
    use crate::{
        history_builder::{plan, state},
        run::Run,
    };

    #[test]
    fn a_stall_of_the_resource_is_not_written_to_each_open_attempt() {
        let mut run = Run::new(plan());
        run.add_process(1, |process| ProcessName::from(["worker-1", "resource"][process]));
        let sends = |run: &mut Run, n: u32| state::sends(run, n, n.into(), Key::from("k0"));
        (1..=50_000).for_each(|n| sends(&mut run, n));
        (1..=50_000).for_each(|at| run.stalled(1, (Stamp(100_000 + at), Stamp(100_001 + at))));
        sends(&mut run, 50_001);
        run.stalled(1, (Stamp(200_000), Stamp(200_001)));
        let seen = |n: u64| run.attempt(HoldId(n)).map(|attempt| run.resource_stalls(attempt).len());
        assert_eq!([1, 50_000, 50_001].map(seen), [Some(50_001), Some(50_001), Some(1)]);
    }

    #[test]
    fn stalls_that_no_open_attempt_has_seen_are_dropped() {
        let mut stalls = ResourceStalls::default();
        for n in 0..10_000 {
            let span = (Stamp(n), Stamp(n + 1));
            // The oldest open attempt was sent ten stalls before.
            let before = stalls.count().saturating_sub(9);
            stalls.add(span, std::iter::once(before));
            assert_eq!(stalls.after(before).last(), Some(span));
            assert_eq!(stalls.after(before).count() as u64, (n + 1).min(10));
            assert!(stalls.spans.len() <= KEPT_MIN);
        }
    }
}
