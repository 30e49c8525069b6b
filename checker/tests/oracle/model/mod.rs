//! A small world under virtual time that knows the truth: a lock, clients, a fenced resource, freezes and kills.
//!
//! It reports what real processes would report, and beside it keeps what really happened.

mod arms;
mod blows;
mod client;
mod families;
pub mod knobs;
pub mod lock;
mod records;
pub mod truth;
mod using;
mod world;

pub use records::{number, records};
pub use world::{UNIT_NS, World, stamp};
