//! `harness check`: damage is found, and nothing of the run is lost.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{Ran, harness, ran};

/// A simulated run of four seconds with `flags`.
fn simulated(flags: &[&str]) -> tempfile::TempDir {
    let runs = tempfile::tempdir().unwrap();
    let run = ["run", "--cluster", "sim", "--backend", "redis", "--time", "4s", "--seed", "1", "--runs"];
    let output = harness().args(run).arg(runs.path()).args(flags).output().unwrap();
    assert!(Ran::from(output).code.is_some_and(|code| code <= 2));
    runs
}

fn check(dir: &Path, flags: &[&str]) -> Ran {
    Ran::from(harness().arg("check").arg(dir).args(flags).output().unwrap())
}

fn verdict(dir: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(dir.join("verdict.json")).unwrap()).unwrap()
}

#[test]
fn a_damaged_run_gives_no_verdict_and_names_the_line() {
    let runs = simulated(&[]);
    let dir = runs.path().join("latest");
    let history = dir.join("history.jsonl");
    let whole = fs::read_to_string(&history).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let damaged = |lines: &[&str], named: &str| {
        fs::write(&history, lines.concat()).unwrap();
        let ran = check(&dir, &[]).exits(64).says(&[named, "gives no verdict"]);
        assert!(ran.stdout.is_empty(), "{}", ran.stdout);
    };
    damaged(&[&lines[..40], &lines[41..]].concat(), "line 41:");
    damaged(&[&lines[..40], &lines[39..]].concat(), "line 41:");
    let exchanged = [&lines[..40], &[lines[41], lines[40]], &lines[42..]].concat();
    damaged(&exchanged, "line 41:");
    let at = lines[50].rfind("\"at\":").unwrap() + 8;
    let digit = if &lines[50][at..=at] == "1" { "2" } else { "1" };
    let changed = format!("{}{digit}{}", &lines[50][..at], &lines[50][at + 1..]);
    damaged(&[&lines[..50], &[changed.as_str()], &lines[51..]].concat(), "line 51:");
    fs::write(&history, lines[..60].concat() + &lines[60][..20]).unwrap();
    assert!(check(&dir, &[]).exits(2).stdout.contains("not judged to the end"));
}

#[test]
fn an_unknown_schema_field_or_compression_is_refused() {
    let corpus = fs::read_to_string("checker/tests/corpus/none.jsonl").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, text: &[u8], words: &[&str]| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        check(&path, &[]).exits(64).says(words);
    };
    let newer = corpus.replacen("\"schema\":1", "\"schema\":2", 1);
    refused("newer.jsonl", newer.as_bytes(), &["newer.jsonl", "schema", "reads schema 1"]);
    let fancy = corpus.replacen("\"event\":\"acquired\"", "\"event\":\"acquired\",\"fancy\":1", 1);
    refused("fancy.jsonl", fancy.as_bytes(), &["fancy.jsonl", "unknown field `fancy`", "line"]);
    let nobody = corpus.replacen("\"clients_per_worker\":1", "\"clients_per_worker\":0", 1);
    refused("nobody.jsonl", nobody.as_bytes(), &["nobody.jsonl", "clients-per-worker", "outside 1"]);
    refused("history.jsonl.gz", &[0x1f, 0x8b, 8, 0], &["gzip", "gunzip", ".jsonl.zst"]);
    ran(&["check", dir.path().to_str().unwrap()]).exits(64).says(&["history.jsonl.gz", "gunzip"]);
}

#[test]
fn a_run_keeps_its_expectation_when_it_is_judged_again() {
    let runs = simulated(&["--nemesis", "pause", "--expect", "verdict=inconclusive,lock.windows<1000"]);
    let dir = runs.path().join("latest");
    let before = verdict(&dir);
    assert_eq!(before["expect"], "verdict=inconclusive,lock.windows<1000", "{before}");
    let code = check(&dir, &[]).code;
    assert_eq!(verdict(&dir), before);
    assert_eq!(code == Some(0), before["as_expected"] == true);
    check(&dir, &["--expect", "lock.windows>=1000"]);
    assert_eq!(
        (&verdict(&dir)["as_expected"], &verdict(&dir)["expect"]),
        (&false.into(), &"lock.windows>=1000".into())
    );
    assert_ne!(check(&dir, &[]).code, Some(0));
}

#[test]
fn a_recorded_expectation_is_never_refused_when_a_run_is_judged_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy("checker/tests/corpus/kleppmann-pause.jsonl", dir.path().join("history.jsonl")).unwrap();
    // Older versions of the harness took these expectations.
    for (recorded, code) in
        [("verdict=violated", 1), ("lock=violated,off.data=upheld", 1), ("lock=violated,lock.notes>=0", 0)]
    {
        let old = json!({"as_expected": code == 0, "expect": recorded});
        fs::write(dir.path().join("verdict.json"), old.to_string()).unwrap();
        check(dir.path(), &[]).exits(code);
        let new = verdict(dir.path());
        assert_eq!((&new["expect"], &new["as_expected"]), (&old["expect"], &old["as_expected"]));
        check(dir.path(), &["--expect", recorded]).exits(64);
    }
}

#[test]
fn an_expectation_without_its_text_is_never_overwritten() {
    let runs = simulated(&[]);
    let dir = runs.path().join("latest");
    let mut old = verdict(&dir);
    old["as_expected"] = true.into();
    fs::write(dir.join("verdict.json"), old.to_string()).unwrap();
    check(&dir, &[]).says(&["verdict.json", "--expect", "stays as it is"]);
    assert_eq!(verdict(&dir), old);
    check(&dir, &["--expect", "lock=upheld"]);
    assert_eq!(verdict(&dir)["expect"], "lock=upheld");
}

#[test]
fn an_expectation_that_cannot_be_read_is_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy("checker/tests/corpus/kleppmann-pause.jsonl", dir.path().join("history.jsonl")).unwrap();
    // For root no permission is missing, but a link to itself leads nowhere.
    let verdicts = dir.path().join("verdict.json");
    std::os::unix::fs::symlink("verdict.json", &verdicts).unwrap();
    check(dir.path(), &[]).exits(64).says(&["verdict.json", "make it readable, or give --expect"]);
    assert!(verdicts.is_symlink());
    check(dir.path(), &["--expect", "lock=violated"]);
    assert_eq!(verdict(dir.path())["expect"], "lock=violated");
}

#[test]
fn a_directory_that_cannot_be_written_still_gives_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy("checker/tests/corpus/kleppmann-pause.jsonl", dir.path().join("history.jsonl")).unwrap();
    // For root no permission is missing, but a directory cannot be replaced by a file.
    fs::create_dir(dir.path().join("verdict.json")).unwrap();
    let ran = check(dir.path(), &[]).exits(1).says(&["warning", "verdict.json"]);
    assert!(ran.stdout.contains("lock            violated"), "{}", ran.stdout);
}
