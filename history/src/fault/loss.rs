//! `loss`: some of the packets between the target and some nodes are lost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    links::LinkEffect,
    parameter::{ParameterVisitor, Quantity, visit_number},
    rules::{About, FaultParameters, Harm},
};
use crate::names::NodeName;

/// Loses packets. TCP sends a lost packet again, so inside a connection loss is delay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// The share of packets that are lost, retransmissions included, in percent: 1 to 100.
    pub percent: u8,
}

impl FaultParameters for Loss {
    const ABOUT: About = About {
        summary: "Some packets between the target and some nodes are lost, and sent again later.",
        past_tense: "lost packets of",
        harm: Harm::DropsPackets,
    };

    fn check(&self, _lasting: Duration) -> Result<(), String> {
        if (1..=100).contains(&self.percent) {
            return Ok(());
        }
        Err(format!("a loss of {} % is outside 1 to 100", self.percent))
    }

    fn visit(&mut self, visitor: &mut dyn ParameterVisitor) {
        visit_number(visitor, Quantity::Percent, &mut self.percent, 1..=100);
    }

    fn link_effect(&self) -> Option<LinkEffect> {
        Some(LinkEffect::Lose(self.percent))
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        format!("lost {} % of the packets of {node} ({lasted})", self.percent)
    }
}
