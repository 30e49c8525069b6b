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
    redis_node::Removing,
    servers::ServerAddress,
};

/// The timeout of the requests of one part of a removal. A server that does not answer a part gets no other part in
/// that round, so a round waits once for that server, however many keys there are.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// The longest usual time of a part, by which [`longest`] counts.
const PART_WITHIN: Duration = Duration::from_secs(1);
/// The pause before the keys are removed again. A request of a client that has ended may still be under way.
const STRAGGLERS: Duration = Duration::from_millis(300);
/// The largest number of locks in one part: their requests are under way at the same time.
const AT_ONCE: usize = 500;
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
    /// For each server from which keys could not be removed: the first reason, and the keys.
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

/// The longest time of a removal of so many locks: of two rounds, with the timeout of a server that does not answer in
/// each of them.
pub fn longest(locks: usize) -> Duration {
    let parts = u32::try_from(locks.div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
    (REMOVED_WITHIN + PART_WITHIN * parts) * 2 + STRAGGLERS
}

async fn once(client: &str, servers: &[ServerAddress], namespace: &str, names: &[String]) -> Removed {
    match kind(client) {
        Some(Kind::Redis) => {
            let keys = names.iter().map(|name| Key::within(namespace, name));
            let locks: Vec<[String; 2]> = keys.map(|key| [lock_name(&key), fence_name(&key)]).collect();
            together(servers.iter().map(|server| delete_locks(server, &locks))).await
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

/// Removes the keys of locks by their names, over one connection. A request that the server refuses keeps only its own
/// keys, and a connection that is lost is opened again for the next part. Ends at the first part without an answer, and
/// if there is no connection: a server that does not answer would take the timeout for each part.
async fn delete_locks(server: &ServerAddress, locks: &[[String; 2]]) -> Removed {
    let (mut count, mut left, mut problem) = (0, Vec::new(), None);
    let mut connection = None;
    for (n, part) in locks.chunks(AT_ONCE).enumerate() {
        let asked = within(async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => Removing::open(server).await?,
            };
            let answers = open.delete(part).await;
            connection = answers.iter().all(Option::is_some).then_some(open);
            Ok(answers)
        });
        let answers = match asked.await {
            Ok(answers) => answers,
            Err(why) => {
                problem.get_or_insert(why);
                left.extend(locks[n * AT_ONCE..].iter().flatten().cloned());
                break;
            }
        };
        for (keys, answer) in part.iter().zip(answers) {
            match answer.unwrap_or_else(|| Err("connection lost".to_owned())) {
                Ok(removed) => count += removed,
                Err(why) => {
                    problem.get_or_insert(why);
                    left.extend(keys.iter().cloned());
                }
            }
        }
    }
    let removed = problem.map(|why| Removed::of(server, Err(why), || listed(&left))).unwrap_or_default();
    Removed { count, ..removed }
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

async fn within<T>(removing: impl Future<Output = Result<T, String>>) -> Result<T, String> {
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
    use crate::{
        CLIENTS,
        access::{Access, Secret},
    };

    /// The first request, a DEL of two keys: its length and the keys. None if the request is not complete.
    fn first_request(bytes: &[u8]) -> Option<(usize, [String; 2])> {
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.split_inclusive("\r\n").take(7).collect();
        let key = |n: usize| lines.get(n)?.strip_suffix("\r\n").map(str::to_owned);
        Some((lines.iter().map(|line| line.len()).sum(), [key(4)?, key(6)?]))
    }

    /// A Redis Cluster of one server, which reports the end of each connection. `answer` gets the number of each
    /// request since the start. Without an answer, the server closes the connection.
    async fn redis(
        answer: impl Fn(usize) -> Option<&'static str> + Send + 'static,
    ) -> (ServerAddress, mpsc::UnboundedReceiver<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (ended, connections) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut number = 0;
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut requests = Vec::new();
                'connection: while stream.read_buf(&mut requests).await.is_ok_and(|length| length > 0) {
                    while let Some((length, keys)) = first_request(&requests) {
                        requests.drain(..length);
                        number += 1;
                        let [lock, fence] = keys.each_ref().map(|key| key.split_once('{').map(|(_, slot)| slot));
                        let answer = if lock == fence { answer(number) } else { Some("-CROSSSLOT two slots\r\n") };
                        let Some(answer) = answer else { break 'connection };
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            break 'connection;
                        }
                    }
                }
                drop(stream);
                // The test may have ended.
                let _ = ended.send(());
            }
        });
        (ServerAddress::new("redis-2", address), connections)
    }

    /// Five parts: a lock and a counter for each name.
    fn many_names() -> Vec<String> {
        (0..2_500).map(|k| format!("k{k}")).collect()
    }

    #[tokio::test]
    async fn a_server_that_hangs_keeps_no_key_on_the_others() {
        // The kernel accepts its connections.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hanging = ServerAddress::new("redis-1", listener.local_addr().unwrap().to_string());
        let (other, mut connections) = redis(|_| Some(":2\r\n")).await;
        let (servers, names) = ([hanging, other], many_names());
        let began = time::Instant::now();
        let watching = async {
            let ended = time::timeout(REMOVED_WITHIN / 2, connections.recv()).await;
            ended.expect("no wait for the server that hangs");
            // From here on nothing but the server that hangs is awaited, so the time passes at once.
            time::pause();
        };
        let (removed, ()) = tokio::join!(once("redlock", &servers, "harness-r:", &names), watching);
        assert!(began.elapsed() < REMOVED_WITHIN * 2, "{:?}", began.elapsed());
        let [left] = removed.left.as_slice() else { panic!("{removed:?}") };
        assert!(left.starts_with("redis-1 (no answer within 10s): harness-r:"), "{left}");
        assert!(left.ends_with(" and 4994 more") && removed.count == 5_000, "{removed:?}");
    }

    #[tokio::test]
    async fn a_refused_request_keeps_only_its_own_keys() {
        let refused = |number| Some(if number == 2 { "-ERR max number of clients reached\r\n" } else { ":2\r\n" });
        let (server, mut connections) = redis(refused).await;
        let removed = once("redis", &[server], "harness-r:", &many_names()).await;
        let [left] = removed.left.as_slice() else { panic!("{removed:?}") };
        assert!(left.starts_with("redis-2 (ERR max number of clients reached): harness-r:lock:{k"), "{left}");
        assert!(left.split(", ").count() == 2 && removed.count == 4_998, "{removed:?}");
        connections.recv().await.unwrap();
        assert!(connections.try_recv().is_err(), "one connection for all parts");
    }

    #[tokio::test]
    async fn keys_are_removed_again_after_a_pause() {
        // A request that was still under way sets one key again, or the only key.
        for (answers, count, left) in [
            ([":2\r\n", ":1\r\n"], 3, None),
            ([":0\r\n", ":1\r\n"], 1, None),
            ([":0\r\n", ":0\r\n"], 0, None),
            // The second answer says what is left.
            (["-ERR busy\r\n", ":1\r\n"], 1, None),
            ([":2\r\n", "-ERR busy\r\n"], 2, Some("harness-r:lock:{k0}, harness-r:fence:{k0}")),
        ] {
            let (server, mut connections) = redis(move |number| answers.get(number - 1).copied()).await;
            let (servers, names) = ([server], ["k0".to_owned()]);
            let pausing = async {
                connections.recv().await.unwrap();
                // Nothing but the pause is awaited, so the time passes at once.
                time::pause();
                time::sleep(STRAGGLERS).await;
                time::resume();
            };
            let (removed, ()) = tokio::join!(remove("redis", &servers, "harness-r:", &names), pausing);
            let left = left.map(|keys| format!("redis-2 (ERR busy): {keys}"));
            assert_eq!(removed, Removed { count, left: left.into_iter().collect() }, "{answers:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_member_that_does_not_answer_is_named() {
        let members = ["etcd-1", "etcd-2"].map(|name| ServerAddress::new(name, "127.0.0.1:1"));
        let Removed { count, mut left } = once("etcd", &members, "harness-r:", &[]).await;
        left.sort();
        assert_eq!((count, left.len()), (0, 2), "{left:?}");
        for (message, name) in left.iter().zip(["etcd-1 (", "etcd-2 ("]) {
            assert!(message.starts_with(name), "{message}");
            assert!(message.ends_with(": all keys that begin with harness-r:"), "{message}");
        }
    }

    #[test]
    fn a_message_about_keys_that_are_left_shows_no_secret() {
        let access =
            Access { user: Some(Secret::new("alice")), password: Some(Secret::new("hunter2")), ..Access::default() };
        let server = ServerAddress { access, ..ServerAddress::new("redis-1", "127.0.0.1:1") };
        let removed = Removed::of(&server, Err("NOPERM User alice, hunter2".to_owned()), || "k0".to_owned());
        assert_eq!(removed.left, ["redis-1 (NOPERM User ***, ***): k0"]);
    }

    #[tokio::test]
    async fn a_connection_that_is_lost_keeps_the_keys_of_one_part() {
        let (server, _connections) = redis(|number| (number != AT_ONCE + 200).then_some(":2\r\n")).await;
        let removed = once("redis", &[server], "harness-r:", &many_names()).await;
        let [left] = removed.left.as_slice() else { panic!("{removed:?}") };
        assert!(left.starts_with("redis-2 (connection lost): harness-r:lock:{k"), "{left}");
        assert!((4_000..5_000).contains(&removed.count), "{removed:?}");
    }

    #[test]
    fn a_removal_of_many_locks_has_more_time() {
        // A round trip of 30 ms for each part, and half a minute more.
        let locks = 75_000;
        let parts = u32::try_from(locks / AT_ONCE).unwrap();
        assert!(longest(locks) > Duration::from_millis(30) * parts * 2 + REMOVED_WITHIN * 3);
        assert!(longest(1) < REMOVED_WITHIN * 3);
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
