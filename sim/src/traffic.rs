//! Ping-pong between pairs of processes: the executor and the links alone, to measure them beside other runtimes
//! (`make executors`). World, event loop and links are those of every simulation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use history::Plan;

pub use crate::link::LATENCY_US;
use crate::{
    clock::START,
    executor::Process,
    reply::{ReplyReceiver, ReplySender, reply_channel},
    resource_model::ResourceModel,
    servers::{self, Servers},
    world::World,
};

/// The results of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// The messages that arrived.
    pub arrived: u64,
    /// The virtual time from the start to the last arrival.
    pub lasted: Duration,
}

/// A message, which carries the sender of its answer.
struct Ball {
    number: u64,
    back: ReplySender<Ball>,
}

/// Lets `pairs` pairs, each a worker and a lock node, send `messages` messages each, back and forth. The links draw
/// their latencies ([`LATENCY_US`]) from `seed`.
///
/// # Errors
/// A message did not arrive.
pub fn ping_pong(pairs: u32, messages: u64, seed: u64) -> Result<Traffic, String> {
    let mut plan = Plan::from_toml(include_str!("traffic.toml")).map_err(|e| e.to_string())?;
    (plan.seed, plan.workload.workers) = (seed, pairs);
    plan.lock_nodes = (1..=pairs).map(|n| format!("node-{n}").as_str().into()).collect();
    let servers = Servers::new(&plan, "redis", ResourceModel::new(servers::policy(&plan, None, seed)?, None, false));
    let world = World::new("traffic", Arc::new(plan), servers, None, false);
    let total = u64::from(pairs) * messages;
    let (arrived, is_over) = (Arc::<AtomicU64>::default(), Arc::new(AtomicBool::new(total == 0)));
    (0..world.resource()).for_each(|process| world.start(process));
    for node in 0..pairs as usize {
        let (first, receiver) = reply_channel();
        let worker = world.worker(node);
        let play = |from, to, mut turn: ReplyReceiver<Ball>| {
            let (world, arrived, is_over) = (world.clone(), arrived.clone(), is_over.clone());
            let play = async move {
                while let Ok(Ball { number, back }) = turn.await {
                    is_over.store(arrived.fetch_add(1, Relaxed) + 1 == total, Relaxed);
                    if number == messages {
                        return;
                    }
                    turn = send(&world, from, to, number + 1, back);
                }
            };
            Box::pin(play)
        };
        world.executor.spawn(node, play(node, worker, receiver));
        world.executor.spawn(worker, play(worker, node, send(&world, worker, node, 1, first)));
    }
    let ended = world.run(&is_over, &mut |_| {});
    let traffic = Traffic { arrived: arrived.load(Relaxed), lasted: world.executor.now().since(START) };
    // Tasks own the world, and the world owns them.
    world.executor.clear();
    ended.map(|()| traffic)
}

/// Sends a message over the link, and returns the receiver of the answer.
fn send(
    world: &Arc<World>,
    from: Process,
    to: Process,
    number: u64,
    to_peer: ReplySender<Ball>,
) -> ReplyReceiver<Ball> {
    let (back, answer) = reply_channel();
    world.send(from, to, Box::new(move |_| to_peer.say(Ball { number, back })));
    answer
}
