//! The recorded runs: `harness list --runs`, and the facts about how each run was made.

use std::{fs, path::Path};

use serde_json::Value;

use crate::support::{Ran, harness};

fn ran(args: &[&str], runs: &Path) -> Ran {
    harness().args(args).arg(format!("--runs={}", runs.display())).output().unwrap().into()
}

/// Makes two runs in the simulation, and a directory that no harness has judged.
fn recorded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let run = ["run", "--cluster", "sim", "--time", "20s", "--seed", "7"];
    ran(&[&run[..], &["--nemesis", "pause,clock", "--expect", "verdict=upheld"]].concat(), dir.path()).exits(1);
    // The name of a run has whole seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    ran(&[&run[..], &["--nemesis", "none", "--backend", "redis"]].concat(), dir.path()).exits(0);
    let left = dir.path().join("20200102t030405-etcd-none-00000000");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("plan.toml"), "no plan").unwrap();
    fs::create_dir(dir.path().join("no run")).unwrap();
    dir
}

/// The names of the backends and the verdicts of the listed runs.
fn listed(args: &[&str], runs: &Path) -> Vec<(String, String)> {
    let ran = ran(&[&["list", "--format", "json"], args].concat(), runs).exits(0);
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let lines = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|run| (text(&run["backend"]), text(&run["verdict"]))).collect()
}

#[test]
fn list_and_readme_show_the_capabilities_of_each_backend() {
    let list = |args: &[&str]| Ran::from(harness().arg("list").args(args).output().unwrap()).exits(0).stdout;
    let all: Value = serde_json::from_str(&list(&["--format", "json"])).unwrap();
    let texts = |values: &Value| -> Vec<String> {
        values.as_array().unwrap().iter().map(|value| value.as_str().unwrap().to_owned()).collect()
    };
    let names = texts(&all["capabilities"]);
    let mut table = format!("| backend | {} |\n|{}\n", names.join(" | "), " --- |".repeat(names.len() + 1));
    for backend in all["backends"].as_array().unwrap() {
        let has = texts(&backend["capabilities"]);
        let cells = names.iter().map(|name| if has.contains(name) { " yes |" } else { " – |" });
        table += &format!("| `{}` |{}\n", backend["name"].as_str().unwrap(), cells.collect::<String>());
    }
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    assert!(readme.contains(&table), "README.md lacks this table:\n{table}");

    let text = list(&[]);
    let line = text.lines().find(|line| line.trim_start().starts_with("fair-queue ")).unwrap();
    assert_eq!(
        line.split_once("fair-queue").unwrap().1.trim(),
        "etcd, etcd-server-lock, zookeeper, zookeeper-herd",
        "{text}"
    );
}

#[test]
fn runs_are_listed_the_newest_first_with_what_they_were_and_how_they_came_out() {
    let dir = recorded();
    let pair = |backend: &str, verdict: &str| (backend.to_owned(), verdict.to_owned());
    let all = [pair("redis", "upheld"), pair("redlock", "violated"), pair("?", "?")];
    assert_eq!(listed(&[], dir.path()), all);
    assert_eq!(listed(&["--last", "1"], dir.path()), all[..1]);
    assert_eq!(listed(&["--nemesis", "clock"], dir.path()), all[1..2]);
    assert_eq!(listed(&["--nemesis", "clock", "--last", "1"], dir.path()), all[1..2], "the last of those that match");
    assert_eq!(listed(&["--nemesis", "none", "--cluster", "sim"], dir.path()), all[..1]);
    assert_eq!(listed(&["--verdict", "not-judged"], dir.path()), all[2..]);
    assert_eq!(listed(&["--unexpected"], dir.path()), all[1..2]);
    assert_eq!(listed(&["--backend", "etcd"], dir.path()), []);

    let text = ran(&["list"], dir.path()).exits(0).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("started (UTC)") && lines[0].ends_with("run"), "{text}");
    let words: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(words[2..6], ["redlock", "clock,pause", "sim", "7"], "{text}");
    assert!(words[6].parse::<u64>().unwrap() > 0 && words[7..9] == ["violated", "NO"], "{text}");
    assert!(lines[3].starts_with("2020-01-02 03:04:05  ?") && lines[3].contains("not-judged"), "{text}");
}

#[test]
fn filters_that_nothing_can_pass_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, word) in [
        (["--nemesis", "pauze"], "similar words: pause"),
        (["--verdict", "green"], "upheld"),
        (["--backend", "redlok"], "redlock"),
    ] {
        let ran = ran(&[&["list"], &args[..]].concat(), dir.path()).exits(64);
        assert!(ran.stderr.contains(word), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_filter_without_recorded_runs_is_refused() {
    for filter in ["--last=3", "--unexpected", "--cluster=sim", "--verdict=upheld", "--nemesis=pause"] {
        let ran: Ran = harness().args(["list", filter]).output().unwrap().into();
        assert!(ran.code == Some(64) && ran.stderr.contains("add --runs"), "{filter}: {:?} {}", ran.code, ran.stderr);
    }
}

#[test]
fn a_run_says_how_it_was_made_and_a_second_judgement_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    ran(&["run", "--cluster", "sim", "--time", "4s", "--seed", "5"], dir.path());
    let run = dir.path().join("latest");
    let made_by: Value = serde_json::from_str(&fs::read_to_string(run.join("run.json")).unwrap()).unwrap();
    assert_eq!((&made_by["seed"], &made_by["engine"]), (&Value::from(5), &Value::Null));
    assert!(made_by["took_ms"].as_u64().is_some() && made_by["host"]["cores"].as_u64() > Some(0), "{made_by}");
    let command: Vec<&str> = made_by["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(command[1..4], ["run", "--cluster", "sim"]);
    let digest = std::process::Command::new("sha256sum").arg(run.join("plan.toml")).output().unwrap().stdout;
    let digest = String::from_utf8(digest).unwrap();
    assert_eq!(digest.split(' ').next(), made_by["plan_sha256"].as_str());

    let report = fs::read_to_string(run.join("report.md")).unwrap();
    assert!(report.contains("\n| made by | harness ") && report.contains("\n| command | "), "{report}");
    let checked: Ran = harness().arg("check").arg(run.canonicalize().unwrap()).output().unwrap().into();
    assert!(checked.stderr.is_empty(), "{}", checked.stderr);
    let verdict: Value = serde_json::from_str(&fs::read_to_string(run.join("verdict.json")).unwrap()).unwrap();
    assert_eq!(verdict["made_by"], made_by, "the reports say the same");
    let made_by = |report: &str| report.split_once("made by").unwrap().1.to_owned();
    assert_eq!(made_by(&fs::read_to_string(run.join("report.md")).unwrap()), made_by(&report));
}

#[test]
fn the_head_of_a_history_says_how_the_run_was_made_but_names_no_planted_bug() {
    let dir = tempfile::tempdir().unwrap();
    let head = |flags: &[&str]| {
        ran(&[&["run", "--cluster", "sim", "--time", "2s", "--nemesis", "none"], flags].concat(), dir.path());
        let history = fs::read_to_string(dir.path().join("latest/history.jsonl")).unwrap();
        serde_json::from_str::<Value>(history.lines().next().unwrap()).unwrap()["made_by"].clone()
    };
    let correct = head(&["--backend", "redis"]);
    assert_eq!(correct["harness"]["version"], env!("CARGO_PKG_VERSION"), "{correct}");
    assert!(correct["started"].as_str().is_some_and(|at| at.ends_with('Z')), "{correct}");
    assert!(correct["command"].to_string().contains("\"--backend\",\"redis\""), "{correct}");
    assert!(correct["took_ms"].is_null(), "{correct}");
    let planted = head(&["--backend", "buggy:forgets-nx"]);
    assert!(planted["harness"].is_object() && !planted.to_string().contains("nx"), "{planted}");
}
