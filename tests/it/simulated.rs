//! Runs in the simulation: what they show, and where they are not taken for more than they are.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Ran, harness, ran, signalled};

/// An engine that does not answer.
const NO_ENGINE: &str = "tcp://127.0.0.1:1";

struct Simulated {
    dir: tempfile::TempDir,
    ran: Ran,
}

fn run(args: &[&str]) -> Simulated {
    let dir = tempfile::tempdir().unwrap();
    let mut command = harness();
    command.arg("run").args(args).args(["--seed", "1000", "--runs"]).arg(dir.path()).env("DOCKER_HOST", NO_ENGINE);
    Simulated { ran: command.output().unwrap().into(), dir }
}

impl Simulated {
    #[track_caller]
    fn exits(self, code: i32) -> Simulated {
        assert_eq!(self.ran.code, Some(code), "{}{}", self.ran.stderr, self.ran.stdout);
        self
    }

    fn latest(&self) -> std::path::PathBuf {
        self.dir.path().join("latest").canonicalize().unwrap()
    }

    fn verdict(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.latest().join("verdict.json")).unwrap()).unwrap()
    }
}

#[test]
fn where_no_engine_answers_a_run_is_simulated_and_says_so() {
    let run = run(&["--nemesis", "pause"]).exits(1);
    assert!(run.ran.stdout.lines().next().unwrap().contains("sim, redis model"), "{}", run.ran.stdout);
    assert!(run.ran.stderr.contains("--cluster docker"), "{}", run.ran.stderr);
    assert_eq!(run.verdict()["cluster"], "sim");
}

#[test]
fn with_an_expectation_an_engine_that_does_not_answer_is_a_failure() {
    run(&["--nemesis", "pause", "--expect", "lock=violated"]).exits(3);
    run(&["--cluster", "docker"]).exits(3);
    run(&["--cluster", "auto", "--nemesis", "pause", "--expect", "lock=violated"]).exits(0);
}

#[test]
fn what_only_docker_understands_is_refused_by_name() {
    for (flag, args) in [
        ("--keep", &["--cluster", "sim", "--keep"][..]),
        ("--image", &["--cluster", "sim", "--image", "redis=valkey:8"]),
        ("--compose", &["--compose", "mine.yaml"]),
    ] {
        let run = run(args).exits(64);
        assert!(run.ran.stderr.contains(flag) && run.ran.stderr.contains("--cluster docker"), "{}", run.ran.stderr);
    }
}

#[test]
fn a_loss_of_power_needs_to_know_where_the_servers_keep_their_data() {
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("mine.yaml");
    let text = std::fs::read_to_string("compose/redis.yaml").unwrap();
    std::fs::write(&mine, text.replace("      data: /data\n", "")).unwrap();
    let flags = ["--cluster", "docker", "--backend", "redis", "--nemesis", "powerloss", "--compose"];
    let run = run(&[&flags[..], &[mine.to_str().unwrap()]].concat()).exits(64);
    for word in ["mine.yaml", "powerloss", "`data`", "redis-1"] {
        assert!(run.ran.stderr.contains(word), "{word}: {}", run.ran.stderr);
    }
}

#[test]
fn a_paused_holder_is_a_window_on_every_backend_and_every_fence_stops_it() {
    for backend in ["redis", "redlock", "etcd", "etcd-server-lock"] {
        let expected = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
            off.data.lost_updates>=1,writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0,\
            reads.fence.stale_accepted=0";
        let arms = "off,writes,reads,cas,claim";
        let flags =
            ["--cluster", "sim", "--backend", backend, "--nemesis", "pause", "--arms", arms, "--expect", expected];
        let run = run(&flags).exits(0);
        for window in run.verdict()["properties"]["lock"]["windows"].as_array().unwrap() {
            assert_eq!(window["causes"], json!(["pause"]), "{backend}");
        }
        for arm in ["reads.data", "cas.data", "claim.data"] {
            assert_eq!(run.verdict()["properties"][arm]["verdict"], "upheld", "{backend} {arm}");
        }
    }
}

#[test]
fn a_simulated_run_is_judged_again_and_run_again_as_any_other() {
    let first = run(&["--cluster", "sim", "--backend", "redlock", "--nemesis", "pause,partition,clock"]);
    let before = first.verdict();
    ran(&["check", first.latest().to_str().unwrap()]).exits(first.ran.code.unwrap());
    assert_eq!(first.verdict(), before);
    // The same plan is the same history, but for the name of the run.
    let plan = first.latest().join("plan.toml");
    let dir = tempfile::tempdir().unwrap();
    let again = harness().args(["run", plan.to_str().unwrap(), "--runs"]).arg(dir.path()).output().unwrap();
    assert_eq!(again.status.code(), first.ran.code);
    let history = |run: &std::path::Path| {
        let records = history::Reader::open(&run.join("history.jsonl")).unwrap().skip(1);
        records.map(Result::unwrap).collect::<Vec<_>>()
    };
    assert!(history(&first.latest()) == history(&dir.path().join("latest")));
}

#[test]
fn a_clock_that_jumps_lets_a_single_redis_node_give_the_lock_away() {
    let flags = "--cluster sim --backend redis --nemesis clock --work 1s --rate 2 --keys 2 --time 60s";
    let run = run(&flags.split(' ').collect::<Vec<_>>()).exits(1);
    let lock = run.verdict()["properties"]["lock"].clone();
    assert!(lock["lease_overlap"].as_u64().unwrap() >= 1 && lock["unexplained"] == 0, "{lock}");
    assert!(lock["windows"][0]["causes"].to_string().contains("clock"), "{lock}");
}

#[test]
fn a_longer_pause_gives_more_and_longer_windows() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("dose.svg");
    let args = ["dose", "pause", "--ratios", "0.5,2", "--seeds", "20", "--format", "json", "--svg"];
    let measured = Ran::from(harness().args(args).arg(&svg).output().unwrap()).exits(0);

    let dose: Value = serde_json::from_str(&measured.stdout).unwrap();
    let point = |n: usize| &dose["points"][n];
    assert_eq!((&point(0)["runs"], &point(1)["runs"]), (&json!(20), &json!(20)), "{dose}");
    assert_eq!(point(1)["windows"], 20, "a pause of two leases is survived by nobody: {dose}");
    assert!(point(0)["windows"].as_u64().unwrap() < 15, "half a lease is survived by most: {dose}");
    let longest = |n: usize| {
        let values = point(n)["overlap_ms"].as_array().unwrap().iter().filter_map(Value::as_f64);
        values.fold(0.0, f64::max)
    };
    assert!(longest(1) > longest(0) + 1_000.0, "{dose}");
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("<svg") && picture.contains("pause"));
    for ratio in ["0", "nan"] {
        ran(&["dose", "pause", "--ratios", ratio]).exits(64).says(&["outside 0.05"]);
    }
}

#[test]
fn two_steps_that_wait_for_one_leader_do_not_hold_up_the_run() {
    for seed in ["0", "1", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = harness();
        let args = ["--cluster", "sim", "--backend", "etcd", "--nemesis", "loss,kill:leader", "--seed", seed];
        command.arg("run").args(args).arg("--runs").arg(dir.path());
        let ran: Ran = command.output().unwrap().into();
        assert!(matches!(ran.code, Some(0..=2)), "seed {seed}: {}{}", ran.stderr, ran.stdout);
    }
}

#[test]
fn a_deadline_stops_a_stale_write_as_long_as_the_clocks_are_right() {
    let flags = ["--cluster", "sim", "--arms", "off,deadline", "--workers", "2", "--rate", "8"];
    let paused = ["--nemesis", "pause@before-write+6s", "--expect", "lock=violated,off.data.lost_updates>=1"];
    let data = run(&[&flags[..], &paused].concat()).exits(0).verdict()["properties"]["deadline.data"].clone();
    assert_eq!((&data["lost_updates"], &data["verdict"]), (&json!(0), &json!("measured")), "{data}");
    assert!(data["refused"].as_u64() >= Some(1), "{data}");
}

#[test]
fn two_locks_in_opposite_order_deadlock_and_are_released_in_reverse_order() {
    for (backend, more, expected) in [
        ("redis", &["--patience", "900ms"][..], "liveness.deadlocks_timed_out>=1,liveness.deadlocks_lease_ended=0"),
        ("redis", &[][..], "liveness.deadlocks_lease_ended>=1"),
        ("etcd", &["--session", "--renew", "500ms", "--patience", "900ms"][..], "liveness.deadlocks_timed_out>=1"),
    ] {
        let runs = tempfile::tempdir().unwrap();
        let run = ["run", "--cluster", "sim", "--backend", backend, "--nemesis", "none", "--seed", "3", "--rate", "8"];
        let keys = ["--workers", "4", "--locks-per-section", "2", "--keys", "2", "--opposite"];
        let expect = format!("--expect=verdict=upheld,liveness=upheld,liveness.deadlocks_unended=0,{expected}");
        let dir = format!("--runs={}", runs.path().display());
        ran(&[&run[..], &keys, more, &[&expect, &dir]].concat()).exits(0);

        let history = std::fs::read_to_string(runs.path().join("latest/history.jsonl")).unwrap();
        let mut held: std::collections::BTreeMap<String, Vec<u64>> = Default::default();
        let mut both = 0;
        for event in history.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
            let of = held.entry(event["process"].as_str().unwrap_or_default().to_owned()).or_default();
            match event["event"].as_str() {
                Some("acquired") => of.push(event["attempt"].as_u64().unwrap()),
                Some("release") => assert_eq!(of.pop(), event["hold"].as_u64(), "the last lock first"),
                _ => {}
            }
            both += u64::from(of.len() == 2 && event["event"] == "acquired");
        }
        assert!(both > 0 && held.values().all(Vec::is_empty), "{both} sections with two locks");
    }
}

#[test]
fn a_parent_excludes_its_children_unless_a_client_skips_the_intention() {
    let keys = ["--keys", "3", "--hierarchy", "0.3", "--rate", "20", "--time", "10s", "--nemesis", "none"];
    let none_lost = "lock.windows=0,off.data.lost_updates=0";
    for (backend, more, expected) in [
        ("etcd", &["--readers", "0.4"][..], format!("verdict=upheld,{none_lost}")),
        ("etcd", &["--client", "checking", "--renew", "500ms", "--arms", "off,cas,claim"], none_lost.to_owned()),
        ("etcd", &["--session"], none_lost.to_owned()),
        ("buggy:skips-intention", &[], "lock=violated,lock.lease_overlap>=1,off.data.lost_updates>=1".to_owned()),
        (
            "buggy:weak-intention",
            &["--readers", "0.4"],
            "lock=violated,lock.lease_overlap>=1,off.data.lost_updates=0".to_owned(),
        ),
    ] {
        for seed in ["1", "2", "3"] {
            let runs = tempfile::tempdir().unwrap();
            let run = ["run", "--cluster", "sim", "--backend", backend, "--seed", seed, "--expect", &expected];
            ran(&[&run[..], &keys, more, &["--runs", runs.path().to_str().unwrap()]].concat()).exits(0);
        }
    }
}

#[test]
fn a_hierarchy_is_refused_where_it_cannot_be() {
    let keys = ["run", "--cluster", "sim", "--hierarchy", "0.5", "--keys", "2"];
    for (more, said) in [
        (&["--backend", "redis"][..], "`redis` lacks the capability `hierarchical`; these have it: etcd, zookeeper"),
        (&["--backend", "etcd", "--arms", "off,writes"], "the arm `writes` cannot be used with `--hierarchy`"),
        (&["--backend", "etcd", "--locks-per-section", "2"], "takes the locks that its key needs"),
    ] {
        ran(&[&keys[..], more].concat()).exits(64).says(&[said]);
    }
    ran(&["run", "--cluster", "sim", "--backend", "etcd", "--hierarchy", "0.5"]).exits(64).says(&["`--keys`"]);
}

/// The number of run directories. The link to the latest run is none.
fn begun(runs: &Path) -> usize {
    let entries = fs::read_dir(runs).into_iter().flatten();
    entries.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir()).count()
}

#[test]
fn a_signal_ends_the_first_and_every_later_simulation() {
    let short = run(&["--cluster", "sim", "--backend", "redis", "--rate", "20", "--time", "2s"]);
    let text = fs::read_to_string(short.latest().join("plan.toml")).unwrap();
    let time = "\ntime = \"2s\"\n";
    assert!(text.contains(time), "{text}");
    // A simulation that takes longer than a signal needs.
    let plan = short.dir.path().join("long.toml");
    fs::write(&plan, text.replace(time, "\ntime = \"5m\"\n")).unwrap();
    for (signal, nth) in [(Signal::SIGINT, 1), (Signal::SIGTERM, 2), (Signal::SIGHUP, 1)] {
        let runs = short.dir.path().join(signal.as_str());
        // As a terminal starts it: `nohup make test` would let it ignore SIGHUP.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(harness().get_program()).stdin(Stdio::null());
        command.arg("run").arg(&plan).args(["--repeat", "4", "--runs"]).arg(&runs);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let is_there = (0..6_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            begun(&runs) >= nth
        });
        assert!(is_there, "run {nth} has not begun after 60 s");
        assert_eq!(signalled(&mut child, signal), Some(130), "{signal}");
        assert!(begun(&runs) < 4, "no further run begins after {signal}");
    }
}
