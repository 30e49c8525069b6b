//! The servers of a world, as models.

use std::time::Duration;

use history::{HoldId, Plan, ServerModel, fault::Data};
use locks::{Key, Owner, planted};
use resource::{PlantedBug, Policy};
use workloads::backend::Backend;

use crate::{
    clock::{Clocks, START, duration},
    executor::Process,
    models::redis::RedisModel,
    resource_model::ResourceModel,
    store::StoreCluster,
    thread_bound::{ThreadBound, lock},
};

/// The models of the servers.
pub(crate) struct Servers {
    /// The Redis nodes, by lock node; empty if the backend is a store.
    pub redis: Vec<ThreadBound<RedisModel>>,
    /// The store, if the backend is one.
    pub store: Option<ThreadBound<StoreCluster>>,
    /// The resource.
    pub resource: ThreadBound<ResourceModel>,
}

impl Servers {
    /// The servers of `plan`, empty.
    pub fn new(plan: &Plan, backend: &str, resource: ResourceModel) -> Servers {
        let models = plan.models.unwrap_or_default();
        let is_store = plan.servers.model() == Some(ServerModel::LeaseStore);
        let bug = Backend::named(backend).ok().and_then(|client| client.bug);
        let drops_counters = bug.is_some_and(|bug| bug.name == planted::DROPS_COUNTERS);
        let redis = || {
            let wall = duration(Clocks::right(START).wall.shows_ns(START));
            let model = RedisModel::new(plan.persistence()).started(wall);
            if drops_counters { model.dropping_counters() } else { model }
        };
        let nodes = plan.lock_nodes.iter().filter(|_| !is_store);
        Servers {
            redis: nodes.map(|_| ThreadBound::new(redis())).collect(),
            store: is_store.then(|| ThreadBound::new(StoreCluster::new(&plan.servers, models, START))),
            resource: ThreadBound::new(resource),
        }
    }

    /// Restores the data of a server that is about to start again. Members of a store get theirs from each other.
    pub fn restart(&self, node: Process, data: Data, killed: Duration) {
        if let Some(redis) = self.redis.get(node) {
            lock(redis).restart(data, killed);
        }
    }

    /// Raises the counters of a Redis node to the largest ones of other nodes.
    pub fn take_over(&self, node: Process, of: &[Process]) {
        let Some(redis) = self.redis.get(node) else { return };
        let others = of.iter().filter(|other| **other != node).filter_map(|other| self.redis.get(*other));
        for other in others {
            let counters = lock(other).counters();
            counters.iter().for_each(|(key, counter)| lock(redis).raise_counter(key, *counter));
        }
    }

    /// The holds that own `key` now: on a majority of the nodes, or in the queue of the store with no older key that
    /// conflicts.
    pub fn owners(
        &self,
        key: &Key,
        wall: impl Fn(Process) -> Duration,
        whose: impl Fn(&Owner) -> Option<HoldId>,
    ) -> Vec<HoldId> {
        if let Some(store) = &self.store {
            return lock(store).holders(key).filter_map(whose).collect();
        }
        let mut found: Vec<(HoldId, usize)> = Vec::new();
        for (node, redis) in self.redis.iter().enumerate() {
            let redis = lock(redis);
            let Some(hold) = redis.owner(key, wall(node)).and_then(&whose) else { continue };
            match found.iter_mut().find(|(of, _)| *of == hold) {
                Some((_, nodes)) => *nodes += 1,
                None => found.push((hold, 1)),
            }
        }
        let majority = found.into_iter().find(|(_, nodes)| *nodes > self.redis.len() / 2);
        majority.map(|(hold, _)| hold).into_iter().collect()
    }

    /// Removes the expired keys of a server whose clock, at `wall` now, is about to change. Such keys never come back.
    pub fn clock_moves(&self, node: Process, wall: Duration) {
        if let Some(redis) = self.redis.get(node) {
            lock(redis).sweep(wall);
        }
    }
}

/// The resource's policy by the plan. A planted bug that draws has its own seed.
pub(crate) fn policy(plan: &Plan, bug: Option<&str>, seed: u64) -> Result<Policy, String> {
    let planted = bug.map(|bug| PlantedBug::from_name(bug, seed)).transpose().map_err(|e| e.to_string())?;
    Ok(Policy::new(&plan.arms, plan.fence).map_err(|e| e.to_string())?.with_bug(planted))
}
