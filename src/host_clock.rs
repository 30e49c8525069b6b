//! The host's wall clock, as the agent samples it: it places the engine's own times among the stamps.

use history::Stamp;
use parking_lot::Mutex;

/// The time that the engine may take from a change to its report.
const REPORTED_WITHIN_NS: i64 = 2_000_000_000;
/// The most by which the host's wall clock is adjusted between a look at a node and the sample that places the look.
const ADJUSTED_BY_NS: i64 = 100_000_000;

/// The wall clock minus the raw clock, as the agent sampled them last.
#[derive(Default)]
pub struct HostClock(Mutex<Option<i64>>);

impl HostClock {
    /// Takes a sample.
    pub fn sample(&self, wall_ns: i64) {
        *self.0.lock() = Some(wall_ns);
    }

    /// Returns the earliest raw stamp of a change that the engine reported at this wall-clock time.
    pub fn earliest(&self, at_wall_ns: i64) -> Stamp {
        self.stamp(at_wall_ns - REPORTED_WITHIN_NS)
    }

    /// Returns the earliest raw stamp of a change after a look at this wall-clock time.
    pub fn earliest_after(&self, look_wall_ns: i64) -> Stamp {
        self.stamp(look_wall_ns - ADJUSTED_BY_NS)
    }

    fn stamp(&self, at_wall_ns: i64) -> Stamp {
        let ahead = *self.0.lock();
        let raw = ahead.map_or(0, |ahead| at_wall_ns - ahead);
        Stamp(u64::try_from(raw).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_placed_by_the_last_sample() {
        let clock = HostClock::default();
        let earliest = || clock.earliest(10_000_000_000);
        assert_eq!(earliest(), Stamp(0), "there is no sample yet");
        // The wall clock is set forwards, back, and forwards again.
        for (wall_ns, stamp) in
            [(0, 8_000_000_000), (5_000_000_000, 3_000_000_000), (-1_000_000_000, 9_000_000_000), (8_000_000_000, 0)]
        {
            clock.sample(wall_ns);
            assert_eq!(earliest(), Stamp(stamp), "the wall clock is ahead by {wall_ns} ns");
        }
        clock.sample(9_000_000_000);
        assert_eq!(earliest(), Stamp(0), "no change is before the zero of the raw clock");
    }
}
