//! The only code that knows Docker: Compose files, images, containers, networks.
//!
//! [`up`] brings up one run's cluster (servers from a [`ComposeFile`], workers, resource, agent) on a network of
//! its own and hands back a [`Running`], which is the [`nemesis::Cluster`] on real containers, and the stream of
//! everything that our own processes say. Everything carries the run's label from the moment it is created, so
//! that [`take_down`] and [`sweep`] find it whatever happened to the controller.
//!
//! The controller talks to containers only through the engine's API (attach, archive upload, exec, inspect): no
//! port is published and no route to a container is needed, so a remote `DOCKER_HOST` works like a local one.

mod ability;
mod bring_up;
mod container;
mod engine;
mod error;
mod faults;
mod file;
mod health;
mod image;
mod leader;
mod lines;
mod network;
mod process;
mod reach;
mod redis;
mod running;
mod sweep;

pub use bring_up::{Spec, up};
pub use engine::Engine;
pub use error::Error;
pub use file::{BUILTIN, ComposeFile, FileError, Service};
pub use process::{Output, What};
pub use reach::{Hand, Reached};
pub use running::Running;
pub use sweep::{Swept, clean_kept, sweep, take_down};

/// Receives progress, one line of text a call: what takes long, and what it is waiting for.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);
