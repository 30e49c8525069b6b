//! A bug in how a client waits: it gives up its place in the queue.

use std::{
    future::poll_fn,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
    time::Duration,
};

use crate::{
    etcd::Etcd,
    hold::{Hold, Key, NodeAnswer, NodeName, Owner, Released, Renewed},
    mode::Mode,
    ports::{Cleanup, Clock, Lock, Mark, Operation, Reply, Revision, Round, Unwatched, Watch},
    servers::{CannotBuild, Servers, TokenSource},
};

/// The time that the client waits in the queue before it asks again.
const PATIENCE: Duration = Duration::from_millis(120);

/// Builds the queue lock that asks again.
pub(super) fn asks_again(
    servers: Servers,
    _tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    Ok(Arc::new(AsksAgain { lock: Etcd::new(servers.store("etcd")?, clock.clone()), clock }))
}

/// Leaves the queue when it has waited for [`PATIENCE`], and asks again as a newcomer.
struct AsksAgain {
    lock: Etcd,
    clock: Arc<dyn Clock>,
}

impl Lock for AsksAgain {
    fn intention(&self, mode: Mode) -> Option<Mode> {
        self.lock.intention(mode)
    }

    fn waits(&self) -> bool {
        true
    }

    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        self.acquire_in(Mode::Write, key, owner, lease, watch)
    }

    fn acquire_in<'a>(
        &'a self,
        mode: Mode,
        key: &'a Key,
        owner: Owner,
        lease: Duration,
        watch: &'a dyn Watch,
    ) -> Operation<'a, Hold> {
        Box::pin(async move {
            let watch = Again { watch, is_sent: AtomicBool::new(false), is_later: AtomicBool::new(false) };
            loop {
                let mut patience = self.clock.sleep_until(self.clock.now() + PATIENCE);
                let mut attempt = self.lock.acquire_in(mode, key, owner.clone(), lease, &watch);
                let result = poll_fn(|cx| match attempt.as_mut().poll(cx) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending => patience.as_mut().poll(cx).map(|()| None),
                });
                if let Some(result) = result.await {
                    return result;
                }
                drop(attempt);
                self.lock.cancel(key, &owner, lease, &Unwatched).await;
                watch.is_later.store(watch.is_sent.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        self.lock.renew(hold, lease, watch)
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        self.lock.release(hold, watch)
    }

    fn gave_up(&self, hold: &Hold) {
        self.lock.gave_up(hold);
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        self.lock.cancel(key, owner, lease, watch)
    }
}

/// Tells of all turns in the queue as of one attempt, whose promise counts from the last turn.
struct Again<'a> {
    watch: &'a dyn Watch,
    /// True if the attempt was told. A turn may end before, without a connection.
    is_sent: AtomicBool,
    is_later: AtomicBool,
}

impl Watch for Again<'_> {
    fn sending(&self, round: Round) {
        if round == Round::Acquire && self.is_later.load(Ordering::Relaxed) {
            self.watch.promising();
        } else {
            self.is_sent.fetch_or(round == Round::Acquire, Ordering::Relaxed);
            self.watch.sending(round);
        }
    }

    fn sent(&self, round: Round) -> Reply<()> {
        self.watch.sent(round)
    }

    fn answered(&self, round: Round) {
        self.watch.answered(round);
    }

    fn promising(&self) {
        self.watch.promising();
    }

    fn promised(&self) {
        self.watch.promised();
    }

    fn mark(&self) -> Mark {
        self.watch.mark()
    }

    fn promised_since(&self, mark: Mark) {
        self.watch.promised_since(mark);
    }

    /// The first look of a turn shows that its lease was granted.
    fn looking(&self) {
        if self.is_later.swap(false, Ordering::Relaxed) {
            self.watch.promised();
        }
        self.watch.looking();
    }

    fn behind(&self) {
        self.watch.behind();
    }

    fn confirmed(&self, place: Revision) {
        self.watch.confirmed(place);
    }

    fn without_key(&self) {
        self.watch.without_key();
    }

    fn undoing(&self) {
        self.watch.undoing();
    }

    fn undone(&self, answers: &[(NodeName, NodeAnswer)]) {
        self.watch.undone(answers);
    }
}
