//! The instructions of a message, by callgrind: other load on the machine does not change the count.
//!
//! Two games that differ only in the number of messages are subtracted, so the start of a program cancels out.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::{Contestant, Game};

/// The messages of each pair in the two games.
const MESSAGES: [u64; 2] = [50, 150];

/// Counts the instructions of this program when `contestant` plays.
fn count(contestant: Contestant, game: &Game, ticks_ms: &[u64]) -> anyhow::Result<f64> {
    let ticks: Vec<String> = ticks_ms.iter().map(u64::to_string).collect();
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    command.args(["--play", &contestant.title(), "--ticks-ms", &ticks.join(",")]);
    command.args(["--pairs", &game.pairs.to_string(), "--messages", &game.messages.to_string()]);
    let output = command.args(["--seed", &game.seed.to_string()]).output().context("starting valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind failed: {said}");
    let counted = said.lines().find_map(|line| line.split("Collected :").nth(1));
    Ok(counted.with_context(|| format!("valgrind printed no count: {said}"))?.trim().parse()?)
}

/// Prints the instructions of a message of each contestant.
pub fn print(contestants: &[Contestant], pairs: u32, seed: u64, ticks_ms: &[u64]) -> anyhow::Result<()> {
    println!("\n| contestant | instructions a message | times ours |\n| --- | --- | --- |");
    let mut ours = None;
    for contestant in contestants {
        let [few, many] = MESSAGES.map(|messages| Game { pairs, messages, seed });
        let more = (many.total() - few.total()) as f64;
        let cost = (count(*contestant, &many, ticks_ms)? - count(*contestant, &few, ticks_ms)?) / more;
        println!("| {} | {cost:.0} | {:.2} |", contestant.title(), cost / *ours.get_or_insert(cost));
    }
    Ok(())
}
