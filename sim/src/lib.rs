//! A cluster inside one process under virtual time: the second implementation of the ports.
//!
//! The algorithms of `locks`, the clients of `workloads`, the rule of `resource` and the nemesis are the same code as on real
//! servers; what is modelled is what they stand on: processes, clocks, links, servers. The same plan gives the same history,
//! event by event.

mod answer;
mod clock;
mod cluster;
mod conduct;
mod exchange;
mod executor;
mod link;
mod local;
pub mod models;
mod resource_model;
mod servers;
mod staff;
mod store;
pub mod truth;
mod world;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use history::{Event, Plan, Record, Target};

use crate::{
    conduct::conduct,
    local::{Local, lock},
    servers::Servers,
    staff::Staff,
    truth::Truth,
    world::World,
};

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// Name of the run.
    pub run: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// The lock under test as the user named it: `redlock`, `buggy:no-nx`.
    pub backend: &'a str,
    /// A planted bug of the resource.
    pub resource_bug: Option<&'a str>,
    /// Whether to gather the truth too.
    pub with_truth: bool,
}

/// What came of a simulation, besides its history.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What really happened, if it was gathered.
    pub truth: Option<Truth>,
    /// Messages that were sent over links.
    pub messages: u64,
    /// Virtual time that went by.
    pub lasted: Duration,
}

/// The plan cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SimError(pub String);

/// Records that are told at a time.
const TOLD_AT_ONCE: usize = 512;

/// Runs a plan to its end, and gives every record of its history to `see`, in the order of the history, some at a time.
///
/// # Errors
/// The plan names what there is no model of, or its faults cannot be carried out.
pub fn simulate(setup: &Setup<'_>, see: &mut dyn FnMut(Record)) -> Result<Outcome, SimError> {
    let plan = Arc::new(setup.plan.clone());
    let is_resource = |step: &history::Step| step.target == Target::Node("resource".into());
    let is_fragile = plan.schedule.iter().any(|step| is_resource(step) && step.fault.kind().kills());
    let policy = servers::policy(&plan, setup.resource_bug).map_err(SimError)?;
    let servers = Servers::new(&plan, setup.backend, policy, is_fragile);
    let world = World::new(plan.clone(), servers, setup.with_truth);
    let staff = Arc::new(Local::new(Staff::new(&world, setup.backend)));
    world.own(Event::Plan { run: setup.run.to_owned(), plan: Box::new(setup.plan.clone()) });

    let (ended, is_over) = (Arc::new(Local::new(None)), Arc::new(AtomicBool::new(false)));
    let conducting = {
        let (world, staff, ended, is_over) = (world.clone(), staff.clone(), ended.clone(), is_over.clone());
        async move {
            let conducted = conduct(world, staff).await;
            *lock(&ended) = Some(conducted);
            is_over.store(true, Relaxed);
        }
    };
    world.executor.spawn(world.controller(), Box::pin(conducting));
    store::look_after(&world);
    let conducted = loop {
        world.executor.settle(|| world.look_on());
        world.look_on();
        world.tell(TOLD_AT_ONCE, see);
        if is_over.load(Relaxed)
            && let Some(conducted) = lock(&ended).take()
        {
            break conducted;
        }
        if !world.executor.step(&world) {
            break Err("nothing is left to happen, and the run is not over".to_owned());
        }
    };
    world.tell(0, see);
    let truth = world.truth();
    let outcome = Outcome { truth, messages: world.messages(), lasted: world.executor.now().since(world::START) };
    // Tasks hold the world, and the world holds them.
    lock(&staff).clear();
    world.executor.clear();
    conducted.map_err(SimError)?;
    Ok(outcome)
}
