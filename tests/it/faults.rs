//! Every fault on real servers, and what Redlock and etcd do under it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    support::{RealRun, container, docker, harness, may_sweep, run},
    vdso::vdso,
};

/// Kinds, targets and phases of all faults of a run, in the order of its history.
fn phases(run: &RealRun) -> Vec<(String, String, String)> {
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let events = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    events
        .filter(|event| event["event"] == "fault")
        .map(|event| (text(&event, "kind"), text(&event, "node"), text(&event, "phase")))
        .collect()
}

/// Fails unless every one of `kinds` was injected, and each time proved and proved healed.
fn all_proved(run: &RealRun, kinds: &[&str]) {
    let phases = phases(run);
    let count = |kind: &str, phase: &str| phases.iter().filter(|(k, _, p)| k == kind && p == phase).count();
    for kind in kinds {
        let injected = count(kind, "injected");
        assert!(injected > 0, "no {kind} was injected");
        assert_eq!((count(kind, "proved"), count(kind, "heal-proved")), (injected, injected), "{kind}");
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn faults_of_packets_and_clocks_come_and_go_on_real_servers() {
    let nemesis = "partition@1s+1s,delay@3s+1s,loss@5s+2s,reorder@8s+2s,clock:any-worker@2s+4s,clock@11s+2s,\
                   amnesia:redis-5@13s+500ms";
    let run = run(&["--nemesis", nemesis, "--time", "14s", "--seed", "3"]);
    all_proved(&run, &["partition", "delay", "loss", "reorder", "clock", "amnesia"]);
    // The history has the delayed packets and the marker key of the amnesia, and nothing of ours is left.
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let marker: Vec<bool> = (history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()))
        .filter_map(|event| event["answer"]["target"]["redis-marker"].as_bool())
        .collect();
    assert_eq!(marker, [true, false], "written before the fault, and gone after it");
    assert!(history.contains("\"event\":\"packets-delayed\""), "{}", run.ran.stderr);
    assert_eq!(crate::support::left_of(&run.latest()), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_member_of_etcd_that_is_paused_or_killed_or_loses_power_breaks_nothing() {
    let nemesis = "pause:etcd-1@2s+3s,kill:etcd-2@8s+1s,powerloss:etcd-3@13s+1s";
    let expected = "lock=upheld,lock.windows=0,tokens=upheld,off.data.lost_updates=0";
    let run = run(&["--backend", "etcd", "--lease", "8s", "--nemesis", nemesis, "--time", "17s", "--expect", expected])
        .exits(0);
    all_proved(&run, &["pause", "kill", "powerloss"]);
}

/// Fails if two faults of the run were on at the same time.
fn none_overlap(run: &RealRun) {
    let mut on: Option<(String, String)> = None;
    for (kind, node, phase) in phases(run) {
        match phase.as_str() {
            "injected" => assert_eq!(on.replace((kind, node)), None, "the fault before was still on"),
            "healed" => assert_eq!(on.take(), Some((kind, node))),
            _ => {}
        }
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn every_fault_of_a_member_of_etcd_is_proved_and_healed_while_a_majority_stays() {
    let nemesis = "partition:etcd-1@2s+2s,delay:etcd-2@6s+2s,loss:etcd-3@10s+2s,reorder:etcd-1@14s+2s,\
                   slow:etcd-2@18s+4s,stop:etcd-3@24s+2s";
    let expected = "lock=upheld,lock.windows=0,tokens=upheld,off.data.lost_updates=0";
    let run = run(&["--backend", "etcd", "--lease", "8s", "--nemesis", nemesis, "--time", "28s", "--expect", expected])
        .exits(0);
    let kinds = ["partition", "delay", "loss", "reorder", "slow", "stop"];
    all_proved(&run, &kinds);
    let phases = phases(&run);
    assert_eq!(phases.iter().filter(|(.., phase)| phase == "injected").count(), kinds.len());
    assert!(!phases.iter().any(|(.., phase)| phase == "unproved"), "{phases:?}");
    none_overlap(&run);
}

/// A plan of a short run with these faults: `(fault, node, due)`, in the words of a plan.
fn plan_with(dir: &Path, faults: &[(&str, &str, &str)]) -> PathBuf {
    let flags = ["run", "--cluster", "sim", "--nemesis", "none", "--time", "12s", "--seed", "1000", "--runs"];
    let made = harness().args(flags).arg(dir).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = fs::read_to_string(dir.join("latest/plan.toml")).unwrap();
    let steps = faults.iter().zip(1..).map(|((fault, node, due), id)| {
        format!(
            "\n[[plan.schedule]]\nid = {id}\nfault = {{ {fault} }}\ntarget = {{ node = \"{node}\" }}\n\
             when = {{ at = \"{due}\" }}\n"
        )
    });
    let text = text.replace("schedule = []\n", "").replace("cluster = \"sim\"", "cluster = \"docker\"");
    let plan = dir.join("faults.toml");
    fs::write(&plan, text + &steps.collect::<String>()).unwrap();
    plan
}

/// A run on real servers that goes on.
struct Going {
    child: Child,
    dir: tempfile::TempDir,
}

impl Going {
    fn start(faults: &[(&str, &str, &str)], flags: &[&str]) -> Going {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan_with(&dir.path().join("drawn"), faults);
        let mut command = harness();
        command.args(["run", "--cluster", "docker"]).arg(plan).args(flags).arg("--runs").arg(dir.path());
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        Going { child, dir }
    }

    fn latest(&self) -> Option<PathBuf> {
        self.dir.path().join("latest").canonicalize().ok()
    }

    fn history(&self) -> String {
        let path = self.latest().map(|latest| latest.join("history.jsonl"));
        path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// Waits until a fault has come so far.
    fn until(&mut self, id: u32, phase: &str) {
        let is_it = |line: &str| {
            serde_json::from_str::<Value>(line)
                .is_ok_and(|event| event["event"] == "fault" && event["fault"] == id && event["phase"] == phase)
        };
        while !self.history().lines().any(is_it) {
            assert!(self.child.try_wait().unwrap().is_none(), "the run has ended, and fault {id} was never {phase}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn container(&self, node: &str) -> String {
        container(self.latest().unwrap().file_name().unwrap().to_str().unwrap(), node)
    }

    /// What the engine says about the container of a node.
    fn inspect(&self, node: &str, format: &str) -> String {
        docker(&["inspect", "-f", format, &self.container(node)])
    }

    fn pid(&self, node: &str) -> u32 {
        self.inspect(node, "{{.State.Pid}}").parse().unwrap()
    }

    /// Whether the first process of a node is stopped by a signal.
    fn is_stopped(&self, node: &str) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid(node))).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    }

    /// Waits for its end.
    fn ends(mut self) -> RealRun {
        let code = self.child.wait().unwrap().code();
        RealRun { dir: self.dir, ran: crate::support::Ran { code, stdout: String::new(), stderr: String::new() } }
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_stopped_process_is_stopped_by_a_signal_and_goes_on_and_nobody_else_is() {
    let _guard = may_sweep();
    let stop = r#"kind = "stop", for = "5s""#;
    let mut run = Going::start(&[(stop, "worker-1", "1s"), (stop, "redis-1", "1s")], &[]);
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "injected");
        assert!(run.is_stopped(node), "{node}");
        assert_eq!(run.inspect(node, "{{.State.Paused}}"), "false", "not by the freezer");
    }
    assert!(!run.is_stopped("worker-2") && !run.is_stopped("redis-2"));
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "heal-proved");
        assert!(!run.is_stopped(node), "{node}");
    }
    assert!(!run.history().contains("unplanned"), "nobody else has stopped them");
    let run = run.ends();
    all_proved(&run, &["stop"]);
    assert_eq!(crate::support::left_of(&run.latest()), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_slow_node_has_a_quota_and_shows_it_and_none_when_it_is_healed() {
    let _guard = may_sweep();
    let slow = r#"kind = "slow", for = "5s""#;
    let mut run = Going::start(&[(slow, "worker-1", "1s"), (slow, "redis-1", "1s")], &[]);
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "injected");
        // 1 % of each 100 ms.
        assert_eq!(run.inspect(node, "{{.HostConfig.CpuQuota}}/{{.HostConfig.CpuPeriod}}"), "1000/100000", "{node}");
    }
    assert_eq!(run.inspect("redis-2", "{{.HostConfig.CpuQuota}}"), "0");
    for (id, node) in [(1, "worker-1"), (2, "redis-1")] {
        run.until(id, "heal-proved");
        assert_eq!(run.inspect(node, "{{.HostConfig.CpuQuota}}"), "-1", "{node}");
    }
    all_proved(&run.ends(), &["slow"]);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_wall_clock_that_jumps_strobes_or_drifts_is_the_hosts_again_when_it_is_healed() {
    let _guard = may_sweep();
    let strobe =
        r#"kind = "clock", clock = "wall", for = "5s", change = { strobe = { by-ms = 4000, every-ms = 150 } }"#;
    let jump = r#"kind = "clock", clock = "wall", for = "5s", change = { jump-ms = -3000 }"#;
    let drift = r#"kind = "clock", clock = "wall", for = "5s", change = { drift-ppm = 200000 }"#;
    let faults = [(strobe, "redis-1", "2s"), (jump, "redis-2", "2s"), (drift, "redis-3", "2s")];
    let mut run = Going::start(&faults, &[]);
    for (id, (_, node, _)) in (1..).zip(faults) {
        run.until(id, "injected");
        assert_ne!(vdso(run.pid(node)), vdso(std::process::id()), "{node}");
    }
    assert_eq!(vdso(run.pid("redis-4")), vdso(std::process::id()), "nobody has touched it");
    for (id, (_, node, _)) in (1..).zip(faults) {
        run.until(id, "heal-proved");
        assert_eq!(vdso(run.pid(node)), vdso(std::process::id()), "{node}");
    }
    let run = run.ends();
    all_proved(&run, &["clock"]);
    // The history has the answers of the servers: both places of the strobe, the jump, and a second that was gained.
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let told: Vec<i64> = (history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()))
        .filter_map(|event| event["answer"]["target"]["redis-time"]["least_ns"].as_i64())
        .collect();
    for expected_ms in [4_000, 0, -3_000, 1_000] {
        let is_near = |ns: &&i64| (**ns / 1_000_000 - expected_ms).abs() < 200;
        assert!(told.iter().any(|ns| is_near(&ns)), "{expected_ms} ms: {told:?}");
    }
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_server_that_somebody_restarts_during_a_fault_has_the_fault_again() {
    let _guard = may_sweep();
    let jump = r#"kind = "clock", clock = "wall", for = "6s", change = { jump-ms = 3000 }"#;
    let cut = r#"kind = "partition", for = "6s""#;
    let mut run = Going::start(&[(jump, "redis-1", "1s"), (cut, "redis-2", "1s")], &[]);
    for (id, node) in [(1, "redis-1"), (2, "redis-2")] {
        run.until(id, "injected");
        docker(&["restart", "-t", "0", &run.container(node)]);
    }
    let has_come = |is_on: &dyn Fn() -> bool| {
        (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            is_on()
        })
    };
    assert!(has_come(&|| vdso(run.pid("redis-1")) != vdso(std::process::id())), "its new process has right clocks");
    let (second, third) = (run.container("redis-2"), run.container("redis-3"));
    let answers =
        || Command::new("docker").args(["exec", &second, "redis-cli", "ping"]).output().unwrap().status.success();
    assert!(has_come(&answers), "it does not start again");
    let reached = || {
        let ping = ["exec", &third, "timeout", "0.3", "redis-cli", "-h", "redis-2", "ping"];
        Command::new("docker").args(ping).output().unwrap().status.success()
    };
    assert!(has_come(&|| !reached()), "its new network has its links");
    for id in [1, 2] {
        run.until(id, "heal-proved");
    }
    assert_eq!(vdso(run.pid("redis-1")), vdso(std::process::id()));
    assert!(has_come(&reached), "its links are cut after the heal");
    all_proved(&run.ends(), &["clock", "partition"]);
}

#[test]
#[ignore = "needs a Docker engine"]
fn servers_that_are_kept_have_the_original_code_of_their_clocks_also_where_a_monotonic_one_had_jumped() {
    let _guard = may_sweep();
    let jump = r#"kind = "clock", clock = "both", for = "1s", change = { jump-ms = 3000 }"#;
    let mut run = Going::start(&[(jump, "redis-1", "1s")], &["--keep"]);
    run.until(1, "heal-proved");
    assert_ne!(vdso(run.pid("redis-1")), vdso(std::process::id()), "a monotonic clock never goes back in a run");
    run.child.wait().unwrap();
    assert_eq!(vdso(run.pid("redis-1")), vdso(std::process::id()));
    // By its own label: others may have kept something too.
    let label = format!("label=harness.run={}", run.latest().unwrap().file_name().unwrap().to_str().unwrap());
    for (list, remove) in [(&["ps", "-aq"][..], &["rm", "-fv"][..]), (&["network", "ls", "-q"], &["network", "rm"])] {
        let listed = Command::new("docker").args(list).args(["--filter", &label]).output().unwrap();
        let ids = String::from_utf8(listed.stdout).unwrap();
        assert!(Command::new("docker").args(remove).args(ids.lines()).output().unwrap().status.success(), "{ids}");
    }
    assert_eq!(crate::support::left_of(&run.latest().unwrap()), Vec::<String>::new());
}
