//! Durations as a person reads and writes them: `2s`, `150ms`, `1s 500ms`. For `#[serde(with = …)]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) mod optional;

pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&humantime::format_duration(*d))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(d)?;
    humantime::parse_duration(&text)
        .map_err(|e| D::Error::custom(format!("`{text}` is not a duration such as `2s` or `150ms`: {e}")))
}
