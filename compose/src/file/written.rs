//! The file as it is written: mappings whose unknown keys are remembered with their place.
//!
//! serde's own `deny_unknown_fields` gives an error at the beginning of the mapping, many lines from the key; so
//! the keys are read here, and those that nobody knows are refused afterwards.

use std::{collections::BTreeMap, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};

/// What is wrong, and where.
#[derive(Debug)]
pub(super) struct Wrong {
    pub at: Location,
    pub what: String,
}

impl Wrong {
    pub(super) fn new(at: Location, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }

    /// Something that the parser found.
    pub(super) fn from_yaml(error: &serde_saphyr::Error) -> Self {
        let text = error.to_string();
        // It puts the place behind the message; ours stands before it.
        let what = text.split(" at line ").next().unwrap_or(&text);
        Self::new(error.location().unwrap_or(Location::UNKNOWN), what)
    }
}

/// The keys of one kind of mapping, and what is read from them.
pub(super) trait Fields: Default {
    /// The keys that are supported.
    const KEYS: &'static [&'static str];
    /// Reads the value of one of them.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// A mapping, with the first of its keys that is not supported.
#[derive(Debug)]
pub(super) struct Mapping<T> {
    fields: T,
    stranger: Option<Spanned<String>>,
}

impl<T: Fields> Mapping<T> {
    /// What was read, if all its keys are supported.
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
}

impl Fields for File {
    const KEYS: &'static [&'static str] = &["services", "version"];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "services" => self.services = map.next_value()?,
            // For Compose only.
            _ => drop(map.next_value::<String>()?),
        }
        Ok(())
    }
}

/// One service.
#[derive(Debug, Default)]
pub(super) struct Service {
    pub image: Option<Spanned<String>>,
    pub command: Option<Spanned<List>>,
    pub environment: BTreeMap<String, Spanned<String>>,
    pub healthcheck: Option<Mapping<Healthcheck>>,
    pub harness: Option<Mapping<Harness>>,
}

impl Fields for Service {
    const KEYS: &'static [&'static str] = &["image", "command", "environment", "healthcheck", "x-harness"];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "image" => self.image = map.next_value()?,
            "command" => self.command = Some(map.next_value()?),
            "environment" => self.environment = map.next_value()?,
            "healthcheck" => self.healthcheck = Some(map.next_value()?),
            _ => self.harness = Some(map.next_value()?),
        }
        Ok(())
    }
}

/// Its healthcheck.
#[derive(Debug, Default)]
pub(super) struct Healthcheck {
    pub test: Option<Spanned<List>>,
    /// With `retries` the rhythm of Compose. Ours looks as often as it can while it waits, and never later.
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

/// What Compose has no word for.
#[derive(Debug, Default)]
pub(super) struct Harness {
    pub role: Option<Spanned<String>>,
    pub packages: Vec<Spanned<String>>,
    pub leader: Option<Spanned<List>>,
}

impl Fields for Harness {
    const KEYS: &'static [&'static str] = &["role", "packages", "leader"];
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "role" => self.role = map.next_value()?,
            "leader" => self.leader = Some(map.next_value()?),
            _ => self.packages = map.next_value()?,
        }
        Ok(())
    }
}

/// A list of strings, or the one string that Compose would split like a shell: nobody's work but a shell's.
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
