//! `harness compare`: a difference is shown with its interval, and nothing is claimed that the runs cannot show.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ran, harness, ran};

/// Makes a simulated run of each seed.
fn runs(nemesis: &str, seeds: std::ops::Range<u32>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for seed in seeds {
        let seed = seed.to_string();
        let flags = ["--nemesis", nemesis, "--cluster", "sim", "--seed", &seed, "--time", "15s"];
        let made = harness().arg("run").args(flags).arg("--runs").arg(dir.path()).output().unwrap();
        assert!(matches!(made.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&made.stderr));
    }
    dir
}

fn move_runs(from: &TempDir, to: &TempDir) {
    for run in fs::read_dir(from.path()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| !path.is_symlink()) {
        fs::rename(&run, to.path().join(run.file_name().unwrap())).unwrap();
    }
}

fn compare(a: &Path, b: &Path, args: &[&str]) -> Ran {
    harness().arg("compare").args([a, b]).args(args).output().unwrap().into()
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find(|line| line.trim_start().starts_with(name));
    found.unwrap_or_else(|| panic!("no line {name} in:\n{text}"))
}

#[test]
fn runs_with_pauses_have_more_windows_than_runs_without() {
    let (with, without) = (runs("pause", 0..8), runs("none", 0..8));
    let text = compare(with.path(), without.path(), &[]).exits(0).stdout;
    assert!(line(&text, "A:").contains("pause") && line(&text, "B:").contains("no faults"), "{text}");
    let locks = line(&text, "lock violated");
    assert!(locks.contains("8 of 8") && locks.contains("0 of 8") && locks.ends_with("B is smaller"), "{text}");
    assert!(line(&text, "windows").ends_with("B is smaller"), "{text}");
    assert!(line(&text, "longest staleness").ends_with("8 and 0 runs are too few for an interval"), "{text}");
}

#[test]
fn other_seeds_of_one_scenario_do_not_differ() {
    let (one, other) = (runs("pause", 0..5), runs("pause", 5..10));
    let text = compare(one.path(), other.path(), &[]).exits(0).stdout;
    for name in ["lock violated", "windows", "time to acquire, p50"] {
        assert!(line(&text, name).ends_with("no difference that 5 and 5 runs can show"), "{text}");
    }
}

#[test]
fn three_runs_are_too_few_for_an_interval() {
    let (one, other) = (runs("pause", 0..3), runs("none", 0..3));
    let text = compare(one.path(), other.path(), &[]).exits(0).stdout;
    assert!(line(&text, "windows").ends_with("3 and 3 runs are too few for an interval"), "{text}");
}

#[test]
fn the_figures_of_one_run_are_those_of_its_verdicts() {
    let dir = runs("pause", 0..1);
    let run = dir.path().join("latest");
    let json = compare(&run, &run, &["--format", "json"]).exits(0).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let verdict: Value = serde_json::from_str(&fs::read_to_string(run.join("verdict.json")).unwrap()).unwrap();
    let lock = &verdict["properties"]["lock"];
    let row = |name: &str| {
        let rows = json["pairs"][0]["rows"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["a"].as_f64().unwrap()
    };
    assert_eq!(row("windows"), lock["windows"].as_array().unwrap().len() as f64);
    assert_eq!(row("longest staleness"), lock["staleness_ms_max"].as_f64().unwrap());
    assert_eq!(row("holds"), verdict["facts"]["holds"].as_f64().unwrap());
}

#[test]
fn scenarios_of_one_side_and_damaged_runs_are_named() {
    let (one, other) = (runs("pause", 0..1), runs("pause", 1..2));
    for (dir, nemesis) in [(&one, "none"), (&other, "delay")] {
        let more = runs(nemesis, 0..1);
        let run = fs::canonicalize(more.path().join("latest")).unwrap();
        fs::rename(&run, dir.path().join(run.file_name().unwrap())).unwrap();
    }
    fs::create_dir(other.path().join("broken")).unwrap();
    fs::write(other.path().join("broken/history.jsonl"), "{}\n").unwrap();
    let text = compare(one.path(), other.path(), &[]).exits(0).stdout;
    assert!(line(&text, "only in A").contains("no faults"), "{text}");
    assert!(line(&text, "only in B").contains("delay"), "{text}");
    assert!(line(&text, "left out of B").contains("broken"), "{text}");
}

#[test]
fn a_run_that_was_not_judged_to_its_end_is_not_compared_with_whole_runs() {
    let (cut, dir) = (Path::new("checker/tests/corpus/event-lost.jsonl"), runs("pause", 0..1));
    fs::create_dir(dir.path().join("cut")).unwrap();
    fs::copy(cut, dir.path().join("cut/history.jsonl")).unwrap();
    let why = "worker-2 ended before it had finished";
    let text = compare(dir.path(), dir.path(), &[]).exits(0).stdout;
    assert!(line(&text, "left out of A").contains(&format!("cut/history.jsonl: {why}")), "{text}");
    assert!(line(&text, "lock violated").contains("1 of 1") && !text.contains("3 workers"), "{text}");
    let text = compare(cut, cut, &[]).exits(0).stdout;
    assert!(line(&text, "left out of A").contains(&format!("the numbers of {}: {why}", cut.display())), "{text}");
    assert!(line(&text, "lock violated").contains("1 inconclusive") && !text.contains("holds"), "{text}");
}

#[test]
fn a_simulated_run_that_is_there_twice_counts_once() {
    let (one, again) = (runs("pause", 0..5), runs("pause", 0..5));
    move_runs(&again, &one);
    let text = compare(one.path(), one.path(), &[]).exits(0).stdout;
    assert!(line(&text, "lock violated").contains("5 of 5"), "{text}");
    assert_eq!(text.matches("a simulated run of seed").count(), 10, "{text}");
}

#[test]
fn plans_that_differ_under_one_heading_are_two_scenarios() {
    let (one, other) = (runs("pause+2s", 0..2), runs("pause+3s", 0..2));
    move_runs(&other, &one);
    let text = compare(one.path(), one.path(), &[]).exits(0).stdout;
    assert!(!text.contains("again"), "{text}");
    for words in ["pause+2s", "pause+3s"] {
        let name = format!(" · nemesis [\"{words}\"]");
        assert_eq!(text.lines().filter(|line| line.ends_with(&name)).count(), 1, "{text}");
    }
}

#[test]
fn a_side_without_runs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    ran(&["compare", path, path]).exits(64).says(&[path, "no run in it"]);
    ran(&["compare", "no-such-run", path]).exits(64).says(&["no-such-run: no such run"]);
}

#[test]
fn a_planted_bug_is_a_scenario_of_its_own() {
    let dir = runs("none", 0..1);
    for bug in [
        ["--backend", "buggy:forgets-nx@redlock"],
        ["--resource", "buggy:compares-wrongly"],
        ["--resource", "buggy:answers-refused"],
    ] {
        let flags = ["--nemesis", "none", "--cluster", "sim", "--seed", "0", "--time", "15s"];
        let made = harness().arg("run").args(bug).args(flags).arg("--runs").arg(dir.path()).output().unwrap();
        assert!(matches!(made.status.code(), Some(0..=2)), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let text = compare(dir.path(), dir.path(), &[]).exits(0).stdout;
    assert!(!text.contains("again") && text.contains("resource buggy:answers-refused"), "{text}");
    assert_eq!(text.matches("lock violated").count(), 4, "{text}");
}
