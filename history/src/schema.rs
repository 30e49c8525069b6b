//! The JSON Schema of a line of a history, which `docs/history.schema.json` has for readers and editors.
//!
//! Only tests derive the schema, so no other build needs the crate `schemars`. This command writes the file anew:
//!
//! ```text
//! cargo test -p lock-history write_the_schema -- --ignored
//! ```

mod fits;

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use crate::Record;

/// The file, from the root of the repository.
const FILE: &str = "docs/history.schema.json";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The schema of a line, as the types give it.
fn schema() -> Value {
    let mut schema = schemars::schema_for!(Record).to_value();
    schema["title"] = "A line of history.jsonl".into();
    schema["unevaluatedProperties"] = false.into();
    schema["properties"]["crc"] = json!({
        "description": "The checksum of this line and all lines before it; the last field of a line.",
        "type": "string",
        "pattern": "^[0-9a-f]{8}$"
    });
    unwrap_lines(&mut schema);
    schema
}

/// Joins the lines of each description, which is a comment of the source, and removes the marks of links.
fn unwrap_lines(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ").replace("[`", "`").replace("`]", "`");
            }
            fields.values_mut().for_each(unwrap_lines);
        }
        Value::Array(items) => items.iter_mut().for_each(unwrap_lines),
        _ => {}
    }
}

fn text() -> String {
    serde_json::to_string_pretty(&schema()).unwrap() + "\n"
}

#[test]
#[ignore = "writes a file of the repository"]
fn write_the_schema() {
    fs::write(root().join(FILE), text()).unwrap();
}

#[test]
fn the_schema_in_the_documents_is_that_of_the_types() {
    let written = fs::read_to_string(root().join(FILE)).unwrap_or_default();
    let command = "cargo test -p lock-history write_the_schema -- --ignored";
    // The order of the fields depends on the features with which other crates build `serde_json`.
    let is_same = serde_json::from_str::<Value>(&written).is_ok_and(|written| written == schema());
    assert!(is_same, "{FILE} is not the schema of the types; write it anew with `{command}`");
}

/// The lines of the recorded runs of the findings.
fn recorded() -> Vec<Value> {
    let files = fs::read_dir(root().join("docs/findings/data")).unwrap().map(|entry| entry.unwrap().path());
    let histories = files.filter(|path| path.to_string_lossy().ends_with(".history.jsonl"));
    let texts: Vec<String> = histories.map(|path| fs::read_to_string(path).unwrap()).collect();
    texts.iter().flat_map(|text| text.lines()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_line_of_the_recorded_runs_fits_the_schema() {
    let (schema, recorded) = (schema(), recorded());
    assert!(recorded.len() > 1_000, "{} lines", recorded.len());
    for line in recorded {
        assert_eq!(fits::misfit(&schema, &schema, &line), None, "{line}");
    }
}

#[test]
fn a_line_with_a_value_of_another_type_does_not_fit_the_schema() {
    let (schema, line) =
        (schema(), json!({"seq": 1, "process": "w", "n": 2, "at": 3, "event": "work", "hold": 4, "planned_ns": 5}));
    assert_eq!(fits::misfit(&schema, &schema, &line), None);
    for field in line.as_object().unwrap().keys() {
        let mut wrong = line.clone();
        wrong[field] = json!([true]);
        assert!(fits::misfit(&schema, &schema, &wrong).is_some(), "{wrong}");
    }
}

#[test]
fn a_line_with_a_misspelled_field_does_not_fit_the_schema() {
    let (schema, mut kinds) = (schema(), BTreeSet::new());
    for line in recorded() {
        // A line of each kind.
        if !kinds.insert(line["event"].to_string()) {
            continue;
        }
        for field in line.as_object().unwrap().keys() {
            let mut misspelled = line.clone();
            let value = misspelled.as_object_mut().unwrap().remove(field).unwrap();
            misspelled[format!("{field}s")] = value;
            assert!(fits::misfit(&schema, &schema, &misspelled).is_some(), "{misspelled}");
        }
    }
    assert!(kinds.len() > 20, "{kinds:?}");
}
