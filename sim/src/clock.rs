//! The clocks of a process.
//!
//! A clock runs at a rate from a base; a jump and a new rate make a new base.

use std::time::Duration;

use history::Stamp;

/// The first stamp of a run. The stamp 0 is the controller's.
pub(crate) const START: Stamp = Stamp(1_000_000_000);

/// One clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticking {
    since: Stamp,
    base_ns: i128,
    ppm: i32,
    /// The part of the base that the current drift has gained.
    gained_ns: i128,
}

impl Ticking {
    /// A clock that shows `base_ns` at `since`, at the right rate.
    pub fn new(since: Stamp, base_ns: i128) -> Self {
        Ticking { since, base_ns, ppm: 0, gained_ns: 0 }
    }

    /// The reading at `now`.
    pub fn shows_ns(&self, now: Stamp) -> i128 {
        self.base_ns + self.passed_ns(now) + self.gains_ns(now)
    }

    fn passed_ns(&self, now: Stamp) -> i128 {
        i128::from(now.0.saturating_sub(self.since.0))
    }

    /// The gain of the drift since the base.
    fn gains_ns(&self, now: Stamp) -> i128 {
        if self.ppm == 0 { 0 } else { (self.passed_ns(now) * i128::from(self.ppm)).div_euclid(1_000_000) }
    }

    /// The first time at which the reading is at least `shown_ns`.
    pub fn when(&self, shown_ns: i128) -> Stamp {
        let missing = (shown_ns - self.base_ns).max(0);
        let passed = if self.ppm == 0 {
            missing
        } else {
            let rate = 1_000_000 + i128::from(self.ppm);
            (missing * 1_000_000 + rate - 1) / rate
        };
        Stamp(self.since.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    /// Jumps by so many milliseconds at `now`.
    pub fn jump(&mut self, now: Stamp, by_ms: i64) {
        let gained_ns = self.gained_ns + self.gains_ns(now);
        let base_ns = self.shows_ns(now) + i128::from(by_ms) * 1_000_000;
        *self = Ticking { since: now, base_ns, ppm: self.ppm, gained_ns };
    }

    /// Changes the rate at `now`.
    pub fn drift(&mut self, now: Stamp, ppm: i32) {
        *self = Ticking { since: now, base_ns: self.shows_ns(now), ppm, gained_ns: 0 };
    }

    /// Ends a drift at `now` without its gain. Jumps stay.
    pub fn take_drift_back(&mut self, now: Stamp) {
        let gained_ns = self.gained_ns + self.gains_ns(now);
        *self = Ticking::new(now, self.shows_ns(now) - gained_ns);
    }
}

/// Both clocks of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    pub monotonic: Ticking,
    pub wall: Ticking,
}

/// The monotonic clock at the start of a run.
const UPTIME_NS: i128 = 1_000 * 1_000_000_000;
/// The wall clock at the start of a run.
const EPOCH_NS: i128 = 1_700_000_000 * 1_000_000_000;

impl Clocks {
    /// Right clocks.
    pub fn right(start: Stamp) -> Clocks {
        Clocks { monotonic: Ticking::new(start, UPTIME_NS), wall: Ticking::new(start, EPOCH_NS) }
    }
}

pub(crate) fn duration(ns: i128) -> Duration {
    Duration::from_nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_clock_shows_its_jumps_and_its_drift() {
        let mut clock = Ticking::new(Stamp(S), 0);
        assert_eq!(clock.shows_ns(Stamp(3 * S)), 2 * i128::from(S));
        clock.jump(Stamp(3 * S), -500);
        assert_eq!(clock.shows_ns(Stamp(3 * S)), 1_500_000_000);
        clock.drift(Stamp(3 * S), 100_000);
        assert_eq!(clock.shows_ns(Stamp(13 * S)), 12_500_000_000);
        clock.drift(Stamp(13 * S), 0);
        assert_eq!(clock.shows_ns(Stamp(14 * S)), 13_500_000_000);
    }

    #[test]
    fn a_drift_that_is_taken_back_leaves_only_the_jumps() {
        let mut clock = Ticking::new(Stamp(S), 0);
        clock.drift(Stamp(2 * S), -200_000);
        clock.jump(Stamp(4 * S), 4_000);
        assert_eq!(clock.shows_ns(Stamp(7 * S)), 9_000_000_000);
        clock.take_drift_back(Stamp(7 * S));
        assert_eq!(clock.shows_ns(Stamp(7 * S)), 10_000_000_000);
        assert_eq!(clock.shows_ns(Stamp(8 * S)), 11_000_000_000);
    }

    #[test]
    fn a_clock_reaches_a_reading_exactly_when_predicted() {
        for ppm in [0, 1, -1, 333_333, -333_333] {
            let mut clock = Ticking::new(Stamp(7), 1_000);
            clock.drift(Stamp(10), ppm);
            for shown in [1_003, 1_004, 123_456_789, 9_999_999_999] {
                let when = clock.when(shown);
                assert!(clock.shows_ns(when) >= shown, "{ppm} {shown}");
                assert!(clock.shows_ns(Stamp(when.0 - 1)) < shown || when.0 == 10, "{ppm} {shown}");
            }
        }
    }
}
