//! Bugs in a client's use of one node.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;

use super::{
    redlock::{AsIntended, deciding},
    steps::PlantedStep,
};
use crate::{
    ports::{Clock, Lock, Node, NodeError, Reply, Step, StepAnswer},
    servers::{CannotBuild, Servers, TokenSource},
};

type Answered = Result<StepAnswer, NodeError>;

/// Builds the correct lock over nodes that it uses through `N`.
pub(super) fn over_nodes<N: Node + From<Arc<dyn Node>> + 'static>(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    let nodes = servers.nodes("redlock")?.into_iter();
    let wrong = nodes.map(|node| Arc::new(N::from(node)) as Arc<dyn Node>).collect();
    deciding::<AsIntended>(Servers::Nodes(wrong), tokens, clock)
}

/// Releases in two steps, which must be one. The second step leaves when the first is answered.
pub(super) struct ReleaseInTwoSteps {
    node: Arc<dyn Node>,
}

impl From<Arc<dyn Node>> for ReleaseInTwoSteps {
    fn from(node: Arc<dyn Node>) -> Self {
        Self { node }
    }
}

impl Node for ReleaseInTwoSteps {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn send(&self, step: Step) -> Reply<Answered> {
        let Step::Release(key, owner) = step else { return self.node.send(step) };
        let looked = self.node.send(PlantedStep::IsOwner(key.clone(), owner).into());
        let node = self.node.clone();
        Box::pin(async move {
            match looked.await? {
                StepAnswer::Done => node.send(PlantedStep::RemoveAny(key).into()).await,
                refused => Ok(refused),
            }
        })
    }
}

/// The answer to an acquire that the client has not read.
type Unread = Arc<Mutex<Option<Reply<Answered>>>>;

/// Takes the first answer to an acquire as the answer to the newest acquire.
pub(super) struct CountsLateAnswers {
    node: Arc<dyn Node>,
    unread: Unread,
}

impl From<Arc<dyn Node>> for CountsLateAnswers {
    fn from(node: Arc<dyn Node>) -> Self {
        Self { node, unread: Arc::default() }
    }
}

impl Node for CountsLateAnswers {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn send(&self, step: Step) -> Reply<Answered> {
        let acquires = matches!(step, Step::Acquire(..) | Step::AcquireUncounted(..));
        let own = self.node.send(step);
        if !acquires {
            return own;
        }
        let late = self.unread.lock().take();
        Box::pin(FirstAnswer { late, own: Some(own), unread: self.unread.clone() })
    }
}

/// The first of two answers. The other stays unread for the next acquire.
struct FirstAnswer {
    late: Option<Reply<Answered>>,
    own: Option<Reply<Answered>>,
    unread: Unread,
}

impl Future for FirstAnswer {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let Self { late, own, .. } = &mut *self;
        for waiting in [late, own] {
            if let Some(reply) = waiting
                && let Poll::Ready(answer) = reply.as_mut().poll(cx)
            {
                *waiting = None;
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    }
}

impl Drop for FirstAnswer {
    fn drop(&mut self) {
        if let Some(unread) = self.late.take().or(self.own.take()) {
            *self.unread.lock() = Some(unread);
        }
    }
}
