//! The run's own processes, as the controller commands them.

use history::{Event, Key, NodeName};
use nemesis::{ClusterError, Doing, Processes};

use crate::{cluster::SimCluster, thread_bound::lock};

impl Processes for SimCluster {
    fn connect(&self) -> Doing<'_, ()> {
        let (world, mut workers) = (&self.world, lock(&self.workers));
        for node in (0..world.lock_nodes).chain([world.agent(), world.resource()]) {
            world.start(node);
        }
        let connected = (0..world.workers).try_for_each(|index| {
            let node = world.worker(index);
            world.start(node);
            workers.connect(world, index, index as u32).map_err(|why| {
                let node = world.node(node, |n| n.name.clone());
                ClusterError { node, doing: "connecting", why }
            })
        });
        world.show();
        Box::pin(std::future::ready(connected))
    }

    fn begin(&self) -> Doing<'_, ()> {
        lock(&self.workers).begin_all(&self.world);
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop<'a>(&'a self, worker: &'a NodeName) -> Doing<'a, ()> {
        let stopped = self.node(worker, "stopping its clients").map(|node| {
            let worker = lock(&self.workers).at(node - self.world.lock_nodes);
            worker.inspect(|worker| worker.stop());
        });
        Box::pin(std::future::ready(stopped))
    }

    fn finish<'a>(&'a self, node: &'a NodeName, keys: Vec<Key>) -> Doing<'a, ()> {
        let finished = self.node(node, "ending it").map(|process| {
            let finish = lock(&self.workers).take_finish(process - self.world.lock_nodes);
            match finish {
                Some(finish) => finish.say(keys),
                // Resource and agent have nothing left to do.
                None => {
                    self.world.record(process, Event::Finished);
                    self.world.show();
                }
            }
        });
        Box::pin(std::future::ready(finished))
    }
}
