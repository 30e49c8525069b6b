//! Planned waits: a client waits at a protocol point, so that faults and other clients' writes happen while it holds
//! the lock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{fault::FaultId, names::NodeName, point::Point};

/// A planned wait, by its number in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct WaitId(pub u32);

/// The event that ends a planned wait. Without the event, the bound ends the wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// Every fault of the wait is on.
    Injected,
    /// Every fault of the wait is proved healed.
    Healed,
    /// This fault, of this wait or not, is proved healed, or its healing could not be proved.
    Over(FaultId),
    /// The client of this other wait has reached its point.
    Reached(WaitId),
    /// A write of any other client was answered.
    AnotherWrote,
    /// A write of another client of this worker was answered.
    Wrote(NodeName),
    /// No event: the wait lasts for its whole bound.
    Time,
}

/// A planned wait: the first client of a worker waits at a point, once. Steps of the schedule may fire during the wait
/// (`while-waits`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Wait {
    /// The number of the wait.
    pub id: WaitId,
    /// The worker whose client waits.
    pub worker: NodeName,
    /// The point at which the client waits.
    pub point: Point,
    /// The event that ends the wait.
    pub until: Until,
    /// The bound: the wait ends after this time in any case, by the client's own clock.
    #[serde(with = "crate::human::Text")]
    pub at_most: Duration,
    /// The client does not wait if it passes the point earlier than this after the start of the run.
    #[serde(with = "crate::human::Text", default, skip_serializing_if = "Duration::is_zero")]
    pub after: Duration,
}
