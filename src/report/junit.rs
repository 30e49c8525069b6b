//! `junit.xml`: a test case for each property of each run, for the programs that show the results of tests.

use std::time::Duration;

use anyhow::Context;
use checker::{Verdict, Verdicts};
use quick_junit::{NonSuccessKind, TestCaseStatus, TestSuite};
use serde::{Deserialize, Serialize};

use crate::{exit::Exit, expect::Miss};

/// The result of a test case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestResult {
    /// As expected.
    Passed,
    /// Not as expected.
    Failed,
    /// Inconclusive: the run says nothing about it.
    Skipped,
    /// The harness could not make the run.
    Error,
}

/// One test case: a property of a run, or a condition of the whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestCase {
    /// The name of the property: `lock`, `off.data`; or `witness`, `record`, `expectation`, `run`.
    pub name: String,
    /// The result.
    pub result: TestResult,
    /// The reasons for any result but [`TestResult::Passed`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
}

impl TestCase {
    /// Makes a test case that passes if there is no reason why it should not.
    pub fn new(name: &str, otherwise: TestResult, why: Vec<String>) -> TestCase {
        let result = if why.is_empty() { TestResult::Passed } else { otherwise };
        TestCase { name: name.to_owned(), result, why }
    }
}

/// Returns the test cases of a judged run that ends with `exit`: one for each property that the run has.
pub fn test_cases(verdicts: &Verdicts, misses: &[Miss], exit: Exit) -> Vec<TestCase> {
    let properties: Vec<_> = verdicts.properties.iter().collect();
    let is_of = |miss: &Miss, name: &str| {
        miss.path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    // A run that is inconclusive as a whole fails nothing.
    let failed = if exit == Exit::Inconclusive { TestResult::Skipped } else { TestResult::Failed };
    let mut cases = Vec::new();
    for (name, property) in &properties {
        let mut why: Vec<String> = misses.iter().filter(|m| is_of(m, name)).map(ToString::to_string).collect();
        let verdict = property.verdict();
        if verdict == Verdict::NotApplicable && why.is_empty() {
            continue;
        }
        // An unexpected `inconclusive` is open. A count that an expected one misses is a failure.
        let is_open = verdict == Verdict::Inconclusive && misses.iter().any(|miss| miss.path == *name);
        if is_open {
            why.extend(property.reasons().iter().cloned());
        }
        cases.push(TestCase::new(name, if is_open { TestResult::Skipped } else { failed }, why));
    }
    let is_elsewhere = |miss: &&Miss| !properties.iter().any(|(name, _)| is_of(miss, name));
    let others: Vec<String> = misses.iter().filter(is_elsewhere).map(ToString::to_string).collect();
    if !others.is_empty() {
        cases.push(TestCase::new("expectation", failed, others));
    }
    if exit == Exit::Inconclusive && !verdicts.reasons.is_empty() {
        cases.push(TestCase::new("record", TestResult::Skipped, verdicts.reasons.clone()));
    }
    cases
}

/// The test cases of one run.
pub struct TestedRun<'a> {
    /// The name of the group: the suite and the row.
    pub class: String,
    /// The number of the run among the runs of its row, from 1; none if there is only one.
    pub number: Option<u32>,
    /// The duration.
    pub took: Duration,
    /// The test cases.
    pub cases: &'a [TestCase],
}

/// Removes the two characters that no XML may contain and that the writer lets pass. The writer removes all others.
fn without_noncharacters(text: &str) -> String {
    text.replace(['\u{fffe}', '\u{ffff}'], "")
}

/// Returns the file. Each suite has a name and its runs.
///
/// # Errors
/// The text cannot be written as XML.
pub fn junit(suites: &[(String, Vec<TestedRun<'_>>)]) -> anyhow::Result<String> {
    let mut report = quick_junit::Report::new("harness");
    for (name, runs) in suites {
        let mut suite = TestSuite::new(without_noncharacters(name));
        for run in runs {
            // One case carries the time of the run, so that the sum over all cases is the time of the suite.
            let times = std::iter::once(run.took).chain(std::iter::repeat(Duration::ZERO));
            for (case, took) in run.cases.iter().zip(times) {
                let name = run.number.map_or(case.name.clone(), |number| format!("{} (run {number})", case.name));
                let mut written = quick_junit::TestCase::new(without_noncharacters(&name), status(case));
                written.set_classname(without_noncharacters(&run.class)).set_time(took);
                suite.add_test_case(written);
            }
        }
        report.add_test_suite(suite);
    }
    report.to_string().context("writing the results as JUnit XML")
}

fn status(case: &TestCase) -> TestCaseStatus {
    let why: Vec<String> = case.why.iter().map(|why| without_noncharacters(why)).collect();
    let kind = match case.result {
        TestResult::Passed => return TestCaseStatus::success(),
        TestResult::Skipped => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(why.join("; "));
            return status;
        }
        TestResult::Failed => NonSuccessKind::Failure,
        TestResult::Error => NonSuccessKind::Error,
    };
    let mut status = TestCaseStatus::non_success(kind);
    let kind = if kind == NonSuccessKind::Error { "infrastructure" } else { "not as expected" };
    status.set_type(kind).set_message(why.first().cloned().unwrap_or_default());
    status.set_description(why.join("\n"));
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{expect::compare, judge::judge};

    fn of(expectation: Option<&str>) -> Vec<TestCase> {
        of_history("kleppmann-pause", expectation)
    }

    fn of_history(name: &str, expectation: Option<&str>) -> Vec<TestCase> {
        let history = format!("{}/checker/tests/corpus/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let judged = judge(history.as_ref()).unwrap();
        let expectation = expectation.map(|text| text.parse().unwrap());
        let compared = compare(expectation.as_ref(), &judged.verdicts);
        test_cases(&judged.verdicts, &compared.misses, compared.exit)
    }

    fn result(cases: &[TestCase], name: &str) -> TestResult {
        cases.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("{name}: {cases:?}")).result
    }

    #[test]
    fn a_violation_fails_its_property_unless_it_was_expected() {
        assert_eq!(result(&of(None), "lock"), TestResult::Failed);
        assert_eq!(result(&of(None), "tokens"), TestResult::Passed);
        assert_eq!(result(&of(Some("lock=violated")), "lock"), TestResult::Passed);
        let counted = of(Some("lock=violated,off.data.lost_updates>=1000"));
        assert_eq!(result(&counted, "lock"), TestResult::Passed);
        assert_eq!(result(&counted, "off.data"), TestResult::Failed);
    }

    #[test]
    fn a_missed_clause_fails_a_property_that_is_not_applicable() {
        // Without a fault there is no recovery.
        let missed = of_history("none", Some("recovery.healed>=1"));
        assert_eq!(result(&missed, "recovery"), TestResult::Failed);
        for expectation in [None, Some("recovery.healed=0")] {
            let cases = of_history("none", expectation);
            assert!(cases.iter().all(|case| case.name != "recovery"), "{cases:?}");
        }
    }

    #[test]
    fn a_missed_clause_of_no_property_fails_a_case_of_its_own() {
        let verdicts = checker::check(std::iter::empty(), history::Tail::Whole);
        let miss = Miss { path: "facts.holds".into(), text: "expected facts.holds>=1, found 0".into() };
        let cases = test_cases(&verdicts, std::slice::from_ref(&miss), Exit::Violated);
        assert_eq!(cases.last().unwrap(), &TestCase::new("expectation", TestResult::Failed, vec![miss.text]));
    }

    #[test]
    fn a_record_that_was_not_judged_to_its_end_is_a_skipped_case() {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/event-lost.jsonl");
        let verdicts = judge(history.as_ref()).unwrap().verdicts;
        assert!(!verdicts.reasons.is_empty());
        let cases = test_cases(&verdicts, &[], Exit::Inconclusive);
        let record = TestCase::new("record", TestResult::Skipped, verdicts.reasons.clone());
        assert_eq!(cases.last(), Some(&record));
    }

    #[test]
    fn the_file_is_xml_whatever_the_names_contain() {
        let odd = "\u{0}\u{1b}[31m<&>\"'\u{fffe}]]>\n";
        let cases = [TestResult::Passed, TestResult::Failed, TestResult::Skipped, TestResult::Error]
            .map(|result| TestCase { name: odd.into(), result, why: vec![odd.into(), odd.into()] });
        let (class, took) = (odd.to_owned(), Duration::from_millis(1500));
        let run = TestedRun { class, number: Some(2), took, cases: &cases };
        let text = junit(&[(odd.into(), vec![run])]).unwrap();
        let read = quick_junit::Report::deserialize_from_str(&text).unwrap();
        let suite = &read.test_suites[0];
        assert_eq!((suite.tests, suite.failures, suite.errors, suite.skipped), (4, 1, 1, 1), "{text}");
        assert!(!text.contains(['\u{0}', '\u{1b}', '\u{fffe}']), "{text}");
    }

    #[test]
    fn a_count_that_an_expected_inconclusive_misses_is_a_failure() {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let reader = history::Reader::open(history.as_ref()).unwrap();
        let mut records: Vec<history::Record> = reader.collect::<Result<_, _>>().unwrap();
        let history::Event::Plan { plan, .. } = &mut records[0].event else { panic!("{:?}", records[0]) };
        plan.activity.holds = 1_000;
        let verdicts = checker::check(records, history::Tail::Whole);
        let of = |text: &str| {
            let compared = compare(Some(&text.parse().unwrap()), &verdicts);
            (compared.exit, result(&test_cases(&verdicts, &compared.misses, compared.exit), "activity"))
        };
        let missed = of("lock=violated,activity=inconclusive,activity.holds>=1000");
        assert_eq!(missed, (Exit::Violated, TestResult::Failed));
        assert_eq!(of("lock=violated,activity=inconclusive"), (Exit::Ok, TestResult::Passed));
        assert_eq!(of("lock=violated").1, TestResult::Skipped);
    }
}
