//! The servers of a world, as models.

use std::time::Duration;

use history::{HoldId, Plan, ServerModel, fault::Data};
use locks::{Key, Owner, Step, StepAnswer, lock_server::LockServer, planted};
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

/// One independent server. Its caller gives it the time: the clock on which its leases run.
pub(crate) enum NodeModel {
    /// A Redis node.
    Redis(RedisModel),
    /// The lock server itself, which keeps nothing on disk but the marker.
    Memory { server: LockServer, has_marker: bool },
}

/// The backend whose servers remove no expired lock: only the next owner takes the row.
const KEEPS_EXPIRED: &str = "postgres";

/// The models of the servers.
pub(crate) struct Servers {
    /// The independent nodes, by lock node; empty if the backend is a store.
    pub nodes: Vec<ThreadBound<NodeModel>>,
    /// True if the independent nodes are lock servers in memory.
    pub is_in_memory: bool,
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
        let is_in_memory = plan.servers.model() == Some(ServerModel::LockServers);
        let backend = Backend::named(backend).ok();
        let keeps_expired = backend.as_ref().is_some_and(|backend| backend.name() == KEEPS_EXPIRED);
        let bug = backend.and_then(|client| client.bug);
        let drops_counters = bug.is_some_and(|bug| bug.name == planted::DROPS_COUNTERS);
        let node = || {
            if is_in_memory {
                return NodeModel::Memory { server: LockServer::default(), has_marker: false };
            }
            let wall = duration(Clocks::right(START).wall.shows_ns(START));
            let model = RedisModel::new(plan.persistence()).started(wall);
            let model = model.keeping_expired(keeps_expired);
            NodeModel::Redis(if drops_counters { model.dropping_counters() } else { model })
        };
        let nodes = plan.lock_nodes.iter().filter(|_| !is_store);
        Servers {
            nodes: nodes.map(|_| ThreadBound::new(node())).collect(),
            is_in_memory,
            store: is_store.then(|| ThreadBound::new(StoreCluster::new(&plan.servers, models, START))),
            resource: ThreadBound::new(resource),
        }
    }

    /// Restores the data of a server that is about to start again. Members of a store get theirs from each other.
    pub fn restart(&self, node: Process, data: Data, killed: Duration) {
        if let Some(server) = self.nodes.get(node) {
            lock(server).restart(data, killed);
        }
    }

    /// Notes that the process of a node starts, at `wall` by its clock.
    pub fn starts(&self, node: Process, wall: Duration) {
        let Some(server) = self.nodes.get(node) else { return };
        if let NodeModel::Redis(redis) = &mut *lock(server) {
            redis.starts(wall);
        }
    }

    /// Raises the counters of a Redis node to the largest ones of other nodes.
    pub fn take_over(&self, node: Process, of: &[Process]) {
        let Some(server) = self.nodes.get(node) else { return };
        let others = of.iter().filter(|other| **other != node).filter_map(|other| self.nodes.get(*other));
        for other in others {
            // A plan lets no lock server take over counters.
            if let (NodeModel::Redis(redis), NodeModel::Redis(other)) = (&mut *lock(server), &*lock(other)) {
                other.counters().iter().for_each(|(key, counter)| redis.raise_counter(key, *counter));
            }
        }
    }

    /// The holds that own `key` now: on a majority of the nodes, or in the queue of the store with no older key that
    /// conflicts.
    pub fn owners(
        &self,
        key: &Key,
        clock: impl Fn(Process) -> Duration,
        whose: impl Fn(&Owner) -> Option<HoldId>,
    ) -> Vec<HoldId> {
        if let Some(store) = &self.store {
            // etcd's own Lock service makes the key, and names it after the lease.
            let hold = |(owner, lease): (&Owner, Option<&Owner>)| whose(owner).or_else(|| lease.and_then(&whose));
            return lock(store).holders(key).filter_map(hold).collect();
        }
        let mut found: Vec<(HoldId, usize)> = Vec::new();
        for (node, server) in self.nodes.iter().enumerate() {
            let server = lock(server);
            let Some(hold) = server.owner(key, clock(node)).and_then(&whose) else { continue };
            match found.iter_mut().find(|(of, _)| *of == hold) {
                Some((_, nodes)) => *nodes += 1,
                None => found.push((hold, 1)),
            }
        }
        let majority = found.into_iter().find(|(_, nodes)| *nodes > self.nodes.len() / 2);
        majority.map(|(hold, _)| hold).into_iter().collect()
    }

    /// Lets a Redis whose clock, at `wall` now, is about to change remove its expired keys and write what is due to its
    /// disk. Such keys never come back.
    pub fn clock_moves(&self, node: Process, wall: Duration) {
        let Some(server) = self.nodes.get(node) else { return };
        if let NodeModel::Redis(redis) = &mut *lock(server) {
            redis.sweep(wall);
        }
    }
}

impl NodeModel {
    /// Does `step` at `now`.
    pub fn apply(&mut self, step: &Step, now: Duration) -> StepAnswer {
        match self {
            NodeModel::Redis(redis) => redis.apply(step, now),
            NodeModel::Memory { server, .. } => server.apply(step, now),
        }
    }

    fn owner(&self, key: &Key, now: Duration) -> Option<&Owner> {
        match self {
            NodeModel::Redis(redis) => redis.owner(key, now),
            NodeModel::Memory { server, .. } => server.owner(key, now),
        }
    }

    fn restart(&mut self, data: Data, killed: Duration) {
        match self {
            NodeModel::Redis(redis) => redis.restart(data, killed),
            NodeModel::Memory { server, has_marker } => {
                *server = LockServer::default();
                *has_marker &= data != Data::Lost;
            }
        }
    }

    /// The number of background fsyncs that are due; none without an append-only file.
    pub fn pending_fsyncs(&self) -> Option<u32> {
        match self {
            NodeModel::Redis(redis) => redis.pending_fsyncs(),
            NodeModel::Memory { .. } => None,
        }
    }

    /// Leaves a marker that only a restart without data removes.
    pub fn leave_marker(&mut self) {
        match self {
            NodeModel::Redis(redis) => redis.leave_marker(),
            NodeModel::Memory { has_marker, .. } => *has_marker = true,
        }
    }

    /// Removes the marker. Returns whether it was there.
    pub fn take_marker(&mut self) -> bool {
        match self {
            NodeModel::Redis(redis) => redis.take_marker(),
            NodeModel::Memory { has_marker, .. } => std::mem::take(has_marker),
        }
    }
}

/// The resource's policy by the plan. A planted bug that draws has its own seed.
pub(crate) fn policy(plan: &Plan, bug: Option<&str>, seed: u64) -> Result<Policy, String> {
    let planted = bug.map(|bug| PlantedBug::from_name(bug, seed)).transpose().map_err(|e| e.to_string())?;
    Ok(Policy::new(&plan.arms, plan.fence).map_err(|e| e.to_string())?.with_bug(planted))
}

#[cfg(test)]
mod tests {
    use history::{ClockChange, WhichClock};
    use locks::Token;

    use super::*;
    use crate::world::tests::{REDIS, world, world_of};

    const LEASE: Duration = Duration::from_secs(10);

    fn acquire(owner: &str) -> Step {
        Step::Acquire(Key::new("k0"), Owner::new(owner), LEASE)
    }

    #[test]
    fn a_node_takes_over_the_largest_counter_of_all_others() {
        for largest in 1..=3 {
            let world = world(4, REDIS);
            let now = world.wall(0);
            for node in 1..=3 {
                let mut server = lock(&world.servers.nodes[node]);
                let grants = if node == largest { 5 } else { 2 };
                for _ in 0..grants {
                    server.apply(&acquire("a"), now);
                    server.apply(&Step::Release(Key::new("k0"), Owner::new("a")), now);
                }
            }
            world.servers.take_over(0, &[1, 2, 3]);
            let granted = lock(&world.servers.nodes[0]).apply(&acquire("b"), now);
            assert_eq!(granted, StepAnswer::Granted(Token(6)), "node {largest} has the largest");
        }
    }

    #[test]
    fn the_heal_of_a_clock_brings_back_the_locks_that_a_server_keeps() {
        for (backend, keeps_expired) in [("redis", false), ("postgres", true)] {
            let world = world_of(1, REDIS, backend);
            lock(&world.servers.nodes[0]).apply(&acquire("a"), world.wall(0));
            let jump = 2 * i64::try_from(LEASE.as_millis()).unwrap();
            for by_ms in [jump, -jump] {
                world.move_clock(0, WhichClock::Wall, ClockChange::JumpMs(by_ms));
            }
            let owner = lock(&world.servers.nodes[0]).owner(&Key::new("k0"), world.wall(0)).cloned();
            assert_eq!(owner.is_some(), keeps_expired);
        }
    }

    #[test]
    fn a_lock_server_in_memory_loses_its_locks_with_every_restart() {
        for (data, has_marker) in [(Data::Kept, true), (Data::Lost, false)] {
            let mut node = NodeModel::Memory { server: LockServer::default(), has_marker: false };
            node.apply(&acquire("a"), Duration::ZERO);
            node.leave_marker();
            node.restart(data, Duration::ZERO);
            assert_eq!(node.owner(&Key::new("k0"), Duration::ZERO), None, "{data:?}");
            assert_eq!(node.take_marker(), has_marker, "{data:?}");
        }
    }

    #[test]
    fn a_hold_owns_a_key_only_on_more_than_half_of_the_nodes() {
        for (nodes, least) in [(1, 1), (2, 2), (4, 3), (5, 3)] {
            for of_a in 0..=nodes {
                let world = world(nodes, REDIS);
                let now = world.wall(0);
                for (node, server) in world.servers.nodes.iter().enumerate() {
                    lock(server).apply(&acquire(if node < of_a { "a" } else { "b" }), now);
                }
                let whose = |owner: &Owner| Some(HoldId(if *owner == Owner::new("a") { 1 } else { 2 }));
                let owners = world.servers.owners(&Key::new("k0"), |_| now, whose);
                let counts = [(HoldId(1), of_a), (HoldId(2), nodes - of_a)].into_iter();
                let expected: Vec<HoldId> = counts.filter(|(_, on)| *on >= least).map(|(hold, _)| hold).collect();
                assert_eq!(owners, expected, "{of_a} of {nodes} nodes");
            }
        }
    }
}
