//! All verdicts on a run, as Rust types and as `verdict.json`.

use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{
    facts::Facts,
    properties::{LockVerdict, Property},
    verdict::Verdict,
};

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

/// Everything the checker says about a run: `verdict.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdicts {
    /// Version of this format: 1.
    pub schema: u32,
    /// The run's id.
    pub run: String,
    /// The cluster that the run used: `docker` or `sim`.
    pub cluster: String,
    /// The worst verdict of a property.
    pub verdict: Verdict,
    /// True if the verdicts are those of `--expect`; null without an expectation. The harness fills the field in.
    pub as_expected: Option<bool>,
    /// Why the run was not judged, or not to its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The properties.
    pub properties: Properties,
    /// Figures for reports.
    pub facts: Facts,
}

/// The result of [`Verdicts::lookup`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// The verdict of a property (or of the run, by the path `verdict`).
    Verdict(Verdict),
    /// A count, a length in milliseconds, or the length of a list.
    Count(f64),
}

impl Verdicts {
    /// The figure at a path such as `lock`, `lock.unexplained`, `lock.windows` or `off.data.lost_updates`: a property
    /// gives its verdict, a number itself, a list its length.
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
