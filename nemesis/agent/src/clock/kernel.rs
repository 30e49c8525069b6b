//! The kernel's own clocks, by the raw system call.

use std::time::Duration;

use super::slot::Said;
use crate::stamp::read_ns;

/// Reads `CLOCK_MONOTONIC` in nanoseconds.
pub(super) fn monotonic_ns() -> i64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Reads all clocks: the closest of a few readings of all three, so that clocks that drift together stay together.
pub(super) fn now() -> Said {
    let read = || {
        let monotonic_ns = read_ns(libc::CLOCK_MONOTONIC);
        let [wall_ns, boottime_ns] = [libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME].map(read_ns);
        (read_ns(libc::CLOCK_MONOTONIC) - monotonic_ns, Said { wall_ns, monotonic_ns, boottime_ns })
    };
    let mut closest = read();
    for _ in 0..8 {
        let another = read();
        if another.0 < closest.0 {
            closest = another;
        }
    }
    closest.1
}

/// Waits until the coarse clock, which lags by up to a tick, has passed this time: no later reading of either clock is
/// before it.
pub(super) fn until_coarse(monotonic_ns: i64) {
    while read_ns(libc::CLOCK_MONOTONIC_COARSE) < monotonic_ns {
        std::thread::sleep(Duration::from_micros(100));
    }
}
