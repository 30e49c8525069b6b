//! The streams that have an item for the sweep, the one with the earliest item first: a binary heap that compares names
//! where the streams keep them, so that its own elements are small.

use history::Stamp;

use super::stream::Stream;

/// The next item of a stream: an event, or the end of the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub at: Stamp,
    pub rank: u8,
    /// The place of the stream. A stream has one item here, or none.
    pub stream: usize,
}

impl Head {
    /// Items come by their stamps, then by rank, then by name.
    fn is_before(&self, other: &Head, streams: &[Stream]) -> bool {
        let name = |head: &Head| &streams[head.stream].name;
        self.at < other.at
            || self.at == other.at && (self.rank < other.rank || self.rank == other.rank && name(self) < name(other))
    }
}

/// The heap.
#[derive(Default)]
pub(super) struct Heads(Vec<Head>);

impl Heads {
    pub fn first(&self) -> Option<Head> {
        self.0.first().copied()
    }

    pub fn push(&mut self, head: Head, streams: &[Stream]) {
        let Heads(heads) = self;
        let mut place = heads.len();
        heads.push(head);
        while place > 0 && head.is_before(&heads[(place - 1) / 2], streams) {
            heads[place] = heads[(place - 1) / 2];
            place = (place - 1) / 2;
        }
        heads[place] = head;
    }

    /// Puts another item in the place of the first one.
    pub fn replace_first(&mut self, head: Head, streams: &[Stream]) {
        let Heads(heads) = self;
        let mut place = 0;
        while let Some(left) = heads.get(2 * place + 1) {
            let right = heads.get(2 * place + 2).filter(|right| right.is_before(left, streams));
            let (child, first) = right.map_or((2 * place + 1, left), |right| (2 * place + 2, right));
            if head.is_before(first, streams) {
                break;
            }
            heads[place] = *first;
            place = child;
        }
        if let Some(free) = heads.get_mut(place) {
            *free = head;
        }
    }

    /// Removes the first item.
    pub fn pop(&mut self, streams: &[Stream]) {
        if let Some(last) = self.0.pop() {
            self.replace_first(last, streams);
        }
    }
}

#[cfg(test)]
mod tests {
    use history::ProcessName;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn items_come_by_stamp_then_rank_then_name() {
        let stream = |n: usize| {
            // The names are not in the order of the streams.
            let name = ProcessName::from(format!("worker-{}", n * 7 % 10).as_str());
            Stream::new(name.clone(), name.node())
        };
        let streams: Vec<Stream> = (0..10).map(stream).collect();
        let key = |head: &Head| (head.at, head.rank, streams[head.stream].name.clone());
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let (mut heads, mut expected) = (Heads::default(), Vec::<Head>::new());
        for _ in 0..10_000 {
            let mut new =
                |stream| Head { at: Stamp(random.random_range(0..5)), rank: random.random_range(0..3), stream };
            match (0..10).find(|stream| expected.iter().all(|head| head.stream != *stream)) {
                Some(free) => {
                    let head = new(free);
                    heads.push(head, &streams);
                    expected.push(head);
                }
                None if new(0).rank == 0 => {
                    heads.pop(&streams);
                    expected.remove(0);
                }
                None => {
                    let head = new(expected[0].stream);
                    heads.replace_first(head, &streams);
                    expected[0] = head;
                }
            }
            if random.random_range(0..3) == 0 && expected.len() > 1 {
                heads.pop(&streams);
                expected.sort_by_key(key);
                expected.remove(0);
            }
            expected.sort_by_key(key);
            assert_eq!(heads.first().as_ref().map(key), expected.first().map(key));
        }
    }
}
