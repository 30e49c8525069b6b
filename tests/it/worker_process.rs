//! The process `worker`, outside of a container.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::Stdio,
};

use serde_json::{Value, json};

use crate::support::{harness, ran};

/// The plan of a run in the simulation, as the first record of its history has it.
fn plan() -> Value {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["run", "--cluster", "sim", "--backend", "redis", "--time", "1s", "--seed", "1000", "--runs"];
    ran(&[&flags[..], &[dir.path().to_str().unwrap()]].concat());
    let history = fs::read_to_string(dir.path().join("latest/history.jsonl")).unwrap();
    let first: Value = serde_json::from_str(history.lines().next().unwrap()).unwrap();
    first["plan"].clone()
}

#[test]
fn a_worker_that_connects_ends_with_its_input() {
    // The kernel accepts each connection, and no server answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let configure = json!({
        "command": "configure",
        "process": 0,
        "first_client": 0,
        "plan": plan(),
        "backend": "redis",
        "lock_nodes": [["redis-1", silent.local_addr().unwrap().to_string()]],
        "resource": "http://127.0.0.1:1",
    });
    let mut child = harness().arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    writeln!(input, "{configure}").unwrap();
    drop(input);
    let lines: Vec<String> = BufReader::new(output).lines().map(Result::unwrap).collect();
    // A worker that went on would end with the failure to connect.
    assert_eq!(child.wait().unwrap().code(), Some(0), "{lines:#?}");
}
