//! The cluster as the nemesis sees it.

use std::{sync::Arc, time::Duration};

use history::{ClientId, ClockChange, Event, Fault, FaultId, NodeName, Point, Stamp, WhichClock};
use nemesis::{AnswerTime, Cluster, ClusterError, Control, Data, Doing};

use crate::{
    clock::{Clocks, START},
    executor::Process,
    process_clock::Sleep,
    remote_resource::recovered,
    store::members,
    thread_bound::{ThreadBound, lock},
    workers::Workers,
    world::World,
};

/// An engine needs so long until what it was asked for takes effect, and as long again until it says so.
const ENGINE: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(12);

/// A server that has not answered for so long does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The cluster, and the ports of nemesis and controller.
pub(crate) struct SimCluster {
    pub world: Arc<World>,
    pub workers: ThreadBound<Workers>,
}

impl SimCluster {
    pub(crate) fn node(&self, name: &NodeName, doing: &'static str) -> Result<Process, ClusterError> {
        let missing = || ClusterError { node: name.clone(), doing, why: "no such node in this cluster".into() };
        self.world.find(name).ok_or_else(missing)
    }

    /// Does something to a node, as late as an engine would.
    fn act<'a, T: Send + 'a>(
        &'a self,
        name: &'a NodeName,
        doing: &'static str,
        act: impl FnOnce(&Arc<World>, Process) -> Result<T, String> + Send + 'a,
    ) -> Doing<'a, T> {
        Box::pin(async move {
            let node = self.node(name, doing)?;
            Sleep::lasting(&self.world, self.world.draw(ENGINE)).await;
            let done = act(&self.world, node);
            Sleep::lasting(&self.world, self.world.draw(ENGINE)).await;
            done.map_err(|why| ClusterError { node: name.clone(), doing, why })
        })
    }

    /// Looks at a node.
    fn look<'a, T: Send + 'a>(&self, name: &'a NodeName, look: impl FnOnce(&World, Process) -> T) -> Doing<'a, T> {
        let found = self.node(name, "looking at it").map(|node| look(&self.world, node));
        Box::pin(std::future::ready(found))
    }
}

impl Cluster for SimCluster {
    fn freeze<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.act(node, "freezing", |world, node| {
            if !world.is_up(node) {
                return Err("it is not running".into());
            }
            world.freeze(node);
            members::frozen(world, node);
            Ok(())
        })
    }

    fn thaw<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.act(node, "thawing", |world, node| {
            world.thaw(node);
            members::thawed(world, node);
            Ok(())
        })
    }

    // The model has no difference between the freezer and a signal: both keep a process from running.
    fn stop<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.freeze(node)
    }

    fn resume<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.thaw(node)
    }

    fn slow_down<'a>(&'a self, node: &'a NodeName, percent: u8) -> Doing<'a, ()> {
        self.act(node, "slowing it down", move |world, node| {
            if !world.is_up(node) {
                return Err("it is not running".into());
            }
            world.slow_down(node, percent);
            Ok(())
        })
    }

    fn speed_up<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.act(node, "removing its processor quota", |world, node| {
            world.speed_up(node);
            Ok(())
        })
    }

    fn answer_time<'a>(&'a self, node: &'a NodeName) -> Doing<'a, AnswerTime> {
        Box::pin(async move {
            let (server, asked) = (self.node(node, "asking it")?, self.world.executor.now());
            for _ in 0..ANSWER_WITHIN.as_millis() {
                if self.world.is_up(server) {
                    return Ok(AnswerTime::Well(self.world.executor.now().since(asked)));
                }
                Sleep::lasting(&self.world, Duration::from_millis(1)).await;
            }
            Ok(AnswerTime::Silent)
        })
    }

    fn is_frozen<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.look(node, |world, node| world.node(node, |n| n.frozen_since.is_some()))
    }

    fn kill<'a>(&'a self, node: &'a NodeName) -> Doing<'a, ()> {
        self.act(node, "killing", |world, node| {
            world.kill(node);
            members::killed(world, node);
            Ok(())
        })
    }

    fn start_with_counters<'a>(&'a self, node: &'a NodeName, of: &'a [NodeName]) -> Doing<'a, ()> {
        let others: Vec<Option<Process>> = of.iter().map(|name| self.world.find(name)).collect();
        self.act(node, "starting it with the counters of other nodes", move |world, node| {
            if !world.node(node, |n| n.is_running) {
                let silent = others.iter().position(|other| other.is_none_or(|other| !world.is_up(other)));
                if let Some(silent) = silent {
                    return Err(format!("{} does not answer", of[silent]));
                }
                let of: Vec<Process> = others.into_iter().flatten().collect();
                world.servers.restart(node, Data::Lost, world.node(node, |n| n.killed));
                world.servers.take_over(node, &of);
                world.start(node);
            }
            Ok(())
        })
    }

    fn pending_fsyncs<'a>(&'a self, node: &'a NodeName) -> Doing<'a, Option<u32>> {
        self.look(node, |world, node| world.servers.nodes.get(node).and_then(|server| lock(server).pending_fsyncs()))
    }

    fn leave_marker<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.look(node, |world, node| world.servers.nodes.get(node).map(|server| lock(server).leave_marker()).is_some())
    }

    // The models lose exactly what was not synced.
    fn kept_unsynced<'a>(&'a self, _: &'a NodeName) -> Doing<'a, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn take_marker<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.look(node, |world, node| world.servers.nodes.get(node).is_some_and(|server| lock(server).take_marker()))
    }

    fn start<'a>(&'a self, node: &'a NodeName, data: Data) -> Doing<'a, ()> {
        self.act(node, "starting", move |world, node| {
            if world.node(node, |n| n.is_running) {
                return Ok(());
            }
            if node < world.lock_nodes {
                world.servers.restart(node, data, world.node(node, |n| n.killed));
            }
            world.start(node);
            if node == world.resource() {
                recovered(world);
            } else if node >= world.lock_nodes {
                lock(&self.workers).restart(world, node - world.lock_nodes)?;
            }
            Ok(())
        })
    }

    fn is_running<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.look(node, |world, node| world.node(node, |n| n.is_running))
    }

    fn answers<'a>(&'a self, node: &'a NodeName) -> Doing<'a, bool> {
        self.look(node, World::is_up)
    }

    fn leader(&self) -> Doing<'_, Option<NodeName>> {
        let leader = members::leader(&self.world).map(|node| self.world.node(node, |n| n.name.clone()));
        Box::pin(std::future::ready(Ok(leader)))
    }

    fn inject_links<'a>(&'a self, node: &'a NodeName, fault: FaultId, what: &'a Fault) -> Doing<'a, ()> {
        self.act(node, "injecting a fault of its links", move |world, node| {
            world.inject_links(node, fault, what);
            Ok(())
        })
    }

    fn heal_links<'a>(&'a self, node: &'a NodeName, fault: FaultId) -> Doing<'a, ()> {
        self.act(node, "healing a fault of its links", move |world, _| {
            world.heal_links(fault);
            Ok(())
        })
    }

    fn latency<'a>(&'a self, from: &'a NodeName, to: &'a NodeName) -> Doing<'a, Option<Duration>> {
        Box::pin(async move {
            let latency = self.world.probe(self.node(from, "probing")?, self.node(to, "probing")?);
            if let Some(latency) = latency {
                Sleep::lasting(&self.world, latency).await;
            }
            Ok(latency)
        })
    }

    fn stale_connections<'a>(&'a self, node: &'a NodeName, peers: &'a [NodeName], reset: bool) -> Doing<'a, u32> {
        let peers: Vec<Process> = peers.iter().filter_map(|peer| self.world.find(peer)).collect();
        self.look(node, move |world, node| world.stale_connections(node, &peers, reset))
    }

    fn set_clock<'a>(&'a self, node: &'a NodeName, clock: WhichClock, change: ClockChange) -> Doing<'a, ()> {
        self.act(node, "setting its clock", move |world, node| {
            world.move_clock(node, clock, change);
            Ok(())
        })
    }

    fn clock_ahead_ns<'a>(&'a self, node: &'a NodeName, clock: WhichClock) -> Doing<'a, i64> {
        self.look(node, |world, node| {
            let now = world.executor.now();
            let (right, own) = (Clocks::right(START), *lock(&world.clocks[node]));
            let (own, right) = match clock {
                WhichClock::Monotonic => (own.monotonic, right.monotonic),
                WhichClock::Wall | WhichClock::Both => (own.wall, right.wall),
            };
            (own.shows_ns(now) - right.shows_ns(now)) as i64
        })
    }
}

impl Control for SimCluster {
    fn stamp<'a>(&'a self, event: Event) -> Doing<'a, Stamp> {
        let stamp = self.world.record(self.world.agent(), event);
        Box::pin(std::future::ready(Ok(stamp)))
    }

    fn arm<'a>(&'a self, client: ClientId, point: Point, bound: Duration) -> Doing<'a, ()> {
        if let Some(worker) = lock(&self.workers).of(client) {
            worker.points().arm(client, point, bound);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn let_go<'a>(&'a self, client: ClientId) -> Doing<'a, ()> {
        if let Some(worker) = lock(&self.workers).of(client) {
            worker.points().go(client);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn sleep<'a>(&'a self, lasting: Duration) -> Doing<'a, ()> {
        let sleep = Sleep::lasting(&self.world, lasting);
        Box::pin(async move {
            sleep.await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use history::Persistence;
    use locks::{Key, Owner, Step, StepAnswer};

    use super::*;
    use crate::{
        models::redis::RedisModel,
        servers::NodeModel,
        world::tests::{REDIS, run_for, world},
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn cluster(world: &Arc<World>) -> SimCluster {
        SimCluster { world: world.clone(), workers: ThreadBound::new(Workers::new(world, "redis")) }
    }

    /// Lets the controller do something for at most a second, and returns the result.
    fn done<T: Send + 'static>(world: &Arc<World>, doing: impl Future<Output = T> + Send + 'static) -> T {
        let done = Arc::new(ThreadBound::new(None));
        let result = done.clone();
        let task = async move {
            let what = doing.await;
            *lock(&result) = Some(what);
        };
        world.executor.spawn(world.controller(), Box::pin(task));
        run_for(world, ms(1_000));
        lock(&done).take().expect("it is done within a second")
    }

    /// Sets a key 900 ms after the start. Then the wall clock of the server jumps, and a kill is asked for at
    /// `killed_ms`, and a restart with the synced data 300 ms after the kill. Returns whether the key is still there.
    fn is_left(persistence: Persistence, ahead_ms: i64, killed_ms: u64) -> bool {
        let world = world(1, REDIS);
        *lock(&world.servers.nodes[0]) = NodeModel::Redis(RedisModel::new(persistence).started(world.wall(0)));
        let cluster = cluster(&world);
        let acquire = |owner: &str| {
            let step = Step::Acquire(Key::new("k0"), Owner::new(owner), ms(1_000_000));
            lock(&world.servers.nodes[0]).apply(&step, world.wall(0))
        };
        run_for(&world, ms(900));
        acquire("a");
        world.move_clock(0, WhichClock::Wall, ClockChange::JumpMs(ahead_ms));
        let restart = async move {
            let node = NodeName::new("node-1");
            Sleep::lasting(&cluster.world, ms(killed_ms - 900)).await;
            cluster.kill(&node).await.unwrap();
            Sleep::lasting(&cluster.world, ms(300)).await;
            cluster.start(&node, Data::Synced).await.unwrap();
        };
        world.executor.spawn(world.controller(), Box::pin(restart));
        run_for(&world, ms(killed_ms));
        acquire("b") == StepAnswer::Refused
    }

    #[test]
    fn a_server_that_is_down_syncs_nothing_and_makes_no_snapshot() {
        // The engine kills 2 to 12 ms after it was asked to. A second begins at 1000 ms; a snapshot is due at 6100 ms.
        for (persistence, ahead_ms, killed_ms, expected) in [
            (Persistence::Everysec, 0, 900, false),
            (Persistence::Everysec, 0, 1_000, true),
            (Persistence::Everysec, 100, 900, true),
            (Persistence::Snapshot, 0, 5_900, false),
            (Persistence::Snapshot, 0, 6_100, true),
            (Persistence::Snapshot, 200, 5_900, true),
        ] {
            let left = is_left(persistence, ahead_ms, killed_ms);
            assert_eq!(left, expected, "{persistence:?}, {ahead_ms} ms ahead, killed at {killed_ms} ms");
        }
    }

    #[test]
    fn a_server_that_was_restarted_long_ago_makes_a_snapshot_as_soon_as_anything_changes() {
        let world = world(1, REDIS);
        let model = RedisModel::new(Persistence::Snapshot).started(world.wall(0));
        *lock(&world.servers.nodes[0]) = NodeModel::Redis(model);
        let acquire = |owner: &str| {
            let step = Step::Acquire(Key::new("k0"), Owner::new(owner), ms(1_000_000));
            lock(&world.servers.nodes[0]).apply(&step, world.wall(0))
        };
        let restart = || {
            world.kill(0);
            world.servers.restart(0, Data::Kept, world.node(0, |n| n.killed));
            world.start(0);
        };
        restart();
        run_for(&world, ms(7_000));
        acquire("a");
        run_for(&world, ms(300));
        restart();
        assert_eq!(acquire("b"), StepAnswer::Refused);
    }

    #[test]
    fn a_process_that_does_not_run_is_neither_frozen_nor_slowed_down() {
        let world = world(1, REDIS);
        world.kill(0);
        let cluster = cluster(&world);
        let results = done(&world, async move {
            let node = NodeName::new("node-1");
            let (frozen, slow) = (cluster.freeze(&node).await, cluster.slow_down(&node, 50).await);
            (frozen.is_err(), slow.is_err(), cluster.is_frozen(&node).await)
        });
        assert_eq!(results, (true, true, Ok(false)));
    }

    #[test]
    fn a_node_starts_with_the_counters_of_others_only_if_each_of_them_answers() {
        for silent in ["node-2", "node-3"] {
            let world = world(3, REDIS);
            world.kill(0);
            world.freeze(world.find(&NodeName::new(silent)).unwrap());
            let cluster = cluster(&world);
            let started = done(&world, async move {
                let (node, of) = (NodeName::new("node-1"), ["node-2", "node-3"].map(NodeName::new));
                cluster.start_with_counters(&node, &of).await
            });
            assert!(started.is_err_and(|error| error.why.starts_with(silent)), "{silent}");
            assert!(!world.node(0, |n| n.is_running), "{silent}");
        }
    }
}
