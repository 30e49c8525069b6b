//! Ticks every 10 ms, which record stalls, watermarks and clock samples.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use history::{Event, STALL_FROM, StallCause};
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
    let mut last = stamp::now();
    let (mut marked, mut sampled) = (last, None);
    loop {
        let mut ready = ticking.readable().await?;
        // The number of missed ticks does not matter, because the stamps give the length of the gap.
        if ready.try_io(|_| Ok(timer.wait()?)).is_err() {
            continue;
        }
        let now = stamp::now();
        if now.since(last) >= STALL_FROM {
            journal.record(Event::Stall { from: last, to: now, late: StallCause::Tick });
        }
        last = now;
        if now.since(marked) >= WATERMARK {
            journal.record(Event::Watermark);
            marked = now;
        }
        if sampled.is_none_or(|at| now.since(at) >= SAMPLE) {
            journal.record(Event::Clocks {
                wall_ns: stamp::ahead_of_monotonic(libc::CLOCK_REALTIME),
                boot_ns: stamp::ahead_of_monotonic(libc::CLOCK_BOOTTIME),
            });
            sampled = Some(now);
        }
    }
}
