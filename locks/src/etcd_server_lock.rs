//! etcd's own Lock service, as a careful client uses it.
//!
//! An attempt takes a lease and asks the service to lock the key under that lease. The service puts a key into the same
//! kind of queue as that of [`Etcd`](crate::Etcd), waits on the server until no key is older, and answers. The client
//! sees no queue, only that there is no answer yet; meanwhile it keeps its lease alive.
//!
//! Up to version 3.4 the service does not check after the wait whether its key still exists (etcd#9921, etcd#11456). It
//! grants the lock to a lease that ended in the queue, and grants the lock to the next client too. From 3.5 on the
//! service checks and refuses. This lock exists to show the grants of the service, so it repairs none of them:
//!
//! - A grant whose key is gone is a grant. The client looks for the key once, because the key's revision is the token
//!   and the service's answer does not contain it. If the key is not there, the client tells [`Watch::without_key`].
//!   The report decides nothing.
//! - The validity check of every lock with a lease decides: a grant that is read after the promise has ended is refused
//!   **by validity**. A promise counts from the sending of the lease's grant, or of the last keep-alive that was
//!   answered. This check saves a client that was frozen in the queue for longer than its lease; the service does not.
//!   A client that trusts the service alone then acts under a lock that another client holds.
//!
//! A client that hears from a keep-alive that its lease is gone gives up the attempt.
//!
//! # Tokens
//!
//! The token is the revision at which the key was created: no other hold has it, and tokens are in the order of the
//! queue. The revision in the header of the service's answer would not do: the service grants the lock to two waiters
//! whose keys are gone at one revision of the store. The client uses that revision only if the key is gone and the
//! client still believes in its lease (the store ended the lease early), because there is no other. Tokens may then go
//! wrong, as the grant did.
//!
//! # One request only
//!
//! Two lock requests with one lease share one key in the queue, so asking again looks safe. It is not: when a request
//! breaks off while it waits (its connection ends, its caller gives up), the service deletes the key of that lease by
//! name. If another member had granted the lock by then, the hold would lose its key. So a request goes to one member
//! and is never repeated. If it fails, the attempt has failed, and the client revokes its lease.
//!
//! # Leftovers
//!
//! As with [`Etcd`](crate::Etcd), the undo revokes the lease, and the key goes with the lease. A request that still
//! waits on the server finds no lease, or ends when its predecessors have gone, and no client reads its answer.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use crate::{
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, Outcome, Owner, Released, Renewed, Token},
    leases::{KeyLease, Leases, StoreResult},
    mode::Mode,
    ports::{Cleanup, Clock, Lock, Op, Operation, Reply, Revision, Round, Store, StoreAnswer, Watch},
    servers::{CannotBuild, Servers, TokenSource},
    validity,
};

/// The lock of etcd's Lock service. See [the module](self).
pub struct EtcdServerLock {
    leases: Leases,
    has_tokens: bool,
}

/// Builds the lock over a store.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check("etcd-server-lock", EtcdServerLock::TOKENS)?;
    let leases = Leases::new(servers.store("etcd-server-lock")?, clock);
    Ok(Arc::new(EtcdServerLock { leases, has_tokens: tokens == TokenSource::Revision }))
}

impl EtcdServerLock {
    /// The token sources of this lock; the first is the one to prefer.
    pub const TOKENS: &[TokenSource] = &[TokenSource::Revision, TokenSource::None];

    /// The lock over `store`. Its tokens are the revisions at which the keys were created.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { leases: Leases::new(store, clock), has_tokens: true }
    }

    /// Runs one attempt without its undo.
    async fn attempt(&self, key: &Key, owner: &Owner, lease: Duration, watch: &dyn Watch) -> Result<Hold, Failure> {
        let leases = &self.leases;
        let mut own = leases.grant(owner, lease, watch).await?;
        let locking = leases.store.send(Op::Lock(key.clone(), own.id));
        let granted_at = self.await_grant(owner, &mut own, locking, watch).await?;
        let created = match leases.ask(Op::OfLease(key.clone(), own.id), own.granted).await {
            Ok(StoreAnswer::At(created)) => Some(created),
            Ok(StoreAnswer::Gone) => None,
            other => return Err(self.unanswered(other)),
        };
        match created {
            Some(created) => {
                own.revision = Some(created);
                leases.remember(owner, own);
                // Only for the record: the service has granted the lock, whatever this answer is.
                let confirmed = leases.ask(Op::Confirm(key.clone(), created, Mode::Write), own.granted).await;
                if confirmed == Ok(StoreAnswer::Done) {
                    watch.confirmed(created);
                }
            }
            None => watch.without_key(),
        }
        // Nothing is awaited from here on.
        watch.answered(Round::Acquire);
        let (sent, lease) = (own.counted_from, own.granted);
        let valid_until = validity::promise_end(sent, lease);
        if leases.clock.now() >= valid_until {
            return Err(leases.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        let Revision(revision) = created.unwrap_or(granted_at);
        let token = self.has_tokens.then(|| Token(u64::try_from(revision).unwrap_or_default()));
        let answers = leases.answers(NodeAnswer::Granted);
        Ok(Hold { key: key.clone(), owner: owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// Waits for the service's answer, and keeps the lease alive meanwhile. The answer comes first: after a freeze both
    /// are due. Returns the store's revision at the grant.
    async fn await_grant(
        &self,
        owner: &Owner,
        own: &mut KeyLease,
        mut locking: Reply<StoreResult>,
        watch: &dyn Watch,
    ) -> Result<Revision, Failure> {
        let lost = || {
            watch.answered(Round::Acquire);
            self.leases.failed(FailureReason::Lost, NodeAnswer::Refused)
        };
        let mut keeping = pin!(self.leases.keep_alive(owner, own, watch));
        poll_fn(|cx| match locking.as_mut().poll(cx) {
            Poll::Ready(Ok(StoreAnswer::Locked(revision))) => Poll::Ready(Ok(revision)),
            Poll::Ready(Ok(StoreAnswer::Gone)) => Poll::Ready(Err(lost())),
            Poll::Ready(other) => Poll::Ready(Err(self.unanswered(other))),
            Poll::Pending => keeping.as_mut().poll(cx).map(|ended| match ended {
                None => Err(lost()),
                Some(result) => Err(self.unanswered(result)),
            }),
        })
        .await
    }

    /// The failure of a request without a usable answer. Even a definite failure of a request does not decide the
    /// attempt: the lock request may have left.
    fn unanswered(&self, result: StoreResult) -> Failure {
        Failure { outcome: Outcome::Indeterminate, ..self.leases.unanswered(result) }
    }

    /// Unlocks, which wakes the next client, and revokes the lease. The service's answer to an unlock does not say
    /// whether there was a key; a lease that still ran says so.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let leases = &self.leases;
        // The lock may have forgotten the hold. Its release is an invocation all the same, with an answer.
        watch.sending(Round::Release);
        let Some(KeyLease { id, granted, .. }) = leases.of(&hold.owner) else {
            return Err(leases.failed(FailureReason::Lost, NodeAnswer::None));
        };
        let unlocking = leases.store.send(Op::Unlock(hold.key.clone(), id));
        watch.sent(Round::Release).await;
        // The client revokes whatever the answer is: the key goes with the lease if the unlock was lost.
        let _answer = leases.read(unlocking, granted).await;
        let removed = match leases.ask(Op::Revoke(id), granted).await {
            Ok(StoreAnswer::Done) => true,
            Ok(StoreAnswer::Gone) => false,
            other => return Err(self.unanswered(other)),
        };
        watch.answered(Round::Release);
        leases.forget(&hold.owner);
        let answer = if removed { NodeAnswer::Done } else { NodeAnswer::Refused };
        Ok(Released { removed, answers: leases.answers(answer) })
    }
}

impl Lock for EtcdServerLock {
    fn waits(&self) -> bool {
        true
    }

    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        Box::pin(async move {
            let result = self.attempt(key, &owner, lease, watch).await;
            if result.is_err() {
                self.leases.undo(key, &owner, watch).await;
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

    /// Undoes the attempt if its lease is known: see [the module](self).
    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, _lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(self.leases.undo(key, owner, watch))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        future::{pending, ready},
    };

    use parking_lot::Mutex;

    use super::*;
    use crate::ports::{LeaseId, NodeError, Unwatched};

    const LEASE: Duration = Duration::from_secs(2);

    /// A store with these answers, one for each request in turn, and a clock that stands still.
    struct Scripted(Mutex<VecDeque<StoreResult>>);

    impl Store for Scripted {
        fn name(&self) -> &str {
            "etcd"
        }

        fn send(&self, op: Op) -> Reply<StoreResult> {
            let Some(answer) = self.0.lock().pop_front() else { panic!("{op:?}") };
            Box::pin(ready(answer))
        }
    }

    impl Clock for Scripted {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep_until(&self, _: Duration) -> Reply<()> {
            Box::pin(pending())
        }
    }

    #[tokio::test]
    async fn a_release_is_decided_by_the_end_of_the_lease_whatever_the_unlock_says() {
        use StoreAnswer::{At, Done, Gone, Leased, Locked};
        let lost = || Err(NodeError::Indeterminate("no answer in time".into()));
        let never_sent = || Err(NodeError::Definite("not connected".into()));
        for (unlocked, revoked, expected) in [
            (Ok(Done), Ok(Done), Ok(true)),
            (Ok(Done), Ok(Gone), Ok(false)),
            (lost(), Ok(Done), Ok(true)),
            (lost(), Ok(Gone), Ok(false)),
            (never_sent(), Ok(Done), Ok(true)),
            (lost(), lost(), Err(Outcome::Indeterminate)),
            (Ok(Done), never_sent(), Err(Outcome::Indeterminate)),
        ] {
            let case = format!("{unlocked:?}, {revoked:?}");
            let created = Revision(5);
            let acquired = [Ok(Leased(LeaseId(7), LEASE)), Ok(Locked(created)), Ok(At(created)), Ok(Done)];
            let answers = acquired.into_iter().chain([unlocked, revoked]).collect();
            let scripted = Arc::new(Scripted(Mutex::new(answers)));
            let lock = EtcdServerLock::new(scripted.clone(), scripted.clone());
            let hold = lock.acquire(&Key::new("k0"), Owner::new("a"), LEASE, &Unwatched).await.unwrap();
            let released = lock.release(&hold, &Unwatched).await;
            let released = released.map(|released| released.removed).map_err(|failure| failure.outcome);
            assert_eq!(released, expected, "{case}");
            assert!(scripted.0.lock().is_empty(), "the lease is revoked: {case}");
        }
    }
}
