//! The workers of a run: started, started again after a kill, stopped.

use std::{sync::Arc, time::Duration};

use history::{ClientId, Event, Key, NodeName, Stamp};
use locks::Node;
use tokio::sync::watch;
use workloads::{
    attempt::Recording,
    backend::{self, Servers},
    points::Points,
    ports::Journal,
    protocol::Configuration,
    worker::Worker,
};

use crate::{
    clock::{ProcessClock, Sleep},
    executor::Process,
    local::{Local, lock},
    servers::{RedisNode, RemoteResource},
    store::RemoteStore,
    world::World,
};

/// The final reads are tried so often, and so long apart.
const LOOKS_MAX: u32 = 20;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Where a process of ours records.
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

/// The workers, and how far they have come.
pub(crate) struct Staff {
    backend: String,
    workers: Vec<Option<Arc<Worker>>>,
    /// The number of the next process that comes after a kill.
    next: u32,
    clients_per_worker: u32,
    is_stopped: bool,
    /// Which workers have ended their critical sections.
    drained: watch::Sender<Vec<bool>>,
    /// Told to each worker in turn: what it reads in the end. A channel with several receivers would wake them in an order of its own.
    finish: Vec<watch::Sender<Option<Vec<Key>>>>,
    finished: watch::Sender<usize>,
}

impl Staff {
    /// Nobody yet.
    pub fn new(world: &World, backend: &str) -> Staff {
        let plan = &world.plan;
        Staff {
            backend: backend.to_owned(),
            workers: vec![None; world.workers],
            next: plan.workload.workers,
            clients_per_worker: plan.workload.clients_per_worker,
            is_stopped: false,
            drained: watch::Sender::new(vec![false; world.workers]),
            finish: (0..world.workers).map(|_| watch::Sender::new(None)).collect(),
            finished: watch::Sender::new(0),
        }
    }

    /// The worker of a client, if it runs.
    pub fn of(&self, client: ClientId) -> Option<Arc<Worker>> {
        self.workers.get((client.0 / self.clients_per_worker) as usize)?.clone()
    }

    /// Starts the `index`-th worker for the first time.
    pub fn begin(staff: &Arc<Local<Staff>>, world: &Arc<World>, index: usize) -> Result<(), String> {
        let process = index as u32;
        Staff::launch(staff, world, index, process)
    }

    /// Starts it again.
    pub fn restart(staff: &Arc<Local<Staff>>, world: &Arc<World>, index: usize) -> Result<(), String> {
        let process = {
            let mut staff = lock(staff);
            staff.next += 1;
            staff.next - 1
        };
        Staff::launch(staff, world, index, process)
    }

    fn launch(staff: &Arc<Local<Staff>>, world: &Arc<World>, index: usize, process: u32) -> Result<(), String> {
        let node = world.worker(index);
        let plan = &world.plan;
        let clock = Arc::new(ProcessClock { world: world.clone(), process: node });
        let servers = servers(world, node);
        let mut this = lock(staff);
        let lock = backend::lock(&this.backend, plan.tokens, servers, clock.clone()).map_err(|e| e.to_string())?;
        let journal = Arc::new(ProcessJournal { world: world.clone(), process: node });
        let recording = Recording { journal: journal.clone(), clock, points: Arc::new(Points::default()) };
        let configuration = Configuration {
            process,
            first_client: ClientId(index as u32 * this.clients_per_worker),
            plan: (**plan).clone(),
            backend: this.backend.clone(),
            lock_nodes: Vec::new(),
            resource: String::new(),
        };
        let resource = Arc::new(RemoteResource { world: world.clone(), worker: node });
        let worker = Arc::new(Worker::over(configuration, recording, lock, resource));
        journal.record(Event::Ready { servers: versions(plan.lock_nodes.iter()) });
        if this.is_stopped {
            worker.stop();
        }
        this.workers[index] = Some(worker.clone());
        this.drained.send_modify(|drained| drained[index] = false);
        let (drained, finish, finished) = (this.drained.clone(), this.finish[index].subscribe(), this.finished.clone());
        drop(this);
        world.executor.spawn(node, Box::pin(life(worker, journal, index, drained, finish, finished)));
        Ok(())
    }

    /// No critical section begins after this.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.workers.iter().flatten().for_each(|worker| worker.stop());
    }

    /// Which workers have ended their critical sections.
    pub fn drained(&self) -> watch::Receiver<Vec<bool>> {
        self.drained.subscribe()
    }

    /// Has the first worker read what is left of `keys`, and all of them finish; tells how many have.
    pub fn finish(&mut self, keys: Vec<Key>) -> watch::Receiver<usize> {
        let mut keys = Some(keys);
        for finish in &self.finish {
            finish.send_replace(Some(keys.take().unwrap_or_default()));
        }
        self.finished.subscribe()
    }

    /// Lets go of the workers: they hold the world.
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
        Arc::new(RedisNode { world: world.clone(), worker, node, name: name.as_str().to_owned() })
    };
    Servers::Nodes(world.plan.lock_nodes.iter().enumerate().map(node).collect())
}

/// What a worker does from its start to its end.
async fn life(
    worker: Arc<Worker>,
    journal: Arc<ProcessJournal>,
    index: usize,
    drained: watch::Sender<Vec<bool>>,
    mut finish: watch::Receiver<Option<Vec<Key>>>,
    finished: watch::Sender<usize>,
) {
    worker.run().await;
    drained.send_modify(|drained| drained[index] = true);
    let keys = match finish.wait_for(Option::is_some).await {
        Ok(keys) => keys.clone().unwrap_or_default(),
        Err(_) => return,
    };
    // A connection to a resource that was killed behind a cut link is found to be lost when it is used.
    for tries_left in (0..LOOKS_MAX).rev() {
        if worker.look_at(&keys).await.is_ok() {
            break;
        }
        if tries_left == 0 {
            return;
        }
        Sleep::lasting(&journal.world, LOOK_AGAIN_AFTER).await;
    }
    journal.record(Event::Finished);
    journal.world.retire(journal.process);
    finished.send_modify(|finished| *finished += 1);
}
