//! The resource: the rule is `resource`'s own; what is modelled is its disk, which a decision reaches a moment after it was made.

use std::{collections::VecDeque, ops::RangeInclusive, time::Duration};

use history::Stamp;
use resource::{Admission, Policy, Refusal, Request, State, Version};

/// A resource and its disk.
pub(crate) struct ResourceModel {
    policy: Policy,
    state: State,
    disk: Option<Disk>,
}

/// What survives the process. Kept only where a plan kills it.
#[derive(Default)]
struct Disk {
    state: State,
    /// The largest number in it. That of the state jumps when the store is opened again.
    durable: Version,
    /// Decisions on their way: when each is on disk.
    pending: VecDeque<(Stamp, Request)>,
}

impl ResourceModel {
    /// How long a group commit takes.
    pub const SYNC: RangeInclusive<Duration> = Duration::from_micros(150)..=Duration::from_micros(600);

    /// A resource that has decided nothing; `is_fragile` if it may be killed.
    pub fn new(policy: Policy, is_fragile: bool) -> ResourceModel {
        ResourceModel { policy, state: State::default(), disk: is_fragile.then(Disk::default) }
    }

    /// Decides `request` now; it is on disk at `durable`.
    pub fn decide(&mut self, now: Stamp, durable: Stamp, request: &Request) -> Result<Admission, Refusal> {
        let decided = self.state.decide(&self.policy, request)?;
        if let Some(disk) = &mut self.disk {
            disk.sync(&self.policy, now);
            // Group commits come one after the other.
            let durable = disk.pending.back().map_or(durable, |(last, _)| durable.max(*last));
            disk.pending.push_back((durable, request.clone()));
        }
        Ok(decided)
    }

    /// Whether the answer goes before the decision is on disk: a planted bug.
    pub fn answers_early(&self, admission: &Admission) -> bool {
        self.policy.planted().is_some_and(|planted| planted.answers_before_durable(admission))
    }

    /// The process is gone, and another one opens the store: what is not on disk is lost. Returns the largest number that was.
    pub fn restart(&mut self, now: Stamp) -> Version {
        let Some(disk) = &mut self.disk else { return self.state.last() };
        disk.sync(&self.policy, now);
        disk.pending.clear();
        // What is forgotten by a restart stays forgotten: the disk goes on from what the process goes on with.
        disk.state = std::mem::take(&mut disk.state).reopened(&self.policy);
        self.state = disk.state.clone();
        disk.durable
    }
}

impl Disk {
    fn sync(&mut self, policy: &Policy, now: Stamp) {
        while let Some((_, request)) = self.pending.pop_front_if(|(at, _)| *at <= now) {
            // It was decided before, from the same state: it cannot be refused now.
            if let Ok(admission) = self.state.decide(policy, &request) {
                self.durable = self.durable.max(admission.number);
            }
        }
    }
}
