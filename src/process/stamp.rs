//! Stamps: the one clock of a run, read by the raw system call.

use history::Stamp;

/// Reads `CLOCK_MONOTONIC`, never through the vDSO, because a clock fault rewrites the vDSO.
pub fn now() -> Stamp {
    let (seconds, nanoseconds) = clock(libc::CLOCK_MONOTONIC);
    Stamp(seconds as u64 * 1_000_000_000 + nanoseconds as u64)
}

/// Reads the difference of a kernel clock and `CLOCK_MONOTONIC`, in nanoseconds. The time between the two readings
/// makes the difference too large, so the smallest of three counts.
pub fn ahead_of_monotonic(clock_id: libc::clockid_t) -> i64 {
    let nanoseconds = |id| {
        let (s, n) = clock(id);
        s * 1_000_000_000 + n
    };
    (0..3).map(|_| -nanoseconds(libc::CLOCK_MONOTONIC) + nanoseconds(clock_id)).min().unwrap_or_default()
}

#[allow(unsafe_code)]
fn clock(id: libc::clockid_t) -> (i64, i64) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to the address of a live one.
    let failed = unsafe { libc::syscall(libc::SYS_clock_gettime, id, &raw mut time) };
    assert_eq!(failed, 0, "clock_gettime({id}) cannot fail for a clock that every Linux has");
    (time.tv_sec, time.tv_nsec)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_raw_call_and_the_usual_one_read_the_same_clock() {
        let before = super::now();
        let usual = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        let usual = usual.tv_sec() as u64 * 1_000_000_000 + usual.tv_nsec() as u64;
        assert!(before.0 <= usual && usual <= super::now().0);
    }
}
