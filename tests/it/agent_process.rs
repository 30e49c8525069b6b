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
