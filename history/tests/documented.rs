//! The examples in `docs/worker-protocol.md`.

use history::{Event, Record};

/// The JSON objects of the page's examples; those with an ellipsis are abbreviated and left out.
fn examples() -> Vec<serde_json::Value> {
    let page = include_str!("../../docs/worker-protocol.md").replace("\n     ", "");
    let lines = page.lines().filter_map(|line| line.strip_prefix("    {")).filter(|line| !line.contains('…'));
    lines.map(|line| serde_json::from_str(&format!("{{{line}")).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn each_documented_event_is_an_event() {
    let events: Vec<_> =
        examples().into_iter().filter(|example| example.get("event").is_some_and(|e| e.is_string())).collect();
    assert!(events.len() > 40, "{}", events.len());
    for example in events {
        let mut fields = example.clone();
        let own = |field: &str| matches!(field, "n" | "at" | "seq" | "process");
        fields.as_object_mut().unwrap().retain(|field, _| !own(field));
        let event: Event = serde_json::from_value(fields).unwrap_or_else(|e| panic!("{e}: {example}"));
        let written = serde_json::to_value(&event).unwrap();
        let lost =
            example.as_object().unwrap().iter().find(|(field, value)| !own(field) && written.get(field) != Some(value));
        assert_eq!(lost, None, "{example}");
    }
}

#[test]
fn no_event_takes_a_field_that_it_does_not_have() {
    let mut refused = 0;
    for example in examples().into_iter().filter(|example| example["event"].is_string()) {
        let mut line = example.clone();
        for field in ["seq", "n", "at"] {
            line[field] = 1.into();
        }
        line["process"] = "worker-1".into();
        let is_read = |line: &serde_json::Value| serde_json::from_str::<Record>(&line.to_string());
        is_read(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        line["fancy"] = 1.into();
        let error = is_read(&line).expect_err(&line.to_string()).to_string();
        assert!(error.contains("unknown field `fancy`"), "{error}: {line}");
        refused += 1;
    }
    assert!(refused > 40, "{refused}");
}
