//! Servers that exist already: the form of their addresses, and the removal of a run's keys.
//!
//! Every key of a run begins with the run's own namespace, such as `harness-20261125t140000-redis-…:`. In Postgres, the
//! run's tables are in a schema of that name. So a removal names the keys exactly: it reads and lists no
//! others.

use std::time::Duration;

use etcd_client::DeleteOptions;
use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::time;

use crate::{
    access::{Database, Schemes},
    etcd_store,
    hold::Key,
    postgres,
    redis_command::{fence_name, lock_name},
    redis_node,
    servers::ServerAddress,
};

/// The timeout of each request of a removal. A round takes no longer for a server that does not answer, however many
/// keys there are.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// The pause before the keys are removed again. A request of a client that has ended may still be under way.
const STRAGGLERS: Duration = Duration::from_millis(300);
/// The largest number of keys in one request.
const AT_ONCE: usize = 1_000;
/// The longest name of an object in Postgres, in bytes.
const SCHEMA_MAX: usize = 63;

/// A kind of servers that a run can use although it did not start them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Redis,
    Etcd,
    Postgres,
}

/// The kinds of servers, by client. A client without a row runs only on servers that its run starts.
const KINDS: &[(&str, Kind)] = &[
    ("redis", Kind::Redis),
    ("redlock", Kind::Redis),
    ("etcd", Kind::Etcd),
    ("etcd-server-lock", Kind::Etcd),
    ("postgres", Kind::Postgres),
    ("postgres-advisory", Kind::Postgres),
    ("postgres-row", Kind::Postgres),
];

/// The result of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of keys, or of schemas, that are known to be removed.
    pub count: u64,
    /// For each server from which keys could not be removed: the reason, and the keys.
    pub left: Vec<String>,
}

fn kind(client: &str) -> Option<Kind> {
    KINDS.iter().find(|(name, _)| *name == client).map(|(_, kind)| *kind)
}

/// The names of the clients that run against servers that exist already.
pub fn clients() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(name, _)| *name)
}

/// The schemes of the servers of this client; none, if the client runs only on servers that its run starts.
pub fn schemes(client: &str) -> Option<Schemes> {
    Some(match kind(client)? {
        Kind::Redis => Schemes { plain: &["redis"], tls: &["rediss"], database: Database::Number, needs_user: false },
        Kind::Etcd => Schemes { plain: &["http"], tls: &["https"], database: Database::None, needs_user: true },
        Kind::Postgres => {
            Schemes { plain: &["postgres", "postgresql"], tls: &[], database: Database::Name, needs_user: true }
        }
    })
}

/// The schema for a namespace: its last characters, as far as a name may be long.
pub fn schema(client: &str, namespace: &str) -> Option<String> {
    (kind(client)? == Kind::Postgres).then(|| {
        let name = namespace.trim_end_matches(':');
        name[name.len().saturating_sub(SCHEMA_MAX)..].to_owned()
    })
}

/// Removes the keys of a namespace from all servers: the locks `names`, with everything that the client of this name
/// keeps beside them.
pub async fn remove(client: &str, servers: &[ServerAddress], namespace: &str, names: &[String]) -> Removed {
    let mut removed = once(client, servers, namespace, names).await;
    time::sleep(STRAGGLERS).await;
    let again = once(client, servers, namespace, names).await;
    removed.count += again.count;
    Removed { left: again.left, ..removed }
}

async fn once(client: &str, servers: &[ServerAddress], namespace: &str, names: &[String]) -> Removed {
    match kind(client) {
        Some(Kind::Redis) => {
            let keys: Vec<Key> = names.iter().map(|name| Key::within(namespace, name)).collect();
            let keys: Vec<String> = keys.iter().flat_map(|key| [lock_name(key), fence_name(key)]).collect();
            together(servers.iter().map(|server| delete_names(server, &keys))).await
        }
        Some(Kind::Etcd) => delete_of_store(servers, namespace).await,
        Some(Kind::Postgres) => {
            together(servers.iter().map(|server| async move {
                let schema = server.access.schema.as_deref().unwrap_or_default();
                let dropped = within(async { postgres::drop_schema(server).await.map(u64::from) }).await;
                Removed::of(server, dropped, || format!("the schema \"{schema}\""))
            }))
            .await
        }
        None => Removed { count: 0, left: vec![format!("{client}: the keys of this client cannot be removed")] },
    }
}

/// Removes from all servers at the same time: a server that does not answer delays no other server.
async fn together(removals: impl Iterator<Item = impl Future<Output = Removed>>) -> Removed {
    let mut all = Removed::default();
    for removed in join_all(removals).await {
        all.count += removed.count;
        all.left.extend(removed.left);
    }
    all
}

/// Removes keys by their names. Ends at the first part that fails, because a server that does not answer would take the
/// timeout for each part.
async fn delete_names(server: &ServerAddress, keys: &[String]) -> Removed {
    let mut count = 0;
    for (n, part) in keys.chunks(AT_ONCE).enumerate() {
        match within(redis_node::delete(server, part)).await {
            Ok(removed) => count += removed,
            failed => return Removed { count, ..Removed::of(server, failed, || listed(&keys[n * AT_ONCE..])) },
        }
    }
    Removed { count, left: Vec::new() }
}

/// Removes the keys with a prefix. The members are one store, so one answer is enough: the first one.
async fn delete_of_store(members: &[ServerAddress], prefix: &str) -> Removed {
    let ask = |member| async move { (member, within(delete_prefix(member, prefix)).await) };
    let mut answers: FuturesUnordered<_> = members.iter().map(ask).collect();
    let mut left = Vec::new();
    while let Some((member, answer)) = answers.next().await {
        let removed = Removed::of(member, answer, || format!("all keys that begin with {prefix}"));
        if removed.left.is_empty() {
            return removed;
        }
        left.extend(removed.left);
    }
    Removed { count: 0, left }
}

impl Removed {
    /// The result of one server: the number of removed keys, or the reason why `keys` are left.
    fn of(server: &ServerAddress, done: Result<u64, String>, keys: impl FnOnce() -> String) -> Removed {
        match done {
            Ok(count) => Removed { count, left: Vec::new() },
            Err(why) => {
                let why = server.access.without_secrets(why);
                Removed { count: 0, left: vec![format!("{} ({why}): {}", server.name, keys())] }
            }
        }
    }
}

async fn within(removing: impl Future<Output = Result<u64, String>>) -> Result<u64, String> {
    let done = time::timeout(REMOVED_WITHIN, removing).await;
    done.unwrap_or_else(|_| Err(format!("no answer within {REMOVED_WITHIN:?}")))
}

async fn delete_prefix(server: &ServerAddress, prefix: &str) -> Result<u64, String> {
    let mut client = etcd_store::client(server).await.map_err(|error| error.to_string())?;
    let deleted = client.delete(prefix, Some(DeleteOptions::new().with_prefix())).await;
    Ok(deleted.map_err(|error| error.to_string())?.deleted().unsigned_abs())
}

/// The first keys, and the number of the others.
fn listed(keys: &[String]) -> String {
    let (first, others) = keys.split_at(keys.len().min(6));
    let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        sync::mpsc,
    };

    use super::*;
    use crate::CLIENTS;

    /// Returns whether a request of the Redis protocol, a list of words, is complete.
    fn is_whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request);
        let words = text.lines().next().and_then(|line| line.strip_prefix('*')).and_then(|n| n.parse::<usize>().ok());
        words.is_some_and(|words| text.matches("\r\n").count() > 2 * words)
    }

    /// A Redis server that removes seven keys by each request, and reports the end of each connection.
    async fn answering(ended: mpsc::UnboundedSender<()>) -> ServerAddress {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !is_whole(&request) {
                    assert!(stream.read_buf(&mut request).await.unwrap() > 0);
                }
                stream.write_all(b":7\r\n").await.unwrap();
                assert_eq!(stream.read_buf(&mut request).await.unwrap(), 0);
                ended.send(()).unwrap();
            }
        });
        ServerAddress::new("redis-2", address)
    }

    #[tokio::test]
    async fn a_server_that_hangs_keeps_no_key_on_the_others() {
        // The kernel accepts its connections.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (ended, mut removals) = mpsc::unbounded_channel();
        let hanging = ServerAddress::new("redis-1", listener.local_addr().unwrap().to_string());
        let servers = [hanging, answering(ended).await];
        // Five parts: a lock and a counter for each name.
        let names: Vec<String> = (0..2_500).map(|k| format!("k{k}")).collect();
        let began = time::Instant::now();
        let watching = async {
            for _ in 0..5 {
                time::timeout(REMOVED_WITHIN / 2, removals.recv()).await.expect("no wait for the server that hangs");
            }
            // From here on nothing but the server that hangs is awaited, so the time passes at once.
            time::pause();
        };
        let (removed, ()) = tokio::join!(once("redlock", &servers, "harness-r:", &names), watching);
        assert!(began.elapsed() < REMOVED_WITHIN * 2, "{:?}", began.elapsed());
        let [left] = removed.left.as_slice() else { panic!("{removed:?}") };
        assert!(left.starts_with("redis-1 (no answer within 10s): harness-r:"), "{left}");
        assert!(left.ends_with(" and 4994 more") && removed.count == 35, "{removed:?}");
    }

    #[test]
    fn every_row_is_a_client() {
        for name in clients() {
            assert!(CLIENTS.iter().any(|client| client.name == name), "{name}");
            assert!(schemes(name).is_some());
        }
        assert!(schemes("zookeeper").is_none(), "it runs only on servers that its run starts");
    }

    #[test]
    fn a_schema_keeps_the_random_end_of_its_namespace() {
        assert_eq!(schema("redis", "harness-r:"), None);
        assert_eq!(schema("postgres", "harness-r:").as_deref(), Some("harness-r"));
        let long = format!("harness-{}-1a2b3c4d:", "x".repeat(60));
        let name = schema("postgres-advisory", &long).unwrap();
        assert!(name.len() == 63 && name.ends_with("-1a2b3c4d"), "{name}");
    }

    #[test]
    fn a_message_names_some_of_many_keys() {
        let keys: Vec<String> = (0..8).map(|k| format!("k{k}")).collect();
        assert_eq!(listed(&keys), "k0, k1, k2, k3, k4, k5 and 2 more");
        assert_eq!(listed(&keys[..2]), "k0, k1");
    }
}
