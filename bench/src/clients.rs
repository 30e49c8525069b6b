//! The clients that are measured: cycles of acquire and release, and the wire alone.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use locks::{BootClock, Key, Lock, Owner, Redlock, TokenSource, Unwatched, connect_redis};

/// The lease of every timed attempt. No lease ends during a measurement.
pub const LEASE: Duration = Duration::from_secs(10);

/// Parallel PINGs over raw sockets: what one round trip to all servers costs at least.
pub struct Floor(Vec<TcpStream>);

impl Floor {
    pub fn connect(addresses: &[String]) -> anyhow::Result<Floor> {
        let connected = addresses.iter().map(|address| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        Ok(Floor(connected.collect::<anyhow::Result<_>>()?))
    }

    /// Sends all PINGs, then reads all answers.
    pub fn cycle(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        for stream in &mut self.0 {
            stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        }
        let mut answer = [0; 7];
        for stream in &mut self.0 {
            stream.read_exact(&mut answer)?;
        }
        Ok(began.elapsed())
    }
}

/// A lock client. A cycle acquires the lock of a free key and releases it.
#[derive(Clone)]
pub enum Client {
    /// The Redlock client of this project.
    Ours(Arc<Redlock>),
    /// The crate `rslock`.
    Rslock(Arc<rslock::LockManager>),
}

impl Client {
    pub fn ours(addresses: &[String], tokens: TokenSource) -> anyhow::Result<Client> {
        let nodes =
            addresses.iter().enumerate().map(|(i, address)| connect_redis(&format!("redis-{}", i + 1), address));
        Ok(Client::Ours(Arc::new(Redlock::new(nodes.collect(), Arc::new(BootClock), tokens)?)))
    }

    pub fn rslock(addresses: &[String]) -> Client {
        let urls = addresses.iter().map(|address| format!("redis://{address}/")).collect();
        Client::Rslock(Arc::new(rslock::LockManager::new(urls)))
    }

    /// Acquires for `lease`. Returns how long the acquiring took.
    ///
    /// # Errors
    /// The free lock was not granted.
    pub async fn cycle(&self, key: &str, number: u64, lease: Duration) -> anyhow::Result<Duration> {
        match self {
            Client::Ours(lock) => {
                let (key, owner) = (Key::new(key), Owner::new(format!("{key}-{number}")));
                let began = Instant::now();
                let hold = lock.acquire(&key, owner, lease, &Unwatched).await;
                let took = began.elapsed();
                let hold = hold.map_err(|failure| anyhow!("{key} was not granted: {failure:?}"))?;
                lock.release(&hold, &Unwatched).await.map_err(|failure| anyhow!("not released: {failure:?}"))?;
                Ok(took)
            }
            Client::Rslock(manager) => {
                let began = Instant::now();
                let lock = manager.lock(key.as_bytes(), lease).await;
                let took = began.elapsed();
                manager.unlock(&lock.context("rslock did not get a free lock")?).await;
                Ok(took)
            }
        }
    }
}
