//! Code that the measuring programs share.

pub mod record;
pub mod servers;
