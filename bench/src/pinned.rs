//! Processes on chosen CPUs.

use anyhow::ensure;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs of a measurement. A server keeps the CPU on which it was started.
pub struct Pins {
    clients: usize,
    servers: usize,
}

impl Pins {
    /// Pins this process to the first CPU that it may use. Its servers run there too, or on the second CPU if they are
    /// to run `apart`.
    ///
    /// # Errors
    /// The system refuses, or there is no second CPU.
    pub fn new(apart: bool) -> anyhow::Result<Pins> {
        let may = sched_getaffinity(Pid::from_raw(0))?;
        let cpus: Vec<usize> = (0..CpuSet::count()).filter(|cpu| may.is_set(*cpu).unwrap_or(false)).collect();
        let servers = usize::from(apart);
        ensure!(servers < cpus.len(), "--apart needs two CPUs, and this process may use {}", cpus.len());
        let pins = Pins { clients: cpus[0], servers: cpus[servers] };
        to(pins.clients)?;
        Ok(pins)
    }

    /// Starts servers on their CPU.
    ///
    /// # Errors
    /// The system refuses, or `start` fails.
    pub fn start<T>(&self, start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        to(self.servers)?;
        let started = start();
        to(self.clients)?;
        started
    }
}

fn to(cpu: usize) -> anyhow::Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}
