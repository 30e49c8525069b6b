//! Collects the facts about how a run is made: for the head of its history, `run.json` in its directory, its reports.

use std::collections::BTreeMap;

use anyhow::Context;
use history::{Build, EngineFacts, Host, MadeBy, NodeName};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{own_servers::without_credentials, plan_file::PlanFile, run_dir::RunDir};

const SCHEMA: u32 = 1;

/// A run that is being made.
#[derive(Debug)]
pub struct Making {
    facts: MadeBy,
    /// True if a bug is planted. The head of the history must not name the bug, so that no checker can read the answer.
    is_planted: bool,
    began: Instant,
}

impl Making {
    /// Begins with the facts that are known before a run. `plan` is the text of its `plan.toml`.
    pub fn begin(file: &PlanFile, plan: &str) -> Making {
        #[expect(clippy::disallowed_methods, reason = "a date for readers, which orders nothing")]
        let now = std::time::SystemTime::now();
        let commit = Some(env!("HARNESS_COMMIT")).filter(|commit| !commit.is_empty());
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let facts = MadeBy {
            schema: SCHEMA,
            harness: Build {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                commit: commit.map(str::to_owned),
                changed: env!("HARNESS_CHANGED") == "true",
            },
            command: without_credentials(std::env::args_os().map(|word| word.to_string_lossy().into_owned())),
            started: humantime::format_rfc3339_seconds(now).to_string(),
            took_ms: None,
            seed: file.plan.seed,
            plan_sha256: format!("{:x}", Sha256::digest(plan)),
            host: Host {
                cores: std::thread::available_parallelism().map_or(0, usize::from),
                kernel: kernel.trim_end().to_owned(),
                cgroup: cgroup(),
            },
            engine: None,
            images: BTreeMap::new(),
            servers: Vec::new(),
        };
        Making { facts, is_planted: file.plants_a_bug(), began: Instant::now() }
    }

    /// Adds the engine of a run on Docker.
    pub fn on(&mut self, engine: EngineFacts) {
        self.facts.engine = Some(engine);
    }

    /// Adds the images of a run on Docker.
    pub fn with(&mut self, images: BTreeMap<String, String>) {
        self.facts.images = images;
    }

    /// Adds the servers and the wall time of a run that has ended.
    pub fn end(&mut self, servers: &[(NodeName, String)]) {
        self.facts.servers = servers.to_vec();
        self.facts.took_ms = Some(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX));
    }

    /// The facts for the head of the history: those known so far, without the command if it plants a bug.
    pub fn head(&self) -> MadeBy {
        let mut head = self.facts.clone();
        if self.is_planted {
            head.command.clear();
        }
        head
    }

    /// The facts that are known so far.
    pub fn facts(&self) -> &MadeBy {
        &self.facts
    }

    /// Writes the facts that are known so far.
    pub fn write(&self, dir: &RunDir) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.facts).context("writing how the run was made")?;
        dir.write(&dir.made_by(), text + "\n")
    }
}

/// The version of this machine's control groups.
fn cgroup() -> Option<String> {
    let root = std::path::Path::new("/sys/fs/cgroup");
    // Only version 2 has this file in its root.
    let version = if root.join("cgroup.controllers").exists() { "2" } else { "1" };
    root.exists().then(|| version.to_owned())
}

/// Reads the facts from a run's directory, if they are those of the history whose head contains `head`. None if an
/// older harness made the run, if the file cannot be read, or if it belongs to another run.
pub fn read(dir: &RunDir, head: Option<&MadeBy>) -> Option<MadeBy> {
    let made_by: MadeBy = serde_json::from_str(&std::fs::read_to_string(dir.made_by()).ok()?).ok()?;
    let is_same = |head: &MadeBy| (&head.started, &head.plan_sha256) == (&made_by.started, &made_by.plan_sha256);
    head.is_none_or(is_same).then_some(made_by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn the_head_of_a_history_has_no_command_if_the_client_or_the_resource_has_a_planted_bug() {
        for (backend, resource_bug, is_planted) in [
            ("redlock", None, false),
            ("buggy:forgets-nx", None, true),
            ("redlock", Some("admits-stale"), true),
            ("buggy:forgets-nx", Some("admits-stale"), true),
        ] {
            let resource_bug = resource_bug.map(str::to_owned);
            let scenario = Scenario { resource_bug, ..Scenario::of(backend).unwrap() };
            let making = Making::begin(&scenario.file("run".into(), scenario.base.clone()), "the text of its plan");
            let command = &making.facts().command;
            assert!(!command.is_empty(), "`run.json` has the command of every run");
            let in_head = if is_planted { Vec::new() } else { command.clone() };
            assert_eq!(making.head().command, in_head, "{backend}, {:?}", scenario.resource_bug);
        }
    }

    #[test]
    fn facts_beside_the_history_of_another_run_are_not_taken() {
        let runs = tempfile::tempdir().unwrap();
        let dir = RunDir::create(runs.path(), "run").unwrap();
        let scenario = Scenario::of("redis").unwrap();
        let making = Making::begin(&scenario.file("run".into(), scenario.base.clone()), "the text of its plan");
        making.write(&dir).unwrap();
        let head = making.head();
        assert!(read(&dir, Some(&head)).is_some() && read(&dir, None).is_some());
        let of_another_plan = MadeBy { plan_sha256: "0".repeat(64), ..head.clone() };
        let of_another_time = MadeBy { started: "2020-01-02T03:04:05Z".to_owned(), ..head };
        assert!(read(&dir, Some(&of_another_plan)).is_none() && read(&dir, Some(&of_another_time)).is_none());
    }
}
