//! Faults that nobody planned, on real servers: done by hand, with the engine's own commands.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::support::{container, docker, harness, left_of, may_sweep};

/// Tenths of a second that a run may take until its clients work, on a machine that is busy.
const LOOKS: u32 = 1_200;

/// Waits until a hold was acquired, and returns the run's id.
fn works(runs: &Path) -> String {
    for _ in 0..LOOKS {
        if let Ok(dir) = runs.join("latest").canonicalize()
            && std::fs::read_to_string(dir.join("history.jsonl")).is_ok_and(|text| text.contains("\"acquired\""))
        {
            return dir.file_name().unwrap().to_str().unwrap().to_owned();
        }
        sleep(Duration::from_millis(100));
    }
    panic!("no hold was acquired")
}

/// Waits until the history has this phase of a fault of the node. The end of the run is the limit.
fn until(run: &mut Child, runs: &Path, node: &str, phase: &str) {
    let words = [r#""event":"fault""#.to_owned(), format!(r#""node":"{node}""#), format!(r#""phase":"{phase}""#)];
    let is_it = |line: &str| words.iter().all(|word| line.contains(word));
    let has_come = || {
        let history = std::fs::read_to_string(runs.join("latest/history.jsonl"));
        history.is_ok_and(|text| text.lines().any(is_it))
    };
    while !has_come() {
        assert_eq!(run.try_wait().unwrap(), None, "the run has ended, and no fault of {node} was {phase}");
        sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn whatever_nobody_planned_is_recorded_and_spoils_a_control_run() {
    let dir = tempfile::tempdir().unwrap();
    let _guard = may_sweep();
    let flags = ["run", "--cluster", "docker", "--backend", "redlock", "--nemesis", "none", "--time", "35s"];
    let mut command = harness();
    // With a lease of 8 s, a stall of the machine is no reason for a stale holder.
    command.args(flags).args(["--lease", "8s", "--seed", "1000", "--runs"]).arg(dir.path());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let run = works(dir.path());
    // The harness looks for stops and packet rules once a second, and less often on a busy machine. So each fault
    // lasts until the history has it.
    let mut until = |node, phase| until(&mut child, dir.path(), node, phase);
    let network = docker(&["network", "ls", "-q", "--filter", &format!("label=harness.run={run}")]);
    let stopped = docker(&["inspect", "--format", "{{.State.Pid}}", &container(&run, "redis-4")]);
    let stopped = Pid::from_raw(stopped.trim().parse().unwrap());
    kill(stopped, Signal::SIGSTOP).unwrap();
    until("redis-4", "unplanned");
    kill(stopped, Signal::SIGCONT).unwrap();
    until("redis-4", "unplanned-over");
    let filtered = docker(&["inspect", "--format", "{{.State.Pid}}", &container(&run, "redis-3")]);
    let rules = |words: &str| {
        let command = ["-t", filtered.trim(), "-n", "nft"];
        assert!(Command::new("nsenter").args(command).args(words.split(' ')).status().unwrap().success(), "{words}");
    };
    rules("add table ip somebody");
    rules("add chain ip somebody in { type filter hook input priority 0 ; policy drop ; }");
    until("redis-3", "unplanned");
    rules("delete table ip somebody");
    until("redis-3", "unplanned-over");
    docker(&["restart", "-t", "0", &container(&run, "redis-1")]);
    until("redis-1", "unplanned-over");
    let second = container(&run, "redis-2");
    docker(&["pause", &second]);
    until("redis-2", "unplanned");
    docker(&["unpause", &second]);
    until("redis-2", "unplanned-over");
    docker(&["network", "disconnect", "-f", &network, &container(&run, "worker-2")]);
    until("worker-2", "unplanned");
    docker(&["rm", "-f", &container(&run, "redis-5")]);
    until("redis-5", "unplanned");
    assert_eq!(child.wait().unwrap().code(), Some(2));

    let run_dir = dir.path().join("latest").canonicalize().unwrap();
    assert_eq!(left_of(&run_dir), Vec::<String>::new());
    let verdict: Value = serde_json::from_str(&std::fs::read_to_string(run_dir.join("verdict.json")).unwrap()).unwrap();
    assert_eq!(verdict["verdict"], "inconclusive");
    let found = verdict["facts"]["unplanned_faults"].as_array().unwrap();
    let found: Vec<_> =
        found.iter().map(|fault| (fault["kind"].as_str(), fault["node"].as_str(), fault["to_ms"].is_null())).collect();
    // The faults are in the order in which the harness has seen them.
    let wanted = [
        ("stop", "redis-4", false),
        ("partition", "redis-3", false),
        ("kill", "redis-1", false),
        ("pause", "redis-2", false),
        ("partition", "worker-2", true),
        ("kill", "redis-5", true),
    ];
    assert_eq!(found, wanted.map(|(kind, node, lasts)| (Some(kind), Some(node), lasts)));
}
