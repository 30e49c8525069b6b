//! The flags that describe a scenario: declared once, with other defaults where a command needs them.

use std::time::Duration;

use clap::{Arg, Args};
use compose::{BUILTIN, ComposeFile};
use history::{Arm, Comparison, FaultKind, Persistence, Point, ResourceKind, WhichClock, duration};
use nemesis::FaultSpec;

use super::values::{COMPARISONS, ClientFlag, LEASE_CLOCKS, PERSISTENCES, client, named, package, range};

/// Flags that describe one run. The defaults are those of `harness run`; [`of_explore`] replaces some of them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scenario")]
pub struct ScenarioArgs {
    #[arg(long, default_value = "redlock", help = format!("Lock under test: {}", backends()))]
    pub backend: String,
    #[arg(long, default_value = "none", help = faults())]
    pub nemesis: String,
    /// Length of the fault phase [default: 30s; 12s if every fault is placed at a protocol point]
    #[arg(long, value_parser = duration)]
    pub time: Option<Duration>,
    /// Seed of all random choices [default: random]. One seed gives one schedule; real servers still differ
    #[arg(long)]
    pub seed: Option<u64>,
    /// Lease that every attempt asks for
    #[arg(long, value_parser = duration, default_value = "2s")]
    pub lease: Duration,
    /// Time between read and write: a duration or a range
    #[arg(long, value_parser = range, default_value = "100ms..200ms")]
    pub work: history::Range,
    /// Delay before the next attempt at a lock that is held: a duration or a range
    #[arg(long, value_parser = range, default_value = "50ms..150ms")]
    pub retry_delay: history::Range,
    /// Critical sections that all clients together are offered per second
    #[arg(long, default_value_t = 3.0)]
    pub rate: f64,
    /// Number of keys, chosen with equal probability; 1 is one hot key
    #[arg(long, default_value_t = 1)]
    pub keys: u32,
    /// Number of workers; each is one process in its own container
    #[arg(long, default_value_t = 5)]
    pub workers: u32,
    /// Clients in each worker
    #[arg(long, default_value_t = 1)]
    pub clients_per_worker: u32,
    /// How clients treat their deadline: `unchecked` (acquire, read, work, write, release, as most code does) or
    /// `checking` (verifies its deadline just before each write). Or the command of your own lock, in any language:
    /// `--client './my-client --fast'` starts this program beside each client (docs/client-protocol.md); --backend
    /// still chooses the servers
    #[arg(long, value_name = "KIND|COMMAND", value_parser = client, default_value = "unchecked")]
    pub client: ClientFlag,
    /// Interval of renewals while a client holds the lock [default: never]
    #[arg(long, value_name = "EVERY", value_parser = duration)]
    pub renew: Option<Duration>,
    /// Lease that renewals ask for [default: that of --lease]
    #[arg(long, value_name = "LEASE", value_parser = duration, requires = "renew")]
    pub renew_for: Option<Duration>,
    /// Writes under one hold
    #[arg(long, default_value_t = 1)]
    pub writes: u32,
    /// Share of the critical sections that only read, from 0 to 1. Readers share the lock, and a writer excludes
    /// everybody. Needs a lock with the capability `read-write`
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub readers: f64,
    /// Share of the critical sections that take key k0, the parent of all other keys. The other sections take one
    /// child, under an intention on the parent. Needs --keys 2 or more, and a lock with the capability `hierarchical`
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub hierarchy: f64,
    /// Interval at which a client repeats an unanswered write, as the same operation [default: never]
    #[arg(long, value_name = "EVERY", value_parser = duration)]
    pub resend: Option<Duration>,
    /// Time after which a client abandons an unanswered attempt and undoes it [default: never]
    #[arg(long, value_name = "AFTER", value_parser = duration)]
    pub cancel: Option<Duration>,
    /// Times that a client acquires the key again while it works under its hold (the capability `reentrant`)
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub reenter: u32,
    /// Keys that a critical section takes one after the other; it releases them in reverse order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub locks_per_section: u32,
    /// Let every second client take its keys in the opposite order, so that clients can wait for each other in a cycle
    #[arg(long)]
    pub opposite: bool,
    /// Time after which a client that holds a lock gives up the wait for its next one [default: never]
    #[arg(long, value_name = "AFTER", value_parser = duration)]
    pub patience: Option<Duration>,
    /// Let all holds of a client share one session (the capability `sessions`)
    #[arg(long)]
    pub session: bool,
    #[arg(long, help = tokens())]
    pub tokens: Option<String>,
    #[arg(long, value_delimiter = ',', help = arms())]
    pub arms: Option<Vec<String>>,
    /// How arms that check tokens compare them
    #[arg(long, value_parser = named::<Comparison>(COMPARISONS), default_value = "default")]
    pub fence: Comparison,
    #[arg(long, help = resources())]
    pub resource: Option<String>,
    /// Data that Redis writes to its disk; on Docker its `appendonly`, `appendfsync` and `save` [default: no]
    #[arg(long, value_parser = named::<Persistence>(PERSISTENCES))]
    pub persistence: Option<Persistence>,
    #[command(flatten)]
    pub models: ModelArgs,
}

/// The place in which the program of `--client` runs.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Docker")]
pub struct ProgramArgs {
    /// Image for the workers, with what the program of --client needs; the same as --image worker=IMAGE
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["plan", "client_packages"])]
    pub client_image: Option<String>,
    /// Debian packages that the program of --client needs, comma-separated: an image for the workers is built from them
    #[arg(long, value_name = "PACKAGE", value_delimiter = ',', value_parser = package, conflicts_with = "plan")]
    pub client_packages: Vec<String>,
    /// Another file that the program of --client needs; may be repeated. Files that the command names are found
    #[arg(long, value_name = "FILE", conflicts_with = "plan")]
    pub client_file: Vec<String>,
}

/// Switches of the simulation's models of servers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Simulation")]
pub struct ModelArgs {
    /// Clock that ends leases in the model of etcd [default: that of the servers]
    #[arg(long, value_parser = named::<WhichClock>(LEASE_CLOCKS))]
    pub lease_clock: Option<WhichClock>,
    /// Let a paused etcd leader, when it resumes, revoke leases that were renewed meanwhile (etcd#15247)
    #[arg(long)]
    pub revokes_on_resume: bool,
    /// Let the Lock service of etcd check after a wait that the waiter's key still exists (etcd from 3.5 on)
    #[arg(long)]
    pub lock_checks_key: bool,
}

/// Defaults of `harness explore`: its schedules are short, and much happens in them.
const OF_EXPLORE: [(&str, &str); 8] = [
    ("nemesis", "pause"),
    ("time", "8200ms"),
    ("seed", "0"),
    ("lease", "1s"),
    ("work", "150ms..250ms"),
    ("retry_delay", "95ms..190ms"),
    ("rate", "4.5"),
    ("workers", "3"),
];

/// The flags of a scenario that `--swarm` uses. A swarm draws what all other flags describe.
const KEPT_BY_SWARM: [&str; 6] = ["backend", "tokens", "resource", "seed", "seeds", "swarm"];

/// Returns whether the argument describes the scenario.
fn is_of_scenario(arg: &Arg) -> bool {
    matches!(arg.get_help_heading(), Some("Scenario" | "Simulation"))
}

/// An argument of `harness run`. A plan file describes the whole scenario; only its cluster can be replaced.
pub fn of_run(arg: Arg) -> Arg {
    if is_of_scenario(&arg) && arg.get_id() != "cluster" { arg.conflicts_with("plan") } else { arg }
}

/// An argument of `harness explore`, with its own default.
pub fn of_explore(arg: Arg) -> Arg {
    let default = OF_EXPLORE.iter().find(|(id, _)| arg.get_id() == id).map(|(_, default)| *default);
    let arg = match arg.get_id().as_str() {
        "time" => arg.help("Length of the fault phase, in virtual time"),
        "seed" => arg.help("First seed; each seed gives one schedule").value_name("FIRST"),
        _ => arg,
    };
    let is_drawn = is_of_scenario(&arg) && !KEPT_BY_SWARM.contains(&arg.get_id().as_str());
    let arg = if is_drawn { arg.conflicts_with("swarm") } else { arg };
    match default {
        Some(default) => arg.default_value(default),
        None => arg,
    }
}

fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}

fn backends() -> String {
    list(BUILTIN.iter().map(|(name, _)| *name))
}

fn faults() -> String {
    let is_of_holder = |kind: &FaultKind| kind.name().parse() == format!("{}:holder", kind.name()).parse::<FaultSpec>();
    let (of_holder, of_node): (Vec<FaultKind>, Vec<_>) = FaultKind::ALL.into_iter().partition(is_of_holder);
    let names = |kinds: Vec<FaultKind>| list(kinds.into_iter().map(FaultKind::name));
    let of_links = FaultKind::ALL.into_iter().filter(|kind| kind.is_of_links()).collect();
    format!(
        "Faults, comma-separated: `none`, or KIND[:TARGET][:LINKS][@WHEN][+DURATION], for example \
         `pause@before-write+5s`. KIND is {}. TARGET is holder (default of {}), \
         any-lock-node (default of {}), any-worker, leader, {}, or the name of a node. LINKS is for {}: in, out or \
         one-way; lock-nodes, workers or resource; reject. WHEN is a time, or a protocol point: {}. \
         Only clients with `--client checking` come to `{}`, and only those with `--tokens two-phase` or \
         `two-phase-fast` to `{}`",
        names(FaultKind::ALL.to_vec()),
        names(of_holder),
        names(of_node),
        list(nemesis::Group::ALL.map(nemesis::Group::name)),
        names(of_links),
        list(Point::ALL.map(Point::name)),
        Point::AfterCheck,
        Point::AfterWriteBack,
    )
}

fn tokens() -> String {
    let made = |(name, _): &(&str, _)| {
        let tokens = ComposeFile::builtin(name).map(|file| file.facts.tokens).unwrap_or_default();
        format!("{name}: {}", tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    };
    let all: Vec<String> = BUILTIN.iter().map(made).collect();
    let all = all.join("; ");
    format!("Source of fencing tokens [default: the first one]. {all}; a program of --client: none, own")
}

fn resources() -> String {
    let all = list(ResourceKind::ALL.map(ResourceKind::name));
    format!(
        "Store that keeps the protected state and decides about each request: {all} [default: {}]. Only `{0}` is \
         simulated; `etcd` needs a lock of etcd",
        ResourceKind::default().name()
    )
}

fn arms() -> String {
    let all = list(Arm::ALL.map(Arm::name));
    format!(
        "Arms of the resource, all judged in the same run: {all} [default: off,writes,reads, where tokens allow]. \
         `guard` needs `--resource etcd` and tokens"
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_plan_refuses_each_flag_of_a_scenario_but_its_cluster() {
        let mut all = Cli::command();
        all.build();
        let run = all.find_subcommand("run").unwrap();
        let is_taken = |arg: &&Arg| !run.get_arg_conflicts_with(arg).iter().any(|other| other.get_id() == "plan");
        let (taken, refused): (Vec<&Arg>, Vec<&Arg>) =
            run.get_arguments().filter(|arg| is_of_scenario(arg)).partition(is_taken);
        assert_eq!(taken.iter().map(|arg| arg.get_id().as_str()).collect::<Vec<_>>(), ["cluster"]);
        for flag in ["backend", "seed", "lease", "persistence", "lease_clock", "revokes_on_resume", "lock_checks_key"] {
            assert!(refused.iter().any(|arg| arg.get_id() == flag), "{flag}");
        }
    }

    #[test]
    fn a_swarm_refuses_each_flag_that_it_draws() {
        let mut all = Cli::command();
        all.build();
        let explore = all.find_subcommand("explore").unwrap();
        let is_kept = |arg: &&Arg| !explore.get_arg_conflicts_with(arg).iter().any(|other| other.get_id() == "swarm");
        let of_scenario: Vec<&Arg> = explore.get_arguments().filter(|arg| is_of_scenario(arg)).collect();
        assert!(of_scenario.len() > 25, "{of_scenario:?}");
        let kept = of_scenario.into_iter().filter(is_kept);
        let mut kept: Vec<&str> = kept.map(|arg| arg.get_id().as_str()).collect();
        kept.sort_unstable();
        assert_eq!(kept, ["backend", "resource", "seed", "seeds", "swarm", "tokens"]);
    }
}
