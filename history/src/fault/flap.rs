//! `flap`: links of the target are cut and restored in turns.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    links::{CutMode, LinkEffect},
    parameter::{ParameterVisitor, Quantity},
    rules::{About, FaultParameters, Harm},
};
use crate::names::NodeName;

/// Cuts links of the target, and restores them, in turns of the same length. The first turn is a cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Flap {
    /// The length of a turn.
    #[serde(with = "crate::human::Text")]
    pub every: Duration,
}

impl Flap {
    /// The shortest turn: a probe could not distinguish a shorter one from its own delay.
    pub const EVERY_MIN: Duration = Duration::from_millis(100);
}

impl FaultParameters for Flap {
    const ABOUT: About = About {
        summary: "The links between the target and some nodes are cut and restored in turns.",
        past_tense: "flapped the links of",
        harm: Harm::DropsPackets,
    };

    fn check(&self, lasting: Duration) -> Result<(), String> {
        if self.every >= Self::EVERY_MIN && self.every * 2 <= lasting {
            return Ok(());
        }
        Err(format!(
            "turns of {:?}: expected at least {:?}, and two turns within the {lasting:?} of the fault",
            self.every,
            Self::EVERY_MIN
        ))
    }

    fn visit(&mut self, visitor: &mut dyn ParameterVisitor) {
        let mut every_ms = self.every.as_millis() as i64;
        visitor.number(Quantity::PeriodMs, &mut every_ms);
        self.every = Duration::from_millis(every_ms.max(0).unsigned_abs()).max(Self::EVERY_MIN);
    }

    fn link_effect(&self) -> Option<LinkEffect> {
        Some(LinkEffect::Cut(CutMode::Drop))
    }

    fn story(&self, node: &NodeName, lasted: &str) -> String {
        format!("cut {node} off every other {:.1} s ({lasted})", self.every.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    #[test]
    fn a_flap_is_read_as_it_is_written_and_needs_two_turns() {
        let written = r#"{"kind":"flap","for":"3s","every":"500ms","direction":"both"}"#;
        let fault: Fault = serde_json::from_str(written).unwrap();
        assert_eq!(fault, Fault::new(Flap { every: Duration::from_millis(500) }, Duration::from_secs(3)));
        assert_eq!((serde_json::to_string(&fault).unwrap().as_str(), fault.check()), (written, Ok(())));
        for (every, lasting) in [("99ms", "3s"), ("2s", "3s")] {
            let text = written.replace("3s", lasting).replace("500ms", every);
            assert!(serde_json::from_str::<Fault>(&text).unwrap().check().is_err(), "{text}");
        }
        for (every, lasting) in [("100ms", "3s"), ("1500ms", "3s")] {
            let text = written.replace("3s", lasting).replace("500ms", every);
            assert_eq!(serde_json::from_str::<Fault>(&text).unwrap().check(), Ok(()), "{text}");
        }
        let unknown = serde_json::from_str::<Fault>(&written.replace("every", "evry")).unwrap_err().to_string();
        assert!(unknown.contains("flap") && unknown.contains("evry"), "{unknown}");
    }
}
