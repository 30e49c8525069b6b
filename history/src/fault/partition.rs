//! `partition`: the target is cut off from some nodes.

use serde::{Deserialize, Serialize};

use super::{
    links::{CutMode, LinkEffect},
    rules::{About, FaultParameters, Harm},
};
use crate::names::NodeName;

/// Cuts links of the target.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// The way in which the links are cut.
    #[serde(default, skip_serializing_if = "CutMode::is_drop")]
    pub cut: CutMode,
}

impl FaultParameters for Partition {
    const ABOUT: About = About {
        summary: "All packets between the target and some nodes are dropped or rejected.",
        past_tense: "cut off",
        harm: Harm::DropsPackets,
    };

    fn link_effect(&self) -> Option<LinkEffect> {
        Some(LinkEffect::Cut(self.cut))
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        format!("cut {node} off ({lasted})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_cut_in_the_way_that_the_partition_names() {
        for cut in [CutMode::Drop, CutMode::Reject] {
            assert_eq!(Partition { cut }.link_effect(), Some(LinkEffect::Cut(cut)));
        }
    }
}
