//! The text of the file as mappings that remember their first unknown key and its place.
//!
//! serde's `deny_unknown_fields` reports an error at the beginning of the mapping, many lines from the key. So this
//! code reads the keys itself, and refuses unknown keys afterwards.

use std::{collections::BTreeMap, marker::PhantomData};

use history::{Amnesia, LeaseClock, Promise, Tokens, Topology};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};

/// A problem, and its place.
#[derive(Debug)]
pub(super) struct Wrong {
    pub at: Location,
    pub what: String,
}

impl Wrong {
    pub(super) fn new(at: Location, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }

    /// Converts an error of the parser.
    pub(super) fn from_yaml(error: &serde_saphyr::Error) -> Self {
        let text = error.to_string();
        // The parser writes the place after the message; our messages begin with it.
        let what = text.split(" at line ").next().unwrap_or(&text);
        Self::new(error.location().unwrap_or(Location::UNKNOWN), what)
    }
}

/// The keys of one kind of mapping, and their values.
pub(super) trait Fields: Default {
    /// The supported keys.
    const KEYS: &'static [&'static str];
    /// Reads the value of a supported key.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// A mapping, with its first unsupported key.
#[derive(Debug)]
pub(super) struct Mapping<T> {
    fields: T,
    stranger: Option<Spanned<String>>,
}

impl<T: Fields> Mapping<T> {
    /// Returns the values if all keys are supported.
    pub(super) fn known(self) -> Result<T, Wrong> {
        let Some(key) = self.stranger else { return Ok(self.fields) };
        let keys = T::KEYS.join(", ");
        Err(Wrong::new(key.referenced, format!("`{}` is not supported here; supported are: {keys}", key.value)))
    }
}

impl<'de, T: Fields> Deserialize<'de> for Mapping<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<T>(PhantomData<T>);
        impl<'de, T: Fields> Visitor<'de> for Keys<T> {
            type Value = Mapping<T>;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                write!(f, "a mapping of {}", T::KEYS.join(", "))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Mapping<T>, A::Error> {
                let mut read = Mapping { fields: T::default(), stranger: None };
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    if T::KEYS.contains(&key.value.as_str()) {
                        read.fields.read(&key.value, &mut map)?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                        read.stranger.get_or_insert(key);
                    }
                }
                Ok(read)
            }
        }
        deserializer.deserialize_map(Keys(PhantomData))
    }
}

/// The whole file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub services: Option<Spanned<BTreeMap<String, Spanned<Mapping<Service>>>>>,
    pub facts: Option<Spanned<Mapping<Facts>>>,
}

impl Fields for File {
    const KEYS: &'static [&'static str] = &["services", "version", "x-harness"];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "services" => self.services = map.next_value()?,
            "x-harness" => self.facts = Some(map.next_value()?),
            // Only Compose reads this key.
            _ => drop(map.next_value::<String>()?),
        }
        Ok(())
    }
}

/// A service.
#[derive(Debug, Default)]
pub(super) struct Service {
    pub image: Option<Spanned<String>>,
    pub entrypoint: Option<Spanned<List>>,
    pub command: Option<Spanned<List>>,
    pub environment: BTreeMap<String, Spanned<String>>,
    pub healthcheck: Option<Mapping<Healthcheck>>,
    pub harness: Option<Mapping<Harness>>,
}

impl Fields for Service {
    const KEYS: &'static [&'static str] =
        &["image", "entrypoint", "command", "environment", "healthcheck", "x-harness"];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "image" => self.image = map.next_value()?,
            "entrypoint" => self.entrypoint = Some(map.next_value()?),
            "command" => self.command = Some(map.next_value()?),
            "environment" => self.environment = map.next_value()?,
            "healthcheck" => self.healthcheck = Some(map.next_value()?),
            _ => self.harness = Some(map.next_value()?),
        }
        Ok(())
    }
}

/// A healthcheck.
#[derive(Debug, Default)]
pub(super) struct Healthcheck {
    pub test: Option<Spanned<List>>,
    /// Only Compose reads this and `retries`. The harness repeats the healthcheck as often as possible while it waits.
    pub interval: Option<Spanned<String>>,
    pub timeout: Option<Spanned<String>>,
}

impl Fields for Healthcheck {
    const KEYS: &'static [&'static str] = &["test", "interval", "timeout", "retries"];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "test" => self.test = Some(map.next_value()?),
            "interval" => self.interval = map.next_value()?,
            "timeout" => self.timeout = map.next_value()?,
            _ => drop(map.next_value::<u32>()?),
        }
        Ok(())
    }
}

/// The facts about the servers, for which Compose has no key.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub about: Option<Spanned<String>>,
    pub topology: Option<Topology>,
    pub promise: Option<Promise>,
    pub lease_clock: Option<LeaseClock>,
    pub least_lease: Option<Spanned<String>>,
    pub lease_step: Option<Spanned<String>>,
    pub first_alarm: Option<Spanned<String>>,
    pub amnesia: Option<Amnesia>,
    pub kill_forgets: Option<bool>,
    pub shows_waiting: Option<bool>,
    pub many_processes: bool,
    pub tokens: Vec<Tokens>,
    pub port: Option<u16>,
    pub leader: Option<Spanned<List>>,
    pub leader_status: Option<Spanned<List>>,
}

impl Fields for Facts {
    const KEYS: &'static [&'static str] = &[
        "about",
        "topology",
        "promise",
        "lease_clock",
        "least_lease",
        "lease_step",
        "first_alarm",
        "amnesia",
        "kill_forgets",
        "shows_waiting",
        "many_processes",
        "tokens",
        "port",
        "leader",
        "leader_status",
    ];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "about" => self.about = map.next_value()?,
            "topology" => self.topology = map.next_value()?,
            "promise" => self.promise = map.next_value()?,
            "lease_clock" => self.lease_clock = map.next_value()?,
            "least_lease" => self.least_lease = map.next_value()?,
            "lease_step" => self.lease_step = map.next_value()?,
            "first_alarm" => self.first_alarm = map.next_value()?,
            "amnesia" => self.amnesia = map.next_value()?,
            "kill_forgets" => self.kill_forgets = map.next_value()?,
            "shows_waiting" => self.shows_waiting = map.next_value()?,
            "many_processes" => self.many_processes = map.next_value()?,
            "tokens" => self.tokens = map.next_value()?,
            "port" => self.port = map.next_value()?,
            "leader" => self.leader = Some(map.next_value()?),
            _ => self.leader_status = Some(map.next_value()?),
        }
        Ok(())
    }
}

/// The settings of one service for which Compose has no key.
#[derive(Debug, Default)]
pub(super) struct Harness {
    pub role: Option<Spanned<String>>,
    pub packages: Vec<Spanned<String>>,
    pub python: Vec<Spanned<String>>,
    pub data: Option<Spanned<String>>,
    pub harness_binary: bool,
}

impl Fields for Harness {
    const KEYS: &'static [&'static str] = &["role", "packages", "python", "data", "harness_binary"];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "role" => self.role = map.next_value()?,
            "packages" => self.packages = map.next_value()?,
            "python" => self.python = map.next_value()?,
            "data" => self.data = Some(map.next_value()?),
            _ => self.harness_binary = map.next_value()?,
        }
        Ok(())
    }
}

/// A list of strings, or the single string that Compose would split as a shell does.
#[derive(Debug)]
pub(super) enum List {
    Items(Vec<Spanned<String>>),
    Unsplit,
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = List;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a list of strings")
            }
            fn visit_str<E>(self, _: &str) -> Result<List, E> {
                Ok(List::Unsplit)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(List::Items(items))
            }
        }
        deserializer.deserialize_any(Seen)
    }
}
