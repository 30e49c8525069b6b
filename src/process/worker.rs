//! The hidden subcommand `worker`: runs clients, as commands on standard input say.

use std::{pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use history::{Event, Role, Stamp};
use locks::BootClock;
use workloads::{protocol::Command, worker::Worker};

use super::{commands::Commands, journal::Journal, stamp, ticks};

impl workloads::ports::Journal for Journal {
    fn now(&self) -> Stamp {
        stamp::now()
    }

    fn record(&self, event: Event) -> Stamp {
        Journal::record(self, event)
    }

    fn record_at(&self, at: Stamp, event: Event) {
        Journal::record_at(self, at, event)
    }
}

/// Resolves when the clients have ended; never, if there are none.
async fn running(clients: Pin<&mut Option<impl Future<Output = ()>>>) {
    match clients.as_pin_mut() {
        Some(clients) => clients.await,
        None => std::future::pending().await,
    }
}

/// Runs until told to finish, or until standard input ends.
pub async fn worker() -> anyhow::Result<()> {
    let journal = Arc::new(Journal::begin(Role::Worker)?);
    tokio::select! {
        done = obey(&journal) => done,
        stopped = ticks::tick(journal.clone()) => Err(anyhow::Error::new(stopped).context("ticking")),
    }
}

async fn obey(journal: &Arc<Journal>) -> anyhow::Result<()> {
    let mut commands = Commands::new();
    let Command::Configure(configuration) = commands.next().await? else {
        bail!("expected `configure` as the first command")
    };
    // Servers that give no answer are asked for seconds.
    let connecting = Worker::connect(*configuration, journal.clone(), Arc::new(BootClock));
    let worker = commands.beside(connecting).await?.map_err(|e| anyhow!(e))?;
    let mut clients = std::pin::pin!(None);
    loop {
        // Clients run on this task, so that a panic of a client ends the process, which the controller notices.
        let command = tokio::select! {
            command = commands.next() => command?,
            () = running(clients.as_mut()) => {
                clients.set(None);
                continue;
            }
        };
        match command {
            Command::Configure(_) => bail!("a second `configure`"),
            Command::Start => {
                clients.set(Some(worker.run()));
            }
            Command::Arm { client, point, bound_ms } => {
                worker.points().arm(client, point, Duration::from_millis(bound_ms));
            }
            Command::Go { client } => worker.points().go(client),
            Command::Stop => worker.stop(),
            Command::Finish { final_reads } => {
                let read = commands.beside(worker.final_reads(&final_reads)).await?;
                read.map_err(|e| anyhow!(e)).context("reading what is left")?;
                journal.finish()
            }
        }
    }
}
