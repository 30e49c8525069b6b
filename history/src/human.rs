//! Durations as a person reads and writes them: `2s`, `150ms`, `1s 500ms`. For `#[serde(with = …)]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// The longest duration: 100 years, of 365.25 days each as `humantime` counts them. Sums of some durations and stamps
/// still fit.
const LONGEST: Duration = Duration::from_secs(100 * 31_557_600);

/// Parses a duration such as `2s` or `150ms`, of a plan or of a flag.
///
/// # Errors
/// The text is no duration, or the duration is longer than 100 years.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Ok(_) => Err(format!("`{text}` is longer than 100 years, the longest duration")),
        Err(e) => Err(format!("`{text}` is not a duration such as `2s` or `150ms`: {e}")),
    }
}

/// The form of a duration.
pub(crate) struct Text;

impl Text {
    pub fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_duration(*d))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        duration(&String::deserialize(d)?).map_err(D::Error::custom)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_duration_is_read_as_it_is_written() {
        assert_eq!(duration("100years"), Ok(LONGEST));
        assert_eq!(duration(&humantime::format_duration(LONGEST).to_string()), Ok(LONGEST));
        for long in ["100years 1s", "101years", "18446744073709551615s"] {
            assert!(duration(long).unwrap_err().contains("longer than 100 years"), "{long}");
        }
        assert!(duration("2").unwrap_err().contains("`2` is not a duration such as `2s`"));
    }
}
