//! Slots of nodes: one slot for all workers, and one for each other node. A fault occupies the slot of its target, so
//! only one fault at a time is on in a slot. No fault begins after the fault phase.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::{Either, select};
use history::{NodeName, Plan, Target};
use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::{
    cluster::{Cluster, ClusterError},
    control::Control,
};

/// The time between two checks for a leader.
const LOOK: Duration = Duration::from_millis(100);

/// The fault phase: faults begin before its end.
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

    /// Waits until the phase has ended.
    pub async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the result of `doing`; none, if the phase ends first. After the phase `doing` does not begin.
    pub async fn unless_over<T>(&self, doing: impl Future<Output = T>) -> Option<T> {
        // A fault that fails hands its slot to the next step, and ends the phase in the same moment.
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        match select(std::pin::pin!(doing), std::pin::pin!(self.ended())).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }
}

/// The slots of all nodes, and the fault phase.
pub(crate) struct NodeSlots {
    pub phase: Phase,
    others: BTreeMap<NodeName, Mutex<()>>,
    workers: Mutex<()>,
}

impl NodeSlots {
    pub fn new(plan: &Plan) -> NodeSlots {
        let others = plan.lock_nodes.iter().cloned().chain([NodeName::new("resource")]);
        NodeSlots {
            phase: Phase::default(),
            others: others.map(|node| (node, Mutex::default())).collect(),
            workers: Mutex::default(),
        }
    }

    fn of(&self, node: &NodeName) -> &Mutex<()> {
        self.others.get(node).unwrap_or(&self.workers)
    }

    /// Waits for the slot of `target` and occupies the slot. For the target `leader` the result names the node that
    /// leads at that time. The call waits while there is no leader, and while another fault is on the leader; then it
    /// asks for the leader again, because another node may lead.
    pub async fn take(
        &self,
        target: &Target,
        cluster: &dyn Cluster,
        control: &dyn Control,
    ) -> Result<(MutexGuard<'_, ()>, Option<NodeName>), ClusterError> {
        match target {
            Target::Node(node) => return Ok((self.of(node).lock().await, None)),
            Target::Holder => return Ok((self.workers.lock().await, None)),
            Target::Leader => {}
        }
        loop {
            let Some(node) = cluster.leader().await? else {
                control.sleep(LOOK).await?;
                continue;
            };
            let turn = self.of(&node);
            if let Ok(turn) = turn.try_lock() {
                return Ok((turn, Some(node)));
            }
            // A step that has waited keeps the slot. Otherwise two waiting steps would hand it to each other for ever.
            let turn = turn.lock().await;
            if cluster.leader().await?.as_ref() == Some(&node) {
                return Ok((turn, Some(node)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn nothing_begins_after_the_fault_phase() {
        let phase = Phase::default();
        assert!(block_on(phase.unless_over(async {})).is_some());
        phase.end();
        assert!(block_on(phase.unless_over(async {})).is_none());
    }
}
