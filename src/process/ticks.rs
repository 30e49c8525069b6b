//! Ticks every 10 ms: stalls, watermarks, clock samples.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use history::{Event, StallCause};
use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use tokio::io::unix::AsyncFd;

use super::{journal::Journal, stamp};

/// Between two ticks.
const TICK: Duration = Duration::from_millis(10);
/// A gap of this length is a stall. Shorter ones are the scheduler at work, on any machine that is not idle.
pub const STALL_FROM: Duration = Duration::from_millis(30);
/// Between two watermarks.
const WATERMARK: Duration = Duration::from_millis(100);
/// Between two samples of the kernel's clocks.
const SAMPLE: Duration = Duration::from_secs(1);

/// Ticks until dropped; returns only if it cannot. A timer of the kernel (`timerfd` on `CLOCK_MONOTONIC`), so that no clock fault reaches it.
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
    // SAFETY: `timer` owns the descriptor, is neither moved nor closed below, and outlives `ticking`, which is dropped first.
    let ticking = unsafe { AsyncFd::register(timer.as_fd()) }?;
    let mut last = stamp::now();
    let (mut marked, mut sampled) = (last, None);
    loop {
        let mut ready = ticking.readable().await?;
        // How many ticks have passed unseen does not matter: the stamps say how long.
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
