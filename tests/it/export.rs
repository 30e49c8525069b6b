//! `harness export`: each format says what the verdicts say, and nothing is left of an export that failed.

use std::{collections::BTreeMap, fs, io::pipe, path::Path};

use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::Value;

use crate::support::{Ran, harness, ran};

const KLEPPMANN: &str = "checker/tests/corpus/kleppmann-pause.jsonl";

fn export(run: &str, to: &str, flags: &[&str]) -> Ran {
    ran(&[&["export", run, "--to", to], flags].concat())
}

/// A simulated run with many holds, windows and faults.
fn simulated() -> (tempfile::TempDir, String) {
    simulated_with(&["--nemesis", "pause,kill", "--time", "20s", "--keys", "2"])
}

fn simulated_with(flags: &[&str]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let run = ["run", "--cluster", "sim", "--seed", "7"];
    let ran: Ran = harness().args(run).args(flags).arg("--runs").arg(dir.path()).output().unwrap().into();
    assert!(ran.code.is_some_and(|code| code <= 2), "{}", ran.stderr);
    let latest = dir.path().join("latest").to_str().unwrap().to_owned();
    (dir, latest)
}

/// The rows of a CSV without quoted fields, by column.
fn rows(csv: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    lines.map(|line| head.iter().copied().zip(line).collect()).collect()
}

#[test]
fn the_table_counts_what_the_verdicts_count() {
    let (_dir, simulated) = simulated();
    let corpus = |name: &str| format!("checker/tests/corpus/{name}.jsonl");
    for run in [simulated, KLEPPMANN.to_owned(), corpus("none"), corpus("overrun"), corpus("given-up")] {
        let verdict: Value = serde_json::from_str(&ran(&["check", &run, "--format", "json"]).stdout).unwrap();
        let csv = export(&run, "csv", &[]).exits(0).stdout;
        let rows = rows(&csv);
        let count = |wanted: &[(&str, &str)]| {
            rows.iter().filter(|row| wanted.iter().all(|(column, value)| row[column] == *value)).count()
        };
        let properties = &verdict["properties"];
        assert_eq!(properties["activity"]["holds"], count(&[("event", "acquired")]), "{run}");
        let write =
            |arm, decision| count(&[("event", "admission"), ("request", "write"), ("outcome", ""), (arm, decision)]);
        assert_eq!(properties["off.data"]["updates"], write("off", "admitted"), "{run}");
        if let Some(refused) = properties["writes.fence"]["stale_rejected"].as_u64() {
            assert_eq!(refused, write("writes", "refused") as u64, "{run}");
        }
        let times: Vec<f64> = rows.iter().map(|row| row["at_ms"].parse().unwrap()).collect();
        assert!(times.is_sorted() && times[0] >= 0.0, "{run}");
        // An export is a function of its history.
        assert_eq!(csv, export(&run, "csv", &[]).stdout);
    }
}

/// The value of a keyword in a line of EDN.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!(":{name} ")).unwrap();
    let end = rest.find(", :").unwrap_or(rest.len() - 1);
    &rest[..end]
}

#[test]
fn each_process_of_jepsen_does_one_operation_at_a_time() {
    let (_dir, run) = simulated();
    for flags in [&["--key", "k0"][..], &["--model", "cas-register", "--key", "k1"], &["--model", "rw-register"]] {
        let edn = export(&run, "jepsen", flags).exits(0).stdout;
        let mut last = BTreeMap::new();
        for (i, line) in edn.lines().enumerate() {
            assert_eq!(field(line, "index"), i.to_string());
            let process = field(line, "process");
            if process == ":nemesis" {
                assert_eq!(field(line, "type"), ":info", "{line}");
                continue;
            }
            let kind = field(line, "type");
            let before = last.insert(process, (kind, field(line, "f")));
            match kind {
                ":invoke" => assert!(!matches!(before, Some((":invoke" | ":info", _))), "{line}"),
                _ => assert_eq!(before, Some((":invoke", field(line, "f"))), "{line}"),
            }
        }
        // A killed worker leaves operations without an end, and so its clients get new processes.
        assert!(last.values().all(|(kind, _)| *kind != ":invoke"), "{flags:?}");
        assert!(edn.lines().count() > 50 && edn.contains(":start-kill"), "{edn}");
    }
}

#[test]
fn the_models_show_the_stale_holder() {
    let edn = export(KLEPPMANN, "jepsen", &[]).exits(0).stdout;
    let locked: Vec<_> =
        edn.lines().filter(|line| line.contains(":process 0") || line.contains(":process 1")).collect();
    let granted = |line: &&&str| field(line, "type") == ":ok" && field(line, "f") == ":acquire";
    let second = locked.iter().position(|line| granted(&line) && field(line, "process") == "1").unwrap();
    let own = |line: &&&str| field(line, "process") == "0";
    let before: Vec<_> =
        locked[..second].iter().filter(own).map(|line| (field(line, "type"), field(line, "f"))).collect();
    assert_eq!(before, [(":invoke", ":acquire"), (":ok", ":acquire")], "both hold the lock: {edn}");

    let sections = export(KLEPPMANN, "jepsen", &["--model", "rw-register"]).exits(0).stdout;
    for section in [r#"[[:r "k0" nil] [:w "k0" 3]]"#, r#"[[:r "k0" nil] [:w "k0" 4]]"#] {
        let ok = sections.lines().filter(|line| field(line, "type") == ":ok" && field(line, "value") == section);
        assert_eq!(ok.count(), 1, "both read the first version, and both wrote: {sections}");
    }

    let log = export(KLEPPMANN, "porcupine", &[]).exits(0).stdout;
    assert!(log.contains("\t:ok\t:cas\t[0 3]\n") && log.contains("\t:ok\t:cas\t[0 4]\n"), "{log}");
    let fenced = export(KLEPPMANN, "porcupine", &["--arm", "writes"]).exits(0).stdout;
    assert!(fenced.contains("[0 3]") && !fenced.contains("[0 4]"), "the arm refused the stale write: {fenced}");
}

#[test]
fn the_trace_has_the_holds_and_an_arrow_to_each_write() {
    let (_dir, run) = simulated();
    let verdict: Value = serde_json::from_str(&ran(&["check", &run, "--format", "json"]).stdout).unwrap();
    let trace: Value = serde_json::from_str(&export(&run, "perfetto", &[]).exits(0).stdout).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let with = |ph: &str, begins: &str| {
        let named = |event: &&Value| event["name"].as_str().is_some_and(|name| name.starts_with(begins));
        events.iter().filter(|event| event["ph"] == ph).filter(named).count()
    };
    assert_eq!(verdict["properties"]["activity"]["holds"], with("X", "hold "));
    let windows = verdict["properties"]["lock"]["windows"].as_array().unwrap();
    assert!(!windows.is_empty());
    assert_eq!(with("i", "stale-holder") + with("i", "lease-overlap") + with("i", "cut-short"), windows.len());
    let (starts, ends) = (with("s", "hold to write"), with("f", "hold to write"));
    assert!(starts >= ends && ends > 20, "{starts} arrows begin, {ends} end");
    assert!(with("b", "pause") > 0 && with("b", "kill") > 0 && with("b", "") == with("e", ""));
    assert!(events.iter().all(|event| event["dur"].as_f64().is_none_or(|dur| dur >= 0.0)));
}

#[test]
fn what_fails_leaves_nothing_and_what_succeeds_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (damaged, output) = (dir.path().join("damaged.jsonl"), dir.path().join("out.csv"));
    let (_runs, run) = simulated();
    let whole = fs::read_to_string(Path::new(&run).join("history.jsonl")).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    fs::write(&damaged, [&lines[..40], &lines[41..]].concat().concat()).unwrap();
    let to = ["--output", output.to_str().unwrap()];
    export(damaged.to_str().unwrap(), "csv", &to).exits(64).says(&["line 41:", "gives no verdict"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the history is there");
    export(KLEPPMANN, "csv", &to).exits(0);
    assert_eq!(fs::read_to_string(&output).unwrap(), export(KLEPPMANN, "csv", &[]).stdout);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the temporary name is gone");
    export(damaged.to_str().unwrap(), "csv", &["--output", damaged.to_str().unwrap()])
        .exits(64)
        .says(&["history itself"]);
    export(KLEPPMANN, "csv", &["--output", "/dev/full"]).exits(3).says(&["/dev/full"]);
}

#[test]
fn choices_that_the_format_or_the_run_does_not_have_are_refused() {
    export(KLEPPMANN, "perfeto", &[]).exits(64).says(&["--to", "`perfeto`", "similar words: perfetto"]);
    export(KLEPPMANN, "csv", &["--key", "k0"]).exits(64).says(&["--key", "no effect"]);
    export(KLEPPMANN, "jepsen", &["--arm", "off"]).exits(64).says(&["--arm", "no effect"]);
    export(KLEPPMANN, "jepsen", &["--key", "k7"]).exits(64).says(&["--key", "`k7`", "k0"]);
    export(KLEPPMANN, "porcupine", &["--arm", "cas"]).exits(64).says(&["--arm", "`cas`", "off, writes"]);
    export("no-such-run", "csv", &[]).exits(64).says(&["no-such-run", "harness list --runs"]);
    let (_dir, run) = simulated();
    export(&run, "porcupine", &[]).exits(64).says(&["--key", "k0, k1"]);
}

#[test]
fn a_run_with_readers_is_no_mutex() {
    let (_dir, run) = simulated_with(&["--backend", "etcd", "--readers", "0.5", "--nemesis", "none", "--time", "5s"]);
    export(&run, "jepsen", &[]).exits(64).says(&["--model", "readers", "`cas-register` or `rw-register`"]);
    for flags in [&["--model", "cas-register"], &["--model", "rw-register"]] {
        export(&run, "jepsen", flags).exits(0);
    }
    export(&run, "porcupine", &[]).exits(0);
}

#[test]
fn a_history_that_can_be_read_once_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("history.jsonl");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    // The history of a run directory, too.
    for run in [fifo.as_path(), dir.path()] {
        export(run.to_str().unwrap(), "csv", &[]).exits(64).says(&["history.jsonl", "twice; give a file"]);
    }
    let (reader, _writer) = pipe().unwrap();
    let args = ["export", "/dev/stdin", "--to", "csv"];
    let ran: Ran = harness().args(args).stdin(reader).output().unwrap().into();
    ran.exits(64).says(&["/dev/stdin", "twice; give a file"]);
}

#[test]
fn a_closed_output_is_no_error_in_any_format() {
    let (_dir, run) = simulated();
    for flags in [["--to", "csv", "--output", "-"], ["--to", "perfetto", "--output", "-"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let ran: Ran = harness().args(["export", &run]).args(flags).stdout(writer).output().unwrap().into();
        assert_eq!(ran.exits(0).stderr, "");
    }
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_harness_without_parquet_says_how_to_build_one() {
    export(KLEPPMANN, "parquet", &[]).exits(64).says(&["--features parquet", "csv"]);
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_is_whole_and_the_same_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let written = |name: &str| {
        let path = dir.path().join(name);
        export(KLEPPMANN, "parquet", &["--output", path.to_str().unwrap()]).exits(0);
        fs::read(path).unwrap()
    };
    let bytes = written("one");
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    assert_eq!(bytes, written("two"));
}
