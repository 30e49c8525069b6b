//! Conducting one run: the same acts as on real servers.

use std::{sync::Arc, time::Duration};

use futures::future::{Either, join, select};
use history::{Event, Key};
use nemesis::Nemesis;
use tokio::sync::watch;

use crate::{
    clock::Sleep,
    cluster::SimCluster,
    local::{Local, lock},
    staff::Staff,
    world::World,
};

/// How many keys are read in the end.
const LOOK_AT_MAX: u32 = 1_000;
/// How much longer than the work workers may take to finish: they wait for dead holders and slow answers.
const PATIENCE: Duration = Duration::from_secs(90);

/// Conducts the run to its end.
pub(crate) async fn conduct(world: Arc<World>, staff: Arc<Local<Staff>>) -> Result<(), String> {
    let plan = world.plan.clone();
    let workers = world.workers;
    for node in (0..world.lock_nodes).chain([world.agent(), world.resource()]) {
        world.start(node);
    }
    for index in 0..workers {
        world.start(world.worker(index));
        Staff::begin(&staff, &world, index)?;
    }

    let cluster = SimCluster { world: world.clone(), staff: staff.clone() };
    let (over, phase) = watch::channel(false);
    let nemesis = Nemesis { cluster: &cluster, control: &cluster, scene: &world.scene, over: phase };
    let time = async {
        Sleep::lasting(&world, plan.time).await;
        over.send_replace(true);
    };
    let (injected, ()) = join(nemesis.run(&plan), time).await;
    injected.map_err(|e| e.to_string())?;

    // Everything is healed.
    let mut drained = {
        let mut staff = lock(&staff);
        staff.stop();
        staff.drained()
    };
    let patience = plan.lease * 2 + plan.workload.work.to + PATIENCE;
    let all = std::pin::pin!(drained.wait_for(|drained| drained.iter().all(|d| *d)));
    if let Either::Right(_) = select(all, std::pin::pin!(Sleep::lasting(&world, patience))).await {
        return Err(format!("finishing the work: not within {} s", patience.as_secs()));
    }
    let keys = (0..plan.workload.keys.min(LOOK_AT_MAX)).map(|k| Key::new(format!("k{k}"))).collect();
    let mut finished = lock(&staff).finish(keys);
    let all = std::pin::pin!(finished.wait_for(|finished| *finished == workers));
    if let Either::Right(_) = select(all, std::pin::pin!(Sleep::lasting(&world, PATIENCE))).await {
        return Err("the final reads were not answered".into());
    }
    let ours: Vec<_> = (0..workers).map(|index| world.worker(index)).chain([world.resource(), world.agent()]).collect();
    for node in [world.resource(), world.agent()] {
        world.record(node, Event::Finished);
    }
    for node in ours {
        let ended = world.node(node, |n| n.process.clone());
        world.own(Event::ProcessEnded { ended, code: None });
    }
    world.own(Event::End);
    Ok(())
}
