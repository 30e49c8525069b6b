//! `docs/examples/own_record.py`: a history that another program writes.

use std::{fs, process::Command};

use crate::{
    say::left_out,
    support::{Ran, harness},
};

/// Runs the example and judges its history after a change. `None`: there is no Python here.
fn judged(words: &[&str], change: impl Fn(&mut Vec<&str>)) -> Option<Ran> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples/own_record.py");
    let history = match Command::new("python3").arg(program).args(words).output() {
        Ok(output) => output,
        Err(problem) => {
            assert!(std::env::var_os("CI").is_none(), "python3, which scripts/setup installs: {problem}");
            left_out("no python3 on the path, docs/examples/own_record.py was not run");
            return None;
        }
    };
    assert!(history.status.success(), "{}", String::from_utf8_lossy(&history.stderr));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    let text = String::from_utf8(history.stdout).unwrap();
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    change(&mut lines);
    fs::write(&path, lines.concat()).unwrap();
    Some(Ran::from(harness().arg("check").arg(&path).output().unwrap()))
}

#[test]
fn a_history_of_another_program_is_judged() {
    let Some(right) = judged(&[], |_| ()) else { return };
    let right = right.exits(0);
    assert!(right.stdout.contains("lock            upheld"), "{}", right.stdout);
    let wrong = judged(&["early"], |_| ()).unwrap().exits(1);
    assert!(wrong.stdout.contains("1 lease-overlap window"), "{}", wrong.stdout);
}

#[test]
fn mistakes_get_the_exit_codes_and_the_messages_of_the_page() {
    let Some(exchanged) = judged(&[], |lines| lines.swap(0, 1)) else { return };
    exchanged.exits(64).says(&["the first event is not the plan"]);
    let cut = judged(&[], |lines| {
        let last = lines.last_mut().unwrap();
        *last = last.trim_end();
    });
    let cut = cut.unwrap().exits(2);
    assert!(cut.stdout.contains("the history has no end record"), "{}", cut.stdout);
}
