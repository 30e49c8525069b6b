//! Takes one short lock on each of many keys, releases none, and shows what the keys cost the server: memory, expiry,
//! revisions, and what is left when every lease is over.
//!
//! The measurement ends by itself at a bound (time, memory of this machine, the server's own refusal), and names it.

mod sample;

use std::{
    cell::{Cell, RefCell},
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use futures::{StreamExt, stream};
use harness_bench::servers::Server;
use locks::{
    BootClock, Client, Connecting, FailureReason, Key, Lock, Outcome, Owner, ServerAddress, TokenSource, Unwatched,
};
use sample::{Kind, Sample, available_bytes};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Takes one short lock on each of many keys, and shows what they cost the server
#[derive(Debug, Parser)]
#[command(name = "keys")]
struct Args {
    /// The lock: redis or etcd
    #[arg(long, default_value = "redis")]
    backend: String,
    /// Keys; each gets one lock
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// The lease of every lock, in seconds
    #[arg(long, default_value_t = 10)]
    lease_s: u64,
    /// Attempts under way at the same time
    #[arg(long, default_value_t = 256)]
    tasks: usize,
    /// Take locks without fencing tokens
    #[arg(long)]
    no_tokens: bool,
    /// Addresses (HOST:PORT,…) of servers, in place of one that this program starts; use empty servers, because Redis's
    /// counters stay there
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// The longest time to take locks, in seconds
    #[arg(long, default_value_t = 600)]
    time_s: u64,
    /// The longest wait after the last lease for its key to be gone, in seconds
    #[arg(long, default_value_t = 300)]
    settle_s: u64,
    /// The memory of this machine that must stay free, in MiB
    #[arg(long, default_value_t = 1024)]
    free_mib: u64,
    /// The program of etcd, for a member that this program starts
    #[arg(long, default_value = "etcd")]
    etcd: String,
    /// The quota of etcd's database, in MiB
    #[arg(long, default_value_t = 2048)]
    quota_mib: u64,
    /// File for the result with all samples, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// The time for which the server's figures must be watched after the last key is gone.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// The attempts of each task that may fail in a row before the measurement ends.
const FAILED_IN_A_ROW: usize = 4;

/// A sample, with the time since the beginning and the locks that were granted by then.
struct Seen {
    at: Duration,
    granted: u64,
    sample: Sample,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.keys > 0 && args.tasks > 0 && args.lease_s > 0, "--keys, --tasks and --lease-s are at least 1");
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure(&args))
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let (kind, tokens) = match (args.backend.as_str(), args.no_tokens) {
        ("redis", false) => (Kind::Redis, TokenSource::Counter),
        ("etcd", false) => (Kind::Etcd, TokenSource::Revision),
        ("redis", true) => (Kind::Redis, TokenSource::None),
        ("etcd", true) => (Kind::Etcd, TokenSource::None),
        (other, _) => bail!("--backend: `{other}` is not measured here; expected redis or etcd"),
    };
    // The server lives as long as this value.
    let (own, addresses) = match (args.servers.as_slice(), kind) {
        ([], Kind::Redis) => own_server(Server::start()?),
        ([], Kind::Etcd) => own_server(Server::start_etcd(&args.etcd, args.quota_mib << 20)?),
        (servers, _) => (None, servers.to_vec()),
    };
    let lock = connect(&args.backend, &addresses, tokens).await?;
    let measurement = Measurement::new(args, kind, &addresses[0], lock);
    let result = measurement.run().await;
    drop(own);
    result
}

fn own_server(server: Server) -> (Option<Server>, Vec<String>) {
    let address = server.address.clone();
    (Some(server), vec![address])
}

async fn connect(backend: &str, addresses: &[String], tokens: TokenSource) -> anyhow::Result<Arc<dyn Lock>> {
    let client = Client::named(backend).with_context(|| format!("`{backend}` is no lock"))?;
    let servers = addresses.iter().enumerate();
    let servers = servers.map(|(n, address)| ServerAddress::new(format!("{backend}-{}", n + 1), address)).collect();
    let connected = (client.connect)(client.name, servers, Connecting::default()).await;
    let connected = connected.map_err(|error| anyhow::anyhow!("{error}"))?;
    for version in &connected.versions {
        version.as_ref().map_err(|error| anyhow::anyhow!("{backend}: {error}"))?;
    }
    Ok((client.build)(connected.servers, tokens, Arc::new(BootClock))?)
}

struct Measurement<'a> {
    args: &'a Args,
    kind: Kind,
    address: &'a str,
    lock: Arc<dyn Lock>,
    began: Instant,
    /// The part of every key's name that no earlier measurement has.
    series: u32,
    granted: Cell<u64>,
    /// Attempts that gave no lock: answers that were late or lost, and refusals.
    failed: Cell<u64>,
    seen: RefCell<Vec<Seen>>,
    stop: RefCell<Option<String>>,
}

impl<'a> Measurement<'a> {
    fn new(args: &'a Args, kind: Kind, address: &'a str, lock: Arc<dyn Lock>) -> Measurement<'a> {
        Measurement {
            args,
            kind,
            address,
            lock,
            began: Instant::now(),
            series: std::process::id(),
            granted: Cell::new(0),
            failed: Cell::new(0),
            seen: RefCell::default(),
            stop: RefCell::default(),
        }
    }

    async fn run(&self) -> anyhow::Result<()> {
        let before = self.look().await?;
        ensure!(before.locks == 0, "{}: {} locks are there already; use an empty server", self.address, before.locks);
        println!(
            "{}, {} keys, lease {} s, {} tasks",
            before.version, self.args.keys, self.args.lease_s, self.args.tasks
        );
        tokio::select! {
            biased;
            error = self.look_on() => return error,
            _ = tokio::signal::ctrl_c() => self.stop_because("interrupted"),
            () = self.take_all() => {}
        }
        let took = self.began.elapsed();
        let granted = self.look().await?;
        let after = tokio::select! {
            after = self.settle() => after?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted while the last leases ran out"),
        };
        self.report(took, &granted, after)
    }

    /// Takes a lock on each key, until a bound is reached.
    async fn take_all(&self) {
        let lease = Duration::from_secs(self.args.lease_s);
        let take = |number: u64| {
            let (key, owner) = (Key::new(format!("{}-{number}", self.series)), Owner::new(format!("o{number}")));
            let lock = self.lock.clone();
            async move { lock.acquire(&key, owner, lease, &Unwatched).await }
        };
        let numbers = stream::iter(0..self.args.keys).take_while(|_| {
            let goes_on = self.stop.borrow().is_none();
            async move { goes_on }
        });
        let mut answers = std::pin::pin!(numbers.map(take).buffer_unordered(self.args.tasks));
        let mut failed = 0;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(_) => {
                    self.granted.set(self.granted.get() + 1);
                    failed = 0;
                }
                Err(failure) => {
                    self.failed.set(self.failed.get() + 1);
                    failed += 1;
                    // An answer may be late or lost. A server that grants nothing any more has a reason.
                    if failure.outcome == Outcome::Failed && failure.reason != FailureReason::Validity
                        || failed > FAILED_IN_A_ROW * self.args.tasks
                    {
                        self.stop_because(&format!("no lock is granted any more: {}", failure.reason));
                    }
                }
            }
        }
    }

    /// Looks at the server again and again, and stops the measurement at a bound. Returns errors only.
    async fn look_on(&self) -> anyhow::Result<()> {
        let mut ticks = interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await?;
            if self.began.elapsed() > Duration::from_secs(self.args.time_s) {
                self.stop_because(&format!("the bound of {} s (--time-s)", self.args.time_s));
            }
            if available_bytes()? < self.args.free_mib << 20 {
                self.stop_because(&format!("less than {} MiB of memory are free (--free-mib)", self.args.free_mib));
            }
        }
    }

    /// The first reason counts.
    fn stop_because(&self, why: &str) {
        self.stop.borrow_mut().get_or_insert_with(|| why.to_owned());
    }

    async fn look(&self) -> anyhow::Result<Sample> {
        let sample = self.kind.sample(self.address).await?;
        let seen = Seen { at: self.began.elapsed(), granted: self.granted.get(), sample: sample.clone() };
        self.seen.borrow_mut().push(seen);
        Ok(sample)
    }

    /// Waits until every lease is over and its key gone. Returns the time from the end of the last lease to the first
    /// sample without locks; none if the wait was given up.
    async fn settle(&self) -> anyhow::Result<Option<Duration>> {
        let lease = Duration::from_secs(self.args.lease_s);
        let (last, bound) = (Instant::now() + lease, Duration::from_secs(self.args.settle_s));
        let gone = loop {
            if self.look().await?.locks == 0 {
                break Some(Instant::now().saturating_duration_since(last));
            }
            if Instant::now() > last + bound {
                break None;
            }
            sleep(SAMPLE_EVERY).await;
        };
        sleep(AFTERWARDS).await;
        self.look().await?;
        Ok(gone)
    }

    /// The most locks that were there although their leases were over: those granted more than a lease before.
    fn overdue(&self) -> u64 {
        let (seen, lease) = (self.seen.borrow(), Duration::from_secs(self.args.lease_s));
        let mut overdue = 0;
        for now in seen.iter() {
            let ended = seen.iter().rev().find(|then| then.at + lease <= now.at).map_or(0, |then| then.granted);
            overdue = overdue.max((now.sample.locks + ended).saturating_sub(now.granted));
        }
        overdue
    }

    fn report(&self, took: Duration, granted: &Sample, gone: Option<Duration>) -> anyhow::Result<()> {
        let seen = self.seen.borrow();
        let (first, last) = (&seen[0].sample, &seen[seen.len() - 1].sample);
        let peak = seen.iter().max_by_key(|seen| seen.sample.memory_bytes).map_or(first, |seen| &seen.sample);
        let keys = self.granted.get().max(1);
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1_048_576.0);
        let over = |sample: &Sample| sample.memory_bytes.saturating_sub(first.memory_bytes);
        let row = |name: &str, sample: &Sample| {
            let database = if self.kind == Kind::Etcd {
                let (file, used) = (mib(sample.database_bytes), mib(sample.in_use_bytes));
                format!("   database {file}, in use {used}, revision {}", sample.revision)
            } else {
                format!("   counters {}", sample.counters)
            };
            let (memory, resident) = (mib(sample.memory_bytes), mib(sample.resident_bytes));
            println!("{name:24} {memory:>12} (process {resident:>12})   locks {:>9}{database}", sample.locks);
        };
        row("before", first);
        row("at the peak of memory", peak);
        row("after the last lock", granted);
        row("afterwards", last);
        let rate = self.granted.get() as f64 / took.as_secs_f64();
        println!(
            "granted                  {} of {} keys in {:.1} s: {rate:.0} keys/s",
            self.granted.get(),
            self.args.keys,
            took.as_secs_f64()
        );
        if self.failed.get() > 0 {
            println!("attempts without a lock  {}", self.failed.get());
        }
        let most = seen.iter().map(|seen| seen.sample.locks).max().unwrap_or_default().max(1);
        let per_lock =
            (over(peak) as f64 - peak.counters as f64 * over(last) as f64 / keys as f64) / peak.locks.max(1) as f64;
        println!("locks at the same time   {most}; overdue at most {} (their leases were over)", self.overdue());
        if self.kind == Kind::Redis {
            let left = over(last) as f64 / last.counters.max(1) as f64;
            println!("bytes a lock, at peak    {per_lock:.0}, without its counter");
            println!("left behind              {} counters, {} ({left:.0} bytes each)", last.counters, mib(over(last)));
        } else {
            println!(
                "bytes a key in the file  {:.0}",
                last.database_bytes.saturating_sub(first.database_bytes) as f64 / keys as f64
            );
            println!("revisions                {} for {keys} locks", last.revision - first.revision);
        }
        println!("removed by the server    {}", last.expired - first.expired);
        match gone {
            Some(after) => println!("all locks gone           {:.1} s after the last lease", after.as_secs_f64()),
            None => {
                println!("locks still there        {} after {} s more (--settle-s)", last.locks, self.args.settle_s)
            }
        }
        let stop = self.stop.borrow().clone().unwrap_or_else(|| "every key was taken".to_owned());
        println!("ended because            {stop}");
        if let Some(path) = &self.args.json {
            let samples: Vec<_> = seen.iter().map(of_sample).collect();
            let value = serde_json::json!({
                "backend": self.args.backend, "version": first.version, "keys": self.args.keys,
                "lease_s": self.args.lease_s, "tasks": self.args.tasks, "tokens": !self.args.no_tokens,
                "granted": self.granted.get(), "failed": self.failed.get(), "took_s": took.as_secs_f64(),
                "overdue": self.overdue(), "gone_after_s": gone.map(|gone| gone.as_secs_f64()), "ended_because": stop,
                "samples": samples,
            });
            fs::write(path, format!("{value}\n")).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

fn of_sample(seen: &Seen) -> serde_json::Value {
    let sample = &seen.sample;
    serde_json::json!({
        "at_s": seen.at.as_secs_f64(), "granted": seen.granted, "memory_bytes": sample.memory_bytes,
        "resident_bytes": sample.resident_bytes, "locks": sample.locks, "counters": sample.counters,
        "expired": sample.expired, "database_bytes": sample.database_bytes, "in_use_bytes": sample.in_use_bytes,
        "revision": sample.revision,
    })
}
