//! Measures the Redlock client of this project beside `rslock` and beside the wire, in one run on the same servers.
//!
//! All processes are pinned to one CPU: a wake-up across virtual CPUs costs more than the work that is measured. With
//! `--apart`, the servers are pinned to a second one, so a client works while they do. Every figure is a ratio to a
//! baseline of the same round. The clients take turns, in short rounds, so that other load on
//! the machine hits all of them.

mod clients;

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use clients::{Client, LEASE, Raw};
use futures::future::try_join_all;
use harness_bench::{
    pinned::Pins,
    series::{Series, Times},
    servers::Server,
};
use locks::TokenSource;
use tokio::time::sleep;

/// Measures the Redlock client beside rslock and beside raw PINGs, on five Redis servers that this program starts
#[derive(Debug, Parser)]
struct Args {
    /// Rounds; in each round every client has its turn
    #[arg(long, default_value_t = 30)]
    rounds: u32,
    /// Cycles (acquire and release) of each client in a round
    #[arg(long, default_value_t = 500)]
    cycles: u64,
    /// Tasks of the measurement of throughput, each with a key of its own
    #[arg(long, default_value_t = 50)]
    tasks: u64,
    /// Cycles of each task in a round
    #[arg(long, default_value_t = 100)]
    task_cycles: u64,
    /// Rounds with one frozen server
    #[arg(long, default_value_t = 5)]
    frozen_rounds: u32,
    /// Cycles after which no key may be left on any server
    #[arg(long, default_value_t = 100_000)]
    left_cycles: u64,
    /// Pin the servers to a second CPU
    #[arg(long)]
    apart: bool,
}

/// The number of servers.
const SERVERS: usize = 5;
/// The lease of the cycles after which no key may be left: a key that was left behind must still be there at the end.
const LEFT_LEASE: Duration = Duration::from_secs(600);
/// The time in which the last release must arrive at every server.
const SETTLES: Duration = Duration::from_millis(500);

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let pins = Pins::new(args.apart)?;
    let servers = pins.start(|| (0..SERVERS).map(|_| Server::start()).collect::<anyhow::Result<Vec<_>>>())?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure(&args, &servers))
}

async fn measure(args: &Args, servers: &[Server]) -> anyhow::Result<()> {
    let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let mut raw = Raw::connect(&addresses)?;
    let rslock = Client::rslock(&addresses);
    let ours = Client::ours(&addresses, TokenSource::None)?;
    let counted = Client::ours(&addresses, TokenSource::MajorityMax)?;
    let two_phase = Client::ours(&addresses, TokenSource::TwoPhase)?;
    let fast = Client::ours(&addresses, TokenSource::TwoPhaseFast)?;

    println!("{} rounds of {} cycles: median (least to most) of the rounds", args.rounds, args.cycles);
    let [
        mut pings,
        mut p50_sets,
        mut p50_counted_sets,
        mut p50_rslock,
        mut p50_ours,
        mut p50_counted,
        mut p50_two_phase,
        mut p50_fast,
    ] = [(); 8].map(|()| Series::default());
    for round in 0..=args.rounds {
        let raw_pings = raw_times(args.cycles, |_| raw.pings())?;
        let raw_sets = raw_times(args.cycles, |number| raw.sets(number))?;
        let raw_counted = raw_times(args.cycles, |number| raw.counted_sets(number))?;
        let mut figures = vec![raw_pings, raw_sets, raw_counted];
        for client in [&rslock, &ours, &counted, &two_phase, &fast] {
            figures.push(times(client, args.cycles).await?);
        }
        // The first round warms up.
        if round > 0 {
            let all = [
                &mut pings,
                &mut p50_sets,
                &mut p50_counted_sets,
                &mut p50_rslock,
                &mut p50_ours,
                &mut p50_counted,
                &mut p50_two_phase,
                &mut p50_fast,
            ];
            all.into_iter().zip(figures).for_each(|(series, figure)| series.push(figure.quantile_us(0.5)));
        }
    }
    let row =
        |name: &str, figure: &Series, ratio: &Series, of: &str| println!("{name:42} {figure:>28}   {ratio} × {of}");
    row("five parallel PINGs, p50 µs", &pings, &pings.over(&pings), "itself");
    row("raw SETs until a majority, p50 µs", &p50_sets, &p50_sets.over(&pings), "the PINGs");
    row("raw SETs with a write-back, p50 µs", &p50_counted_sets, &p50_counted_sets.over(&p50_sets), "the raw SETs");
    row("rslock, acquire p50 µs", &p50_rslock, &p50_rslock.over(&pings), "the PINGs");
    row("ours without tokens, acquire p50 µs", &p50_ours, &p50_ours.over(&pings), "the PINGs");
    row("  beside raw SETs", &p50_ours, &p50_ours.over(&p50_sets), "the raw SETs");
    row("  beside rslock", &p50_ours, &p50_ours.over(&p50_rslock), "rslock");
    row("ours, majority-max, acquire p50 µs", &p50_counted, &p50_counted.over(&p50_ours), "ours without tokens");
    row("ours, two-phase, acquire p50 µs", &p50_two_phase, &p50_two_phase.over(&p50_ours), "ours without tokens");
    row("  beside raw SETs", &p50_two_phase, &p50_two_phase.over(&p50_counted_sets), "raw SETs with a write-back");
    row("ours, two-phase-fast, acquire p50 µs", &p50_fast, &p50_fast.over(&p50_ours), "ours without tokens");

    println!("\n{} tasks, {} cycles each: cycles/s", args.tasks, args.task_cycles);
    let [mut rate_rslock, mut rate_ours, mut rate_two_phase, mut rate_fast] = [(); 4].map(|()| Series::default());
    for round in 0..=args.rounds {
        for (client, series) in [
            (&rslock, &mut rate_rslock),
            (&ours, &mut rate_ours),
            (&two_phase, &mut rate_two_phase),
            (&fast, &mut rate_fast),
        ] {
            let rate = rate(client, args).await?;
            if round > 0 {
                series.push(rate);
            }
        }
    }
    row("rslock, cycles/s", &rate_rslock, &rate_rslock.over(&rate_rslock), "itself");
    row("ours without tokens, cycles/s", &rate_ours, &rate_ours.over(&rate_rslock), "rslock");
    row("ours, two-phase, cycles/s", &rate_two_phase, &rate_two_phase.over(&rate_rslock), "rslock");
    row("ours, two-phase-fast, cycles/s", &rate_fast, &rate_fast.over(&rate_rslock), "rslock");

    println!("\none of five servers frozen");
    let [mut up, mut frozen] = [(); 2].map(|()| Series::default());
    for _ in 0..args.frozen_rounds {
        up.push(times(&ours, args.cycles).await?.quantile_us(0.5));
        servers[SERVERS - 1].freeze(true)?;
        let with_frozen = times(&ours, args.cycles).await;
        servers[SERVERS - 1].freeze(false)?;
        frozen.push(with_frozen?.quantile_us(0.5));
        sleep(SETTLES).await;
    }
    row("ours without tokens, acquire p50 µs", &frozen, &frozen.over(&up), "all five up");

    for number in 0..args.left_cycles {
        two_phase.cycle(&format!("left-{}", number % 100), number, LEFT_LEASE).await?;
    }
    sleep(SETTLES).await;
    let left = servers.iter().map(Server::leased_keys).collect::<anyhow::Result<Vec<u64>>>()?;
    let all = left.iter().sum::<u64>();
    println!("\nkeys left after {} more cycles: {all} on all servers", args.left_cycles);
    ensure!(all == 0, "locks were left behind: {left:?}");
    Ok(())
}

/// The times of exchanges over raw sockets, one after the other.
fn raw_times(cycles: u64, mut exchange: impl FnMut(u64) -> anyhow::Result<Duration>) -> anyhow::Result<Times> {
    let mut times = Times::new();
    for number in 0..cycles {
        times.record(exchange(number)?);
    }
    Ok(times)
}

/// The times of acquiring, one cycle after the other.
async fn times(client: &Client, cycles: u64) -> anyhow::Result<Times> {
    let mut times = Times::new();
    for number in 0..cycles {
        times.record(client.cycle("bench", number, LEASE).await?);
    }
    Ok(times)
}

/// Cycles per second of many tasks, each with a key of its own.
async fn rate(client: &Client, args: &Args) -> anyhow::Result<f64> {
    let task = async |task: u64| -> anyhow::Result<()> {
        for number in 0..args.task_cycles {
            client.cycle(&format!("bench-{task}"), number, LEASE).await?;
        }
        Ok(())
    };
    let began = Instant::now();
    try_join_all((0..args.tasks).map(task)).await?;
    Ok((args.tasks * args.task_cycles) as f64 / began.elapsed().as_secs_f64())
}
