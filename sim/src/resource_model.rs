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

    /// Decides `request` now. A group commit that begins now is over at `synced`; says when the decision is on disk, which is not before
    /// those before it are.
    pub fn decide(&mut self, now: Stamp, synced: Stamp, request: &Request) -> (Result<Admission, Refusal>, Stamp) {
        let decided = self.state.decide(&self.policy, request);
        let (Some(disk), Ok(_)) = (&mut self.disk, &decided) else { return (decided, synced) };
        disk.sync(&self.policy, now);
        let durable = disk.pending.back().map_or(synced, |(last, _)| synced.max(*last));
        disk.pending.push_back((durable, request.clone()));
        (decided, durable)
    }

    /// Whether the answer goes before the decision is on disk: a planted bug.
    pub fn answers_early(&self, admission: &Admission) -> bool {
        self.policy.planted().is_some_and(|planted| planted.answers_before_durable(admission))
    }

    /// The process is gone: what is not on disk by now is lost.
    pub fn killed(&mut self, now: Stamp) {
        if let Some(disk) = &mut self.disk {
            disk.sync(&self.policy, now);
            disk.pending.clear();
        }
    }

    /// Another process opens the store. Returns the largest number that was on disk.
    pub fn restart(&mut self) -> Version {
        let Some(disk) = &mut self.disk else { return self.state.last() };
        // What is forgotten by a restart stays forgotten: the disk goes on from what the process goes on with.
        disk.state = std::mem::take(&mut disk.state).reopened(&self.policy);
        self.state = disk.state.clone();
        disk.durable
    }
}

impl Disk {
    fn sync(&mut self, policy: &Policy, now: Stamp) {
        while self.pending.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, request)) = self.pending.pop_front()
        {
            // It was decided before, from the same state: it cannot be refused now.
            if let Ok(admission) = self.state.decide(policy, &request) {
                self.durable = self.durable.max(admission.number);
            }
        }
    }
}
