//! Streams of random numbers that may be drawn anew from an instant on.

use history::Stamp;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Replaces the random numbers of a run from an instant on. The run before that instant stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redraw {
    /// The first instant with other numbers.
    pub from: Stamp,
    /// The seed of the other numbers.
    pub seed: u64,
}

/// One stream of random numbers of a run.
#[derive(Debug, Clone)]
pub struct Stream {
    rng: ChaCha8Rng,
    redraw: Option<Redraw>,
}

impl Stream {
    /// Makes the stream with this number. Streams of one seed are independent of each other.
    pub fn new(seed: u64, number: u64, redraw: Option<Redraw>) -> Stream {
        Stream { rng: numbered(seed, number), redraw }
    }

    /// Returns the source of a draw at `now`.
    pub fn at(&mut self, now: impl FnOnce() -> Stamp) -> &mut ChaCha8Rng {
        if let Some(redraw) = self.redraw
            && redraw.from <= now()
        {
            self.rng = numbered(redraw.seed, self.rng.get_stream());
            self.redraw = None;
        }
        &mut self.rng
    }
}

fn numbered(seed: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

/// A stream with a clock, as a random source that looks at the time in each draw.
pub(crate) struct Timed<N> {
    pub stream: Stream,
    pub now: N,
}

impl<N: Fn() -> Stamp> RngCore for Timed<N> {
    fn next_u32(&mut self) -> u32 {
        self.stream.at(&self.now).next_u32()
    }

    fn next_u64(&mut self) -> u64 {
        self.stream.at(&self.now).next_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.stream.at(&self.now).fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(redraw: Option<Redraw>) -> Vec<u64> {
        let mut stream = Stream::new(7, 3, redraw);
        (0..10).map(|n| stream.at(|| Stamp(n)).next_u64()).collect()
    }

    #[test]
    fn numbers_change_from_the_instant_on_and_not_before() {
        let (plain, redrawn) = (drawn(None), drawn(Some(Redraw { from: Stamp(4), seed: 8 })));
        assert_eq!(plain[..4], redrawn[..4]);
        assert!(plain[4..].iter().all(|number| !redrawn.contains(number)));
        assert!(redrawn.windows(2).all(|pair| pair[0] != pair[1]), "the stream begins anew once");
        assert_ne!(redrawn[4..], drawn(Some(Redraw { from: Stamp(4), seed: 9 }))[4..]);
        assert_eq!(drawn(Some(Redraw { from: Stamp(10), seed: 8 })), plain);
    }

    #[test]
    fn a_timed_stream_draws_the_numbers_of_its_stream() {
        for now in [3, 4].map(Stamp) {
            let mut stream = Stream::new(7, 3, Some(Redraw { from: Stamp(4), seed: 8 }));
            let mut timed = Timed { stream: stream.clone(), now: || now };
            let rng = stream.at(|| now);
            assert_eq!((timed.next_u32(), timed.next_u64()), (rng.next_u32(), rng.next_u64()));
        }
    }

    #[test]
    fn streams_of_one_seed_differ_after_a_redraw_too() {
        let redraw = Some(Redraw { from: Stamp(0), seed: 8 });
        let [one, other] = [1, 2].map(|number| Stream::new(7, number, redraw).at(|| Stamp(0)).next_u64());
        assert_ne!(one, other);
    }
}
