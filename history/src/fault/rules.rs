//! The facts and the rules that each kind of fault has.

use std::time::Duration;

use super::{links::LinkEffect, parameter::ParameterVisitor};
use crate::{cluster::PlannedCluster, names::NodeName, target::Target};

/// The data that a restarted node finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// All data that the kernel had received.
    Kept,
    /// The data that had been synced to the disk.
    Synced,
    /// No data.
    Lost,
}

/// The harm that a kind of fault does: the way in which an analysis must treat the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// The target does nothing while the fault is on, and continues afterwards.
    Freezes,
    /// The target runs, and gets little processor time.
    Starves,
    /// The process of the target ends. A new process starts with this data.
    Kills(Data),
    /// A clock of the target shows a wrong time.
    SetsClock,
    /// Packets are lost. TCP sends them again later.
    DropsPackets,
    /// Packets arrive late.
    DelaysPackets,
}

/// The facts that hold for every fault of one kind.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// One sentence for lists and help texts.
    pub summary: &'static str,
    /// The verb in stories: "paused" in "paused worker-1".
    pub past_tense: &'static str,
    /// The harm.
    pub harm: Harm,
}

/// The parameters of one kind of fault, with the rules that only this kind has.
pub trait FaultParameters {
    /// The facts that hold for every fault of this kind.
    const ABOUT: About;

    /// Refuses parameters that no cluster could carry out within `lasting`.
    fn check(&self, _lasting: Duration) -> Result<(), String> {
        Ok(())
    }

    /// Refuses a target or a cluster on which this fault cannot happen.
    fn check_target(&self, _cluster: &PlannedCluster<'_>, _target: &Target) -> Result<(), String> {
        Ok(())
    }

    /// Shows each duration and each number to `visitor`, which may change it.
    fn visit(&mut self, _visitor: &mut dyn ParameterVisitor) {}

    /// Returns whether this fault and `other`, of the same kind and on the same target, exclude each other.
    fn excludes(&self, _other: &Self) -> bool {
        true
    }

    /// The effect on packets, if this is a fault of links.
    fn link_effect(&self) -> Option<LinkEffect> {
        None
    }

    /// One line for a story: "killed redis-3". `lasted` is "1.5 s" or "not proved".
    fn story(&self, node: &NodeName, _lasted: &str) -> String {
        format!("{} {node}", Self::ABOUT.past_tense)
    }
}
