//! What the nemesis does from inside its own container to the processes and the packets of others.
//!
//! All of it lives in the targets' own namespaces and processes: removing their containers heals everything, and the host's clock and
//! firewall are never touched. The agent enters a target's network namespace for faults of packets, and writes to a target's memory
//! for faults of clocks.

pub mod clock;
pub mod net;
pub mod protocol;
pub mod stamp;
