//! A queue in the order of due times.

use std::{cmp::Reverse, collections::BinaryHeap};

/// A heap entry as one number: time, sequence number, place. The heap moves and compares entries, so they are small.
type Entry = u128;

/// The bits of an entry for its place. The sequence number has 40 bits, more than any run needs.
const PLACE_BITS: u32 = 24;

/// Items that are due, each at its time and after all earlier items of that time.
pub(super) struct Queue<T> {
    heap: BinaryHeap<Reverse<Entry>>,
    /// By place; none, if an item was taken back.
    items: Vec<Option<T>>,
    /// Free places in `items`.
    free: Vec<usize>,
}

impl<T> Queue<T> {
    /// A queue without items.
    pub fn new() -> Queue<T> {
        Queue { heap: BinaryHeap::new(), items: Vec::new(), free: Vec::new() }
    }

    /// Adds an item and returns its place. The sequence number is larger than those of all earlier items.
    pub fn put(&mut self, at: u64, number: u64, item: T) -> usize {
        let place = match self.free.pop() {
            Some(place) => {
                self.items[place] = Some(item);
                place
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        };
        assert!(place >> PLACE_BITS == 0, "more is due at once than an entry can tell apart");
        let numbered = (number << PLACE_BITS) | place as u64;
        self.heap.push(Reverse((u128::from(at) << u64::BITS) | u128::from(numbered)));
        place
    }

    /// The first entry. Entries of several queues compare as their times and sequence numbers do.
    pub fn first(&self) -> Option<Entry> {
        self.heap.peek().map(|Reverse(entry)| *entry)
    }

    /// Takes the first entry: its time, and the place of its item.
    pub fn pop(&mut self) -> Option<(u64, usize)> {
        let Reverse(entry) = self.heap.pop()?;
        Some(((entry >> u64::BITS) as u64, (entry & ((1 << PLACE_BITS) - 1)) as usize))
    }

    /// Takes the item of an entry that was taken, unless the item was taken back. By itself, so that a packet, which is
    /// large, is copied once.
    pub fn take(&mut self, place: usize) -> Option<T> {
        self.free.push(place);
        self.items[place].take()
    }

    /// The item at `place`. A place belongs to another item once its entry was taken.
    pub fn at(&mut self, place: usize) -> Option<&mut Option<T>> {
        self.items.get_mut(place)
    }

    /// The items that have not been taken.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }
}
