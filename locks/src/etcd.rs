//! The queue lock over a revisioned store with leases: the client with the oldest key of the queue holds the lock.
//!
//! An attempt takes a lease, creates a key of its own under the lease, and waits until no key of the queue is older and
//! conflicts with it. Without modes all keys conflict. With modes ([`Mode`]) a reader waits for the nearest older
//! writer only, and a writer for the nearest older key of either kind. A reader never passes a writer that waits, so
//! neither readers nor writers starve.
//! Three additions to that recipe each repair a fault that was seen in queue locks, etcd's own among them (etcd#11456,
//! etcd#11457):
//!
//! - **The client looks again.** An attempt waits for its predecessor only, so a key that goes wakes one client and not
//!   all. But the predecessor may only have stopped waiting, with the holder still before it. So the end of the
//!   predecessor is no more than a reason to look at the queue again.
//! - **The client confirms.** The lease may expire while its owner waits or is frozen, and the key goes with the lease.
//!   Then no key is older than the remembered revision, because the own key is gone as well. So one transaction
//!   decides: the own key exists *and* no key is older. For a free lock this is the transaction that creates the key.
//! - **The promise is fresh.** A promise counts from the sending of the grant, or of a keep-alive that was answered (in
//!   some stores, of the creation).
//!   After a wait little of the grant's time is left, so the client keeps the lease alive once more before the
//!   confirming transaction. Keep-alives during the wait keep the key in the queue and promise nothing.
//!
//! # Soundness
//!
//! Revisions only grow, so no key of a queue ever gets an older key before it. A key that was confirmed to have no
//! older key that conflicts with it keeps this position as long as it exists, and no newer key that conflicts with it
//! is confirmed meanwhile. The key exists until its owner deletes it or its lease ends. The lease does not end before
//! the granted time has passed since the store received the last keep-alive, which is not before the keep-alive was
//! sent. So the promises of two holds of a key that conflict never overlap, as long as the store keeps its leases: its
//! clocks run at the client's rate up to the drift, and it ends no lease early. Pauses and delays do not matter.
//!
//! The token is the revision at which the key was created, and the queue is in that order. A hold that is confirmed
//! after another hold's key is gone was behind it in the queue, or came later. So later holds have larger tokens
//! whatever leases and clocks do: the store's order decides, not its time. Two holds that do not conflict may be
//! granted in either order. With and without tokens, the watch gets the confirmed revision, which gives the order of
//! the grants.
//!
//! # Leftovers
//!
//! A failed attempt revokes its lease, and the key goes with the lease. The undo is sound in any order of arrival: a
//! `Create` that arrives after the `Revoke` finds no lease. If the attempt ends before the grant is answered, the lease
//! is not known and is not undone. The lease then expires by itself; it has no key, so it blocks no client.
//!
//! # Decisions
//!
//! The trait `Decisions` names the points at which the algorithm decides. Its provided methods are the algorithm.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use crate::{
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, Outcome, Owner, Released, Renewed, Token},
    leases::{KEEP_ALIVES, KeyLease, Leases, StoreResult},
    mode::Mode,
    ports::{
        Cleanup, Clock, Lock, NodeError, Op, Operation, Reply, Revision, Round, Store, StoreAnswer, Unwatched, Watch,
    },
    servers::{CannotBuild, Servers, TokenSource},
    shared_lease::SharedLease,
    validity,
};

/// The decisions of the algorithm. Each provided method is the correct decision.
pub(crate) trait Decisions: Send + Sync {
    /// The mode in which a client holds the key above before it acquires a key in `mode`.
    fn intention(&self, mode: Mode) -> Option<Mode> {
        Some(mode.intention())
    }

    /// The mode by which an attempt in `mode` looks for older keys that conflict with it.
    fn looks_as(&self, mode: Mode) -> Mode {
        mode
    }

    /// Returns whether an attempt looks at the queue again when its predecessor is gone.
    fn looks_again(&self) -> bool {
        true
    }

    /// Returns whether an attempt keeps its lease alive once more before it claims the hold, if its last promise is
    /// old.
    fn refreshes_promise(&self) -> bool {
        true
    }

    /// Returns whether an attempt asks the store to confirm that its key is the oldest.
    fn confirms(&self) -> bool {
        true
    }

    /// The request that removes the key of a hold, which was created at `revision`.
    fn release(&self, key: &Key, revision: Revision) -> Op {
        Op::Delete(key.clone(), revision)
    }
}

/// The decisions of the correct algorithm.
struct Correct;

impl Decisions for Correct {}

/// The queue lock. See [the module](self).
pub struct Etcd {
    leases: Leases,
    has_tokens: bool,
    decisions: Box<dyn Decisions>,
}

/// Builds the lock over a store.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check("etcd", Etcd::TOKENS)?;
    let lock = Etcd::new(servers.store("etcd")?, clock);
    Ok(Arc::new(Etcd { has_tokens: tokens == TokenSource::Revision, ..lock }))
}

impl Etcd {
    /// The token sources of this lock; the first is the one to prefer.
    pub const TOKENS: &[TokenSource] = &[TokenSource::Revision, TokenSource::None];

    /// The lock over `store`. Its tokens are the revisions at which the keys were created.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self::deciding(store, clock, Box::new(Correct))
    }

    /// The lock over `store`, whose holds carry no tokens.
    pub fn without_tokens(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { has_tokens: false, ..Self::new(store, clock) }
    }

    /// The lock with decisions of its own.
    pub(crate) fn deciding(store: Arc<dyn Store>, clock: Arc<dyn Clock>, decisions: Box<dyn Decisions>) -> Self {
        Self { leases: Leases::new(store, clock), has_tokens: true, decisions }
    }

    /// Waits for the answer to each request for `timeout`. Without this the timeout is a quarter of the lease, from 50
    /// ms to 2 s (the election of a new leader takes one to two seconds). Waiting in the queue has no timeout.
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.leases.request_timeout = Some(timeout);
        self
    }

    /// Deletes the key at its revision, which is no other client's key, and so wakes the next client. Then revokes the
    /// lease.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        // The lock may have forgotten the hold. Its release is an invocation all the same, with an answer.
        watch.sending(Round::Release);
        let Some(KeyLease { id, granted, revision: Some(revision), .. }) = self.leases.of(&hold.owner) else {
            return Err(self.leases.failed(FailureReason::Lost, NodeAnswer::None));
        };
        let deleting = self.leases.store.send(self.decisions.release(&hold.key, revision));
        watch.sent(Round::Release).await;
        let result = self.leases.read(deleting, granted).await;
        // No client waits for a lease without a key. So the answer matters only if nothing is known of the key.
        let revoking = self.leases.store.send(Op::Revoke(id));
        let removed = match result {
            Ok(StoreAnswer::Done) => true,
            Ok(StoreAnswer::Gone) => false,
            unanswered => match self.leases.read(revoking, granted).await {
                // The lease still ran, so one of the two requests has removed the key.
                Ok(StoreAnswer::Done) => true,
                Err(NodeError::Definite(_)) => return Err(self.leases.unanswered(unanswered)),
                _ => return Err(Failure { outcome: Outcome::Indeterminate, ..self.leases.unanswered(unanswered) }),
            },
        };
        watch.answered(Round::Release);
        self.leases.forget(&hold.owner);
        let answer = if removed { NodeAnswer::Done } else { NodeAnswer::Refused };
        Ok(Released { removed, answers: self.leases.answers(answer) })
    }
}

/// One attempt: one turn in the queue.
struct Attempt<'a> {
    lock: &'a Etcd,
    mode: Mode,
    key: &'a Key,
    owner: Owner,
    lease: Duration,
    watch: &'a dyn Watch,
}

impl Attempt<'_> {
    /// Runs the attempt without its undo. The lock remembers the lease and the key before it awaits anything else.
    async fn run(&self) -> Result<Hold, Failure> {
        let Self { lock, watch, lease, .. } = *self;
        let mut own = lock.leases.grant(&self.owner, lease, watch).await?;
        let sent = own.counted_from;
        let creating = Op::Create(self.key.clone(), self.owner.clone(), own.id, self.mode);
        let (revision, is_first) = match lock.leases.ask(creating, own.granted).await {
            Ok(StoreAnswer::At(revision)) => (revision, false),
            Ok(StoreAnswer::First(revision)) => (revision, true),
            Ok(StoreAnswer::Gone) => return Err(self.lost()),
            other => return Err(self.unanswered(other)),
        };
        own.revision = Some(revision);
        lock.leases.remember(&self.owner, own);

        if !is_first {
            self.await_turn(&mut own, revision).await?;
        }
        let (sent, lease) = self.promise(sent, &own).await?;
        if is_first {
            // Creating the key has confirmed it.
            watch.confirmed(revision);
        } else if lock.decisions.confirms() {
            let looks_as = lock.decisions.looks_as(self.mode);
            match lock.leases.ask(Op::Confirm(self.key.clone(), revision, looks_as), own.granted).await {
                Ok(StoreAnswer::Done) => watch.confirmed(revision),
                Ok(StoreAnswer::Refused) => return Err(self.lost()),
                other => return Err(self.unanswered(other)),
            }
        }
        // Nothing is awaited from here on.
        watch.answered(Round::Acquire);
        let valid_until = validity::promise_end(sent, lease);
        if lock.leases.clock.now() >= valid_until {
            return Err(lock.leases.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        lock.leases.remember(&self.owner, KeyLease { counted_from: own.counted_from.max(sent), ..own });
        let token = lock.has_tokens.then(|| Token(u64::try_from(revision.0).unwrap_or_default()));
        let answers = lock.leases.answers(NodeAnswer::Granted);
        Ok(Hold { key: self.key.clone(), owner: self.owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// Returns the failure of an attempt whose key is gone, by the store's answer. The answer decides the attempt, so
    /// the watch gets it.
    fn lost(&self) -> Failure {
        self.watch.answered(Round::Acquire);
        self.lock.leases.failed(FailureReason::Lost, NodeAnswer::Refused)
    }

    /// The failure of a request without a usable answer. Once the key may be in the queue, even a definite failure of a
    /// request does not decide the attempt.
    fn unanswered(&self, result: StoreResult) -> Failure {
        let failure = self.lock.leases.unanswered(result);
        match self.lock.leases.of(&self.owner) {
            Some(KeyLease { revision: Some(_), .. }) => Failure { outcome: Outcome::Indeterminate, ..failure },
            _ => failure,
        }
    }

    /// Waits until the queue has no key before `revision` that conflicts with this attempt.
    async fn await_turn(&self, own: &mut KeyLease, revision: Revision) -> Result<(), Failure> {
        let lock = self.lock;
        while let Some(predecessor) = self.look(own, revision).await? {
            self.watch.behind();
            self.watch.looking();
            let gone = lock.leases.store.send(Op::AwaitGone(self.key.clone(), predecessor));
            if self.await_gone(own, gone).await? && !lock.decisions.looks_again() {
                break;
            }
        }
        Ok(())
    }

    /// Looks for the newest key before `revision` that conflicts with this attempt.
    async fn look(&self, own: &KeyLease, revision: Revision) -> Result<Option<Revision>, Failure> {
        self.watch.looking();
        let looks_as = self.lock.decisions.looks_as(self.mode);
        match self.lock.leases.ask(Op::Before(self.key.clone(), revision, looks_as), own.granted).await {
            Ok(StoreAnswer::At(predecessor)) => Ok(Some(predecessor)),
            Ok(StoreAnswer::Gone) => Ok(None),
            other => Err(self.unanswered(other)),
        }
    }

    /// Waits for the end of the predecessor, and keeps the lease alive meanwhile. The predecessor's end comes first: a
    /// keep-alive that is due as well can wait for the keep-alive before the confirming transaction. Returns false if
    /// the wait broke off with its connection. The attempt then stays in the queue: the next look finds out whether the
    /// store can be reached.
    async fn await_gone(&self, own: &mut KeyLease, mut gone: Reply<StoreResult>) -> Result<bool, Failure> {
        let lock = self.lock;
        let mut keeping = pin!(lock.leases.keep_alive(&self.owner, own, &Unwatched));
        poll_fn(|cx| match gone.as_mut().poll(cx) {
            Poll::Ready(Ok(StoreAnswer::Gone)) => Poll::Ready(Ok(true)),
            Poll::Ready(Err(_)) => Poll::Ready(Ok(false)),
            Poll::Ready(other) => Poll::Ready(Err(self.unanswered(other))),
            Poll::Pending => keeping.as_mut().poll(cx).map(|ended| match ended {
                None => Err(self.lost()),
                Some(result) => Err(self.unanswered(result)),
            }),
        })
        .await
    }

    /// The request from which the promise counts: the grant that was sent at `sent`, or a new keep-alive if that was
    /// long ago. Returns the sending of that request, and the time for which the lease runs from then on.
    async fn promise(&self, sent: Duration, own: &KeyLease) -> Result<(Duration, Duration), Failure> {
        let lock = self.lock;
        let now = lock.leases.clock.now();
        if now < sent + own.granted / KEEP_ALIVES {
            return Ok((sent, own.granted));
        }
        self.watch.promising();
        let lease = if lock.decisions.refreshes_promise() {
            let result = lock.leases.ask(Op::KeepAlive(own.id), own.granted).await;
            let kept_alive = lock.leases.kept_alive(result).map_err(|result| self.unanswered(result))?;
            kept_alive.ok_or_else(|| self.lost())?
        } else {
            own.granted
        };
        self.watch.promised();
        Ok((now, lease))
    }
}

impl Lock for Etcd {
    fn intention(&self, mode: Mode) -> Option<Mode> {
        self.decisions.intention(mode)
    }

    fn waits(&self) -> bool {
        true
    }

    fn session(&self) -> Option<Arc<dyn Lock>> {
        let store = Arc::new(SharedLease::new(self.leases.store.clone()));
        let mut lock = Etcd::new(store, self.leases.clock.clone());
        lock.has_tokens = self.has_tokens;
        lock.leases.request_timeout = self.leases.request_timeout;
        Some(Arc::new(lock))
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
        let attempt = Attempt { lock: self, mode, key, owner, lease, watch };
        Box::pin(async move {
            let result = attempt.run().await;
            if result.is_err() {
                self.leases.undo(key, &attempt.owner, watch).await;
            }
            result
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, _lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(self.leases.extend(hold, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    fn gave_up(&self, hold: &Hold) {
        self.leases.of(&hold.owner).into_iter().for_each(|own| self.leases.store.relies_on_end(own.id));
    }

    /// Undoes the attempt if its lease is known: see [the module](self).
    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, _lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(self.leases.undo(key, owner, watch))
    }
}

#[cfg(test)]
mod tests;
