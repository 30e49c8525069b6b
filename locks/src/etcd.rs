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
    collections::BTreeMap,
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

pub use crate::etcd_buggy::{BUGGY, buggy};
use crate::{
    etcd_buggy::QueueFlaw,
    hold::{Failure, Hold, Key, NodeAnswer, NodeAnswers, Outcome, Owner, Released, Renewed, Token, Why},
    ports::{Clock, Doing, LeaseId, Lock, NodeError, Op, Reply, Revision, Round, Seen, Store, Undoing, Watch},
    validity,
};

/// A lease is kept alive when this part of its time has passed. Each request waits for a quarter of it, so that one may go unanswered.
const KEEP_ALIVES: u32 = 3;

/// How much longer a request reads after its timer has fired: a process that was frozen wakes up with the answer *and* the timer due, and
/// the answer has to pass through the connection's task to be read.
const SECOND_LOOK: Duration = Duration::from_millis(2);

/// How long a place whose lease should have run out is remembered: its owner may have been frozen, and still wants to let go.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// What was said to a request, if anything.
type Said = Result<Seen, NodeError>;

/// The queue lock. See [the module](self).
pub struct Etcd {
    store: Arc<dyn Store>,
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    has_tokens: bool,
    request_timeout: Option<Duration>,
    places: Mutex<BTreeMap<Owner, Place>>,
    flaw: Option<QueueFlaw>,
}

/// What an attempt, or the hold that came of it, has in the store.
#[derive(Debug, Clone, Copy)]
struct Place {
    lease: LeaseId,
    /// The time that was granted, which is what a keep-alive gives again.
    granted: Duration,
    /// At which its key was created; none, if that is not known.
    revision: Option<Revision>,
    /// When the last request was sent that is known to have started the lease's time.
    kept: Duration,
}

impl Etcd {
    /// The lock over `store`. Its tokens are the revisions at which the keys were created.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let (name, places) = (store.name().into(), Mutex::default());
        Self { store, name, clock, has_tokens: true, request_timeout: None, places, flaw: None }
    }

    /// The same whose holds carry no tokens.
    pub fn without_tokens(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { has_tokens: false, ..Self::new(store, clock) }
    }

    /// Waits for the answer to a request for `timeout`, instead of a quarter of the lease, but from 50 ms to 2 s (an election of the
    /// store's leader takes one to two). Waiting in the queue has no timeout.
    pub fn with_request_timeout(self, timeout: Duration) -> Self {
        Self { request_timeout: Some(timeout), ..self }
    }

    /// The same with a planted bug.
    pub(crate) fn with_flaw(self, flaw: QueueFlaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    fn has(&self, flaw: QueueFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn timeout(&self, lease: Duration) -> Duration {
        let usual = || (lease / 4).clamp(Duration::from_millis(50), Duration::from_secs(2));
        self.request_timeout.unwrap_or_else(usual)
    }

    async fn ask(&self, op: Op, lease: Duration) -> Said {
        self.read(self.store.send(op), lease).await
    }

    /// Reads the answer, waiting from now on. What has arrived comes before the timer: after a freeze both are due.
    async fn read(&self, mut reply: Reply<Said>, lease: Duration) -> Said {
        let mut timer = self.clock.sleep_until(self.clock.now().saturating_add(self.timeout(lease)));
        let mut looked_again = false;
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(said) = reply.as_mut().poll(cx) {
                    return Poll::Ready(said);
                }
                match timer.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) if looked_again => {
                        return Poll::Ready(Err(NodeError::Indeterminate("no answer in time".into())));
                    }
                    Poll::Ready(()) => {
                        looked_again = true;
                        timer = self.clock.sleep_until(self.clock.now().saturating_add(SECOND_LOOK));
                    }
                }
            }
        })
        .await
    }

    /// For how long a keep-alive lets the lease run from its sending on; none, if there is no such lease any more.
    fn kept(&self, place: &Place, said: Said) -> Result<Option<Duration>, Said> {
        match said {
            Ok(Seen::Leased(_, left)) if !left.is_zero() => Ok(Some(left)),
            Ok(Seen::Leased(..)) if self.has(QueueFlaw::IgnoresZero) => Ok(Some(place.granted)),
            Ok(Seen::Leased(..) | Seen::Gone) => Ok(None),
            other => Err(other),
        }
    }

    fn answers(&self, answer: NodeAnswer) -> NodeAnswers {
        vec![(self.name.clone(), answer)]
    }

    /// A failure that is sure.
    fn failed(&self, why: Why, answer: NodeAnswer) -> Failure {
        Failure { why, outcome: Outcome::Failed, answers: self.answers(answer) }
    }

    /// The failure of a request that was not answered, or by what is no answer to it.
    fn unanswered(&self, said: Said) -> Failure {
        let (error, outcome) = match said {
            Ok(seen) => (format!("answered out of turn: {seen:?}"), Outcome::Indeterminate),
            Err(error @ NodeError::Definite(_)) => (error.to_string(), Outcome::Failed),
            Err(error @ NodeError::Indeterminate(_)) => (error.to_string(), Outcome::Indeterminate),
        };
        let why = Why::Error(format!("{}: {error}", self.name));
        Failure { why, outcome, answers: self.answers(NodeAnswer::None) }
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<Owner, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, owner: &Owner) -> Option<Place> {
        self.places().get(owner).copied()
    }

    fn remember(&self, owner: &Owner, place: Place) {
        self.places().insert(owner.clone(), place);
    }

    /// Holds that were never released, and dropped attempts that were never cancelled, must not stay for ever.
    fn forget_lapsed(&self) {
        let now = self.clock.now();
        self.places().retain(|_, place| now < place.kept.saturating_add(place.granted).saturating_add(FORGOTTEN_AFTER));
    }

    /// Takes `owner` out of the queue. The key is deleted as well as the lease revoked: either will do, and one may be lost.
    async fn undo(&self, key: &Key, owner: &Owner, watch: &dyn Watch) {
        let Some(Place { lease, granted, revision, .. }) = self.place(owner) else { return };
        watch.undoing();
        watch.sending(Round::Undo);
        if let Some(revision) = revision {
            drop(self.store.send(Op::Delete(key.clone(), revision)));
        }
        let revoking = self.store.send(Op::Revoke(lease));
        watch.sent(Round::Undo).await;
        let answer = match self.read(revoking, granted).await {
            Ok(Seen::Done) => NodeAnswer::Done,
            Ok(_) => NodeAnswer::Refused,
            Err(_) => NodeAnswer::None,
        };
        if answer != NodeAnswer::None {
            watch.answered(Round::Undo);
            self.places().remove(owner);
        }
        watch.undone(&self.answers(answer));
    }

    /// A renewal is a keep-alive, which gives the time that was granted to the attempt once more, whatever is asked for. It says nothing of
    /// the key, which goes with the lease; and like every renewal it revives nothing that has lapsed, and never shortens.
    async fn extend(&self, hold: &mut Hold, watch: &dyn Watch) -> Result<Renewed, Failure> {
        if self.clock.now() >= hold.valid_until {
            return Err(self.failed(Why::Validity, NodeAnswer::None));
        }
        let Some(place) = self.place(&hold.owner) else { return Err(self.failed(Why::Lost, NodeAnswer::None)) };
        let sent = self.clock.now();
        watch.sending(Round::Renew);
        let keeping = self.store.send(Op::KeepAlive(place.lease));
        watch.sent(Round::Renew).await;
        let said = self.read(keeping, place.granted).await;
        let kept = self.kept(&place, said).map_err(|said| self.unanswered(said))?;
        watch.answered(Round::Renew);
        let Some(lease) = kept else { return Err(self.failed(Why::Lost, NodeAnswer::Refused)) };
        let valid_until = validity::promise_end(sent, lease);
        if self.clock.now() >= valid_until.min(hold.valid_until) {
            return Err(self.failed(Why::Validity, NodeAnswer::Late));
        }
        self.remember(&hold.owner, Place { kept: sent, ..place });
        if valid_until > hold.valid_until {
            (hold.sent, hold.lease, hold.valid_until) = (sent, lease, valid_until);
        }
        Ok(Renewed { valid_until: hold.valid_until, answers: self.answers(NodeAnswer::Done) })
    }

    /// Deletes the key at its revision, which cannot be anybody else's, and wakes the next one by that; then revokes the lease.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let Some(Place { lease, granted, revision: Some(revision), .. }) = self.place(&hold.owner) else {
            return Err(self.failed(Why::Lost, NodeAnswer::None));
        };
        watch.sending(Round::Release);
        let deleting = self.store.send(match self.flaw {
            Some(QueueFlaw::ReleasesByName) => Op::DeleteAll(hold.key.clone()),
            _ => Op::Delete(hold.key.clone(), revision),
        });
        watch.sent(Round::Release).await;
        let said = self.read(deleting, granted).await;
        // Nobody waits for a lease without a key, so it is not waited for either, unless nothing is known of the key.
        let revoking = self.store.send(Op::Revoke(lease));
        let removed = match said {
            Ok(Seen::Done) => true,
            Ok(Seen::Gone) => false,
            unheard => match self.read(revoking, granted).await {
                // The lease still ran, so the key was there for one of the two to remove.
                Ok(Seen::Done) => true,
                Err(NodeError::Definite(_)) => return Err(self.unanswered(unheard)),
                _ => return Err(Failure { outcome: Outcome::Indeterminate, ..self.unanswered(unheard) }),
            },
        };
        watch.answered(Round::Release);
        self.places().remove(&hold.owner);
        let answer = if removed { NodeAnswer::Done } else { NodeAnswer::Refused };
        Ok(Released { removed, answers: self.answers(answer) })
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
        lock.forget_lapsed();
        let sent = lock.clock.now();
        watch.sending(Round::Acquire);
        let granting = lock.store.send(Op::Grant(lease));
        watch.sent(Round::Acquire).await;
        let mut place = match lock.read(granting, lease).await {
            Ok(Seen::Leased(lease, granted)) => Place { lease, granted, revision: None, kept: sent },
            other => return Err(self.unanswered(other)),
        };
        lock.remember(&self.owner, place);
        let creating = Op::Create(self.key.clone(), self.owner.clone(), place.lease);
        let revision = match lock.ask(creating, place.granted).await {
            Ok(Seen::At(revision)) => revision,
            Ok(Seen::Gone) => return Err(self.lost()),
            other => return Err(self.unanswered(other)),
        };
        place.revision = Some(revision);
        lock.remember(&self.owner, place);

        self.await_turn(&mut place, revision).await?;
        let (sent, lease) = self.promise(sent, &place).await?;
        if lock.flaw.is_none_or(QueueFlaw::confirms) {
            match lock.ask(Op::Confirm(self.key.clone(), revision), place.granted).await {
                Ok(Seen::Done) => watch.confirmed(revision),
                Ok(Seen::Refused) => return Err(self.lost()),
                other => return Err(self.unanswered(other)),
            }
        }
        // Nothing is awaited from here on.
        watch.answered(Round::Acquire);
        let valid_until = validity::promise_end(sent, lease);
        if lock.clock.now() >= valid_until {
            return Err(lock.failed(Why::Validity, NodeAnswer::Late));
        }
        lock.remember(&self.owner, Place { kept: place.kept.max(sent), ..place });
        let token = lock.has_tokens.then(|| Token(u64::try_from(revision.0).unwrap_or_default()));
        let answers = lock.answers(NodeAnswer::Granted);
        Ok(Hold { key: self.key.clone(), owner: self.owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// The store has said that the key is gone. That decides the attempt, so that the watch is told.
    fn lost(&self) -> Failure {
        self.watch.answered(Round::Acquire);
        self.lock.failed(Why::Lost, NodeAnswer::Refused)
    }

    /// As the lock's own, but a request that was surely not done decides nothing where the key may stand in the queue already.
    fn unanswered(&self, said: Said) -> Failure {
        let failure = self.lock.unanswered(said);
        match self.lock.place(&self.owner) {
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
            let gone = lock.store.send(Op::AwaitGone(self.key.clone(), predecessor));
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
        match self.lock.ask(Op::Before(self.key.clone(), revision), place.granted).await {
            Ok(Seen::At(predecessor)) => Ok(Some(predecessor)),
            Ok(Seen::Gone) => Ok(None),
            other => Err(self.unanswered(other)),
        }
    }

    /// Waits for the end of the predecessor, and keeps the lease alive meanwhile. That it is gone is read first: a keep-alive that is due as
    /// well can wait for the one before the confirming transaction. False if the waiting broke off, because a connection did: it is no
    /// reason to lose the place, and the next look finds out whether the store can be reached.
    async fn await_gone(&self, place: &mut Place, mut gone: Reply<Said>) -> Result<bool, Failure> {
        let mut keeping = pin!(self.keep_alive(place));
        poll_fn(|cx| match gone.as_mut().poll(cx) {
            Poll::Ready(Ok(Seen::Gone)) => Poll::Ready(Ok(true)),
            Poll::Ready(Err(_)) => Poll::Ready(Ok(false)),
            Poll::Ready(other) => Poll::Ready(Err(self.unanswered(other))),
            Poll::Pending => keeping.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// Keeps the lease alive until it is lost, or until nothing was heard of it for its whole time. The store is the judge of a lease, so
    /// that one which should have run out by the client's clock is tried once more.
    async fn keep_alive(&self, place: &mut Place) -> Failure {
        let lock = self.lock;
        let mut due = place.kept + place.granted / KEEP_ALIVES;
        loop {
            lock.clock.sleep_until(due).await;
            let sent = lock.clock.now();
            let said = lock.ask(Op::KeepAlive(place.lease), place.granted).await;
            match lock.kept(place, said) {
                Ok(Some(_)) => {
                    place.kept = sent;
                    lock.remember(&self.owner, *place);
                }
                Ok(None) => return self.lost(),
                Err(said) if lock.clock.now() >= place.kept.saturating_add(place.granted) => {
                    return self.unanswered(said);
                }
                Err(_) => {}
            }
            due = sent + place.granted / KEEP_ALIVES;
        }
    }

    /// What the promise rests on: the grant that was sent at `sent`, or a new keep-alive if that is long ago. When it was sent, and for how
    /// long the lease runs from then on.
    async fn promise(&self, sent: Duration, place: &Place) -> Result<(Duration, Duration), Failure> {
        let lock = self.lock;
        let now = lock.clock.now();
        if now < sent + place.granted / KEEP_ALIVES {
            return Ok((sent, place.granted));
        }
        self.watch.promising();
        if lock.has(QueueFlaw::BelievesRevision) {
            return Ok((now, place.granted));
        }
        let said = lock.ask(Op::KeepAlive(place.lease), place.granted).await;
        match lock.kept(place, said) {
            Ok(Some(lease)) => Ok((now, lease)),
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
                self.undo(key, &attempt.owner, watch).await;
            }
            result
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, _lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Renewed> {
        Box::pin(self.extend(hold, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Doing<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    /// As far as the lease is known: see [the module](self).
    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, _lease: Duration, watch: &'a dyn Watch) -> Undoing<'a> {
        Box::pin(self.undo(key, owner, watch))
    }
}
