//! The offsets of each clock of a rewritten process: pure arithmetic, the same as in the injected code.
//!
//! The shown time is a function of the kernel's time of that clock alone. So a drift and a strobe need no activity of
//! the agent, and a slow clock never goes back: if the kernel's readings are in order, so are the shown times, on every
//! thread.

use history::{ClockChange, WhichClock};

/// The length of a slot.
pub(super) const SLOT_LEN: usize = MARK.len() + 8 + 3 * CLOCK_LEN;

/// The length of the numbers of one clock.
const CLOCK_LEN: usize = 40;

/// Marks the code as the agent's, with its version: another layout gets another mark.
const MARK: [u8; 16] = *b"harness clock 1\0";

/// The largest offset, so that the sum of a reading and an offset does not overflow.
const FARTHEST_NS: i64 = 100 * 365 * 86_400 * 1_000_000_000;

/// One clock: `said + base + (said - since) × rate + strobe`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Clock {
    pub base_ns: i64,
    pub since_ns: i64,
    /// The excess rate, in 2⁻³² parts.
    pub rate: i64,
    /// Added in every other period from `since`, beginning with the first.
    pub strobe_by_ns: i64,
    /// 0: no strobe.
    pub strobe_period_ns: i64,
}

impl Clock {
    /// Returns the shown time for a kernel time.
    pub fn shows_ns(&self, said_ns: i64) -> i64 {
        let passed = said_ns - self.since_ns;
        let strobe = if self.strobe_period_ns != 0 && passed.max(0) / self.strobe_period_ns % 2 == 0 {
            self.strobe_by_ns
        } else {
            0
        };
        (self.steady_ns(said_ns) + strobe).max(0)
    }

    /// Returns the shown time without the strobe.
    fn steady_ns(&self, said_ns: i64) -> i64 {
        let gained = (i128::from(said_ns - self.since_ns) * i128::from(self.rate)) >> 32;
        said_ns + self.base_ns + gained as i64
    }

    /// Continues from the current reading without its strobe; the caller sets rate and strobe.
    fn go_on(&mut self, now_ns: i64) {
        self.base_ns = self.steady_ns(now_ns) - now_ns;
        self.since_ns = now_ns;
    }

    fn drift(&mut self, now_ns: i64, ppm: i32) {
        self.go_on(now_ns);
        self.rate = ((i128::from(ppm) << 32) / 1_000_000) as i64;
    }

    /// Ends a drift without its gain, which is a jump. Earlier jumps stay.
    fn take_drift_back(&mut self, now_ns: i64) {
        (self.since_ns, self.rate) = (now_ns, 0);
    }

    /// Returns whether the clock shows the kernel's time.
    fn is_true(&self) -> bool {
        self.base_ns == 0 && self.rate == 0 && (self.strobe_by_ns == 0 || self.strobe_period_ns == 0)
    }

    pub fn to_bytes(self) -> [u8; CLOCK_LEN] {
        let mut bytes = [0; CLOCK_LEN];
        let numbers = [self.base_ns, self.since_ns, self.rate, self.strobe_by_ns, self.strobe_period_ns];
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Clock {
        let number = |at: usize| i64::from_le_bytes(std::array::from_fn(|i| bytes[at * 8 + i]));
        Clock {
            base_ns: number(0),
            since_ns: number(1),
            rate: number(2),
            strobe_by_ns: number(3),
            strobe_period_ns: number(4),
        }
    }
}

/// The kernel's time of each clock at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Said {
    pub wall_ns: i64,
    pub monotonic_ns: i64,
    pub boottime_ns: i64,
}

/// All clocks of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// The change that made the slot. A process that was forked during a change may have inherited the slot from its
    /// parent.
    pub made_by: u64,
    pub wall: Clock,
    pub monotonic: Clock,
    pub boottime: Clock,
}

impl Slot {
    pub fn to_bytes(self) -> [u8; SLOT_LEN] {
        let mut bytes = [0; SLOT_LEN];
        let made_by = self.made_by.to_le_bytes();
        let parts = [&MARK[..], &made_by, &self.wall.to_bytes(), &self.monotonic.to_bytes(), &self.boottime.to_bytes()];
        bytes.copy_from_slice(&parts.concat());
        bytes
    }

    /// Parses a slot; none if the bytes are not the agent's.
    pub fn from_bytes(bytes: &[u8]) -> Option<Slot> {
        let (made_by, clocks) = bytes.strip_prefix(&MARK)?.split_first_chunk()?;
        let clock = |which: usize| Clock::from_bytes(&clocks[which * CLOCK_LEN..][..CLOCK_LEN]);
        let made_by = u64::from_le_bytes(*made_by);
        Some(Slot { made_by, wall: clock(0), monotonic: clock(1), boottime: clock(2) })
    }

    /// Returns whether every clock shows the kernel's time, so that the code can be removed.
    pub fn is_true(&self) -> bool {
        [self.wall, self.monotonic, self.boottime].iter().all(Clock::is_true)
    }

    /// Returns the slot after a change at `now`, or the reason why the change is impossible.
    pub fn after(mut self, now: Said, which: WhichClock, change: ClockChange) -> Result<Slot, String> {
        allowed(which, change)?;
        let chosen = [
            (which.is_wall(), true, &mut self.wall, now.wall_ns),
            (which.is_monotonic(), false, &mut self.monotonic, now.monotonic_ns),
            (which.is_monotonic(), false, &mut self.boottime, now.boottime_ns),
        ];
        for (_, is_wall, clock, now_ns) in chosen.into_iter().filter(|(chosen, ..)| *chosen) {
            match change {
                ClockChange::JumpMs(by_ms) => clock.base_ns = clock.base_ns.saturating_add(ns(by_ms)),
                ClockChange::DriftPpm(0) if is_wall => clock.take_drift_back(now_ns),
                ClockChange::DriftPpm(ppm) => clock.drift(now_ns, ppm),
                ClockChange::Strobe { by_ms, every_ms } => {
                    clock.go_on(now_ns);
                    (clock.strobe_by_ns, clock.strobe_period_ns) = (ns(by_ms), ns(every_ms as i64));
                }
            }
            if clock.base_ns.saturating_abs() > FARTHEST_NS {
                return Err("a clock can be moved by 100 years at most, all jumps together".into());
            }
        }
        Ok(self)
    }

    /// Returns whether the change undoes an earlier change: a jump that leaves no offset of a wall clock that had one,
    /// or the end of a drift or a strobe. The heal of a fault orders such a change.
    pub fn is_undone_by(&self, which: WhichClock, change: ClockChange) -> bool {
        match change {
            ClockChange::JumpMs(by_ms) => {
                let base_ns = self.wall.base_ns;
                !which.is_monotonic() && base_ns != 0 && base_ns.saturating_add(ns(by_ms)) == 0
            }
            ClockChange::DriftPpm(ppm) => ppm == 0,
            ClockChange::Strobe { by_ms, .. } => by_ms == 0,
        }
    }

    /// Returns the slot after a heal: the wall clock is true, and a monotonic clock runs at the true rate from its
    /// reading.
    pub fn healed(mut self, now: Said) -> Slot {
        self.wall = Clock::default();
        self.monotonic.drift(now.monotonic_ns, 0);
        self.boottime.drift(now.boottime_ns, 0);
        self
    }
}

/// Converts milliseconds to nanoseconds, and stops at the limits of the number.
fn ns(ms: i64) -> i64 {
    ms.saturating_mul(1_000_000)
}

fn allowed(which: WhichClock, change: ClockChange) -> Result<(), String> {
    let no = |why: &str| Err(why.to_owned());
    match change {
        ClockChange::JumpMs(by_ms) if ns(by_ms).saturating_abs() > FARTHEST_NS => no("a jump is 100 years at most"),
        ClockChange::JumpMs(..0) if which.is_monotonic() => {
            no("a monotonic clock never goes back: jump forwards, or move the wall clock alone")
        }
        ClockChange::DriftPpm(ppm) if ppm.unsigned_abs() >= 1_000_000 => {
            no("a drift is less than 1000000 ppm either way: more would stop the clock, or double its rate")
        }
        ClockChange::Strobe { .. } if which.is_monotonic() => {
            no("a strobe goes back and forth, and a monotonic clock never goes back: strobe the wall clock alone")
        }
        ClockChange::Strobe { by_ms, .. } if ns(by_ms).saturating_abs() > FARTHEST_NS => {
            no("a strobe is 100 years at most")
        }
        ClockChange::Strobe { every_ms, .. } if every_ms == 0 || every_ms > (i64::MAX / 1_000_000) as u64 => {
            no("the period of a strobe is at least 1 ms and at most 292 years")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const NOW: Said = Said { wall_ns: 1_700_000_000 * SECOND, monotonic_ns: 500 * SECOND, boottime_ns: 600 * SECOND };

    fn later(by_ns: i64) -> Said {
        Said {
            wall_ns: NOW.wall_ns + by_ns,
            monotonic_ns: NOW.monotonic_ns + by_ns,
            boottime_ns: NOW.boottime_ns + by_ns,
        }
    }

    #[test]
    fn a_jump_there_and_back_leaves_nothing() {
        let jump = |slot: Slot, by_ms| slot.after(NOW, WhichClock::Wall, ClockChange::JumpMs(by_ms)).unwrap();
        let moved = jump(Slot::default(), 20_000);
        assert_eq!(moved.wall.shows_ns(NOW.wall_ns), NOW.wall_ns + 20 * SECOND);
        assert_eq!(moved.monotonic, Clock::default());
        assert!(!moved.is_true());
        assert!(jump(moved, -20_000).is_true());
    }

    #[test]
    fn a_jump_is_undone_only_in_a_slot_that_has_it() {
        let jump = |which, by_ms| Slot::default().after(NOW, which, ClockChange::JumpMs(by_ms)).unwrap();
        let is_undone = |slot: Slot, by_ms| slot.is_undone_by(WhichClock::Wall, ClockChange::JumpMs(by_ms));
        assert!(is_undone(jump(WhichClock::Both, 5_000), -5_000) && is_undone(jump(WhichClock::Wall, -5_000), 5_000));
        assert!(!is_undone(jump(WhichClock::Monotonic, 5_000), -5_000), "a program that started during the wall jump");
        assert!(!is_undone(jump(WhichClock::Wall, 5_000), 5_000) && !is_undone(Slot::default(), -5_000));
    }

    #[test]
    fn a_new_drift_or_strobe_and_a_jump_of_another_clock_undo_nothing() {
        let behind = Slot::default().after(NOW, WhichClock::Wall, ClockChange::JumpMs(-5_000)).unwrap();
        let strobe = |by_ms| ClockChange::Strobe { by_ms, every_ms: 5 };
        for (which, change, undoes) in [
            (WhichClock::Both, ClockChange::DriftPpm(0), true),
            (WhichClock::Both, ClockChange::DriftPpm(1), false),
            (WhichClock::Monotonic, ClockChange::DriftPpm(-500_000), false),
            (WhichClock::Wall, strobe(0), true),
            (WhichClock::Wall, strobe(1), false),
            (WhichClock::Wall, strobe(-3_000), false),
            (WhichClock::Wall, ClockChange::JumpMs(5_000), true),
            (WhichClock::Both, ClockChange::JumpMs(5_000), false),
            (WhichClock::Monotonic, ClockChange::JumpMs(5_000), false),
        ] {
            assert_eq!(behind.is_undone_by(which, change), undoes, "{which:?} {change:?}");
        }
    }

    #[test]
    fn the_end_of_a_drift_sets_the_wall_clock_back_and_never_a_monotonic_one() {
        let ahead = Slot::default().after(NOW, WhichClock::Wall, ClockChange::JumpMs(3_000)).unwrap();
        let fast = ahead.after(NOW, WhichClock::Both, ClockChange::DriftPpm(200_000)).unwrap();
        let then = later(10 * SECOND);
        assert_eq!(fast.monotonic.shows_ns(NOW.monotonic_ns), NOW.monotonic_ns);
        assert!((fast.wall.shows_ns(then.wall_ns) - NOW.wall_ns).abs_diff(15 * SECOND) <= 10);
        let right = fast.after(then, WhichClock::Both, ClockChange::DriftPpm(0)).unwrap();
        for after in [then, later(20 * SECOND)] {
            assert_eq!(
                right.boottime.shows_ns(after.boottime_ns) - after.boottime_ns,
                fast.boottime.shows_ns(then.boottime_ns) - then.boottime_ns
            );
            assert_eq!(right.wall.shows_ns(after.wall_ns) - after.wall_ns, 3 * SECOND, "only the jump is left");
        }
    }

    #[test]
    fn a_slow_clock_never_goes_back() {
        let slow = Slot::default().after(NOW, WhichClock::Monotonic, ClockChange::DriftPpm(-999_999)).unwrap();
        let shown: Vec<i64> = (-5_000..5_000).map(|ns| slow.monotonic.shows_ns(NOW.monotonic_ns + ns * 777)).collect();
        assert!(shown.is_sorted());
    }

    #[test]
    fn a_strobe_begins_moved_and_takes_turns() {
        let strobe = ClockChange::Strobe { by_ms: -3_000, every_ms: 1 };
        let slot = Slot::default().after(NOW, WhichClock::Wall, strobe).unwrap();
        let ahead = |ns| slot.wall.shows_ns(NOW.wall_ns + ns) - NOW.wall_ns - ns;
        assert_eq!(
            [0, 999_999, 1_000_000, 1_999_999, 2_000_000].map(ahead),
            [-3 * SECOND, -3 * SECOND, 0, 0, -3 * SECOND]
        );
    }

    #[test]
    fn healing_makes_the_wall_clock_true_and_leaves_a_monotonic_one_where_it_is() {
        let jump = ClockChange::JumpMs(5_000);
        let slot = Slot::default().after(NOW, WhichClock::Both, jump).unwrap();
        let slot = slot.after(NOW, WhichClock::Both, ClockChange::DriftPpm(-500_000)).unwrap();
        let healed = slot.healed(later(2 * SECOND));
        assert_eq!(healed.wall, Clock::default());
        // `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` change together.
        for clock in [healed.monotonic, healed.boottime] {
            assert_eq!((clock.base_ns, clock.rate), (4 * SECOND, 0));
        }
    }

    #[test]
    fn what_would_take_a_monotonic_clock_back_is_refused() {
        for (which, change) in [
            (WhichClock::Monotonic, ClockChange::JumpMs(-1)),
            (WhichClock::Both, ClockChange::JumpMs(-1)),
            (WhichClock::Both, ClockChange::Strobe { by_ms: 1, every_ms: 1 }),
            (WhichClock::Monotonic, ClockChange::DriftPpm(-1_000_000)),
            (WhichClock::Wall, ClockChange::DriftPpm(1_000_000)),
            (WhichClock::Monotonic, ClockChange::DriftPpm(i32::MIN)),
            (WhichClock::Wall, ClockChange::JumpMs(i64::MIN)),
            (WhichClock::Wall, ClockChange::Strobe { by_ms: 1, every_ms: 0 }),
        ] {
            assert!(Slot::default().after(NOW, which, change).is_err(), "{which:?} {change:?}");
        }
    }

    #[test]
    fn jumps_that_lead_too_far_together_are_refused() {
        let by_ms = FARTHEST_NS / 1_000_000;
        let jump = |slot: Slot, by_ms| slot.after(NOW, WhichClock::Wall, ClockChange::JumpMs(by_ms));
        for far_ms in [by_ms, -by_ms] {
            let far = jump(Slot::default(), far_ms).unwrap();
            assert!(jump(far, far_ms.signum()).unwrap_err().contains("all jumps together"));
            assert!(jump(far, -far_ms).unwrap().is_true());
        }
    }

    #[test]
    fn a_slot_is_read_as_it_was_written_and_nothing_else_is_one() {
        let slot = Slot { made_by: 9, ..Slot::default() };
        let slot = slot.after(NOW, WhichClock::Both, ClockChange::DriftPpm(-7)).unwrap();
        assert_eq!(Slot::from_bytes(&slot.to_bytes()), Some(slot));
        assert_eq!(Slot::from_bytes(&[0; SLOT_LEN]), None);
    }
}
