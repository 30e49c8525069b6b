//! An independent node as the port for a worker, over links.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use locks::{Node, NodeError, Owner, Reply, Step, StepAnswer};

use crate::{
    exchange::{Exchange, Message},
    executor::Process,
    invocations::rounds_of_step,
    reply::{NoReply, ReplySlot},
    thread_bound::{ThreadBound, lock},
    world::World,
};

/// One independent node, as the port for a worker: one connection, which keeps the order of the steps.
pub(crate) struct LockNode {
    pub world: Arc<World>,
    pub worker: Process,
    pub node: Process,
    pub name: String,
}

impl Node for LockNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        let Self { worker, node, .. } = *self;
        if !self.world.is_connected(worker, node) {
            return Box::pin(std::future::ready(Err(NodeError::Definite("not connected".into()))));
        }
        let rounds = rounds_of_step(&step);
        self.world.leaves(worker, |open| rounds.is_empty() || open.is_open(rounds), || format!("{step:?}"));
        self.world.asks(worker, acquires(&step), None);
        let sent = Arc::new(SentStep { step, worker, node, slot: ThreadBound::default() });
        self.world.send_message(worker, node, Message::new(sent.clone()));
        Box::pin(StepReply(sent))
    }
}

/// A step for a node, and its answer.
struct SentStep {
    step: Step,
    worker: Process,
    node: Process,
    slot: ThreadBound<ReplySlot<StepAnswer>>,
}

impl Exchange<World> for SentStep {
    fn arrive(self: Arc<Self>, world: &Arc<World>) {
        let Self { worker, node, .. } = *self;
        if lock(&self.slot).is_said() {
            return ReplySlot::end(&self.slot);
        }
        let said = lock(&world.servers.nodes[node]).apply(&self.step, world.lease_clock(node));
        world.look_at_owners();
        lock(&self.slot).say(said);
        world.send_message(node, worker, Message::new(self));
    }

    fn lost(&self) {
        lock(&self.slot).forget();
        ReplySlot::end(&self.slot);
    }
}

/// The future of the answer to a step.
struct StepReply(Arc<SentStep>);

impl Future for StepReply {
    type Output = Result<StepAnswer, NodeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = lock(&self.0.slot).poll(cx);
        answer.map_err(|NoReply| NodeError::Indeterminate("connection lost".into()))
    }
}

impl Drop for StepReply {
    fn drop(&mut self) {
        lock(&self.0.slot).leave();
    }
}

/// The owner value that a step may set.
fn acquires(step: &Step) -> Option<&Owner> {
    match step {
        Step::Acquire(_, owner, _) | Step::AcquireUncounted(_, owner, _) => Some(owner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use locks::Key;

    use super::*;

    #[test]
    fn an_answer_that_is_lost_with_its_connection_reaches_nobody() {
        let step = Step::Release(Key::new("k0"), Owner::new("a"));
        let sent = Arc::new(SentStep { step, worker: 1, node: 0, slot: ThreadBound::default() });
        lock(&sent.slot).say(StepAnswer::Done);
        drop(Message::<World>::new(sent.clone()));
        assert!(matches!(StepReply(sent).now_or_never(), Some(Err(NodeError::Indeterminate(_)))));
    }
}
