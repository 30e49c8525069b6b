//! The kernel's clocks by the raw system call, because a clock fault rewrites the vDSO.

/// Reads `CLOCK_MONOTONIC` in nanoseconds: the one clock of all containers of a machine.
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC) as u64
}

/// Reads a clock in nanoseconds.
#[allow(unsafe_code)]
pub(crate) fn read_ns(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to the address of a live one.
    let failed = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    assert_eq!(failed, 0, "every Linux has clock {clock}");
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
