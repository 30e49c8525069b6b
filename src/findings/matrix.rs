//! A table of faults and locks: the rows of a suite that were run once for each lock of a list.

use std::{collections::BTreeMap, fmt::Write};

use history::Arm;

use crate::suite::{CaseRun, Outcome};

/// A table from the records of a suite. Every case is called `FAULT/LOCK`; other cases are left out.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// The name in templates.
    pub name: String,
    /// All records.
    pub runs: Vec<CaseRun>,
}

/// Returns `items` without repetitions, in the order of their first appearance.
fn once<'a>(items: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

/// A number with three digits at least, and no more decimals than that takes.
fn short(number: f64) -> String {
    match number.abs() {
        _ if number.fract() == 0.0 => format!("{number:.0}"),
        0.0..10.0 => format!("{number:.2}"),
        10.0..100.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// The violations that no window tells: their words in a cell, and the figures of which each suffices.
const VIOLATIONS: [(&str, &[&str]); 12] = [
    ("without a cause", &["lock.unexplained"]),
    ("dead-claim", &["lock.dead_claims"]),
    ("overclaim", &["lock.overclaims"]),
    ("minority-claim", &["lock.minority_claims"]),
    ("stuck", &["liveness.stuck"]),
    ("deadlock", &["liveness.deadlocks_unended"]),
    ("tokens not monotonic", &["tokens.backwards", "tokens.shared"]),
    ("tokens missing", &["tokens.missing"]),
    ("resource violated", &["resource.witness"]),
    ("release violated", &["release.unsafe_releases", "release.left_behind"]),
    ("fairness violated", &["fairness.overtaken"]),
    ("reentry violated", &["reentry.wrong"]),
];

/// Returns the words of the arms that were violated. A fence that refused a rightful write has none: the tokens went
/// wrong, and they have a word.
fn violated_arms(has: impl Fn(&str) -> bool) -> Vec<String> {
    let mut words = Vec::new();
    for arm in Arm::ALL {
        let lost: &[&str] = if arm.keeps_data() { &["lost_updates"] } else { &[] };
        let data = [lost, &["unjustified", "disagreements"]].concat();
        for (property, figures) in [("fence", vec!["stale_accepted", "unjustified"]), ("data", data)] {
            if figures.iter().any(|figure| has(&format!("{arm}.{property}.{figure}"))) {
                words.push(format!("{arm}.{property} violated"));
            }
        }
    }
    words
}

/// The words of one cell: what the lock allowed in these runs.
fn outcome(runs: &[&CaseRun]) -> String {
    let has = |figure: &str| runs.iter().any(|run| run.facts.figures.contains_key(figure));
    let windows = once(runs.iter().flat_map(|run| &run.facts.windows).map(|window| window.kind.as_str()));
    let mut words: Vec<String> = windows.iter().map(|kind| (*kind).to_owned()).collect();
    let others = VIOLATIONS.iter().filter(|(_, figures)| figures.iter().any(|figure| has(figure)));
    words.extend(others.map(|(word, _)| (*word).to_owned()));
    words.extend(violated_arms(has));
    let count = |outcome: Outcome| runs.iter().filter(|run| run.outcome == outcome).count();
    if words.is_empty() && count(Outcome::AsExpected) > 0 {
        words.push("upheld".to_owned());
    }
    for (outcome, word) in [
        (Outcome::NotAsExpected, "not as expected"),
        (Outcome::Inconclusive, "inconclusive"),
        (Outcome::Infrastructure, "no run"),
    ] {
        match count(outcome) {
            0 => {}
            all if all == runs.len() => words.push(format!("*{word}*")),
            some => words.push(format!("*{some} of {} {word}*", runs.len())),
        }
    }
    words.join(", ")
}

/// The changed cases that are named; of more, the number is told.
const NAMED: usize = 5;

impl Matrix {
    /// The sentence about the rows that have changed since the runs; empty without such a row. `present` are the
    /// fingerprints of the rows that the suite has now.
    pub fn changes(&self, present: &BTreeMap<String, String>) -> String {
        let is_changed = |run: &&CaseRun| present.get(&run.case) != Some(&run.fingerprint);
        let changed = once(self.runs.iter().filter(is_changed).map(|run| run.case.as_str()));
        let all = once(self.runs.iter().map(|run| run.case.as_str())).len();
        match changed.len() {
            0 => String::new(),
            1..=NAMED => format!("Since then, the suite has changed these rows: {}.", changed.join(", ")),
            count => format!("Since then, the suite has changed {count} of these {all} rows."),
        }
    }

    /// Returns the table of the outcomes as Markdown. Only faults whose names begin with `faults` are in it.
    ///
    /// # Errors
    /// No record is of such a case `FAULT/LOCK`.
    pub fn outcomes(&self, faults: &str) -> Result<String, String> {
        self.markdown(faults, outcome)
    }

    /// Returns the table of one figure of a record as Markdown; several runs of a case give a span. Only faults whose
    /// names begin with `faults` are in it.
    ///
    /// # Errors
    /// As [`Matrix::outcomes`], and no record has the figure.
    pub fn figures(&self, figure: &str, faults: &str) -> Result<String, String> {
        if !self.runs.iter().any(|run| run.facts.figures.contains_key(figure)) {
            return Err(format!("table-{}: no run has a figure `{figure}`", self.name));
        }
        let of = |run: &&CaseRun| run.figure(figure);
        self.markdown(faults, |runs| {
            let (least, most) = runs.iter().filter_map(of).fold((f64::MAX, 0.0), |(l, m), v: f64| (v.min(l), v.max(m)));
            if least > most {
                "–".to_owned()
            } else if least == most {
                short(least)
            } else {
                format!("{}–{}", short(least), short(most))
            }
        })
    }

    /// The longer list, of locks or of faults, gives the lines.
    fn markdown(&self, faults: &str, cell: impl Fn(&[&CaseRun]) -> String) -> Result<String, String> {
        let all = || self.runs.iter().filter_map(|run| run.case.split_once('/').map(|names| (names, run)));
        let cases = || all().filter(|((fault, _), _)| fault.starts_with(faults));
        let first = faults;
        let (faults, locks) = (once(cases().map(|((fault, _), _)| fault)), once(cases().map(|((_, lock), _)| lock)));
        if faults.is_empty() {
            return Err(format!("table-{}: no case is called {first}FAULT/LOCK", self.name));
        }
        let is_by_fault = faults.len() > locks.len();
        let (corner, lines, columns) = if is_by_fault { ("fault", faults, locks) } else { ("lock", locks, faults) };
        let mut table = format!("| {corner} | {} |\n|{}", columns.join(" | "), " --- |".repeat(columns.len() + 1));
        for line in lines {
            let _ = write!(table, "\n| {line} |");
            for column in &columns {
                let wanted = if is_by_fault { (line, *column) } else { (*column, line) };
                let runs: Vec<&CaseRun> = cases().filter(|(names, _)| *names == wanted).map(|(_, run)| run).collect();
                let _ = write!(table, " {} |", if runs.is_empty() { "–".to_owned() } else { cell(&runs) });
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use checker::Verdict;
    use history::Record;

    use super::*;
    use crate::suite::fixtures::{judged, run};

    #[test]
    fn a_run_with_a_violation_is_not_told_as_upheld() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus");
        let mut violated = 0;
        for path in std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let records: Vec<Record> = history::Reader::open(&path).unwrap().map(Result::unwrap).collect();
                let (run, verdict) = judged(&records);
                if verdict == Verdict::Violated {
                    violated += 1;
                    assert!(!outcome(&[&run]).contains("upheld"), "{}", path.display());
                }
            }
        }
        assert!(violated > 10, "{violated} histories of the corpus are violated");
    }

    #[test]
    fn a_cell_names_the_violations_of_every_property() {
        for (figure, words) in [
            ("lock.minority_claims", "minority-claim"),
            ("liveness.deadlocks_unended", "deadlock"),
            ("tokens.shared", "tokens not monotonic"),
            ("tokens.missing", "tokens missing"),
            ("resource.witness", "resource violated"),
            ("release.left_behind", "release violated"),
            ("fairness.overtaken", "fairness violated"),
            ("reentry.wrong", "reentry violated"),
            ("writes.fence.stale_accepted", "writes.fence violated"),
            ("reads.data.lost_updates", "reads.data violated"),
            ("off.data.disagreements", "off.data violated"),
            ("off.data.lost_updates", "upheld"),
            ("writes.fence.stale_rejected", "upheld"),
        ] {
            let mut run = run("pause/redis", 0);
            run.facts.figures.insert(figure.to_owned(), 1.0);
            assert_eq!(outcome(&[&run]), words, "{figure}");
        }
    }

    #[test]
    fn a_run_that_was_not_made_has_no_figure() {
        let mut made = run("pause/redis", 0);
        made.facts.figures.insert("tokens.backwards".to_owned(), 3.0);
        let failed = |case: &str, n: u32| CaseRun { outcome: Outcome::Infrastructure, ..run(case, n) };
        let runs = vec![made, failed("pause/redis", 1), failed("pause/etcd", 0)];
        let figures = Matrix { name: "t".to_owned(), runs }.figures("tokens.backwards", "").unwrap();
        assert!(figures.ends_with("| redis | 3 |\n| etcd | – |"), "{figures}");
    }

    #[test]
    fn the_longer_list_gives_the_lines() {
        let mut violated = run("pause/redis", 0);
        violated.facts.figures.insert("tokens.backwards".to_owned(), 1.0);
        let mut red = run("kill/etcd", 0);
        red.outcome = Outcome::NotAsExpected;
        let runs = vec![run("none/redis", 0), violated, red, run("alone", 0)];
        let table = Matrix { name: "t".to_owned(), runs };
        let outcomes = table.outcomes("").unwrap();
        let expected = "| fault | redis | etcd |\n\
                        | --- | --- | --- |\n\
                        | none | upheld | – |\n\
                        | pause | tokens not monotonic | – |\n\
                        | kill | – | *not as expected* |";
        assert_eq!(outcomes, expected);
        let kills = "| lock | kill |\n| --- | --- |\n| etcd | *not as expected* |";
        assert_eq!(table.outcomes("ki").unwrap(), kills);
        let backwards = table.figures("tokens.backwards", "").unwrap();
        assert!(backwards.contains("| none | 0 | – |\n| pause | 1 | – |"), "{backwards}");
        assert!(table.figures("tokens.forwards", "").unwrap_err().contains("`tokens.forwards`"));
        assert!(table.outcomes("x").unwrap_err().contains("xFAULT/LOCK"));
        let mut present: BTreeMap<_, _> =
            (table.runs.iter()).map(|r| (r.case.clone(), r.fingerprint.clone())).collect();
        assert_eq!(table.changes(&present), "");
        present.insert("kill/etcd".to_owned(), "another".to_owned());
        present.remove("alone");
        assert_eq!(table.changes(&present), "Since then, the suite has changed these rows: kill/etcd, alone.");
        assert_eq!([0.0, 12.0, 0.949, 45.23, 4529.5].map(short), ["0", "12", "0.95", "45.2", "4530"]);
        let empty = Matrix { name: "t".to_owned(), runs: vec![run("alone", 0)] };
        assert!(empty.outcomes("").unwrap_err().contains("FAULT/LOCK"));
    }
}
