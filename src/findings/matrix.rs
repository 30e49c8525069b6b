//! A table of faults and locks: the rows of a suite that were run once for each lock of a list.

use std::fmt::Write;

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

/// The words of one cell: what the lock allowed in these runs.
fn cell(runs: &[&CaseRun]) -> String {
    let has = |figure: &str| runs.iter().any(|run| run.facts.figures.contains_key(figure));
    let windows = once(runs.iter().flat_map(|run| &run.facts.windows).map(|window| window.kind.as_str()));
    let mut words: Vec<String> = windows.iter().map(|kind| (*kind).to_owned()).collect();
    let others = [
        (has("lock.unexplained"), "without a cause"),
        (has("tokens.backwards") || has("tokens.shared"), "tokens not monotonic"),
    ];
    words.extend(others.iter().filter(|(is_so, _)| *is_so).map(|(_, word)| (*word).to_owned()));
    if words.is_empty() {
        words.push("upheld".to_owned());
    }
    let unexpected = runs.iter().filter(|run| run.outcome != Outcome::AsExpected).count();
    if unexpected > 0 {
        words.push(format!("**{unexpected} of {} not as expected**", runs.len()));
    }
    words.join(", ")
}

impl Matrix {
    /// Returns the table as Markdown. The longer list, of locks or of faults, gives the lines.
    ///
    /// # Errors
    /// No record is of a case `FAULT/LOCK`.
    pub fn markdown(&self) -> Result<String, String> {
        let cases = || self.runs.iter().filter_map(|run| run.case.split_once('/').map(|names| (names, run)));
        let (faults, locks) = (once(cases().map(|((fault, _), _)| fault)), once(cases().map(|((_, lock), _)| lock)));
        if faults.is_empty() {
            return Err(format!("table-{}: no case is called FAULT/LOCK", self.name));
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
    use super::*;
    use crate::suite::fixtures::run;

    #[test]
    fn the_longer_list_gives_the_lines() {
        let mut violated = run("pause/redis", 0);
        violated.facts.figures.insert("tokens.backwards".to_owned(), 1.0);
        let mut red = run("kill/etcd", 0);
        red.outcome = Outcome::NotAsExpected;
        let runs = vec![run("none/redis", 0), violated, red, run("alone", 0)];
        let table = Matrix { name: "t".to_owned(), runs }.markdown().unwrap();
        let expected = "| fault | redis | etcd |\n\
                        | --- | --- | --- |\n\
                        | none | upheld | – |\n\
                        | pause | tokens not monotonic | – |\n\
                        | kill | – | upheld, **1 of 1 not as expected** |";
        assert_eq!(table, expected);
        let empty = Matrix { name: "t".to_owned(), runs: vec![run("alone", 0)] };
        assert!(empty.markdown().unwrap_err().contains("FAULT/LOCK"));
    }
}
