//! Orders and answers about faults of packets.

use std::net::{Ipv4Addr, SocketAddrV4};

use history::{CutMode, Direction, FaultId};
use serde::{Deserialize, Serialize};

/// An order about faults of packets. The answer is a [`PacketTally`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum PacketRequest {
    /// Injects a fault at a target. One fault may be on at several targets.
    Inject {
        /// The fault's number.
        fault: FaultId,
        /// Any process of the target; the pid is that of the host.
        pid: i32,
        /// The fault.
        what: PacketFault,
    },
    /// Heals a fault at each target where the fault is on.
    Heal {
        /// The fault's number.
        fault: FaultId,
    },
    /// Heals all faults.
    HealAll,
}

/// A fault of packets between one target and its peers, over IPv4. Applies to new and to established connections.
/// Packets that stay inside the target (loopback) are never touched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum PacketFault {
    /// Lets no packet through.
    Partition {
        /// The affected packets.
        links: Links,
        /// The way of cutting: with or without an error for the sender.
        #[serde(default)]
        cut: CutMode,
    },
    /// Delays each packet. No packet overtakes another packet of its link: packets close together share the longest
    /// delay that was drawn for them.
    Delay {
        /// The affected packets.
        links: Links,
        /// The range of the delays.
        by: DelayRange,
        /// The packets of the links that are delayed.
        #[serde(default)]
        part: DelayedPart,
        /// The seed of the delays.
        seed: u64,
    },
    /// Drops packets, each with the same probability. Inside a connection a loss shows as delay.
    Loss {
        /// The affected packets.
        links: Links,
        /// From 0 (no packet) to 1 (all packets).
        probability: f64,
        /// The seed of the losses.
        seed: u64,
    },
    /// Delays each packet by a draw of its own, so packets of different connections overtake each other.
    Reorder {
        /// The affected packets.
        links: Links,
        /// The range of the delays.
        by: DelayRange,
        /// True if packets of one connection overtake each other too.
        #[serde(default)]
        within_connections: bool,
        /// The seed of the delays.
        seed: u64,
    },
}

/// The packets between a target and its peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// The peers; all peers, if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Ipv4Addr>,
    /// Only TCP with this port at the peers; all packets, if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The direction, as the target sees it.
    #[serde(default)]
    pub direction: Direction,
}

/// A range of delays in microseconds, drawn uniformly, both ends included. Equal ends are a fixed delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayRange {
    /// The shortest.
    pub from_us: u64,
    /// The longest.
    pub to_us: u64,
}

/// The packets that a delay affects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DelayedPart {
    /// All packets.
    #[default]
    All,
    /// TCP packets with payload: the data of established connections. Handshakes and acknowledgements pass. The end of
    /// a connection waits behind its delayed data.
    Payload,
}

/// One packet that was delayed or lost. Stamps are `CLOCK_MONOTONIC` by the raw system call, in nanoseconds.
///
/// The packet was delayed at least from one stamp to the other: `queued_ns` is taken after the packet was read from the
/// queue, and `released_ns` before the kernel is told to release the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketReport {
    /// The time at which the packet was read from the queue.
    pub queued_ns: u64,
    /// The time at which the packet was released or dropped.
    pub released_ns: u64,
    /// The sender. The port is 0 if the packet is neither TCP nor UDP.
    pub from: SocketAddrV4,
    /// The receiver.
    pub to: SocketAddrV4,
    /// Bytes of payload in the packet.
    pub payload_bytes: u32,
    /// The end of the packet's delay.
    pub fate: PacketFate,
}

/// The end of a packet's delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketFate {
    /// Released when its delay was over.
    Due,
    /// Released before the end of its delay, by the heal.
    Healed,
    /// Dropped.
    Lost,
}

/// The counters of a fault of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketTally {
    /// Packets that were delayed and released.
    pub delayed: u64,
    /// Packets that passed without delay.
    pub passed: u64,
    /// Packets that the fault dropped on purpose (a loss).
    pub lost: u64,
    /// Packets that were dropped because the queue was full, which no fault asks for.
    pub overrun: u64,
}
