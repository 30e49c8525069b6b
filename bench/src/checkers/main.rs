//! Measures checkers beside each other: how long each takes to judge longer and longer records of a correct lock, and
//! how much memory it needs.
//!
//! Each checker judges in a process of its own, so that it can be ended at a limit, and so that its memory is its own.
//! The other checkers judge linearizability alone, from the calls and the answers of clients; `harness check` judges
//! every property of a run, from records with more events for each critical section. So the lengths are in events, of
//! which both have an equal number.

mod judges;
mod limits;

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Parser;
use harness_bench::record;
use judges::Judge;
use limits::{Limits, Outcome};

// As the harness itself allocates.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures checkers on longer and longer records of a correct lock
#[derive(Debug, Parser)]
#[command(name = "checkers")]
struct Args {
    /// The longest record, in events; the first one has a hundred, and each has ten times as many as the one before
    #[arg(long, default_value_t = 10_000_000)]
    events: u64,
    /// Clients
    #[arg(long, default_value_t = 4)]
    clients: u32,
    /// The limit of one judgement, in seconds
    #[arg(long, default_value_t = 120)]
    time_s: u64,
    /// The limit of one judgement, in MiB
    #[arg(long, default_value_t = 4096)]
    memory_mib: u64,
    /// The program that bench/porcupine builds; without it Porcupine is left out
    #[arg(long)]
    porcupine: Option<PathBuf>,
    /// Judge a record and print the verdict: what the program starts itself with
    #[arg(long, hide = true, num_args = 2, value_names = ["JUDGE", "FILE"])]
    judge: Option<Vec<String>>,
}

/// The shortest record, in events.
const FIRST: u64 = 100;
/// Between two lengths.
const TIMES: u64 = 10;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some([judge, file]) = args.judge.as_deref() {
        println!("{}", Judge::named(judge).context("no judge of this name")?.verdict(Path::new(file))?);
        return Ok(());
    }
    ensure!(args.clients >= 1, "expected at least one client");
    let limits = Limits { time: Duration::from_secs(args.time_s), memory_mib: args.memory_mib };
    let dir = tempfile::tempdir()?;
    let lengths: Vec<u64> =
        std::iter::successors(Some(FIRST), |n| Some(n * TIMES)).take_while(|n| *n <= args.events).collect();
    let mut rows: Vec<(&str, Vec<Outcome>)> = Judge::ALL.iter().map(|judge| (judge.title(), Vec::new())).collect();
    rows.extend(args.porcupine.as_ref().map(|_| (PORCUPINE, Vec::new())));
    for events in &lengths {
        let (own, foreign) = (dir.path().join("history.jsonl"), dir.path().join("history.edn"));
        let written = record::write(&own, *events, 1, args.clients)?;
        ensure!(written >= *events, "only {written} of {events} events were written");
        write_edn(&foreign, *events, args.clients)?;
        for (title, outcomes) in &mut rows {
            // A checker that has failed once will fail at ten times the length.
            if outcomes.last().is_some_and(|last| !last.is_judged()) {
                continue;
            }
            let mut command = match (Judge::titled(title), &args.porcupine) {
                (Some(judge), _) => {
                    let mut command = Command::new(std::env::current_exe()?);
                    command.args(["--judge", judge.name()]).arg(if judge.is_of_runs() { &own } else { &foreign });
                    command
                }
                (None, Some(porcupine)) => {
                    let mut command = Command::new(porcupine);
                    command.arg(&foreign);
                    command
                }
                (None, None) => continue,
            };
            let outcome = limits.run(&mut command).with_context(|| format!("{title}, {events} events"))?;
            eprintln!("{title}, {events} events: {outcome}");
            outcomes.push(outcome);
        }
        std::fs::remove_file(&own)?;
        std::fs::remove_file(&foreign)?;
    }
    let heads: Vec<String> = lengths.iter().map(|n| format!("{n} events")).collect();
    println!("| checker | {} |\n| --- |{}", heads.join(" | "), " --- |".repeat(heads.len()));
    for (title, outcomes) in rows {
        let mut cells: Vec<String> = outcomes.iter().map(Outcome::to_string).collect();
        cells.resize(lengths.len(), "–".to_owned());
        println!("| {title} | {} |", cells.join(" | "));
    }
    Ok(())
}

const PORCUPINE: &str = "Porcupine 1.3.0";

/// Writes a history of a lock in the format of Jepsen: clients that take turns, and always wait for the lock.
fn write_edn(path: &Path, events: u64, clients: u32) -> anyhow::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut left = events;
    let mut line = |client: u64, kind: &str, what: &str| -> anyhow::Result<()> {
        left = left.saturating_sub(1);
        Ok(writeln!(file, "{{:process {client}, :type :{kind}, :f :{what}, :value nil}}")?)
    };
    // Each section has four events.
    let (sections, clients) = (events / 4, u64::from(clients));
    for client in 0..clients.min(sections) {
        line(client, "invoke", "acquire")?;
    }
    for section in 0..sections {
        let client = section % clients;
        line(client, "ok", "acquire")?;
        line(client, "invoke", "release")?;
        line(client, "ok", "release")?;
        if section + clients < sections {
            line(client, "invoke", "acquire")?;
        }
    }
    ensure!(left < 4, "{left} events are missing");
    Ok(file.flush()?)
}
