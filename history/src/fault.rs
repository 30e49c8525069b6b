//! Faults and when they fire, as a plan has them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{NodeName, Point};

/// A planned fault, counted from 1 in the order of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultId(pub u32);

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The container freezer.
    Pause,
    /// SIGKILL, and a new start.
    Kill,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 2] = [FaultKind::Pause, FaultKind::Kill];

    /// The name in flags, plans and histories.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Pause => "pause",
            FaultKind::Kill => "kill",
        }
    }

    /// What it did to its target, for stories: "paused worker-1".
    pub fn did(self) -> &'static str {
        match self {
            FaultKind::Pause => "paused",
            FaultKind::Kill => "killed",
        }
    }
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A fault with its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Freezes every process of the target.
    Pause {
        /// How long the target shall be frozen.
        #[serde(rename = "for", with = "crate::plan::human")]
        lasting: Duration,
    },
    /// Kills every process of the target, and starts it again.
    Kill {
        /// How long it stays down.
        #[serde(with = "crate::plan::human")]
        back_after: Duration,
    },
}

impl Fault {
    /// Its kind.
    pub fn kind(&self) -> FaultKind {
        match self {
            Fault::Pause { .. } => FaultKind::Pause,
            Fault::Kill { .. } => FaultKind::Kill,
        }
    }

    /// How long it is asked to last: from injection to heal.
    pub fn lasting(&self) -> Duration {
        match self {
            Fault::Pause { lasting } => *lasting,
            Fault::Kill { back_after } => *back_after,
        }
    }
}

/// Whom a fault hits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The worker of whoever holds a key when the fault fires.
    Holder,
    /// A node by its name. "Any worker" becomes one of these when the schedule is drawn.
    Node(NodeName),
}

/// When a step fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum When {
    /// So long after the step before it was healed (or after the start of the run).
    AfterHeal(#[serde(with = "crate::plan::human")] Duration),
    /// So long after the start of the run.
    At(#[serde(with = "crate::plan::human")] Duration),
    /// When a client that was armed for it arrives at a protocol point and waits there.
    AtPoint(Point),
}

/// One step of a schedule: a fault, whom it hits, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its number.
    pub id: FaultId,
    /// What is done.
    pub fault: Fault,
    /// To whom.
    pub target: Target,
    /// When.
    pub when: When,
}
