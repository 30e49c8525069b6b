//! The deadline that a request carries.

use serde::{Deserialize, Serialize};

/// The deadline of a write, and the reading of the resource's clock against which it is compared. Both are the wall
/// clock of their process, in microseconds since 1970: the only clock that two machines share, and only as far as
/// somebody sets it right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Deadline {
    /// The end of the client's belief in its hold, by the clock of the client's process.
    pub until_us: u64,
    /// The clock of the resource's process when the request was decided.
    pub read_us: u64,
}

impl Deadline {
    /// Returns whether the deadline has not passed.
    pub fn is_kept(self) -> bool {
        self.read_us <= self.until_us
    }
}
