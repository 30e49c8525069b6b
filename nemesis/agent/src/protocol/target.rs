//! Orders and answers about one target, independent of the faults that are on.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use super::packets::Links;

/// An order about one target. The pids are those of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum TargetRequest {
    /// Opens a connection from inside the target.
    Probe {
        /// Any process of the target.
        pid: i32,
        /// The address to connect to.
        to: SocketAddrV4,
        /// The timeout of each connection.
        timeout_ms: u64,
    },
    /// Opens a connection from inside the target to a port that is opened for it at the other end. A refusal therefore
    /// does not come from the other end.
    Knock {
        /// Any process of the target.
        pid: i32,
        /// Any process of the other end.
        at: i32,
        /// The other end's address.
        to: Ipv4Addr,
        /// The timeout of each connection.
        timeout_ms: u64,
    },
    /// Lists TCP connections.
    Connections {
        /// Any process of the target.
        pid: i32,
        /// The peers; the direction does not matter.
        links: Links,
    },
    /// Resets TCP connections that have retransmitted a packet without an acknowledgement.
    Reset {
        /// Any process of the target.
        pid: i32,
        /// The peers; the direction does not matter.
        links: Links,
    },
    /// Asks a Redis server for the time, from inside the target. Faults of packets do not touch loopback.
    RedisTime {
        /// Any process of the target.
        pid: i32,
        /// The server's port.
        port: u16,
        /// The timeout.
        timeout_ms: u64,
    },
    /// Leaves a marker key on a Redis server, or takes it away, over the network of the agent.
    RedisMarker {
        /// The server.
        at: SocketAddrV4,
        /// The key.
        key: String,
        /// Leave it, or take it away.
        step: MarkerStep,
        /// The timeout.
        timeout_ms: u64,
    },
    /// Tries the kernel features that faults of packets need.
    Abilities {
        /// Any process of the target.
        pid: i32,
    },
}

/// The answer to a [`TargetRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TargetAnswer {
    /// The result of the probe.
    Probed(ProbeAnswer),
    /// The connections.
    Connections(Vec<Connection>),
    /// The connections that were reset.
    Reset(Vec<Connection>),
    /// How far the server's wall clock is ahead, by the server's own answer.
    RedisTime(ReportedAhead),
    /// True if the marker key is there now, or was there before it was taken away.
    RedisMarker(bool),
    /// The kernel features that work.
    Abilities(PacketAbilities),
}

/// A step of the proof that a server has lost its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkerStep {
    /// Set the key.
    Leave,
    /// Remove the key.
    Take,
}

/// Bounds of how far a server's clock is ahead of the kernel's. The server reported its time between two readings of
/// the kernel's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportedAhead {
    /// At least, in nanoseconds.
    pub least_ns: i64,
    /// At most, in nanoseconds.
    pub most_ns: i64,
}

/// The result of a probe: one attempt at a new TCP connection from inside a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum ProbeAnswer {
    /// The connection was established.
    Connected {
        /// From before the attempt until the connection was established.
        latency_ns: u64,
    },
    /// A reset came back: packets get through, or a fault rejects them.
    Refused {
        /// From before the attempt until the answer.
        latency_ns: u64,
    },
    /// No answer came before the timeout, or no node has the address.
    Silent,
    /// The attempt failed otherwise.
    Failed {
        /// The error.
        why: String,
    },
}

/// A TCP connection of a target, as its kernel sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// The target's end.
    pub local: SocketAddrV4,
    /// The peer's end.
    pub peer: SocketAddrV4,
    /// Consecutive retransmissions of the oldest unacknowledged packet. Zero again after its acknowledgement.
    pub retransmits: u8,
    /// Milliseconds until the next retransmission; none, if every packet is acknowledged.
    pub next_retransmit_ms: Option<u32>,
    /// Bytes that the target has written and the peer has not acknowledged.
    pub unacknowledged_bytes: u32,
}

impl Connection {
    /// Returns whether the target has retransmitted a packet that the peer has not acknowledged.
    pub fn is_stale(&self) -> bool {
        self.retransmits > 0
    }
}

/// The features that work in a target's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketAbilities {
    /// Rules of `nft`: needed by partitions.
    pub nft: Ability,
    /// `iptables-nft` with the target `NFQUEUE`: needed by delay, loss and reorder.
    pub iptables_queue: Ability,
    /// A queue bound over netlink: needed by delay, loss and reorder.
    pub queue: Ability,
    /// Listing connections: needed by the proof of a heal.
    pub connections: Ability,
    /// Resetting connections.
    pub reset: Ability,
}

/// The result of trying a feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum Ability {
    /// The feature was tried and works.
    Works,
    /// The feature was tried and fails.
    Fails {
        /// The step that failed, its error, and the remedy.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_stale_from_its_first_retransmission_on() {
        let is_stale = |retransmits| {
            let [local, peer] =
                ["10.0.0.1:6379", "10.0.0.2:50000"].map(|address| address.parse::<SocketAddrV4>().unwrap());
            let (next_retransmit_ms, unacknowledged_bytes) = (Some(200), 1);
            Connection { local, peer, retransmits, next_retransmit_ms, unacknowledged_bytes }.is_stale()
        };
        assert_eq!([0, 1, 2].map(is_stale), [false, true, true]);
    }
}
