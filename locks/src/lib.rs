//! Lock clients over small ports: Redis, Redlock, a queue lock on etcd and on ZooKeeper, etcd's own Lock service,
//! Postgres, DynamoDB, and a lock server of ours.
//!
//! The algorithms are written over `dyn` ports ([`Node`], [`Store`] or [`Table`], [`Clock`], [`Watch`]), so that the
//! same code runs on real servers and under virtual time. Each lock offers the port [`Lock`].
//!
//! | to find | look in |
//! | --- | --- |
//! | the clients by name, and the servers that they need | [`CLIENTS`] |
//! | the capabilities of each client | [`Capability`], [`Client::has`] |
//! | the ports, and the steps that a node must offer | [`Lock`], [`Node`], [`Store`], [`Table`], [`Clock`], [`Watch`] |
//! | the results of the operations | [`Hold`], [`Failure`] |
//! | the validity of a lease | [`validity`] |
//! | the lock on one server, and on several | [`redis`], [`redlock`] |
//! | a lock server in memory; the lock on one, and on several | [`lock_server`], [`memory`], [`lock_manager`] |
//! | one key of a node, and the effect of each step | [`key_state`] |
//! | the lock on a primary with replicas, and its failover | [`redis_replicated`] |
//! | the lock on a store with revisions and leases, and the store's own lock | [`etcd`], [`etcd_server_lock`] |
//! | the lock in a row of a Postgres table | [`postgres`] |
//! | the lock of a Postgres session: an advisory lock, a locked row | [`postgres_advisory`], [`postgres_row`] |
//! | the lock in a record that nothing expires, whose lease the waiting clients measure | [`dynamodb`] |
//! | the lock of a program in any language | [`program`] |
//! | servers that exist already: credentials, TLS, the removal of keys | [`access`], [`own_servers`] |
//! | a key that its holder may acquire again | [`reentrant`] |
//! | repeated attempts | [`Retry`] |
//! | real servers | [`connect_redis`], [`connect_etcd`], [`connect_postgres`], [`connect_memory`] |
//! | a real clock | [`BootClock`] |
//!
//! The feature `dynamodb` connects to DynamoDB; without it, [`Client::missing_feature`] names the feature. The feature
//! `planted` adds the module `planted`: lock clients that are wrong on purpose, to test a checker with.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use std::{sync::Arc, time::Duration};
//! use locks::{BootClock, Key, Lock, Owner, Redlock, TokenSource, Unwatched, connect_redis};
//!
//! let nodes = (1..=5).map(|n| connect_redis(&format!("redis-{n}"), &format!("10.0.0.{n}:6379"))).collect();
//! let lock = Redlock::new(nodes, Arc::new(BootClock), TokenSource::TwoPhase)?;
//! let hold = lock.acquire(&Key::new("k0"), Owner::new("unique"), Duration::from_secs(2), &Unwatched).await?;
//! println!("token {:?}", hold.token);
//! lock.release(&hold, &Unwatched).await?;
//! # Ok(()) }
//! ```

pub mod access;
mod answer;
mod capability;
mod clients;
mod clock;
mod connection;
pub mod dynamodb;
#[cfg(feature = "dynamodb")]
mod dynamodb_table;
pub mod etcd;
mod etcd_keepers;
pub mod etcd_server_lock;
mod etcd_store;
mod hold;
pub mod key_state;
mod leases;
pub mod lock_manager;
pub mod lock_server;
pub mod memory;
mod mode;
mod one_server;
pub mod own_servers;
#[cfg(feature = "planted")]
pub mod planted;
mod ports;
pub mod postgres;
pub mod postgres_advisory;
pub mod postgres_row;
pub mod postgres_session;
pub mod program;
pub mod redis;
mod redis_command;
mod redis_node;
pub mod redis_replicated;
mod redis_script;
mod redis_wire;
pub mod redlock;
pub mod reentrant;
mod replication;
mod retry;
mod round;
mod servers;
mod shared_lease;
mod stream;
pub mod validity;
mod zookeeper;

pub use capability::Capability;
pub use clients::{CLIENTS, Client};
pub use clock::BootClock;
pub use dynamodb::Dynamodb;
pub use etcd::Etcd;
pub use etcd_server_lock::EtcdServerLock;
pub use etcd_store::{connect as connect_etcd, queue as etcd_queue};
pub use hold::{
    Failure, FailureReason, Hold, Key, NodeAnswer, NodeAnswers, NodeName, Outcome, Owner, Released, Renewed, Token,
};
pub use memory::connect as connect_memory;
pub use mode::Mode;
pub use ports::{
    Change, Cleanup, Clock, Condition, LeaseId, Lock, Mark, Node, NodeError, Op, Operation, Record, RecordVersion,
    Reply, Revision, Round, Sent, Step, StepAnswer, Store, StoreAnswer, Table, Unwatched, Watch, replied,
};
pub use postgres::connect as connect_postgres;
pub use program::Program;
pub use redis::Redis;
pub use redis_node::{connect as connect_redis, server_version};
pub use redlock::Redlock;
pub use reentrant::Reentrant;
pub use retry::{Retry, RetryDelay};
pub use servers::{CannotBuild, Connected, Connecting, ServerAddress, Servers, TokenSource};
