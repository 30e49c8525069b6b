//! A command with limits of time and memory.

use std::{
    fmt,
    io::Read,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// The time between two looks at a command.
const LOOK: Duration = Duration::from_millis(5);

/// The limits of one judgement.
pub struct Limits {
    pub time: Duration,
    pub memory_mib: u64,
}

/// A process may end between two looks, so less memory than this is not shown.
const SHOWN_FROM_MIB: u64 = 10;

/// How a judgement ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// The record was judged right. The memory is the largest that was seen.
    Judged { time: Duration, memory_mib: u64 },
    /// The time was over.
    TooLong(Duration),
    /// There was no more memory.
    TooMuch(u64),
}

impl Outcome {
    pub fn is_judged(&self) -> bool {
        matches!(self, Outcome::Judged { .. })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Judged { time, memory_mib } if *memory_mib < SHOWN_FROM_MIB => {
                write!(f, "{:.2} s", time.as_secs_f64())
            }
            Outcome::Judged { time, memory_mib } => write!(f, "{:.2} s, {memory_mib} MiB", time.as_secs_f64()),
            Outcome::TooLong(time) => write!(f, "over {} s", time.as_secs()),
            Outcome::TooMuch(memory_mib) => write!(f, "over {memory_mib} MiB"),
        }
    }
}

impl Limits {
    /// Runs a command that judges a correct record.
    ///
    /// # Errors
    /// The command cannot be started, fails, or says anything but `linearizable`.
    pub fn run(&self, command: &mut Command) -> anyhow::Result<Outcome> {
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {command:?}"))?;
        let began = Instant::now();
        let mut most = 0;
        let status = loop {
            most = peak_mib(&child).unwrap_or(0).max(most);
            let time = began.elapsed();
            let is_over = match () {
                () if most > self.memory_mib => Some(Outcome::TooMuch(self.memory_mib)),
                () if time > self.time => Some(Outcome::TooLong(self.time)),
                () => None,
            };
            if let Some(outcome) = is_over {
                child.kill()?;
                child.wait()?;
                return Ok(outcome);
            }
            if let Some(status) = child.try_wait()? {
                break status;
            }
            sleep(LOOK);
        };
        let time = began.elapsed();
        let mut said = String::new();
        child.stdout.take().context("no standard output")?.read_to_string(&mut said)?;
        if !status.success() || said.trim() != "linearizable" {
            bail!("{command:?} ended with {status}, and said {said:?}");
        }
        Ok(Outcome::Judged { time, memory_mib: most })
    }
}

/// The most memory that a process has had in use at once.
fn peak_mib(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()? >> 10)
}
