//! The lock clients by name: one row a client.
//!
//! A new client is one file with its algorithm and its `build`, and one row in [`CLIENTS`]. If its servers are of a new
//! kind, the file also has a `connect`, and [`Servers`] a variant.

use std::sync::Arc;

#[cfg(feature = "dynamodb")]
use crate::dynamodb_table::connect as connect_dynamodb;
use crate::{
    capability::Capability,
    connection::connect_all,
    dynamodb::{self, Dynamodb},
    etcd::{self, Etcd},
    etcd_server_lock::{self, EtcdServerLock},
    etcd_store, lock_manager,
    memory::{self, MemoryProtocol},
    ports::{Clock, Lock, NodeError, Reply},
    postgres::{self, PostgresProtocol},
    postgres_advisory::Advisory,
    postgres_row::Row,
    postgres_session::{self, SessionLock},
    redis::{self, Redis},
    redis_node::RedisProtocol,
    redis_replicated,
    redlock::{self, Redlock},
    servers::{CannotBuild, Connected, Connecting, ServerAddress, Servers, TokenSource},
    zookeeper,
};

/// A lock client that can be asked for by its name.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// The client's name.
    pub name: &'static str,
    /// The client's token sources; the first is the default.
    pub tokens: &'static [TokenSource],
    /// The client's capabilities.
    pub capabilities: &'static [Capability],
    /// Connects to the client's real servers.
    pub connect: Connect,
    /// Builds the lock over its servers.
    pub build: Build,
}

// `Reentrant` makes every lock reentrant, in the memory of its client.
/// The capabilities of a lock that only acquires, renews and releases.
const PLAIN: &[Capability] = &[Capability::Reentrant];
/// The capabilities of a lock with a queue.
const QUEUE: &[Capability] = &[Capability::FairQueue, Capability::Reentrant];
/// The capabilities of the lock in `etcd`, over any store.
const OF_STORE: &[Capability] = &[
    Capability::FairQueue,
    Capability::Reentrant,
    Capability::ReadWrite,
    Capability::Sessions,
    Capability::Hierarchical,
];

/// All clients.
pub const CLIENTS: &[Client] = &[
    Client {
        name: "redis",
        tokens: Redis::TOKENS,
        capabilities: PLAIN,
        connect: connect_all::<RedisProtocol>,
        build: redis::build,
    },
    Client {
        name: "redis-replicated",
        tokens: Redis::TOKENS,
        capabilities: PLAIN,
        connect: redis_replicated::connect,
        build: redis_replicated::build,
    },
    Client {
        name: "redis-replicated-wait",
        tokens: Redis::TOKENS,
        capabilities: PLAIN,
        connect: redis_replicated::connect_waiting,
        build: redis_replicated::build,
    },
    Client {
        name: "redlock",
        tokens: Redlock::TOKENS,
        capabilities: PLAIN,
        connect: connect_all::<RedisProtocol>,
        build: redlock::build,
    },
    Client {
        name: "etcd",
        tokens: Etcd::TOKENS,
        capabilities: OF_STORE,
        connect: etcd_store::connect_members,
        build: etcd::build,
    },
    Client {
        name: "etcd-server-lock",
        tokens: EtcdServerLock::TOKENS,
        capabilities: QUEUE,
        connect: etcd_store::connect_members,
        build: etcd_server_lock::build,
    },
    // The algorithm of `etcd`, over another store.
    Client {
        name: "zookeeper",
        tokens: Etcd::TOKENS,
        capabilities: OF_STORE,
        connect: zookeeper::connect,
        build: etcd::build,
    },
    Client {
        name: "zookeeper-herd",
        tokens: Etcd::TOKENS,
        capabilities: OF_STORE,
        connect: zookeeper::connect_herd,
        build: etcd::build,
    },
    Client {
        name: "postgres",
        tokens: postgres::TOKENS,
        capabilities: PLAIN,
        connect: connect_all::<PostgresProtocol>,
        build: postgres::build,
    },
    of_session::<Advisory>(),
    of_session::<Row>(),
    Client {
        name: "dynamodb",
        tokens: Dynamodb::TOKENS,
        capabilities: PLAIN,
        connect: connect_dynamodb,
        build: dynamodb::build,
    },
    Client {
        name: "memory",
        tokens: memory::TOKENS,
        capabilities: PLAIN,
        connect: connect_all::<MemoryProtocol>,
        build: memory::build,
    },
    Client {
        name: "lock-manager",
        tokens: lock_manager::TOKENS,
        capabilities: PLAIN,
        connect: connect_all::<MemoryProtocol>,
        build: lock_manager::build,
    },
];

/// The client of a lock of a Postgres session.
const fn of_session<L: SessionLock>() -> Client {
    Client {
        name: L::NAME,
        tokens: L::TOKENS,
        capabilities: L::CAPABILITIES,
        connect: postgres_session::connect,
        build: postgres_session::build::<L>,
    }
}

#[cfg(not(feature = "dynamodb"))]
fn connect_dynamodb(_: &'static str, _: Vec<ServerAddress>, _: Connecting) -> Reply<Result<Connected, NodeError>> {
    let why = "this build has no connection to DynamoDB; build it with `--features dynamodb`";
    Box::pin(std::future::ready(Err(NodeError::Definite(why.into()))))
}

/// The clients whose connection this build leaves out, each with the cargo feature that brings it.
const LEFT_OUT: &[(&str, &str)] = if cfg!(feature = "dynamodb") { &[] } else { &[("dynamodb", "dynamodb")] };

/// Connects the client of this name to real servers in the background, and asks each server for its version. Connecting
/// needs a Tokio runtime.
pub type Connect = fn(&'static str, Vec<ServerAddress>, Connecting) -> Reply<Result<Connected, NodeError>>;

/// Builds a lock over its servers, with tokens from this source.
pub type Build = fn(Servers, TokenSource, Arc<dyn Clock>) -> Result<Arc<dyn Lock>, CannotBuild>;

impl Client {
    /// Finds the client of this name.
    pub fn named(name: &str) -> Option<&'static Client> {
        CLIENTS.iter().find(|client| client.name == name)
    }

    /// Returns whether the client has this capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// The cargo feature without which this build cannot connect the client to its servers; none if nothing is missing.
    pub fn missing_feature(&self) -> Option<&'static str> {
        LEFT_OUT.iter().find(|(name, _)| *name == self.name).map(|(_, feature)| *feature)
    }
}
