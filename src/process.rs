//! What every process of ours has in common: stamps, numbered events on standard output, ticks, watermarks, clock samples;
//! and the three hidden subcommands that are wrapped in it.
//!
//! Each process runs on **one thread**: events, ticks and the work itself take turns. So a tick that is late says that the work
//! could not run either, and stamps and numbers of a process have one order without a lock being fought over.

mod agent;
mod journal;
mod orders;
mod resource;
mod stamp;
mod ticks;
mod worker;

pub use agent::{AgentCommand, agent};
pub use resource::{PORT as RESOURCE_PORT, ResourceArgs, ResourceCommand, resource};
pub use worker::worker;
