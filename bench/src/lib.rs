//! The parts that the measurements share.

pub mod servers;
