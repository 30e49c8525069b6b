//! `clock`: a clock of the target shows a wrong time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    parameter::{ParameterVisitor, Quantity, visit_number},
    rules::{About, FaultParameters, Harm},
};
use crate::{names::NodeName, which_clock::WhichClock};

/// A server that looks at its clock rarely may miss the jumps of a strobe that is faster than this.
const STROBE_MIN_MS: u64 = 10;
const DRIFT_MAX_PPM: i32 = 500_000;
/// The farthest jump of a wall clock: 100 years of 365 days, as far as the agent sets a clock.
const WALL_JUMP_MAX_MS: u64 = 100 * 365 * 86_400_000;
/// The farthest jump of a wall clock backwards: 50 years. A clock that shows a time before 1970 cannot prove its jump.
const WALL_JUMP_BACK_MAX_MS: u64 = WALL_JUMP_MAX_MS / 2;
/// The farthest jump of a monotonic clock: a day. A simulated worker whose clock jumps makes up for all critical
/// sections that became due meanwhile.
const MONOTONIC_JUMP_MAX_MS: u64 = 86_400_000;

/// A change of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClockChange {
    /// The clock jumps by so many milliseconds; backwards if negative, which only the wall clock can. The heal takes
    /// the jump of a wall clock back. The jump of a monotonic clock stays until the process restarts or the run ends.
    JumpMs(i64),
    /// The clock runs fast (or slow, if negative) by so many parts per million until the heal. The heal sets a wall
    /// clock right, which is a jump. The gain of a monotonic clock stays.
    DriftPpm(i32),
    /// The wall clock jumps forth and back until the heal, which leaves the clock right.
    #[serde(rename_all = "kebab-case")]
    Strobe {
        /// The jump in milliseconds; backwards if negative.
        by_ms: i64,
        /// The time from one jump to the next, in milliseconds.
        every_ms: u64,
    },
}

/// Sets a clock of the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// The clock.
    pub clock: WhichClock,
    /// The change.
    pub change: ClockChange,
}

impl FaultParameters for Clock {
    const ABOUT: About = About {
        summary: "A clock of the target jumps, drifts, or jumps forth and back.",
        past_tense: "moved the clock of",
        harm: Harm::SetsClock,
    };

    fn check(&self, lasting: Duration) -> Result<(), String> {
        let farthest = |by: i64| match self.clock.is_monotonic() {
            true => MONOTONIC_JUMP_MAX_MS,
            false if by < 0 => WALL_JUMP_BACK_MAX_MS,
            false => WALL_JUMP_MAX_MS,
        };
        match self.change {
            ClockChange::JumpMs(by) if by == 0 || (by < 0 && self.clock.is_monotonic()) => {
                Err(format!("a jump by {by} ms: a monotonic clock only jumps forwards, and no clock by nothing"))
            }
            ClockChange::JumpMs(by) | ClockChange::Strobe { by_ms: by, .. } if by.unsigned_abs() > farthest(by) => {
                Err(format!("a jump by {by} ms is too far: expected at most {} ms", farthest(by)))
            }
            ClockChange::DriftPpm(0) => Err("a drift of 0 ppm: no clock drifts by nothing".to_owned()),
            ClockChange::DriftPpm(by) if !(-DRIFT_MAX_PPM..=DRIFT_MAX_PPM).contains(&by) => {
                Err(format!("a drift of {by} ppm is outside -500000 to 500000"))
            }
            ClockChange::Strobe { by_ms, .. } if by_ms == 0 || self.clock.is_monotonic() => {
                Err(format!("a strobe by {by_ms} ms: only the wall clock goes back and forth, and not by nothing"))
            }
            ClockChange::Strobe { every_ms, .. }
                if every_ms < STROBE_MIN_MS || Duration::from_millis(every_ms) * 2 > lasting =>
            {
                Err(format!(
                    "a strobe every {every_ms} ms: expected at least {STROBE_MIN_MS}, and two jumps within the \
                     {lasting:?} of the fault"
                ))
            }
            _ => Ok(()),
        }
    }

    fn visit(&mut self, visitor: &mut dyn ParameterVisitor) {
        let any = i64::MIN..=i64::MAX;
        match &mut self.change {
            ClockChange::JumpMs(by) => visit_number(visitor, Quantity::JumpMs, by, any),
            ClockChange::DriftPpm(by) => visit_number(visitor, Quantity::DriftPpm, by, -500_000..=500_000),
            ClockChange::Strobe { by_ms, every_ms } => {
                visit_number(visitor, Quantity::JumpMs, by_ms, any);
                visit_number(visitor, Quantity::PeriodMs, every_ms, 10..=i64::MAX);
            }
        }
    }

    fn excludes(&self, other: &Clock) -> bool {
        (self.clock.is_wall() && other.clock.is_wall()) || (self.clock.is_monotonic() && other.clock.is_monotonic())
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        let clock = match self.clock {
            WhichClock::Wall => "the wall clock",
            WhichClock::Monotonic => "the monotonic clock",
            WhichClock::Both => "the clocks",
        };
        match self.change {
            ClockChange::JumpMs(by) => format!("moved {clock} of {node} by {:+.1} s", by as f64 / 1e3),
            ClockChange::DriftPpm(ppm) => {
                let pace = if ppm < 0 { "slow" } else { "fast" };
                let percent = f64::from(ppm.unsigned_abs()) / 1e4;
                format!("made {clock} of {node} run {percent:.1} % {pace} ({lasted})")
            }
            ClockChange::Strobe { by_ms, every_ms } => {
                let (by, every) = (by_ms as f64 / 1e3, every_ms as f64 / 1e3);
                format!("made {clock} of {node} jump by {by:+.1} s and back, every {every:.2} s ({lasted})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wall_clock_jumps_back() {
        let change = ClockChange::JumpMs(-1);
        for (clock, is_possible) in
            [(WhichClock::Wall, true), (WhichClock::Monotonic, false), (WhichClock::Both, false)]
        {
            assert_eq!(Clock { clock, change }.check(Duration::from_secs(1)).is_ok(), is_possible, "{clock:?}");
        }
    }

    #[test]
    fn a_clock_gains_or_loses_at_most_half_of_the_time() {
        for (ppm, is_possible) in
            [(500_000, true), (500_001, false), (-500_000, true), (-500_001, false), (i32::MIN, false)]
        {
            for clock in [WhichClock::Wall, WhichClock::Monotonic, WhichClock::Both] {
                let drift = Clock { clock, change: ClockChange::DriftPpm(ppm) };
                assert_eq!(drift.check(Duration::from_secs(1)).is_ok(), is_possible, "{ppm} ppm");
            }
        }
    }

    #[test]
    fn a_strobe_has_no_field_beside_its_jump_and_its_period() {
        let read = |more: &str| {
            let text = format!(r#"{{"strobe":{{"by-ms":4000,"every-ms":100{more}}}}}"#);
            serde_json::from_str::<ClockChange>(&text).map_err(|e| e.to_string())
        };
        assert_eq!(read(""), Ok(ClockChange::Strobe { by_ms: 4_000, every_ms: 100 }));
        assert!(read(r#","for-ms":20"#).unwrap_err().contains("unknown field `for-ms`"));
    }

    #[test]
    fn a_change_by_nothing_is_refused() {
        let strobe = ClockChange::Strobe { by_ms: 0, every_ms: 100 };
        for change in [ClockChange::JumpMs(0), ClockChange::DriftPpm(0), strobe] {
            let refused = Clock { clock: WhichClock::Wall, change }.check(Duration::from_secs(1)).unwrap_err();
            assert!(refused.contains("by nothing"), "{refused}");
        }
    }
}
