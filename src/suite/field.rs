//! Fields of a plan file by their paths: `plan.lease`, `plan.schedule.5.fault.back_after`.

use std::collections::BTreeSet;

use toml::Value;

/// Returns the plan file `text` with another value of one field. Steps and waits are named by their ids.
///
/// # Errors
/// There is no such field, or it has this value already.
pub fn replaced(text: &str, path: &str, value: &Value) -> Result<String, String> {
    let (text, has_changed) = set(text, path, value)?;
    if has_changed { Ok(text) } else { Err(format!("`{path}` is {value} already: nothing would differ")) }
}

/// Returns the plan file `text` with this value of one field, and whether it had another one.
///
/// # Errors
/// There is no such field.
pub fn set(text: &str, path: &str, value: &Value) -> Result<(String, bool), String> {
    let mut document: Value = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut words: Vec<&str> = path.split('.').collect();
    let last = words.pop().unwrap_or_default();
    let mut at = &mut document;
    for word in words {
        at = match at {
            Value::Table(table) => table.get_mut(word),
            Value::Array(items) => items.iter_mut().find(|item| id(item).is_some_and(|id| id.to_string() == word)),
            _ => None,
        }
        .ok_or_else(|| format!("`{path}`: the plan has no `{word}` there"))?;
    }
    let table = at.as_table_mut().ok_or_else(|| format!("`{path}`: expected a table above `{last}`"))?;
    let has_changed = table.insert(last.to_owned(), value.clone()).as_ref() != Some(value);
    Ok((toml::to_string(&document).map_err(|e| e.to_string())?, has_changed))
}

/// Lists the fields in which the plan file `other` differs from `one`: `plan.lease = "5s" instead of "2s"`.
pub fn differences(one: &str, other: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let (Ok(one), Ok(other)) = (toml::from_str(one), toml::from_str(other)) {
        compare("", Some(&one), Some(&other), &mut found);
    }
    found
}

fn compare(path: &str, one: Option<&Value>, other: Option<&Value>, found: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (one, other) {
        (Some(Value::Table(one)), Some(Value::Table(other))) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            names.into_iter().for_each(|name| compare(&below(name), one.get(name), other.get(name), found));
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) if one.len() == other.len() => {
            for (n, (one, other)) in one.iter().zip(other).enumerate() {
                let name = id(one).unwrap_or(n as i64 + 1).to_string();
                compare(&below(&name), Some(one), Some(other), found);
            }
        }
        (one, other) if one == other => {}
        (Some(one), Some(other)) => found.push(format!("{path} = {other} instead of {one}")),
        (None, Some(other)) => found.push(format!("{path} = {other}")),
        (_, None) => found.push(format!("without {path}")),
    }
}

fn id(item: &Value) -> Option<i64> {
    item.get("id").and_then(Value::as_integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "run = \"x\"\n[plan]\nlease = \"2s\"\n[[plan.schedule]]\nid = 5\nfault = { back_after = \"1s\" }\n";

    #[test]
    fn a_twin_differs_in_one_field() {
        let twin = replaced(TEXT, "plan.schedule.5.fault.back_after", &"7s".into()).unwrap();
        let (one, other): (toml::Table, toml::Table) = (toml::from_str(TEXT).unwrap(), toml::from_str(&twin).unwrap());
        assert_ne!(one, other);
        assert!(twin.contains("back_after = \"7s\"") && twin.contains("lease = \"2s\""), "{twin}");
        assert_eq!(differences(TEXT, &twin), ["plan.schedule.5.fault.back_after = \"7s\" instead of \"1s\""]);
        let twin = replaced(TEXT, "plan.tokens", &"none".into()).unwrap();
        assert!(twin.contains("tokens = \"none\""));
        assert_eq!(differences(TEXT, &twin), ["plan.tokens = \"none\""]);
        assert_eq!(differences(&twin, TEXT), ["without plan.tokens"]);
    }

    #[test]
    fn a_list_with_one_item_more_is_another_list() {
        let (one, two) = ("nodes = [\"a\"]\n", "nodes = [\"a\", \"b\"]\n");
        assert_eq!(differences(one, two), ["nodes = [\"a\", \"b\"] instead of [\"a\"]"]);
        assert_eq!(differences(two, one), ["nodes = [\"a\"] instead of [\"a\", \"b\"]"]);
        let found = differences(TEXT, &format!("{TEXT}[[plan.schedule]]\nid = 6\n"));
        assert!(found.len() == 1 && found[0].starts_with("plan.schedule = "), "{found:?}");
    }

    #[test]
    fn a_twin_that_changes_nothing_or_aims_at_nothing_is_refused() {
        for (path, value, words) in
            [("plan.lease", "2s", "already"), ("plan.schedule.6.fault.kind", "x", "`6`"), ("run.x", "y", "a table")]
        {
            assert!(replaced(TEXT, path, &value.into()).unwrap_err().contains(words), "{path}");
        }
    }
}
