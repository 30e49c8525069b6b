//! The hidden subcommand `worker`: runs clients, as commands on standard input say.

use std::{pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use history::{Event, Role, Stamp};
use locks::BootClock;
use workloads::{protocol::Command, worker::Worker};

use super::{commands::Commands, journal::Journal, stamp, ticks};

/// The most tries of the final reads, and the time between two of them. If a link was cut when the resource was killed,
/// the worker has not seen the end of its connection: only the next request shows it.
const FINAL_READS: (u32, Duration) = (20, Duration::from_millis(200));
/// The worker ends its tries so long before the controller gives the worker up. Otherwise nobody would see the error.
const GIVEN_UP_BEFORE: Duration = Duration::from_secs(10);

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

/// Tries until a try succeeds, and at most so often. If a further try has no end after `within`, the error of the try
/// before it is the result.
async fn tried<E, F: Future<Output = Result<(), E>>>(
    (most, pause): (u32, Duration),
    within: Duration,
    doing: impl Fn() -> F,
) -> Result<(), E> {
    let mut over = std::pin::pin!(tokio::time::sleep(within));
    let mut result = doing().await;
    for _ in 1..most {
        if result.is_ok() {
            break;
        }
        let again = async {
            tokio::time::sleep(pause).await;
            doing().await
        };
        result = tokio::select! {
            ended = again => ended,
            () = &mut over => break,
        };
    }
    result
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
                let within = nemesis::final_reads_within(final_reads.len()) - GIVEN_UP_BEFORE;
                let read = commands.beside(tried(FINAL_READS, within, || worker.final_reads(&final_reads))).await?;
                read.map_err(|e| anyhow!(e)).context("reading what is left")?;
                journal.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        future::{pending, ready},
        time::Duration,
    };

    use super::tried;

    #[tokio::test]
    async fn a_read_that_fails_is_tried_again_and_not_for_ever() {
        for (failures, is_read, expected) in [(0, true, 1), (2, true, 3), (3, false, 3), (9, false, 3)] {
            let tries = Cell::new(0);
            let read = || {
                tries.set(tries.get() + 1);
                ready(if tries.get() > failures { Ok(()) } else { Err("connection reset") })
            };
            let read = tried((3, Duration::ZERO), Duration::MAX, read).await;
            assert_eq!(read.is_ok(), is_read, "{failures} failures");
            assert_eq!(tries.get(), expected, "{failures} failures");
        }
    }

    #[tokio::test]
    async fn a_read_without_an_answer_ends_with_the_error_of_the_try_before() {
        let is_first = Cell::new(true);
        let read = || {
            let fails = is_first.replace(false);
            async move { if fails { Err("connection reset") } else { pending().await } }
        };
        let read = tried((3, Duration::ZERO), Duration::from_millis(20), read).await;
        assert_eq!(read, Err("connection reset"));
    }
}
