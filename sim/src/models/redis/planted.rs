//! The steps that only planted bugs send, on the model of a node.

use locks::{StepAnswer, Token, planted::PlantedStep};

use super::{Kept, done, end};

impl Kept {
    /// Does a planted step on a key that has not expired.
    pub(super) fn apply_planted(&mut self, step: &PlantedStep, now_ms: u64) -> StepAnswer {
        match step {
            PlantedStep::AcquireForever(..) if self.lock.is_some() => StepAnswer::Refused,
            PlantedStep::Overwrite(_, owner, lease) => {
                self.set(owner, Some(end(now_ms, *lease)));
                self.count()
            }
            PlantedStep::AcquireForever(_, owner) => {
                self.set(owner, None);
                self.count()
            }
            PlantedStep::CountOnly(_) => self.count(),
            PlantedStep::ExtendOrSet(_, owner, lease) if self.lock.is_none() => {
                self.set(owner, Some(end(now_ms, *lease)))
            }
            PlantedStep::ExtendOrSet(_, owner, lease) => {
                done(self.owned_by(owner).map(|lock| lock.extend(end(now_ms, *lease))).is_some())
            }
            PlantedStep::ExtendAny(_, lease) => {
                done(self.lock.as_mut().map(|lock| lock.extend(end(now_ms, *lease))).is_some())
            }
            PlantedStep::SetExpiry(_, owner, lease) => {
                done(self.owned_by(owner).map(|lock| lock.expires_ms = Some(end(now_ms, *lease))).is_some())
            }
            PlantedStep::IsOwner(_, owner) => done(self.owned_by(owner).is_some()),
            PlantedStep::RemoveAny(_) => done(self.lock.take().is_some()),
            PlantedStep::RaiseAny(_, Token(token)) => self.set_counter(*token, self.counter <= *token),
            PlantedStep::SetFence(_, owner, Token(token)) => {
                let may = self.owned_by(owner).is_some();
                self.set_counter(*token, may)
            }
        }
    }
}
