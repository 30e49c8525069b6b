//! Code that the measuring programs share.

pub mod pinned;
pub mod record;
pub mod series;
pub mod servers;
