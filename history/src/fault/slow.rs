//! `slow`: the target gets little processor time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    parameter::{ParameterVisitor, Quantity, visit_number},
    rules::{About, FaultParameters, Harm},
};
use crate::names::NodeName;

/// Limits the processor time of the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// The share of one processor that is left to the target, in percent: 1 to 50.
    #[serde(default = "percent_min")]
    pub percent: u8,
}

const fn percent_min() -> u8 {
    Slow::PERCENT_MIN
}

impl Slow {
    /// The default: the least that the kernel accepts (1 ms in each period of 100 ms). With 2 % an ordinary worker is
    /// hardly ever late.
    pub const PERCENT_MIN: u8 = 1;
    const PERCENT_MAX: u8 = 50;
}

impl FaultParameters for Slow {
    const ABOUT: About = About {
        summary: "A quota leaves the target one percent of a processor.",
        past_tense: "slowed",
        harm: Harm::Starves,
    };

    fn check(&self, _lasting: Duration) -> Result<(), String> {
        if (Slow::PERCENT_MIN..=Slow::PERCENT_MAX).contains(&self.percent) {
            return Ok(());
        }
        Err(format!("{} % of a processor is outside 1 to 50", self.percent))
    }

    fn visit(&mut self, visitor: &mut dyn ParameterVisitor) {
        visit_number(visitor, Quantity::Percent, &mut self.percent, 1..=50);
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        format!("slowed {node} down to {} % of a processor ({lasted})", self.percent)
    }
}
