//! Requests to Redis servers from inside their containers, and the snapshot that a server loads at its start.
//!
//! The servers must run without a password.

#[cfg(test)]
#[path = "../../tests/shared/say.rs"]
mod say;

use std::collections::BTreeMap;

use bytes::Bytes;
use tokio::time::timeout;

use crate::{
    archive,
    error::explain,
    health::run_in,
    running::{Member, Running},
};

/// The role of Redis servers.
pub(crate) const ROLE: &str = "redis";
/// The script that returns all counters: the keys that the clients in `locks` use, with their values.
const COUNTERS: &str = "\
local found = {}
for _, key in ipairs(redis.call('KEYS', 'fence:*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('GET', key)
end
return found";
/// The snapshot file. A server without an append-only file loads it at its start, before the server accepts clients.
const SNAPSHOT: &str = "dump.rdb";
const MODE: u32 = 0o644;

/// The counters by their keys.
pub(crate) type Counters = BTreeMap<String, u64>;

impl Running {
    async fn redis(&self, member: &Member, words: &[&str]) -> Result<String, String> {
        let service = member.server().filter(|service| service.role == ROLE).ok_or("it is no Redis")?;
        let command: Vec<&str> = ["redis-cli"].iter().chain(words).copied().collect();
        let done = timeout(service.health_timeout, run_in(self.engine(), &member.container(), &command)).await;
        let done = done.map_err(|_| format!("no answer within {:?}", service.health_timeout))?;
        let done = done.map_err(|error| explain(&error))?;
        // `redis-cli` prints an error of the server like an answer.
        if done.code != 0 || done.stdout.starts_with("ERR") || done.stdout.starts_with("(error)") {
            return Err(format!("it said: {} {}", done.stdout.trim(), done.stderr.trim()).trim().to_owned());
        }
        Ok(done.stdout)
    }

    /// Returns `aof_pending_bio_fsync` of a Redis with an append-only file; none for all other servers.
    pub(crate) async fn pending_fsyncs_of(&self, member: &Member) -> Result<Option<u32>, String> {
        if member.server().is_none_or(|service| service.role != ROLE) {
            return Ok(None);
        }
        Ok(pending(&self.redis(member, &["INFO", "persistence"]).await?))
    }

    /// Returns all counters of a Redis.
    pub(crate) async fn counters_of(&self, member: &Member) -> Result<Counters, String> {
        counters(&self.redis(member, &["EVAL", COUNTERS, "0"]).await?)
    }

    /// Writes a snapshot with these counters into the stopped container of a Redis, at the path from which the Redis
    /// loads its snapshot. `like` is a running server with the same configuration.
    pub(crate) async fn leave_snapshot(
        &self,
        member: &Member,
        like: &Member,
        counters: &Counters,
    ) -> Result<(), String> {
        let found = self.redis(like, &["CONFIG", "GET", "dir"]).await?;
        let dir = found.lines().nth(1).ok_or_else(|| format!("`CONFIG GET dir` came to `{}`", found.trim()))?;
        let archive = packed(dir, counters).map_err(|error| error.to_string())?;
        // The directory need not be there before the server's first start.
        self.place().upload(&member.container(), "/", archive).await.map_err(|error| explain(&error))
    }
}

/// Packs the snapshot with these counters into an archive for the root directory. `dir` is the server's directory.
fn packed(dir: &str, counters: &Counters) -> std::io::Result<Bytes> {
    let path = format!("{dir}/{SNAPSHOT}");
    archive::of_file(path.trim_start_matches('/'), MODE, &snapshot(counters))
}

/// Reads the number of pending fsyncs from `INFO persistence`. Redis prints the number only with an append-only file.
fn pending(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.trim_end().strip_prefix("aof_pending_bio_fsync:")?.parse().ok())
}

fn counters(printed: &str) -> Result<Counters, String> {
    let lines: Vec<&str> = printed.lines().filter(|line| !line.is_empty()).collect();
    let counter = |pair: &[&str]| match pair {
        [key, value] => Ok(((*key).to_owned(), value.parse().map_err(|_| format!("{key} is `{value}`, no number"))?)),
        other => Err(format!("a key without a value: {other:?}")),
    };
    lines.chunks(2).map(counter).collect()
}

/// Builds a snapshot (RDB, version 9, which every Redis from 5.0 on reads) with these strings in database 0, and no
/// checksum.
/// Format: <https://rdb.fnordig.de/file_format.html>.
fn snapshot(counters: &Counters) -> Vec<u8> {
    const SELECT_DB: u8 = 0xFE;
    const STRING: u8 = 0;
    const END: u8 = 0xFF;
    let mut bytes = b"REDIS0009".to_vec();
    bytes.extend([SELECT_DB, 0]);
    for (key, counter) in counters {
        bytes.push(STRING);
        for text in [key, &counter.to_string()] {
            // The length is always written with 32 bits.
            bytes.push(0x80);
            bytes.extend((text.len() as u32).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
    }
    bytes.push(END);
    bytes.extend([0; 8]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::{say::left_out, *};

    #[test]
    fn only_a_server_with_a_log_counts_fsyncs() {
        assert_eq!(pending("# Persistence\r\naof_enabled:1\r\naof_pending_bio_fsync:2\r\n"), Some(2));
        assert_eq!(pending("# Persistence\r\naof_enabled:0\r\n"), None);
    }

    #[test]
    fn counters_are_read_in_pairs() {
        assert_eq!(counters("fence:{k1}\n26\nfence:{k2}\n3\n").unwrap().into_values().collect::<Vec<_>>(), [26, 3]);
        assert!(counters("\n").unwrap().is_empty());
        assert!(counters("fence:{k1}\n").is_err() && counters("fence:{k1}\nmany\n").is_err());
    }

    #[test]
    fn a_snapshot_goes_to_any_directory_of_a_server() {
        for (dir, path) in [("/data", "data/dump.rdb"), ("/", "dump.rdb")] {
            let archive = packed(dir, &Counters::new()).unwrap();
            let mut archive = tar::Archive::new(&*archive);
            let entry = archive.entries().unwrap().next().unwrap().unwrap();
            assert_eq!(entry.path().unwrap(), std::path::Path::new(path));
        }
    }

    #[test]
    fn a_real_server_loads_the_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SNAPSHOT);
        std::fs::write(&path, snapshot(&Counters::from([("fence:{k1}".into(), 26), ("fence:{k2}".into(), 3)])))
            .unwrap();
        let checked = match std::process::Command::new("redis-check-rdb").arg(&path).output() {
            Ok(checked) => checked,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "redis-check-rdb, which scripts/setup installs: {error}");
                left_out(&format!("no redis-check-rdb here ({error})"));
                return;
            }
        };
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && said.contains("2 keys read"), "{said}");
    }
}
