//! Compares a value with a schema, by the keywords that the schema of a line has (JSON Schema, draft 2020-12).
//!
//! A validator of the whole draft would be twenty crates. An unknown keyword fails the test, and is never ignored.

use std::collections::BTreeSet;

use serde_json::Value;

/// The fields of an object that some part of a schema has looked at.
type Known = BTreeSet<String>;

/// Returns the first reason why `value` does not fit `schema`, a part of `root`.
pub fn misfit(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    fits(root, schema, value).err()
}

fn fits(root: &Value, schema: &Value, value: &Value) -> Result<Known, String> {
    let mut known = Known::new();
    // The fields that no part knows are known only after all parts.
    let last = |keyword: &&String| keyword.as_str() == "unevaluatedProperties";
    let Some(keywords) = schema.as_object() else { return Ok(known) };
    for keyword in keywords.keys().filter(|k| !last(k)).chain(keywords.keys().filter(last)) {
        known.extend(keyword_fits(root, schema, keyword, value, &known)?);
    }
    Ok(known)
}

fn keyword_fits(root: &Value, schema: &Value, keyword: &str, value: &Value, known: &Known) -> Result<Known, String> {
    let of = &schema[keyword];
    let fields = || value.as_object().into_iter().flatten();
    let require = |is: bool| if is { Ok(Known::new()) } else { Err(format!("{value} does not fit {keyword}: {of}")) };
    match keyword {
        "$schema" | "$defs" | "title" | "description" | "default" | "format" | "pattern" => Ok(Known::new()),
        "$ref" => fits(root, root.pointer(of.as_str().unwrap().trim_start_matches('#')).unwrap(), value),
        "const" => require(value == of),
        "type" if of.is_array() => require(list(of).iter().any(|of| is_of_type(of, value))),
        "type" => require(is_of_type(of, value)),
        "minimum" => require(value.as_f64() >= of.as_f64()),
        "maximum" => require(value.as_f64() <= of.as_f64()),
        "minItems" => require(list(value).len() as u64 >= of.as_u64().unwrap()),
        "maxItems" => require(list(value).len() as u64 <= of.as_u64().unwrap()),
        "items" => list(value).iter().try_for_each(|item| fits(root, of, item).map(drop)).map(|()| Known::new()),
        "prefixItems" => {
            let pairs = list(of).iter().zip(list(value));
            pairs.map(|(of, item)| fits(root, of, item)).find(Result::is_err).unwrap_or(Ok(Known::new()))
        }
        "properties" => {
            let of_schema = of.as_object().unwrap();
            let here: Vec<_> = fields().filter(|(name, _)| of_schema.contains_key(*name)).collect();
            here.iter().try_for_each(|(name, value)| fits(root, &of[name.as_str()], value).map(drop))?;
            Ok(here.into_iter().map(|(name, _)| name.clone()).collect())
        }
        "required" => require(list(of).iter().all(|name| value.get(name.as_str().unwrap()).is_some())),
        "additionalProperties" | "unevaluatedProperties" => {
            let is_known = |name: &String| known.contains(name) || schema["properties"].get(name).is_some();
            let (mut others, mut names) = (fields().filter(|(name, _)| !is_known(name)), Known::new());
            others.try_for_each(|(name, value)| match of {
                Value::Bool(false) => Err(format!("unknown field `{name}`")),
                _ => {
                    names.insert(name.clone());
                    fits(root, of, value).map(drop)
                }
            })?;
            Ok(names)
        }
        "oneOf" | "anyOf" => {
            let tried: Vec<_> = list(of).iter().map(|of| fits(root, of, value)).collect();
            let found: Vec<_> = tried.iter().flatten().cloned().collect();
            match found.as_slice() {
                [known] => Ok(known.clone()),
                [known, ..] if keyword == "anyOf" => Ok(known.clone()),
                _ => Err(format!("{value} fits {} of {}: {tried:?}", found.len(), tried.len())),
            }
        }
        _ => panic!("unknown keyword {keyword}"),
    }
}

fn list(of: &Value) -> &[Value] {
    of.as_array().map_or(&[], Vec::as_slice)
}

fn is_of_type(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    }
}
