//! `harness check` of histories that other programs recorded.

use std::fs;

use crate::support::{Ran, ran};

/// Judges a history, which is written to a file.
fn check(history: &str, flags: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history");
    fs::write(&path, history).unwrap();
    ran(&[&["check", path.to_str().unwrap()], flags].concat())
}

const EDN: [&str; 2] = ["--format", "jepsen-edn"];

#[test]
fn the_exit_code_tells_the_verdict() {
    let read = |value: &str| {
        let text = format!(
            "{{:process 0, :type :invoke, :f :write, :value 1}}\n{{:process 0, :type :ok, :f :write, :value 1}}\n\
             {{:process 1, :type :invoke, :f :read, :value nil}}\n{{:process 1, :type :ok, :f :read, :value {value}}}\n"
        );
        check(&text, &EDN)
    };
    let said = read("1").exits(0).stdout;
    assert!(said.ends_with(": register, 1 object, 2 operations\nlinearizable\n"), "{said}");
    let said = read("2").exits(1).stdout;
    assert!(
        said.contains("not linearizable: nobody can have written the value of `read 2` of process 1 (lines 3 and 4)"),
        "{said}"
    );
    let said = check("", &EDN).exits(2).stdout;
    assert!(said.contains("inconclusive: the history has no operation"), "{said}");
    let log = "INFO  jepsen.util - 0\t:invoke\t:cas\t[1 2]\nINFO  jepsen.util - 0\t:ok\t:cas\t[1 2]\n";
    let said = check(log, &["--format", "porcupine-log"]).exits(1).stdout;
    assert!(said.contains(": cas-register, 1 object, 1 operation\n"), "{said}");
    assert!(said.contains("nobody can have written the value of `cas 1 2`"), "{said}");
    check(log, &["--format", "porcupine-log", "--initial", "1"]).exits(0);
}

#[test]
fn the_memory_of_the_search_is_given_in_mebibytes() {
    let write =
        |n: u32| format!("INFO  jepsen.util - 0\t:invoke\t:write\t{n}\nINFO  jepsen.util - 0\t:ok\t:write\t{n}\n");
    let log: String = (0..20).map(write).collect();
    // This model has no faster method than a search.
    check(&log, &["--format", "porcupine-log", "--model", "cas-register", "--memory", "1"]).exits(0);
}

#[test]
fn a_value_of_the_file_forges_no_verdict() {
    let text = r#"[0 :invoke :put ["k" "a\nlinearizable"]] [0 :ok :put ["k" "a\nlinearizable"]]
                  [0 :invoke :get ["k" nil]] [0 :ok :get ["k" "b\nlinearizable"]]
                  [0 :invoke :put [k 1]] [0 :ok :put [k 1]]"#;
    let said = check(&text.replace("[k 1]", "[\u{1b}k 1]").replace("\"k\"", "\u{1b}l"), &EDN).exits(1).stdout;
    assert!(said.lines().last().is_some_and(|line| line.starts_with("not linearizable: ")), "{said}");
    assert!(said.contains("\nkey \\u{1b}l\n") && !said.contains('\u{1b}'), "{said}");
}

#[test]
fn what_is_wrong_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broken.edn");
    fs::write(&path, "[0 :invoke :read nil]\n[0 :ok :write 1]\n").unwrap();
    fs::write(dir.path().join("map.edn"), "{:process 0, :type :invoke, :f :read, :value nil}\n").unwrap();
    let lines = dir.path().join("lines.jsonl");
    fs::write(&lines, "{\"seq\":1,\"process\":\"worker-1\"}\n").unwrap();
    let path = path.to_str().unwrap();
    ran(&[&["check", path], &EDN[..]].concat()).exits(64).says(&["broken.edn:2: process 0 gets an answer to `:write`"]);
    for edn in [path, dir.path().join("map.edn").to_str().unwrap()] {
        ran(&["check", edn]).exits(64).says(&["add `--format jepsen-edn`"]);
    }
    fs::write(dir.path().join("plan.toml"), "# A plan, and no history.\nschema = 1\n").unwrap();
    let plan = ran(&["check", dir.path().join("plan.toml").to_str().unwrap()]).exits(64);
    assert!(!plan.stderr.contains("EDN"), "{}", plan.stderr);
    ran(&[&["check", lines.to_str().unwrap()], &EDN[..]].concat()).exits(64).says(&["leave out `--format`"]);
    ran(&[&["check", "nowhere.edn"], &EDN[..]].concat()).exits(64).says(&["nowhere.edn: No such file"]);
    for (flag, value) in [("--model", "mutex"), ("--initial", "1"), ("--memory", "1")] {
        let said = format!("{flag} is for histories of other programs");
        ran(&["check", path, flag, value]).exits(64).says(&[&said]);
    }
    check("", &["--format", "jepsen-edn", "--expect", "lock=upheld"]).exits(64).says(&["--expect is for runs"]);
    check("", &["--format", "jepsen-edn", "--model", "queue"]).exits(64).says(&["register, cas-register, mutex"]);
    check("", &["--format", "jepsen-edn", "--model", "mutex", "--initial", "1"]).exits(64).says(&["it is free"]);
}

/// The resource is judged a second time, without its admission log: by what the clients sent and received. Both
/// judgements agree about every arm.
#[test]
fn the_resource_is_judged_alike_without_its_log() {
    let runs = tempfile::tempdir().unwrap();
    let mut lost = 0;
    for seed in ["1", "2", "3"] {
        let flags = ["--cluster", "sim", "--backend", "redlock", "--nemesis", "pause", "--time", "6s", "--seed", seed];
        let arms = ["--arms", "off,writes,reads,cas,claim", "--runs"];
        ran(&[&["run"], &flags[..], &arms, &[runs.path().to_str().unwrap()]].concat()).exits(1);
        let run = runs.path().join("latest");
        let verdict = fs::read_to_string(run.join("verdict.json")).unwrap();
        let properties = &serde_json::from_str::<serde_json::Value>(&verdict).unwrap()["properties"];
        assert_eq!(properties["resource"]["verdict"], "upheld");
        for arm in ["off", "writes", "reads", "cas", "claim"] {
            let edn = runs.path().join(format!("{seed}-{arm}.edn"));
            let (from, to) = (run.to_str().unwrap(), edn.to_str().unwrap());
            let model = ["--model", "cas-register"];
            let export = ["export", from, "--to", "jepsen", "--key", "k0", "--arm", arm, "--output", to];
            ran(&[&export[..], &model].concat()).exits(0);
            let is_lost = properties[format!("{arm}.data")]["lost_updates"].as_u64() != Some(0);
            let judged = ran(&[&["check", to, "--initial", "0"], &EDN[..], &model].concat());
            judged.exits(i32::from(is_lost));
            lost += usize::from(is_lost);
        }
    }
    assert!((1..15).contains(&lost), "{lost} of 15 arms lost an update");
}
