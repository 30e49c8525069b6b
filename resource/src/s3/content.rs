//! The objects of the bucket.

use std::collections::BTreeMap;

use history::{HoldId, Key, OpId, Version};
use serde::{Deserialize, Serialize};

use crate::admission::Admission;
use crate::decide::{DecidedOperation, RESTART_JUMP, Refusal, State};
use crate::key_state::KeyState;
use crate::policy::Policy;
use crate::request::Request;

/// The name of the object with the state.
pub(super) const STATE: &str = "state";

/// The name of the object with one decided operation.
pub(super) fn operation_name((hold, op): (HoldId, OpId)) -> String {
    format!("operations/{}-{}", hold.0, op.0)
}

/// The object with the state of all keys. Each content differs from all others before it, because of its numbers. So no
/// two versions of the object share a tag, also where the tag is a digest of the content.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Content {
    /// Arms and comparison, with which the object was created.
    pub(super) policy: String,
    /// How often a process has opened the store. A process decides only while the object has the number of its opening.
    pub(super) opening: u64,
    /// The number of the last decision.
    pub(super) last: Version,
    /// The number of the last decision before this opening; none in the opening that created the object.
    pub(super) durable: Option<Version>,
    keys: BTreeMap<Key, KeyState>,
    /// The last decided operation. Before the next decision it gets an object of its own.
    pub(super) latest: Option<DecidedOperation>,
}

impl Content {
    /// The content of a new store.
    pub(super) fn new(policy: &Policy) -> Content {
        let (keys, last) = (BTreeMap::new(), Version(0));
        Content { policy: policy.to_string(), opening: 1, last, durable: None, keys, latest: None }
    }

    /// The content with which the next process opens the store.
    pub(super) fn reopened(self) -> Content {
        Content { opening: self.opening + 1, durable: Some(self.last), ..self }
    }

    /// The name and the content of the object of the last operation, if that operation has a number.
    pub(super) fn latest_operation(&self) -> Option<((HoldId, OpId), &DecidedOperation)> {
        let latest = self.latest.as_ref()?;
        Some((latest.request.hold.zip(latest.request.op)?, latest))
    }

    /// Decides `request` by the rule, and returns the content after the decision; none for a repeat, which changes
    /// nothing. `former` is the request's operation, if it has been decided before.
    pub(super) fn decide(
        &self,
        policy: &Policy,
        request: &Request,
        former: Option<DecidedOperation>,
    ) -> Result<(Admission, Option<Content>), Refusal> {
        // An earlier process may have logged a decision that never reached the store, with a number above the last.
        // The number of openings separates processes that left no decision in the store.
        let least = self.durable.map_or(0, |durable| durable.0 + RESTART_JUMP * self.opening);
        let formers = request.hold.zip(request.op).zip(former).into_iter().collect();
        let mut state = State::restore(Version(self.last.0.max(least)), self.keys.clone(), formers);
        let admission = state.decide(policy, request)?;
        if admission.repeat {
            return Ok((admission, None));
        }
        let mut after = Content { last: admission.number, ..self.clone() };
        if let Some(key) = state.key(&request.key) {
            after.keys.insert(request.key.clone(), key.clone());
        }
        after.latest = Some(DecidedOperation { request: request.clone(), admission: admission.clone() });
        Ok((admission, Some(after)))
    }
}

#[cfg(test)]
mod tests {
    use history::{Arm, Comparison};

    use super::*;
    use crate::request::Action;

    #[test]
    fn no_number_is_used_twice_although_kills_leave_no_decision_in_the_object() {
        let policy = Policy::new(&[Arm::Off], Comparison::Default).unwrap();
        let key = Key::new("k");
        let read = Request { key, hold: None, op: None, token: None, deadline: None, action: Action::Read };
        let (mut content, mut numbers) = (Content::new(&policy), Vec::new());
        for _ in 0..3 {
            // The content after the decision is never put.
            let (admission, _) = content.decide(&policy, &read, None).unwrap();
            numbers.push(admission.number);
            content = content.reopened();
            assert_eq!(content.durable, Some(Version(0)));
        }
        assert_eq!(numbers[0], Version(1), "a new store begins with 1");
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }
}
