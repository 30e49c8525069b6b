//! Stands in for the harness's own processes in tests of this crate on a real engine.
//!
//! `echo` prints `tick NUMBER MILLISECONDS` every 10 ms by its own clock, prints `echo LINE` for every line of its
//! input, and exits at the end of its input. `flood` writes numbered lines as fast as possible, and after each line
//! writes its number into the file `/written`. `fail` exits with code 3.

use std::{
    io::{BufRead, Write},
    os::unix::fs::FileExt,
    process::exit,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("echo") => {
            std::thread::spawn(tick);
            for line in std::io::stdin().lock().lines() {
                say(&format!("echo {}", line?));
            }
            Ok(())
        }
        Some("flood") => {
            let written = std::fs::File::create("/written")?;
            for number in 0u64.. {
                say(&format!("line {number}"));
                written.write_all_at(&number.to_le_bytes(), 0)?;
            }
            Ok(())
        }
        _ => {
            eprintln!("this is how it fails");
            exit(3)
        }
    }
}

fn tick() {
    for number in 0u64.. {
        let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { exit(4) };
        say(&format!("tick {number} {}", now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Each line is one write, so that a written line is whole.
fn say(line: &str) {
    if std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).is_err() {
        exit(5);
    }
}
