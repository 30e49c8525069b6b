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
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use futures::{FutureExt, executor::block_on};
    use history::Until;
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        double::{Answers, Double},
        waits::tests,
    };

    /// The node that leads.
    struct Leader(Mutex<&'static str>);

    impl Answers for Leader {
        fn leader(&self) -> Option<NodeName> {
            Some(NodeName::new(*self.0.lock()))
        }
    }

    fn slots() -> NodeSlots {
        let lock_nodes = ["redis-1", "redis-2"].map(NodeName::new).into();
        NodeSlots::new(&Plan { lock_nodes, ..tests::plan([(); 2].map(|()| (Until::Time, Duration::ZERO))) })
    }

    #[test]
    fn a_fault_of_the_leader_looks_again_after_its_wait() {
        let (slots, double) = (slots(), Double(Leader(Mutex::new("redis-1"))));
        let target = Target::Leader;
        let former = slots.of(&"redis-1".into()).try_lock().unwrap();
        let mut taking = pin!(slots.take(&target, &double, &double));
        let mut poll = || taking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        *double.0.0.lock() = "redis-2";
        drop(former);
        let Poll::Ready(Ok((_turn, leader))) = poll() else { panic!("the slot of redis-2 is free") };
        assert_eq!(leader, Some("redis-2".into()));
    }

    #[test]
    fn only_workers_share_a_slot() {
        let (slots, double) = (slots(), Double(()));
        let _worker = block_on(slots.take(&Target::Holder, &double, &double)).unwrap();
        for (node, is_free) in [("worker-1", false), ("redis-1", true), ("redis-2", true), ("resource", true)] {
            let target = Target::Node(node.into());
            assert_eq!(slots.take(&target, &double, &double).now_or_never().is_some(), is_free, "{node}");
        }
    }

    #[test]
    fn nothing_begins_after_the_fault_phase() {
        let phase = Phase::default();
        assert!(block_on(phase.unless_over(async {})).is_some());
        phase.end();
        assert!(block_on(phase.unless_over(async {})).is_none());
    }
}
