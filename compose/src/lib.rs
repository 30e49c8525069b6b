//! The only code that knows Docker: Compose files, images, containers, networks.
//!
//! [`up`] starts the cluster of one run (servers from a [`ComposeFile`], workers, resource, agent) on its own network.
//! It returns a [`Running`], which is the [`nemesis::Cluster`] on real containers, and a queue of all output of our own
//! processes. Every object carries the run's label from the moment it is created, so that [`take_down`] and [`sweep`]
//! find it in any case.
//!
//! The controller talks to containers only through the engine's API (attach, archive upload, exec, inspect). No port is
//! published and no route to a container is needed, so a remote `DOCKER_HOST` works like a local one.

mod ability;
mod again;
mod archive;
mod binary;
mod bring_up;
mod changes;
mod container;
mod docker_cluster;
mod engine;
mod error;
#[cfg(test)]
mod fake_engine;
mod faults;
mod file;
mod health;
mod image;
mod leader;
mod lines;
mod looks;
mod marker;
mod names;
mod network;
mod own_server;
mod power;
mod power_loss;
mod process;
mod progress;
mod reach;
mod redis;
mod running;
mod socket;
mod steps;
mod strip;
mod sweep;
mod task;
mod user_file;
mod watch;

pub use archive::File;
pub use binary::BINARY;
pub use bring_up::{Spec, images, up, up_or_leave};
pub use changes::{Change, Unplanned};
pub use engine::Engine;
pub use error::Error;
pub use file::{BUILTIN, ComposeFile, FileError, LeaderTest, STORE_ROLE, Service, store::ResourceStore};
pub use image::remove_dead_builds;
pub use own_server::OwnServer;
pub use process::{Output, What};
pub use progress::Progress;
pub use reach::{AgentPort, DockerCluster};
pub use running::Running;
pub use sweep::{STARTING_S, Swept, YOUNG_S, clean_kept, sweep, take_down};
pub use task::{Task, TaskEnd, run_last};
pub use user_file::{TEXT_MAX, read_file, read_text};
pub use watch::Watch;
