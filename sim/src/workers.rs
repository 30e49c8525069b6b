//! The worker processes of a run.

use std::{sync::Arc, time::Duration};

use history::{ClientId, Event, Key, NodeName, Stamp};
use locks::{Node, Servers};
use workloads::{
    attempt::Recording, backend::Backend, points::Points, ports::Journal, protocol::Configuration, worker::Worker,
};

use crate::{
    executor::Process,
    lock_node::LockNode,
    process_clock::{ProcessClock, Sleep},
    remote_resource::RemoteResource,
    reply::{ReplyReceiver, ReplySender, reply_channel},
    store::remote::RemoteStore,
    world::World,
};

/// The number of times that the final reads are tried.
const LOOKS_MAX: u32 = 20;
/// The time between two tries of the final reads.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The journal of one worker process.
struct ProcessJournal {
    world: Arc<World>,
    process: Process,
}

impl Journal for ProcessJournal {
    fn now(&self) -> Stamp {
        self.world.executor.now()
    }

    fn record(&self, event: Event) -> Stamp {
        self.world.record(self.process, event)
    }

    fn record_at(&self, at: Stamp, event: Event) {
        self.world.record_at(self.process, at, event);
    }
}

/// The worker processes of a run.
pub(crate) struct Workers {
    backend: String,
    workers: Vec<Option<Arc<Worker>>>,
    /// Tells each worker to finish, with the keys to read.
    finish: Vec<Option<ReplySender<Vec<Key>>>>,
    /// The number of the next process that is started after a kill.
    next: u32,
    clients_per_worker: u32,
    has_begun: bool,
}

impl Workers {
    /// Workers of `world` that have not been started.
    pub fn new(world: &World, backend: &str) -> Workers {
        let workload = &world.plan.workload;
        Workers {
            backend: backend.to_owned(),
            workers: vec![None; world.workers],
            finish: (0..world.workers).map(|_| None).collect(),
            next: workload.workers,
            clients_per_worker: workload.clients_per_worker,
            has_begun: false,
        }
    }

    /// The worker of a client, if it runs.
    pub fn of(&self, client: ClientId) -> Option<Arc<Worker>> {
        self.workers.get((client.0 / self.clients_per_worker) as usize)?.clone()
    }

    /// Connects the `index`-th worker, whose node has been started.
    pub fn connect(&mut self, world: &Arc<World>, index: usize, process: u32) -> Result<(), String> {
        let node = world.worker(index);
        let clock = Arc::new(ProcessClock { world: world.clone(), process: node });
        let servers = servers(world, node);
        let plan = &world.plan;
        let lock = Backend::named(&self.backend).and_then(|client| client.build(servers, plan.tokens, clock.clone()));
        let lock = lock.map_err(|e| e.to_string())?;
        let journal = Arc::new(ProcessJournal { world: world.clone(), process: node });
        let recording = Recording { journal: journal.clone(), clock, points: Arc::new(Points::default()) };
        let configuration = Configuration {
            process,
            first_client: ClientId(index as u32 * self.clients_per_worker),
            plan: (**plan).clone(),
            backend: self.backend.clone(),
            lock_nodes: Vec::new(),
            access: Default::default(),
            namespace: String::new(),
            resource: String::new(),
        };
        let resource = Arc::new(RemoteResource { world: world.clone(), worker: node });
        let worker = Worker::over(configuration, recording, lock, resource).redrawn(world.redraw);
        self.workers[index] = Some(Arc::new(worker));
        journal.record(Event::Ready { servers: versions(plan.lock_nodes.iter()) });
        Ok(())
    }

    /// Lets all workers begin.
    pub fn begin_all(&mut self, world: &Arc<World>) {
        self.has_begun = true;
        (0..world.workers).for_each(|index| self.begin(world, index));
    }

    /// The `index`-th worker, if it runs.
    pub fn at(&self, index: usize) -> Option<Arc<Worker>> {
        self.workers[index].clone()
    }

    /// Takes the sender that tells the `index`-th worker to finish; none, if there is no such worker.
    pub fn take_finish(&mut self, index: usize) -> Option<ReplySender<Vec<Key>>> {
        self.finish.get_mut(index).and_then(Option::take)
    }

    /// Lets the `index`-th worker begin.
    fn begin(&mut self, world: &Arc<World>, index: usize) {
        let Some(worker) = self.workers[index].clone() else { return };
        let (sender, receiver) = reply_channel();
        self.finish[index] = Some(sender);
        let journal = ProcessJournal { world: world.clone(), process: world.worker(index) };
        world.executor.spawn(journal.process, Box::pin(life(worker, journal, receiver)));
    }

    /// Connects a worker that was killed and started again, and lets it begin.
    pub fn restart(&mut self, world: &Arc<World>, index: usize) -> Result<(), String> {
        let process = self.next;
        self.next += 1;
        self.connect(world, index, process)?;
        if self.has_begun {
            self.begin(world, index);
        }
        Ok(())
    }

    /// Drops the workers, which own the world.
    pub fn clear(&mut self) {
        self.workers.clear();
    }
}

fn versions<'a>(nodes: impl Iterator<Item = &'a NodeName>) -> Vec<(NodeName, String)> {
    nodes.map(|node| (node.clone(), "model".to_owned())).collect()
}

fn servers(world: &Arc<World>, worker: Process) -> Servers {
    if world.servers.store.is_some() {
        return Servers::Store(Arc::new(RemoteStore::new(world.clone(), worker)));
    }
    let node = |(node, name): (usize, &NodeName)| -> Arc<dyn Node> {
        Arc::new(LockNode { world: world.clone(), worker, node, name: name.as_str().to_owned() })
    };
    Servers::Nodes(world.plan.lock_nodes.iter().enumerate().map(node).collect())
}

/// The life of a worker process, from its first critical section to its end.
async fn life(worker: Arc<Worker>, journal: ProcessJournal, finish: ReplyReceiver<Vec<Key>>) {
    worker.run().await;
    let Ok(keys) = finish.await else { return };
    // A worker notices only when it sends a request that the connection to a killed resource is lost.
    for tries_left in (0..LOOKS_MAX).rev() {
        if worker.final_reads(&keys).await.is_ok() {
            break;
        }
        if tries_left == 0 {
            return;
        }
        Sleep::lasting(&journal.world, LOOK_AGAIN_AFTER).await;
    }
    journal.record(Event::Finished);
    journal.world.retire(journal.process);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        remote_resource::recovered,
        world::tests::{REDIS, run_for, world},
    };

    #[test]
    fn a_worker_whose_final_reads_get_no_answer_does_not_finish() {
        // The final reads are tried for about 4 s.
        for (down_s, is_finished) in [(2, true), (6, false)] {
            let world = world(1, REDIS);
            let mut workers = Workers::new(&world, "redis");
            workers.connect(&world, 0, 0).unwrap();
            workers.at(0).unwrap().stop();
            workers.begin_all(&world);
            world.kill(world.resource());
            workers.take_finish(0).unwrap().say(vec![Key::numbered(0)]);
            let mut records = run_for(&world, Duration::from_secs(down_s));
            world.start(world.resource());
            recovered(&world);
            records.extend(run_for(&world, Duration::from_secs(6)));
            let found = records.iter().any(|record| matches!(record.event, Event::Finished));
            assert_eq!(found, is_finished, "down for {down_s} s");
        }
    }
}
