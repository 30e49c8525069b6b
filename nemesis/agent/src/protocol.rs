//! The protocol between controller and agent: plain types, one JSON object on each line.
//! `docs/worker-protocol.md` is the reference.

mod clocks;
mod packets;
mod target;

pub use clocks::{ClockAnswer, ClockRequest, ClocksAhead};
pub use packets::{DelayRange, DelayedPart, Links, PacketFate, PacketFault, PacketReport, PacketRequest, PacketTally};
pub use target::{
    Ability, Connection, MarkerStep, PacketAbilities, ProbeAnswer, ReportedAhead, TargetAnswer, TargetRequest,
};

use serde::{Deserialize, Serialize};

/// An order to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Injects or heals faults of packets.
    Packets(PacketRequest),
    /// Inspects one target, or resets its connections.
    Target(TargetRequest),
    /// Changes or reads clocks.
    Clocks(ClockRequest),
}

/// The answer to an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// The fault's effect so far.
    Packets(PacketTally),
    /// The findings at the target.
    Target(TargetAnswer),
    /// The processes whose clocks were changed, or the readings of the clocks.
    Clocks(ClockAnswer),
}
