//! A worker that only reports.

use std::{
    io::{Write, stdin, stdout},
    thread::sleep,
    time::{Duration, Instant},
};

use harness_bench::record;
use history::{Report, Stamp};
use nix::time::{ClockId, clock_gettime};

/// Waits for a line of standard input, then reports `events` events: each is made into a line anew, and is one write.
/// `rate` events fall due in a second; 0 means at once.
pub fn flood(events: u64, rate: u64) -> anyhow::Result<()> {
    stdin().read_line(&mut String::new())?;
    let section = record::section();
    let (mut out, mut line, began) = (stdout().lock(), Vec::new(), Instant::now());
    for n in 0..events {
        if rate > 0 {
            // Late events follow at once: the offered rate does not depend on the recorder.
            let due = Duration::from_secs_f64(n as f64 / rate as f64);
            let early = due.saturating_sub(began.elapsed());
            if early >= Duration::from_millis(1) {
                sleep(early);
            }
        }
        let event = &section[(n % section.len() as u64) as usize];
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let at = Stamp(Duration::from(now).as_nanos() as u64);
        line.clear();
        serde_json::to_writer(&mut line, &Report { n, at, event })?;
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()?;
    }
    Ok(())
}

/// The average length of an event's line.
pub fn bytes_of_event() -> anyhow::Result<usize> {
    let section = record::section();
    let at = Stamp(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos() as u64);
    let mut bytes = Vec::new();
    for event in &section {
        serde_json::to_writer(&mut bytes, &Report { n: 1_000_000, at, event })?;
        bytes.push(b'\n');
    }
    Ok(bytes.len() / section.len())
}
