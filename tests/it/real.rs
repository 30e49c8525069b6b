//! Runs on real servers: claims of the README, each once. Counts are the business of `make accept`, and so are the
//! modules `long` of this binary.
//!
//! They need a Docker engine, and are run by `make test`, three at a time:
//! `cargo test --test runs -- --ignored --test-threads=3 --skip ::long:: --skip searches::`.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use crate::support::{assert_caused_by, harness, left_of, may_sweep, nobody_else_sweeps, ran, run, run_alone};

/// What a pause of the holder must show, on any backend.
const REPRODUCED: &str = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
    off.data.lost_updates>=1,writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0,\
    reads.fence.stale_rejected>=1,reads.fence.stale_accepted=0";
/// A lease of runs that must show nothing: shared machines stalled processes for 0.9 s, and a stall of more than a
/// quarter of the lease makes a control run inconclusive.
const PATIENT: &str = "8s";
/// What a run without an anomaly must show.
const NOTHING: &str =
    "verdict=upheld,lock.windows=0,writes.fence.stale_rejected=0,reads.fence.stale_rejected=0,off.data.lost_updates=0";

#[test]
#[ignore = "needs a Docker engine"]
fn a_paused_holder_of_redlock_acts_when_another_has_taken_over_and_the_fence_stops_it() {
    let run = run(&["--backend", "redlock", "--nemesis", "pause", "--time", "20s", "--expect", REPRODUCED]).exits(0);
    let lock = run.property("lock");
    for window in lock["windows"].as_array().unwrap() {
        assert_caused_by(window, "pause");
        assert!(window["staleness_ms"].as_f64().unwrap() > 0.0 && !window["witness"].as_array().unwrap().is_empty());
    }
    let heading = run.ran.stdout.lines().next().unwrap();
    for word in ["redlock", "pause faults on the lock holder at random times", "seed", "docker, redis 7."] {
        assert!(heading.contains(word), "`{word}` is missing in: {heading}");
    }
    assert!(run.ran.stdout.contains("took over") && run.ran.stdout.contains("rejected"), "a story is told");
    // The second half of a run, at any later time, gives the same.
    let before = run.verdict();
    ran(&["check", run.latest().to_str().unwrap(), "--expect", REPRODUCED]).exits(0);
    assert_eq!(run.verdict(), before);
}

#[test]
#[ignore = "needs a Docker engine"]
fn without_faults_redlock_upholds_everything() {
    run(&["--backend", "redlock", "--lease", PATIENT, "--time", "15s", "--expect", NOTHING]).exits(0);
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_mandatory_experiment_shows_two_accepted_writers_and_one_refusal() {
    let expected = "lock=violated,lock.stale_holder=1,lock.unexplained=0,off.data.stale_accepted=1,\
        off.data.lost_updates>=1,writes.fence.stale_rejected=1,writes.fence.stale_accepted=0";
    let run = run(&[
        "--backend",
        "redis",
        "--workers",
        "2",
        "--lease",
        "2s",
        "--nemesis",
        "pause@before-write+5s",
        "--expect",
        expected,
    ])
    .exits(0);
    let window = run.property("lock")["windows"][0].clone();
    let story = window["story"].to_string();
    assert!(story.contains("writes: rejected") && story.contains("off: admitted"), "{story}");
    assert!(run.ran.stdout.contains("at the point before-write"));
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_run_without_contention_is_inconclusive_and_says_what_is_missing() {
    let run = run(&["--workers", "1", "--time", "5s"]).exits(2);
    assert!(run.ran.stdout.contains("activity"), "{}", run.ran.stdout);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_lock_that_forgets_nx_is_unexplained_even_while_somebody_is_paused() {
    let flags =
        "--backend buggy:forgets-nx --workers 3 --nemesis pause:worker-3 --time 12s --arms off --work 300ms --rate 6";
    let run = run(&flags.split(' ').collect::<Vec<_>>()).exits(1);
    let lock = run.property("lock");
    assert!(lock["lease_overlap"].as_u64().unwrap() >= 1, "{lock}");
    let first = lock["windows"][0].clone();
    assert_eq!(first["causes"], serde_json::json!(["unexplained"]), "unexplained windows come first: {first}");
    // Overlaps between the two workers that nobody touched must never be laid at the door of the pause.
    let untouched = |window: &&serde_json::Value| {
        window["kind"] == "lease-overlap" && !window["workers"].as_array().unwrap().contains(&"worker-3".into())
    };
    let between_the_others: Vec<_> = lock["windows"].as_array().unwrap().iter().filter(untouched).collect();
    assert!(!between_the_others.is_empty(), "{lock}");
    for window in between_the_others {
        assert_eq!(window["causes"], serde_json::json!(["unexplained"]), "{window}");
    }
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    assert!(!history.contains("forgets-nx"), "the bug's name stands in the plan only");
    assert!(fs::read_to_string(run.latest().join("plan.toml")).unwrap().contains("buggy:forgets-nx"));
}

#[test]
#[ignore = "needs a Docker engine"]
fn two_runs_at_the_same_time_both_finish() {
    let pause =
        ["--backend", "redis", "--nemesis", "pause@before-write+5s", "--workers", "2", "--expect", "lock=violated"];
    let other = std::thread::spawn(move || run(&pause).exits(0));
    let control = ["--backend", "redis", "--lease", PATIENT, "--workers", "2", "--time", "12s", "--rate", "5"];
    run(&[&control[..], &["--expect", "lock=upheld"]].concat()).exits(0);
    other.join().unwrap();
}

/// Starts a run, waits until its faults have begun, and hands over its process and its directory.
fn begun(dir: &std::path::Path) -> std::process::Child {
    let mut child = harness()
        .args(["run", "--cluster", "docker", "--backend", "redis", "--nemesis", "pause", "--time", "60s", "--runs"])
        .arg(dir)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("fault phase")), "the run never began");
    // Keeps the pipe open, or the run would die of it.
    std::thread::spawn(move || lines.count());
    child
}

fn signal(child: &std::process::Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "needs a Docker engine"]
fn ctrl_c_leaves_nothing_behind() {
    let _guard = may_sweep();
    for name in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = begun(dir.path());
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(left_of(&dir.path().join("latest").canonicalize().unwrap()), Vec::<String>::new());
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_next_run_removes_what_a_dead_one_has_left() {
    let alone = nobody_else_sweeps();
    let dir = tempfile::tempdir().unwrap();
    let mut child = begun(dir.path());
    signal(&child, "KILL");
    child.wait().unwrap();
    let dead = dir.path().join("latest").canonicalize().unwrap();
    // It counts as alive while its newest object is younger than 10 s.
    std::thread::sleep(Duration::from_secs(12));
    let next = run_alone(&alone, &["--backend", "redis", "--workers", "1", "--time", "2s"]).exits(2);
    assert_eq!(left_of(&dead), Vec::<String>::new());
    assert!(next.ran.stderr.contains("removed what dead runs had left"), "{}", next.ran.stderr);
}

#[test]
#[ignore = "needs a Docker engine"]
fn nobody_listening_on_standard_error_does_not_keep_the_cluster_up() {
    let _guard = may_sweep();
    let dir = tempfile::tempdir().unwrap();
    let mut child = harness()
        .args(["run", "--cluster", "docker", "--backend", "redis", "--workers", "1", "--time", "60s", "--runs"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    // The heading comes when the run begins.
    let mut heading = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut heading).unwrap();
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left_of(&dir.path().join("latest").canonicalize().unwrap()), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_closed_standard_output_does_not_stop_a_run() {
    let _guard = may_sweep();
    let dir = tempfile::tempdir().unwrap();
    let mut child = harness()
        .args(["run", "--cluster", "docker", "--backend", "redis", "--workers", "1", "--time", "4s", "--runs"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Nobody reads: each line that the run prints fails.
    drop(child.stdout.take());
    let stderr = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    // One worker meets no other, so the run is inconclusive.
    assert_eq!(child.wait().unwrap().code(), Some(2), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let run = dir.path().join("latest").canonicalize().unwrap();
    assert!(run.join("verdict.json").exists(), "{stderr}");
    assert_eq!(left_of(&run), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_new_build_in_the_place_of_the_binary_does_not_stop_a_run() {
    let _guard = may_sweep();
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("harness");
    // `cp`, not this process: a test that forks meanwhile would inherit the open file, and nobody could run it.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_harness")).arg(&binary).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new(&binary);
    command.args(["run", "--cluster", "docker", "--backend", "redis", "--workers", "1", "--time", "2s", "--runs"]);
    let child = command.arg(dir.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::fs::remove_file(&binary).unwrap();
    let ran = child.wait_with_output().unwrap();
    // One worker meets no other, so the run is inconclusive.
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// A Compose file with one Redis that is started with `command`.
fn redis_started_with(dir: &std::path::Path, command: &str, health: &str) -> std::path::PathBuf {
    let file = dir.join("mine.yaml");
    let text = format!(
        "services:\n  redis-1:\n    image: redis:7.0.15-bookworm\n    command: {command}\n    healthcheck:\n\
         \x20     test: {health}\n    x-harness:\n      role: redis\n      packages: [redis-server, redis-tools]\n\
         x-harness: {{about: one Redis, topology: independent, promise: lease, lease_clock: wall, \
         amnesia: forgets-locks, kill_forgets: true, shows_waiting: true, tokens: [counter, none], port: 6379}}\n"
    );
    fs::write(&file, text).unwrap();
    file
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_image_that_does_not_start_is_named_with_its_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let command = r#"["redis-server", "--no-such-option", "1"]"#;
    let file = redis_started_with(dir.path(), command, r#"["CMD", "redis-cli", "ping"]"#);
    let run = run(&["--backend", "redis", "--compose", file.to_str().unwrap()]).exits(3);
    for word in ["redis-1", "no-such-option"] {
        assert!(run.ran.stderr.contains(word), "`{word}` is missing in {}", run.ran.stderr);
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn an_image_that_nobody_has_is_named() {
    let run = run(&["--backend", "redis", "--image", "redis=harness-test/no-such-image:1"]).exits(3);
    assert!(run.ran.stderr.contains("harness-test/no-such-image:1"), "{}", run.ran.stderr);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_worker_that_dies_at_once_is_named_with_its_last_words() {
    // Healthy by its own word, and nobody listens: the worker finds no Redis there.
    let dir = tempfile::tempdir().unwrap();
    let file = redis_started_with(dir.path(), r#"["sleep", "60"]"#, r#"["CMD", "true"]"#);
    let run = run(&["--backend", "redis", "--compose", file.to_str().unwrap()]).exits(3);
    for word in ["worker-", "ended with code 3", "redis-1:6379"] {
        assert!(run.ran.stderr.contains(word), "`{word}` is missing in {}", run.ran.stderr);
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn kept_servers_stay_until_they_are_asked_to_go() {
    // The run's objects must be older than a run that may be starting, or `clean` leaves them.
    let lease = ["--lease", PATIENT];
    let flags = ["--backend", "redis", "--workers", "2", "--time", "14s", "--rate", "8", "--keep"];
    let run = run(&[&lease[..], &flags].concat());
    // `clean` removes what dead runs have left, too. `run` takes this lock itself, and has released it.
    let _guard = may_sweep();
    let left = left_of(&run.latest());
    assert_eq!(left.len(), 2, "one server and its network: {left:?}");
    ran(&["clean"]).exits(0);
    assert_eq!(left_of(&run.latest()), left);
    ran(&["clean", "--kept"]).exits(0);
    assert_eq!(left_of(&run.latest()), Vec::<String>::new());
    assert_eq!(run.ran.code, Some(0));
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_single_redis_node_gives_the_same_windows() {
        run(&["--backend", "redis", "--nemesis", "pause", "--time", "20s", "--expect", REPRODUCED]).exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn without_faults_a_single_redis_node_upholds_everything() {
        run(&[
            "--backend",
            "redis",
            "--lease",
            PATIENT,
            "--time",
            "15s",
            "--arms",
            "off,writes,reads,cas",
            "--expect",
            NOTHING,
        ])
        .exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_killed_holder_breaks_nothing_and_the_summary_says_how_long_it_blocked_the_key() {
        let run =
            run(&["--backend", "redlock", "--nemesis", "kill", "--time", "20s", "--expect", "lock=upheld"]).exits(0);
        let blocked = run.property("liveness")["blocked"].clone();
        assert!(!blocked.as_array().unwrap().is_empty(), "{blocked}");
        assert!(run.ran.stdout.contains("blocked the key for"));
        let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
        assert!(history.contains("#2\""), "a killed worker comes back as a new process");
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_checking_client_is_caught_by_a_pause_right_after_its_check() {
        run(&["--client", "checking", "--nemesis", "pause@before-write", "--expect", REPRODUCED]).exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn work_that_outlasts_the_lease_is_an_overrun() {
        let expected = "lock=violated,lock.stale_holder>=1,lock.unexplained=0,reads.fence.stale_rejected>=1";
        let run = run(&["--work", "3s", "--keys", "2", "--rate", "2", "--time", "25s", "--expect", expected]);
        let windows = run.property("lock")["windows"].clone();
        for window in windows.as_array().unwrap() {
            assert_caused_by(window, "overrun");
        }
        run.exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn renewing_does_not_close_the_window() {
        let run = run(&["--renew", "50ms", "--nemesis", "pause", "--time", "20s", "--expect", REPRODUCED]).exits(0);
        let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
        assert!(history.contains("\"event\":\"renewed\""), "the renewals are on record");
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn renewing_carries_work_beyond_the_lease() {
        let load = "--lease 6s --work 7s --renew 1s --keys 6 --clients-per-worker 2 --rate 2 --time 35s";
        run(&load.split(' ').chain(["--expect", "lock.windows=0"]).collect::<Vec<_>>()).exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_pause_shorter_than_the_lease_violates_nothing() {
        let run = run(&[
            "--nemesis",
            "pause+500ms",
            "--lease",
            PATIENT,
            "--time",
            "15s",
            "--expect",
            "lock=upheld,lock.windows=0",
        ]);
        assert!(run.ran.stdout.contains("lock: "), "the reason is given:\n{}", run.ran.stdout);
        run.exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_client_without_the_validity_check_claims_a_dead_lock() {
        let dead =
            run(&["--backend", "buggy:no-validity", "--workers", "2", "--nemesis", "pause@after-send+3s"]).exits(1);
        assert!(!dead.property("lock")["dead_claims"].as_array().unwrap().is_empty());
        let correct = run(&["--backend", "redis", "--workers", "2", "--nemesis", "pause@after-send+3s"]);
        assert_eq!(correct.property("lock")["verdict"], "upheld", "the correct client on the same plan");
        correct.exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn planted_bugs_of_the_resource_are_caught_by_its_fences() {
        let paused = ["--nemesis", "pause@before-write", "--workers", "2"];
        // Only a stale write that comes between a later hold's read and its write tells whether reads register.
        let overrun = ["--work", "2500ms", "--time", "12s"];
        for (bug, arm, plan) in [
            ("compares-wrongly", "writes", paused),
            ("admits-stale", "writes", paused),
            ("reads-do-not-register", "reads", overrun),
        ] {
            let named = format!("buggy:{bug}");
            let run = run(&[&["--backend", "redis", "--resource", &named][..], &plan].concat()).exits(1);
            assert_eq!(run.property(&format!("{arm}.fence"))["verdict"], "violated", "{bug}");
            let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
            assert!(!history.contains(bug), "the bug's name stands in the plan only");
        }
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn an_arm_that_refuses_one_write_in_a_hundred_is_caught() {
        let run = run(&[
            "--backend",
            "redis",
            "--resource",
            "buggy:refuses-at-random",
            "--work",
            "1ms",
            "--retry-delay",
            "1ms..5ms",
            "--rate",
            "60",
            "--time",
            "15s",
            "--seed",
            "7",
        ])
        .exits(1);
        let fence = run.property("writes.fence");
        assert!(fence["verdict"] == "violated" && fence["unjustified"].as_u64().unwrap() >= 1, "{fence}");
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn every_kind_of_token_and_comparison_runs() {
        let strict = "--lease 8s --backend redis --fence strict --time 6s --rate 8 --work 50ms --workers 3 \
                      --clients-per-worker 2";
        let strict = run(&strict.split_whitespace().collect::<Vec<_>>()).exits(0);
        assert!(strict.property("reads.fence").is_null(), "strict cannot go with the arm `reads`");
        let plain =
            run(&"--lease 8s --tokens majority-max --time 6s --rate 8 --work 50ms".split(' ').collect::<Vec<_>>());
        // Without faults the counters of the nodes may or may not differ enough for a violation.
        assert!(matches!(plain.ran.code, Some(0 | 1)), "{}", plain.ran.stdout);
        let none =
            run(&"--lease 8s --tokens none --time 6s --rate 16 --work 100ms --keys 2".split(' ').collect::<Vec<_>>())
                .exits(0);
        assert_eq!(none.property("tokens")["verdict"], "n/a");
        assert!(none.property("writes.fence").is_null(), "without tokens there is no fence");
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_plan_is_run_again_with_the_same_schedule() {
        let first = run(&["--backend", "redis", "--nemesis", "pause@before-write", "--workers", "2"]).exits(1);
        let plan = first.latest().join("plan.toml");
        let again = run(&[plan.to_str().unwrap()]).exits(1);
        let schedule = |dir: &std::path::Path| {
            let text = fs::read_to_string(dir.join("plan.toml")).unwrap();
            text[text.find("[[plan.schedule]]").unwrap()..].to_owned()
        };
        assert_eq!(schedule(&first.latest()), schedule(&again.latest()));
        assert_ne!(first.latest().file_name(), again.latest().file_name());
    }
}
