//! Postgres: the statement of the client, prepared, over one connection of the same library.

use std::time::{Duration, Instant};

use anyhow::ensure;
use harness_bench::{pinned::Pins, servers::Server};
use locks::postgres::{ACQUIRE, CREATE, RELEASE};
use tokio::net::TcpStream;
use tokio_postgres::{Client, Config, NoTls, Statement};

use crate::{Args, KEY, LEASE, Row, cycle, ours, times};

pub async fn measure(args: &Args, pins: &Pins) -> anyhow::Result<()> {
    let server = pins.start(Server::start_postgres)?;
    let mut raw = Raw::connect(&server.address).await?;
    let lock = ours("postgres", &server.address).await?;
    let [mut empty, mut statement, mut own] =
        ["Postgres: an empty statement", "Postgres: the statement of the lock", "Postgres, acquire p50 µs"]
            .map(Row::new);
    let mut number = 0;
    for round in 0..=args.rounds {
        times(args, round, &mut empty, async || raw.empty().await).await?;
        times(args, round, &mut statement, async || raw.acquire().await).await?;
        times(args, round, &mut own, async || cycle(&*lock, &mut number).await).await?;
    }
    empty.print(&empty);
    statement.print(&empty);
    own.print(&statement);
    Ok(())
}

/// The statements of the client, without the client.
struct Raw {
    client: Client,
    empty: Statement,
    acquire: Statement,
    release: Statement,
    number: u64,
}

impl Raw {
    async fn connect(address: &str) -> anyhow::Result<Raw> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (client, connection) = Config::new().user("postgres").connect_raw(stream, NoTls).await?;
        // It ends when the client is dropped.
        tokio::spawn(connection);
        client.batch_execute(CREATE).await?;
        let (empty, acquire) = (client.prepare("SELECT").await?, client.prepare(ACQUIRE).await?);
        let release = client.prepare(RELEASE).await?;
        Ok(Raw { client, empty, acquire, release, number: 0 })
    }

    async fn empty(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.client.query_opt(&self.empty, &[]).await?;
        Ok(began.elapsed())
    }

    async fn acquire(&mut self) -> anyhow::Result<Duration> {
        self.number += 1;
        let (key, owner) = (format!("raw-{KEY}"), format!("raw-{}", self.number));
        let lease_ms = i64::try_from(LEASE.as_millis())?;
        let began = Instant::now();
        let row = self.client.query_opt(&self.acquire, &[&key, &owner, &lease_ms]).await?;
        let took = began.elapsed();
        ensure!(row.is_some(), "{key} was held");
        let released = self.client.query_opt(&self.release, &[&key, &owner]).await?;
        ensure!(released.is_some(), "{key} was lost");
        Ok(took)
    }
}
