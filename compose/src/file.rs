//! The servers of a backend as a Compose file: the subset of the format that is supported, and its parser.
//!
//! What the subset leaves out is refused at its line, never ignored: a key that Compose would honour and we would
//! not must not look as if it had worked.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use history::NodeName;
use serde_saphyr::{Location, Spanned};

mod written;

use written::{List, Mapping, Wrong};

/// The backends whose Compose files are built in, with the files' text.
pub const BUILTIN: &[(&str, &str)] = &[
    ("redis", include_str!("../redis.yaml")),
    ("redlock", include_str!("../redlock.yaml")),
    ("etcd", include_str!("../etcd.yaml")),
    // The same servers: what differs is whom their clients ask.
    ("etcd-server-lock", include_str!("../etcd.yaml")),
];

/// How long one healthcheck may take where the file does not say.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// A Compose file that was read and found to be inside the supported subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposeFile {
    /// Where it came from, for messages: a path, or `built-in redlock.yaml`.
    pub origin: String,
    /// Its services, in the order of the file. Each is one node.
    pub services: Vec<Service>,
}

/// One service: one server with an address of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The service's name, which is the node's.
    pub name: NodeName,
    /// What `--image ROLE=NAME` calls it: `redis`.
    pub role: String,
    /// Debian packages from which the image is built where no registry can be reached. May be empty.
    pub packages: Vec<String>,
    /// Image, by name and tag.
    pub image: String,
    /// Command and its arguments; empty where the image's own is meant.
    pub command: Vec<String>,
    /// Environment, each value as it is written in the file.
    pub environment: BTreeMap<String, String>,
    /// Command that exits with 0 exactly if the server answers.
    pub health_test: Vec<String>,
    /// How long one run of it may take.
    pub health_timeout: Duration,
    /// Command that prints the status of this server, by which it leads or does not; empty where no server leads.
    pub leader: Vec<String>,
}

/// A Compose file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read.
    #[error("cannot read the Compose file {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in it is wrong or not supported.
    #[error("{origin}:{line}:{column}: {what}")]
    Refused {
        /// The file.
        origin: String,
        /// Line, counted from 1.
        line: u64,
        /// Column, counted from 1.
        column: u64,
        /// What is wrong there, and what may stand there.
        what: String,
    },
    /// There is no built-in file of this name.
    #[error("there is no built-in Compose file for `{name}`; there are: {}", known())]
    NotBuiltin {
        /// What was asked for.
        name: String,
    },
}

fn known() -> String {
    BUILTIN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

impl ComposeFile {
    /// The built-in file of `backend`.
    ///
    /// # Errors
    /// [`FileError::NotBuiltin`] if there is none.
    pub fn builtin(backend: &str) -> Result<Self, FileError> {
        let Some((name, text)) = BUILTIN.iter().find(|(name, _)| *name == backend) else {
            return Err(FileError::NotBuiltin { name: backend.to_owned() });
        };
        Self::parse(text, &format!("built-in {name}.yaml"))
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is not inside the supported subset.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| FileError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses `text`; `origin` names it in messages.
    ///
    /// # Errors
    /// At the line and column of the first thing that is wrong or not supported.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        let options = serde_saphyr::Options { with_snippet: false, ..serde_saphyr::Options::default() };
        let refused = |wrong: Wrong| FileError::Refused {
            origin: origin.to_owned(),
            line: wrong.at.line(),
            column: wrong.at.column(),
            what: wrong.what,
        };
        let file: Mapping<written::File> =
            serde_saphyr::from_str_with_options(text, options).map_err(|e| refused(Wrong::from_yaml(&e)))?;
        let file = file.known().map_err(refused)?;
        let Some(all) = file.services.filter(|all| !all.value.is_empty()) else {
            return Err(refused(Wrong::new(Location::UNKNOWN, "no services: a cluster needs at least one")));
        };
        let mut services: Vec<_> = all.value.into_iter().collect();
        services.sort_by_key(|(_, service)| (service.referenced.line(), service.referenced.column()));
        let services =
            services.into_iter().map(|(name, raw)| service(&name, raw)).collect::<Result<_, _>>().map_err(refused)?;
        Ok(Self { origin: origin.to_owned(), services })
    }
}

fn service(name: &str, raw: Spanned<Mapping<written::Service>>) -> Result<Service, Wrong> {
    let at = raw.referenced;
    let raw = raw.value.known()?;
    node_name(name).map_err(|what| Wrong::new(at, what))?;
    let lacks = |what: &str| Wrong::new(at, format!("service `{name}` has no {what}"));
    let harness =
        raw.harness.ok_or_else(|| lacks("x-harness: {role: …}; the role is what --image calls it"))?.known()?;
    let healthcheck =
        raw.healthcheck.ok_or_else(|| lacks("healthcheck: without one nothing proves that it answers"))?;
    let (health_test, health_timeout) = health(at, healthcheck.known()?)?;
    let environment = raw.environment.into_iter().map(|(key, value)| Ok((key, literal(value)?)));
    Ok(Service {
        name: NodeName::new(name),
        role: literal(harness.role.ok_or_else(|| lacks("role in its x-harness; it is what --image calls it"))?)?,
        packages: harness.packages.into_iter().map(package).collect::<Result<_, _>>()?,
        image: literal(raw.image.ok_or_else(|| lacks("image"))?)?,
        command: raw.command.map(strings).transpose()?.unwrap_or_default(),
        environment: environment.collect::<Result<_, _>>()?,
        health_test,
        health_timeout,
        leader: harness.leader.map(strings).transpose()?.unwrap_or_default(),
    })
}

/// A list of strings that Compose would take as they are.
fn strings(list: Spanned<List>) -> Result<Vec<String>, Wrong> {
    match list.value {
        List::Items(items) => items.into_iter().map(literal).collect(),
        List::Unsplit => Err(Wrong::new(
            list.referenced,
            "expected a list of strings, as in [\"redis-cli\", \"ping\"]: a single string would have to be split",
        )),
    }
}

/// Node names become container names, network aliases and file names, and must not be those of our own nodes.
fn node_name(name: &str) -> Result<(), String> {
    let plain = !name.is_empty()
        && name.len() <= 40
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !plain {
        return Err(format!(
            "service name `{name}`: expected a to z, 0 to 9 and -, beginning with a letter, at most 40"
        ));
    }
    if matches!(name, "agent" | "resource") || name.starts_with("worker-") {
        return Err(format!("service name `{name}` is one of the harness's own nodes; name the service otherwise"));
    }
    Ok(())
}

/// A string that Compose would not change either.
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

/// Package names are given to another program: nothing but package names may pass.
fn package(text: Spanned<String>) -> Result<String, Wrong> {
    let plain = text.value.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c));
    if plain {
        Ok(text.value)
    } else {
        Err(Wrong::new(text.referenced, format!("`{}` is not the name of a Debian package", text.value)))
    }
}

/// The command to run and how long it may take.
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

/// A duration as Compose writes it: `1m30s`, `500ms`, `2s`.
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
