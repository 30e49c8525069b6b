//! `harness explain`: prints the legend, which defines every word of the reports.

use std::fmt::Write;

use crate::{
    cli::ExplainArgs,
    exit::{Exit, Unusable},
    report::print,
    similar::similar,
};

/// The width of the printed text.
const COLUMNS: usize = 100;

/// `harness explain`
pub fn explain(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let asked = args.word.join(" ");
    let words: Vec<&str> = if args.word.is_empty() { checker::words().collect() } else { vec![asked.as_str()] };
    let mut text = String::new();
    for word in words {
        let definition = checker::explain(word).ok_or_else(|| Unusable(unknown(word)))?;
        let _ = writeln!(text, "{word}\n{}\n", wrapped(definition));
    }
    print(&text)?;
    Ok(Exit::Ok)
}

fn unknown(word: &str) -> String {
    let near = similar(word, checker::words());
    format!("`{word}` is not in the legend{near}; `harness explain` prints the whole legend")
}

/// Breaks a text into indented lines.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::from("   ")];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| line.chars().count() + 1 + word.chars().count() > COLUMNS) {
            lines.push(String::from("   "));
        }
        if let Some(line) = lines.last_mut() {
            *line += " ";
            *line += word;
        }
    }
    lines.join("\n")
}
