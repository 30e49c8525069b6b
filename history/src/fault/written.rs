//! The form of a fault in plans and histories: one flat table, `{ kind = "delay", for = "2s", by = "300ms" }`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _};
use serde_json::{Map, Value};

use super::{Fault, FaultKind, Links, Parameters, once::Once};
use crate::human;

/// The key of the length of a fault of this kind.
fn length_key(kind: FaultKind) -> &'static str {
    if kind.kills() { "back_after" } else { "for" }
}

/// A duration as a plan has it: "2s".
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Length(#[serde(with = "human::Text")] Duration);

#[derive(Serialize)]
struct Written<'a> {
    kind: FaultKind,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    lasting: Option<Length>,
    #[serde(skip_serializing_if = "Option::is_none")]
    back_after: Option<Length>,
    #[serde(flatten)]
    parameters: &'a Parameters,
    #[serde(flatten)]
    links: &'a Option<Links>,
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = self.kind();
        let (lasting, back_after) =
            if kind.kills() { (None, Some(Length(self.lasting))) } else { (Some(Length(self.lasting)), None) };
        let (parameters, links) = (&self.parameters, &self.links);
        Written { kind, lasting, back_after, parameters, links }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fault, D::Error> {
        let Once(Value::Object(mut fields)) = Once::deserialize(deserializer)? else {
            return Err(D::Error::custom("expected a fault, such as { kind = \"pause\", for = \"2s\" }"));
        };
        let kind: FaultKind = take(&mut fields, "kind")?.ok_or_else(|| D::Error::missing_field("kind"))?;
        let failed = |problem: &dyn std::fmt::Display| D::Error::custom(format!("fault `{kind}`: {problem}"));
        let key = length_key(kind);
        let Length(lasting) = take(&mut fields, key)?
            .ok_or_else(|| failed(&format!("missing field `{key}`, a duration such as `2s`")))?;
        let mut links = None;
        if kind.is_of_links() {
            let (direction, from) = (take(&mut fields, "direction")?, take(&mut fields, "from")?);
            links = Some(Links { direction: direction.unwrap_or_default(), from: from.unwrap_or_default() });
        }
        // Every field that is left must be a parameter of the kind.
        let parameters = kind.read(Value::Object(fields)).map_err(|e| failed(&e))?;
        Ok(Fault { parameters, lasting, links })
    }
}

fn take<T: DeserializeOwned, E: serde::de::Error>(fields: &mut Map<String, Value>, key: &str) -> Result<Option<T>, E> {
    let read = |value| serde_json::from_value(value).map_err(|e| E::custom(format!("`{key}`: {e}")));
    fields.remove(key).map(read).transpose()
}

#[cfg(test)]
impl schemars::JsonSchema for Fault {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Fault".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let length = generator.subschema_for::<human::Text>();
        let links = <Links as schemars::JsonSchema>::json_schema(generator);
        let of_kind = |kind: FaultKind, generator: &mut schemars::SchemaGenerator| {
            let mut fault = kind.schema(generator);
            let mut add = |name: &str, schema: Value| {
                let properties = fault.ensure_object().entry("properties").or_insert_with(|| Map::new().into());
                properties[name] = schema;
            };
            add("kind", serde_json::json!({ "const": kind.name() }));
            add(length_key(kind), length.clone().to_value());
            for (name, schema) in links.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if kind.is_of_links() {
                    add(name, schema.clone());
                }
            }
            let required = fault.ensure_object().entry("required").or_insert_with(|| Vec::<Value>::new().into());
            required.as_array_mut().into_iter().for_each(|all| all.extend(["kind".into(), length_key(kind).into()]));
            fault
        };
        let kinds: Vec<schemars::Schema> = FaultKind::ALL.into_iter().map(|kind| of_kind(kind, generator)).collect();
        schemars::json_schema!({
            "description": "A fault: its kind, its length, and the parameters of the kind.",
            "oneOf": kinds
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_comes_twice_is_refused() {
        let read = |text: &str| serde_json::from_str::<Fault>(text).map_err(|e| e.to_string());
        assert!(read(r#"{"kind":"pause","for":"1s"}"#).is_ok());
        for (text, field) in [
            (r#"{"kind":"pause","for":"1s","for":"9s"}"#, "for"),
            (r#"{"kind":"kill","kind":"pause","for":"9s"}"#, "kind"),
            (r#"{"kind":"delay","for":"1s","by":{"from":"1ms","from":"2ms","to":"9ms"}}"#, "from"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(&format!("duplicate field `{field}`")), "{text}: {refused}");
        }
        assert!(read(r#""pause""#).unwrap_err().contains("expected a fault, such as"));
    }

    #[test]
    fn a_field_of_other_kinds_is_refused() {
        let read = |text: &str| serde_json::from_str::<Fault>(text).map_err(|e| e.to_string());
        for (text, field) in [
            (r#"{"kind":"pause","for":"1s","from":["redis-1"]}"#, "unknown field `from`"),
            (r#"{"kind":"pause","for":"1s","direction":"in"}"#, "unknown field `direction`"),
            (r#"{"kind":"pause","for":"1s","back_after":"1s"}"#, "unknown field `back_after`"),
            (r#"{"kind":"kill","back_after":"1s","for":"1s"}"#, "unknown field `for`"),
            (r#"{"kind":"kill","for":"1s"}"#, "missing field `back_after`"),
            (r#"{"kind":"pause","back_after":"1s"}"#, "missing field `for`"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(field), "{text}: {refused}");
        }
        let (direction, from) = (crate::Direction::In, vec!["redis-1".into()]);
        let cut = read(r#"{"kind":"partition","for":"1s","from":["redis-1"],"direction":"in"}"#).unwrap();
        assert_eq!(cut.links, Some(Links { direction, from }));
    }

    #[test]
    fn a_fault_of_too_many_values_is_refused_while_it_is_read() {
        // The largest plan: 1,000 lock nodes, 64 workers and the resource.
        for (nodes, is_read) in [(1_065, true), (5_000, false)] {
            let from = vec!["\"redis-1\""; nodes].join(",");
            let fault = format!(r#"{{"kind":"loss","for":"1s","percent":1,"from":[{from}]}}"#);
            let read = serde_json::from_str::<Fault>(&fault).map_err(|e| e.to_string());
            assert_eq!(read.is_ok(), is_read, "{nodes}");
            assert!(read.err().is_none_or(|refused| refused.contains("a fault has at most 5000 values")));
        }
    }
}
