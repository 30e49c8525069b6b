//! The phases of a fault.

use serde::{Deserialize, Serialize};

use crate::{HoldId, Stamp, no_fields};

/// The phase that a fault has reached. The agent stamps each phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "phase", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FaultPhase {
    /// The fault is about to be injected: the engine has not been called yet.
    Requested {
        /// The planned length.
        asked_ns: u64,
        /// The hold that the fault is meant for, if the target is the holder.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldId>,
    },
    /// Background fsyncs that a server reported before its kill and after the request (Redis:
    /// `aof_pending_bio_fsync`). With none, a SIGKILL loses nothing that was answered before the request.
    Unsynced {
        /// Background fsyncs that are due or under way.
        fsyncs: u32,
    },
    /// The engine reports that the fault is on.
    #[serde(deserialize_with = "no_fields::deserialize")]
    Injected,
    /// The fault is about to be healed: the engine has not been called yet.
    #[serde(deserialize_with = "no_fields::deserialize")]
    HealRequested,
    /// The engine reports that the fault is off.
    #[serde(deserialize_with = "no_fields::deserialize")]
    Healed,
    /// The target itself shows that the fault was on. A paused target did not run between the two stamps. For a kill
    /// the stamps are the last sign of life of the old process and the first sign of life of its successor.
    Proved {
        /// Last sign of life before.
        from: Stamp,
        /// First sign of life after.
        to: Stamp,
    },
    /// The target does not show the fault: verdicts that depend on the fault are inconclusive.
    Unproved {
        /// The expected and the observed behaviour of the target.
        why: String,
    },
    /// Connections of the target that still had not recovered were reset, so that their owners open new ones.
    ConnectionsReset {
        /// The number of connections.
        count: u32,
    },
    /// The target runs as before.
    #[serde(deserialize_with = "no_fields::deserialize")]
    HealProved,
    /// The fault is on, and nobody planned it: its number is in no plan.
    Unplanned {
        /// The fault did not begin before this stamp.
        since: Stamp,
    },
    /// The unplanned fault is over.
    UnplannedOver {
        /// The fault did not end before this stamp.
        since: Stamp,
    },
    /// The fault took effect after its hold had been released.
    #[serde(deserialize_with = "no_fields::deserialize")]
    MissedTarget,
}
