//! The rule of the resource: from a state and a request to a decision. The rule has no clock, no I/O and no randomness,
//! so that the service and the simulation run the same code.

use std::collections::BTreeMap;

use history::{Arm, Comparison, Deadline, HoldId, Key, OpId, Version};
use serde::{Deserialize, Serialize};

use crate::admission::{Admission, ArmOutcome};
use crate::buggy::PlantedBug;
use crate::key_state::{ArmState, HighestToken, KeyState};
use crate::policy::Policy;
use crate::request::{Action, Proposal, Request};

/// An operation with its decision, kept to answer a repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedOperation {
    /// The request.
    pub request: Request,
    /// The decision.
    pub admission: Admission,
}

/// The distance by which numbers jump when a store is opened again. A decision that did not reach the disk may have got
/// a number that an observer has seen. Fewer decisions than this can wait for the disk, so no number is used twice.
pub(crate) const RESTART_JUMP: u64 = 1 << 20;

/// The state of the resource. Grows with the number of keys and of identified operations: the service never forgets an
/// operation, because a delayed copy of its request may arrive at any time. Only a caller that knows of all copies may
/// [forget](State::forget) an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    last: Version,
    keys: BTreeMap<Key, KeyState>,
    formers: BTreeMap<(HoldId, OpId), DecidedOperation>,
    /// Only for [`PlantedBug::ChecksInTwoSteps`]: the key of the last request, as it was before the request.
    before: Option<(Key, KeyState)>,
}

/// The reason why a request cannot be decided. The request changes nothing and has no entry in the admission log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A fencing arm needs a token, and the write has none.
    #[error("missing X-Fence-Token: a write on the arm '{arm}' needs one")]
    MissingToken {
        /// The first arm that needs a token.
        arm: Arm,
    },
    /// The arm `cas` needs a version, and the write has none.
    #[error("missing base: a write on the arm 'cas' needs the version that it was computed from")]
    MissingBase,
    /// The arm `deadline` needs a deadline, and the write has none.
    #[error("missing X-Deadline: a write on the arm 'deadline' needs the end of its hold")]
    MissingDeadline,
    /// The write leaves out an arm of the resource.
    #[error("the write has nothing for the arm '{arm}'")]
    MissingArm {
        /// The arm.
        arm: Arm,
    },
    /// The write names an arm that this resource does not have.
    #[error("this resource has no arm '{arm}'")]
    UnknownArm {
        /// The arm.
        arm: Arm,
    },
    /// An operation has no hold.
    #[error("X-Op without X-Hold: an operation belongs to a hold")]
    OpWithoutHold,
    /// The same operation of the same hold arrived before with other content.
    #[error(
        "operation {op} of hold {hold} arrived before with another key, token or content; use a new operation number"
    )]
    OpReused {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
    },
}

impl State {
    /// Restores a stored state; `last` is its largest number.
    pub(crate) fn restore(
        last: Version,
        keys: BTreeMap<Key, KeyState>,
        formers: BTreeMap<(HoldId, OpId), DecidedOperation>,
    ) -> State {
        State { last, keys, formers, before: None }
    }

    /// Returns the state after a restart that finds `self` on disk. All later numbers are larger than all earlier ones,
    /// including those that did not reach the disk.
    #[must_use]
    pub fn reopened(mut self, policy: &Policy) -> State {
        // Also if the disk has no decision: the first decisions of the earlier process may have been lost.
        self.last = Version(self.last.0.saturating_add(RESTART_JUMP));
        self.before = None;
        if policy.bug().is_some_and(|bug| !bug.keeps_tokens()) {
            self.keys.values_mut().flat_map(BTreeMap::values_mut).for_each(|arm| arm.seen = None);
        }
        if policy.bug().is_some_and(|bug| !bug.keeps_formers()) {
            self.formers.clear();
        }
        self
    }

    /// Returns the number of the last decision.
    pub fn last(&self) -> Version {
        self.last
    }

    /// Returns the state of a key; none before the first write or registered token.
    pub fn key(&self, key: &Key) -> Option<&KeyState> {
        self.keys.get(key)
    }

    /// Returns an operation with its decision, if the operation has been decided.
    pub fn former(&self, hold: HoldId, op: OpId) -> Option<&DecidedOperation> {
        self.formers.get(&(hold, op))
    }

    /// Forgets an operation, of which no copy can arrive any more. A copy that arrives nevertheless is decided anew.
    pub fn forget(&mut self, hold: HoldId, op: OpId) {
        self.formers.remove(&(hold, op));
    }

    /// Decides `request` on every arm of `policy` and applies what is admitted.
    ///
    /// A state belongs to one policy: use the same policy for every request.
    ///
    /// # Errors
    /// The request cannot be decided; the state is unchanged.
    pub fn decide(&mut self, policy: &Policy, request: &Request) -> Result<Admission, Refusal> {
        check(policy, request)?;
        let id = request.hold.zip(request.op).filter(|_| policy.bug() != Some(PlantedBug::AppliesRepeats));
        if let Some((hold, op)) = id
            && let Some(former) = self.formers.get(&(hold, op))
        {
            return if former.request.is_same(request) {
                Ok(Admission { repeat: true, ..former.admission.clone() })
            } else {
                Err(Refusal::OpReused { hold, op })
            };
        }
        self.last = Version(self.last.0 + 1);
        let arms = self.decide_arms(policy, request);
        let admission = Admission::decided(self.last, request, arms);
        if let Some(id) = id {
            self.formers.insert(id, DecidedOperation { request: request.clone(), admission: admission.clone() });
        }
        Ok(admission)
    }

    /// Decides on each arm. A read that registers no token does not create its key.
    fn decide_arms(&mut self, policy: &Policy, request: &Request) -> Vec<ArmOutcome> {
        let (outdated, shared) = (self.outdated(policy, request), self.shared(policy));
        let known = self.keys.get_mut(&request.key);
        let mut fresh = KeyState::new();
        let is_fresh = known.is_none();
        let key = known.unwrap_or(&mut fresh);
        let number = self.last;
        let outcomes: Vec<ArmOutcome> = (policy.arms().iter())
            .map(|&arm| {
                let state = key.entry(arm).or_default();
                state.seen = shared.as_ref().map_or(state.seen, |shared| shared.get(&arm).copied());
                let known = outdated.as_ref().map_or(state.seen, |key| key.get(&arm).and_then(|arm| arm.seen));
                match &request.action {
                    Action::Read => read(policy, arm, state, request, number),
                    Action::Write(arms) => write(policy, arm, state, known, request, &arms[&arm], number),
                }
            })
            .collect();
        if is_fresh && fresh.values().any(|state| *state != ArmState::default()) {
            self.keys.insert(request.key.clone(), fresh);
        }
        outcomes
    }

    /// For [`PlantedBug::ChecksInTwoSteps`]: returns the key as it was before the previous request.
    fn outdated(&mut self, policy: &Policy, request: &Request) -> Option<KeyState> {
        if policy.bug() != Some(PlantedBug::ChecksInTwoSteps) {
            return None;
        }
        let now = self.keys.get(&request.key).cloned().unwrap_or_default();
        let before = self.before.replace((request.key.clone(), now.clone()));
        Some(before.filter(|(key, _)| *key == request.key).map_or(now, |(_, before)| before))
    }

    /// For [`PlantedBug::OneTokenForAllKeys`]: returns the largest token of all keys.
    fn shared(&self, policy: &Policy) -> Option<BTreeMap<Arm, HighestToken>> {
        if policy.bug() != Some(PlantedBug::OneTokenForAllKeys) {
            return None;
        }
        let largest = |arm: Arm| self.keys.values().filter_map(|key| key.get(&arm)?.seen).max_by_key(|seen| seen.token);
        Some(policy.arms().iter().filter_map(|&arm| Some((arm, largest(arm)?))).collect())
    }
}

/// Checks that `request` can be decided under `policy`.
pub(crate) fn check(policy: &Policy, request: &Request) -> Result<(), Refusal> {
    if request.op.is_some() && request.hold.is_none() {
        return Err(Refusal::OpWithoutHold);
    }
    let Action::Write(arms) = &request.action else { return Ok(()) };
    if let Some(&arm) = policy.arms().iter().find(|arm| !arms.contains_key(arm)) {
        return Err(Refusal::MissingArm { arm });
    }
    if let Some(&arm) = arms.keys().find(|arm| !policy.arms().contains(arm)) {
        return Err(Refusal::UnknownArm { arm });
    }
    if let Some(&arm) = policy.arms().iter().find(|arm| arm.fences() && request.token.is_none()) {
        return Err(Refusal::MissingToken { arm });
    }
    if arms.get(&Arm::Cas).is_some_and(|proposal| proposal.base.is_none()) {
        return Err(Refusal::MissingBase);
    }
    if arms.contains_key(&Arm::Deadline) && request.deadline.is_none() {
        return Err(Refusal::MissingDeadline);
    }
    Ok(())
}

/// Decides a read, which is always admitted. The arm `reads` registers its token.
fn read(policy: &Policy, arm: Arm, state: &mut ArmState, request: &Request, number: Version) -> ArmOutcome {
    let seen = state.seen.map(|seen| seen.token);
    let registers = arm == Arm::Reads && policy.bug().is_none_or(|bug| bug.registers_read(number));
    let registered = registers && state.register(request.token, request.hold);
    if arm == Arm::Claim && request.hold.is_some() {
        state.claim = request.hold;
    }
    ArmOutcome { arm, admitted: true, seen, registered, base: None, version: state.version, value: state.value.clone() }
}

/// Decides a write. `known` is the largest token that the check uses: that of `state`, except under a planted bug.
fn write(
    policy: &Policy,
    arm: Arm,
    state: &mut ArmState,
    known: Option<HighestToken>,
    request: &Request,
    proposal: &Proposal,
    number: Version,
) -> ArmOutcome {
    let seen = state.seen.map(|seen| seen.token);
    let admitted = match arm {
        Arm::Off => true,
        Arm::Writes | Arm::Reads => admits_token(policy, known, request, number),
        Arm::Cas => proposal.base == Some(state.version),
        Arm::Claim => request.hold.is_some() && request.hold == state.claim,
        // This process does not see the lock's store.
        Arm::Guard => false,
        Arm::Deadline => request.deadline.is_some_and(Deadline::is_kept),
    };
    let registered = admitted && arm.fences() && state.register(request.token, request.hold);
    if admitted {
        state.value = Some(proposal.value.clone());
        state.version = number;
    }
    ArmOutcome {
        arm,
        admitted,
        seen,
        registered,
        base: proposal.base,
        version: state.version,
        value: state.value.clone(),
    }
}

/// Compares the token of a write on a fencing arm.
fn admits_token(policy: &Policy, seen: Option<HighestToken>, request: &Request, number: Version) -> bool {
    // `check` has ensured that there is a token; a write without one is refused.
    let Some(token) = request.token else { return false };
    let honest = seen.is_none_or(|seen| match policy.comparison() {
        Comparison::Default => token > seen.token || (token == seen.token && request.hold == seen.hold),
        Comparison::Strict => token > seen.token,
    });
    policy.bug().map_or(honest, |bug| bug.bend(honest, policy.comparison(), token, seen, number))
}
