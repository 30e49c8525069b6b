//! One step of a schedule: a fault, its target and its time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    fault::{Fault, FaultId},
    point::Point,
    target::Target,
    wait::WaitId,
};

/// The time at which a step fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum When {
    /// So long after the previous step was healed, or after the start of the run.
    AfterHeal(#[serde(with = "crate::human::Text")] Duration),
    /// So long after the start of the run.
    At(#[serde(with = "crate::human::Text")] Duration),
    /// When an armed client arrives at a protocol point and waits there.
    AtPoint(Point),
    /// As soon as this fault is proved healed.
    Healed(FaultId),
    /// While a client waits at a protocol point as planned. The target may be any process.
    WhileWaits(WaitId),
}

/// One step of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The number of the fault.
    pub id: FaultId,
    /// The fault.
    pub fault: Fault,
    /// The target.
    pub target: Target,
    /// The time.
    pub when: When,
}
