//! `harness explain`: prints the legend, which defines every word of the reports.

use std::fmt::Write;

use crate::{
    cli::ExplainArgs,
    exit::{Exit, Unusable},
    report::print,
};

/// The width of the printed text.
const COLUMNS: usize = 100;
/// Words that are at least this similar to an unknown word are suggested.
const SIMILAR: f64 = 0.8;

/// `harness explain`
pub fn explain(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let words: Vec<&str> = match &args.word {
        Some(word) => vec![word],
        None => checker::words().collect(),
    };
    let mut text = String::new();
    for word in words {
        let definition = checker::explain(word).ok_or_else(|| Unusable(unknown(word)))?;
        let _ = writeln!(text, "{word}\n{}\n", wrapped(definition));
    }
    print(&text);
    Ok(Exit::Ok)
}

fn unknown(word: &str) -> String {
    let mut near: Vec<(f64, &str)> = checker::words().map(|known| (strsim::jaro_winkler(known, word), known)).collect();
    near.retain(|(similarity, known)| *similarity >= SIMILAR || known.contains(word));
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    let near: Vec<&str> = near.iter().map(|(_, known)| *known).take(5).collect();
    let near = if near.is_empty() { String::new() } else { format!("; similar words: {}", near.join(", ")) };
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
