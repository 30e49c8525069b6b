//! The length of a union of intervals, without keeping intervals that no later one can touch.

use std::time::Duration;

use history::Stamp;

use crate::holds::Span;

/// A union of intervals `[from, to)`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Intervals {
    /// Disjoint, in order.
    spans: Vec<Span>,
    settled: Duration,
}

impl Intervals {
    /// Adds an interval; an empty one adds nothing.
    pub fn add(&mut self, (mut from, mut to): Span) {
        if from >= to {
            return;
        }
        let first = self.spans.partition_point(|s| s.1 < from);
        let last = self.spans.partition_point(|s| s.0 <= to);
        if first < last {
            from = from.min(self.spans[first].0);
            to = to.max(self.spans[last - 1].1);
        }
        self.spans.splice(first..last, [(from, to)]);
    }

    /// Keeps only the length of the intervals that end before `start`. No interval that begins earlier may be added
    /// later.
    pub fn settle(&mut self, start: Stamp) {
        let keep = self.spans.partition_point(|s| s.1 < start);
        self.settled += self.spans.drain(..keep).map(|s| s.1.since(s.0)).sum::<Duration>();
    }

    /// Adds intervals that all begin at `start` or later, after every interval of this union. Some of them may be
    /// settled already. Returns whether that was possible; otherwise nothing has changed.
    pub fn append(&mut self, start: Stamp, later: &Intervals) -> bool {
        let is_after = self.spans.last().is_none_or(|last| last.1 < start);
        if is_after {
            self.settled += later.settled;
            self.spans.extend_from_slice(&later.spans);
        }
        is_after
    }

    /// The length of the union.
    pub fn length(&self) -> Duration {
        self.settled + self.spans.iter().map(|s| s.1.since(s.0)).sum::<Duration>()
    }
}

impl FromIterator<Span> for Intervals {
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> Self {
        let mut all = Intervals::default();
        spans.into_iter().for_each(|span| all.add(span));
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn appended_intervals_are_those_that_were_added(
            first in prop::collection::vec((0u64..30, 0u64..12), 0..8),
            later in prop::collection::vec((20u64..60, 0u64..12), 0..8),
            settled in 0u64..80,
        ) {
            let spans = |all: &[(u64, u64)]| -> Intervals {
                all.iter().map(|&(from, len)| (Stamp(from), Stamp(from + len))).collect()
            };
            let start = Stamp(later.iter().map(|(from, _)| *from).min().unwrap_or(20));
            let (mut union, mut more) = (spans(&first), spans(&later));
            more.settle(Stamp(settled));
            let before = union.length();
            if union.append(start, &more) {
                prop_assert_eq!(union.length(), spans(&[first, later].concat()).length());
            } else {
                prop_assert_eq!(union.length(), before);
            }
        }

        #[test]
        fn the_length_is_the_number_of_covered_instants(spans in prop::collection::vec((0u64..60, 0u64..12), 0..20)) {
            let union: Intervals = spans.iter().map(|&(from, len)| (Stamp(from), Stamp(from + len))).collect();
            let covered = (0..80).filter(|t| spans.iter().any(|&(from, len)| from <= *t && *t < from + len)).count();
            prop_assert_eq!(union.length(), Duration::from_nanos(covered as u64));
        }

        #[test]
        fn settling_untouched_intervals_changes_no_length(
            mut spans in prop::collection::vec((0u64..60, 0u64..12), 0..20),
        ) {
            spans.sort_unstable();
            let whole: Intervals = spans.iter().map(|&(from, len)| (Stamp(from), Stamp(from + len))).collect();
            let mut settled = Intervals::default();
            for &(from, len) in &spans {
                settled.settle(Stamp(from));
                settled.add((Stamp(from), Stamp(from + len)));
            }
            prop_assert_eq!(settled.length(), whole.length());
        }
    }
}
