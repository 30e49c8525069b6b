//! Parses the Compose file of a backend, in the supported subset of the format.
//!
//! A key outside the subset is refused at its line, and never ignored: a key that only Compose honours must not look as
//! if it had worked.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use history::{NodeName, ServerFacts, Topology};
use serde_saphyr::{Location, Spanned};

use crate::user_file::read_text_file;

pub(crate) mod store;
mod written;

use written::{List, Mapping, Wrong};

/// The backends with a built-in Compose file, each with the file's text. A new backend is a new row.
pub const BUILTIN: &[(&str, &str)] = &[
    ("redis", include_str!("../redis.yaml")),
    ("redis-replicated", include_str!("../redis-replicated.yaml")),
    // The same servers: the client waits for an acknowledgement of a replica.
    ("redis-replicated-wait", include_str!("../redis-replicated.yaml")),
    ("redlock", include_str!("../redlock.yaml")),
    ("etcd", include_str!("../etcd.yaml")),
    ("etcd-server-lock", include_str!("../etcd-server-lock.yaml")),
    ("zookeeper", include_str!("../zookeeper.yaml")),
    // The same servers: the client watches more of them.
    ("zookeeper-herd", include_str!("../zookeeper.yaml")),
    ("postgres", include_str!("../postgres.yaml")),
    ("postgres-advisory", include_str!("../postgres-advisory.yaml")),
    ("postgres-row", include_str!("../postgres-row.yaml")),
    ("dynamodb", include_str!("../dynamodb.yaml")),
    ("memory", include_str!("../memory.yaml")),
    ("lock-manager", include_str!("../lock-manager.yaml")),
];

/// The role, and the name, of the server that keeps the state of the resource.
pub const STORE_ROLE: &str = "resource-store";

/// Roles that no server has: the sweep, the mounts and the images of the harness's own containers depend on them.
const OWN_ROLES: [&str; 4] = ["agent", "resource", "worker", "own"];

/// Time limit of one healthcheck if the file sets none.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// A parsed Compose file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposeFile {
    /// The file's origin, for messages: a path, or `built-in redlock.yaml`.
    pub origin: String,
    /// One line about the backend.
    pub about: String,
    /// The facts about the servers.
    pub facts: ServerFacts,
    /// The services, in the order of the file. Each service is one node.
    pub services: Vec<Service>,
}

/// One service: one server with its own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Name of the service and of its node.
    pub name: NodeName,
    /// Name of the role in `--image ROLE=NAME`: `redis`.
    pub role: String,
    /// Debian packages from which the image is built if no registry answers. May be empty.
    pub packages: Vec<String>,
    /// Python packages that the built image gets from the package index, each with its version. May be empty.
    pub python: Vec<String>,
    /// Name and tag of the image.
    pub image: String,
    /// Program in the place of the image's own entrypoint, with its first arguments; empty for the image's own.
    pub entrypoint: Vec<String>,
    /// Command and its arguments; empty for the image's own command.
    pub command: Vec<String>,
    /// Environment variables. Each value stays as it is written in the file.
    pub environment: BTreeMap<String, String>,
    /// The directory of the data that the server keeps on its disk; none if the file names none.
    pub data: Option<String>,
    /// True if the container gets the harness's binary, at [`crate::BINARY`].
    pub harness_binary: bool,
    /// Command that exits with 0 if and only if the server answers.
    pub health_test: Vec<String>,
    /// Time limit of one healthcheck.
    pub health_timeout: Duration,
    /// The command that tells whether this server leads; none if the servers elect no leader.
    pub leader: Option<LeaderTest>,
    /// True if the server copies its data to others, or from them.
    pub has_copies: bool,
}

/// A command that runs on one server, and tells whether this server leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaderTest {
    /// The command succeeds on the leader only.
    Succeeds(Vec<String>),
    /// The command prints the member's status, as `etcdctl endpoint status -w json` does.
    PrintsStatus(Vec<String>),
}

impl LeaderTest {
    /// Returns the command and its arguments.
    pub fn command(&self) -> &[String] {
        let (LeaderTest::Succeeds(command) | LeaderTest::PrintsStatus(command)) = self;
        command
    }
}

/// A Compose file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read the Compose file {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A part of the file is wrong or not supported.
    #[error("{origin}:{line}:{column}: {what}")]
    Refused {
        /// The file.
        origin: String,
        /// Line, counted from 1.
        line: u64,
        /// Column, counted from 1.
        column: u64,
        /// The problem, and the expected content.
        what: String,
    },
    /// No built-in file has this name.
    #[error("there is no built-in Compose file for `{name}`; there are: {}", known())]
    NotBuiltin {
        /// The requested name.
        name: String,
    },
}

fn known() -> String {
    BUILTIN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

impl ComposeFile {
    /// Returns the built-in file of `backend`.
    ///
    /// # Errors
    /// [`FileError::NotBuiltin`] if the backend has none.
    pub fn builtin(backend: &str) -> Result<Self, FileError> {
        let Some((index, (name, text))) = BUILTIN.iter().enumerate().find(|(_, (name, _))| *name == backend) else {
            return Err(FileError::NotBuiltin { name: backend.to_owned() });
        };
        // A self-test makes thousands of plans, so each file is parsed once.
        static PARSED: [OnceLock<ComposeFile>; BUILTIN.len()] = [const { OnceLock::new() }; BUILTIN.len()];
        if let Some(parsed) = PARSED[index].get() {
            return Ok(parsed.clone());
        }
        let parsed = Self::parse(text, &format!("built-in {name}.yaml"))?;
        Ok(PARSED[index].get_or_init(|| parsed).clone())
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, has more than 16 MiB, or is outside the supported subset.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text = read_text_file(path).map_err(|source| FileError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses `text`; `origin` names the text in messages.
    ///
    /// # Errors
    /// The line and column of the first part that is wrong or not supported.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        let (mut services, raw) = parsed(text, &[STORE_ROLE]).map_err(|wrong| refused(wrong, origin))?;
        let (about, facts, leader) = facts(raw).map_err(|wrong| refused(wrong, origin))?;
        for service in &mut services {
            service.leader.clone_from(&leader);
            service.has_copies = facts.topology != Topology::Independent;
        }
        Ok(Self { origin: origin.to_owned(), about, facts, services })
    }
}

fn refused(wrong: Wrong, origin: &str) -> FileError {
    let (line, column) = (wrong.at.line(), wrong.at.column());
    FileError::Refused { origin: origin.to_owned(), line, column, what: wrong.what }
}

/// Facts as they are written beside the services.
type RawFacts = Option<Spanned<Mapping<written::Facts>>>;

/// Parses the services, and the facts beside them. Neither a service nor a role may have a `reserved` name.
fn parsed(text: &str, reserved: &[&str]) -> Result<(Vec<Service>, RawFacts), Wrong> {
    let options = serde_saphyr::Options { with_snippet: false, ..serde_saphyr::Options::default() };
    let file: Mapping<written::File> =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| Wrong::from_yaml(&e))?;
    let file = file.known()?;
    let Some(all) = file.services.filter(|all| !all.value.is_empty()) else {
        return Err(Wrong::new(Location::UNKNOWN, "no services: a cluster needs at least one"));
    };
    let mut services: Vec<_> = all.value.into_iter().collect();
    services.sort_by_key(|(_, service)| (service.referenced.line(), service.referenced.column()));
    let services: Result<Vec<Service>, _> =
        services.into_iter().map(|(name, raw)| service(&name, raw, reserved)).collect();
    Ok((services?, file.facts))
}

fn service(name: &str, raw: Spanned<Mapping<written::Service>>, reserved: &[&str]) -> Result<Service, Wrong> {
    let at = raw.referenced;
    let raw = raw.value.known()?;
    node_name(name, reserved).map_err(|what| Wrong::new(at, what))?;
    let lacks = |what: &str| Wrong::new(at, format!("service `{name}` has no {what}"));
    let harness =
        raw.harness.ok_or_else(|| lacks("x-harness: {role: …}; the role is what --image calls it"))?.known()?;
    let healthcheck =
        raw.healthcheck.ok_or_else(|| lacks("healthcheck: without one nothing proves that it answers"))?;
    let (health_test, health_timeout) = health(at, healthcheck.known()?)?;
    let environment = raw.environment.into_iter().map(|(key, value)| Ok((key, literal(value)?)));
    Ok(Service {
        name: NodeName::new(name),
        role: role(harness.role.ok_or_else(|| lacks("role in its x-harness; it is what --image calls it"))?, reserved)?,
        packages: harness.packages.into_iter().map(package).collect::<Result<_, _>>()?,
        python: harness.python.into_iter().map(python_package).collect::<Result<_, _>>()?,
        image: literal(raw.image.ok_or_else(|| lacks("image"))?)?,
        entrypoint: raw.entrypoint.map(strings).transpose()?.unwrap_or_default(),
        command: raw.command.map(strings).transpose()?.unwrap_or_default(),
        environment: environment.collect::<Result<_, _>>()?,
        data: harness.data.map(directory).transpose()?,
        harness_binary: harness.harness_binary,
        health_test,
        health_timeout,
        leader: None,
        has_copies: false,
    })
}

/// Returns the line about the backend, the facts about its servers, and the command that finds their leader.
fn facts(raw: RawFacts) -> Result<(String, ServerFacts, Option<LeaderTest>), Wrong> {
    let keys = <written::Facts as written::Fields>::KEYS.join(", ");
    let Some(raw) = raw else {
        let what = format!("no x-harness beside the services: expected the facts about the servers, as {keys}");
        return Err(Wrong::new(Location::UNKNOWN, what));
    };
    let at = raw.referenced;
    let raw = raw.value.known()?;
    let lacks = |key: &str, example: &str| Wrong::new(at, format!("x-harness has no `{key}`; expected {example}"));
    let length = |text: Option<Spanned<String>>| text.map(duration).transpose().map(Option::unwrap_or_default);
    let leader = match (raw.leader, raw.leader_status) {
        (Some(command), None) => Some(LeaderTest::Succeeds(strings(command)?)),
        (None, Some(command)) => Some(LeaderTest::PrintsStatus(strings(command)?)),
        (None, None) => None,
        (Some(_), Some(second)) => {
            return Err(Wrong::new(second.referenced, "expected either `leader` or `leader_status`, not both"));
        }
    };
    if raw.tokens.is_empty() {
        return Err(lacks("tokens", "the kinds of fencing tokens, the default first, such as [counter, none]"));
    }
    let facts = ServerFacts {
        topology: raw.topology.ok_or_else(|| lacks("topology", "independent, replicated or one-store"))?,
        promise: raw.promise.ok_or_else(|| lacks("promise", "lease or session"))?,
        lease_clock: raw.lease_clock.ok_or_else(|| lacks("lease_clock", "wall, monotonic, both or waiter"))?,
        least_lease: length(raw.least_lease)?,
        lease_step: length(raw.lease_step)?,
        first_alarm: length(raw.first_alarm)?,
        amnesia: raw.amnesia.ok_or_else(|| lacks("amnesia", "forgets-locks or loses-membership"))?,
        kill_forgets: raw.kill_forgets.ok_or_else(|| lacks("kill_forgets", "true or false"))?,
        shows_waiting: raw.shows_waiting.ok_or_else(|| lacks("shows_waiting", "true or false"))?,
        many_processes: raw.many_processes,
        has_leader: leader.is_some(),
        tokens: raw.tokens,
        port: raw.port.ok_or_else(|| lacks("port", "the port on which every server answers"))?,
    };
    let about = literal(raw.about.ok_or_else(|| lacks("about", "one line about the backend"))?)?;
    Ok((about, facts, leader))
}

/// Returns a list of strings that Compose would not change.
fn strings(list: Spanned<List>) -> Result<Vec<String>, Wrong> {
    match list.value {
        List::Items(items) => items.into_iter().map(literal).collect(),
        List::Unsplit => Err(Wrong::new(
            list.referenced,
            "expected a list of strings, as in [\"redis-cli\", \"ping\"]: a single string would have to be split",
        )),
    }
}

/// Checks the name of a node. The name also names a container, a network alias and a file, and must differ from the
/// names of our own nodes.
fn node_name(name: &str, reserved: &[&str]) -> Result<(), String> {
    if !is_plain(name) {
        return Err(format!("service name `{name}`: expected {PLAIN}"));
    }
    if matches!(name, "agent" | "resource") || name.starts_with("worker-") || reserved.contains(&name) {
        return Err(format!("service name `{name}` is one of the harness's own nodes; name the service otherwise"));
    }
    Ok(())
}

/// Returns the name of a role. The role also names an image, and must differ from our own roles.
fn role(text: Spanned<String>, reserved: &[&str]) -> Result<String, Wrong> {
    let at = text.referenced;
    let role = literal(text)?;
    if !is_plain(&role) {
        return Err(Wrong::new(at, format!("role `{role}`: expected {PLAIN}")));
    }
    if OWN_ROLES.iter().chain(reserved).any(|own| *own == role) {
        let what = format!("role `{role}` is one of the harness's own roles; name the role otherwise");
        return Err(Wrong::new(at, what));
    }
    Ok(role)
}

/// The form of a plain name, for messages.
const PLAIN: &str = "a to z, 0 to 9 and -, beginning with a letter, at most 40";

fn is_plain(name: &str) -> bool {
    name.len() <= 40
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Returns a string that Compose would not change.
fn literal(text: Spanned<String>) -> Result<String, Wrong> {
    if text.value.contains('$') {
        return Err(Wrong::new(
            text.referenced,
            format!(
                "`{}`: Compose replaces variables at `$`, the harness does not; write the value itself",
                text.value
            ),
        ));
    }
    Ok(text.value)
}

/// Returns the path of a directory in a container.
fn directory(text: Spanned<String>) -> Result<String, Wrong> {
    let at = text.referenced;
    let path = literal(text)?;
    let mut names = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let is_plain = path.starts_with('/') && names.clone().next().is_some() && names.all(|name| name != "..");
    if is_plain { Ok(path) } else { Err(Wrong::new(at, format!("`{path}`: expected a directory such as /data"))) }
}

/// Returns the name of a Debian package. Another program gets this name, so no option may pass.
fn package(text: Spanned<String>) -> Result<String, Wrong> {
    let plain = text.value.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c));
    if plain {
        Ok(text.value)
    } else {
        Err(Wrong::new(text.referenced, format!("`{}` is not the name of a Debian package", text.value)))
    }
}

/// Returns the name of a Python package with its extras and its version. Another program gets this name, so no option
/// may pass, and no version may be left to chance.
fn python_package(text: Spanned<String>) -> Result<String, Wrong> {
    let is_plain = |part: &str, more: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let (named, version) = text.value.split_once("==").unwrap_or((&text.value, ""));
    let (name, extras) = named.split_once('[').map_or((named, None), |(name, rest)| (name, Some(rest)));
    let has_plain_extras = extras.is_none_or(|rest| rest.strip_suffix(']').is_some_and(|it| is_plain(it, "-_,")));
    if is_plain(name, "-_.") && is_plain(version, ".+!") && has_plain_extras {
        Ok(text.value)
    } else {
        let what = format!("`{}`: expected a Python package with its version, such as flask==3.1.3", text.value);
        Err(Wrong::new(text.referenced, what))
    }
}

/// Returns the healthcheck's command, and its time limit.
fn health(service: Location, raw: written::Healthcheck) -> Result<(Vec<String>, Duration), Wrong> {
    let at = raw.test.as_ref().map_or(service, |test| test.referenced);
    let mut test = raw.test.map(strings).transpose()?.unwrap_or_default();
    let form = if test.is_empty() { String::new() } else { test.remove(0) };
    let test = match (form.as_str(), test.len()) {
        ("CMD", 1..) => test,
        ("CMD-SHELL", 1) => vec!["/bin/sh".to_owned(), "-c".to_owned(), test.remove(0)],
        _ => {
            let what =
                "healthcheck: expected test: [\"CMD\", program, argument, …] or [\"CMD-SHELL\", \"command line\"]";
            return Err(Wrong::new(at, what));
        }
    };
    raw.interval.map(duration).transpose()?;
    let timeout = raw.timeout.map(duration).transpose()?.unwrap_or(HEALTH_TIMEOUT);
    Ok((test, timeout))
}

/// Parses a duration of Compose: `1m30s`, `500ms`, `2s`.
fn duration(text: Spanned<String>) -> Result<Duration, Wrong> {
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    let wrong =
        || Wrong::new(text.referenced, format!("`{}`: expected a duration such as 500ms, 2s or 1m30s", text.value));
    let mut rest = text.value.as_str();
    let mut total_ms = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit = &rest[digits..];
        let unit = &unit[..unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len())];
        let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        total_ms = number.checked_mul(*ms).and_then(|ms| total_ms.checked_add(ms)).ok_or_else(wrong)?;
        rest = &rest[digits + unit.len()..];
    }
    if total_ms == 0 { Err(wrong()) } else { Ok(Duration::from_millis(total_ms)) }
}

#[cfg(test)]
mod tests;
