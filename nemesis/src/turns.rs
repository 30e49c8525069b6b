//! Whose turn it is: one fault at a time among workers, one on each other node, and none that begins after the fault phase.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::{Either, select};
use history::{NodeName, Plan, Target};
use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::{ClusterError, run::Nemesis};

/// Between two looks whether anybody leads.
const LOOK: Duration = Duration::from_millis(100);

/// The phase in which faults begin.
#[derive(Default)]
pub(crate) struct Phase {
    is_over: AtomicBool,
    changed: Notify,
}

impl Phase {
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// What comes of `doing`; none, if the phase is over before.
    pub async fn unless_over<T>(&self, doing: impl Future<Output = T>) -> Option<T> {
        let over = async {
            loop {
                let changed = self.changed.notified();
                if self.is_over.load(Ordering::Relaxed) {
                    return;
                }
                changed.await;
            }
        };
        match select(std::pin::pin!(doing), std::pin::pin!(over)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }
}

/// Whose turn it is, and whether anybody's still comes.
pub(crate) struct Turns {
    pub phase: Phase,
    others: BTreeMap<NodeName, Mutex<()>>,
    workers: Mutex<()>,
}

impl Turns {
    pub fn new(plan: &Plan) -> Turns {
        let others = plan.lock_nodes.iter().cloned().chain([NodeName::new("resource")]);
        Turns {
            phase: Phase::default(),
            others: others.map(|node| (node, Mutex::default())).collect(),
            workers: Mutex::default(),
        }
    }

    fn of(&self, node: &NodeName) -> &Mutex<()> {
        self.others.get(node).unwrap_or(&self.workers)
    }

    /// Takes the turn of `target`, and tells which node that is where it had to be found: whoever leads when it is its turn. While nobody leads,
    /// and while another fault is on the one who does, it waits; afterwards another may lead.
    pub async fn take(
        &self,
        target: &Target,
        nemesis: &Nemesis<'_>,
    ) -> Result<(MutexGuard<'_, ()>, Option<NodeName>), ClusterError> {
        match target {
            Target::Node(node) => return Ok((self.of(node).lock().await, None)),
            Target::Holder => return Ok((self.workers.lock().await, None)),
            Target::Leader => {}
        }
        loop {
            let Some(node) = nemesis.cluster.leader().await? else {
                nemesis.control.sleep(LOOK).await?;
                continue;
            };
            let turn = self.of(&node);
            if let Ok(turn) = turn.try_lock() {
                return Ok((turn, Some(node)));
            }
            drop(turn.lock().await);
        }
    }
}
