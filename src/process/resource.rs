//! The hidden subcommand `resource`: serves HTTP, and records every decision at its instant.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, bail};
use history::{Arm, Comparison, Event, Role};
use locks::{BootClock, Clock as _};
use resource::{Config, Limits, Moment, PlantedBug, Policy, Resource};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::{commands::Commands, journal::Journal, ticks};

/// The port of the resource in its container.
pub const PORT: u16 = 8080;

/// The arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct ResourceArgs {
    /// Arms to decide on, by name
    #[arg(long, value_delimiter = ',', required = true)]
    arms: Vec<String>,
    /// Refuse equal tokens too: one write a hold
    #[arg(long)]
    strict: bool,
    /// A planted bug, by name
    #[arg(long)]
    buggy: Option<String>,
    /// Seed of planted bugs that draw
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// File of the store
    #[arg(long, default_value = "/resource.redb")]
    store: PathBuf,
    /// Address of a Postgres server that decides, in place of this process
    #[arg(long, conflicts_with_all = ["store", "buggy"])]
    postgres: Option<String>,
    /// Addresses of the etcd members that decide, in place of this process
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["store", "buggy", "postgres"])]
    etcd: Vec<String>,
    /// Address of an S3 server with the object whose replacement decides
    #[arg(long, conflicts_with_all = ["store", "buggy", "postgres", "etcd"])]
    s3: Option<String>,
}

/// One command to the resource.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ResourceCommand {
    /// Record `finished`, and exit.
    Finish,
}

/// Runs until told to finish, or until standard input ends.
pub async fn resource(args: ResourceArgs) -> anyhow::Result<()> {
    let arms = args.arms.iter().map(|name| name.parse()).collect::<Result<Vec<Arm>, _>>()?;
    let comparison = if args.strict { Comparison::Strict } else { Comparison::Default };
    let planted = args.buggy.map(|name| PlantedBug::from_name(&name, args.seed)).transpose()?;
    let policy = Policy::new(&arms, comparison)?.with_bug(planted);

    let listener = TcpListener::bind(("0.0.0.0", PORT)).await.with_context(|| format!("listening on port {PORT}"))?;
    let journal = Arc::new(Journal::begin(Role::Resource)?);
    let observer = {
        let journal = journal.clone();
        Box::new(move |moment: Moment<'_>| match moment {
            Moment::Asked => journal.hold_place(),
            Moment::Decided(admission) => journal.fill_place(Some(workloads::admission::event(admission))),
            Moment::Undecided => journal.fill_place(None),
        })
    };
    let serving = async {
        let limits = Limits::default();
        // Through libc, so that a clock fault of the resource changes its decisions.
        let clock = || BootClock.wall();
        let resource = match (args.postgres, args.s3) {
            (Some(address), _) => Resource::over_postgres(policy, limits, clock, address, observer).await,
            (None, Some(address)) => Resource::over_s3(policy, limits, clock, address, observer).await,
            (None, None) if !args.etcd.is_empty() => {
                let members = (args.etcd, lock_keys as resource::LockKeys);
                Resource::over_etcd(policy, limits, clock, members, observer).await
            }
            (None, None) => Resource::open(Config { policy, store: args.store, limits, clock }, observer),
        };
        let resource = resource.context("opening the store")?;
        if let Some(durable) = resource.durable() {
            journal.record(Event::Recovered { durable: durable.0 });
        }
        resource.serve(listener, std::future::pending()).await.context("serving")
    };
    let mut commands = Commands::new();
    tokio::select! {
        stopped = ticks::tick(journal.clone()) => return Err(anyhow::Error::new(stopped).context("ticking")),
        served = serving => served?,
        command = commands.next() => match command? {
            ResourceCommand::Finish => {
                journal.finish()
            }
        },
    }
    bail!("the resource stopped serving before it was told to")
}

/// The prefix of the lock keys of `key`.
fn lock_keys(key: &history::Key) -> Vec<u8> {
    locks::etcd_queue(&locks::Key::new(key.as_str()))
}
