//! `docs/examples/own_record.py`: a history that another program writes.

use std::{fs, process::Command};

use crate::support::{Ran, harness};

/// Runs the example and judges its history. `None`: there is no Python here.
fn judged(words: &[&str]) -> Option<Ran> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples/own_record.py");
    let history = match Command::new("python3").arg(program).args(words).output() {
        Ok(output) => output,
        Err(problem) => {
            assert!(std::env::var_os("CI").is_none(), "python3, which scripts/setup installs: {problem}");
            eprintln!("SKIPPED: no python3 on the path, docs/examples/own_record.py was not run");
            return None;
        }
    };
    assert!(history.status.success(), "{}", String::from_utf8_lossy(&history.stderr));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    fs::write(&path, history.stdout).unwrap();
    Some(Ran::from(harness().arg("check").arg(&path).output().unwrap()))
}

#[test]
fn a_history_of_another_program_is_judged() {
    let Some(right) = judged(&[]) else { return };
    let right = right.exits(0);
    assert!(right.stdout.contains("lock            upheld"), "{}", right.stdout);
    let wrong = judged(&["early"]).unwrap().exits(1);
    assert!(wrong.stdout.contains("1 lease-overlap window"), "{}", wrong.stdout);
}
