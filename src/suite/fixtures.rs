//! Results of suites for tests.

use std::path::Path;

use checker::Verdict;
use history::{Event, Record, Tail};

use super::{
    evidence::Evidence,
    facts::RunFacts,
    results::{CaseRun, Head, Results, RowFacts},
};

/// The first line of a record without rows.
pub const HEAD: &str = concat!(
    r#"{"schema":2,"suite":"s","place":0,"cluster":"sim","build":"b","repeat":1,"#,
    r#""shard":{"number":1,"of":1},"rows":[]}"#
);
/// The line of a run.
pub const RUN: &str = concat!(
    r#"{"case":"K1","n":0,"seed":1,"fingerprint":"f","outcome":"as-expected","missing":[],"misses":[],"#,
    r#""seen":"","servers":"","run":"","took_s":1.0,"facts":{"figures":{},"windows":[]},"tests":[]}"#
);

/// A run that came out as expected.
pub fn run(case: &str, n: u32) -> CaseRun {
    let run: CaseRun = serde_json::from_str(RUN).unwrap();
    CaseRun { case: case.to_owned(), n, ..run }
}

/// A run that came out as expected, with the facts of a history; and the worst verdict on the history.
pub fn judged(records: &[Record]) -> (CaseRun, Verdict) {
    let Event::Plan { plan, .. } = &records[0].event else { panic!("a history begins with its plan") };
    let verdicts = checker::check(records.iter().cloned(), Tail::Whole);
    let facts = RunFacts::of(records, &Evidence::of(plan, records.iter()), &verdicts, None);
    (CaseRun { facts, ..run("pause/redis", 0) }, verdicts.verdict)
}

/// Results of one run of each row, without the runs.
pub fn of_rows(cases: &[&str]) -> Results {
    let row = |case: &&str| RowFacts {
        case: (*case).to_owned(),
        claim: "c".into(),
        by: "b".into(),
        witnesses: Vec::new(),
        expected: "lock=upheld".into(),
        fingerprint: "f".into(),
        shard: 1,
    };
    let Results { head, .. } = Results::parse(HEAD, Path::new("s.jsonl")).unwrap();
    Results { head: Head { rows: cases.iter().map(row).collect(), ..head }, runs: Vec::new() }
}
