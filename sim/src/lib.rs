//! A cluster inside one process under virtual time: the second implementation of the ports.
//!
//! The algorithms of `locks`, the clients of `workloads`, the rule of `resource`, the nemesis and the controller are
//! the same code as on real servers. This crate models processes, clocks, links and servers. The same plan gives the
//! same history, event by event.

mod clock;
mod cluster;
mod copies;
mod exchange;
mod executor;
mod invocations;
mod link;
mod lock_node;
pub mod models;
mod periodic_faults;
mod process_clock;
mod processes;
mod remote_resource;
mod reply;
mod resource_model;
mod servers;
mod store;
mod thread_bound;
pub mod traffic;
pub mod truth;
mod workers;
mod world;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use history::{Plan, Record, Target};
use nemesis::Controller;
pub use workloads::stream::Redraw;

use crate::{
    clock::START,
    cluster::SimCluster,
    resource_model::ResourceModel,
    servers::Servers,
    thread_bound::{ThreadBound, lock},
    truth::Truth,
    workers::Workers,
    world::World,
};

/// A run to simulate.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The name of the run.
    pub run: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// The lock under test as the user named it: `redlock`, `buggy:no-nx`.
    pub backend: &'a str,
    /// A planted bug of the resource.
    pub resource_bug: Option<&'a str>,
    /// Draws other random numbers from an instant on: all of them, or none before the first event.
    pub redraw: Option<Redraw>,
    /// True if the simulation gathers the truth.
    pub with_truth: bool,
}

/// The results of a simulation, besides its history.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The truth, if it was gathered.
    pub truth: Option<Truth>,
    /// The number of messages that were sent over links.
    pub messages: u64,
    /// The virtual time that the run took.
    pub lasted: Duration,
}

/// The plan cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The plan needs a model that does not exist, or a fault could not be injected or healed.
    #[error("{0}")]
    Failed(String),
    /// A request left before its invocation was recorded. The record would show promises that are too long.
    #[error(
        "{0}: nothing in this record can be judged. This is a fault of the lock client or of the worker, not of \
        the lock service; the plan reproduces it"
    )]
    SentEarly(String),
}

impl From<SimError> for String {
    fn from(error: SimError) -> String {
        error.to_string()
    }
}

/// Runs a plan to its end, and gives the records of its history to `see`, in batches and in order.
///
/// # Errors
/// [`SimError`]
pub fn simulate(setup: &Setup<'_>, see: &mut dyn FnMut(Record)) -> Result<Outcome, SimError> {
    let plan = Arc::new(setup.plan.clone());
    let is_resource = |step: &history::Step| step.target == Target::Node("resource".into());
    let is_fragile = plan.schedule.iter().any(|step| is_resource(step) && step.fault.kind().kills());
    let policy = |seed| servers::policy(&plan, setup.resource_bug, seed).map_err(SimError::Failed);
    let redrawn = setup.redraw.map(|redraw| Ok((redraw.from, policy(redraw.seed)?))).transpose()?;
    let resource = ResourceModel::new(policy(plan.seed)?, redrawn, is_fragile);
    let servers = Servers::new(&plan, setup.backend, resource);
    let world = World::new(setup.run, plan.clone(), servers, setup.redraw, setup.with_truth);
    let workers = ThreadBound::new(Workers::new(&world, setup.backend));
    let cluster = Arc::new(SimCluster { world: world.clone(), workers });

    let (ended, is_over) = (Arc::new(ThreadBound::new(None)), Arc::new(AtomicBool::new(false)));
    let run = {
        let (world, cluster, ended, is_over) = (world.clone(), cluster.clone(), ended.clone(), is_over.clone());
        async move {
            let controller = Controller {
                plan: &plan,
                cluster: &*cluster,
                processes: &*cluster,
                live_view: &world.live_view,
                on_phase: &|_| {},
            };
            let run = controller.run().await;
            if run.is_ok() {
                world.end();
            }
            *lock(&ended) = Some(run.map_err(|e| e.to_string()));
            is_over.store(true, Relaxed);
        }
    };
    world.executor.spawn(world.controller(), Box::pin(run));
    store::members::look_after(&world);
    let run = world.run(&is_over, see);
    let ended = run.and_then(|()| lock(&ended).take().unwrap_or_else(|| Err("the run has no result".to_owned())));
    world.hand_over(see);
    let (truth, sent_early) = (world.truth(), world.sent_early());
    let outcome = Outcome { truth, messages: world.messages(), lasted: world.executor.now().since(START) };
    // Tasks own the world, and the world owns them.
    lock(&cluster.workers).clear();
    world.executor.clear();
    ended.map_err(SimError::Failed)?;
    sent_early.map_or(Ok(outcome), |request| Err(SimError::SentEarly(request)))
}
