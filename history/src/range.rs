//! Ranges of durations.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::human;

/// A range of durations: `100ms..200ms`. Both ends belong to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The shortest duration.
    #[serde(with = "human::Text")]
    pub from: Duration,
    /// The longest duration.
    #[serde(with = "human::Text")]
    pub to: Duration,
}
