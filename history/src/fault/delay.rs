//! `delay` and `reorder`: packets between the target and some nodes are late.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    links::{LinkDelay, LinkEffect},
    parameter::{ParameterVisitor, Quantity},
    rules::{About, FaultParameters, Harm},
};
use crate::{names::NodeName, range::Range};

/// Delays packets, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// The delay of each packet.
    pub by: LinkDelay,
}

impl FaultParameters for Delay {
    const ABOUT: About = About {
        summary: "Packets between the target and some nodes arrive late.",
        past_tense: "slowed the links of",
        harm: Harm::DelaysPackets,
    };

    fn check(&self, _lasting: Duration) -> Result<(), String> {
        self.by.check()
    }

    fn visit(&mut self, visitor: &mut dyn ParameterVisitor) {
        visitor.delay(&mut self.by);
    }

    fn link_effect(&self) -> Option<LinkEffect> {
        Some(LinkEffect::Delay(self.by))
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        let by = match self.by {
            LinkDelay::Fixed(by) => format!("{:.1} s", by.as_secs_f64()),
            LinkDelay::Drawn(by) => from_to(by),
        };
        format!("slowed the links of {node} by {by} ({lasted})")
    }
}

/// Delays packets so that packets of different connections overtake each other. A connection keeps its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// The delay of each packet, drawn for each packet.
    pub by: Range,
}

impl FaultParameters for Reorder {
    const ABOUT: About = About {
        summary: "Packets between the target and some nodes overtake those of other connections.",
        past_tense: "disordered the packets of",
        harm: Harm::DelaysPackets,
    };

    fn check(&self, _lasting: Duration) -> Result<(), String> {
        if self.by.from == self.by.to {
            return Err(format!("packets that are all late by {:?} overtake nothing; give a range", self.by.to));
        }
        LinkDelay::Drawn(self.by).check()
    }

    fn visit(&mut self, visitor: &mut dyn ParameterVisitor) {
        visitor.range(Quantity::Delay, &mut self.by);
    }

    fn link_effect(&self) -> Option<LinkEffect> {
        Some(LinkEffect::Reorder(self.by))
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        format!("disordered the packets of {node} by {} ({lasted})", from_to(self.by))
    }
}

fn from_to(by: Range) -> String {
    format!("{:.2} to {:.2} s", by.from.as_secs_f64(), by.to.as_secs_f64())
}
