//! The steps and requests that only planted bugs send: steps of the algorithms with a condition left out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    hold::{Key, Owner, Token},
    validity::lease_ms,
};

/// One atomic command or script of one node that only a planted bug sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlantedStep {
    /// `Step::Acquire`, also if the key is not free. The answer is `Granted`.
    Overwrite(Key, Owner, #[serde(with = "lease_ms")] Duration),
    /// `Step::Acquire`. If the owner owns the key already, and the key was ever counted, sets the lease anew and counts
    /// nothing. The answer is `Granted` with the counter, or `Refused`.
    AcquireAgain(Key, Owner, #[serde(with = "lease_ms")] Duration),
    /// `Step::Acquire` of a key that never expires, until a step that extends the key gives it a lease. The answer is
    /// `Granted` or `Refused`.
    AcquireForever(Key, Owner),
    /// Increments the counter only. The answer is `Granted` with the counter, although the node has set no key.
    CountOnly(Key),
    /// Checks whether the owner owns the key. The answer is `Done` or `Refused`.
    IsOwner(Key, Owner),
    /// Removes the key of any owner. The answer is `Done`, or `Refused` if there was none.
    RemoveAny(Key),
    /// `Step::Extend` of the key of any owner. The answer is `Done`, or `Refused` if there is none.
    ExtendAny(Key, #[serde(with = "lease_ms")] Duration),
    /// `Step::Extend`, or if the key is free, sets the key for the lease and counts nothing. The answer is `Done`, or
    /// `Refused` if another owner has the key.
    ExtendOrSet(Key, Owner, #[serde(with = "lease_ms")] Duration),
    /// Lets the key run for exactly the lease from now on, if the owner owns the key, also if more time is left. The
    /// answer is `Done` or `Refused`.
    SetExpiry(Key, Owner, #[serde(with = "lease_ms")] Duration),
    /// `Step::RaiseFence` without the condition on the owner. The answer is `Done`, or `Refused` if the counter is
    /// larger.
    RaiseAny(Key, Token),
    /// `Step::RaiseFence` without the condition on the counter: the counter may decrease. The answer is `Done`, or
    /// `Refused` if the owner does not own the key.
    SetFence(Key, Owner, Token),
}

/// One request to a store that only a planted bug sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlantedOp {
    /// Removes every key of the queue. The answer is `Done`.
    DeleteAll(Key),
}

impl PlantedStep {
    /// The key that this step is about.
    pub fn key(&self) -> &Key {
        match self {
            PlantedStep::Overwrite(key, ..)
            | PlantedStep::AcquireAgain(key, ..)
            | PlantedStep::AcquireForever(key, ..)
            | PlantedStep::CountOnly(key)
            | PlantedStep::IsOwner(key, ..)
            | PlantedStep::RemoveAny(key)
            | PlantedStep::ExtendAny(key, ..)
            | PlantedStep::ExtendOrSet(key, ..)
            | PlantedStep::SetExpiry(key, ..)
            | PlantedStep::RaiseAny(key, ..)
            | PlantedStep::SetFence(key, ..) => key,
        }
    }

    /// Returns whether the step increments the counter. Its answer is then the counter.
    pub(crate) fn counts(&self) -> bool {
        matches!(
            self,
            PlantedStep::Overwrite(..)
                | PlantedStep::AcquireAgain(..)
                | PlantedStep::AcquireForever(..)
                | PlantedStep::CountOnly(..)
        )
    }
}
