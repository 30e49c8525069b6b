//! A channel for one reply.
//!
//! Tokio's oneshot channel pays for several threads with atomic operations and with its budget of polls. A simulation
//! has one thread, and a round of a lock polls all of its replies whenever one of them arrives.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::thread_bound::{ThreadBound, lock};

/// No reply will come, because its sender was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoReply;

/// The state that sender and receiver share.
pub(crate) struct ReplySlot<T> {
    said: Option<T>,
    /// The reply is there, or will never be.
    is_over: bool,
    waker: Option<Waker>,
}

impl<T> Default for ReplySlot<T> {
    fn default() -> Self {
        ReplySlot { said: None, is_over: false, waker: None }
    }
}

impl<T> ReplySlot<T> {
    /// Puts the reply, which the receiver gets at [`ReplySlot::end`].
    pub fn say(&mut self, what: T) {
        self.said = Some(what);
    }

    pub fn is_said(&self) -> bool {
        self.said.is_some()
    }

    /// Takes the reply back.
    pub fn forget(&mut self) {
        self.said = None;
    }

    /// Wakes the receiver, which gets the reply, or learns that none will come.
    pub fn end(slot: &ThreadBound<ReplySlot<T>>) {
        let waker = {
            let mut slot = lock(slot);
            slot.is_over = true;
            slot.waker.take()
        };
        waker.inspect(Waker::wake_by_ref);
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, NoReply>> {
        if self.is_over {
            return Poll::Ready(self.said.take().ok_or(NoReply));
        }
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Removes the waker: the receiver was dropped.
    pub fn leave(&mut self) {
        self.waker = None;
    }
}

/// The sender of a reply. A sender that is dropped tells the receiver that no reply will come.
pub(crate) struct ReplySender<T>(Arc<ThreadBound<ReplySlot<T>>>);

/// The receiver of a reply.
pub(crate) struct ReplyReceiver<T>(Arc<ThreadBound<ReplySlot<T>>>);

/// Makes a channel for one reply.
pub(crate) fn reply_channel<T>() -> (ReplySender<T>, ReplyReceiver<T>) {
    let slot = Arc::<ThreadBound<ReplySlot<T>>>::default();
    (ReplySender(slot.clone()), ReplyReceiver(slot))
}

impl<T> ReplySender<T> {
    /// Sends the reply.
    pub fn say(self, what: T) {
        lock(&self.0).say(what);
        // The drop of the sender wakes the receiver.
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        ReplySlot::end(&self.0);
    }
}

impl<T> Future for ReplyReceiver<T> {
    type Output = Result<T, NoReply>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        lock(&self.0).poll(cx)
    }
}

impl<T> Drop for ReplyReceiver<T> {
    fn drop(&mut self) {
        lock(&self.0).leave();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn look<T>(at: &mut ReplyReceiver<T>, woken: &Arc<Woken>) -> Poll<Result<T, NoReply>> {
        Pin::new(at).poll(&mut Context::from_waker(&Waker::from(woken.clone())))
    }

    #[test]
    fn a_reply_wakes_its_receiver_once() {
        let (woken, (answering, mut answer)) = (Arc::<Woken>::default(), reply_channel());
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        answering.say(7);
        assert_eq!((woken.0.load(Relaxed), look(&mut answer, &woken)), (1, Poll::Ready(Ok(7))));
    }

    #[test]
    fn a_dropped_sender_tells_the_receiver() {
        let (woken, (answering, mut answer)) = (Arc::<Woken>::default(), reply_channel::<()>());
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        drop(answering);
        assert_eq!((woken.0.load(Relaxed), look(&mut answer, &woken)), (1, Poll::Ready(Err(NoReply))));
    }

    #[test]
    fn a_dropped_receiver_is_not_woken() {
        let (woken, (answering, mut answer)) = (Arc::<Woken>::default(), reply_channel());
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        drop(answer);
        answering.say(7);
        assert_eq!(woken.0.load(Relaxed), 0);
    }
}
