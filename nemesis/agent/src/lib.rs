//! Faults that the agent injects from its own container into the processes and packets of other containers, and the
//! file system that forgets what was not synced.
//!
//! All effects are inside the targets' own namespaces and processes: the removal of their containers heals everything,
//! and the host's clock and firewall are never touched. For faults of packets the agent enters the target's network
//! namespace; for faults of clocks it writes to the memory of the target's processes.

#[cfg(target_arch = "x86_64")]
pub mod clock;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_clock.rs"]
pub mod clock;
pub mod net;
pub mod power;
pub mod protocol;
pub mod stamp;
