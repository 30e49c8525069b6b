//! The queue lock over a revisioned store with leases: whoever has the oldest key of the queue holds the lock.
//!
//! An attempt takes a lease, creates a key of its own under it, and waits until no key of the queue is older. Three things are added to
//! that recipe; each mends a fault that queue locks were seen to have, etcd's own among them (etcd#11456, #11457):
//!
//! - **It looks again.** An attempt waits for its predecessor only, so that one that goes wakes one and not all. But the predecessor may
//!   only have been a waiter that left, with the holder still before it: that it is gone is no more than a reason to look.
//! - **It confirms.** The lease may run out while its owner waits, or is frozen, and its key with it. Then nobody is before the revision
//!   that it remembers, because there is nobody at that revision either. So one transaction decides: the own key stands *and* no key is
//!   older.
//! - **Its promise is fresh.** A promise counts from the sending of the grant, or of a keep-alive that was answered. After a wait there is
//!   little left of the first, so that the lease is kept alive once more before the confirming transaction. Keep-alives sent while waiting
//!   hold the place in the queue and promise nothing.
//!
//! # Why it is sound
//!
//! Revisions only grow, so that no key of a queue ever gets an older one before it: once confirmed to be the oldest it stays so for as long
//! as it stands, and nobody else is confirmed meanwhile. It stands until it is deleted, which only its owner does, or until its lease
//! ends; and that is not before the granted time has passed since the store had the last keep-alive, which is not before it was sent. So
//! while the store's leases keep what they promise (its clocks run at the rate of the client's up to the drift, and none is ended early)
//! the promises of two holds of a key never overlap. Pauses and delays change nothing in this.
//!
//! The token is the revision at which the key was created, and the queue is in that order: a hold that is confirmed when another's key is
//! gone stood behind it, or came after it. Later holds have larger tokens whatever leases and clocks do, since what decides is the store's
//! order and not its time. With tokens or without, the watch is told that revision once it is confirmed: it says in which order holds were granted.
//!
//! # What is left behind
//!
//! A failed attempt revokes its lease, and with that its key goes. That is sound in any order of arrival: a `Create` which the `Revoke` has
//! overtaken finds no lease. Only where the grant itself was under way when the attempt ended is the lease not known, and nothing can be
//! undone; it then runs out by itself, and since no key was ever created under it, it stood in nobody's way.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

pub use crate::etcd_buggy::{BUGGY, buggy};
use crate::{
    etcd_buggy::QueueFlaw,
    hold::{Failure, Hold, Key, NodeAnswer, Outcome, Owner, Released, Renewed, Token, Why},
    leases::{KEEP_ALIVES, Leases, Place, Said},
    ports::{Clock, Doing, Lock, NodeError, Op, Reply, Revision, Round, Seen, Store, Undoing, Unwatched, Watch},
    validity,
};

/// The queue lock. See [the module](self).
pub struct Etcd {
    leases: Leases,
    has_tokens: bool,
    flaw: Option<QueueFlaw>,
}

impl Etcd {
    /// The lock over `store`. Its tokens are the revisions at which the keys were created.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { leases: Leases::new(store, clock), has_tokens: true, flaw: None }
    }

    /// The same whose holds carry no tokens.
    pub fn without_tokens(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { has_tokens: false, ..Self::new(store, clock) }
    }

    /// Waits for the answer to a request for `timeout`, instead of a quarter of the lease, but from 50 ms to 2 s (an election of the
    /// store's leader takes one to two). Waiting in the queue has no timeout.
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.leases.request_timeout = Some(timeout);
        self
    }

    /// The same with a planted bug.
    pub(crate) fn with_flaw(mut self, flaw: QueueFlaw) -> Self {
        self.leases.ignores_zero = flaw == QueueFlaw::IgnoresZero;
        Self { flaw: Some(flaw), ..self }
    }

    fn has(&self, flaw: QueueFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Deletes the key at its revision, which cannot be anybody else's, and wakes the next one by that; then revokes the lease.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let Some(Place { lease, granted, revision: Some(revision), .. }) = self.leases.place(&hold.owner) else {
            return Err(self.leases.failed(Why::Lost, NodeAnswer::None));
        };
        watch.sending(Round::Release);
        let deleting = self.leases.store.send(match self.flaw {
            Some(QueueFlaw::ReleasesByName) => Op::DeleteAll(hold.key.clone()),
            _ => Op::Delete(hold.key.clone(), revision),
        });
        watch.sent(Round::Release).await;
        let said = self.leases.read(deleting, granted).await;
        // Nobody waits for a lease without a key, so it is not waited for either, unless nothing is known of the key.
        let revoking = self.leases.store.send(Op::Revoke(lease));
        let removed = match said {
            Ok(Seen::Done) => true,
            Ok(Seen::Gone) => false,
            unheard => match self.leases.read(revoking, granted).await {
                // The lease still ran, so the key was there for one of the two to remove.
                Ok(Seen::Done) => true,
                Err(NodeError::Definite(_)) => return Err(self.leases.unanswered(unheard)),
                _ => return Err(Failure { outcome: Outcome::Indeterminate, ..self.leases.unanswered(unheard) }),
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
    key: &'a Key,
    owner: Owner,
    lease: Duration,
    watch: &'a dyn Watch,
}

impl Attempt<'_> {
    /// The attempt without its undo. What it leaves is remembered before anything else is awaited.
    async fn run(&self) -> Result<Hold, Failure> {
        let Self { lock, watch, lease, .. } = *self;
        let mut place = lock.leases.grant(&self.owner, lease, watch).await?;
        let sent = place.kept;
        let creating = Op::Create(self.key.clone(), self.owner.clone(), place.lease);
        let revision = match lock.leases.ask(creating, place.granted).await {
            Ok(Seen::At(revision)) => revision,
            Ok(Seen::Gone) => return Err(self.lost()),
            other => return Err(self.unanswered(other)),
        };
        place.revision = Some(revision);
        lock.leases.remember(&self.owner, place);

        self.await_turn(&mut place, revision).await?;
        let (sent, lease) = self.promise(sent, &place).await?;
        if lock.flaw.is_none_or(QueueFlaw::confirms) {
            match lock.leases.ask(Op::Confirm(self.key.clone(), revision), place.granted).await {
                Ok(Seen::Done) => watch.confirmed(revision),
                Ok(Seen::Refused) => return Err(self.lost()),
                other => return Err(self.unanswered(other)),
            }
        }
        // Nothing is awaited from here on.
        watch.answered(Round::Acquire);
        let valid_until = validity::promise_end(sent, lease);
        if lock.leases.clock.now() >= valid_until {
            return Err(lock.leases.failed(Why::Validity, NodeAnswer::Late));
        }
        lock.leases.remember(&self.owner, Place { kept: place.kept.max(sent), ..place });
        let token = lock.has_tokens.then(|| Token(u64::try_from(revision.0).unwrap_or_default()));
        let answers = lock.leases.answers(NodeAnswer::Granted);
        Ok(Hold { key: self.key.clone(), owner: self.owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// The store has said that the key is gone. That decides the attempt, so that the watch is told.
    fn lost(&self) -> Failure {
        self.watch.answered(Round::Acquire);
        self.lock.leases.failed(Why::Lost, NodeAnswer::Refused)
    }

    /// As the lock's own, but a request that was surely not done decides nothing where the key may stand in the queue already.
    fn unanswered(&self, said: Said) -> Failure {
        let failure = self.lock.leases.unanswered(said);
        match self.lock.leases.place(&self.owner) {
            Some(Place { revision: Some(_), .. }) => Failure { outcome: Outcome::Indeterminate, ..failure },
            _ => failure,
        }
    }

    /// Waits until a look at the queue has seen nobody before `revision`.
    async fn await_turn(&self, place: &mut Place, revision: Revision) -> Result<(), Failure> {
        let lock = self.lock;
        while let Some(mut predecessor) = self.look(place, revision).await? {
            self.watch.behind();
            if lock.has(QueueFlaw::WrongPredecessor) {
                predecessor = self.look(place, predecessor).await?.unwrap_or(predecessor);
            }
            let is_heard = !lock.has(QueueFlaw::LosesWakeUp) || self.look(place, revision).await? == Some(predecessor);
            self.watch.looking();
            let gone = lock.leases.store.send(Op::AwaitGone(self.key.clone(), predecessor));
            let is_gone = self.await_gone(place, if is_heard { gone } else { Box::pin(pending()) }).await?;
            if is_gone && matches!(lock.flaw, Some(QueueFlaw::WrongPredecessor | QueueFlaw::NoSecondLook)) {
                break;
            }
        }
        Ok(())
    }

    /// Who is next before `revision`.
    async fn look(&self, place: &Place, revision: Revision) -> Result<Option<Revision>, Failure> {
        self.watch.looking();
        match self.lock.leases.ask(Op::Before(self.key.clone(), revision), place.granted).await {
            Ok(Seen::At(predecessor)) => Ok(Some(predecessor)),
            Ok(Seen::Gone) => Ok(None),
            other => Err(self.unanswered(other)),
        }
    }

    /// Waits for the end of the predecessor, and keeps the lease alive meanwhile. That it is gone is read first: a keep-alive that is due as
    /// well can wait for the one before the confirming transaction. False if the waiting broke off, because a connection did: it is no
    /// reason to lose the place, and the next look finds out whether the store can be reached.
    async fn await_gone(&self, place: &mut Place, mut gone: Reply<Said>) -> Result<bool, Failure> {
        let lock = self.lock;
        let mut keeping = pin!(lock.leases.keep_alive(&self.owner, place, &Unwatched));
        poll_fn(|cx| match gone.as_mut().poll(cx) {
            Poll::Ready(Ok(Seen::Gone)) => Poll::Ready(Ok(true)),
            Poll::Ready(Err(_)) => Poll::Ready(Ok(false)),
            Poll::Ready(other) => Poll::Ready(Err(self.unanswered(other))),
            Poll::Pending => keeping.as_mut().poll(cx).map(|ended| match ended {
                None => Err(self.lost()),
                Some(said) => Err(self.unanswered(said)),
            }),
        })
        .await
    }

    /// What the promise rests on: the grant that was sent at `sent`, or a new keep-alive if that is long ago. When it was sent, and for how
    /// long the lease runs from then on.
    async fn promise(&self, sent: Duration, place: &Place) -> Result<(Duration, Duration), Failure> {
        let lock = self.lock;
        let now = lock.leases.clock.now();
        if now < sent + place.granted / KEEP_ALIVES {
            return Ok((sent, place.granted));
        }
        self.watch.promising();
        if lock.has(QueueFlaw::BelievesRevision) {
            self.watch.promised();
            return Ok((now, place.granted));
        }
        let said = lock.leases.ask(Op::KeepAlive(place.lease), place.granted).await;
        match lock.leases.kept(place, said) {
            Ok(Some(lease)) => {
                self.watch.promised();
                Ok((now, lease))
            }
            Ok(None) => Err(self.lost()),
            Err(said) => Err(self.unanswered(said)),
        }
    }
}

impl Lock for Etcd {
    fn waits(&self) -> bool {
        true
    }

    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Hold> {
        let attempt = Attempt { lock: self, key, owner, lease, watch };
        Box::pin(async move {
            let result = attempt.run().await;
            if result.is_err() {
                self.leases.undo(key, &attempt.owner, watch).await;
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
