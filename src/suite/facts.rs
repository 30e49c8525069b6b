//! The figures of one run, for the findings: small enough to be committed.

use std::collections::BTreeMap;

use checker::Verdicts;
use history::{Event, MadeBy, Record};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evidence::Evidence;
use crate::measures::Measures;

/// The beginnings of the figures that a run may be too short to measure. Of these a zero is kept: it was measured.
const MEASURED: [&str; 6] =
    ["evidence.", "measures.", "recovery.p50_ms", "recovery.longest_", "fairness.jain", "facts.first_"];
/// The most holds of a run whose tokens are kept.
const HOLDS: usize = 64;

/// The figures of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFacts {
    /// The facts about how the run was made. None in the simulation: nothing but the plan and the build decides such
    /// a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<MadeBy>,
    /// The numbers of `verdict.json` that are not zero, and the lengths of its lists, by the paths of `--expect`:
    /// `lock.stale_holder`; what witnesses measured: `evidence.check_to_write_ms`; and latencies and rates:
    /// `measures.acquire_p50_ms`. A zero that a run may be too short to measure is kept.
    pub figures: BTreeMap<String, f64>,
    /// The double-holder windows.
    pub windows: Vec<WindowFacts>,
    /// The tokens of the holds in the order of their acquisition. Empty if a hold has no token, and in a long run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u64>,
}

/// The figures of one window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowFacts {
    /// The kind, as in `verdict.json`.
    pub kind: String,
    /// The causes.
    pub causes: Vec<String>,
    /// Two clients were entitled for this time, in milliseconds.
    pub overlap_ms: f64,
    /// From the later acquisition to the last stale act, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_ms: Option<f64>,
}

impl RunFacts {
    /// The figures of a run.
    pub fn of(records: &[Record], evidence: &Evidence, verdicts: &Verdicts, made_by: Option<&MadeBy>) -> RunFacts {
        let mut figures = BTreeMap::new();
        for (name, property) in verdicts.properties.iter() {
            add(&mut figures, name, serde_json::to_value(property));
        }
        add(&mut figures, "facts", serde_json::to_value(&verdicts.facts));
        let check_to_write = evidence.check_to_write().map(|time| time.as_secs_f64() * 1e3);
        figures.extend(check_to_write.map(|ms| ("evidence.check_to_write_ms".to_owned(), ms)));
        let mut measures = Measures::default();
        records.iter().for_each(|record| measures.add(record));
        figures.extend(measures.figures());
        let windows = verdicts.lock().map_or(&[][..], |lock| &lock.windows).iter().map(|window| WindowFacts {
            kind: window.kind.name().to_owned(),
            causes: window.causes.iter().map(ToString::to_string).collect(),
            overlap_ms: window.overlap_ms,
            staleness_ms: window.staleness_ms,
        });
        RunFacts { made_by: made_by.map(MadeBy::origin), figures, windows: windows.collect(), tokens: tokens(records) }
    }

    /// The figure at a path. A record leaves out the counts that are zero. None if the run did not measure the figure.
    pub fn figure(&self, path: &str) -> Option<f64> {
        self.figures.get(path).copied().or((!is_measured(path)).then_some(0.0))
    }
}

/// Returns whether a run may be too short to measure the figure at this path.
fn is_measured(path: &str) -> bool {
    MEASURED.iter().any(|start| path.starts_with(start))
}

/// Adds the numbers of a property, and the lengths of its lists. Zeros that no run can miss are left out.
fn add(figures: &mut BTreeMap<String, f64>, name: &str, value: Result<Value, serde_json::Error>) {
    let Ok(Value::Object(fields)) = value else { return };
    for (field, value) in fields {
        let number = value.as_f64().or_else(|| value.as_array().map(|list| list.len() as f64));
        let path = format!("{name}.{field}");
        if let Some(number) = number.filter(|number| *number != 0.0 || is_measured(&path)) {
            figures.insert(path, number);
        }
    }
}

fn tokens(records: &[Record]) -> Vec<u64> {
    let mut holds: Vec<_> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::Acquired { token, .. } => Some((record.at, *token)),
            _ => None,
        })
        .collect();
    holds.sort_by_key(|(at, _)| *at);
    let tokens: Option<Vec<u64>> = holds.into_iter().map(|(_, token)| token.map(|token| token.0)).collect();
    tokens.filter(|tokens| tokens.len() <= HOLDS).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use history::{HoldId, Stamp, Token};

    use super::*;

    #[test]
    fn tokens_are_in_the_order_of_acquisition() {
        let acquired = |at: u64, token: u64| Record {
            seq: 0,
            process: "worker-1".into(),
            n: 0,
            at: Stamp(at),
            event: Event::Acquired {
                attempt: HoldId(at),
                token: Some(Token(token)),
                lease_ns: 1,
                granted_after: Stamp(at),
                promised_from: None,
                place: None,
                valid_ns: 1,
                answers: Vec::new(),
            },
        };
        // A stream that was cut off comes late.
        assert_eq!(tokens(&[acquired(20, 5), acquired(30, 6), acquired(10, 4)]), [4, 5, 6]);
    }
}
