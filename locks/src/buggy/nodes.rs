//! Bugs in how a client talks to one node.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use super::Flaw;
use crate::ports::{Answer, Node, NodeError, Reply, Step};

type Answered = Result<Answer, NodeError>;

/// The node as the flawed client uses it.
pub(super) fn bent(flaw: Flaw, node: Arc<dyn Node>) -> Arc<dyn Node> {
    match flaw {
        Flaw::ReleaseInTwoSteps => Arc::new(InTwoSteps { node }),
        Flaw::CountsLateAnswers => Arc::new(CountsLate { node, unread: Arc::default() }),
        _ => node,
    }
}

/// The node as one to which nothing is sent.
pub(super) fn left_out(node: &Arc<dyn Node>) -> Arc<dyn Node> {
    Arc::new(LeftOut(node.name().to_owned()))
}

/// Releases in two steps, which must be one; the second is sent when the first is answered.
struct InTwoSteps {
    node: Arc<dyn Node>,
}

impl Node for InTwoSteps {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn send(&self, step: Step) -> Reply<Answered> {
        let Step::Release(key, owner) = step else { return self.node.send(step) };
        let (node, looked) = (self.node.clone(), self.node.send(Step::IsOwner(key.clone(), owner)));
        Box::pin(async move {
            match looked.await? {
                Answer::Done => node.send(Step::RemoveAny(key)).await,
                refused => Ok(refused),
            }
        })
    }
}

/// An answer to an acquire that nobody has read.
type Unread = Arc<Mutex<Option<Reply<Answered>>>>;

/// Takes the first answer to an acquire for the answer to the newest one.
struct CountsLate {
    node: Arc<dyn Node>,
    unread: Unread,
}

impl Node for CountsLate {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn send(&self, step: Step) -> Reply<Answered> {
        let acquires = matches!(step, Step::Acquire(..) | Step::AcquireUncounted(..));
        let own = self.node.send(step);
        if !acquires {
            return own;
        }
        let late = self.unread.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(FirstToCome { late, own: Some(own), unread: self.unread.clone() })
    }
}

struct FirstToCome {
    late: Option<Reply<Answered>>,
    own: Option<Reply<Answered>>,
    unread: Unread,
}

impl Future for FirstToCome {
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

impl Drop for FirstToCome {
    fn drop(&mut self) {
        if let Some(unread) = self.late.take().or(self.own.take()) {
            *self.unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(unread);
        }
    }
}

struct LeftOut(String);

impl Node for LeftOut {
    fn name(&self) -> &str {
        &self.0
    }

    fn send(&self, _step: Step) -> Reply<Answered> {
        Box::pin(std::future::ready(Err(NodeError::Definite("nothing was sent".to_owned()))))
    }
}
