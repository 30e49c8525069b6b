//! Durations as a person reads and writes them: `2s`, `150ms`, `1s 500ms`. For `#[serde(with = …)]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// The longest duration. Sums of some durations and stamps still fit.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// The form of a duration.
pub(crate) struct Text;

impl Text {
    pub fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_duration(*d))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(d)?;
        let duration = humantime::parse_duration(&text)
            .map_err(|e| D::Error::custom(format!("`{text}` is not a duration such as `2s` or `150ms`: {e}")))?;
        match duration <= LONGEST {
            true => Ok(duration),
            false => Err(D::Error::custom(format!("`{text}` is longer than 100 years, the longest duration"))),
        }
    }
}

/// The form of a duration that may be absent.
pub(crate) struct OptionalText;

impl OptionalText {
    pub fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        match d {
            Some(d) => Text::serialize(d, s),
            None => s.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Text::deserialize(d).map(Some)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Text {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "description": "A duration, such as `2s`, `150ms` or `1s 500ms`." })
    }
}

#[cfg(test)]
impl schemars::JsonSchema for OptionalText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        <Text as schemars::JsonSchema>::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <Text as schemars::JsonSchema>::json_schema(generator)
    }
}
