//! The store as the port for a worker, over links.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use locks::{NodeError, Op, Reply, Store, StoreAnswer};
use tokio::sync::oneshot;

use super::{
    PendingRequest,
    members::{arrived, cluster},
};
use crate::{executor::Process, invocations::rounds_of_op, thread_bound::lock, world::World};

/// The wait for an answer after which a client sends its next request to another member.
const IMPATIENT_AFTER: Duration = Duration::from_millis(500);

/// The store, as the port for a worker: through one member, or through another one if that member does not answer.
pub(crate) struct RemoteStore {
    world: Arc<World>,
    worker: Process,
    member: Arc<AtomicUsize>,
}

impl RemoteStore {
    /// The store, first through the member that the worker's number selects.
    pub fn new(world: Arc<World>, worker: Process) -> RemoteStore {
        let member = Arc::new(AtomicUsize::new(worker % world.lock_nodes.max(1)));
        RemoteStore { world, worker, member }
    }
}

impl Store for RemoteStore {
    fn name(&self) -> &str {
        &self.world.plan.backend
    }

    fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>> {
        let (worker, members) = (self.worker, self.world.lock_nodes);
        let first = self.member.load(Relaxed);
        let member = (0..members).map(|n| (first + n) % members).find(|m| self.world.is_connected(worker, *m));
        let Some(member) = member else {
            return Box::pin(std::future::ready(Err(NodeError::Definite("not connected".into()))));
        };
        self.member.store(member, Relaxed);
        let grantee = match (&op, cluster(&self.world)) {
            (Op::Grant(_), Some(store)) => Some(lock(store).grantee()),
            _ => None,
        };
        let rounds = rounds_of_op(&op);
        self.world.leaves(worker, |open| rounds.is_empty() || open.is_open(rounds), || format!("{op:?}"));
        self.world.asks(worker, grantee.as_ref(), None);
        if self.world.is_witnessed()
            && let (Op::Create(_, owner, lease, _), Some(store)) = (&op, cluster(&self.world))
        {
            let grantee = lock(store).grantees.get(lease).cloned();
            self.world.asks(worker, grantee.is_some().then_some(owner), grantee.as_ref());
        }
        let (answered, answer) = oneshot::channel();
        let is_wait = matches!(op, Op::AwaitGone(..) | Op::Lock(..));
        let asked = PendingRequest { op, worker, member, answered, grantee };
        self.world.send(worker, member, Box::new(move |world| arrived(world, member, asked)));
        let is_answered = Arc::new(AtomicBool::new(is_wait));
        if !is_wait {
            let (is_answered, current) = (is_answered.clone(), self.member.clone());
            let look = move |_: &Arc<World>| {
                if !is_answered.load(Relaxed) && current.load(Relaxed) == member {
                    current.store((member + 1) % members, Relaxed);
                }
            };
            self.world.executor.after(IMPATIENT_AFTER, Box::new(look));
        }
        Box::pin(async move {
            let answer = answer.await.map_err(|_| NodeError::Indeterminate("connection lost".into()));
            is_answered.store(true, Relaxed);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use locks::LeaseId;

    use super::*;
    use crate::world::tests::{ETCD, run_for, world};

    #[test]
    fn a_client_leaves_a_member_that_does_not_answer() {
        let world = world(3, ETCD);
        // The second worker begins with the second member, which does not lead.
        let store = RemoteStore::new(world.clone(), world.worker(1));
        world.freeze(1);
        let ask = || store.send(Op::TimeToLive(LeaseId(1)));
        let first = ask();
        run_for(&world, IMPATIENT_AFTER * 2);
        let second = ask();
        run_for(&world, IMPATIENT_AFTER / 10);
        assert!(first.now_or_never().is_none());
        assert!(matches!(second.now_or_never(), Some(Ok(_))));
    }

    #[test]
    fn a_request_without_an_answer_may_have_been_done_but_not_one_that_never_left() {
        let world = world(3, ETCD);
        let store = RemoteStore::new(world.clone(), world.worker(1));
        let ask = || store.send(Op::TimeToLive(LeaseId(1)));
        let lost = ask();
        (0..3).for_each(|member| world.kill(member));
        run_for(&world, IMPATIENT_AFTER / 10);
        assert!(matches!(lost.now_or_never(), Some(Err(NodeError::Indeterminate(_)))));
        assert!(matches!(ask().now_or_never(), Some(Err(NodeError::Definite(_)))));
    }
}
