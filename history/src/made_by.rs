//! The facts about how a run was made.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display, Formatter},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::NodeName;

/// Number of hexadecimal digits of a commit or a digest in reports.
const SHORT: usize = 12;

/// The facts about how a run was made. The head of a history contains what is known before the run; the directory of
/// the run (`run.json`) and its verdicts contain all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MadeBy {
    /// Version of this format: 1.
    pub schema: u32,
    /// The build of the harness.
    pub harness: Build,
    /// The command with all arguments. Empty in the head of a history if the command plants a bug.
    pub command: Vec<String>,
    /// Start in UTC, RFC 3339 with seconds: `2026-11-22T14:03:41Z`.
    pub started: String,
    /// Wall time of the run and of its verdicts, in milliseconds. None before the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The seed.
    pub seed: u64,
    /// SHA-256 of the run's `plan.toml`, in hexadecimal digits.
    pub plan_sha256: String,
    /// The machine of the controller.
    pub host: Host,
    /// The Docker engine. None in the simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineFacts>,
    /// The content ids of the images, by role. Empty in the simulation, and before the cluster is up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// The servers, each with the version that it reported. Empty before the run has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<(NodeName, String)>,
}

/// The build of the harness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The version of the package.
    pub version: String,
    /// The commit. None if the harness was not built in a git repository.
    pub commit: Option<String>,
    /// True if a file of the repository differed from the commit.
    pub changed: bool,
}

/// The machine of the controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Number of processors that the controller may use.
    pub cores: usize,
    /// Release of the kernel: `6.1.0-28-amd64`.
    pub kernel: String,
    /// The version of the kernel's control groups: `1` or `2`. None if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// Facts of a Docker engine, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EngineFacts {
    /// The engine's version: `20.10.24`.
    pub version: String,
    /// The version of the API that both sides know: `1.41`.
    pub api: String,
    /// The version of the kernel's control groups: `1` or `2`.
    pub cgroup: String,
    /// The storage driver: `overlay2`.
    pub storage: String,
}

fn short(text: &str) -> &str {
    text.get(..SHORT).unwrap_or(text)
}

/// A word of a command, quoted for a shell where it must be.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@+%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

impl MadeBy {
    /// Returns the command as a shell takes it.
    pub fn command_line(&self) -> String {
        self.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Returns the facts without the command and the images, which the run's directory has. They name files of one
    /// machine.
    pub fn origin(&self) -> MadeBy {
        MadeBy { command: Vec::new(), images: BTreeMap::new(), ..self.clone() }
    }

    /// Returns the facts as pairs of a name and a value, for reports.
    pub fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        let mut add = |name: &str, value: String| lines.push((name.to_owned(), value));
        let Build { version, commit, changed } = &self.harness;
        let commit = commit.as_ref().map_or_else(|| ", no commit".to_owned(), |c| format!(", commit {}", short(c)));
        let changed = if *changed { " with changes" } else { "" };
        add("made by", format!("harness {version}{commit}{changed}"));
        if !self.command.is_empty() {
            add("command", self.command_line());
        }
        let took = self.took_ms.map(Duration::from_millis).map(|took| format!(", took {:.1} s", took.as_secs_f64()));
        let started = self.started.replace('T', " ").replace('Z', " UTC");
        add("started", started + &took.unwrap_or_default());
        add("plan", format!("seed {}, SHA-256 {}", self.seed, self.plan_sha256));
        let Host { cores, kernel, cgroup } = &self.host;
        // The engine says which version its containers use.
        let cgroup = cgroup.as_ref().filter(|_| self.engine.is_none());
        let cgroup = cgroup.map(|version| format!(", cgroup v{version}")).unwrap_or_default();
        add("host", format!("{cores} cores, Linux {kernel}{cgroup}"));
        if let Some(EngineFacts { version, api, cgroup, storage }) = &self.engine {
            add("engine", format!("Docker {version}, API {api}, cgroup v{cgroup}, {storage}"));
        }
        let versions: BTreeSet<&str> = self.servers.iter().map(|(_, version)| version.as_str()).collect();
        if !versions.is_empty() {
            add("servers", versions.into_iter().collect::<Vec<_>>().join(", "));
        }
        for (role, id) in &self.images {
            add("image", format!("{role} {id}"));
        }
        lines
    }
}

impl Display for MadeBy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|(name, value)| writeln!(f, "{name:<9} {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_by() -> MadeBy {
        MadeBy {
            schema: 1,
            harness: Build { version: "0.1.0".into(), commit: Some("0123456789abcdef".into()), changed: true },
            command: ["harness", "run", "--expect", "off.data.lost_updates>=1"].map(str::to_owned).to_vec(),
            started: "2026-11-22T14:03:41Z".into(),
            took_ms: None,
            seed: 42,
            plan_sha256: "fedcba9876543210".into(),
            host: Host { cores: 2, kernel: "6.1".into(), cgroup: Some("2".into()) },
            engine: None,
            images: BTreeMap::new(),
            servers: Vec::new(),
        }
    }

    #[test]
    fn a_command_can_be_given_to_a_shell_again() {
        let text = made_by().to_string();
        assert!(text.contains("command   harness run --expect 'off.data.lost_updates>=1'\n"), "{text}");
        assert!(text.starts_with("made by   harness 0.1.0, commit 0123456789ab with changes\n"), "{text}");
    }

    #[test]
    fn a_word_with_an_apostrophe_stays_one_word_of_a_shell() {
        let mut facts = made_by();
        facts.command = ["harness", "run", "--client", "./it's mine", ""].map(str::to_owned).to_vec();
        assert_eq!(facts.command_line(), r"harness run --client './it'\''s mine' ''");
    }

    #[test]
    fn digests_and_versions_of_servers_are_whole() {
        let mut facts = made_by();
        facts.took_ms = Some(2_500);
        facts.images.insert("redis".into(), "sha256:0123456789abcdef".into());
        facts.servers = ["redis-1", "redis-2"].map(|node| (node.into(), "redis 7.0.15".to_owned())).to_vec();
        let text = facts.to_string();
        for line in ["SHA-256 fedcba9876543210\n", "redis sha256:0123456789abcdef\n", "servers   redis 7.0.15\n"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("Linux 6.1, cgroup v2\n"), "{text}");
        assert!(text.contains("\nstarted   2026-11-22 14:03:41 UTC, took 2.5 s\n"), "{text}");
    }

    #[test]
    fn facts_that_are_not_known_yet_are_left_out_of_the_file() {
        let text = serde_json::to_string(&made_by()).unwrap();
        assert!(!text.contains("took_ms") && !text.contains("images") && !text.contains("engine"), "{text}");
        assert_eq!(serde_json::from_str::<MadeBy>(&text).unwrap(), made_by());
    }
}
