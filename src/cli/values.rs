//! Parsers of flag values.

use clap::{
    ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use history::{ClientKind, ClusterKind, duration};
use linearizability::ModelKind;
use serde::{
    Deserialize,
    de::{IntoDeserializer, value::Error},
};

/// The format of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs; of one run the content of `verdict.json`
    Json,
}

/// The value of `--client`: a kind of client, or the command of a client program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFlag {
    /// A built-in kind.
    Kind(ClientKind),
    /// The command.
    Program(String),
}

/// Parses `--client`. Every value that is no kind of client is a command.
pub fn client(text: &str) -> Result<ClientFlag, String> {
    Ok(match text {
        "unchecked" => ClientFlag::Kind(ClientKind::Unchecked),
        "checking" => ClientFlag::Kind(ClientKind::Checking),
        command => ClientFlag::Program(command.to_owned()),
    })
}

/// Parses the name of a Debian package. Another program gets this name, so no option may pass.
pub fn package(text: &str) -> Result<String, String> {
    let is_plain = text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c));
    if is_plain {
        Ok(text.to_owned())
    } else {
        Err("expected names of Debian packages, such as `python3-redis`".into())
    }
}

/// Parses the address of a server: `redis-1=127.0.0.1:6379`.
pub fn named_server(text: &str) -> Result<(String, String), String> {
    let is_port = |address: &str| {
        let split = address.rsplit_once(':');
        split.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    match text.split_once('=') {
        Some((name, address)) if !name.is_empty() && is_port(address) => Ok((name.to_owned(), address.to_owned())),
        _ => Err("expected NAME=HOST:PORT, such as `redis-1=127.0.0.1:6379`".into()),
    }
}

/// Names of `--fence`.
pub const COMPARISONS: Words = &[
    ("default", "Refuse a smaller token, and an equal token from another hold"),
    ("strict", "Refuse an equal token from the same hold too: one write per hold; leaves out the arm `reads`"),
];

/// Names of `--lease-clock`.
pub const LEASE_CLOCKS: Words = &[
    ("both", "A lease ends when both the wall clock and the monotonic clock have passed its end: etcd 3.4"),
    ("monotonic", "A lease ends when the monotonic clock has passed its end: etcd from 3.5 on"),
];

/// Names of `--persistence`.
pub const PERSISTENCES: Words = &[
    ("no", "Nothing: `appendonly no`"),
    ("snapshot", "A snapshot every 6 s if a key has changed: `save 5 1`, in whole seconds"),
    ("everysec", "All writes up to the last full second: `appendfsync everysec`"),
    ("always", "Every write before its answer: `appendfsync always`"),
];

/// Names of an enum of `history`, each with its help.
type Words = &'static [(&'static str, &'static str)];

/// Parses the names that plans use into an enum of `history`.
pub fn named<T>(words: Words) -> impl TypedValueParser<Value = T>
where
    T: for<'de> Deserialize<'de> + Clone + Send + Sync + 'static,
{
    let words = words.iter().map(|(name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(words).try_map(|name| T::deserialize(IntoDeserializer::<Error>::into_deserializer(name)))
}

/// Parses the object that a history of another program is about.
pub fn model() -> impl TypedValueParser<Value = ModelKind> {
    let names = ModelKind::ALL.map(|(name, _)| PossibleValue::new(name));
    PossibleValuesParser::new(names).try_map(|name| {
        let found = ModelKind::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| kind).ok_or_else(|| format!("no model `{name}`"))
    })
}

/// Parses a cluster; `auto` is no answer where a verdict must say where it comes from.
pub fn cluster(text: &str) -> Result<ClusterKind, String> {
    [ClusterKind::Docker, ClusterKind::Sim]
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| "expected docker or sim: a result must say where it was measured".into())
}

/// Parses a duration, or a range of durations: `100ms..200ms`.
pub fn range(text: &str) -> Result<history::Range, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    Ok(history::Range { from: duration(from)?, to: duration(to)? })
}

/// Parses an image for a role: `redis=valkey/valkey:8`.
pub fn role_and_image(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((role, image)) if !role.is_empty() && !image.is_empty() => Ok((role.to_owned(), image.to_owned())),
        _ => Err("expected ROLE=NAME, such as `redis=valkey/valkey:8`".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn no_flag_takes_a_duration_that_no_plan_can_have() {
        for (command, flag) in [
            ("run", "--work"),
            ("run", "--resend"),
            ("run", "--cancel"),
            ("run", "--patience"),
            ("run", "--time"),
            ("explore", "--budget"),
        ] {
            let parsed = |value| Cli::try_parse_from(["harness", command, flag, value]);
            assert!(parsed("99years").is_ok(), "{flag}");
            for long in ["101years", "18446744073709551615s"] {
                let refused = parsed(long).unwrap_err().to_string();
                assert!(refused.contains("longer than 100 years"), "{flag} {long}: {refused}");
            }
        }
    }

    #[test]
    fn no_option_passes_for_the_name_of_a_package() {
        for name in ["python3-redis", "libstdc++6", "libpython3.11", "7zip"] {
            assert_eq!(package(name), Ok(name.to_owned()));
        }
        for wrong in ["-y", "--purge", "+jq", ".jq", "jq redis", "jq=1", "Jq", ""] {
            assert!(package(wrong).is_err(), "{wrong}");
        }
    }
}
