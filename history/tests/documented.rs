//! The examples in `docs/worker-protocol.md`.

use history::Event;

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
        let event: Event = serde_json::from_value(example.clone()).unwrap_or_else(|e| panic!("{e}: {example}"));
        let written = serde_json::to_value(&event).unwrap();
        let lost = example.as_object().unwrap().iter().find(|(field, value)| {
            !matches!(field.as_str(), "n" | "at" | "seq" | "process") && written.get(field) != Some(value)
        });
        assert_eq!(lost, None, "{example}");
    }
}
