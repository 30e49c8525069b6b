//! Ticks every 10 ms, which record stalls, watermarks and clock samples.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use history::{Event, STALL_FROM, StallCause, Stamp};
use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use tokio::io::unix::AsyncFd;

use super::{journal::Journal, stamp};

/// The time between two ticks.
const TICK: Duration = Duration::from_millis(10);
/// The time between two watermarks.
const WATERMARK: Duration = Duration::from_millis(100);
/// The time between two samples of the kernel's clocks.
const SAMPLE: Duration = Duration::from_secs(1);

/// Ticks until dropped; returns only after an error. The timer is the kernel's (`timerfd` on `CLOCK_MONOTONIC`), which
/// no clock fault changes.
pub async fn tick(journal: Arc<Journal>) -> std::io::Error {
    match ticking(&journal).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

#[allow(unsafe_code)]
async fn ticking(journal: &Journal) -> std::io::Result<std::convert::Infallible> {
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
    timer.set(Expiration::Interval(TimeSpec::from_duration(TICK)), TimerSetTimeFlags::empty())?;
    // SAFETY: `timer` owns the descriptor, is neither moved nor closed below, and outlives `ticking`.
    let ticking = unsafe { AsyncFd::register(timer.as_fd()) }?;
    let mut ticks = Ticks::new(stamp::now());
    loop {
        let mut ready = ticking.readable().await?;
        // The number of missed ticks does not matter, because the stamps give the length of the gap.
        if ready.try_io(|_| Ok(timer.wait()?)).is_err() {
            continue;
        }
        let now = stamp::now();
        let Due { late_since, watermark, sample } = ticks.due(now);
        if let Some(from) = late_since {
            journal.record(Event::Stall { from, to: now, late: StallCause::Tick });
        }
        if watermark {
            journal.record(Event::Watermark);
        }
        if sample {
            journal.record(Event::Clocks {
                wall_ns: stamp::ahead_of_monotonic(libc::CLOCK_REALTIME),
                boot_ns: stamp::ahead_of_monotonic(libc::CLOCK_BOOTTIME),
            });
        }
    }
}

/// The last ticks that recorded something.
struct Ticks {
    last: Stamp,
    marked: Stamp,
    sampled: Option<Stamp>,
}

/// The events that a tick records.
struct Due {
    /// The tick before, if this one comes late.
    late_since: Option<Stamp>,
    watermark: bool,
    sample: bool,
}

impl Ticks {
    fn new(now: Stamp) -> Ticks {
        Ticks { last: now, marked: now, sampled: None }
    }

    fn due(&mut self, now: Stamp) -> Due {
        let last = std::mem::replace(&mut self.last, now);
        let due = Due {
            late_since: (now.since(last) >= STALL_FROM).then_some(last),
            watermark: now.since(self.marked) >= WATERMARK,
            sample: self.sampled.is_none_or(|at| now.since(at) >= SAMPLE),
        };
        if due.watermark {
            self.marked = now;
        }
        if due.sample {
            self.sampled = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ticks at these times in milliseconds that record what `is_it` says.
    fn those(at: impl Iterator<Item = u64>, is_it: fn(&Due) -> bool) -> Vec<u64> {
        let mut ticks = Ticks::new(Stamp(0));
        at.filter(|ms| is_it(&ticks.due(Stamp(ms * 1_000_000)))).collect()
    }

    #[test]
    fn a_tick_that_is_late_by_the_shortest_stall_is_recorded() {
        assert_eq!(those([10, 39, 69, 80, 400].into_iter(), |due| due.late_since.is_some()), [69, 400]);
        let mut ticks = Ticks::new(Stamp(5));
        assert_eq!(ticks.due(Stamp(90_000_005)).late_since, Some(Stamp(5)));
    }

    #[test]
    fn watermarks_and_samples_come_again_and_again() {
        let at = (10..=2_500).step_by(10);
        assert_eq!(those(at.clone(), |due| due.sample), [10, 1_010, 2_010]);
        assert_eq!(those(at.clone(), |due| due.watermark).len(), 25);
        assert!(those(at, |due| due.late_since.is_some()).is_empty());
    }
}
