//! Packets: rules and queues in a target's network namespace.
//!
//! A partition is a table of nftables of its own. Delay, loss and reordering send packets through a queue of the kernel (`NFQUEUE`) to a
//! thread of the agent, which releases them one by one. Everything is in the target's own network namespace: when its container goes,
//! the rules go. When the agent goes, its queues go, and the rules that pointed to them let everything pass (`--queue-bypass`).
//!
//! All of this blocks: rules for some milliseconds, a probe for its whole timeout. Call it from a thread that may wait.

mod abilities;
mod connections;
mod error;
mod faults;
mod hold;
mod namespace;
mod netlink;
mod packet;
mod probe;
mod programs;
mod queue;
mod redis_time;
mod release;
mod rules;

pub use abilities::probe_abilities;
pub use connections::{connections, reset};
pub use error::NetError;
pub use faults::{PacketFaults, Report};
pub use namespace::Namespace;
pub use probe::{knock, probe};
pub use redis_time::redis_time;

use std::time::Duration;

use crate::protocol::{TargetAnswer, TargetRequest};

/// Looks at one target, or resets its connections. Needs no memory of the faults that are on, so it may wait while they come and go.
pub fn obey(request: &TargetRequest) -> Result<TargetAnswer, NetError> {
    match request {
        TargetRequest::Probe { pid, to, timeout_ms } => {
            probe(*pid, *to, Duration::from_millis(*timeout_ms)).map(TargetAnswer::Probed)
        }
        TargetRequest::Knock { pid, at, to, timeout_ms } => {
            knock(*pid, *at, *to, Duration::from_millis(*timeout_ms)).map(TargetAnswer::Probed)
        }
        TargetRequest::Connections { pid, links } => connections(*pid, links).map(TargetAnswer::Connections),
        TargetRequest::Reset { pid, links } => reset(*pid, links).map(TargetAnswer::Reset),
        TargetRequest::RedisTime { pid, port, timeout_ms } => {
            redis_time(*pid, *port, Duration::from_millis(*timeout_ms)).map(TargetAnswer::RedisTime)
        }
        TargetRequest::Abilities { pid } => probe_abilities(*pid).map(TargetAnswer::Abilities),
    }
}
