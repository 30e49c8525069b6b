use std::{
    collections::HashMap,
    io::{Read, pipe},
    os::fd::AsRawFd,
};

use history::Arm;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    operations::{Kind, Process, each},
    *,
};

/// The pause: the first holder writes after the second holder has written.
fn pause() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The place of an event of a hold.
fn place(lines: &[Value], event: &str, hold: u64) -> usize {
    lines.iter().position(|line| line["event"] == event && line["hold"] == hold).unwrap()
}

fn event(line: &Value) -> &str {
    line["event"].as_str().unwrap()
}

/// Reads these lines as a history, numbered anew. The directory has the history.
fn read(mut lines: Vec<Value>, arm: Arm) -> (TempDir, Source) {
    let mut numbers = HashMap::<String, u64>::new();
    for (seq, line) in lines.iter_mut().enumerate() {
        let n = numbers.entry(line["process"].as_str().unwrap().to_owned()).or_default();
        line["seq"] = json!(seq);
        line["n"] = json!(*n);
        *n += 1;
    }
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("history.jsonl");
    std::fs::write(&history, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let source = Source::read(&history, Some(arm), true).unwrap();
    (dir, source)
}

/// The types with which a client's operations of one name end.
fn ends(source: &Source, model: JepsenModel, client: u64, f: &str) -> Vec<Kind> {
    let mut ends = Vec::new();
    each(source, model, None, |entry| {
        if entry.process == Process::Client(client) && entry.f == f && entry.kind != Kind::Invoke {
            ends.push(entry.kind);
        }
        Ok(())
    })
    .unwrap();
    ends
}

#[test]
fn a_write_without_an_answer_may_have_happened() {
    for (answer, outcome, f, expected) in [
        ("write-ok", "indeterminate", "cas", Kind::Info),
        ("write-ok", "failed", "cas", Kind::Fail),
        ("read-ok", "indeterminate", "read", Kind::Fail),
    ] {
        let mut lines = pause();
        let line = &mut lines[place(&pause(), answer, 1)];
        *line = json!({
            "process": line["process"], "at": line["at"], "event": "access-failed", "hold": 1, "op": line["op"],
            "outcome": outcome, "detail": "connection reset",
        });
        let (_dir, source) = read(lines, Arm::Off);
        assert_eq!(ends(&source, JepsenModel::CasRegister, 0, f), [expected], "{outcome} in place of {answer}");
    }
}

#[test]
fn a_section_with_a_refused_write_is_not_whole() {
    const SECOND: u64 = 1_000_000_001;
    let mut lines = pause();
    let (write, answer) = (place(&lines, "write", SECOND), place(&lines, "write-ok", SECOND));
    // A write, its admission, and its answer once more: the fence is strict, and refuses the second write of a hold.
    let mut again = lines[write..=answer].to_vec();
    for (n, line) in again.iter_mut().enumerate() {
        line["at"] = json!(14_211_200_000_u64 + 200_000 * n as u64);
        line["op"] = json!(3);
    }
    again[1]["number"] = json!(4);
    again[1]["arms"] = json!([
        {"arm": "off", "admitted": true, "base": 3, "version": 4, "value": 2},
        {"arm": "writes", "admitted": false, "seen": 42, "base": 3, "version": 3, "value": 1},
    ]);
    again[2]["number"] = json!(4);
    again[2]["arms"] = json!([["off", true, null], ["writes", false, 42]]);
    for line in lines[answer..].iter_mut().filter(|line| line["number"] == 4) {
        line["number"] = json!(5);
    }
    again.into_iter().enumerate().for_each(|(n, line)| lines.insert(answer + 1 + n, line));
    for (arm, of_second, of_first) in [(Arm::Off, Kind::Ok, Kind::Ok), (Arm::Writes, Kind::Info, Kind::Fail)] {
        let (_dir, source) = read(lines.clone(), arm);
        assert_eq!(ends(&source, JepsenModel::RwRegister, 1, "txn"), [of_second], "{arm}");
        assert_eq!(ends(&source, JepsenModel::RwRegister, 0, "txn"), [of_first], "{arm}");
    }
}

#[test]
fn sections_of_a_client_at_once_end_as_themselves() {
    const SECOND: u64 = 1_000_000_001;
    const THIRD: u64 = 1_000_000_002;
    let mut lines = pause();
    let (at, key) = (|us: u64| 14_000_000_000 + us * 1_000, "k1");
    let was_read = json!([{"arm": "off", "admitted": true, "version": 0, "value": 0}]);
    let was_written = json!([{"arm": "off", "admitted": true, "base": 0, "version": 11, "value": 1}]);
    // The client takes a further key under its hold, and reads there before it writes under the first hold.
    let of_third = [
        json!({"at": at(55_000), "event": "acquire", "client": 1, "attempt": THIRD, "key": key,
               "intended": at(55_000)}),
        json!({"at": at(56_000), "event": "acquired", "attempt": THIRD, "lease_ns": 2_000_000_000_u64,
               "granted_after": at(55_000), "token": 43}),
        json!({"at": at(57_000), "event": "read", "hold": THIRD, "op": 1}),
        json!({"at": at(58_000), "event": "admission", "number": 10, "key": key, "kind": "read", "hold": THIRD, "op": 1,
               "token": 43, "arms": was_read}),
        json!({"at": at(59_000), "event": "read-ok", "hold": THIRD, "op": 1, "number": 10}),
        json!({"at": at(211_200), "event": "write", "hold": THIRD, "op": 2}),
        json!({"at": at(211_400), "event": "admission", "number": 11, "key": key, "kind": "write", "hold": THIRD,
               "op": 2, "token": 43, "arms": was_written}),
        json!({"at": at(211_600), "event": "write-ok", "hold": THIRD, "op": 2, "number": 11}),
    ];
    for mut line in of_third {
        let is_decision = line["event"] == "admission";
        line["process"] = json!(if is_decision { "resource" } else { "worker-2" });
        let after = |other: &Value| other["at"].as_u64() > line["at"].as_u64();
        let place = lines.iter().position(after).unwrap();
        lines.insert(place, line);
    }
    assert!(place(&lines, "read", THIRD) < place(&lines, "write", SECOND));
    let (_dir, source) = read(lines, Arm::Off);
    let mut ends = Vec::new();
    each(&source, JepsenModel::RwRegister, None, |entry| {
        if entry.kind != Kind::Invoke && entry.f == "txn" && entry.process != Process::Client(0) {
            ends.push((entry.process.clone(), entry.kind, entry.value.clone()));
        }
        Ok(())
    })
    .unwrap();
    let first = (Process::Client(1), Kind::Info, r#"[[:r "k0" nil] [:w "k0" 3]]"#.to_owned());
    // The client goes on as a new process.
    let second = (Process::Client(5), Kind::Ok, r#"[[:r "k1" nil] [:w "k1" 11]]"#.to_owned());
    assert_eq!(ends, [first, second]);
}

#[test]
fn a_client_that_asks_again_has_left_its_hold() {
    const SECOND: u64 = 1_000_000_001;
    let mut lines = pause();
    lines.retain(|line| line["hold"] != SECOND || !["write-ok", "release", "released"].contains(&event(line)));
    let again = [
        json!({"at": 14_212_000_000_u64, "event": "acquire", "client": 1, "attempt": SECOND + 1, "key": "k0",
               "intended": 14_212_000_000_u64}),
        json!({"at": 14_213_000_000_u64, "event": "acquired", "attempt": SECOND + 1, "token": 43,
               "lease_ns": 2_000_000_000_u64, "granted_after": 14_212_000_000_u64}),
    ];
    let healing = lines.iter().position(|line| line["phase"] == "heal-requested").unwrap();
    for (n, mut line) in again.into_iter().enumerate() {
        line["process"] = json!("worker-2");
        lines.insert(healing + n, line);
    }
    let (_dir, source) = read(lines, Arm::Off);
    assert_eq!(ends(&source, JepsenModel::Mutex, 1, "release"), [Kind::Info]);
    assert_eq!(ends(&source, JepsenModel::Mutex, 5, "acquire"), [Kind::Ok]);
}

#[test]
fn a_client_that_asks_again_and_acts_keeps_its_hold() {
    const SECOND: u64 = 1_000_000_001;
    let mut lines = pause();
    // The client asks for the key again while it works, and is refused.
    let again = [
        json!({"at": 14_100_000_000_u64, "event": "acquire", "client": 1, "attempt": SECOND + 1, "key": "k0",
               "intended": 14_100_000_000_u64}),
        json!({"at": 14_101_000_000_u64, "event": "acquire-failed", "attempt": SECOND + 1, "outcome": "failed",
               "why": "held"}),
    ];
    let write = place(&lines, "write", SECOND);
    for (n, mut line) in again.into_iter().enumerate() {
        line["process"] = json!("worker-2");
        lines.insert(write + n, line);
    }
    let (_dir, source) = read(lines, Arm::Off);
    // The release begins after the write, and has its answer.
    assert_eq!(ends(&source, JepsenModel::Mutex, 1, "acquire"), [Kind::Fail, Kind::Ok, Kind::Fail]);
    assert_eq!(ends(&source, JepsenModel::Mutex, 1, "release"), [Kind::Ok]);
}

#[test]
fn the_answer_to_a_release_ends_no_later_attempt() {
    let mut lines = pause();
    // The client asks for the lock again before its release is answered, and is refused.
    let released = place(&lines, "released", 1_000_000_001);
    let again = json!({
        "process": "worker-2", "at": 14_212_400_000_u64, "event": "acquire", "client": 1, "attempt": 1_000_000_002,
        "key": "k0", "intended": 14_212_400_000_u64,
    });
    let refused = json!({
        "process": "worker-2", "at": 14_213_400_000_u64, "event": "acquire-failed", "attempt": 1_000_000_002,
        "outcome": "failed", "why": "held",
    });
    lines.insert(released + 1, refused);
    lines.insert(released, again);
    let (_dir, source) = read(lines, Arm::Off);
    assert_eq!(ends(&source, JepsenModel::Mutex, 1, "release"), [Kind::Info]);
    // The client goes on as a new process.
    assert_eq!(ends(&source, JepsenModel::Mutex, 5, "acquire"), [Kind::Fail]);
}

#[test]
fn the_later_decision_counts_if_a_restart_undid_the_first() {
    let mut lines = pause();
    let is_write = |line: &Value| line["event"] == "admission" && line["hold"] == 1 && line["kind"] == "write";
    let decided = lines.iter().position(is_write).unwrap();
    let mut undone = lines[decided].clone();
    undone["at"] = json!(17_101_200_000_u64);
    undone["arms"][1]["admitted"] = json!(true);
    for line in lines[decided..].iter_mut().filter(|line| line["process"] == "resource") {
        line["process"] = json!("resource#2");
    }
    let started = json!({
        "process": "resource#2", "at": 17_101_400_000_u64, "event": "started", "role": "resource", "boot_id": "3f0c",
        "time_namespace": 4_026_531_834_u64,
    });
    let recovered = json!({"process": "resource#2", "at": 17_101_600_000_u64, "event": "recovered", "durable": 3});
    for line in [recovered, started, undone] {
        lines.insert(decided, line);
    }
    let (_dir, source) = read(lines, Arm::Writes);
    assert_eq!(ends(&source, JepsenModel::CasRegister, 0, "cas"), [Kind::Fail]);
}

#[test]
fn a_decision_has_the_key_of_its_data() {
    let mut lines = pause();
    for line in lines.iter_mut().filter(|line| event(line) == "admission" && line["hold"] == 1) {
        line["key"] = json!("k1");
    }
    let (_dir, source) = read(lines, Arm::Off);
    let mut table = Vec::<u8>::new();
    csv::write(&source, &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    for part in [",read,0,1,k0,1,", ",admission,0,1,k1,1,", ",write,0,1,k0,2,", ",admission,0,1,k1,2,"] {
        assert_eq!(table.matches(part).count(), 1, "{part}: {table}");
    }
}

#[test]
fn a_fault_without_a_heal_lasts_until_the_end_of_the_run() {
    let mut lines = pause();
    lines.retain(|line| !["heal-requested", "healed", "heal-proved"].iter().any(|phase| line["phase"] == *phase));
    assert_eq!(drawn(lines, "pause"), [Some(2_092_000.0), Some(7_171_000.0)]);
}

#[test]
fn a_fault_that_was_never_on_ends_when_it_is_called_unproved() {
    let mut lines = pause();
    lines.retain(|line| !["injected", "heal-requested", "healed", "heal-proved"].iter().any(|p| line["phase"] == *p));
    let proof = lines.iter().position(|line| line["phase"] == "proved").unwrap();
    let mut refused = json!({"why": "expected a running process; there was none", "phase": "unproved"});
    for field in ["process", "event", "fault", "kind", "node"] {
        refused[field] = lines[proof][field].clone();
    }
    refused["at"] = json!(12_093_000_000_u64);
    lines.remove(proof);
    let requested = lines.iter().position(|line| line["phase"] == "requested").unwrap();
    lines.insert(requested + 1, refused);
    assert_eq!(drawn(lines, "pause"), [Some(2_092_000.0), Some(2_093_000.0)]);
}

/// The beginning and the end of the fault of this kind in the trace of these lines.
fn drawn(lines: Vec<Value>, kind: &str) -> [Option<f64>; 2] {
    let (_dir, source) = read(lines, Arm::Off);
    let mut trace = Vec::<u8>::new();
    perfetto::write(&source, &mut trace).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    ["b", "e"].map(|ph| {
        let mut events = trace["traceEvents"].as_array().unwrap().iter();
        events.find(|event| event["ph"] == ph && event["name"] == kind).unwrap()["ts"].as_f64()
    })
}

#[test]
fn a_fault_that_nobody_planned_is_drawn_as_long_as_it_may_have_lasted() {
    let mut lines = pause();
    let place = lines.iter().position(|line| line["phase"] == "injected").unwrap() + 1;
    let told = |at: u64, phase: &str, since: u64| {
        json!({
            "process": "agent", "at": at, "event": "fault", "fault": 2, "kind": "partition", "node": "worker-3",
            "phase": phase, "since": since,
        })
    };
    // Each report of the engine comes half a second after the change that it tells of.
    let over = told(16_500_000_000, "unplanned-over", 16_000_000_000);
    for line in [over, told(14_500_000_000, "unplanned", 14_000_000_000)] {
        lines.insert(place, line);
    }
    assert_eq!(drawn(lines.clone(), "partition"), [Some(4_000_000.0), Some(6_000_000.0)]);
    assert_eq!(drawn(lines, "pause"), [Some(2_092_000.0), Some(7_111_000.0)], "it ends when it is healed");
}

#[test]
fn an_export_never_replaces_its_own_history() {
    let dir = tempfile::tempdir().unwrap();
    let [run, latest, link] = ["run", "latest", "link.jsonl"].map(|name| dir.path().join(name));
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("history.jsonl"), "").unwrap();
    std::os::unix::fs::symlink("run", &latest).unwrap();
    std::os::unix::fs::symlink("run/history.jsonl", &link).unwrap();
    let dirs = [run.clone(), latest, run.join("../run")];
    let paths: Vec<PathBuf> = dirs.iter().map(|dir| dir.join("history.jsonl")).chain([link]).collect();
    for history in &paths {
        for output in &paths {
            let (output_text, history_text) = (output.display(), history.display());
            let refused = Target::of(output, history).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(refused.contains("this is the history itself"), "{output_text} for {history_text}: {refused}");
        }
        assert!(Target::of(&run.join("history.csv"), history).is_ok());
    }
}

#[test]
fn a_pipe_without_a_path_is_written_and_not_replaced() {
    let (mut reader, writer) = pipe().unwrap();
    // As `/dev/stdout` and `>(gzip)`: a link of /proc leads to the pipe.
    let output = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
    let target = Target::of(&output, Path::new("history.jsonl")).unwrap();
    target.write(|to| Ok(to.write_all(b"seq,process\n")?)).unwrap();
    drop(writer);
    let mut written = String::new();
    reader.read_to_string(&mut written).unwrap();
    assert_eq!(written, "seq,process\n");
}

#[test]
fn many_operations_of_one_stamp_are_written_soon() {
    const ATTEMPTS: u64 = 100_000;
    let mut lines = pause();
    let first = lines.iter().position(|line| line["event"] == "acquire").unwrap();
    let acquire = lines[first].clone();
    let client = acquire["client"].as_u64().unwrap();
    let again = |n: u64| {
        let mut line = acquire.clone();
        line["attempt"] = json!(5_000_000_000 + n);
        line
    };
    lines.splice(first..first, (0..ATTEMPTS).map(again));
    let (_dir, source) = read(lines, Arm::Off);
    // Only the first operation is of the client's first process number.
    assert_eq!(ends(&source, JepsenModel::Mutex, client, "acquire"), [Kind::Info]);
}

#[test]
fn the_answer_counts_if_the_record_was_cut_before_the_decision() {
    let mut lines = pause();
    lines.retain(|line| event(line) != "admission" || line["hold"] != 1 || line["kind"] != "write");
    for (arm, expected) in [(Arm::Off, Kind::Ok), (Arm::Writes, Kind::Fail)] {
        let (_dir, source) = read(lines.clone(), arm);
        assert_eq!(ends(&source, JepsenModel::CasRegister, 0, "cas"), [expected], "{arm}");
        assert_eq!(ends(&source, JepsenModel::RwRegister, 0, "txn"), [expected], "{arm}");
        each(&source, JepsenModel::CasRegister, None, |entry| {
            // The version is the number of the answer, which later reads return.
            let is_own = entry.process == Process::Client(0) && entry.f == "cas";
            assert!(!is_own || entry.value == "[0 4]", "{}", entry.value);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_write_without_a_decision_has_a_version_after_the_largest_number() {
    let mut lines = pause();
    let is_write = |line: &Value| line["event"] == "admission" && line["kind"] == "write" || event(line) == "write-ok";
    lines.retain(|line| line["hold"] != 1 || !is_write(line));
    let last = lines.iter().rposition(|line| line["event"] == "admission" && line["hold"].is_u64()).unwrap();
    lines[last]["number"] = json!(u64::MAX);
    let (_dir, source) = read(lines, Arm::Off);
    let mut values = Vec::new();
    each(&source, JepsenModel::CasRegister, None, |entry| {
        values.extend((entry.f == "cas").then(|| entry.value.clone()));
        Ok(())
    })
    .unwrap();
    assert!(values.iter().any(|value| value.ends_with(" 18446744073709551616]")), "{values:?}");
}
