//! The clock of a real process.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::ports::{Clock, Reply};

/// The longest time that a sleep goes without reading the clock. Timers stop while the machine is suspended, and they
/// do not follow a clock that was set, so only reading the clock again helps.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Sleeps until a clock shows `at`. The timer goes by another clock, so it may be early.
fn sleep_until(clock: impl Clock + 'static, at: Duration) -> Reply<()> {
    Box::pin(async move {
        while let Some(left) = at.checked_sub(clock.now()).filter(|left| !left.is_zero()) {
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    })
}

/// The clock `CLOCK_BOOTTIME`, which continues while the machine is suspended, as a lease does.
///
/// This clock is read through libc, and so through the vDSO, on purpose: a clock fault of this process must affect the
/// deadlines that the process computes. Sleeping needs a Tokio runtime with timers.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        // The call fails only for a clock that the kernel does not have. This clock came with Linux 2.6.39.
        clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has CLOCK_BOOTTIME").into()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        sleep_until(BootClock, at)
    }

    #[cfg(feature = "planted")]
    fn wall(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_REALTIME).expect("the kernel has CLOCK_REALTIME").into()
    }
}

/// The clock `CLOCK_MONOTONIC_RAW`, which no clock fault changes: for waits that are no deadlines of a lock. Sleeping
/// needs a Tokio runtime with timers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawClock;

impl Clock for RawClock {
    fn now(&self) -> Duration {
        // The call fails only for a clock that the kernel does not have. This clock came with Linux 2.6.28.
        clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).expect("the kernel has CLOCK_MONOTONIC_RAW").into()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        sleep_until(RawClock, at)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_sleep_is_never_over_before_its_time() {
        let at = BootClock.now() + Duration::from_millis(3);
        BootClock.sleep_until(at).await;
        assert!(BootClock.now() >= at);
        let at = RawClock.now() + Duration::from_millis(3);
        RawClock.sleep_until(at).await;
        assert!(RawClock.now() >= at);
    }

    /// Tokio's time passes at once here, and the clock does not change. So a sleep that looked only at its end would
    /// not look before.
    #[tokio::test(start_paused = true)]
    async fn a_long_sleep_looks_at_the_clock_again_and_again() {
        let (mut sleep, mut looks) = (BootClock.sleep_until(BootClock.now() + Duration::from_secs(3_600)), 0);
        let looking = poll_fn(|cx| {
            looks += 1;
            sleep.as_mut().poll(cx)
        });
        assert!(tokio::time::timeout(Duration::from_secs(1), looking).await.is_err());
        assert!(looks >= 5, "{looks} looks in a second");
    }

    #[test]
    fn a_deadline_that_has_passed_is_not_slept_for() {
        let mut sleep = BootClock.sleep_until(BootClock.now());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(sleep.as_mut().poll(&mut cx).is_ready());
    }
}
