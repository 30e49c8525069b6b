//! `clock`: a clock of the target jumps, or runs at another rate.
//!
//! Possible on lock nodes and workers. Proved by what the target's own process reads. A wall clock is taken back when the fault is healed,
//! which is a jump of its own; a monotonic clock never goes back, so that its offset stays until the process restarts or the run ends.

use std::time::Duration;

use history::{ClockChange, FaultPhase, WhichClock};

use crate::{ClusterError, run::Site};

/// How far what was measured may be from what was asked.
const TOLERANCE_NS: u64 = 5_000_000;

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
    let jumped = site.cluster.clock_ahead_ns(&site.node, shown).await? - before;
    site.let_go().await?;
    site.control.sleep(lasting).await?;
    let drifted = site.cluster.clock_ahead_ns(&site.node, shown).await? - before;
    let to = site.stamp(FaultPhase::HealRequested).await?;
    let back = match change {
        ClockChange::JumpMs(by) if clock.is_wall() => Some((WhichClock::Wall, ClockChange::JumpMs(-by))),
        ClockChange::JumpMs(_) => None,
        ClockChange::DriftPpm(_) => Some((clock, ClockChange::DriftPpm(0))),
    };
    if let Some((clock, change)) = back {
        site.cluster.move_clock(&site.node, clock, change).await?;
    }
    site.stamp(FaultPhase::Healed).await?;

    let (asked, seen) = match change {
        ClockChange::JumpMs(by) => (by * 1_000_000, jumped),
        ClockChange::DriftPpm(ppm) => (to.since(injected).as_micros() as i64 * i64::from(ppm) / 1_000, drifted),
    };
    if seen.abs_diff(asked) <= TOLERANCE_NS {
        site.stamp(FaultPhase::Proved { from, to }).await?;
    } else {
        let why = format!("expected the clock to be moved by {} ms, seen: {} ms", asked / 1_000_000, seen / 1_000_000);
        site.stamp(FaultPhase::Unproved { why }).await?;
    }
    // What a drift has gained stays, and so does what a monotonic clock has: nothing is left to take back.
    let stays = !matches!(change, ClockChange::JumpMs(_)) || !clock.is_wall();
    let after = site.cluster.clock_ahead_ns(&site.node, shown).await?;
    if stays || after.abs_diff(before) <= TOLERANCE_NS {
        site.stamp(FaultPhase::HealProved).await?;
    }
    Ok(())
}
