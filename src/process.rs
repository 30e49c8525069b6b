//! The run's own processes inside containers: the hidden subcommands `worker`, `resource` and `agent`, and `power`
//! and `lock-server`, which become servers.
//!
//! The first three write numbered, stamped events to standard output, read commands from standard input, and tick every
//! 10 ms.
//!
//! Each process runs on **one thread**, where events, ticks and the work take turns. A late tick therefore shows that
//! the work did not run either, and the stamps and numbers of a process have one order without contention for a lock.

mod agent;
mod commands;
mod journal;
mod lock_server;
mod power;
mod resource;
mod stamp;
mod ticks;
mod worker;

use anyhow::Context;
use serde::de::DeserializeOwned;

pub use agent::{AgentCommand, agent};
pub use lock_server::{LockServerArgs, lock_server};
pub use power::{PowerArgs, power};
pub use resource::{PORT as RESOURCE_PORT, ResourceArgs, ResourceCommand, resource};
pub use worker::worker;

/// Reads the one line that a short process gets on its standard input.
pub async fn one_line<T: DeserializeOwned>() -> anyhow::Result<T> {
    commands::Commands::new().next().await.context("reading the task")
}
