//! Measures how many events a second come from workers in containers into a history: the worker's writes, the engine's
//! streams, and the recorder.
//!
//! The workers report the events of critical sections, each in one write, as the harness's own workers do; they use no
//! lock, so that the events are the load. The baseline is the same worker behind a pipe, without an engine.

mod flood;
mod sink;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Parser;
use compose::{BINARY, ComposeFile, Engine, Output, Running, Spec, What};
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};
use tokio::sync::mpsc;

use crate::sink::Sink;

// As the harness itself allocates.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures how many events a second the recorder takes from containers
#[derive(Debug, Parser)]
#[command(name = "recorder")]
struct Args {
    /// Workers
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Events a second that all workers together report
    #[arg(long, default_value_t = 200_000)]
    rate: u64,
    /// Seconds of each round
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The workers' own part of this program
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// Reports events when a line comes on standard input
    #[command(hide = true)]
    Flood {
        /// Events
        events: u64,
        /// Events a second; 0 for as many as possible
        rate: u64,
    },
    /// Does nothing until standard input ends
    #[command(hide = true)]
    Wait,
}

/// The figures of one round.
struct Round {
    events: u64,
    took: Duration,
    /// CPU time of this program.
    cpu: Duration,
    /// The most lines that waited for the recorder.
    waited: usize,
}

impl Round {
    fn show(&self, name: &str) {
        let rate = self.events as f64 / self.took.as_secs_f64();
        let cpu = self.cpu.as_secs_f64() * 1e6 / self.events as f64;
        println!("| {name} | {} | {rate:.0} | {cpu:.2} | {} |", self.events, self.waited);
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.role {
        Some(Role::Flood { events, rate }) => return flood::flood(events, rate),
        Some(Role::Wait) => {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
            return Ok(());
        }
        None => ensure!(args.workers >= 1 && args.rate >= 1 && args.seconds >= 1, "expected at least 1 of everything"),
    }
    let events = args.rate * args.seconds / args.workers as u64;
    let each = args.rate.div_ceil(args.workers as u64);
    println!("{} workers, {} bytes an event", args.workers, flood::bytes_of_event()?);
    println!("| workers | events | events/s | CPU of the recorder, µs an event | waited at most |");
    println!("| --- | --- | --- | --- | --- |");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let piped = piped(events)?;
    piped.show("one behind a pipe, as fast as it can");
    let paced = runtime.block_on(on_docker(args.workers, events, each, true))?;
    paced.show(&format!("in containers, {} events/s", args.rate));
    let fastest = runtime.block_on(on_docker(args.workers, events, 0, false))?;
    fastest.show("in containers, as fast as they can");
    let peak = getrusage(UsageWho::RUSAGE_SELF)?.max_rss() >> 10;
    let rate = |round: &Round| round.events as f64 / round.took.as_secs_f64();
    println!("from containers / from a pipe: {:.2}; peak memory {peak} MiB", rate(&fastest) / rate(&piped));
    Ok(())
}

/// CPU time of this process.
fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// One worker whose output comes through a pipe.
fn piped(events: u64) -> anyhow::Result<Round> {
    let mut worker = Command::new("/proc/self/exe")
        .args(["flood".to_owned(), events.to_string(), "0".to_owned()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a worker")?;
    let (input, output) = (worker.stdin.take(), worker.stdout.take().context("it has an output")?);
    let mut sink = Sink::new()?;
    let (began, before) = (Instant::now(), cpu());
    std::io::Write::write_all(&mut input.context("it has an input")?, b"go\n")?;
    let mut output = BufReader::with_capacity(1 << 16, output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        line.pop();
        sink.take("worker-1", &line)?;
        line.clear();
    }
    sink.flush()?;
    let (took, cpu) = (began.elapsed(), cpu() - before);
    ensure!(worker.wait()?.success(), "the worker failed");
    ensure!(sink.events() == events, "{} of {events} events came", sink.events());
    Ok(Round { events, took, cpu, waited: 0 })
}

/// Workers in containers; `rate` is that of one of them. The round fails if the queue `is_bounded` and is full.
async fn on_docker(workers: usize, events: u64, rate: u64, is_bounded: bool) -> anyhow::Result<Round> {
    let engine = Engine::connect().await?;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let spec = Spec {
        run: format!("bench-recorder-{}", std::process::id()),
        servers: ComposeFile::builtin("redis")?,
        resource_store: None,
        workers,
        images: BTreeMap::new(),
        keep: false,
        binary: "/proc/self/exe".into(),
        resource_args: words(&[BINARY, "wait"]),
        worker_args: words(&[BINARY, "flood", &events.to_string(), &rate.to_string()]),
        worker_files: (String::new(), Vec::new()),
        worker_packages: Vec::new(),
        agent_args: words(&[BINARY, "wait"]),
        reaches: false,
        loses_power: false,
        own_servers: BTreeMap::new(),
    };
    let up = compose::up(&engine, &spec, &|line| eprintln!("{line}"));
    let recorded = tokio::select! {
        up = up => {
            let (running, mut queue) = up?;
            tokio::select! {
                recorded = record(&running, &mut queue, workers, is_bounded) => recorded,
                _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
            }
        }
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    let swept = compose::take_down(&engine, &spec.run).await;
    let round = recorded?;
    swept?;
    ensure!(round.events == events * workers as u64, "{} of {events} events of each came", round.events);
    Ok(round)
}

/// Starts the workers, and records until all of them have ended.
async fn record(
    running: &Running,
    queue: &mut mpsc::Receiver<Output>,
    workers: usize,
    is_bounded: bool,
) -> anyhow::Result<Round> {
    let mut sink = Sink::new()?;
    let (began, before) = (Instant::now(), cpu());
    for node in running.nodes().filter(|node| node.as_str().starts_with("worker-")) {
        running.send(node, "go".to_owned())?;
    }
    let mut left = workers;
    while left > 0 {
        if is_bounded && queue.len() == queue.max_capacity() {
            bail!("the recorder is behind: its queue of {} lines is full", queue.len());
        }
        let Ok(output) = queue.try_recv() else {
            sink.flush()?;
            let output = queue.recv().await.context("the cluster was taken down")?;
            left -= usize::from(take(&mut sink, output)?);
            continue;
        };
        left -= usize::from(take(&mut sink, output)?);
    }
    sink.flush()?;
    let (took, cpu) = (began.elapsed(), cpu() - before);
    Ok(Round { events: sink.events(), took, cpu, waited: running.high_water() })
}

/// Takes one output; true if it is the end of a worker.
fn take(sink: &mut Sink, output: Output) -> anyhow::Result<bool> {
    let line = |line: Bytes| String::from_utf8_lossy(&line).into_owned();
    match output.what {
        What::Line(text) => sink.take(output.node.as_str(), &text).map(|()| false),
        What::Ended { code: Some(0) } => Ok(true),
        What::Stderr(text) => bail!("{}: {}", output.node, line(text)),
        What::Ended { code } => bail!("{} ended with code {code:?}", output.node),
        What::Lost { why } | What::BrokenOff { why } => bail!("{}: {why}", output.node),
    }
}
