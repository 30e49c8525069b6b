//! `--expect`: verdicts and counts that a run must give, and the exit code that follows.

mod possible;

use std::{fmt, str::FromStr};

use checker::{Figure, Verdict, Verdicts};

use self::possible::{contradiction, left_out};
use crate::exit::{Exit, Unusable};

/// Verdicts and counts that a run must give.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    text: String,
    clauses: Vec<Clause>,
}

#[derive(Debug, Clone, PartialEq)]
struct Clause {
    text: String,
    path: String,
    wanted: Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wanted {
    Verdict(Verdict),
    Count(Relation, f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Relation {
    AtLeast,
    AtMost,
    Equal,
    More,
    Less,
}

impl FromStr for Expectation {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Expectation, Unusable> {
        let clauses = text.split(',').map(|clause| clause.trim().parse()).collect::<Result<Vec<Clause>, _>>()?;
        if let Some(problem) = contradiction(&clauses) {
            return Err(Unusable(format!("--expect: {problem}")));
        }
        Ok(Expectation { text: text.to_owned(), clauses })
    }
}

impl Expectation {
    /// Returns the expectation as the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether all clauses are met. Verdicts that no clause names do not matter.
    pub fn is_met(&self, verdicts: &Verdicts) -> bool {
        self.clauses.iter().all(|clause| clause.met(verdicts).is_ok())
    }
}

impl FromStr for Clause {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Clause, Unusable> {
        let wrong = |problem: String| Unusable(format!("--expect: `{text}`: {problem}"));
        // Two-character relations first, or `>=` would be read as `>` and `=1`.
        let relations = [
            (">=", Relation::AtLeast),
            ("<=", Relation::AtMost),
            ("=", Relation::Equal),
            (">", Relation::More),
            ("<", Relation::Less),
        ];
        let split = relations.into_iter().find_map(|(sign, relation)| text.split_once(sign).map(|s| (s, relation)));
        let ((path, value), relation) = split.ok_or_else(|| {
            wrong(
                "expected PROPERTY=VERDICT or PROPERTY.COUNT>=N, such as `lock=violated` or `lock.unexplained=0`"
                    .into(),
            )
        })?;
        let (path, value) = (path.trim().to_owned(), value.trim());
        let verdict = Verdict::ALL.into_iter().find(|v| v.name() == value);
        let wanted = match (verdict, relation, value.parse::<f64>()) {
            (Some(verdict), Relation::Equal, _) => Wanted::Verdict(verdict),
            (None, relation, Ok(count)) if count.is_finite() => Wanted::Count(relation, count),
            _ => {
                return Err(wrong(format!(
                    "`{value}` is neither a number nor one of {}",
                    Verdict::ALL.map(Verdict::name).join(", ")
                )));
            }
        };
        Ok(Clause { text: text.to_owned(), path, wanted })
    }
}

impl Clause {
    /// Checks that the clause is met. The error is the reason why it is not.
    fn met(&self, verdicts: &Verdicts) -> Result<(), String> {
        let figure = verdicts.lookup(&self.path).or_else(|| left_out(&self.path, verdicts));
        let found = match (self.wanted, figure) {
            (_, None) => return Err(format!("expected {}, but this run has no figure `{}`", self.text, self.path)),
            (Wanted::Verdict(wanted), Some(Figure::Verdict(found))) if wanted == found => return Ok(()),
            (Wanted::Count(relation, wanted), Some(Figure::Count(found))) => {
                let met = match relation {
                    Relation::AtLeast => found >= wanted,
                    Relation::AtMost => found <= wanted,
                    Relation::Equal => found == wanted,
                    Relation::More => found > wanted,
                    Relation::Less => found < wanted,
                };
                if met {
                    return Ok(());
                }
                found.to_string()
            }
            (_, Some(Figure::Verdict(found))) => found.to_string(),
            (_, Some(Figure::Count(found))) => found.to_string(),
        };
        Err(format!("expected {}, found {found}", self.text))
    }
}

/// A clause that a run did not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// The property or count of the clause: `lock`, `off.data.lost_updates`.
    pub path: String,
    /// The clause, and the figure that was found instead.
    pub text: String,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The comparison of a run with its expectation.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// True if the run met the expectation; `None` without an expectation.
    pub as_expected: Option<bool>,
    /// The clauses that the run did not meet.
    pub misses: Vec<Miss>,
    /// The exit code.
    pub exit: Exit,
    /// The verdicts that the expectation names, by property.
    verdicts: Vec<(String, Verdict)>,
}

impl Comparison {
    /// Returns whether the expectation names this verdict for the property.
    pub fn expects(&self, property: &str, verdict: Verdict) -> bool {
        self.verdicts.iter().any(|(name, wanted)| name == property && *wanted == verdict)
    }
}

/// Compares verdicts with the expectation. Judged properties that the expectation does not name must be upheld.
///
/// A violation that was not expected is 1; otherwise anything inconclusive is 2; otherwise any other miss is 1.
pub fn compare(expectation: Option<&Expectation>, verdicts: &Verdicts) -> Comparison {
    let clauses = expectation.map_or(&[][..], |e| &e.clauses);
    let miss = |c: &Clause| c.met(verdicts).err().map(|text| Miss { path: c.path.clone(), text });
    let mut misses: Vec<Miss> = clauses.iter().filter_map(miss).collect();
    let expected = |path: &str| {
        clauses.iter().find_map(|c| match c.wanted {
            Wanted::Verdict(verdict) if c.path == path => Some(verdict),
            _ => None,
        })
    };
    let mut violated = false;
    let mut inconclusive = false;
    for (name, property) in verdicts.properties.iter() {
        let found = property.verdict();
        // `verdict=inconclusive` speaks for every property that is and has no clause of its own.
        let wanted = expected(name).or_else(|| expected("verdict").filter(|run| *run == Verdict::Inconclusive));
        if wanted == Some(found) {
            continue;
        }
        match found {
            Verdict::Violated => violated = true,
            Verdict::Inconclusive => inconclusive = true,
            _ => continue,
        }
        if expected(name).is_none() {
            misses.push(Miss { path: name.to_owned(), text: format!("expected {name}=upheld, found {found}") });
        }
    }
    // A run that was not judged to its end is inconclusive even where a violation was expected and found.
    let unjudged = !verdicts.reasons.is_empty() && expected("verdict") != Some(Verdict::Inconclusive);
    let exit = if violated {
        Exit::Violated
    } else if inconclusive || unjudged {
        Exit::Inconclusive
    } else if !misses.is_empty() {
        Exit::Violated
    } else {
        Exit::Ok
    };
    let named = clauses.iter().filter_map(|clause| match clause.wanted {
        Wanted::Verdict(verdict) => Some((clause.path.clone(), verdict)),
        Wanted::Count(..) => None,
    });
    Comparison { as_expected: expectation.map(|_| exit == Exit::Ok), misses, exit, verdicts: named.collect() }
}

#[cfg(test)]
mod tests {
    use history::{Record, Tail};

    use super::*;

    fn records(name: &str) -> Vec<Record> {
        let path = format!("{}/checker/tests/corpus/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        history::Reader::open(path.as_ref()).unwrap().map(Result::unwrap).collect()
    }

    fn corpus(name: &str) -> Verdicts {
        checker::check(records(name), Tail::Whole)
    }

    fn exit(of: &str, expectation: &str) -> Exit {
        let expectation: Option<Expectation> = (!expectation.is_empty()).then(|| expectation.parse().unwrap());
        compare(expectation.as_ref(), &corpus(of)).exit
    }

    #[test]
    fn without_an_expectation_the_worst_verdict_decides() {
        assert_eq!(exit("none", ""), Exit::Ok);
        assert_eq!(exit("kleppmann-pause", ""), Exit::Violated);
        assert_eq!(exit("event-lost", ""), Exit::Inconclusive);
    }

    #[test]
    fn what_is_expected_and_comes_out_is_no_failure() {
        assert_eq!(exit("kleppmann-pause", "lock=violated,lock.unexplained=0,lock.windows>=1"), Exit::Ok);
        assert_eq!(exit("none", "lock=upheld,lock.windows<1,verdict=upheld"), Exit::Ok);
        assert_eq!(exit("none", "release.leftovers=0,release.faults=0,tokens.faults=0,lock.notes<=3"), Exit::Ok);
    }

    #[test]
    fn each_relation_ends_at_its_number() {
        let verdicts = corpus("kleppmann-pause");
        // The run has two holds.
        for (relation, met) in [
            (">=", [true, true, false]),
            (">", [true, false, false]),
            ("=", [false, true, false]),
            ("<=", [false, true, true]),
            ("<", [false, false, true]),
        ] {
            let is_met = |number: u32| {
                let expectation: Expectation = format!("facts.holds{relation}{number}").parse().unwrap();
                expectation.is_met(&verdicts)
            };
            assert_eq!([1, 2, 3].map(is_met), met, "2 {relation} 1, 2 and 3");
        }
    }

    #[test]
    fn a_violation_that_was_not_expected_comes_before_everything() {
        assert_eq!(exit("kleppmann-pause", "tokens=upheld"), Exit::Violated);
        assert_eq!(exit("kleppmann-pause", "lock.windows>=1"), Exit::Violated, "a count is no verdict");
        // The run's verdict does not stand for the fence, which is violated too.
        let expectation: Expectation = "verdict=violated,tokens=violated".parse().unwrap();
        let found = compare(Some(&expectation), &corpus("equal-tokens"));
        assert_eq!((found.exit, found.as_expected), (Exit::Violated, Some(false)));
        let text = "expected writes.fence=upheld, found violated".to_owned();
        let miss = Miss { path: "writes.fence".to_owned(), text };
        assert!(found.misses.contains(&miss), "{:?}", found.misses);
    }

    #[test]
    fn any_other_miss_is_a_failure_and_an_unknown_name_is_a_miss() {
        assert_eq!(exit("none", "lock=violated"), Exit::Violated);
        assert_eq!(exit("none", "lock.windows>=1"), Exit::Violated);
        assert_eq!(exit("none", "lokc.windows>=1"), Exit::Violated);
    }

    #[test]
    fn an_inconclusive_run_can_be_what_was_expected() {
        assert_eq!(exit("event-lost", "lock=upheld"), Exit::Inconclusive);
        assert_eq!(exit("event-lost", "verdict=inconclusive"), Exit::Ok);
        assert_eq!(exit("event-lost", "verdict=inconclusive,lock=inconclusive"), Exit::Ok);
        // The lock may be as expected, or not: nothing was judged to be otherwise.
        assert_eq!(exit("event-lost", "verdict=inconclusive,lock=upheld"), Exit::Inconclusive);
    }

    #[test]
    fn a_run_without_its_end_is_never_as_expected() {
        let mut records = records("kleppmann-pause");
        records.pop();
        let verdicts = checker::check(records, Tail::Whole);
        assert_eq!(verdicts.verdict, Verdict::Violated);
        let clauses = verdicts.properties.iter().map(|(name, property)| format!("{name}={}", property.verdict()));
        let expectation: Expectation = clauses.collect::<Vec<_>>().join(",").parse().unwrap();
        assert!(expectation.is_met(&verdicts));
        assert_eq!(compare(Some(&expectation), &verdicts).exit, Exit::Inconclusive);
    }

    #[test]
    fn a_clause_that_cannot_be_read_is_refused() {
        for text in ["", "lock", "lock=borken", "lock>=violated", "lock.windows>=x", "lock.windows=nan", "=1,"] {
            assert!(text.parse::<Expectation>().is_err() || text == "=1,", "{text}");
        }
    }
}
