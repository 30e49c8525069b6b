//! The command line. `scenario` turns flags into plans.

mod check;
mod client;
mod scenario;
mod suite;
mod values;

use std::{
    num::{NonZeroU32, NonZeroU64},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use history::{Arm, ClusterKind, duration};

pub use self::{
    check::{CheckArgs, CheckFormat},
    client::{CheckArgs as ClientCheckArgs, ClientArgs, ClientCommand},
    scenario::{ModelArgs, ProgramArgs, ScenarioArgs},
    suite::{MergeArgs, ShardArgs, SuiteArgs},
    values::{ClientFlag, Format},
};
use self::{
    scenario::{of_explore, of_run},
    values::{cluster, role_and_image},
};
use crate::process::{LockServerArgs, PowerArgs, ResourceArgs};

/// Tests distributed locks under faults: real servers, real faults, verdicts with evidence
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
    /// Start a cluster, inject faults, record every event, and judge the record
    #[command(mut_args(of_run))]
    Run(Box<RunArgs>),
    /// Try many seeds in the simulation, and minimize each kind of violation to a short plan
    #[command(mut_args(of_explore))]
    Explore(Box<ExploreArgs>),
    /// Test the harness itself, in the simulation: every planted bug is caught, and no alarm is false
    Selftest(SelftestArgs),
    /// Run every row of a suite: the claim, the observation, and whether they agree
    Suite(SuiteArgs),
    /// Join the results of shards, of a suite or of `explore`: one table, one JUnit file, one exit code
    Merge(MergeArgs),
    /// Measure how often and for how long two clients hold the lock, by the length of a fault
    Dose(DoseArgs),
    /// Judge a recorded run again, or a history that another program recorded
    Check(CheckArgs),
    /// Test the program of your own lock, before it takes part in a run
    Client(ClientArgs),
    /// Write a recorded run in a format of another program
    Export(ExportArgs),
    /// Compare two runs, or two sets of runs: verdicts, windows, latencies
    Compare(CompareArgs),
    /// Write the pages of the findings from their templates and the recorded runs
    Findings(FindingsArgs),
    /// Try what clusters and faults need on this machine, and say how to mend what does not work
    Doctor(DoctorArgs),
    /// Remove containers, networks and volumes of runs that have ended, and interrupted image builds; no keys on
    /// servers that existed before (--servers)
    Clean(CleanArgs),
    /// List backends, faults and arms, or the recorded runs
    List(ListArgs),
    /// Define a word of the reports, or all words
    Explain(ExplainArgs),
    /// Show recorded runs in a browser
    Serve(ServeArgs),
    /// Print the completions of this command line for a shell
    Completions(CompletionsArgs),
    /// Print the page for `man`, or write one page for each command
    Man(ManArgs),
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    Resource(ResourceArgs),
    #[command(hide = true)]
    Agent,
    #[command(hide = true)]
    RemoveKeys,
    #[command(hide = true)]
    Power(PowerArgs),
    #[command(hide = true)]
    LockServer(LockServerArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClusterArg {
    /// Docker if an engine answers, otherwise the simulation
    Auto,
    /// Real servers in containers
    Docker,
    /// Models of the servers in one process, under virtual time
    Sim,
}

/// One run: a scenario, or a plan.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Run this plan (the `plan.toml` of a run) instead of the scenario that the flags describe. The plan fixes what
    /// these flags describe: to change it, edit a copy of the plan
    pub plan: Option<PathBuf>,

    /// Cluster of the run [default: auto; docker with --expect; with a PLAN the plan's cluster]
    #[arg(long, value_enum, help_heading = "Scenario")]
    pub cluster: Option<ClusterArg>,
    #[command(flatten)]
    pub scenario: ScenarioArgs,

    /// Start the servers of this Compose file instead of the backend's own file
    #[arg(long, value_name = "FILE", help_heading = "Docker")]
    pub compose: Option<PathBuf>,
    /// Use servers that exist already instead of starting some: those of the backend's Compose file (of one store, some
    /// are enough), comma-separated, by HOST:PORT or by URL with credentials and TLS; `env` reads the list from
    /// HARNESS_SERVERS. Only workers, the resource and their links get faults; every key has the run's prefix and is
    /// removed at the end (docs/own-servers.md)
    #[arg(long, value_name = "NAME=URL,…", conflicts_with = "keep", help_heading = "Docker")]
    pub servers: Option<String>,
    /// Image for a role (redis, resource, resource-store, worker, agent); may be repeated
    #[arg(long, value_name = "ROLE=NAME", value_parser = role_and_image, help_heading = "Docker")]
    pub image: Vec<(String, String)>,
    /// Keep servers and network after the run; `harness clean --kept` removes them
    #[arg(long, help_heading = "Docker")]
    pub keep: bool,
    /// Find, pull or build the images that the run needs, print their ids, and start nothing
    #[arg(long, conflicts_with_all = ["expect", "repeat", "keep"], help_heading = "Docker")]
    pub images_only: bool,
    #[command(flatten)]
    pub program: ProgramArgs,

    /// Verdicts and counts that the run must give, comma-separated: lock=violated,off.data.lost_updates>=1
    #[arg(long, help_heading = "Output")]
    pub expect: Option<String>,
    /// Make N runs, and count the runs that are as --expect says (without --expect: that are violated). All have the
    /// seed of PLAN or --seed; otherwise each has a random seed. The exit code is that of the worst run
    #[arg(long, value_name = "N", conflicts_with = "keep", help_heading = "Output")]
    pub repeat: Option<NonZeroU32>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
    /// Directory of the run directories
    #[arg(long, default_value = "runs", help_heading = "Output")]
    pub runs: PathBuf,
}

/// Many simulated runs of one scenario, each with its own seed.
#[derive(Debug, Args)]
pub struct ExploreArgs {
    #[command(flatten)]
    pub scenario: ScenarioArgs,
    /// Number of seeds; each seed gives one schedule
    #[arg(long, help_heading = "Scenario", default_value_t = 1_000)]
    pub seeds: u64,
    /// Draw flags, workload, tokens, models and faults anew for each seed, and prefer what showed something new. Only
    /// --backend, --tokens and --resource stay
    #[arg(long, help_heading = "Scenario")]
    pub swarm: bool,

    #[command(flatten, next_help_heading = "Search")]
    pub shard: ShardArgs,
    /// Threads [default: one per core]
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Time for all minimizations. When it ends, each search completes its current plan
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
    pub budget: Duration,
    /// Findings of each class to minimize, until one is robust; 0 only counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub limit: usize,
    /// Draw the randomness of each finding anew so often from each of 24 instants on, to show when the violation became
    /// inevitable; 0 leaves this out. 24 redraws cost about 1,000 simulations for each finding
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub redraws: u32,
    /// Write to this directory the results (`explore.json`, of a shard `explore-2of8.json`, for `harness merge`), and
    /// for `harness run`: the minimized plans, and of each finding the plan with its exact times beside the chart that
    /// shows when the violation became inevitable
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub save: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoseOf {
    /// Pauses of the lock's holder; Redlock on five nodes
    Pause,
    /// Jumps of the wall clock of the only lock node; Redis on one node
    Clock,
}

/// Every run is judged again from its history. A scenario is a plan without its seed.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The first side: a run directory, a history, or a directory with runs
    pub a: PathBuf,
    /// The second side
    pub b: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// Each page is `NAME.md` of the directory, made from the template `pages/NAME.md` and the runs in `data/`.
#[derive(Debug, Args)]
pub struct FindingsArgs {
    /// Directory of the findings
    #[arg(long, value_name = "DIR", default_value = "docs/findings")]
    pub dir: PathBuf,
    /// Suite of the claims, for their plans
    #[arg(long, default_value = "suites/kleppmann.toml")]
    pub suite: PathBuf,
    /// Write nothing; fail if a page differs from its template and data
    #[arg(long)]
    pub check: bool,
}

/// One fault per run, at a random time. The length of the fault is given in leases.
#[derive(Debug, Args)]
pub struct DoseArgs {
    /// Kind of fault
    #[arg(value_enum)]
    pub of: DoseOf,
    /// Cluster of every run: docker, or sim
    #[arg(long, value_parser = cluster, default_value = "sim")]
    pub cluster: ClusterKind,
    /// Lengths of the fault, in leases, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0])]
    pub ratios: Vec<f64>,
    /// Runs of each length, each with another seed
    #[arg(long, default_value_t = NonZeroU64::new(200).expect("200 is not 0"))]
    pub seeds: NonZeroU64,
    /// First seed
    #[arg(long, value_name = "FIRST", default_value_t = 1)]
    pub seed: u64,
    /// Lease that every attempt asks for
    #[arg(long, value_parser = duration, default_value = "2s")]
    pub lease: Duration,
    /// Plot the measurements into this SVG file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text", help_heading = "Output")]
    pub format: Format,
    /// Directory of the run directories
    #[arg(long, default_value = "runs", help_heading = "Output")]
    pub runs: PathBuf,
}

/// A table of the self-test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SelftestTable {
    /// Planted bugs, each with the plans that provoke it
    Planted,
    /// Correct locks, without faults and with all faults
    Locks,
    /// Correct locks with each pair of faults
    Pairs,
    /// Planted bugs, searched by a swarm that knows nothing of them
    Swarm,
}

/// Five tables: planted bugs; correct locks without faults, and with all faults compared with the truth; correct locks
/// with each pair of faults, compared with the truth; planted bugs that a swarm finds.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// First seed of each correct lock
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Seeds of each correct lock [default: 10000; 200 with --short]; with `--table pairs`, of each pair of faults on
    /// each correct lock [default: 200; 1 with --short]
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
    /// Use few seeds: short enough for a test
    #[arg(long)]
    pub short: bool,
    /// Schedules of each swarm search [default: 20000; 100 with --short]
    #[arg(long, value_name = "N")]
    pub schedules: Option<u64>,
    /// Swarm searches for each planted bug [default: 5; 1 with --short]
    #[arg(long, value_name = "N")]
    pub searches: Option<u64>,
    /// Only this table
    #[arg(long, value_enum)]
    pub table: Option<SelftestTable>,
    /// Only rows whose name contains this word: a bug, or a lock
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,
    /// Write plans of failures to this directory, for `harness run`: of each row, and of each pair of faults, the first
    /// 10 wrong runs and the first 10 that ended with an error; the table `swarm` writes none
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Threads [default: one per core]
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// A model of Knossos or Elle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JepsenModel {
    /// Knossos: `:acquire` and `:release` of one key
    Mutex,
    /// Knossos: reads of one key on one arm, and writes as compare-and-set from the version they were computed from
    CasRegister,
    /// Elle: each critical section as one transaction on one arm
    RwRegister,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A run directory, or a history (.jsonl, .jsonl.zst)
    pub run: PathBuf,
    /// Format: csv, jepsen, perfetto, porcupine; parquet, if the harness was built with `--features parquet`
    #[arg(long, value_name = "FORMAT")]
    pub to: String,
    /// File to write; `-` is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
    /// Model for which `--to jepsen` writes [default: mutex]
    #[arg(long, value_enum)]
    pub model: Option<JepsenModel>,
    /// Only this key (jepsen, porcupine) [default: the key of the run, if there is only one]
    #[arg(long)]
    pub key: Option<String>,
    /// Arm whose data is written (jepsen, porcupine) [default: off, or else the first arm of the run]
    #[arg(long, value_parser = str::parse::<Arm>)]
    pub arm: Option<Arm>,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directory of the run that tries the faults
    #[arg(long, default_value = "runs")]
    pub runs: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Also remove the servers that runs with --keep have kept
    #[arg(long)]
    pub kept: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// List the recorded runs of this directory, the newest first
    #[arg(long, num_args = 0..=1, default_missing_value = "runs")]
    pub runs: Option<PathBuf>,
    /// Only runs of this backend
    #[arg(long)]
    pub backend: Option<String>,
    /// Only runs with this kind of fault; `none`: runs without faults
    #[arg(long)]
    pub nemesis: Option<String>,
    /// Only runs on this cluster
    #[arg(long, value_parser = cluster)]
    pub cluster: Option<ClusterKind>,
    /// Only runs with this verdict
    #[arg(long, value_parser = ["upheld", "violated", "inconclusive", "not-judged"])]
    pub verdict: Option<String>,
    /// Only runs that did not come out as expected
    #[arg(long)]
    pub unexpected: bool,
    /// Only the newest N of these runs
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

impl ListArgs {
    /// Returns true if a flag chooses among recorded runs.
    pub fn has_filter(&self) -> bool {
        let texts = [&self.backend, &self.nemesis, &self.verdict];
        texts.iter().any(|text| text.is_some()) || self.cluster.is_some() || self.unexpected || self.last.is_some()
    }
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A word of the reports, such as `stale-holder` or `lost update` [default: the whole legend]
    pub word: Vec<String>,
}

/// Anybody who reaches the address can read the runs. Nothing can be changed.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Directory of the run directories
    #[arg(long, default_value = "runs")]
    pub runs: PathBuf,
    /// Address and port to listen on; port 0 takes a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8300")]
    pub listen: std::net::SocketAddr,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell whose script is printed
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one page for each command into this directory
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_shows_and_uses_its_own_defaults() {
        let parsed = |words: &[&str]| match Cli::try_parse_from(words).unwrap().command {
            Command::Run(args) => args.scenario,
            Command::Explore(args) => args.scenario,
            other => panic!("{other:?}"),
        };
        let (run, explore) = (parsed(&["harness", "run"]), parsed(&["harness", "explore"]));
        assert_eq!((run.lease, explore.lease), (Duration::from_secs(2), Duration::from_secs(1)));
        assert_eq!((run.seed, explore.seed), (None, Some(0)));
        assert_eq!((run.time, explore.time), (None, Some(Duration::from_millis(8_200))));
        assert_eq!((run.workers, explore.workers), (5, 3));
        let mut all = Cli::command();
        all.build();
        // Help is wrapped to the width of the terminal.
        let unwrapped = |help: String| help.split_whitespace().collect::<Vec<_>>().join(" ");
        let explore = unwrapped(all.find_subcommand_mut("explore").unwrap().render_help().to_string());
        assert!(explore.contains("[default: 8200ms]") && explore.contains("[default: 95ms..190ms]"), "{explore}");
        let run = unwrapped(all.find_subcommand_mut("run").unwrap().render_help().to_string());
        assert!(run.contains("etcd-server-lock") && run.contains("after-write-back"), "{run}");
        let only = "Only clients with `--client checking` come to `after-check`, and only those with `--tokens";
        assert!(run.contains(only), "{run}");
    }
}
