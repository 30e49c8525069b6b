//! The lock that etcd itself offers: its Lock service, as a careful client uses it.
//!
//! An attempt takes a lease and asks the service to lock the key under it. The service puts a key into the same kind of queue as [`Etcd`]'s,
//! waits on the server until nobody stands before it, and answers. The client sees no queue, only that there is no answer yet; meanwhile it
//! keeps its lease alive.
//!
//! Up to 3.4 the service does not look, when the wait is over, whether the key that waited still stands (etcd#9921, #11456): it grants the
//! lock to a lease that ended in the queue, while the next in the queue is granted it too. From 3.5 on it looks and refuses. This lock is here to
//! show what the service grants, so that it repairs nothing of that on its own account:
//!
//! - A grant whose key is gone is a grant. The client looks for the key once, because the key's revision is the token and the service's answer
//!   does not have it, and tells [`Watch::without_key`] if it is not there. That decides nothing.
//! - What decides is what every lock with a lease does: a grant that is read after the promise has ended is refused **by validity**. A promise counts
//!   from the sending of the grant of the lease, or of the last keep-alive that was answered. A client that was frozen in the queue for longer
//!   than its lease is saved by this guard, and not by the service. Whoever believes the service alone holds a lock that is somebody else's.
//!
//! While it waits, a client that hears from a keep-alive that there is no such lease gives the attempt up.
//!
//! # Tokens
//!
//! The revision at which the key was created: it is of this hold alone, and in the order of the queue. The revision in the header of the
//! service's answer would not do: two waiters whose keys are gone are granted the lock at one and the same revision of the store. Only where the key is gone
//! and the client still believes in its lease (the store ended it early) is that revision taken, since there is no other; then tokens may go wrong, as the
//! grant did.
//!
//! # One request only
//!
//! Two requests to lock with one lease are the same place in the queue, so that asking again looks safe. It is not: if a request breaks off while it
//! waits (its connection ends, its caller gives up), the service deletes the key of that lease by name. Had the lock been granted through another member by then, the
//! hold would lose its key. So a request goes to one member and is never repeated; if it fails, the attempt has failed and its lease is revoked.
//!
//! # What is left behind
//!
//! As with [`Etcd`]: the undo revokes the lease, and the key goes with it. A request that still waits for it on the server finds no lease, or ends when its
//! predecessors have gone, and nobody reads its answer.
//!
//! [`Etcd`]: crate::Etcd

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use crate::{
    hold::{Failure, Hold, Key, NodeAnswer, Outcome, Owner, Released, Renewed, Token, Why},
    leases::{Leases, Place, Said},
    ports::{Clock, Doing, Lock, Op, Reply, Revision, Round, Seen, Store, Undoing, Watch},
    validity,
};

/// The lock of etcd's Lock service. See [the module](self).
pub struct EtcdServerLock {
    leases: Leases,
    has_tokens: bool,
}

impl EtcdServerLock {
    /// The lock over `store`. Its tokens are the revisions at which the keys were created.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { leases: Leases::new(store, clock), has_tokens: true }
    }

    /// The same whose holds carry no tokens.
    pub fn without_tokens(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { has_tokens: false, ..Self::new(store, clock) }
    }

    /// One attempt without its undo.
    async fn attempt(&self, key: &Key, owner: &Owner, lease: Duration, watch: &dyn Watch) -> Result<Hold, Failure> {
        let leases = &self.leases;
        let mut place = leases.grant(owner, lease, watch).await?;
        let locking = leases.store.send(Op::Lock(key.clone(), place.lease));
        let granted_at = self.await_grant(owner, &mut place, locking, watch).await?;
        let created = match leases.ask(Op::OfLease(key.clone(), place.lease), place.granted).await {
            Ok(Seen::At(created)) => Some(created),
            Ok(Seen::Gone) => None,
            other => return Err(self.unanswered(other)),
        };
        match created {
            Some(created) => {
                place.revision = Some(created);
                leases.remember(owner, place);
                // For the record only: whatever is said, the service has granted the lock.
                let confirmed = leases.ask(Op::Confirm(key.clone(), created), place.granted).await;
                if confirmed == Ok(Seen::Done) {
                    watch.confirmed(created);
                }
            }
            None => watch.without_key(),
        }
        // Nothing is awaited from here on.
        watch.answered(Round::Acquire);
        let (sent, lease) = (place.kept, place.granted);
        let valid_until = validity::promise_end(sent, lease);
        if leases.clock.now() >= valid_until {
            return Err(leases.failed(Why::Validity, NodeAnswer::Late));
        }
        let Revision(revision) = created.unwrap_or(granted_at);
        let token = self.has_tokens.then(|| Token(u64::try_from(revision).unwrap_or_default()));
        let answers = leases.answers(NodeAnswer::Granted);
        Ok(Hold { key: key.clone(), owner: owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// Waits for the service's answer, and keeps the lease alive meanwhile. The answer is read first: after a freeze both are due. Gives
    /// the store's revision at the grant.
    async fn await_grant(
        &self,
        owner: &Owner,
        place: &mut Place,
        mut locking: Reply<Said>,
        watch: &dyn Watch,
    ) -> Result<Revision, Failure> {
        let lost = || {
            watch.answered(Round::Acquire);
            self.leases.failed(Why::Lost, NodeAnswer::Refused)
        };
        let mut keeping = pin!(self.leases.keep_alive(owner, place, watch));
        poll_fn(|cx| match locking.as_mut().poll(cx) {
            Poll::Ready(Ok(Seen::Locked(revision))) => Poll::Ready(Ok(revision)),
            Poll::Ready(Ok(Seen::Gone)) => Poll::Ready(Err(lost())),
            Poll::Ready(other) => Poll::Ready(Err(self.unanswered(other))),
            Poll::Pending => keeping.as_mut().poll(cx).map(|ended| match ended {
                None => Err(lost()),
                Some(said) => Err(self.unanswered(said)),
            }),
        })
        .await
    }

    /// What was surely not done decides nothing here: the request to lock may have left.
    fn unanswered(&self, said: Said) -> Failure {
        Failure { outcome: Outcome::Indeterminate, ..self.leases.unanswered(said) }
    }

    /// Unlocks, which lets the next one in, and revokes the lease. The service answers an unlock alike whether there was a key or not; that
    /// the lease still ran tells that there was.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let leases = &self.leases;
        let Some(Place { lease, granted, .. }) = leases.place(&hold.owner) else {
            return Err(leases.failed(Why::Lost, NodeAnswer::None));
        };
        watch.sending(Round::Release);
        let unlocking = leases.store.send(Op::Unlock(hold.key.clone(), lease));
        watch.sent(Round::Release).await;
        // Revoked whatever is said: the key goes with the lease if the unlock was lost.
        let _said = leases.read(unlocking, granted).await;
        let removed = match leases.ask(Op::Revoke(lease), granted).await {
            Ok(Seen::Done) => true,
            Ok(Seen::Gone) => false,
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

    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Hold> {
        Box::pin(async move {
            let result = self.attempt(key, &owner, lease, watch).await;
            if result.is_err() {
                self.leases.undo(key, &owner, watch).await;
            }
            result
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, _lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Renewed> {
        Box::pin(self.leases.extend(hold, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Doing<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    /// As far as the lease is known: see [the module](self).
    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, _lease: Duration, watch: &'a dyn Watch) -> Undoing<'a> {
        Box::pin(self.leases.undo(key, owner, watch))
    }
}
