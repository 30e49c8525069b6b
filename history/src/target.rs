//! The target of a fault.

use serde::{Deserialize, Serialize};

use crate::names::NodeName;

/// The target of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The worker of the client that holds a key when the fault fires.
    Holder,
    /// The lock node that leads the others when the fault fires.
    Leader,
    /// A node by its name. "Any worker" becomes such a name when the schedule is drawn.
    Node(NodeName),
}
