//! Measures the clients of etcd, Postgres and ZooKeeper beside the requests that no client can do without, in one run
//! on one server of each, which this program starts.
//!
//! As in the measurement of Redlock, all processes are pinned to one CPU (the servers to a second one with `--apart`),
//! the clients take turns in short rounds, and every figure is a ratio to a baseline of the same round. The servers
//! sync to the disk of the directory for temporary files, as they do by default, so the disk is a part of every figure;
//! `TMPDIR=/dev/shm` leaves it out.

mod etcd;
mod postgres;
mod zookeeper;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::{Parser, ValueEnum};
use harness_bench::{
    pinned::Pins,
    series::{Series, Times},
};
use locks::{BootClock, Client, Connecting, Hold, Key, Lock, Owner, ServerAddress, Unwatched};

/// Measures the clients of etcd, Postgres and ZooKeeper beside their wire, on servers that this program starts
#[derive(Debug, Parser)]
#[command(name = "stores")]
struct Args {
    /// Rounds; in each round every client has its turn
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Cycles (acquire and release) of each client in a round
    #[arg(long, default_value_t = 100)]
    cycles: u64,
    /// Services to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Service::value_variants().to_vec())]
    services: Vec<Service>,
    /// Pin the servers to a second CPU
    #[arg(long)]
    apart: bool,
    /// The program of etcd
    #[arg(long, default_value = "etcd")]
    etcd: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Service {
    Etcd,
    Postgres,
    Zookeeper,
}

/// The lease of every attempt. No lease ends during a measurement.
const LEASE: Duration = Duration::from_secs(60);
/// The key of all attempts, and a key that keeps a session in use.
const KEY: &str = "bench";
const OTHER: &str = "other";

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let pins = Pins::new(args.apart)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        println!("{} rounds of {} cycles: median (least to most) of the rounds", args.rounds, args.cycles);
        for service in &args.services {
            match service {
                Service::Etcd => etcd::measure(&args, &pins).await,
                Service::Postgres => postgres::measure(&args, &pins).await,
                Service::Zookeeper => zookeeper::measure(&args, &pins).await,
            }
            .with_context(|| format!("{service:?}"))?;
        }
        Ok(())
    })
}

/// The times of one way to acquire, one figure for each round: the median of the round, in microseconds.
struct Row {
    name: &'static str,
    of: Series,
}

impl Row {
    fn new(name: &'static str) -> Row {
        Row { name, of: Series::default() }
    }

    fn print(&self, base: &Row) {
        println!("{:52} {:>28}   {} × {}", self.name, self.of, self.of.over(&base.of), base.name);
    }
}

/// Times `cycles` acquisitions, and adds their median to the row. `cycle` returns how long its acquiring took. The
/// first round warms up.
async fn times(
    args: &Args,
    round: u32,
    row: &mut Row,
    mut cycle: impl AsyncFnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<()> {
    let mut times = Times::new();
    for _ in 0..args.cycles {
        times.record(cycle().await.with_context(|| row.name)?);
    }
    if round > 0 {
        row.of.push(times.quantile_us(0.5));
    }
    Ok(())
}

/// The lock of this project with this name, over one server.
async fn ours(name: &'static str, address: &str) -> anyhow::Result<Arc<dyn Lock>> {
    let client = Client::named(name).with_context(|| format!("no client {name}"))?;
    let connected = (client.connect)(name, vec![ServerAddress::new(name, address)], Connecting::default()).await?;
    Ok((client.build)(connected.servers, client.tokens[0], Arc::new(BootClock))?)
}

/// Acquires `key`, and says how long that took.
async fn acquire(lock: &dyn Lock, key: &str, number: u64) -> anyhow::Result<(Hold, Duration)> {
    let (key, owner) = (Key::new(key), Owner::new(format!("{key}-{number}")));
    let began = Instant::now();
    let hold = lock.acquire(&key, owner, LEASE, &Unwatched).await;
    let took = began.elapsed();
    Ok((hold.map_err(|failure| anyhow!("not granted: {failure:?}"))?, took))
}

async fn release(lock: &dyn Lock, hold: &Hold) -> anyhow::Result<()> {
    lock.release(hold, &Unwatched).await.map_err(|failure| anyhow!("not released: {failure:?}"))?;
    Ok(())
}

/// One cycle of one of our locks.
async fn cycle(lock: &dyn Lock, number: &mut u64) -> anyhow::Result<Duration> {
    *number += 1;
    let (hold, took) = acquire(lock, KEY, *number).await?;
    release(lock, &hold).await?;
    Ok(took)
}
