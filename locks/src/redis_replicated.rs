//! The lock on a Redis primary with replicas and sentinels, which promote a replica when the primary fails.
//!
//! Each operation goes to the server that is the primary as far as this client knows, and is [`Redlock`] on that one
//! node. Replication is asynchronous: the primary grants the lock before its replicas have the key. After a failover
//! the new primary has only the keys and counters that it had received. So two clients may hold the lock, and their
//! tokens may repeat.
//!
//! The client follows Redis' guidelines for clients of Sentinel (redis.io, "Guidelines for Redis clients with support
//! for Redis Sentinel"). It asks the sentinels in turn for the primary, and asks the server that a sentinel names for
//! its `ROLE`. The first server that calls itself a primary counts. Otherwise the client asks the next sentinel: a
//! sentinel that is cut off from the others names an old primary. A sentinel that answers comes first the next time.
//! The client asks again when an operation had no answer or was not done, and from time to time.
//!
//! # WAIT
//!
//! The variant with `WAIT` sends `WAIT 1` after each grant and each renewal, and counts the answer only if a replica
//! has acknowledged the write in time. Otherwise the result is indeterminate, and the client undoes the attempt. That
//! replica need not be the one that is promoted, and it may forget what it acknowledged.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{Cmd, FromRedisValue, Value};
use tokio::{net::lookup_host, time};

use crate::{
    access::Access,
    connection::{self, Answer, Driver, Protocol},
    hold::{Failure, FailureReason, Hold, Key, Owner, Released, Renewed},
    ports::{Cleanup, Clock, Lock, NodeError, Operation, Reply, Step, StepAnswer, Watch},
    redis::Redis,
    redis_node::{self, RedisProtocol},
    redis_wire::Wire,
    redlock::Redlock,
    replication::Replication,
    servers::{CannotBuild, Connected, Connecting, ServerAddress, Servers, TokenSource, ask_versions},
    stream::{self, Stream, host},
    validity,
};

/// The port of the sentinel beside each server.
const SENTINEL_PORT: u16 = 26379;

/// The name under which the sentinels know the primary and its replicas: the name in Redis' example configuration.
const PRIMARY_NAME: &str = "mymaster";

/// The timeout of one question to a sentinel, a server or a resolver of names.
const ASK_TIMEOUT: Duration = Duration::from_millis(200);

/// The time after which the client asks for the primary again although nothing failed. It begins after the
/// [`LOOK_PAUSE`].
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The least time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// The time within which a process must find the primary when it starts.
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// The number of replicas that must acknowledge a grant.
const REPLICAS: u32 = 1;

/// The Redis protocol with a `WAIT` after each grant and each renewal.
struct WaitProtocol;

impl Protocol for WaitProtocol {
    type Session = Wire;

    async fn open(stream: Stream, access: &Access) -> Result<(Wire, Driver), String> {
        RedisProtocol::open(stream, access).await
    }

    /// `WAIT` counts the replicas that have the writes of its own connection. It blocks that connection, so later
    /// requests wait too.
    fn request(session: &Wire, step: Step) -> Answer {
        let lease = match step {
            Step::Acquire(_, _, lease) | Step::AcquireUncounted(_, _, lease) | Step::Extend(_, _, lease) => Some(lease),
            _ => None,
        };
        let (answer, session) = (RedisProtocol::request(session, step), session.clone());
        Box::pin(async move {
            let answer = answer.await?;
            match lease.filter(|_| answer != StepAnswer::Refused) {
                Some(lease) => acknowledged(session, wait_timeout(lease)).await.map(|()| answer),
                None => Ok(answer),
            }
        })
    }

    async fn version(stream: Stream, access: &Access) -> Result<String, String> {
        RedisProtocol::version(stream, access).await
    }
}

/// The timeout of a `WAIT`: half of the time for which the lock waits for its answer.
fn wait_timeout(lease: Duration) -> Duration {
    validity::node_timeout(lease) / 2
}

/// Waits until enough replicas have acknowledged the connection's writes.
async fn acknowledged(session: Wire, timeout: Duration) -> Result<(), NodeError> {
    let mut command = redis::cmd("WAIT");
    command.arg(REPLICAS).arg(validity::whole_ms(timeout));
    match session.ask(command).await {
        Value::Int(replicas) if replicas >= i64::from(REPLICAS) => Ok(()),
        Value::Int(replicas) => Err(NodeError::Indeterminate(format!(
            "WAIT: {replicas} of {REPLICAS} replicas acknowledged within {timeout:?}"
        ))),
        other => Err(NodeError::Indeterminate(format!("WAIT: an answer that makes no sense: {other:?}"))),
    }
}

/// Connects to all servers, and follows the primary.
pub(crate) fn connect(
    _client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    connect_by::<RedisProtocol>(servers, connecting, SENTINEL_PORT)
}

/// The same for the variant with `WAIT`.
pub(crate) fn connect_waiting(
    _client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    connect_by::<WaitProtocol>(servers, connecting, SENTINEL_PORT)
}

fn connect_by<P: Protocol>(
    servers: Vec<ServerAddress>,
    connecting: Connecting,
    sentinel_port: u16,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let versions = ask_versions(&servers, connecting, connection::server_version::<RedisProtocol>).await;
        let nodes = servers.iter().map(|server| connection::connect::<P>(server.clone())).collect();
        let mut sentinels = Sentinels::new(servers, connecting.process, sentinel_port);
        // A process that starts in the middle of a failover begins with any server, and looks again soon.
        let first = time::timeout(FOUND_WITHIN, async {
            loop {
                if let Some(primary) = sentinels.primary().await {
                    return primary;
                }
                time::sleep(LOOK_PAUSE).await;
            }
        });
        let replication = Arc::new(Replication::new(nodes, first.await.unwrap_or(0)));
        tokio::spawn(follow(sentinels, Arc::downgrade(&replication)));
        Ok(Connected { servers: Servers::Replicated(replication), versions })
    })
}

/// Asks for the primary until the lock is dropped.
async fn follow(mut sentinels: Sentinels, replication: Weak<Replication>) {
    loop {
        let found = sentinels.primary().await;
        let Some(replication) = replication.upgrade() else { return };
        if let Some(primary) = found {
            replication.follow(primary);
        }
        time::sleep(LOOK_PAUSE).await;
        drop(time::timeout(LOOK_EVERY, replication.is_asked_to_look()).await);
    }
}

/// The sentinels, in the order in which this client asks them.
struct Sentinels {
    servers: Vec<ServerAddress>,
    order: Vec<usize>,
    /// The port of every sentinel.
    port: u16,
}

impl Sentinels {
    /// Each process begins with another sentinel.
    fn new(servers: Vec<ServerAddress>, process: usize, port: u16) -> Self {
        let mut order: Vec<usize> = (0..servers.len()).collect();
        order.rotate_left(process % servers.len().max(1));
        Self { servers, order, port }
    }

    /// Finds the primary: a sentinel names it, and its own role confirms it. Asks each sentinel at most once, and each
    /// server too.
    async fn primary(&mut self) -> Option<usize> {
        let mut no_primaries = Vec::new();
        for place in 0..self.order.len() {
            let host = host(&self.servers[self.order[place]].address);
            let mut question = redis::cmd("SENTINEL");
            question.arg("get-master-addr-by-name").arg(PRIMARY_NAME);
            let named = ask::<Option<(String, u16)>>(&format!("{host}:{}", self.port), &question).await;
            let Some(Some((host, port))) = named else { continue };
            let sentinel = self.order.remove(place);
            self.order.insert(0, sentinel);
            let Some(server) = self.server_at(&host, port).await else { continue };
            if no_primaries.contains(&server) {
                continue;
            }
            if is_primary(&self.servers[server].address).await {
                return Some(server);
            }
            no_primaries.push(server);
        }
        None
    }

    /// Finds the server of this address. Sentinels name a server by its IP address, unless they are told otherwise.
    async fn server_at(&self, host: &str, port: u16) -> Option<usize> {
        let named = format!("{host}:{port}");
        if let Some(found) = self.servers.iter().position(|server| server.address == named) {
            return Some(found);
        }
        let named: SocketAddr = named.parse().ok()?;
        for (place, server) in self.servers.iter().enumerate() {
            if is_one_of(named, lookup_host(&server.address)).await {
                return Some(place);
            }
        }
        None
    }
}

/// Returns whether a name has this address. The name of a server that is down may have none, and a resolver of Docker
/// then asks the resolvers of its host, which may take many seconds.
async fn is_one_of<A>(address: SocketAddr, looking: impl Future<Output = io::Result<A>>) -> bool
where
    A: Iterator<Item = SocketAddr>,
{
    let known = time::timeout(ASK_TIMEOUT, looking).await;
    known.is_ok_and(|known| known.is_ok_and(|mut known| known.any(|other| other == address)))
}

async fn is_primary(address: &str) -> bool {
    let role = ask::<Vec<Value>>(address, &redis::cmd("ROLE")).await;
    role.and_then(|role| String::from_redis_value(role.into_iter().next()?).ok()).is_some_and(|role| role == "master")
}

/// Asks one question on a connection of its own.
async fn ask<T: FromRedisValue>(address: &str, question: &Cmd) -> Option<T> {
    let asked = time::timeout(ASK_TIMEOUT, async {
        let (wire, driver) = RedisProtocol::open(Box::new(stream::tcp(address).await?), &Access::default()).await?;
        let answer = async { redis_node::read::<T>(wire.ask(question.clone()).await) };
        connection::driven(driver, answer).await
    });
    match asked.await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            tracing::debug!(address, error, "not asked for the primary");
            None
        }
        Err(_) => None,
    }
}

/// The lock on the primary.
struct RedisReplicated {
    servers: Arc<Replication>,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
}

/// Builds the lock over a primary and its replicas.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check("redis-replicated", Redis::TOKENS)?;
    match servers {
        Servers::Replicated(servers) => Ok(Arc::new(RedisReplicated { servers, tokens, clock })),
        _ => Err(CannotBuild::Servers { lock: "redis-replicated", needs: "a primary with replicas and sentinels" }),
    }
}

impl RedisReplicated {
    fn on_primary(&self) -> Redlock {
        Redlock::on_one(self.servers.primary(), self.clock.clone(), self.tokens)
    }

    /// Asks for the primary after a failure that may be due to a failover. A refusal is not.
    fn heed<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if result.as_ref().is_err_and(|failure| matches!(failure.reason, FailureReason::Error(_))) {
            self.servers.look();
        }
        result
    }
}

impl Lock for RedisReplicated {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        let primary = self.on_primary();
        Box::pin(async move { self.heed(primary.acquire(key, owner, lease, watch).await) })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        let primary = self.on_primary();
        Box::pin(async move { self.heed(primary.renew(hold, lease, watch).await) })
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        let primary = self.on_primary();
        Box::pin(async move { self.heed(primary.release(hold, watch).await) })
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        let primary = self.on_primary();
        Box::pin(async move { primary.cancel(key, owner, lease, watch).await })
    }
}

#[cfg(test)]
mod tests;
