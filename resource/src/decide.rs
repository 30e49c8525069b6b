//! The rule of the resource: a state, a request, a decision. No clock, no I/O, no randomness, so that
//! the service and a simulation run the same code.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::buggy::Planted;
use crate::policy::{Arm, Comparison, Policy};
use crate::types::{Action, Admission, ArmOutcome, HoldId, Key, OpId, Proposal, Request, Token, Version};

/// The largest registered token, and the hold that *first* registered it. A hold that brings the same
/// token later registers nothing: otherwise two holds that share a token would take turns at owning it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The token.
    pub token: Token,
    /// Its hold. Requests that name no hold count as one hold, for want of anything better.
    pub hold: Option<HoldId>,
}

/// One key on one arm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmState {
    /// What the last admitted write left.
    pub value: Option<String>,
    /// The number of that write; 0 before the first.
    pub version: Version,
    /// The largest token so far.
    pub seen: Option<Seen>,
    /// The hold that read last, on the arm `claim`.
    #[serde(default)]
    pub claim: Option<HoldId>,
}

impl ArmState {
    /// Registers `token` if it is the largest so far, and says whether it was.
    fn register(&mut self, token: Option<Token>, hold: Option<HoldId>) -> bool {
        match token {
            Some(token) if self.seen.is_none_or(|seen| token > seen.token) => {
                self.seen = Some(Seen { token, hold });
                true
            }
            _ => false,
        }
    }
}

/// One key on all arms.
pub type KeyState = BTreeMap<Arm, ArmState>;

/// An operation that was decided, and what was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// What was asked.
    pub request: Request,
    /// How it was decided.
    pub admission: Admission,
}

/// How far numbers jump when a store is opened again. A number may have been given to a decision that
/// did not reach the disk, and an observer may have seen it; far fewer than so many can have been on
/// their way, so that none is given out twice.
pub(crate) const RESTART_JUMP: u64 = 1 << 20;

/// All that the resource knows. It grows with the keys that were touched and with the operations that
/// carried an id: an id is never forgotten, since a delayed copy of a request may come at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    last: Version,
    keys: BTreeMap<Key, KeyState>,
    formers: BTreeMap<(HoldId, OpId), Former>,
    /// For [`Planted::ChecksInTwoSteps`] only: the key of the last request, as it was before it.
    before: Option<(Key, KeyState)>,
}

/// Why a request cannot be decided at all: it changed nothing and has no place in the admission log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A fenced arm is there, and the write carries no token.
    #[error("missing X-Fence-Token: a write on the arm '{arm}' needs one")]
    MissingToken {
        /// The first arm that needs it.
        arm: Arm,
    },
    /// The arm `cas` is there, and the write says no version.
    #[error("missing base: a write on the arm 'cas' needs the version that it was computed from")]
    MissingBase,
    /// The write leaves an arm of the resource out.
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
    /// The same hold and operation came before with another content.
    #[error("operation {op} of hold {hold} was something else before: an operation keeps its key, token and content")]
    OpReused {
        /// The hold.
        hold: HoldId,
        /// The operation.
        op: OpId,
    },
}

impl State {
    /// A state as it was stored; `last` is the largest number in it.
    pub(crate) fn restore(
        last: Version,
        keys: BTreeMap<Key, KeyState>,
        formers: BTreeMap<(HoldId, OpId), Former>,
    ) -> State {
        State { last, keys, formers, before: None }
    }

    /// What a resource goes on with that is started again and finds this state on its disk. All numbers from here on are larger than any
    /// that were given out before, also than those that did not reach the disk.
    #[must_use]
    pub fn reopened(mut self, policy: &Policy) -> State {
        // A new store begins with 1; only what was used before can have given numbers out.
        if self.last > Version(0) {
            self.last = Version(self.last.0.saturating_add(RESTART_JUMP));
        }
        self.before = None;
        if policy.planted().is_some_and(|planted| !planted.keeps_tokens()) {
            self.keys.values_mut().flat_map(BTreeMap::values_mut).for_each(|arm| arm.seen = None);
        }
        if policy.planted().is_some_and(|planted| !planted.keeps_formers()) {
            self.formers.clear();
        }
        self
    }

    /// The number of the last decision.
    pub fn last(&self) -> Version {
        self.last
    }

    /// One key; none as long as nothing was written or registered there.
    pub fn key(&self, key: &Key) -> Option<&KeyState> {
        self.keys.get(key)
    }

    /// The answer that was given to an operation, if it has been decided.
    pub fn former(&self, hold: HoldId, op: OpId) -> Option<&Former> {
        self.formers.get(&(hold, op))
    }

    /// Decides `request` on every arm of `policy` and applies what is admitted.
    ///
    /// A state belongs to one policy: use the same one for every request.
    ///
    /// # Errors
    /// The request makes no sense here; nothing was changed.
    pub fn decide(&mut self, policy: &Policy, request: &Request) -> Result<Admission, Refusal> {
        check(policy, request)?;
        let id = request.hold.zip(request.op).filter(|_| policy.planted() != Some(Planted::AppliesRepeats));
        if let Some((hold, op)) = id
            && let Some(former) = self.formers.get(&(hold, op))
        {
            return if former.request == *request {
                Ok(Admission { repeat: true, ..former.admission.clone() })
            } else {
                Err(Refusal::OpReused { hold, op })
            };
        }
        self.last = Version(self.last.0 + 1);
        let admission = Admission {
            number: self.last,
            key: request.key.clone(),
            hold: request.hold,
            op: request.op,
            token: request.token,
            kind: request.action.kind(),
            arms: self.decide_arms(policy, request),
            repeat: false,
        };
        if let Some(id) = id {
            self.formers.insert(id, Former { request: request.clone(), admission: admission.clone() });
        }
        Ok(admission)
    }

    /// Decides on each arm; a read that registers nothing leaves no trace of its key.
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
                    Action::Read => read(policy, arm, state, request),
                    Action::Write(arms) => write(policy, arm, state, known, request, &arms[&arm], number),
                }
            })
            .collect();
        if is_fresh && fresh.values().any(|state| *state != ArmState::default()) {
            self.keys.insert(request.key.clone(), fresh);
        }
        outcomes
    }

    /// For [`Planted::ChecksInTwoSteps`]: the key as it was before the request just before this one.
    fn outdated(&mut self, policy: &Policy, request: &Request) -> Option<KeyState> {
        if policy.planted() != Some(Planted::ChecksInTwoSteps) {
            return None;
        }
        let now = self.keys.get(&request.key).cloned().unwrap_or_default();
        let before = self.before.replace((request.key.clone(), now.clone()));
        Some(before.filter(|(key, _)| *key == request.key).map_or(now, |(_, before)| before))
    }

    /// For [`Planted::OneTokenForAllKeys`]: the largest token of all keys.
    fn shared(&self, policy: &Policy) -> Option<BTreeMap<Arm, Seen>> {
        if policy.planted() != Some(Planted::OneTokenForAllKeys) {
            return None;
        }
        let largest = |arm: Arm| self.keys.values().filter_map(|key| key.get(&arm)?.seen).max_by_key(|seen| seen.token);
        Some(policy.arms().iter().filter_map(|&arm| Some((arm, largest(arm)?))).collect())
    }
}

/// Whether `request` can be decided under `policy`.
fn check(policy: &Policy, request: &Request) -> Result<(), Refusal> {
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
    if let Some(&arm) = policy.arms().iter().find(|arm| arm.is_fenced() && request.token.is_none()) {
        return Err(Refusal::MissingToken { arm });
    }
    if arms.get(&Arm::Cas).is_some_and(|proposal| proposal.base.is_none()) {
        return Err(Refusal::MissingBase);
    }
    Ok(())
}

/// A read is never refused: at most it raises the largest token of the arm `reads`.
fn read(policy: &Policy, arm: Arm, state: &mut ArmState, request: &Request) -> ArmOutcome {
    let seen = state.seen.map(|seen| seen.token);
    let registers = arm == Arm::Reads && policy.planted() != Some(Planted::ReadsDoNotRegister);
    let registered = registers && state.register(request.token, request.hold);
    if arm == Arm::Claim && request.hold.is_some() {
        state.claim = request.hold;
    }
    ArmOutcome { arm, admitted: true, seen, registered, base: None, version: state.version, value: state.value.clone() }
}

/// `known` is the largest token as the check knows it: that of `state`, but for a planted bug.
fn write(
    policy: &Policy,
    arm: Arm,
    state: &mut ArmState,
    known: Option<Seen>,
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
    };
    let registered = admitted && arm.is_fenced() && state.register(request.token, request.hold);
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

/// The comparison of a fenced arm.
fn admits_token(policy: &Policy, seen: Option<Seen>, request: &Request, number: Version) -> bool {
    // `check` has seen to it that a token is there; without one nothing is admitted.
    let Some(token) = request.token else { return false };
    let honest = seen.is_none_or(|seen| match policy.comparison() {
        Comparison::Default => token > seen.token || (token == seen.token && request.hold == seen.hold),
        Comparison::Strict => token > seen.token,
    });
    policy.planted().map_or(honest, |planted| planted.bend(honest, policy.comparison(), token, seen, number))
}
