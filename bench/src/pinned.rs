//! A process on one CPU.

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Pins this process, and the servers that it starts, to the first CPU that it may use.
///
/// # Errors
/// The system refuses.
pub fn to_one_cpu() -> anyhow::Result<()> {
    let may = sched_getaffinity(Pid::from_raw(0))?;
    let first = (0..CpuSet::count()).find(|cpu| may.is_set(*cpu).unwrap_or(false)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(first)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}
