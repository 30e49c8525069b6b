//! Checks an expectation before anything starts: no two clauses exclude each other, a run has every figure and can have
//! every verdict, and no clause is one that every run meets.

mod verdicts;

use checker::{Figure, Verdict, Verdicts};
use history::{Event, Plan, Record, Stamp, Tail};
use serde_json::Value;

use self::verdicts::possible_verdicts;
use super::{Clause, Expectation, Relation, Wanted};
use crate::{exit::Unusable, similar::similar};

/// Lists that `verdict.json` leaves out if they are empty, by property.
const LISTS: [(&str, &[&str]); 9] = [
    ("lock", &["reasons", "notes"]),
    ("tokens", &["faults", "sequence", "reasons"]),
    ("fence", &["witness", "reasons"]),
    ("data", &["witness", "reasons"]),
    ("resource", &["witness", "reasons"]),
    ("release", &["faults", "leftovers", "reasons"]),
    ("liveness", &["reasons"]),
    ("activity", &["reasons"]),
    ("facts", &["unplanned_faults"]),
];
/// A process and a length. Null, as a count without a value is, if no process stalled.
const LONGEST_STALL: &str = "facts.longest_stall";

/// Returns the kind of a property: `fence` for `writes.fence`.
fn kind(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Returns the lists that the property, or `facts`, may leave out.
fn lists(name: &str) -> impl Iterator<Item = &'static str> {
    LISTS.into_iter().filter(move |(of, _)| *of == kind(name)).flat_map(|(_, lists)| lists).copied()
}

/// Returns the length of a list that `verdict.json` leaves out because it is empty. None for any other name.
pub fn left_out(path: &str, verdicts: &Verdicts) -> Option<Figure> {
    let (name, list) = path.rsplit_once('.')?;
    let is_there = name == "facts" || verdicts.properties.get(name).is_some();
    (is_there && lists(name).any(|known| known == list)).then_some(Figure::Count(0.0))
}

impl Expectation {
    /// Checks that a run of `plan` can be as expected, which needs the name of each violated property.
    ///
    /// # Errors
    /// As [`Expectation::check_clauses`], and an expectation of a violated run that names no violated property.
    pub fn check(&self, plan: &Plan) -> Result<(), Unusable> {
        let wants_violated = |clause: &&Clause| clause.wanted == Wanted::Verdict(Verdict::Violated);
        let mut violated = self.clauses.iter().filter(wants_violated);
        if violated.clone().any(|clause| clause.path == "verdict") && violated.all(|clause| clause.path == "verdict") {
            let problem = "names no violated property, so no run can meet it; add the property, such as";
            return Err(Unusable(format!("--expect: `verdict=violated` {problem} `lock=violated`")));
        }
        self.check_clauses(plan)
    }

    /// Checks that a run of `plan` has everything that the expectation names, and can have every verdict.
    ///
    /// # Errors
    /// The first clause that no run of the plan can meet, or that every run meets; two clauses that exclude each other.
    pub fn check_clauses(&self, plan: &Plan) -> Result<(), Unusable> {
        let run = Event::Plan { run: String::new(), plan: Box::new(plan.clone()), made_by: None };
        let first = Record { seq: 0, process: "controller".into(), n: 0, at: Stamp(0), event: run };
        let names = Names::of(&checker::check([first], Tail::Whole));
        self.clauses.iter().try_for_each(|clause| names.check(clause, plan))?;
        let whole: Vec<Clause> = self.clauses.iter().map(|clause| names.in_whole_numbers(clause)).collect();
        match contradiction(&whole) {
            Some(problem) => Err(Unusable(format!("--expect: {problem}: the figure is a whole number"))),
            None => Ok(()),
        }
    }
}

/// Everything that an expectation about a plan can name.
#[derive(Default)]
struct Names {
    verdicts: Vec<String>,
    counts: Vec<String>,
    /// The counts that a run may lack.
    sometimes: Vec<String>,
    /// The counts that are whole numbers. The others are lengths of time, and shares.
    whole: Vec<String>,
}

impl Names {
    fn of(verdicts: &Verdicts) -> Names {
        let mut names = Names { verdicts: vec!["verdict".to_owned()], ..Names::default() };
        for (name, property) in verdicts.properties.iter() {
            names.add(name, serde_json::to_value(property).unwrap_or_default());
            names.verdicts.push(name.to_owned());
        }
        names.add("facts", serde_json::to_value(&verdicts.facts).unwrap_or_default());
        names.sometimes.retain(|name| name != LONGEST_STALL);
        names
    }

    /// Adds the figures of an object of `verdict.json`. A figure that has no value yet is null.
    fn add(&mut self, name: &str, object: Value) {
        let lists: Vec<String> = lists(name).map(|list| format!("{name}.{list}")).collect();
        self.whole.extend_from_slice(&lists);
        self.counts.extend(lists);
        let Value::Object(fields) = object else { return };
        for (field, value) in fields {
            if value.is_u64() || value.is_array() {
                self.whole.push(format!("{name}.{field}"));
            }
            match value {
                Value::Number(_) | Value::Array(_) => self.counts.push(format!("{name}.{field}")),
                Value::Null => self.sometimes.push(format!("{name}.{field}")),
                Value::Bool(_) | Value::String(_) | Value::Object(_) => {}
            }
        }
    }

    /// Returns the clause for the same numbers with a whole number as its bound, if the figure is a whole number.
    fn in_whole_numbers(&self, clause: &Clause) -> Clause {
        let wanted = match clause.wanted {
            Wanted::Count(relation, bound) if self.whole.contains(&clause.path) => match relation {
                Relation::AtLeast => Wanted::Count(Relation::AtLeast, bound.ceil()),
                Relation::More => Wanted::Count(Relation::AtLeast, bound.floor() + 1.0),
                Relation::AtMost => Wanted::Count(Relation::AtMost, bound.floor()),
                Relation::Less => Wanted::Count(Relation::AtMost, bound.ceil() - 1.0),
                Relation::Equal => clause.wanted,
            },
            _ => clause.wanted,
        };
        Clause { wanted, ..clause.clone() }
    }

    fn check(&self, clause: &Clause, plan: &Plan) -> Result<(), Unusable> {
        let Clause { text, path, wanted } = clause;
        let (is_verdict, may_lack) = (self.verdicts.contains(path), self.sometimes.contains(path));
        let is_count = may_lack || self.counts.contains(path);
        // About a count that a run may lack, such a clause says that the run has the count.
        if is_count && !may_lack && clause.is_certain() {
            return Err(Unusable(format!("--expect: `{text}`: every run meets this clause: no count is negative")));
        }
        let problem = match wanted {
            Wanted::Verdict(wanted) if is_verdict => match possible_verdicts(path, plan) {
                Some((possible, why)) if !possible.contains(wanted) => {
                    let possible = possible.iter().map(|verdict| verdict.name()).collect::<Vec<_>>().join(" or ");
                    return Err(Unusable(format!("--expect: `{text}`: `{path}` can only be {possible}: {why}")));
                }
                _ => return Ok(()),
            },
            Wanted::Count(Relation::Equal, wanted) if wanted.fract() != 0.0 && self.whole.contains(path) => {
                return Err(Unusable(format!("--expect: no run can meet `{text}`: the figure is a whole number")));
            }
            Wanted::Count(..) if is_count => return Ok(()),
            Wanted::Verdict(_) if is_count => format!("`{path}` is a count; expected a number"),
            Wanted::Count(..) if is_verdict => {
                format!("`{path}` is a verdict; expected one of {}", Verdict::ALL.map(Verdict::name).join(", "))
            }
            _ if path == LONGEST_STALL => format!("`{path}` is no count: it has a process and a length"),
            _ => {
                let (known, more): (&[String], &[String]) = match wanted {
                    Wanted::Verdict(_) => (&self.verdicts, &[]),
                    Wanted::Count(..) => (&self.counts, &self.sometimes),
                };
                let near = similar(path, known.iter().chain(more).map(String::as_str));
                format!("a run of this plan has no figure `{path}`{near}")
            }
        };
        Err(Unusable(format!("--expect: `{text}`: {problem}; `--format json` shows all names")))
    }
}

/// Returns the reason why no run can meet all clauses, if there is one.
pub fn contradiction(clauses: &[Clause]) -> Option<String> {
    for (n, one) in clauses.iter().enumerate() {
        if one.is_impossible() {
            return Some(format!("no run can meet `{}`", one.text));
        }
        if let Some(other) = clauses[n + 1..].iter().find(|other| one.excludes(other)) {
            return Some(format!("`{}` and `{}` exclude each other", one.text, other.text));
        }
    }
    None
}

impl Clause {
    fn is_impossible(&self) -> bool {
        match self.wanted {
            // No count is negative.
            Wanted::Count(relation, wanted) => !meet((relation, wanted), (Relation::AtLeast, 0.0)),
            Wanted::Verdict(wanted) => {
                self.path == "verdict" && matches!(wanted, Verdict::Measured | Verdict::NotApplicable)
            }
        }
    }

    /// Returns whether every count meets the clause. No count is negative.
    fn is_certain(&self) -> bool {
        match self.wanted {
            Wanted::Count(Relation::AtLeast, wanted) => wanted <= 0.0,
            Wanted::Count(Relation::More, wanted) => wanted < 0.0,
            Wanted::Count(..) | Wanted::Verdict(_) => false,
        }
    }

    fn excludes(&self, other: &Clause) -> bool {
        match (self.wanted, other.wanted) {
            (Wanted::Verdict(one), Wanted::Verdict(two)) if self.path == other.path => one != two,
            // The run's verdict is the worst of all.
            (Wanted::Verdict(run), Wanted::Verdict(one)) if self.path == "verdict" => is_worse(one, run),
            (Wanted::Verdict(one), Wanted::Verdict(run)) if other.path == "verdict" => is_worse(one, run),
            (Wanted::Count(r, one), Wanted::Count(s, two)) if self.path == other.path => !meet((r, one), (s, two)),
            _ => false,
        }
    }
}

fn is_worse(one: Verdict, other: Verdict) -> bool {
    match one {
        Verdict::Violated => other != Verdict::Violated,
        Verdict::Inconclusive => other == Verdict::Upheld,
        Verdict::Upheld | Verdict::Measured | Verdict::NotApplicable => false,
    }
}

/// Returns whether one number meets both relations.
fn meet(one: (Relation, f64), other: (Relation, f64)) -> bool {
    let bounds = |(relation, value): (Relation, f64)| match relation {
        Relation::AtLeast => (value, true, f64::INFINITY, false),
        Relation::More => (value, false, f64::INFINITY, false),
        Relation::Equal => (value, true, value, true),
        Relation::AtMost => (f64::NEG_INFINITY, false, value, true),
        Relation::Less => (f64::NEG_INFINITY, false, value, false),
    };
    let is_below = |(from, has_from, ..): (f64, bool, f64, bool), (_, _, to, has_to): (f64, bool, f64, bool)| {
        from < to || (from == to && has_from && has_to)
    };
    is_below(bounds(one), bounds(other)) && is_below(bounds(other), bounds(one))
}

#[cfg(test)]
mod tests {
    use history::{Arm, Tokens};

    use super::*;

    fn plan() -> Plan {
        crate::scenario::Scenario::of("redlock").unwrap().base
    }

    fn refused(text: &str) -> String {
        let parsed = text.parse::<Expectation>();
        parsed.and_then(|e| e.check(&plan())).expect_err(text).0
    }

    #[test]
    fn clauses_that_exclude_each_other_are_refused() {
        for text in [
            "lock=violated,lock=upheld",
            "lock.windows>=3,lock.windows<=2",
            "lock.windows>2,lock.windows<=2",
            "lock.windows=1,tokens=upheld,lock.windows=2",
            "verdict=upheld,lock=violated",
            "lock=inconclusive,verdict=upheld",
            "lock=violated,verdict=inconclusive",
        ] {
            assert!(refused(text).contains("exclude each other"), "{text}");
        }
        for text in ["lock.windows<0", "lock.windows=-1", "verdict=measured"] {
            assert!(refused(text).contains("no run can meet"), "{text}");
        }
    }

    #[test]
    fn a_clause_that_every_run_meets_is_refused() {
        for text in [
            "lock.windows>=0",
            "lock.windows>-1",
            "lock=upheld,facts.holds>=0",
            "lock.notes>=0",
            "off.data.late>=0",
            "off.data.stale_accepted>=0",
        ] {
            assert!(refused(text).contains("every run meets"), "{text}");
        }
        // A run without a window has no such time.
        for text in ["lock.windows>=1", "lock.windows>0", "facts.first_window_after_ms>=0"] {
            text.parse::<Expectation>().unwrap().check(&plan()).unwrap();
        }
    }

    #[test]
    fn a_number_that_no_list_can_have_is_refused() {
        for text in ["lock.windows=0.5", "lock.notes=1.5", "off.data.lost_updates=2.5"] {
            assert!(refused(text).contains("whole number"), "{text}: {}", refused(text));
        }
        for text in ["lock.windows>0,lock.windows<1", "lock.windows>=0.2,lock.windows<=0.8"] {
            assert!(refused(text).contains("exclude each other: the figure is a whole number"), "{text}");
        }
        for text in [
            "lock.windows>0,lock.windows<2",
            "lock.windows>=0.5",
            "lock.windows<0.5",
            "lock.overlap_ms_max=0.5",
            "lock.staleness_ms_max>0,lock.staleness_ms_max<1",
            "fairness.jain>0.9,fairness.jain<0.95",
        ] {
            text.parse::<Expectation>().unwrap().check(&plan()).unwrap();
        }
    }

    #[test]
    fn a_name_that_no_run_has_is_refused_with_similar_names() {
        assert!(refused("lokc=violated").contains("lock"));
        assert!(refused("lock.windws>=1").contains("lock.windows"));
        assert!(refused("cas.data=upheld").contains("`cas.data`"), "the plan has no arm `cas`");
        for text in ["writes.data.late=0", "writes.data.stale_accepted>=1"] {
            assert!(refused(text).contains("has no figure"), "{text}: an arm with a fence counts these in its fence");
        }
        "off.data.late=0,writes.fence.late=0".parse::<Expectation>().unwrap().check(&plan()).unwrap();
        assert!(refused("lock>=1").contains("is a verdict"));
        assert!(refused("lock.windows=upheld").contains("is a count"));
        assert!(refused("facts.longest_stall<250").contains("is no count"));
    }

    #[test]
    fn a_violated_run_needs_the_name_of_a_violated_property() {
        assert!(refused("verdict=violated").contains("names no violated property"));
        assert!(refused("verdict=violated,lock.windows>=1").contains("`lock=violated`"));
        "verdict=violated,tokens=violated".parse::<Expectation>().unwrap().check(&plan()).unwrap();
    }

    #[test]
    fn a_verdict_that_the_plan_rules_out_is_refused() {
        for (text, words) in [
            ("off.data=upheld", "can only be measured or violated: lost updates are only measured on this arm"),
            ("writes.data=upheld", "can only be measured or violated"),
            ("off.data=inconclusive", "can only be measured or violated"),
            ("reads.data=measured", "can only be upheld or violated or inconclusive"),
            ("tokens=n/a", "can only be upheld or violated or inconclusive"),
            ("lock=n/a", "can only be upheld or violated or inconclusive"),
            ("lock=measured", "can only be upheld or violated or inconclusive"),
            ("resource=n/a", "can only be upheld or violated or inconclusive"),
            ("writes.fence=measured", "can only be upheld or violated or inconclusive"),
            ("reads.fence=n/a", "can only be upheld or violated or inconclusive"),
            ("fairness=upheld", "can only be measured: no attempt of this lock says that it waits in a queue"),
            ("fairness=violated", "can only be measured"),
            ("recovery=upheld", "can only be measured or n/a"),
            ("recovery=violated", "can only be measured or n/a"),
            ("release=measured", "can only be upheld or violated or inconclusive or n/a"),
            ("liveness=n/a", "can only be upheld or violated or inconclusive or measured"),
            ("activity=violated", "can only be upheld or inconclusive"),
        ] {
            assert!(refused(text).contains(words), "{text}: {}", refused(text));
        }
        let without = Plan { tokens: Tokens::None, arms: vec![Arm::Off], ..plan() };
        for text in ["tokens=upheld", "tokens=violated", "tokens=inconclusive"] {
            let refused = text.parse::<Expectation>().unwrap().check(&without).unwrap_err().0;
            assert!(refused.contains("`tokens` can only be n/a: the plan has no tokens"), "{refused}");
        }
        "tokens=n/a,off.data=measured".parse::<Expectation>().unwrap().check(&without).unwrap();
        "off.data=violated,reads.data=upheld,tokens=upheld".parse::<Expectation>().unwrap().check(&plan()).unwrap();
    }

    #[test]
    fn every_figure_of_a_recorded_run_can_be_expected() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus");
        for entry in std::fs::read_dir(corpus).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "jsonl") {
                continue;
            }
            let mut reader = history::Reader::open(&path).unwrap();
            let records: Vec<Record> = reader.by_ref().map(Result::unwrap).collect();
            let Event::Plan { plan, .. } = &records[0].event else { panic!("{}", path.display()) };
            let plan = plan.clone();
            let verdicts = checker::check(records, reader.tail());
            let properties = verdicts.properties.iter();
            let properties = properties.map(|(name, property)| (name, serde_json::to_value(property).unwrap()));
            let facts = ("facts", serde_json::to_value(&verdicts.facts).unwrap());
            for (name, object) in properties.chain([facts]) {
                let Value::Object(fields) = object else { panic!("{name}") };
                let of_verdict = match verdicts.lookup(name) {
                    Some(Figure::Verdict(verdict)) => format!(",{name}={verdict}"),
                    _ => String::new(),
                };
                for figure in fields.keys().map(|field| format!("{name}.{field}")) {
                    if matches!(verdicts.lookup(&figure), Some(Figure::Count(_))) {
                        format!("{figure}>=1{of_verdict}").parse::<Expectation>().unwrap().check(&plan).unwrap();
                    }
                }
                for list in lists(name).filter(|list| !fields.contains_key(*list)) {
                    let empty: Expectation = format!("{name}.{list}=0").parse().unwrap();
                    empty.check(&plan).unwrap();
                    assert!(empty.is_met(&verdicts), "{}: {name}.{list}", path.display());
                }
            }
        }
    }
}
