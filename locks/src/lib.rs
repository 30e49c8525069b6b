//! Lock clients over small ports: Redis, Redlock and the queue lock of etcd.
//!
//! The algorithms are written over `dyn` ports ([`Node`] or [`Store`], [`Clock`], [`Watch`]), so that the same code runs
//! on real servers and under virtual time. What a caller sees is one more, [`Lock`].
//!
//! | to find | look in |
//! | --- | --- |
//! | the ports and the steps that a node must offer | [`ports`] |
//! | what an operation gives back | [`hold`] |
//! | how long a lease may be believed | [`validity`] |
//! | the lock on one server, on several | [`redis`], [`redlock`] |
//! | the lock on a store with revisions and leases; the one that the store offers itself | [`etcd`], [`etcd_server_lock`] |
//! | trying again | [`retry`] |
//! | a real server, a real store, a real clock | [`node`], [`store`], [`clock`] |
//! | locks that are wrong on purpose | [`mod@buggy`], [`etcd::BUGGY`] |
//!
//! ```no_run
//! # async fn demo() -> Result<(), locks::Failure> {
//! use std::{sync::Arc, time::Duration};
//! use locks::{BootClock, Key, Lock, Owner, Redlock, Tokens, Unwatched, connect};
//!
//! let nodes = (1..=5).map(|n| connect(&format!("redis-{n}"), &format!("10.0.0.{n}:6379"))).collect();
//! let lock = Redlock::new(nodes, Arc::new(BootClock), Tokens::TwoPhase);
//! let hold = lock.acquire(&Key::new("k0"), Owner::new("unique"), Duration::from_secs(2), &Unwatched).await?;
//! println!("token {:?}", hold.token);
//! lock.release(&hold, &Unwatched).await?;
//! # Ok(()) }
//! ```

pub mod buggy;
pub mod clock;
pub mod etcd;
mod etcd_buggy;
pub mod etcd_server_lock;
pub mod hold;
mod leases;
pub mod node;
pub mod ports;
pub mod redis;
pub mod redlock;
pub mod retry;
mod round;
mod script;
pub mod store;
pub mod validity;

pub use buggy::{BUGGY, Bug, NotBuggy, buggy};
pub use clock::BootClock;
pub use etcd::Etcd;
pub use etcd_server_lock::EtcdServerLock;
pub use hold::{Failure, Hold, Key, NodeAnswer, NodeAnswers, NodeName, Outcome, Owner, Released, Renewed, Token, Why};
pub use node::{connect, server_version};
pub use ports::{
    Answer, Clock, Doing, LeaseId, Lock, Node, NodeError, Op, Reply, Revision, Round, Seen, Step, Store, Undoing,
    Unwatched, Watch,
};
pub use redis::Redis;
pub use redlock::{Redlock, Tokens};
pub use retry::{Retry, RetryDelay};
