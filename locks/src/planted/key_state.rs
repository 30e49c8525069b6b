//! The steps that only planted bugs send, on a key of a node.

use super::steps::PlantedStep;
use crate::{
    hold::Token,
    key_state::{KeyState, done, end},
    ports::StepAnswer,
};

impl KeyState {
    /// Does a planted step on a key that has not expired.
    pub(crate) fn apply_planted(&mut self, step: &PlantedStep, now_ms: u64) -> StepAnswer {
        match step {
            PlantedStep::AcquireForever(..) if self.held.is_some() => StepAnswer::Refused,
            PlantedStep::AcquireAgain(_, owner, lease) if self.held.is_some() => {
                let (counter, end_ms) = (self.counter(), end(now_ms, *lease));
                match self.owned_by(owner) {
                    Some(held) if counter > 0 => {
                        held.expires_ms = Some(end_ms);
                        StepAnswer::Granted(Token(counter))
                    }
                    _ => StepAnswer::Refused,
                }
            }
            PlantedStep::Overwrite(_, owner, lease) | PlantedStep::AcquireAgain(_, owner, lease) => {
                self.set(owner, Some(end(now_ms, *lease)));
                self.count()
            }
            PlantedStep::AcquireForever(_, owner) => {
                self.set(owner, None);
                self.count()
            }
            PlantedStep::CountOnly(_) => self.count(),
            PlantedStep::ExtendOrSet(_, owner, lease) if self.held.is_none() => {
                self.set(owner, Some(end(now_ms, *lease)))
            }
            PlantedStep::ExtendOrSet(_, owner, lease) => {
                done(self.owned_by(owner).map(|held| held.extend(end(now_ms, *lease))).is_some())
            }
            PlantedStep::ExtendAny(_, lease) => {
                done(self.held.as_mut().map(|held| held.extend(end(now_ms, *lease))).is_some())
            }
            PlantedStep::SetExpiry(_, owner, lease) => {
                done(self.owned_by(owner).map(|held| held.expires_ms = Some(end(now_ms, *lease))).is_some())
            }
            PlantedStep::IsOwner(_, owner) => done(self.owned_by(owner).is_some()),
            PlantedStep::RemoveAny(_) => done(self.held.take().is_some()),
            PlantedStep::RaiseAny(_, token) => self.raise(*token, self.counter() <= token.0),
            PlantedStep::SetFence(_, owner, token) => {
                let may = self.owned_by(owner).is_some();
                self.raise(*token, may)
            }
        }
    }
}
