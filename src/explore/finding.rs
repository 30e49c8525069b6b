//! Findings: violations, and which of them are of one class.

use std::{collections::BTreeSet, fmt};

use checker::{Property, Verdict, Verdicts};

/// Violations that are counted and reduced as one: the same property, violated in the same way, for the same causes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Which property.
    pub property: String,
    /// In which way.
    pub kind: &'static str,
    /// What explains it; empty for properties that the checker names no causes of.
    pub causes: Vec<String>,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.property)?;
        for word in [self.kind, &self.causes.join(", ")].into_iter().filter(|word| !word.is_empty()) {
            write!(f, " {word}")?;
        }
        Ok(())
    }
}

/// The classes that the violations of a run belong to.
pub fn classes(verdicts: &Verdicts) -> BTreeSet<Class> {
    let mut classes = BTreeSet::new();
    for (name, property) in verdicts.properties.iter() {
        if property.verdict() != Verdict::Violated {
            continue;
        }
        let mut add = |kind, causes: &[String]| {
            classes.insert(Class { property: name.to_owned(), kind, causes: in_order(causes) });
        };
        let kinds = kinds(property);
        // A property may be violated in a way that none of its counts tells: it is still a finding.
        let is_counted = kinds.iter().any(|(n, _)| *n > 0);
        kinds.into_iter().filter(|(n, _)| *n > 0).for_each(|(_, kind)| add(kind, &[]));
        match property {
            Property::Lock(lock) if !lock.windows.is_empty() => {
                lock.windows.iter().for_each(|window| add(window.kind.name(), &window.causes));
            }
            _ if !is_counted => add("", &[]),
            _ => {}
        }
    }
    classes
}

/// Causes, and the parts of those that only explain together, without regard to which came first.
pub fn in_order(causes: &[String]) -> Vec<String> {
    let parts = |cause: &String| {
        let mut parts: Vec<_> = cause.split('+').collect();
        parts.sort_unstable();
        parts.join("+")
    };
    let mut causes: Vec<_> = causes.iter().map(parts).collect();
    causes.sort();
    causes.dedup();
    causes
}

/// The ways in which a property can be violated that are told apart by count alone.
fn kinds(property: &Property) -> Vec<(u64, &'static str)> {
    match property {
        Property::Lock(lock) => vec![(lock.dead_claims.len() as u64, "dead-claim")],
        Property::Tokens(t) => vec![(t.backwards, "backwards"), (t.shared, "shared"), (t.missing, "missing")],
        Property::Fence(f) => vec![
            (f.stale_accepted, "stale-accepted"),
            (f.unjustified, "unjustified"),
            (f.false_rejections, "false-rejection"),
        ],
        Property::Data(d) => {
            vec![(d.lost_updates, "lost-update"), (d.unjustified, "unjustified"), (d.disagreements, "disagreement")]
        }
        Property::Resource(r) => vec![
            (r.misordered, "misordered"),
            (r.acknowledged_lost, "acknowledged-lost"),
            (r.wrong_answers, "wrong-answer"),
            (r.applied_twice, "applied-twice"),
            (r.wrong_repeats, "wrong-repeat"),
            (r.tokens_forgotten, "token-forgotten"),
        ],
        Property::Release(r) => vec![(r.unsafe_releases, "unsafe-release"), (r.left_behind, "left-behind")],
        Property::Liveness(_) | Property::Activity(_) => Vec::new(),
    }
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
    fn causes_of_a_class_have_one_order() {
        let class = |causes: &[&str]| Class {
            property: "lock".into(),
            kind: "lease-overlap",
            causes: causes.iter().map(|c| (*c).to_owned()).collect(),
        };
        let causes = ["clock+amnesia", "amnesia", "amnesia+clock"].map(String::from);
        assert_eq!(in_order(&causes), ["amnesia", "amnesia+clock"]);
        assert_eq!(class(&["amnesia", "clock+partition"]).to_string(), "lock lease-overlap amnesia, clock+partition");
        assert_eq!(
            Class { kind: "backwards", property: "tokens".into(), causes: vec![] }.to_string(),
            "tokens backwards"
        );
    }
}
