//! Findings: violations, and the classes that they are counted by.

use std::{collections::BTreeSet, fmt};

use checker::{Cause, CauseSet, Verdicts, Violation, joined};

/// Violations that are counted and reduced together: the same property, violated in the same way, for the same causes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// The property.
    pub property: String,
    /// The way of violation; empty if no count of the property tells one.
    pub kind: &'static str,
    /// The sets of causes in canonical order; empty for properties without causes.
    pub causes: Vec<CauseSet>,
}

impl Class {
    /// Returns whether a violation of the class has no explanation.
    pub fn is_unexplained(&self) -> bool {
        self.causes.iter().any(|cause| cause.is(Cause::Unexplained))
    }

    /// Returns whether a violation of the class's property belongs to the class.
    pub fn contains(&self, violation: &Violation) -> bool {
        (self.kind, &self.causes) == (violation.kind, &violation.causes)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(&self.property, self.kind, &self.causes))
    }
}

/// The name of a class.
pub fn name(property: &str, kind: &str, causes: &[CauseSet]) -> String {
    let causes = joined(causes, ", ");
    [property, kind, &causes].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The classes that the violations of a run belong to.
pub fn classes(verdicts: &Verdicts) -> BTreeSet<Class> {
    let of = |(name, property): (&str, &checker::Property)| {
        let name = name.to_owned();
        let class = move |v: Violation| Class { property: name.clone(), kind: v.kind, causes: v.causes };
        property.violations().into_iter().map(class)
    };
    verdicts.properties.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use history::Reader;

    use super::*;

    fn of(history: &str) -> Vec<String> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("checker/tests/corpus").join(history);
        let mut reader = Reader::open(&corpus).unwrap();
        let records: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        classes(&checker::check(records, reader.tail())).iter().map(Class::to_string).collect()
    }

    #[test]
    fn a_recorded_pause_is_a_stale_holder_by_its_cause() {
        assert_eq!(of("kleppmann-pause.jsonl"), ["lock stale-holder pause"]);
    }

    #[test]
    fn a_class_is_named_by_property_kind_and_causes() {
        let causes = ["amnesia", "clock+partition"].map(|set| set.parse().unwrap()).to_vec();
        let class = Class { property: "lock".into(), kind: "lease-overlap", causes };
        assert_eq!(class.to_string(), "lock lease-overlap amnesia, clock+partition");
        let class = Class { property: "tokens".into(), kind: "backwards", causes: vec![] };
        assert_eq!(class.to_string(), "tokens backwards");
    }

    #[test]
    fn another_kind_or_other_causes_are_another_class() {
        let of = |kind, cause: &str| Violation { kind, causes: vec![cause.parse().unwrap()] };
        let Violation { kind, causes } = of("stale-holder", "pause");
        let class = Class { property: "lock".into(), kind, causes };
        assert!(class.contains(&of("stale-holder", "pause")));
        assert!(!class.contains(&of("stale-holder", "kill")));
        assert!(!class.contains(&of("lease-overlap", "pause")));
    }
}
