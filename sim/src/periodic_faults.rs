//! The repeating faults of one node that are on: a strobing wall clock, and a quota of processor time.

use std::time::Duration;

/// The repeating faults of one node. Each has its own number, so that a timer of a healed fault does nothing to the
/// next one.
#[derive(Debug, Default)]
pub(crate) struct PeriodicFaults {
    last: u64,
    strobe: Option<Strobe>,
    slow: Option<(u64, u8)>,
}

#[derive(Debug)]
struct Strobe {
    number: u64,
    by_ms: i64,
    every: Duration,
    is_there: bool,
}

impl PeriodicFaults {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Begins a strobe, and returns its number. The first jump is due now.
    pub fn strobe(&mut self, by_ms: i64, every: Duration) -> u64 {
        let number = self.next();
        self.strobe = Some(Strobe { number, by_ms, every, is_there: false });
        number
    }

    /// Returns the next jump of a strobe in milliseconds, and the time until the one after it; none, if the strobe has
    /// ended.
    pub fn flip(&mut self, number: u64) -> Option<(i64, Duration)> {
        let strobe = self.strobe.as_mut().filter(|strobe| strobe.number == number)?;
        strobe.is_there = !strobe.is_there;
        Some((if strobe.is_there { strobe.by_ms } else { -strobe.by_ms }, strobe.every))
    }

    /// Ends the strobe. Returns the jump in milliseconds that sets the clock right; none, if the clock is right.
    pub fn end_strobe(&mut self) -> Option<i64> {
        self.strobe.take().filter(|strobe| strobe.is_there).map(|strobe| -strobe.by_ms)
    }

    /// Begins a quota of so many percent of each period, and returns its number.
    pub fn slow_down(&mut self, percent: u8) -> u64 {
        let number = self.next();
        self.slow = Some((number, percent));
        number
    }

    /// Returns the quota with this number, in percent; none, if it has ended.
    pub fn quota(&self, number: u64) -> Option<u8> {
        self.slow.filter(|(of, _)| *of == number).map(|(_, percent)| percent)
    }

    /// Ends the quota. Returns whether there was one.
    pub fn speed_up(&mut self) -> bool {
        self.slow.take().is_some()
    }

    /// Ends all repeating faults.
    pub fn end(&mut self) {
        (self.strobe, self.slow) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_strobe_sets_the_clock_right() {
        const EVERY: Duration = Duration::from_millis(50);
        for flips in 0..4 {
            let mut faults = PeriodicFaults::default();
            let number = faults.strobe(500, EVERY);
            let ahead: i64 = (0..flips).filter_map(|_| faults.flip(number)).map(|(by_ms, _)| by_ms).sum();
            assert_eq!(ahead + faults.end_strobe().unwrap_or(0), 0, "{flips} jumps");
            assert_eq!((faults.flip(number), faults.end_strobe()), (None, None));
        }
    }
}
