//! Faults of packets: rules and queues in a target's network namespace.
//!
//! A partition is an nftables table of its own. Delay, loss and reorder send packets through a kernel queue (`NFQUEUE`)
//! to a thread of the agent, which releases each packet. Everything is in the target's own network namespace, so the
//! rules end with the target's container. If the agent ends, its queues end, and the rules let all packets pass
//! (`--queue-bypass`).
//!
//! All functions block: rules for some milliseconds, a probe for its whole timeout. Call them from a thread that may
//! block.

mod abilities;
mod connections;
mod delay_queue;
mod error;
mod faults;
mod foreign;
mod namespace;
mod netlink;
mod packet;
mod probe;
mod programs;
mod queue;
mod redis_marker;
mod redis_time;
mod release;
mod rules;

pub use abilities::probe_abilities;
pub use connections::{connections, reset};
pub use error::NetError;
pub use faults::PacketFaults;
pub use foreign::foreign;
pub use namespace::Namespace;
pub use probe::{CONNECTIONS_MAX, knock, probe};
pub use redis_marker::redis_marker;
pub use redis_time::redis_time;
pub use release::Report;

use std::time::Duration;

use crate::protocol::{TargetAnswer, TargetRequest};

/// Carries out an order about one target. Needs no state of the faults, so an order may block while faults come and go.
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
        TargetRequest::RedisMarker { at, key, step, timeout_ms } => {
            redis_marker(*at, key, *step, Duration::from_millis(*timeout_ms)).map(TargetAnswer::RedisMarker)
        }
        TargetRequest::Abilities { pid } => probe_abilities(*pid).map(TargetAnswer::Abilities),
    }
}
