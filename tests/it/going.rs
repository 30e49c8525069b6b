//! A run on real servers that is looked at while it goes on, and the phases of its faults.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::support::{RealRun, container, docker, harness};

/// The events of all faults of a run, in the order of its history.
fn faults(run: &RealRun) -> Vec<Value> {
    let history = fs::read_to_string(run.latest().join("history.jsonl")).unwrap();
    let events = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == "fault").collect()
}

/// Kinds, targets and phases of all faults of a run, in the order of its history.
pub fn phases(run: &RealRun) -> Vec<(String, String, String)> {
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    faults(run).iter().map(|event| (text(event, "kind"), text(event, "node"), text(event, "phase"))).collect()
}

/// Fails unless every one of `kinds` was injected, and each time proved and proved healed.
pub fn all_proved(run: &RealRun, kinds: &[&str]) {
    let phases = phases(run);
    let unproved: Vec<Value> = faults(run).into_iter().filter(|event| event["phase"] == "unproved").collect();
    let count = |kind: &str, phase: &str| phases.iter().filter(|(k, _, p)| k == kind && p == phase).count();
    for kind in kinds {
        let injected = count(kind, "injected");
        assert!(injected > 0, "no {kind} was injected");
        let proved = (count(kind, "proved"), count(kind, "heal-proved"));
        assert_eq!(proved, (injected, injected), "{kind}: {phases:?} {unproved:?}");
    }
}

/// A plan of a run of this length with these faults: `(fault, node, due)`, in the words of a plan.
fn plan_with(dir: &Path, time: &str, faults: &[(&str, &str, &str)]) -> PathBuf {
    let flags = ["run", "--cluster", "sim", "--nemesis", "none", "--time", time, "--seed", "1000", "--runs"];
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
pub struct Going {
    pub child: Child,
    dir: tempfile::TempDir,
}

impl Going {
    /// Starts a run of this length with these faults: `(fault, node, due)`, in the words of a plan. A test that looks
    /// at its containers by the engine's commands needs seconds for them on a busy machine: the faults and the run must
    /// last longer.
    pub fn start(time: &str, faults: &[(&str, &str, &str)], flags: &[&str]) -> Going {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan_with(&dir.path().join("drawn"), time, faults);
        let mut command = harness();
        command.args(["run", "--cluster", "docker"]).arg(plan).args(flags).arg("--runs").arg(dir.path());
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        Going { child, dir }
    }

    pub fn latest(&self) -> Option<PathBuf> {
        self.dir.path().join("latest").canonicalize().ok()
    }

    pub fn history(&self) -> String {
        let path = self.latest().map(|latest| latest.join("history.jsonl"));
        path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// Waits until a fault has come so far.
    pub fn until(&mut self, id: u32, phase: &str) {
        let is_it = |line: &str| {
            serde_json::from_str::<Value>(line)
                .is_ok_and(|event| event["event"] == "fault" && event["fault"] == id && event["phase"] == phase)
        };
        while !self.history().lines().any(is_it) {
            if self.child.try_wait().unwrap().is_some() {
                let history = self.history();
                let faults: Vec<&str> = history.lines().filter(|line| line.contains(r#""event":"fault""#)).collect();
                panic!("the run has ended, and fault {id} was never {phase}:\n{}", faults.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn container(&self, node: &str) -> String {
        container(self.latest().unwrap().file_name().unwrap().to_str().unwrap(), node)
    }

    /// Asks the engine about the container of a node.
    pub fn inspect(&self, node: &str, format: &str) -> String {
        docker(&["inspect", "-f", format, &self.container(node)])
    }

    pub fn pid(&self, node: &str) -> u32 {
        self.inspect(node, "{{.State.Pid}}").parse().unwrap()
    }

    /// Returns true if a signal has stopped the first process of a node.
    pub fn is_stopped(&self, node: &str) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid(node))).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    }

    /// Interrupts it, because the rest of its time would show nothing.
    pub fn interrupted(self) -> RealRun {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGINT).unwrap();
        self.ends()
    }

    /// Waits for its end.
    pub fn ends(mut self) -> RealRun {
        let code = self.child.wait().unwrap().code();
        RealRun { dir: self.dir, ran: crate::support::Ran { code, stdout: String::new(), stderr: String::new() } }
    }
}
