//! Measures how fast a record is read and judged: `harness check` beside a plain read of the same file, as ratios of
//! one run.
//!
//! The record is generated: a correct lock without faults, on one hot key or on many keys, written by the harness's own
//! writer. Every property is on, as in `harness check`.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use checker::{Checker, Verdict};
use clap::Parser;
use harness_bench::record;
use history::{Reader, Record, Tail};
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};

// As the harness itself allocates.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures how fast a record is read and judged
#[derive(Debug, Parser)]
#[command(name = "check")]
struct Args {
    /// Events of the record
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// Keys
    #[arg(long, default_value_t = 1)]
    keys: u32,
    /// Clients, over four workers
    #[arg(long, default_value_t = 4)]
    clients: u32,
    /// Rounds; each measure is the fastest of its rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure this record, whatever its verdict, and generate none
    #[arg(long, conflicts_with = "keep")]
    record: Option<PathBuf>,
    /// Keep the record in this file
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Leave out the judges alone, which need all records in memory
    #[arg(long)]
    streamed_only: bool,
}

/// CPU time of this process.
fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The fastest of some rounds, in CPU seconds.
fn fastest(rounds: usize, mut round: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let started = cpu();
        round()?;
        best = best.min((cpu() - started).as_secs_f64());
    }
    Ok(best)
}

/// Reads the file as `wc -l` does.
fn lines(path: &Path) -> anyhow::Result<u64> {
    let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
    let mut lines = 0;
    loop {
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(lines);
        }
        lines += bytes.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
        let read = bytes.len();
        file.consume(read);
    }
}

fn plain(path: &Path) -> anyhow::Result<u64> {
    let (mut file, mut bytes, mut total) = (File::open(path)?, vec![0; 1 << 16], 0);
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(total),
            n => total += n as u64,
        }
    }
}

fn judged(records: impl Iterator<Item = anyhow::Result<Record>>, is_generated: bool) -> anyhow::Result<()> {
    let mut checker = Checker::new();
    for record in records {
        checker.feed(record?);
    }
    let verdicts = checker.finish(Tail::Whole);
    if !is_generated {
        return Ok(());
    }
    let others = verdicts
        .properties
        .iter()
        .filter(|(_, property)| matches!(property.verdict(), Verdict::Violated | Verdict::Inconclusive));
    let others: Vec<String> = others.map(|(name, property)| format!("{name}: {:?}", property.reasons())).collect();
    ensure!(others.is_empty() && verdicts.reasons.is_empty(), "not upheld: {others:?} {:?}", verdicts.reasons);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.clients >= 1 && args.keys >= 1, "expected at least one client and one key");
    let dir = tempfile::tempdir()?;
    let generated = || args.keep.clone().unwrap_or_else(|| dir.path().join("history.jsonl"));
    let path = args.record.clone().unwrap_or_else(generated);
    let is_generated = args.record.is_none();
    let events = match is_generated {
        true => record::write(&path, args.events, args.keys, args.clients).context("writing the record")?,
        false => lines(&path).context("reading the record")?,
    };
    let read = || Reader::open(&path).context("opening the record");
    let plain = fastest(args.rounds, || plain(&path).map(|_| ()))?;
    let counted = fastest(args.rounds, || lines(&path).map(|_| ()))?;
    let reader = fastest(args.rounds, || {
        let read = read()?.try_fold(0_u64, |n, record| record.map(|_| n + 1))?;
        ensure!(read == events, "read {read} of {events} events");
        Ok(())
    })?;
    let check = fastest(args.rounds, || judged(read()?.map(|record| Ok(record?)), is_generated))?;
    let peak = getrusage(UsageWho::RUSAGE_SELF)?.max_rss() >> 10;
    let of = if is_generated { format!(", {} keys, {} clients", args.keys, args.clients) } else { String::new() };
    println!("{events} events{of}; peak of reading and judging {peak} MiB");
    let mut rows =
        vec![("plain read", plain), ("count of lines", counted), ("history::Reader", reader), ("check", check)];
    if !args.streamed_only {
        let all: Vec<Record> = read()?.collect::<Result<_, _>>()?;
        let mut copies: Vec<Vec<Record>> = (0..args.rounds).map(|_| all.clone()).collect();
        let judges =
            fastest(args.rounds, || judged(copies.pop().unwrap_or_default().into_iter().map(Ok), is_generated))?;
        rows.push(("judges alone", judges));
    }
    println!("| measure | events/s of CPU | CPU seconds | times a plain read |");
    println!("| --- | --- | --- | --- |");
    for (name, seconds) in rows {
        let rate = events as f64 / seconds / 1e6;
        println!("| {name} | {rate:.2} M | {seconds:.3} | {:.1} |", seconds / plain);
    }
    Ok(())
}
