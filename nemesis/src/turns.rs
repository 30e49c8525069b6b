//! Whose turn it is: one fault at a time among workers, one on each other node, and none that begins after the fault phase.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use futures::future::{Either, select};
use history::{NodeName, Plan, Target};
use tokio::sync::{Mutex, Notify};

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

    pub fn of(&self, target: &Target) -> &Mutex<()> {
        match target {
            Target::Node(node) => self.others.get(node).unwrap_or(&self.workers),
            Target::Holder => &self.workers,
        }
    }
}
