//! The server's own figures, asked for on a connection of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest wait for one sample. A server under load answers late.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The kind of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Etcd,
}

/// One sample.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// The memory for data: Redis's `used_memory`, the resident memory of etcd's process.
    pub memory_bytes: u64,
    /// The resident memory of the process.
    pub resident_bytes: u64,
    /// The keys of locks. Redis: keys with an expiry. etcd: all keys.
    pub locks: u64,
    /// The keys that never expire, which are Redis's counters.
    pub counters: u64,
    /// The locks that the server has removed after their lease.
    pub expired: u64,
    /// Only etcd: the size of the database's file, and the part of the file that is in use.
    pub database_bytes: u64,
    pub in_use_bytes: u64,
    /// Only etcd: the current revision.
    pub revision: u64,
    pub version: String,
}

impl Kind {
    /// Asks the server at `address`.
    ///
    /// # Errors
    /// The server does not answer, or without a figure that is needed.
    pub async fn sample(self, address: &str) -> anyhow::Result<Sample> {
        let sample = async {
            match self {
                Kind::Redis => redis(address).await,
                Kind::Etcd => etcd(address).await,
            }
        };
        timeout(ANSWER_TIMEOUT, sample).await.with_context(|| format!("{address} gives no figures"))?
    }
}

async fn ask(address: &str, request: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn redis(address: &str) -> anyhow::Result<Sample> {
    let answer = ask(address, "INFO\r\nQUIT\r\n").await?;
    ensure!(answer.starts_with('$'), "{address}: INFO answers `{}`", answer.lines().next().unwrap_or_default());
    let lines: BTreeMap<&str, &str> = answer.lines().filter_map(|line| line.split_once(':')).collect();
    let number = |name: &str| -> anyhow::Result<u64> {
        let text = lines.get(name).with_context(|| format!("{address}: INFO has no `{name}`"))?;
        text.parse().with_context(|| format!("{address}: INFO {name}:{text}"))
    };
    let of_keyspace = |name: &str| -> anyhow::Result<u64> {
        let Some(keyspace) = lines.get("db0") else { return Ok(0) };
        let found = keyspace.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        found.with_context(|| format!("INFO keyspace has no `{name}`"))?.parse().map_err(anyhow::Error::from)
    };
    let (keys, locks) = (of_keyspace("keys")?, of_keyspace("expires")?);
    Ok(Sample {
        memory_bytes: number("used_memory")?,
        resident_bytes: number("used_memory_rss")?,
        locks,
        counters: keys.saturating_sub(locks),
        expired: number("expired_keys")?,
        version: format!("Redis {}", lines.get("redis_version").unwrap_or(&"?")),
        ..Sample::default()
    })
}

async fn etcd(address: &str) -> anyhow::Result<Sample> {
    let answer = ask(address, "GET /metrics HTTP/1.0\r\n\r\n").await?;
    if !answer.starts_with("HTTP/1.0 200") && !answer.starts_with("HTTP/1.1 200") {
        bail!("{address}: /metrics answers `{}`", answer.lines().next().unwrap_or_default());
    }
    let metrics: BTreeMap<&str, f64> = answer
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let number = |names: &[&str]| -> anyhow::Result<u64> {
        let found = names.iter().find_map(|name| metrics.get(name));
        Ok(*found.with_context(|| format!("{address}: /metrics has none of {names:?}"))? as u64)
    };
    let version = metrics.keys().find_map(|name| name.strip_prefix("etcd_server_version{server_version=\""));
    let resident = number(&["process_resident_memory_bytes"])?;
    Ok(Sample {
        memory_bytes: resident,
        resident_bytes: resident,
        locks: number(&["etcd_debugging_mvcc_keys_total"])?,
        counters: 0,
        expired: number(&["etcd_debugging_lease_revoked_total"])?,
        database_bytes: number(&["etcd_mvcc_db_total_size_in_bytes"])?,
        in_use_bytes: number(&["etcd_mvcc_db_total_size_in_use_in_bytes"])?,
        revision: number(&["etcd_debugging_mvcc_current_revision"])?,
        version: format!("etcd {}", version.and_then(|rest| rest.strip_suffix("\"}")).unwrap_or("?")),
    })
}

/// Returns the memory of this machine that programs can still get.
///
/// # Errors
/// The kernel gives no figure.
pub fn available_bytes() -> anyhow::Result<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let kilobytes = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let kilobytes: u64 = kilobytes.context("/proc/meminfo has no MemAvailable")?.trim().parse()?;
    Ok(kilobytes * 1024)
}
