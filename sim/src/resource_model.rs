//! The resource: the rule of the crate `resource`, over a model of a disk that each decision reaches a moment later.

use std::{collections::VecDeque, ops::RangeInclusive, sync::Arc, time::Duration};

use history::{Stamp, Version};
use resource::{Admission, Policy, Refusal, Request, State};

/// A resource and its disk.
pub(crate) struct ResourceModel {
    policy: Arc<Policy>,
    /// The policy from an instant on: a planted bug may draw.
    redrawn: Option<(Stamp, Policy)>,
    state: State,
    disk: Option<Disk>,
}

/// The data that survives the process. Only a plan that kills the resource needs a disk.
#[derive(Default)]
struct Disk {
    state: State,
    /// The largest number on the disk. The number in `state` jumps when the store is opened again.
    durable: Version,
    /// Decisions that are not on the disk yet, each with the time at which it will be, and the policy that decided.
    pending: VecDeque<(Stamp, Request, Arc<Policy>)>,
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
        }
    }

    /// Decides `request` now. A group commit that begins now ends at `synced`. Also returns the time at which the
    /// decision is on the disk, which is never before that of an earlier decision.
    pub fn decide(&mut self, now: Stamp, synced: Stamp, request: &Request) -> (Result<Admission, Refusal>, Stamp) {
        if let Some((_, policy)) = self.redrawn.take_if(|(from, _)| *from <= now) {
            self.policy = Arc::new(policy);
        }
        let decided = self.state.decide(&self.policy, request);
        let (Some(disk), Ok(_)) = (&mut self.disk, &decided) else { return (decided, synced) };
        disk.sync(now);
        let durable = disk.pending.back().map_or(synced, |(last, ..)| synced.max(*last));
        disk.pending.push_back((durable, request.clone(), self.policy.clone()));
        (decided, durable)
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
            disk.pending.clear();
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
    fn sync(&mut self, now: Stamp) {
        while self.pending.front().is_some_and(|(at, ..)| *at <= now)
            && let Some((_, request, policy)) = self.pending.pop_front()
        {
            // The same decision was made before from the same state, so it cannot be refused now.
            if let Ok(admission) = self.state.decide(&policy, &request) {
                self.durable = self.durable.max(admission.number);
            }
        }
    }
}
