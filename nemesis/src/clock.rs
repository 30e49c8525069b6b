//! `clock`: a clock of the target jumps, jumps there and back again and again, or runs at another rate.
//!
//! Possible on lock nodes and workers. Proved by what the target's own process reads, and where a server tells the time when it is asked for it (`TIME` of
//! Redis) by that as well. A wall clock is taken back when the fault is healed, which is a jump of its own; a monotonic clock never goes back, so that
//! its offset stays until the process restarts or the run ends.

use std::time::Duration;

use history::{ClockChange, FaultPhase, WhichClock};

use crate::{ClusterError, run::Site};

/// How far what was measured may be from what was asked.
const TOLERANCE_NS: i64 = 5_000_000;
/// A server is asked so long before the memory of its process is read, as a rule at most: by then a clock that drifts shows something else.
const ASKED_BEFORE: Duration = Duration::from_millis(100);
/// Between two looks at a strobe at least.
const LOOK: Duration = Duration::from_millis(5);

/// How far a clock is ahead, as its process reads it and as its server says. Nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Seen {
    read_ns: i64,
    /// At least, and at most.
    told_ns: Option<(i64, i64)>,
}

impl Seen {
    async fn of(site: &Site<'_>, clock: WhichClock) -> Result<Seen, ClusterError> {
        let told_ns = if clock.is_wall() { site.cluster.told_ahead_ns(&site.node).await? } else { None };
        let read_ns = site.cluster.clock_ahead_ns(&site.node, clock).await?;
        Ok(Seen { read_ns, told_ns })
    }

    /// Whether it is so far ahead, if it drifts at this rate.
    fn is(self, ahead_ns: i64, ppm: i32) -> bool {
        self.read_ns.abs_diff(ahead_ns) <= TOLERANCE_NS.unsigned_abs() && self.may_be(ahead_ns, ppm)
    }

    /// Whether the server's own word leaves that open.
    fn may_be(self, ahead_ns: i64, ppm: i32) -> bool {
        let Some((least, most)) = self.told_ns else { return true };
        let slack = TOLERANCE_NS + ASKED_BEFORE.as_micros() as i64 * i64::from(ppm.unsigned_abs()) / 1_000;
        least - slack <= ahead_ns && ahead_ns <= most + slack
    }
}

pub(crate) async fn clock(
    site: &Site<'_>,
    clock: WhichClock,
    change: ClockChange,
    lasting: Duration,
) -> Result<(), ClusterError> {
    let shown = if clock.is_wall() { WhichClock::Wall } else { WhichClock::Monotonic };
    let before = site.cluster.clock_ahead_ns(&site.node, shown).await?;
    let from = site.requested().await?;
    site.cluster.move_clock(&site.node, clock, change).await?;
    let injected = site.stamp(FaultPhase::Injected).await?;
    let missing = match change {
        ClockChange::JumpMs(by) => {
            let seen = Seen::of(site, shown).await?;
            site.let_go().await?;
            site.control.sleep(lasting).await?;
            expected(seen, before, by * 1_000_000, 0)
        }
        ClockChange::Strobe { by_ms, every_ms } => {
            site.let_go().await?;
            let places = [before + by_ms * 1_000_000, before];
            strobe(site, places, Duration::from_millis(every_ms), lasting).await?
        }
        ClockChange::DriftPpm(_) => {
            site.let_go().await?;
            site.control.sleep(lasting).await?;
            None
        }
    };
    let drifted = Seen::of(site, shown).await?;
    let to = site.stamp(FaultPhase::HealRequested).await?;
    let missing = match change {
        ClockChange::DriftPpm(ppm) => {
            // It began at some instant between these two, and was read at one between the end of the sleep and this stamp.
            let (least, most) = (lasting.min(to.since(injected)), to.since(from));
            expected(drifted, before, gained_ns(drifted.read_ns - before, least, most, ppm), ppm)
        }
        _ => missing,
    };
    if let Some((clock, change)) = taken_back(clock, change) {
        site.cluster.move_clock(&site.node, clock, change).await?;
    }
    site.cluster.settle_clocks(&site.node).await?;
    site.stamp(FaultPhase::Healed).await?;

    match missing {
        None => site.stamp(FaultPhase::Proved { from, to }).await?,
        Some(why) => site.stamp(FaultPhase::Unproved { why }).await?,
    };
    // What a drift has gained stays, and so does what a monotonic clock has: nothing is left to take back.
    let stays = matches!(change, ClockChange::DriftPpm(_)) || !clock.is_wall();
    if stays || Seen::of(site, shown).await?.is(before, 0) {
        site.stamp(FaultPhase::HealProved).await?;
    }
    Ok(())
}

/// What heals a change.
fn taken_back(clock: WhichClock, change: ClockChange) -> Option<(WhichClock, ClockChange)> {
    match change {
        ClockChange::JumpMs(by) if clock.is_wall() => Some((WhichClock::Wall, ClockChange::JumpMs(-by))),
        ClockChange::JumpMs(_) => None,
        ClockChange::DriftPpm(_) => Some((clock, ClockChange::DriftPpm(0))),
        ClockChange::Strobe { every_ms, .. } => Some((clock, ClockChange::Strobe { by_ms: 0, every_ms })),
    }
}

/// What a drift has gained that was on for so long, at least and at most: what is nearest to what was seen.
fn gained_ns(seen_ns: i64, least: Duration, most: Duration, ppm: i32) -> i64 {
    let gained = |of: Duration| of.as_micros() as i64 * i64::from(ppm) / 1_000;
    let (one, other) = (gained(least), gained(most));
    seen_ns.clamp(one.min(other), one.max(other))
}

/// Says what was seen, if the clock was not moved by so much.
fn expected(seen: Seen, before: i64, asked_ns: i64, ppm: i32) -> Option<String> {
    let ms = |ns: i64| ns / 1_000_000;
    let told = match seen.told_ns {
        Some((least, most)) => {
            format!("; its server tells a time that is {} to {} ms ahead", ms(least - before), ms(most - before))
        }
        None => String::new(),
    };
    let why = || {
        format!("expected the clock to be moved by {} ms, seen: {} ms{told}", ms(asked_ns), ms(seen.read_ns - before))
    };
    (!seen.is(before + asked_ns, ppm)).then(why)
}

/// Lets the fault last, and looks meanwhile until the clock was seen at each of both places: told by the server too, if it tells. Says what was not
/// seen. Memory is read at one instant and the server asked at another, so they are taken by themselves.
async fn strobe(
    site: &Site<'_>,
    places: [i64; 2],
    every: Duration,
    lasting: Duration,
) -> Result<Option<String>, ClusterError> {
    // Between any two looks it stays or changes once, and not the same each time.
    let look = (every * 2 / 5).max(LOOK);
    let (mut read, mut told) = ([false; 2], [false; 2]);
    let mut tells = false;
    let mut left = lasting;
    while !left.is_zero() {
        if read != [true; 2] || (tells && told != [true; 2]) {
            let seen = Seen::of(site, WhichClock::Wall).await?;
            tells |= seen.told_ns.is_some();
            for (i, place) in places.into_iter().enumerate() {
                read[i] |= seen.read_ns.abs_diff(place) <= TOLERANCE_NS.unsigned_abs();
                told[i] |= seen.told_ns.is_some() && seen.may_be(place, 0);
            }
        }
        let nap = look.min(left);
        site.control.sleep(nap).await?;
        left -= nap;
    }
    let missing = |by: &str, seen: [bool; 2]| match seen {
        [true, true] => None,
        [false, _] => Some(format!("expected the clock to be there now and then; by {by} it never was")),
        [true, false] => Some(format!("expected the clock to be back now and then; by {by} it never was")),
    };
    Ok(missing("what its process reads", read).or_else(|| missing("what its server tells", told).filter(|_| tells)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
