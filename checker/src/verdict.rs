//! Verdicts as Rust types and as `verdict.json`.

use std::fmt;

use history::{Arm, Plan, ProcessName};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::property::{LockVerdict, Property};

/// What is said of a property, and of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds in all that was recorded.
    Upheld,
    /// It does not; a witness proves it.
    Violated,
    /// The record does not decide it; the reasons say why.
    Inconclusive,
    /// A figure that nothing requires.
    Measured,
    /// The plan leaves it out.
    #[serde(rename = "n/a")]
    NotApplicable,
}

impl Verdict {
    /// How bad it is: violated, then inconclusive, then all the rest.
    fn rank(self) -> u8 {
        match self {
            Verdict::Violated => 2,
            Verdict::Inconclusive => 1,
            Verdict::Upheld | Verdict::Measured | Verdict::NotApplicable => 0,
        }
    }

    /// The verdict of a judged property: what was found wins over what is missing.
    pub(crate) fn judged(violated: bool, inconclusive: bool) -> Verdict {
        match (violated, inconclusive) {
            (true, _) => Verdict::Violated,
            (false, true) => Verdict::Inconclusive,
            (false, false) => Verdict::Upheld,
        }
    }

    /// Its name in `verdict.json` and behind `--expect`.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Upheld => "upheld",
            Verdict::Violated => "violated",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Measured => "measured",
            Verdict::NotApplicable => "n/a",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// All properties by name, in the order of the design.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Properties(pub(crate) Vec<(String, Property)>);

impl Properties {
    /// The property of that name.
    pub fn get(&self, name: &str) -> Option<&Property> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, p)| p)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Property)> {
        self.0.iter().map(|(n, p)| (n.as_str(), p))
    }

    /// Puts them into the order of the design: fence and data of an arm stand together.
    pub(crate) fn sort(&mut self, plan: &Plan) {
        let mut names: Vec<String> = vec!["lock".into(), "tokens".into()];
        for arm in Arm::ALL.iter().filter(|arm| plan.arms.contains(arm)) {
            names.extend([format!("{arm}.fence"), format!("{arm}.data")]);
        }
        names.extend(["resource", "release", "liveness", "activity"].map(String::from));
        self.0.sort_by_key(|(name, _)| names.iter().position(|n| n == name).unwrap_or(names.len()));
    }

    /// The worst verdict among them; a record that was not judged to its end makes the best of it inconclusive.
    pub(crate) fn worst(&self, is_inconclusive: bool) -> Verdict {
        let least = if is_inconclusive { Verdict::Inconclusive } else { Verdict::Upheld };
        self.0
            .iter()
            .map(|(_, p)| p.verdict())
            .filter(|v| v.rank() > least.rank())
            .max_by_key(|v| v.rank())
            .unwrap_or(least)
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.0.len()))?;
        for (name, property) in &self.0 {
            map.serialize_entry(name, property)?;
        }
        map.end()
    }
}

/// The longest time for which a process did not run though no fault had stopped it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LongestStall {
    /// Which process.
    pub process: ProcessName,
    /// How long, in milliseconds.
    pub ms: f64,
}

/// Figures of the run that reports need and that the sweep gives for nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Facts {
    /// Holds.
    pub holds: u64,
    /// Attempts refused as held, or, in queue locks, waiting behind another.
    pub refused_as_held: u64,
    /// First attempt of the run, in milliseconds since its start.
    pub first_operation_ms: Option<f64>,
    /// From the first attempt of the run to the first instant of a window, in milliseconds.
    pub first_window_after_ms: Option<f64>,
    /// Faults that were requested.
    pub faults_requested: u64,
    /// Faults that their target showed.
    pub faults_proved: u64,
    /// Faults that their target did not show.
    pub faults_unproved: u64,
    /// Faults that missed the hold they were meant for.
    pub missed_target: u64,
    /// The longest stall.
    pub longest_stall: Option<LongestStall>,
    /// Up to where the record was judged, in milliseconds since the run's start.
    pub judged_until_ms: f64,
}

/// Everything the checker says about a run: `verdict.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdicts {
    /// Version of this format: 1.
    pub schema: u32,
    /// The run's id.
    pub run: String,
    /// What the servers were.
    pub cluster: String,
    /// The worst verdict of a property.
    pub verdict: Verdict,
    /// Whether it came out as `--expect` says; null without an expectation. The harness fills it in.
    pub as_expected: Option<bool>,
    /// Why the run was not judged, or not to its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The properties.
    pub properties: Properties,
    /// Figures for reports.
    pub facts: Facts,
}

/// What [`Verdicts::lookup`] finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// The verdict of a property (or of the run, by the path `verdict`).
    Verdict(Verdict),
    /// A count, a length in milliseconds, or the length of a list.
    Count(f64),
}

impl Verdicts {
    /// What stands at a path such as `lock`, `lock.unexplained`, `lock.windows` or `off.data.lost_updates`: a property
    /// gives its verdict, a number itself, a list its length, a thing that may be absent 0 if it is.
    pub fn lookup(&self, path: &str) -> Option<Figure> {
        if path == "verdict" {
            return Some(Figure::Verdict(self.verdict));
        }
        if let Some(property) = self.properties.get(path) {
            return Some(Figure::Verdict(property.verdict()));
        }
        let (name, field) = path.rsplit_once('.')?;
        let value = match name {
            "facts" => serde_json::to_value(&self.facts),
            _ => serde_json::to_value(self.properties.get(name)?),
        };
        match value.ok()?.get(field)? {
            serde_json::Value::Number(n) => n.as_f64().map(Figure::Count),
            serde_json::Value::Array(list) => Some(Figure::Count(list.len() as f64)),
            _ => None,
        }
    }

    /// The verdict on mutual exclusion.
    pub fn lock(&self) -> Option<&LockVerdict> {
        match self.properties.get("lock") {
            Some(Property::Lock(lock)) => Some(lock),
            _ => None,
        }
    }
}
