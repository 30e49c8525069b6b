//! The command line as it is written. `scenario` resolves it.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::process::ResourceArgs;

/// What distributed locks do under faults: real servers, real faults, verdicts with witnesses.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 all upheld, or as --expect says · 1 violated, or not as expected · 2 inconclusive · \
                  3 the harness could not do its job · 64 usage · 130 interrupted"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster, inject faults, record, and judge the record
    Run(Box<RunArgs>),
    /// Try many schedules in the simulation, and reduce what violates to the least that shows it
    Explore(Box<ExploreArgs>),
    /// Hold the harness against itself, in the simulation: every planted bug is caught, and no alarm is false
    Selftest(SelftestArgs),
    /// Run every row of a suite, and print what was claimed, what was seen, and whether it came out as expected
    Suite(SuiteArgs),
    /// Measure how probable and how long double-holder windows are, against the length of a fault
    Dose(DoseArgs),
    /// Judge a recorded run again
    Check(CheckArgs),
    /// Remove what runs that are no longer alive have left in Docker
    Clean(CleanArgs),
    /// List backends, faults and arms, or the runs that were recorded
    List(ListArgs),
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    Resource(ResourceArgs),
    #[command(hide = true)]
    Agent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// `verdict.json`
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClientArg {
    /// Acquire, read, work, write, release: what most code does
    Unchecked,
    /// They verify their deadline just before each write
    Checking,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FenceArg {
    /// Refuse a smaller token, and an equal one from another hold
    Default,
    /// Refuse an equal token too: one write a hold; cannot go with the arm `reads`
    Strict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClusterArg {
    /// Docker if an engine answers, else the simulation
    Auto,
    /// Real servers in containers
    Docker,
    /// Models of the servers in one process, under virtual time
    Sim,
}

/// A duration: `2s`, `150ms`.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|e| format!("expected a duration such as `2s` or `150ms`: {e}"))
}

/// A duration, or a range of them: `100ms..200ms`.
fn range(text: &str) -> Result<history::Range, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    Ok(history::Range { from: duration(from)?, to: duration(to)? })
}

fn role_and_image(text: &str) -> Result<(String, String), String> {
    let (role, image) = text.split_once('=').ok_or("expected ROLE=NAME, such as `redis=valkey/valkey:8`")?;
    if role.is_empty() || image.is_empty() {
        return Err("expected ROLE=NAME, such as `redis=valkey/valkey:8`".into());
    }
    Ok((role.to_owned(), image.to_owned()))
}

/// What clients do while they hold, and about requests that nobody answers.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// What clients do about their deadline
    #[arg(long, help_heading = "Scenario", value_enum, default_value = "unchecked")]
    pub client: ClientArg,
    /// Renew so often while holding [default: never]
    #[arg(long, help_heading = "Scenario", value_name = "EVERY", value_parser = duration)]
    pub renew: Option<Duration>,
    /// Lease that renewals ask for [default: that of --lease]
    #[arg(long, help_heading = "Scenario", value_name = "LEASE", value_parser = duration)]
    pub renew_for: Option<Duration>,
    /// Writes under one hold
    #[arg(long, help_heading = "Scenario", default_value_t = 1)]
    pub writes: u32,
    /// Send a write that was not answered again so often, as the same operation [default: never]
    #[arg(long, help_heading = "Scenario", value_name = "EVERY", value_parser = duration)]
    pub resend: Option<Duration>,
    /// Give an attempt up that was not answered for so long, and undo it [default: never]
    #[arg(long, help_heading = "Scenario", value_name = "AFTER", value_parser = duration)]
    pub cancel: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LeaseClockArg {
    /// When both the wall clock and the monotonic clock say so: etcd 3.4
    Both,
    /// When the monotonic clock says so: etcd from 3.5 on
    Monotonic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PersistenceArg {
    /// Nothing: `appendonly no`
    No,
    /// A snapshot every 5 s if anything has changed: `save 5 1`
    Snapshot,
    /// All up to the last full second: `appendfsync everysec`
    Everysec,
    /// All that was answered: `appendfsync always`
    Always,
}

/// Switches of the models of the simulation.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// By which clock a model of etcd lets leases run out [default: both]
    #[arg(long, help_heading = "Simulation", value_enum)]
    pub lease_clock: Option<LeaseClockArg>,
    /// A model of etcd whose leader was frozen revokes leases that had been renewed elsewhere (etcd#15247)
    #[arg(long, help_heading = "Simulation")]
    pub revokes_on_resume: bool,
    /// The Lock service of a model of etcd looks whether the key that waited still stands (from 3.5 on)
    #[arg(long, help_heading = "Simulation")]
    pub lock_checks_key: bool,
    /// What Redis writes to its disk; on Docker its `appendonly`, `appendfsync` and `save` [default: no]
    #[arg(long, help_heading = "Scenario", value_enum)]
    pub persistence: Option<PersistenceArg>,
}

/// What is run: these flags, or a plan.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Run this plan again (the `plan.toml` of a run) instead of the flags below
    #[arg(conflicts_with_all = ["client", "renew", "renew_for", "writes", "resend", "cancel"])]
    #[arg(conflicts_with_all = ["lease_clock", "revokes_on_resume", "lock_checks_key", "persistence"])]
    pub plan: Option<PathBuf>,

    /// Where it runs [default: auto; docker with --expect; for a PLAN where it ran]
    #[arg(long, value_enum, help_heading = "Scenario")]
    pub cluster: Option<ClusterArg>,
    /// Lock under test: redis, redlock, etcd
    #[arg(long, help_heading = "Scenario", default_value = "redlock", conflicts_with = "plan")]
    pub backend: String,
    /// Faults, comma-separated: none, or `KIND[:TARGET][:LINKS][@WHEN][+DURATION]` with KIND pause, stop, slow, kill, amnesia, clock, partition, delay,
    /// loss or reorder, in the simulation also powerloss; TARGET holder (default for pause, stop, slow and kill), any-worker, any-lock-node (default for the
    /// others), leader, majority, minority, rolling, a node by name, or of links halves, ring, bridge, isolate; LINKS, of faults of links,
    /// in, out or one-way, lock-nodes, workers or resource, and reject; WHEN a time or a protocol point (before-acquire, after-send, after-write-back,
    /// after-acquire, after-read, after-check, before-write, before-release); for example
    /// `pause@before-write+5s`
    #[arg(long, help_heading = "Scenario", default_value = "none", conflicts_with = "plan")]
    pub nemesis: String,
    /// Length of the fault phase [default: 30s; 12s if every fault is placed]
    #[arg(long, help_heading = "Scenario", value_parser = duration, conflicts_with = "plan")]
    pub time: Option<Duration>,
    /// Seed of everything that is drawn; it promises the same schedule, never the same run [default: drawn]
    #[arg(long, help_heading = "Scenario", conflicts_with = "plan")]
    pub seed: Option<u64>,
    /// Lease asked of the lock
    #[arg(long, help_heading = "Scenario", value_parser = duration, default_value = "2s", conflicts_with = "plan")]
    pub lease: Duration,
    /// Work between read and write: a duration or a range
    #[arg(long, help_heading = "Scenario", value_parser = range, default_value = "100ms..200ms", conflicts_with = "plan")]
    pub work: history::Range,
    /// Delay between two attempts at a held lock: a duration or a range
    #[arg(long, help_heading = "Scenario", value_parser = range, default_value = "50ms..150ms", conflicts_with = "plan")]
    pub retry_delay: history::Range,
    /// Critical sections offered per second, by all clients together
    #[arg(long, help_heading = "Scenario", default_value_t = 3.0, conflicts_with = "plan")]
    pub rate: f64,
    /// Keys, drawn evenly; 1 is the hot key
    #[arg(long, help_heading = "Scenario", default_value_t = 1, conflicts_with = "plan")]
    pub keys: u32,
    /// Workers, one container each
    #[arg(long, help_heading = "Scenario", default_value_t = 5, conflicts_with = "plan")]
    pub workers: u32,
    /// Clients in each worker
    #[arg(long, help_heading = "Scenario", default_value_t = 1, conflicts_with = "plan")]
    pub clients_per_worker: u32,
    #[command(flatten)]
    pub clients: ClientArgs,
    #[command(flatten)]
    pub models: ModelArgs,
    /// How the lock makes fencing tokens: none, counter (redis), majority-max or two-phase (redlock), revision (etcd) [default: the backend's best]
    #[arg(long, help_heading = "Scenario", conflicts_with = "plan")]
    pub tokens: Option<String>,
    /// Arms of the resource, all judged in the same run [default: off,writes,reads, as far as tokens and fence allow]
    #[arg(long, help_heading = "Scenario", value_delimiter = ',', conflicts_with = "plan")]
    pub arms: Option<Vec<String>>,
    /// How fencing arms compare tokens
    #[arg(long, help_heading = "Scenario", value_enum, default_value = "default", conflicts_with = "plan")]
    pub fence: FenceArg,
    /// A resource with a planted bug, `buggy:NAME`: to test the checker
    #[arg(long, help_heading = "Scenario", conflicts_with = "plan", hide = true)]
    pub resource: Option<String>,

    /// Servers from a Compose file of your own, instead of the backend's
    #[arg(long, value_name = "FILE", help_heading = "Docker")]
    pub compose: Option<PathBuf>,
    /// Image for a role (redis, resource, worker, agent); may be repeated
    #[arg(long, value_name = "ROLE=NAME", value_parser = role_and_image, help_heading = "Docker")]
    pub image: Vec<(String, String)>,
    /// Leave servers and network for a look; `harness clean --kept` removes them
    #[arg(long, help_heading = "Docker")]
    pub keep: bool,

    /// Verdicts and counts that this run must give, comma-separated [example: lock=violated,off.data.lost_updates>=1]
    #[arg(long, help_heading = "Output")]
    pub expect: Option<String>,
    /// Run the PLAN so often, one run after the other, and count those that come out as --expect says, or are violated without it
    #[arg(long, value_name = "N", requires = "plan", conflicts_with = "keep", help_heading = "Output")]
    pub repeat: Option<std::num::NonZeroU32>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
    /// Directory of the run directories
    #[arg(long, default_value = "runs", help_heading = "Output")]
    pub runs: PathBuf,
}

/// What is explored. Schedules are short, and much happens in them: the simulation tries thousands a second.
#[derive(Debug, Args)]
pub struct ExploreArgs {
    /// Lock under test: redis, redlock, etcd
    #[arg(long, help_heading = "Scenario", default_value = "redlock")]
    pub backend: String,
    /// Faults, as for `run`
    #[arg(long, help_heading = "Scenario", default_value = "pause")]
    pub nemesis: String,
    /// How many seeds are tried, a schedule each
    #[arg(long, help_heading = "Scenario", default_value_t = 1_000)]
    pub seeds: u64,
    /// The first seed
    #[arg(long, help_heading = "Scenario", value_name = "FIRST", default_value_t = 0)]
    pub seed: u64,
    /// Length of the fault phase, in virtual time
    #[arg(long, help_heading = "Scenario", value_parser = duration, default_value = "8200ms")]
    pub time: Duration,
    /// Lease asked of the lock
    #[arg(long, help_heading = "Scenario", value_parser = duration, default_value = "1s")]
    pub lease: Duration,
    /// Work between read and write: a duration or a range
    #[arg(long, help_heading = "Scenario", value_parser = range, default_value = "150ms..250ms")]
    pub work: history::Range,
    /// Delay between two attempts at a held lock: a duration or a range
    #[arg(long, help_heading = "Scenario", value_parser = range, default_value = "95ms..190ms")]
    pub retry_delay: history::Range,
    /// Critical sections offered per second, by all clients together
    #[arg(long, help_heading = "Scenario", default_value_t = 4.5)]
    pub rate: f64,
    /// Keys, drawn evenly; 1 is the hot key
    #[arg(long, help_heading = "Scenario", default_value_t = 1)]
    pub keys: u32,
    /// Workers
    #[arg(long, help_heading = "Scenario", default_value_t = 3)]
    pub workers: u32,
    /// Clients in each worker
    #[arg(long, help_heading = "Scenario", default_value_t = 1)]
    pub clients_per_worker: u32,
    #[command(flatten)]
    pub clients: ClientArgs,
    #[command(flatten)]
    pub models: ModelArgs,
    /// How the lock makes fencing tokens, as for `run` [default: the backend's best]
    #[arg(long, help_heading = "Scenario")]
    pub tokens: Option<String>,
    /// Arms of the resource, all judged in the same schedule [default: off,writes,reads, as far as tokens and fence allow]
    #[arg(long, help_heading = "Scenario", value_delimiter = ',')]
    pub arms: Option<Vec<String>>,
    /// How fencing arms compare tokens
    #[arg(long, help_heading = "Scenario", value_enum, default_value = "default")]
    pub fence: FenceArg,
    /// A resource with a planted bug, `buggy:NAME`: to test the checker
    #[arg(long, help_heading = "Scenario", hide = true)]
    pub resource: Option<String>,

    /// Threads [default: one for each core]
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Findings of each class that are reduced until one can be offered; 0 only counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub limit: usize,
    /// Write the reduced plans here, for `harness run`
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub save: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
}

/// A suite is a file of claims, each with a plan, a witness and what must come out.
#[derive(Debug, Args)]
pub struct SuiteArgs {
    /// The suite file
    pub suite: PathBuf,
    /// Where it runs: docker, or sim
    #[arg(long, value_enum, default_value = "docker")]
    pub cluster: ClusterArg,
    /// Run every row so often, with a seed of its own each time
    #[arg(long, value_name = "N", default_value_t = std::num::NonZeroU32::MIN)]
    pub repeat: std::num::NonZeroU32,
    /// Only these rows, comma-separated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Go on where an earlier run of this suite ended: what it has is not run again
    #[arg(long)]
    pub resume: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
    /// Directory of the run directories, and of what is done of the suite
    #[arg(long, default_value = "runs", help_heading = "Output")]
    pub runs: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoseOf {
    /// Pauses of whoever holds the key; Redlock on five nodes
    Pause,
    /// Jumps of the wall clock of the only lock node; Redis on one
    Clock,
}

/// One fault a run, at a moment that is drawn; its length is given in leases.
#[derive(Debug, Args)]
pub struct DoseArgs {
    /// What is varied
    #[arg(value_enum)]
    pub of: DoseOf,
    /// Where it is measured: docker, or sim
    #[arg(long, value_enum, default_value = "sim")]
    pub cluster: ClusterArg,
    /// Lengths of the fault, in leases, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0])]
    pub ratios: Vec<f64>,
    /// Runs of each length, a seed each
    #[arg(long, default_value_t = std::num::NonZeroU64::new(200).expect("200 is not 0"))]
    pub seeds: std::num::NonZeroU64,
    /// The first seed
    #[arg(long, value_name = "FIRST", default_value_t = 1)]
    pub seed: u64,
    /// Lease asked of the lock
    #[arg(long, value_parser = duration, default_value = "2s")]
    pub lease: Duration,
    /// Draw the measurements
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
    /// Directory of the run directories
    #[arg(long, default_value = "runs", help_heading = "Output")]
    pub runs: PathBuf,
}

/// Three tables: planted bugs, correct locks without faults, correct locks with all faults beside the truth.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Seeds of each correct lock [default: 10000; 200 with --short]
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
    /// Few seeds: what a test can wait for
    #[arg(long)]
    pub short: bool,
    /// Only rows whose name contains this: a bug, or a lock
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,
    /// Write the plans of what is wrong here, for `harness run`
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Threads [default: one for each core]
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// A run directory, or a history (.jsonl, .jsonl.zst)
    pub run: PathBuf,
    /// Verdicts and counts that it must give
    #[arg(long)]
    pub expect: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Remove also what runs with --keep have left
    #[arg(long)]
    pub kept: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// List the runs recorded in this directory
    #[arg(long, num_args = 0..=1, default_missing_value = "runs")]
    pub runs: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}
