//! Joins the results of the shards of suites.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    output::Output,
    results::{Head, Results, recorded_text},
};
use crate::{
    cli::MergeArgs,
    exit::{Exit, Unusable},
    report::Terminal,
    shard::{Shard, complete},
};

/// The results of one shard, and the file that they come from.
struct Part {
    path: PathBuf,
    results: Results,
}

/// Returns whether a file in a directory of runs has the results of a suite, by its name.
pub fn is_results(name: &str) -> bool {
    name.starts_with("suite-") && name.ends_with(".jsonl")
}

/// Joins and prints the results of suites.
pub fn merge(args: &MergeArgs, files: Vec<PathBuf>) -> anyhow::Result<Exit> {
    let mut output = Output::new(args.format, args.junit.clone())?;
    let mut suites: BTreeMap<(usize, String, &str), Vec<Part>> = BTreeMap::new();
    for path in files {
        let text = recorded_text(&path).map_err(|e| Unusable(format!("{}: {e}", path.display())))?;
        let results = Results::parse(&text, &path)?;
        let Head { place, suite, cluster, .. } = &results.head;
        suites.entry((*place, suite.clone(), cluster.name())).or_default().push(Part { path, results });
    }
    let terminal = Terminal::new(|_| String::new(), false);
    let joined = suites.into_values().map(|parts| joined(parts, &terminal)).collect::<Result<Vec<_>, _>>()?;
    output.clear()?;
    output.write(&joined.iter().collect::<Vec<_>>())
}

/// Joins the shards of one suite.
fn joined(mut parts: Vec<Part>, terminal: &Terminal) -> Result<Results, Unusable> {
    parts.sort_by_key(|part| part.results.head.shard.number);
    let (first, others) = parts.split_first().expect("a group has a part");
    others.iter().try_for_each(|other| are_of_one_suite(first, other))?;
    let head = &first.results.head;
    let name = format!("suite {} on {}", head.suite, head.cluster.name());
    complete(&name, &parts.iter().map(|part| (part.results.head.shard, part.path.as_path())).collect::<Vec<_>>())?;
    let mut all = Results { head: Head { shard: Shard::WHOLE, ..head.clone() }, runs: Vec::new() };
    for Part { path, results } in &parts {
        let (made, planned) = (results.all().len(), results.planned());
        if made < planned {
            terminal.progress(&format!("{}: only {made} of {planned} runs were made", path.display()));
        }
        all.runs.extend(results.all().into_iter().cloned());
    }
    Ok(all)
}

/// Checks that two parts are shards of the same runs.
fn are_of_one_suite(one: &Part, other: &Part) -> Result<(), Unusable> {
    let (a, b) = (&one.results.head, &other.results.head);
    let rows = |head: &Head| head.rows.iter().map(|row| (row.case.clone(), row.clone())).collect::<BTreeMap<_, _>>();
    let problem = if a.build != b.build {
        "come from different builds of the harness: run all shards with the same binary".to_owned()
    } else if a.repeat != b.repeat {
        format!("have another --repeat: {} and {}", a.repeat, b.repeat)
    } else if a.rows == b.rows {
        return Ok(());
    } else {
        let (rows_a, rows_b) = (rows(a), rows(b));
        let differs = |case: &&String| rows_a.get(*case) != rows_b.get(*case);
        let case = rows_a.keys().chain(rows_b.keys()).find(differs);
        let case = case.map_or("their order".to_owned(), |case| format!("the row {case}"));
        format!("come from different suites of that name, or from different --only; a difference: {case}")
    };
    let (one, other) = (one.path.display(), other.path.display());
    Err(Unusable(format!("suite {} on {}: {one} and {other} {problem}", a.suite, a.cluster.name())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        cli::Format,
        suite::fixtures::{HEAD, of_rows, run},
    };

    /// Shard `number` of two, with a run of its only row.
    fn part(number: u32, change: impl FnOnce(&mut Results)) -> Part {
        let mut results = of_rows(&["K1", "K2"]);
        results.head.rows[1].shard = 2;
        results.head.shard = Shard { number, of: 2 };
        results.runs = vec![run(if number == 1 { "K1" } else { "K2" }, 0)];
        change(&mut results);
        Part { path: format!("{number}.jsonl").into(), results }
    }

    fn join(parts: Vec<Part>) -> Result<Results, String> {
        joined(parts, &Terminal::new(|_| String::new(), false)).map_err(|e| e.to_string())
    }

    #[test]
    fn shards_join_to_the_whole() {
        let all = join(vec![part(2, |_| ()), part(1, |_| ())]).unwrap();
        let cases: Vec<&str> = all.all().iter().map(|run| run.case.as_str()).collect();
        assert_eq!((cases, all.planned()), (vec!["K1", "K2"], 2));
    }

    #[test]
    fn shards_that_do_not_fit_are_refused() {
        type Change = fn(&mut Results);
        let changes: [(Change, &str); 6] = [
            (|r| r.head.shard.number = 1, "shard 1/2 is given twice: 1.jsonl and 2.jsonl"),
            (|r| r.head.build = "c".into(), "different builds"),
            (|r| r.head.repeat = 2, "--repeat: 1 and 2"),
            (|r| r.head.shard.of = 3, "1/2 and 2/3"),
            (|r| r.head.rows[1].fingerprint = "g".into(), "a difference: the row K2"),
            (|r| r.head.rows.reverse(), "a difference: their order"),
        ];
        for (change, words) in changes {
            let error = join(vec![part(1, |_| ()), part(2, change)]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let error = join(vec![part(2, |_| ())]).unwrap_err();
        assert!(error.contains("no results of shard 1/2; there are only: 2.jsonl"), "{error}");
    }

    #[test]
    fn an_older_junit_file_stays_if_the_shards_cannot_be_joined() {
        const XML: &str = "<?xml version=\"1.0\"?>";
        let dir = tempfile::tempdir().unwrap();
        let [junit, shard] = ["old.xml", "suite-s-sim.jsonl"].map(|name| dir.path().join(name));
        fs::write(&junit, XML).unwrap();
        let args = MergeArgs { results: Vec::new(), junit: Some(junit.clone()), format: Format::Text };
        let first_of_two = HEAD.replace(r#""of":1"#, r#""of":2"#);
        for (text, words) in [("damaged\n", "no head"), (&first_of_two, "no results of shard 2/2")] {
            fs::write(&shard, text).unwrap();
            let refused = merge(&args, vec![shard.clone()]).unwrap_err();
            assert!(refused.to_string().contains(words), "{refused:#}");
            assert_eq!(fs::read_to_string(&junit).unwrap(), XML, "{words}");
        }
    }
}
