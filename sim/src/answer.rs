//! An answer to come: one value, from whom a request reached to whoever waits for it.
//!
//! A channel of Tokio's does the same for many threads, and pays for them with atomic operations at each of its ends, and with its budget of
//! polls; a simulation has one thread, and a round of a lock looks at each of its answers every time that one of them comes.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::local::{Local, lock};

/// There will be no answer: whoever was to give it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unanswered;

/// Where an answer is put, for whoever waits for it.
pub(crate) struct Slot<T> {
    said: Option<T>,
    /// Nothing follows: it was said, or will never be.
    is_over: bool,
    waker: Option<Waker>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { said: None, is_over: false, waker: None }
    }
}

impl<T> Slot<T> {
    /// What will be there at its end.
    pub fn say(&mut self, what: T) {
        self.said = Some(what);
    }

    pub fn is_said(&self) -> bool {
        self.said.is_some()
    }

    /// There will be nothing.
    pub fn forget(&mut self) {
        self.said = None;
    }

    /// Whoever waits for it learns what was said, or that nothing will be.
    pub fn end(slot: &Local<Slot<T>>) {
        let waker = {
            let mut slot = lock(slot);
            slot.is_over = true;
            slot.waker.take()
        };
        waker.inspect(Waker::wake_by_ref);
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Unanswered>> {
        if self.is_over {
            return Poll::Ready(self.said.take().ok_or(Unanswered));
        }
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Nobody waits for it any more.
    pub fn leave(&mut self) {
        self.waker = None;
    }
}

/// The side that answers. Dropping it tells the other side that there is no answer.
pub(crate) struct Answering<T>(Arc<Local<Slot<T>>>);

/// The side that waits. Whoever has dropped it is not woken any more.
pub(crate) struct Answer<T>(Arc<Local<Slot<T>>>);

/// Both sides of one answer.
pub(crate) fn answer<T>() -> (Answering<T>, Answer<T>) {
    let slot = Arc::<Local<Slot<T>>>::default();
    (Answering(slot.clone()), Answer(slot))
}

impl<T> Answering<T> {
    /// Answers.
    pub fn say(self, what: T) {
        lock(&self.0).say(what);
        // Dropping it wakes the other side.
    }
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        Slot::end(&self.0);
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, Unanswered>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        lock(&self.0).poll(cx)
    }
}

impl<T> Drop for Answer<T> {
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

    fn look<T>(at: &mut Answer<T>, woken: &Arc<Woken>) -> Poll<Result<T, Unanswered>> {
        Pin::new(at).poll(&mut Context::from_waker(&Waker::from(woken.clone())))
    }

    #[test]
    fn an_answer_wakes_whoever_waits_for_it_once_and_is_there() {
        let (woken, (answering, mut answer)) = (Arc::<Woken>::default(), answer());
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        answering.say(7);
        assert_eq!((woken.0.load(Relaxed), look(&mut answer, &woken)), (1, Poll::Ready(Ok(7))));
    }

    #[test]
    fn who_can_be_answered_no_more_learns_that() {
        let (woken, (answering, mut answer)) = (Arc::<Woken>::default(), answer::<()>());
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        drop(answering);
        assert_eq!((woken.0.load(Relaxed), look(&mut answer, &woken)), (1, Poll::Ready(Err(Unanswered))));
    }

    #[test]
    fn an_answer_that_nobody_waits_for_any_more_wakes_nobody() {
        let (woken, (answering, mut answer)) = (Arc::<Woken>::default(), answer());
        assert_eq!(look(&mut answer, &woken), Poll::Pending);
        drop(answer);
        answering.say(7);
        assert_eq!(woken.0.load(Relaxed), 0);
    }
}
