//! The clients that are measured: cycles of acquire and release, and the wire alone.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use locks::{BootClock, Key, Lock, Owner, Redlock, TokenSource, Unwatched, connect_redis};

/// The lease of every timed attempt. No lease ends during a measurement.
pub const LEASE: Duration = Duration::from_secs(10);

/// Raw sockets to all servers, without a lock client: the least that exchanges with all servers cost.
pub struct Raw {
    streams: Vec<TcpStream>,
    /// The number of bytes of earlier answers that each server still has to send.
    owed: Vec<usize>,
}

const PONG: &str = "+PONG\r\n";
const OK: &str = "+OK\r\n";
const DONE: &str = ":1\r\n";
const KEY: &str = "lock:{raw}";
const COUNTER: &str = "fence:{raw}";
/// Scripts that call what the scripts of the client call. The first one sets the counter to the third argument, so that
/// its answer has one length.
const ACQUIRE: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then redis.call('SET', KEYS[2], ARGV[3]) return 1 end
return 0";
const WRITE_BACK: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1";
const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])";

impl Raw {
    pub fn connect(addresses: &[String]) -> anyhow::Result<Raw> {
        let connected = addresses.iter().map(|address| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        Ok(Raw { streams: connected.collect::<anyhow::Result<_>>()?, owed: vec![0; addresses.len()] })
    }

    /// Sends a PING to all servers, and reads all answers. Returns how long it took.
    pub fn pings(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.send(&packed(&["PING"]), PONG)?;
        self.read(self.streams.len(), PONG)?;
        Ok(began.elapsed())
    }

    /// Sends what a Redlock client without tokens sends in one cycle, and goes on when a majority has answered: sets a
    /// key on all servers, then removes the key. Returns how long the setting took. As with such a client, the last
    /// servers still remove the last key while the next one is set.
    pub fn sets(&mut self, number: u64) -> anyhow::Result<Duration> {
        let (owner, lease_ms) = (format!("raw-{number}"), LEASE.as_millis().to_string());
        let began = Instant::now();
        self.ask(&["SET", KEY, &owner, "NX", "PX", &lease_ms], OK)?;
        let took = began.elapsed();
        self.release(&owner, OK)?;
        Ok(took)
    }

    /// The same with two-phase tokens: a counter goes up with the setting, and a second round writes it back.
    pub fn counted_sets(&mut self, number: u64) -> anyhow::Result<Duration> {
        let (owner, lease_ms) = (format!("raw-{number}"), LEASE.as_millis().to_string());
        let (counter, began) = (number.to_string(), Instant::now());
        self.ask(&["EVAL", ACQUIRE, "2", KEY, COUNTER, &owner, &lease_ms, &counter], DONE)?;
        self.ask(&["EVAL", WRITE_BACK, "2", KEY, COUNTER, &owner, &counter], DONE)?;
        let took = began.elapsed();
        self.release(&owner, DONE)?;
        Ok(took)
    }

    fn release(&mut self, owner: &str, last: &str) -> anyhow::Result<()> {
        self.read(self.streams.len(), last)?;
        self.ask(&["EVAL", RELEASE, "1", KEY, owner], DONE)
    }

    /// Sends a command to all servers, and waits for the answers of a majority.
    fn ask(&mut self, words: &[&str], answer: &str) -> anyhow::Result<()> {
        self.send(&packed(words), answer)?;
        self.read(self.streams.len() / 2 + 1, answer)
    }

    fn send(&mut self, request: &[u8], answer: &str) -> anyhow::Result<()> {
        for (stream, owed) in self.streams.iter_mut().zip(&mut self.owed) {
            stream.write_all(request)?;
            *owed += answer.len();
        }
        Ok(())
    }

    /// Reads what the first `servers` owe, of which `answer` is the last.
    fn read(&mut self, servers: usize, answer: &str) -> anyhow::Result<()> {
        for (stream, owed) in self.streams.iter_mut().zip(&mut self.owed).take(servers) {
            let mut bytes = [0; 64];
            let bytes = &mut bytes[..std::mem::take(owed)];
            if bytes.is_empty() {
                continue;
            }
            stream.read_exact(bytes)?;
            ensure!(bytes.ends_with(answer.as_bytes()), "expected {answer:?}, got {:?}", bytes.escape_ascii());
        }
        Ok(())
    }
}

/// A command as bytes of the Redis protocol.
fn packed(words: &[&str]) -> Vec<u8> {
    let arguments: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{arguments}", words.len()).into_bytes()
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
