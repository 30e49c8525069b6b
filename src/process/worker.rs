//! The worker: clients, commanded over standard input and reporting over standard output.

use std::{pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use history::{Event, Role, Stamp};
use locks::BootClock;
use workloads::{protocol::Command, worker::Worker};

use super::{journal::Journal, orders::Orders, stamp, ticks};

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
    let mut orders = Orders::new();
    let Command::Configure(configuration) = orders.next().await? else {
        bail!("expected `configure` as the first command")
    };
    let worker = Worker::connect(*configuration, journal.clone(), Arc::new(BootClock)).await.map_err(|e| anyhow!(e))?;
    let mut clients = std::pin::pin!(None);
    loop {
        // Clients run on this very task: if one of them panics, the process ends, and the run is told.
        let order = tokio::select! {
            order = orders.next() => order?,
            () = running(clients.as_mut()) => {
                clients.set(None);
                continue;
            }
        };
        match order {
            Command::Configure(_) => bail!("a second `configure`"),
            Command::Start => {
                clients.set(Some(worker.run()));
            }
            Command::Arm { client, point, bound_ms } => {
                worker.points().arm(client, point, Duration::from_millis(bound_ms));
            }
            Command::Go { client } => worker.points().go(client),
            Command::Stop => worker.stop(),
            Command::Finish { look_at } => {
                worker.look_at(&look_at).await.map_err(|e| anyhow!(e)).context("reading what is left")?;
                journal.record(Event::Finished);
                std::process::exit(0)
            }
        }
    }
}
