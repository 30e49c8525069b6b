//! Worlds for the tests of this crate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use history::{Plan, Record};

use super::World;
use crate::{
    resource_model::ResourceModel,
    servers::{Servers, policy},
};

/// The facts about one Redis server.
pub(crate) const REDIS: &str = include_str!("../../../tests/shared/servers/redis.json");
/// The facts about the servers of `etcd`.
pub(crate) const ETCD: &str = include_str!("../../../tests/shared/servers/etcd.json");

/// A world with so many lock nodes, `node-1` and so on, two workers, and a resource with a disk. All of them run.
pub(crate) fn world(nodes: usize, servers: &str) -> Arc<World> {
    world_of(nodes, servers, "redis")
}

/// The same, for the clients of `backend`.
pub(crate) fn world_of(nodes: usize, servers: &str, backend: &str) -> Arc<World> {
    let mut plan = Plan::from_toml(include_str!("../traffic.toml")).unwrap();
    plan.workload.workers = 2;
    plan.lock_nodes = (1..=nodes).map(|n| format!("node-{n}").as_str().into()).collect();
    plan.servers = serde_json::from_str(servers).unwrap();
    let resource = ResourceModel::new(policy(&plan, None, 1).unwrap(), None, true);
    let servers = Servers::new(&plan, backend, resource);
    let world = World::new("test", Arc::new(plan), servers, None, true);
    (0..=world.resource()).for_each(|process| world.start(process));
    world
}

/// Runs the world for so long. Returns all records that were not handed over before.
pub(crate) fn run_for(world: &Arc<World>, lasting: Duration) -> Vec<Record> {
    let (is_over, mut records) = (Arc::new(AtomicBool::new(false)), Vec::new());
    let over = is_over.clone();
    world.executor.after(lasting, Box::new(move |_| over.store(true, Relaxed)));
    world.run(&is_over, &mut |record| records.push(record)).unwrap();
    world.hand_over(&mut |record| records.push(record));
    records
}
