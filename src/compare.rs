//! `harness compare`: two runs, or two sets of runs, side by side.
//!
//! Every run is judged again from its history, so that two versions of the checker are never compared.

mod figures;
mod rows;
pub mod scenario;
mod side;

use std::fmt::Write;

use serde::Serialize;

use crate::{
    cli::{CompareArgs, Format},
    exit::Exit,
    report::print,
};

use self::{
    rows::{Row, rows},
    scenario::tell_apart,
    side::{Scenario, Side},
};

/// A scenario of both sides.
#[derive(Debug, Serialize)]
struct Pair {
    a: String,
    b: String,
    rows: Vec<Row>,
}

/// The comparison of two sides.
#[derive(Debug, Default, Serialize)]
struct Comparison {
    pairs: Vec<Pair>,
    /// Scenarios that only one side has: the side, and the scenario.
    unmatched: Vec<(char, String)>,
    /// Runs that could not be judged, or not to their end: the side, and the problem.
    left_out: Vec<(char, String)>,
}

/// `harness compare`
pub fn compare(args: &CompareArgs) -> anyhow::Result<Exit> {
    let comparison = pair(Side::read(&args.a)?, Side::read(&args.b)?);
    match args.format {
        Format::Json => print(&(serde_json::to_string_pretty(&comparison)? + "\n"))?,
        Format::Text => print(&text(&comparison))?,
    }
    Ok(Exit::Ok)
}

fn pair(mut a: Side, mut b: Side) -> Comparison {
    tell_apart(a.scenarios.iter_mut().chain(&mut b.scenarios).map(|of| (&mut of.name, &of.plan)));
    let mut comparison = Comparison::default();
    comparison.left_out.extend(a.left_out.into_iter().map(|problem| ('A', problem)));
    comparison.left_out.extend(std::mem::take(&mut b.left_out).into_iter().map(|problem| ('B', problem)));
    let made = |a: &Scenario, b: &Scenario| {
        // The names of one scenario differ if its first runs on both sides have drawn different kinds of faults.
        let other = if a.plan == b.plan { a } else { b };
        Pair { a: a.name.clone(), b: other.name.clone(), rows: rows(a, b) }
    };
    // Two scenarios alone are compared even if they differ: another lock, another fault.
    if let ([one], [other]) = (&a.scenarios[..], &b.scenarios[..]) {
        comparison.pairs.push(made(one, other));
        return comparison;
    }
    for one in &a.scenarios {
        match b.scenarios.iter().position(|other| other.plan == one.plan) {
            Some(place) => comparison.pairs.push(made(one, &b.scenarios.remove(place))),
            None => comparison.unmatched.push(('A', one.name.clone())),
        }
    }
    comparison.unmatched.extend(b.scenarios.into_iter().map(|other| ('B', other.name)));
    comparison
}

fn text(comparison: &Comparison) -> String {
    let mut out = String::new();
    for pair in &comparison.pairs {
        if pair.a == pair.b {
            let _ = writeln!(out, "{}", pair.a);
        } else {
            let _ = writeln!(out, "A: {}\nB: {}", pair.a, pair.b);
        }
        let head = ["", "A", "B", "B − A (95 %)", ""].map(str::to_owned);
        let cells: Vec<[String; 5]> = std::iter::once(head).chain(pair.rows.iter().map(Row::cells)).collect();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for row in &cells {
            let line = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            let _ = writeln!(out, "  {}", line.collect::<Vec<_>>().join("  ").trim_end());
        }
        out.push('\n');
    }
    for (side, name) in &comparison.unmatched {
        let _ = writeln!(out, "only in {side}: {name}");
    }
    for (side, problem) in &comparison.left_out {
        let _ = writeln!(out, "left out of {side}: {problem}");
    }
    if comparison.pairs.is_empty() {
        out += "nothing to compare: A and B have no scenario in common\n";
    } else {
        out += "A number is that of each run; A and B show the medians. About one interval in twenty misses the true \
                difference by chance.\n";
    }
    out
}
