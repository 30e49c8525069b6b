//! The entitlements of one key that have ended, in the order of their ends, as far back as a hold that may still act
//! can ask for them. Most holds never ask, so a hold only remembers from which entry on they concern it.

use std::collections::VecDeque;

use history::{Mode, Stamp};

use crate::{holds::Grant, intervals::Intervals, rules};

/// Entries of a block.
const BLOCK: usize = 64;

/// An entitlement: its grant, and its end.
type Entry = (Grant, Stamp);

/// Entitlements that have ended. Entries are numbered from 0 on, and the first of them may have been dropped.
#[derive(Default)]
pub(crate) struct Ended {
    blocks: VecDeque<Block>,
    /// The entries after the blocks.
    last: Vec<Entry>,
    /// The number of the first entry.
    first: u64,
}

/// As many entries in a row as a block has, and all of them as one.
struct Block {
    entries: Vec<Entry>,
    whole: Whole,
}

/// A block as one: what a hold sees of it that all its entries are later than. Many holds may be open whose requests
/// have not arrived, and each of them sees the same.
struct Whole {
    cover: Intervals,
    /// The first acquisition, and the first stamp at which one of the clients knew that it did not hold the lock.
    first: Stamp,
    granted_after: Stamp,
    are_writers: bool,
}

impl Ended {
    /// The number that the next entry will have.
    pub fn next(&self) -> u64 {
        self.first + self.len() as u64
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.blocks.len() * BLOCK + self.last.len()
    }

    /// Adds an entitlement that ended no earlier than all others. `earliest` returns a stamp before which no
    /// entitlement begins that has not ended yet.
    pub fn push(&mut self, grant: Grant, end: Stamp, earliest: impl FnOnce() -> Stamp) {
        self.last.push((grant, end));
        if self.last.len() == BLOCK {
            let entries = std::mem::take(&mut self.last);
            let whole = Whole::of(&entries, earliest());
            self.blocks.push_back(Block { entries, whole });
        }
    }

    /// The number of the first entry that [`Ended::halve`] would keep.
    pub fn half(&self) -> u64 {
        self.first + (self.blocks.len() / 2 * BLOCK) as u64
    }

    /// Drops the first half of the blocks.
    pub fn halve(&mut self) {
        self.first = self.half();
        self.blocks.drain(..self.blocks.len() / 2);
    }

    /// Adds the spans of all entries from a number on that are later than a hold, after the end of this hold. No
    /// entitlement that has not ended begins before `earliest`.
    pub fn cover(&self, from: u64, than: &Grant, end: Stamp, earliest: Stamp, cover: &mut Intervals) {
        let mut skipped = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let blocks = self.blocks.iter().map(|block| (&block.entries, Some(&block.whole)));
        for (entries, whole) in blocks.chain([(&self.last, None)]) {
            let skipped_here = skipped.min(entries.len());
            skipped -= skipped_here;
            let whole = whole.filter(|whole| skipped_here == 0 && whole.is_later(than, end));
            if whole.is_some_and(|whole| cover.append(whole.first, &whole.cover)) {
                continue;
            }
            for (grant, other_end) in entries[skipped_here..].iter().filter(|(grant, _)| grant.is_later(than)) {
                cover.add((grant.ok.at.max(end), *other_end));
            }
        }
        cover.settle(earliest);
    }
}

impl Whole {
    fn of(entries: &[Entry], earliest: Stamp) -> Whole {
        let mut cover: Intervals = entries.iter().map(|(grant, end)| (grant.ok.at, *end)).collect();
        cover.settle(earliest);
        let first = |of: fn(&Grant) -> Stamp| entries.iter().map(|(grant, _)| of(grant)).min().unwrap_or_default();
        Whole {
            cover,
            first: first(|grant| grant.ok.at),
            granted_after: first(|grant| grant.granted_after),
            are_writers: entries.iter().all(|(grant, _)| grant.mode == Mode::Write),
        }
    }

    /// Returns whether all entries are later than a hold, and begin after its end. (A writer conflicts with everybody.)
    fn is_later(&self, than: &Grant, end: Stamp) -> bool {
        self.are_writers && rules::is_later(self.granted_after, than.ok.at) && self.first >= end
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::holds::EventRef;

    const NEVER: Stamp = Stamp(u64::MAX);

    fn grant(granted_after: u64, ok: u64, mode: Mode) -> Grant {
        Grant {
            ok: EventRef { at: Stamp(ok), seq: ok },
            mode,
            token: None,
            lease: Duration::ZERO,
            granted_after: Stamp(granted_after),
            place: None,
            promised_from: Stamp(granted_after),
            first_promise: NEVER,
        }
    }

    /// The length of the union of all later entries, after the end of the hold.
    fn expected(entries: &[Entry], than: &Grant, end: Stamp) -> Duration {
        let later = entries.iter().filter(|(grant, _)| grant.is_later(than));
        later.map(|(grant, to)| (grant.ok.at.max(end), *to)).collect::<Intervals>().length()
    }

    #[test]
    fn whole_blocks_and_parts_of_them_cover_what_their_entries_cover() {
        for (step, length, is_mixed) in [(10, 5, false), (10, 25, false), (10, 5, true), (7, 30, true)] {
            let mut ended = Ended::default();
            let mut entries = Vec::new();
            for n in 1..=u64::try_from(5 * BLOCK).unwrap() {
                let ok = n * step;
                let mode = if is_mixed && n % 50 == 0 { Mode::Read } else { Mode::Write };
                let entry = (grant(ok - 1, ok, mode), Stamp(ok + length));
                let next = Stamp((n + 1) * step);
                // The holds that are acquired next begin before this one ends.
                ended.push(entry.0, entry.1, || next.min(entry.1));
                entries.push(entry);
            }
            assert_eq!((ended.len(), ended.next()), (entries.len(), entries.len() as u64));
            for halves in 0..3 {
                for from in (usize::try_from(ended.first).unwrap()..=entries.len()).step_by(13) {
                    // The hold ended with the entry before.
                    let end = from.checked_sub(1).map_or(Stamp(0), |last| entries[last].1);
                    let than = grant(0, end.0.saturating_sub(length), Mode::Write);
                    let mut cover = Intervals::default();
                    ended.cover(from as u64, &than, end, Stamp(0), &mut cover);
                    let expected = expected(&entries[from..], &than, end);
                    assert_eq!(cover.length(), expected, "{step} {length} {is_mixed} {halves} {from}");
                }
                ended.halve();
            }
        }
    }

    #[test]
    fn what_was_taken_before_is_not_taken_again_with_its_block() {
        for every in [1, 13, BLOCK, BLOCK + 7] {
            let (mut ended, mut cover, mut taken) = (Ended::default(), Intervals::default(), 0);
            let mut entries = Vec::new();
            let than = grant(0, 5, Mode::Write);
            for n in 1..=u64::try_from(4 * BLOCK).unwrap() {
                let (entry, next) = ((grant(n * 10 - 1, n * 10, Mode::Write), Stamp(n * 10 + 6)), Stamp(n * 10 + 10));
                ended.push(entry.0, entry.1, || next);
                entries.push(entry);
                if entries.len() % every == 0 {
                    ended.cover(taken, &than, Stamp(8), next, &mut cover);
                    taken = ended.next();
                    assert_eq!(cover.length(), expected(&entries, &than, Stamp(8)), "{every} {n}");
                }
            }
        }
    }

    #[test]
    fn half_of_the_blocks_are_dropped() {
        let mut ended = Ended::default();
        let numbers = |ended: &Ended| (ended.first, ended.half(), ended.next());
        assert_eq!(numbers(&ended), (0, 0, 0));
        for n in 0..u64::try_from(4 * BLOCK + 1).unwrap() {
            ended.push(grant(n, n, Mode::Write), Stamp(n + 1), || Stamp(n));
        }
        assert_eq!(numbers(&ended), (0, 128, 257));
        ended.halve();
        assert_eq!((numbers(&ended), ended.len()), ((128, 192, 257), 129));
    }
}
