//! The process `agent`, outside of a container.

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
    time::Duration,
};

use crate::support::harness;

/// Longer than the time between two watermarks.
const QUIET: Duration = Duration::from_millis(300);

#[test]
fn the_agent_outlives_its_last_event_until_its_input_ends() {
    let mut child = harness().arg("agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    input.write_all(b"{\"command\":\"finish\"}\n").unwrap();
    let mut lines = BufReader::new(output).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("\"event\":\"finished\"")));
    std::thread::sleep(QUIET);
    assert_eq!(child.try_wait().unwrap(), None, "other runs may remove the run now");
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(lines.count(), 0, "the agent has reported something after `finished`");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn stamps_are_right_although_the_clock_of_the_process_has_jumped() {
    use history::{ClockChange::JumpMs, WhichClock};
    use nix::time::{ClockId, clock_gettime};

    let mut child = harness().arg("agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut stamps =
        lines.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap()["at"].as_u64().unwrap());
    let first = stamps.next().unwrap();
    let hour = Duration::from_secs(3_600);
    let mut clocks = agent::clock::Clocks::of(i32::try_from(child.id()).unwrap()).unwrap();
    clocks.change(WhichClock::Monotonic, JumpMs(hour.as_millis() as i64)).unwrap();
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    let now = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
    let later = stamps.find(|at| *at > now).unwrap();
    // The test ends long before an hour.
    assert!(later - first < hour.as_nanos() as u64, "{first} {later}");
    drop(child.stdin.take());
    child.wait().unwrap();
}
