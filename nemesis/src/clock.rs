//! `clock`: a clock of the target jumps, jumps forth and back repeatedly, or runs at another rate.
//!
//! Clock faults are possible on lock nodes and workers. The proof is the time that the target's own process reads, of a
//! jump at the beginning and at the end of the fault. For a server that reports its time (`TIME` of Redis), the
//! reported time must agree.
//!
//! The heal sets a wall clock right, which is another jump. A monotonic clock never goes back, so its offset stays
//! until the process restarts or the run ends.

use std::time::Duration;

use history::{ClockChange, FaultPhase, WhichClock, fault::Clock};
use rand::Rng;

use crate::{ClusterError, drawing::Drawing, driver::Driver, injection::Injection, spec::TargetSpec};

/// The largest accepted difference between the measured and the planned offset.
const TOLERANCE_NS: i64 = 5_000_000;
/// The time between two readings that show that a drift has ended.
const STEADY: Duration = Duration::from_millis(200);
/// The shortest time between two readings of a strobe.
const LOOK: Duration = Duration::from_millis(5);

/// The offset of a clock from the host's clock, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct ClockReading {
    /// The offset before the server was asked. A drifting clock changes from here to `read_ns`.
    first_ns: i64,
    read_ns: i64,
    /// The least and the largest offset that agree with the server's report.
    told_ns: Option<(i64, i64)>,
}

impl ClockReading {
    async fn of(injection: &Injection<'_>, clock: WhichClock) -> Result<ClockReading, ClusterError> {
        let told_ns = if clock.is_wall() { injection.cluster.told_ahead_ns(&injection.node).await? } else { None };
        let read_ns = injection.cluster.clock_ahead_ns(&injection.node, clock).await?;
        Ok(ClockReading { first_ns: read_ns, read_ns, told_ns })
    }

    async fn of_drifting(injection: &Injection<'_>, clock: WhichClock) -> Result<ClockReading, ClusterError> {
        let first_ns = injection.cluster.clock_ahead_ns(&injection.node, clock).await?;
        Ok(ClockReading { first_ns, ..ClockReading::of(injection, clock).await? })
    }

    /// Returns whether process and server show the offset `ahead_ns`.
    fn is(self, ahead_ns: i64) -> bool {
        self.read_ns.abs_diff(ahead_ns) <= TOLERANCE_NS.unsigned_abs() && self.may_be(ahead_ns)
    }

    /// Returns whether the process shows the offset `ahead_ns` rather than `other_ns`. The tolerance alone does not
    /// tell a small change from none.
    fn is_nearer(self, ahead_ns: i64, other_ns: i64) -> bool {
        self.read_ns.abs_diff(ahead_ns) < self.read_ns.abs_diff(other_ns)
    }

    /// Returns whether the server's report agrees with the offset `ahead_ns` of the last reading. The server reported
    /// its time between the two readings, however far apart they are.
    fn may_be(self, ahead_ns: i64) -> bool {
        let Some((least, most)) = self.told_ns else { return true };
        let first_ns = ahead_ns - (self.read_ns - self.first_ns);
        least - TOLERANCE_NS <= ahead_ns.max(first_ns) && ahead_ns.min(first_ns) <= most + TOLERANCE_NS
    }
}

impl Driver for Clock {
    const DEFAULT_TARGET: TargetSpec = TargetSpec::AnyLockNode;
    const IS_SHARED: bool = true;

    fn draw(drawing: &mut Drawing<'_>) -> (Clock, Duration) {
        let by = drawing.leases_ms(0.8..=2.0) as i64;
        let lasting = drawing.lasting(1.0..=3.0);
        // Only one jump in five is backwards: it makes a lease last longer, which blocks clients but grants no second
        // hold.
        let by = if drawing.rng.random_ratio(1, 5) { -by } else { by };
        (Clock { clock: WhichClock::Wall, change: ClockChange::JumpMs(by) }, lasting)
    }

    async fn inject(&self, injection: &Injection<'_>) -> Result<(), ClusterError> {
        set_clock(injection, self.clock, self.change, injection.step.fault.lasting).await
    }
}

async fn set_clock(
    injection: &Injection<'_>,
    clock: WhichClock,
    change: ClockChange,
    lasting: Duration,
) -> Result<(), ClusterError> {
    let mut before = Vec::new();
    for &one in each(clock) {
        before.push(injection.cluster.clock_ahead_ns(&injection.node, one).await?);
    }
    let from = injection.requested().await?;
    injection.cluster.set_clock(&injection.node, clock, change).await?;
    let injected = injection.stamp(FaultPhase::Injected).await?;
    let missing = match change {
        ClockChange::JumpMs(by) => {
            let seen = readings(injection, clock, change).await?;
            injection.let_go().await?;
            injection.control.sleep(lasting).await?;
            unexpected(&seen, &before, |_| by * 1_000_000)
        }
        ClockChange::Strobe { by_ms, every_ms } => {
            injection.let_go().await?;
            let places = [before[0] + by_ms * 1_000_000, before[0]];
            strobe(injection, places, Duration::from_millis(every_ms), lasting).await?
        }
        ClockChange::DriftPpm(_) => {
            injection.let_go().await?;
            injection.control.sleep(lasting).await?;
            None
        }
    };
    let changed = readings(injection, clock, change).await?;
    let to = injection.stamp(FaultPhase::HealRequested).await?;
    let missing = missing.or_else(|| match change {
        // A process that was started meanwhile has no jump of a monotonic clock.
        ClockChange::JumpMs(by) => unexpected(&changed, &before, |_| by * 1_000_000),
        ClockChange::DriftPpm(ppm) => {
            // The drift began between `from` and `injected`. The clock was read between the end of the sleep and `to`.
            let (least, most) = (lasting.min(to.since(injected)), to.since(from));
            unexpected(&changed, &before, |gained| gained_ns(gained, least, most, ppm))
        }
        ClockChange::Strobe { .. } => None,
    });
    if let Some((clock, change)) = taken_back(clock, change) {
        injection.cluster.set_clock(&injection.node, clock, change).await?;
    }
    injection.cluster.remove_clock_patch(&injection.node).await?;
    injection.stamp(FaultPhase::Healed).await?;

    match missing {
        None => {
            injection.stamp(FaultPhase::Proved { from, to }).await?;
            injection.missed(injected).await?;
        }
        Some(why) => {
            injection.stamp(FaultPhase::Unproved { why }).await?;
        }
    }
    if is_healed(injection, clock, change, (&before[..], &changed[..])).await? {
        injection.stamp(FaultPhase::HealProved).await?;
    }
    Ok(())
}

/// Returns the single clocks of `clock`.
fn each(clock: WhichClock) -> &'static [WhichClock] {
    match clock {
        WhichClock::Wall => &[WhichClock::Wall],
        WhichClock::Monotonic => &[WhichClock::Monotonic],
        WhichClock::Both => &[WhichClock::Wall, WhichClock::Monotonic],
    }
}

/// Reads each clock that `change` changes.
async fn readings(
    injection: &Injection<'_>,
    clock: WhichClock,
    change: ClockChange,
) -> Result<Vec<ClockReading>, ClusterError> {
    let mut readings = Vec::new();
    for &one in each(clock) {
        readings.push(match change {
            ClockChange::DriftPpm(_) => ClockReading::of_drifting(injection, one).await?,
            _ => ClockReading::of(injection, one).await?,
        });
    }
    Ok(readings)
}

/// Returns whether each clock is as the heal must leave it. `before` has the offsets before the fault, in nanoseconds,
/// and `changed` the readings before the heal.
async fn is_healed(
    injection: &Injection<'_>,
    clock: WhichClock,
    change: ClockChange,
    (before, changed): (&[i64], &[ClockReading]),
) -> Result<bool, ClusterError> {
    if let ClockChange::DriftPpm(ppm) = change
        && !is_steady(injection, clock, ppm).await?
    {
        return Ok(false);
    }
    let is_drift = matches!(change, ClockChange::DriftPpm(_));
    for ((&one, before), changed) in each(clock).iter().zip(before).zip(changed) {
        // The offset of a monotonic clock stays: a jump, or the gain of a drift.
        let expected_ns = if one.is_wall() { *before } else { changed.read_ns };
        if one.is_wall() || !is_drift {
            let seen = ClockReading::of(injection, one).await?;
            if !seen.is(expected_ns) || seen.is_nearer(changed.read_ns, expected_ns) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Returns whether each clock that drifted by `ppm` gains no more.
async fn is_steady(injection: &Injection<'_>, clock: WhichClock, ppm: i32) -> Result<bool, ClusterError> {
    let would_gain_ns = STEADY.as_micros() as i64 * i64::from(ppm) / 1_000;
    for &one in each(clock) {
        let first = injection.cluster.clock_ahead_ns(&injection.node, one).await?;
        injection.control.sleep(STEADY).await?;
        let later = injection.cluster.clock_ahead_ns(&injection.node, one).await?;
        if later.abs_diff(first) > would_gain_ns.unsigned_abs() / 2 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the change that heals `change`, if there is one.
fn taken_back(clock: WhichClock, change: ClockChange) -> Option<(WhichClock, ClockChange)> {
    match change {
        ClockChange::JumpMs(by) if clock.is_wall() => Some((WhichClock::Wall, ClockChange::JumpMs(-by))),
        ClockChange::JumpMs(_) => None,
        ClockChange::DriftPpm(_) => Some((clock, ClockChange::DriftPpm(0))),
        ClockChange::Strobe { every_ms, .. } => Some((clock, ClockChange::Strobe { by_ms: 0, every_ms })),
    }
}

/// Returns the gain of a drift that lasted from `least` to `most`: the possible value that is nearest to the seen
/// value.
fn gained_ns(seen_ns: i64, least: Duration, most: Duration, ppm: i32) -> i64 {
    let gained = |of: Duration| of.as_micros() as i64 * i64::from(ppm) / 1_000;
    let (one, other) = (gained(least), gained(most));
    seen_ns.clamp(one.min(other), one.max(other))
}

/// Describes the first clock that did not change by `asked_ns`, which may depend on its change so far.
fn unexpected(seen: &[ClockReading], before: &[i64], asked_ns: impl Fn(i64) -> i64) -> Option<String> {
    let mut clocks = seen.iter().zip(before);
    clocks.find_map(|(seen, before)| expected(*seen, *before, asked_ns(seen.read_ns - before)))
}

/// Describes the reading, if the clock did not change by `asked_ns`.
fn expected(seen: ClockReading, before: i64, asked_ns: i64) -> Option<String> {
    // A change by less than the tolerance is shown with its microseconds.
    let is_small = asked_ns.unsigned_abs() <= TOLERANCE_NS.unsigned_abs();
    let ms = |ns: i64| if is_small { format!("{:.3}", ns as f64 / 1e6) } else { (ns / 1_000_000).to_string() };
    let told = match seen.told_ns {
        Some((least, most)) => {
            format!("; its server reports a time that is {} to {} ms ahead", ms(least - before), ms(most - before))
        }
        None => String::new(),
    };
    let why = || {
        format!("expected the clock to be changed by {} ms, seen: {} ms{told}", ms(asked_ns), ms(seen.read_ns - before))
    };
    let is_shown = seen.is(before + asked_ns) && seen.is_nearer(before + asked_ns, before);
    (!is_shown).then(why)
}

/// Waits for `lasting`, and reads the clock until it was seen at both places: by the process, and by the server if the
/// server reports its time. Describes a place that was not seen. The two readings happen at different times, so each
/// must show both places on its own.
async fn strobe(
    injection: &Injection<'_>,
    places: [i64; 2],
    every: Duration,
    lasting: Duration,
) -> Result<Option<String>, ClusterError> {
    // At two fifths of a period, the clock changes at most once between two readings, and not between all of them.
    let look = (every * 2 / 5).max(LOOK);
    let (mut read, mut told) = ([false; 2], [false; 2]);
    let mut tells = false;
    let mut left = lasting;
    while !left.is_zero() {
        if read != [true; 2] || (tells && told != [true; 2]) {
            let seen = ClockReading::of(injection, WhichClock::Wall).await?;
            tells |= seen.told_ns.is_some();
            for (i, place) in places.into_iter().enumerate() {
                let is_there = seen.read_ns.abs_diff(place) <= TOLERANCE_NS.unsigned_abs();
                read[i] |= is_there && seen.is_nearer(place, places[1 - i]);
                told[i] |= seen.told_ns.is_some() && seen.may_be(place);
            }
        }
        let nap = look.min(left);
        injection.control.sleep(nap).await?;
        left -= nap;
    }
    let missing = |by: &str, seen: [bool; 2]| match seen {
        [true, true] => None,
        [false, _] => Some(format!("expected the clock to jump forth repeatedly; {by} never showed that")),
        [true, false] => Some(format!("expected the clock to jump back repeatedly; {by} never showed that")),
    };
    Ok(missing("its process", read).or_else(|| missing("its server", told).filter(|_| tells)))
}

#[cfg(test)]
mod strobes;

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use history::{Event, Fault, FaultId, Stamp, Step, Target, Until, When};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        LiveView,
        double::{Answers, Double, phase_of},
        driver,
        waits::tests,
    };

    #[test]
    fn the_report_of_a_server_lies_between_two_readings_of_its_clock() {
        let is = |first_ms: i64, read_ms: i64, told_ms: i64| {
            let ns = |ms: i64| ms * 1_000_000;
            let told_ns = Some((ns(told_ms), ns(told_ms)));
            ClockReading { first_ns: ns(first_ms), read_ns: ns(read_ms), told_ns }.is(ns(read_ms))
        };
        // The machine was busy for 130 ms between the report and the last reading, while the clock drifted by a fifth.
        assert!(is(400, 427, 401) && is(-400, -427, -401), "a late reading is no contradiction");
        assert!(!is(400, 427, 390) && !is(400, 427, 437) && !is(-400, -427, -390), "the server reads another clock");
        assert!(is(427, 427, 424) && !is(427, 427, 401), "a clock that stands has no such excuse");
        assert!([395, 405].iter().all(|ms| is(*ms, *ms, 400)) && [394, 406].iter().all(|ms| !is(*ms, *ms, 400)));
    }

    #[test]
    fn both_clocks_must_show_a_jump_of_both() {
        let reading = |ms: i64| ClockReading { first_ns: ms * 1_000_000, read_ns: ms * 1_000_000, told_ns: None };
        let unexpected = |seen: [i64; 2]| unexpected(&seen.map(reading), &[0, 7_000_000], |_| 5_000_000_000);
        assert_eq!(unexpected([5_000, 5_007]), None);
        // The process of the second reading was started during the fault.
        assert!(unexpected([5_000, 0]).is_some_and(|why| why.contains("changed by 5000 ms, seen: -7 ms")));
        assert!(unexpected([0, 5_007]).is_some());
    }

    #[test]
    fn the_gain_of_a_drift_counts_from_the_offset_before_it() {
        // The clock was ahead by 7 s, and gained 400 ms of the 400 to 419 ms that are possible.
        let reading = |ms: i64| ClockReading { first_ns: ms * 1_000_000, read_ns: ms * 1_000_000, told_ns: None };
        let (least, most) = (Duration::from_millis(2_000), Duration::from_millis(2_095));
        let unexpected = |seen_ms| {
            let gained = |gained| gained_ns(gained, least, most, 200_000);
            unexpected(&[reading(seen_ms)], &[7_000_000_000], gained)
        };
        assert_eq!(unexpected(7_400), None);
        assert!(unexpected(7_000).is_some_and(|why| why.contains("changed by 400 ms, seen: 0 ms")));
    }

    #[test]
    fn a_drift_is_proved_by_what_it_can_have_gained_and_by_nothing_else() {
        let (least, most) = (Duration::from_millis(2_000), Duration::from_millis(2_095));
        for (ppm, seen_ms, expected_ms) in [
            (-200_000, -411, -411),
            (-200_000, -300, -400),
            (-200_000, -500, -419),
            (200_000, 405, 405),
            (200_000, 0, 400),
        ] {
            assert_eq!(
                gained_ns(seen_ms * 1_000_000, least, most, ppm),
                expected_ms * 1_000_000,
                "{ppm} ppm, {seen_ms} ms"
            );
        }
    }

    #[test]
    fn a_heal_takes_back_the_jump_of_a_wall_clock_only() {
        let back = Some((WhichClock::Wall, ClockChange::JumpMs(-5_000)));
        for (clock, expected) in [(WhichClock::Wall, back), (WhichClock::Both, back), (WhichClock::Monotonic, None)] {
            assert_eq!(taken_back(clock, ClockChange::JumpMs(5_000)), expected, "{clock:?}");
        }
    }

    /// The effect of a fault and of its heal on a clock.
    #[derive(Clone, Copy, PartialEq)]
    enum Effect {
        AsAsked,
        /// The process restarts during the fault, so its jump is lost.
        Restarts,
        /// The heal of a drift leaves its gain.
        KeepsItsGain,
        /// The heal of a drift does nothing.
        DriftsOn,
    }

    const LASTING: Duration = Duration::from_secs(2);

    /// A clock of redis-1. Time passes only while the fault waits. Notes the calls and the phases of the fault.
    struct Watch {
        effect: Effect,
        /// The time, the offset of the clock, and its drift in ppm.
        now_ns: Mutex<i64>,
        ahead_ns: Mutex<i64>,
        ppm: Mutex<i64>,
        calls: Mutex<Vec<&'static str>>,
        phases: Mutex<Vec<FaultPhase>>,
    }

    impl Answers for Watch {
        fn set_clock(&self, change: ClockChange) {
            self.calls.lock().push("set");
            match change {
                ClockChange::JumpMs(by) => *self.ahead_ns.lock() += by * 1_000_000,
                ClockChange::DriftPpm(0) if self.effect == Effect::DriftsOn => {}
                ClockChange::DriftPpm(0) if self.effect == Effect::KeepsItsGain => *self.ppm.lock() = 0,
                ClockChange::DriftPpm(0) => (*self.ppm.lock(), *self.ahead_ns.lock()) = (0, 0),
                ClockChange::DriftPpm(ppm) => *self.ppm.lock() = i64::from(ppm),
                ClockChange::Strobe { .. } => unreachable!("no test strobes"),
            }
        }

        fn remove_clock_patch(&self) {
            self.calls.lock().push("restore");
        }

        fn clock_ahead_ns(&self) -> i64 {
            *self.ahead_ns.lock()
        }

        fn stamp(&self, event: Event) -> Stamp {
            self.phases.lock().push(phase_of(event));
            Stamp(self.now_ns.lock().unsigned_abs())
        }

        fn sleep(&self, lasting: Duration) {
            let lasting_ns = lasting.as_nanos() as i64;
            *self.now_ns.lock() += lasting_ns;
            *self.ahead_ns.lock() += lasting_ns / 1_000_000 * *self.ppm.lock();
            if self.effect == Effect::Restarts && lasting == LASTING {
                *self.ahead_ns.lock() = 0;
            }
        }
    }

    /// Sets a clock of redis-1. Returns the calls and the phases from the heal on.
    fn moved(clock: WhichClock, change: ClockChange, effect: Effect) -> (Vec<&'static str>, Vec<FaultPhase>) {
        let (target, when) = (Target::Node("redis-1".into()), When::At(Duration::ZERO));
        let step = Step { id: FaultId(1), fault: Fault::new(Clock { clock, change }, LASTING), target, when };
        let plan = tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO)));
        let (now_ns, ahead_ns, ppm, calls, phases) = Default::default();
        let double = Double(Watch { effect, now_ns, ahead_ns, ppm, calls, phases });
        let live_view = LiveView::new();
        block_on(driver::inject(&double.injection(&live_view, &plan, &step, "redis-1".into()))).unwrap();
        let Double(watch) = double;
        let phases = watch.phases.into_inner();
        assert_eq!(phases[1..4], [FaultPhase::Injected, FaultPhase::HealRequested, FaultPhase::Healed]);
        (watch.calls.into_inner(), phases[4..].to_vec())
    }

    fn proved() -> FaultPhase {
        FaultPhase::Proved { from: Stamp(0), to: Stamp(LASTING.as_nanos() as u64) }
    }

    #[test]
    fn a_clock_is_right_before_its_code_is_restored() {
        for change in [ClockChange::JumpMs(5_000), ClockChange::DriftPpm(200_000)] {
            let (calls, phases) = moved(WhichClock::Wall, change, Effect::AsAsked);
            assert_eq!(calls, ["set", "set", "restore"], "{change:?}");
            assert_eq!(phases, [proved(), FaultPhase::HealProved], "{change:?}");
        }
    }

    #[test]
    fn a_jump_that_a_restart_loses_is_not_proved() {
        let (_, phases) = moved(WhichClock::Wall, ClockChange::JumpMs(5_000), Effect::Restarts);
        assert!(matches!(&phases[0], FaultPhase::Unproved { why } if why.contains("seen: 0 ms")), "{phases:?}");
    }

    #[test]
    fn a_change_below_the_tolerance_is_told_from_none() {
        let (jump, drift) = (ClockChange::JumpMs(3), ClockChange::DriftPpm(100));
        for change in [jump, drift] {
            assert_eq!(moved(WhichClock::Wall, change, Effect::AsAsked).1, [proved(), FaultPhase::HealProved]);
            let (_, phases) = moved(WhichClock::Wall, change, Effect::Restarts);
            assert!(matches!(&phases[0], FaultPhase::Unproved { why } if why.contains("seen: 0.000 ms")), "{phases:?}");
        }
        assert_eq!(moved(WhichClock::Wall, drift, Effect::KeepsItsGain).1, [proved()]);
    }

    #[test]
    fn a_drift_that_leaves_something_is_not_proved_healed() {
        let drifted = |clock, effect| moved(clock, ClockChange::DriftPpm(200_000), effect).1;
        assert_eq!(drifted(WhichClock::Wall, Effect::KeepsItsGain), [proved()]);
        assert_eq!(drifted(WhichClock::Monotonic, Effect::KeepsItsGain), [proved(), FaultPhase::HealProved]);
        assert_eq!(drifted(WhichClock::Monotonic, Effect::DriftsOn), [proved()]);
    }
}
