//! The resource: the rule of the crate `resource`, over a model of a disk that each decision reaches a moment later.
//!
//! A real resource keeps every operation, because a copy of its request may arrive at any time. The model knows which
//! copies are under way, so it forgets an operation once its client has its answer and no copy can arrive any more.

use std::{collections::VecDeque, ops::RangeInclusive, sync::Arc, time::Duration};

use history::{HoldId, OpId, Stamp, Version};
use resource::{Admission, Policy, Refusal, Request, State};

use crate::copies::Copies;

/// A resource and its disk.
pub(crate) struct ResourceModel {
    policy: Arc<Policy>,
    /// The policy from an instant on: a planted bug may draw.
    redrawn: Option<(Stamp, Policy)>,
    state: State,
    disk: Option<Disk>,
    /// The requests that may still arrive.
    pub copies: Copies,
}

/// The data that survives the process. Only a plan that kills the resource needs a disk.
#[derive(Default)]
struct Disk {
    state: State,
    /// The largest number on the disk. The number in `state` jumps when the store is opened again.
    durable: Version,
    /// Changes that are not on the disk yet, each with the time at which it will be.
    pending: VecDeque<(Stamp, Change)>,
}

/// A change of the data on the disk.
enum Change {
    /// A request, and the policy that decided it.
    Decision(Request, Arc<Policy>),
    /// An operation of which no copy can arrive any more.
    Forgotten(HoldId, OpId),
}

impl ResourceModel {
    /// The duration of a group commit.
    pub const SYNC: RangeInclusive<Duration> = Duration::from_micros(150)..=Duration::from_micros(600);

    /// A resource that has decided nothing. `is_fragile`: the plan kills the resource.
    pub fn new(policy: Policy, redrawn: Option<(Stamp, Policy)>, is_fragile: bool) -> ResourceModel {
        ResourceModel {
            policy: Arc::new(policy),
            redrawn,
            state: State::default(),
            disk: is_fragile.then(Disk::default),
            copies: Copies::default(),
        }
    }

    /// Decides `request` now. A group commit that begins now ends at `synced`. Also returns the time at which the
    /// decision is on the disk, which is never before that of an earlier decision.
    pub fn decide(&mut self, now: Stamp, synced: Stamp, request: &Request) -> (Result<Admission, Refusal>, Stamp) {
        if let Some((_, policy)) = self.redrawn.take_if(|(from, _)| *from <= now) {
            self.policy = Arc::new(policy);
        }
        self.forget();
        let decided = self.state.decide(&self.policy, request);
        let (Some(disk), Ok(_)) = (&mut self.disk, &decided) else { return (decided, synced) };
        disk.sync(now);
        let durable = disk.pending.back().map_or(synced, |(last, _)| synced.max(*last));
        disk.pending.push_back((durable, Change::Decision(request.clone(), self.policy.clone())));
        (decided, durable)
    }

    /// Forgets the operations of which no copy can arrive any more.
    fn forget(&mut self) {
        while let Some((hold, op)) = self.copies.take_over() {
            self.state.forget(hold, op);
            if let Some(disk) = &mut self.disk {
                disk.forget(hold, op);
            }
        }
    }

    /// Returns whether a planted bug answers before the decision is on the disk.
    pub fn answers_early(&self, admission: &Admission) -> bool {
        self.policy.bug().is_some_and(|planted| planted.answers_before_durable(admission))
    }

    /// Returns the decision that the answer to `admission` tells.
    pub fn told(&self, admission: Admission) -> Admission {
        self.policy.told(admission)
    }

    /// Loses the decisions that are not on the disk, because the process was killed.
    pub fn killed(&mut self, now: Stamp) {
        if let Some(disk) = &mut self.disk {
            disk.sync(now);
            disk.lose();
        }
    }

    /// Opens the store again. Returns the largest number on the disk.
    pub fn restart(&mut self) -> Version {
        let Some(disk) = &mut self.disk else { return self.state.last() };
        // A restart forgets some of the state; the disk continues from the same state as the process.
        disk.state = std::mem::take(&mut disk.state).reopened(&self.policy);
        self.state = disk.state.clone();
        disk.durable
    }
}

impl Disk {
    /// Makes the changes that have reached the disk by `now`.
    fn sync(&mut self, now: Stamp) {
        while self.pending.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, change)) = self.pending.pop_front()
        {
            match change {
                Change::Decision(request, policy) => {
                    // The same decision was made before from the same state, so it cannot be refused now.
                    if let Ok(admission) = self.state.decide(&policy, &request) {
                        self.durable = self.durable.max(admission.number);
                    }
                }
                Change::Forgotten(hold, op) => self.state.forget(hold, op),
            }
        }
    }

    /// Forgets an operation after the decisions that are pending, among which its own may be.
    fn forget(&mut self, hold: HoldId, op: OpId) {
        match self.pending.back() {
            Some((last, _)) => self.pending.push_back((*last, Change::Forgotten(hold, op))),
            None => self.state.forget(hold, op),
        }
    }

    /// Loses the decisions that are not on the disk.
    fn lose(&mut self) {
        for (_, change) in self.pending.drain(..) {
            if let Change::Forgotten(hold, op) = change {
                self.state.forget(hold, op);
            }
        }
    }
}

#[cfg(test)]
mod tests;
