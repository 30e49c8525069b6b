//! The results of a suite: the rows, and the runs of one shard or of all shards.

use std::{
    collections::BTreeSet,
    io::{Error, ErrorKind},
    path::Path,
};

use history::ClusterKind;
use serde::{Deserialize, Serialize};

use super::{
    facts::RunFacts,
    file::{Case, Suite},
};
use crate::{
    exit::Unusable,
    report::TestCase,
    shard::{Shard, partition},
};

/// The version of the format of a record.
const SCHEMA: u32 = 2;
/// The most bytes of a record that is read. A run has about 3 KiB.
const RECORD_MAX: u64 = 1 << 30;

/// The outcome of one run of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The evidence is there, and all verdicts are as the row expects.
    AsExpected,
    /// The evidence is there, and a verdict is not as expected.
    NotAsExpected,
    /// The evidence is missing, or a property is inconclusive: the run says nothing about the claim.
    Inconclusive,
    /// The harness failed twice to make the run.
    Infrastructure,
}

/// One run of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseRun {
    /// The name of the case: `K1`, `K5 twin`.
    pub case: String,
    /// The number of the run among the runs of its case, from 0.
    pub n: u32,
    /// The seed.
    pub seed: u64,
    /// The fingerprint of plan and expectation: a changed plan or expectation has another fingerprint.
    pub fingerprint: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Evidence that is missing.
    pub missing: Vec<String>,
    /// Expectations that are not met.
    pub misses: Vec<String>,
    /// The errors of attempts that the harness could not take to their end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// The verdicts, in one line.
    pub seen: String,
    /// The versions of the servers.
    pub servers: String,
    /// The run directory; empty if nothing was written.
    pub run: String,
    /// The duration in seconds.
    pub took_s: f64,
    /// The figures of the run.
    pub facts: RunFacts,
    /// A test case for each property.
    pub tests: Vec<TestCase>,
}

impl CaseRun {
    /// The figure at a path. None if the run was not made, or did not measure the figure.
    pub fn figure(&self, path: &str) -> Option<f64> {
        // The record of a run that was not made lacks its counts. They are no zeros.
        if self.outcome == Outcome::Infrastructure { None } else { self.facts.figure(path) }
    }
}

/// A row of the table, as the suite file describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowFacts {
    /// The name of the case: `K1`, `K5 twin`.
    pub case: String,
    /// The claim.
    pub claim: String,
    /// The author of the claim.
    pub by: String,
    /// The evidence that a run needs, in words.
    pub witnesses: Vec<String>,
    /// The expected verdicts.
    pub expected: String,
    /// The fingerprint of plan and expectation.
    pub fingerprint: String,
    /// The number of the shard that runs the row.
    pub shard: u32,
}

/// The facts that the results of all shards of a suite share, but for the number of the shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Version of this format.
    pub schema: u32,
    /// The name of the suite file without `.toml`.
    pub suite: String,
    /// The position of the suite among the suites of the call, from 0.
    pub place: usize,
    /// The cluster of every run.
    pub cluster: ClusterKind,
    /// The build of the harness that makes the runs.
    pub build: String,
    /// The number of runs of each row.
    pub repeat: u32,
    /// The shard of these results.
    pub shard: Shard,
    /// All chosen rows, those of other shards too.
    pub rows: Vec<RowFacts>,
}

impl Head {
    /// Describes a suite, and divides its rows among the shards.
    pub fn of(
        suite: &Suite,
        place: usize,
        cluster: ClusterKind,
        build: &str,
        repeat: u32,
        shard: Shard,
    ) -> anyhow::Result<Head> {
        let shards = partition(&suite.cases.iter().map(Case::planned).collect::<Vec<_>>(), shard.of);
        let row = |(case, shard): (&Case, u32)| -> anyhow::Result<RowFacts> {
            Ok(RowFacts {
                case: case.name.clone(),
                claim: case.claim.clone(),
                by: case.by.clone(),
                witnesses: case.witnesses.iter().map(ToString::to_string).collect(),
                expected: case.expected(),
                fingerprint: case.fingerprint()?,
                shard,
            })
        };
        let rows = suite.cases.iter().zip(shards).map(row).collect::<anyhow::Result<_>>()?;
        let (suite, build) = (suite.name.clone(), build.to_owned());
        Ok(Head { schema: SCHEMA, suite, place, cluster, build, repeat, shard, rows })
    }

    /// The name of the file with these results.
    pub fn file_name(&self) -> String {
        let part = match self.shard {
            Shard::WHOLE => String::new(),
            Shard { number, of } => format!("-{number}of{of}"),
        };
        format!("suite-{}-{}{part}.jsonl", self.suite, self.cluster.name())
    }

    /// Returns true if the row is in the shard of these results.
    pub fn has(&self, row: &RowFacts) -> bool {
        self.shard == Shard::WHOLE || row.shard == self.shard.number
    }
}

/// The results of a suite, or of a shard of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// The rows, and how they are run.
    pub head: Head,
    /// The runs in the order of their end. It may contain runs of rows that are not in the head.
    pub runs: Vec<CaseRun>,
}

impl Results {
    /// The rows of the shard.
    pub fn rows(&self) -> impl Iterator<Item = &RowFacts> {
        self.head.rows.iter().filter(|row| self.head.has(row))
    }

    /// Returns the runs of a row, with its present plan and expectation, in the order of their numbers.
    pub fn of(&self, row: &RowFacts) -> Vec<&CaseRun> {
        let is_it =
            |run: &&CaseRun| run.case == row.case && run.n < self.head.repeat && run.fingerprint == row.fingerprint;
        let mut runs: Vec<&CaseRun> = self.runs.iter().filter(is_it).collect();
        runs.sort_by_key(|run| run.n);
        runs
    }

    /// Returns the runs of all rows, in the order of the rows.
    pub fn all(&self) -> Vec<&CaseRun> {
        self.rows().flat_map(|row| self.of(row)).collect()
    }

    /// The number of runs that the results have if the shard was run to its end.
    pub fn planned(&self) -> usize {
        self.rows().count() * self.head.repeat as usize
    }

    /// Reads the results of one call. The last line may be incomplete.
    ///
    /// # Errors
    /// A line cannot be parsed, the first line is no head of this version, or a second head follows.
    pub fn parse(text: &str, path: &Path) -> Result<Results, Unusable> {
        let mut all = Results::parse_all(text, path)?;
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (_, others) => {
                let problem = format!("expected one head of a suite's results, and found {}", others + 1);
                Err(Unusable(format!("{}: {problem}", path.display())))
            }
        }
    }

    /// Reads the results of calls, one after the other in one file.
    ///
    /// # Errors
    /// As [`Results::parse`], but every line may be a head.
    pub fn parse_all(text: &str, path: &Path) -> Result<Vec<Results>, Unusable> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let wrong = |number: usize, problem: String| Unusable(format!("{}, line {number}: {problem}", path.display()));
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line)).peekable();
        let (mut all, mut known) = (Vec::<Results>::new(), BTreeSet::new());
        while let Some((number, line)) = lines.next() {
            let (version, last) = (serde_json::from_str::<Version>(line), all.last_mut());
            match (version, last) {
                (Ok(Version { schema: SCHEMA }), _) => {
                    let head: Head = serde_json::from_str(line).map_err(|e| wrong(number, e.to_string()))?;
                    if !head.shard.exists() {
                        return Err(wrong(number, format!("there is no shard {}", head.shard)));
                    }
                    all.push(Results { head, runs: Vec::new() });
                }
                (Ok(Version { schema }), _) => {
                    let problem = format!("schema {schema} is unknown; this version reads schema {SCHEMA}");
                    return Err(wrong(number, problem));
                }
                (Err(e), None) => return Err(wrong(number, format!("no head of a suite's results: {e}"))),
                (Err(_), Some(results)) => match serde_json::from_str::<CaseRun>(line) {
                    Ok(run) if !known.insert((run.case.clone(), run.n, run.fingerprint.clone())) => {
                        // A run that could not be made was made by a later call.
                        let is_it = |of: &&mut CaseRun| {
                            (&of.case, of.n, &of.fingerprint) == (&run.case, run.n, &run.fingerprint)
                                && of.outcome == Outcome::Infrastructure
                        };
                        let Some(failed) = results.runs.iter_mut().find(is_it) else {
                            return Err(wrong(number, format!("run {} of {} is there twice", run.n + 1, run.case)));
                        };
                        *failed = run;
                    }
                    Ok(run) => results.runs.push(run),
                    Err(_) if lines.peek().is_none() && !text.ends_with('\n') => {}
                    Err(e) => return Err(wrong(number, e.to_string())),
                },
            }
        }
        if all.is_empty() { Err(wrong(1, "expected the head of a suite's results".into())) } else { Ok(all) }
    }
}

/// Reads the text of a record for [`Results::parse`]. An incomplete last line may end inside a character; it is then
/// left out.
///
/// # Errors
/// The file cannot be read, is no regular file, has more than 1 GiB, or an earlier line is no UTF-8.
pub fn recorded_text(path: &Path) -> Result<String, Error> {
    let mut content = compose::read_file(path, RECORD_MAX)?;
    let last_line = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if std::str::from_utf8(&content[last_line..]).is_err() {
        content.truncate(last_line);
    }
    String::from_utf8(content).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::fixtures::{HEAD, RUN, of_rows, run};

    #[test]
    fn a_line_that_is_cut_inside_a_character_is_incomplete() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |parts: &[&[u8]]| {
            std::fs::write(file.path(), parts.concat()).unwrap();
            recorded_text(file.path())
        };
        let (head, run) = (format!("{HEAD}\n"), format!("{RUN}\n"));
        let cut = &"{\"case\":\"K…".as_bytes()[..12];
        assert!(std::str::from_utf8(cut).is_err());
        let text = read(&[head.as_bytes(), run.as_bytes(), cut]).unwrap();
        assert_eq!(Results::parse(&text, file.path()).unwrap().runs.len(), 1);
        let damaged = read(&[head.as_bytes(), cut, b"\n", run.as_bytes()]).unwrap_err();
        assert_eq!(damaged.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_record_without_an_end_is_refused() {
        let refused = recorded_text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(refused.contains("expected a regular file"), "{refused}");
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_and_any_other_refused() {
        let path = Path::new("s.jsonl");
        let cut = &RUN[..RUN.len() / 2];
        assert_eq!(Results::parse(&format!("{HEAD}\n{RUN}\n{cut}"), path).unwrap().runs.len(), 1);
        let error = Results::parse(&format!("{HEAD}\n{cut}\n{RUN}\n"), path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        let of_none = HEAD.replace(r#""number":1,"of":1"#, r#""number":0,"of":0"#);
        let of_others = HEAD.replace(r#""number":1,"of":1"#, r#""number":3,"of":2"#);
        let twice = format!("{HEAD}\n{RUN}\n{RUN}\n");
        for (text, words) in [
            ("", "line 1"),
            (RUN, "no head"),
            ("{\"schema\":9}", "schema 9 is unknown"),
            (&of_none, "line 1: there is no shard 0/0"),
            (&of_others, "line 1: there is no shard 3/2"),
            (&twice, "line 3: run 1 of K1"),
        ] {
            let error = Results::parse(text, path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn each_plan_of_a_row_has_runs_of_its_own() {
        let older = RUN.replace(r#""fingerprint":"f""#, r#""fingerprint":"e""#);
        let results = Results::parse(&format!("{HEAD}\n{older}\n{RUN}\n"), Path::new("s.jsonl")).unwrap();
        let runs: Vec<_> = results.runs.iter().map(|run| (run.n, run.fingerprint.as_str())).collect();
        assert_eq!(runs, [(0, "e"), (0, "f")]);
    }

    #[test]
    fn a_run_that_is_made_later_takes_the_place_of_a_failed_one_of_the_same_plan() {
        let line = |run: &CaseRun| serde_json::to_string(run).unwrap();
        let failed = |plan: &str| {
            let outcome = Outcome::Infrastructure;
            line(&CaseRun { fingerprint: plan.into(), outcome, ..run("K1", 0) })
        };
        let made = line(&CaseRun { fingerprint: "b".into(), ..run("K1", 0) });
        let text = [HEAD.to_owned(), failed("a"), failed("b"), made.clone()].join("\n");
        let results = Results::parse(&text, Path::new("s.jsonl")).unwrap();
        assert_eq!(results.runs.iter().map(line).collect::<Vec<_>>(), [failed("a"), made]);
    }

    #[test]
    fn only_runs_of_the_present_row_and_repetitions_count() {
        let mut results = of_rows(&["K1"]);
        results.head.repeat = 2;
        let older = CaseRun { fingerprint: "g".into(), ..run("K1", 0) };
        results.runs = vec![run("K1", 2), run("K1", 1), run("K2", 0), older, run("K1", 0)];
        let counted: Vec<u32> = results.of(&results.head.rows[0]).iter().map(|run| run.n).collect();
        assert_eq!((counted, results.all().len(), results.planned()), (vec![0, 1], 2, 2));
    }
}
