//! The facts about how a run was made: `run.json` in its directory, and the end of its report.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    time::Duration,
};

use anyhow::Context;
use compose::EngineFacts;
use history::NodeName;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{plan_file::PlanFile, run_dir::RunDir};

const SCHEMA: u32 = 1;
/// Number of hexadecimal digits of a commit or a digest in reports.
const SHORT: usize = 12;

/// The facts about how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeBy {
    schema: u32,
    harness: Build,
    /// The command with all arguments.
    command: Vec<String>,
    /// Start in UTC, RFC 3339 with seconds.
    started: String,
    /// Wall time of the run and of its verdicts, in milliseconds. None if the run did not end.
    took_ms: Option<u64>,
    seed: u64,
    /// SHA-256 of the run's `plan.toml`.
    plan_sha256: String,
    host: Host,
    /// None in the simulation.
    engine: Option<EngineFacts>,
    /// The content ids of the images, by role. Empty in the simulation.
    images: BTreeMap<String, String>,
    /// The servers, each with the version that it reported.
    servers: Vec<(NodeName, String)>,
}

/// The build of the harness.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    version: String,
    /// None if it was not built in a git repository.
    commit: Option<String>,
    /// True if a file of the repository differed from the commit.
    changed: bool,
}

/// The machine of the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    /// Number of processors that this process may use.
    cores: usize,
    /// Release of the kernel: `6.1.0-28-amd64`.
    kernel: String,
}

/// A run that is being made.
#[derive(Debug)]
pub struct Making {
    facts: MadeBy,
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
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            started: humantime::format_rfc3339_seconds(now).to_string(),
            took_ms: None,
            seed: file.plan.seed,
            plan_sha256: format!("{:x}", Sha256::digest(plan)),
            host: Host {
                cores: std::thread::available_parallelism().map_or(0, usize::from),
                kernel: kernel.trim_end().to_owned(),
            },
            engine: None,
            images: BTreeMap::new(),
            servers: Vec::new(),
        };
        Making { facts, began: Instant::now() }
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

    /// Writes the facts that are known so far.
    pub fn write(&self, dir: &RunDir) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.facts).context("writing how the run was made")?;
        dir.write(&dir.made_by(), text + "\n")
    }
}

impl MadeBy {
    /// Reads the facts from a run's directory. None if an older harness made the run, or the file cannot be read.
    pub fn read(dir: &RunDir) -> Option<MadeBy> {
        serde_json::from_str(&std::fs::read_to_string(dir.made_by()).ok()?).ok()
    }
}

fn short(text: &str) -> &str {
    text.get(..SHORT).unwrap_or(text)
}

impl Display for MadeBy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Build { version, commit, changed } = &self.harness;
        let commit = commit.as_ref().map_or_else(|| ", no commit".to_owned(), |c| format!(", commit {}", short(c)));
        let changed = if *changed { " with changes" } else { "" };
        writeln!(f, "made by   harness {version}{commit}{changed}")?;
        writeln!(f, "command   {}", self.command.join(" "))?;
        let took = self.took_ms.map(Duration::from_millis).map(|took| format!(", took {:.1} s", took.as_secs_f64()));
        let started = self.started.replace('T', " ").replace('Z', " UTC");
        writeln!(f, "started   {started}{}", took.unwrap_or_default())?;
        writeln!(f, "plan      seed {}, SHA-256 {}", self.seed, short(&self.plan_sha256))?;
        writeln!(f, "host      {} cores, Linux {}", self.host.cores, self.host.kernel)?;
        if let Some(EngineFacts { version, api, cgroup, storage }) = &self.engine {
            writeln!(f, "engine    Docker {version}, API {api}, cgroup v{cgroup}, {storage}")?;
        }
        for (role, id) in &self.images {
            writeln!(f, "image     {role} {}", short(id.trim_start_matches("sha256:")))?;
        }
        Ok(())
    }
}
