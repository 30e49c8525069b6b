//! The state of one key.

use std::collections::BTreeMap;

use history::{Arm, HoldId, Token, Version};
use serde::{Deserialize, Serialize};

/// The largest registered token, and the hold that *first* registered the token. Another hold with an equal token
/// registers nothing: otherwise two holds that share a token would take turns at owning it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HighestToken {
    /// The token.
    pub token: Token,
    /// The hold. All requests without a hold count as one hold.
    pub hold: Option<HoldId>,
}

/// The state of one key on one arm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmState {
    /// The value of the last admitted write.
    pub value: Option<String>,
    /// The number of that write; 0 before the first.
    pub version: Version,
    /// The largest token so far.
    pub seen: Option<HighestToken>,
    /// The hold that read last, on the arm `claim`.
    #[serde(default)]
    pub claim: Option<HoldId>,
}

impl ArmState {
    /// Registers `token` if it is the largest so far, and says whether it was.
    pub(crate) fn register(&mut self, token: Option<Token>, hold: Option<HoldId>) -> bool {
        match token {
            Some(token) if self.seen.is_none_or(|seen| token > seen.token) => {
                self.seen = Some(HighestToken { token, hold });
                true
            }
            _ => false,
        }
    }
}

/// The state of one key on all arms.
pub type KeyState = BTreeMap<Arm, ArmState>;
