//! The parts that the locks over a store share: requests with a timeout, leases that are kept alive, the undo.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    answer::within,
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, NodeAnswers, NodeName, Outcome, Owner, Renewed},
    ports::{Clock, LeaseId, NodeError, Op, Reply, Revision, Round, Sent, Store, StoreAnswer, Watch},
    validity,
};

/// The part of a lease's time after which the client keeps the lease alive. Each keep-alive waits for a quarter of the
/// time, so one keep-alive may stay unanswered.
pub(crate) const KEEP_ALIVES: u32 = 3;

/// The time for which the client remembers a lease that should have expired. Its owner may have been frozen, and may
/// still want to release.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The result of one request.
pub(crate) type StoreResult = Result<StoreAnswer, NodeError>;

/// The lease and the key that an attempt, or the hold that it won, has in the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyLease {
    pub id: LeaseId,
    /// The granted time. A keep-alive grants this time again.
    pub granted: Duration,
    /// The revision at which the key was created, if it is known.
    pub revision: Option<Revision>,
    /// The sending of the last request that is known to have started the lease's time.
    pub counted_from: Duration,
}

/// The store as one lock uses it, and the leases that the lock has there.
pub(crate) struct Leases {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    name: NodeName,
    /// The timeout of a request. Without one it is a part of the lease.
    pub request_timeout: Option<Duration>,
    known: Mutex<BTreeMap<Owner, KeyLease>>,
}

impl Leases {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let name = store.name().into();
        Self { store, clock, name, request_timeout: None, known: Mutex::default() }
    }

    fn timeout(&self, lease: Duration) -> Duration {
        self.request_timeout.unwrap_or_else(|| validity::request_timeout(lease))
    }

    pub async fn ask(&self, op: Op, lease: Duration) -> StoreResult {
        self.read(self.store.send(op), lease).await
    }

    /// Reads the answer. The timeout counts from now on.
    pub async fn read(&self, mut reply: Reply<StoreResult>, lease: Duration) -> StoreResult {
        let answer = within(&*self.clock, self.timeout(lease), &mut reply).await;
        answer.unwrap_or_else(|| Err(NodeError::Indeterminate("no answer in time".into())))
    }

    /// Asks for the lease of an attempt: its first request. The client remembers the lease before it awaits anything
    /// else.
    pub async fn grant(&self, owner: &Owner, lease: Duration, watch: &dyn Watch) -> Result<KeyLease, Failure> {
        self.forget_expired();
        let at = self.clock.now();
        watch.sending(Round::Acquire);
        let granting = self.store.grant(lease, Sent { at, mark: watch.mark() });
        watch.sent(Round::Acquire).await;
        let (id, granted, counted_from) = match self.read(granting, lease).await {
            Ok(StoreAnswer::Leased(id, granted)) => (id, granted, at),
            Ok(StoreAnswer::Joined(id, granted, sent)) => {
                watch.promised_since(sent.mark);
                (id, granted, sent.at)
            }
            other => return Err(self.unanswered(other)),
        };
        let own = KeyLease { id, granted, revision: None, counted_from };
        self.remember(owner, own);
        Ok(own)
    }

    /// The time for which a keep-alive lets the lease run from its sending, or none if the lease is gone. An error is a
    /// result that says neither.
    pub fn kept_alive(&self, result: StoreResult) -> Result<Option<Duration>, StoreResult> {
        match result {
            Ok(StoreAnswer::Leased(_, left)) if !left.is_zero() => Ok(Some(left)),
            Ok(StoreAnswer::Leased(..) | StoreAnswer::Gone) => Ok(None),
            other => Err(other),
        }
    }

    /// Keeps the lease alive. Ends with `None` when the lease is lost, or with the last result when no keep-alive
    /// succeeded for the whole time of the lease. The store decides whether a lease has ended, so the client tries once
    /// more after the lease should have expired by its own clock. `watch` is told of each keep-alive as the new base of
    /// the promise.
    pub async fn keep_alive(&self, owner: &Owner, own: &mut KeyLease, watch: &dyn Watch) -> Option<StoreResult> {
        let mut due = own.counted_from + own.granted / KEEP_ALIVES;
        loop {
            self.clock.sleep_until(due).await;
            let sent = self.clock.now();
            watch.promising();
            let result = self.ask(Op::KeepAlive(own.id), own.granted).await;
            match self.kept_alive(result) {
                Ok(Some(_)) => {
                    watch.promised();
                    own.counted_from = sent;
                    self.remember(owner, *own);
                }
                Ok(None) => return None,
                Err(result) if self.clock.now() >= own.counted_from.saturating_add(own.granted) => return Some(result),
                Err(_) => {}
            }
            due = sent + own.granted / KEEP_ALIVES;
        }
    }

    pub fn answers(&self, answer: NodeAnswer) -> NodeAnswers {
        vec![(self.name.clone(), answer)]
    }

    /// A definite failure.
    pub fn failed(&self, reason: FailureReason, answer: NodeAnswer) -> Failure {
        Failure { reason, outcome: Outcome::Failed, answers: self.answers(answer) }
    }

    /// The failure of a request without an answer, or with an answer to another request.
    pub fn unanswered(&self, result: StoreResult) -> Failure {
        let (error, outcome) = match result {
            Ok(answer) => (format!("answered out of turn: {answer:?}"), Outcome::Indeterminate),
            Err(error @ NodeError::Definite(_)) => (error.to_string(), Outcome::Failed),
            Err(error @ NodeError::Indeterminate(_)) => (error.to_string(), Outcome::Indeterminate),
        };
        let reason = FailureReason::Error(format!("{}: {error}", self.name));
        Failure { reason, outcome, answers: self.answers(NodeAnswer::None) }
    }

    pub fn of(&self, owner: &Owner) -> Option<KeyLease> {
        self.known.lock().get(owner).copied()
    }

    pub fn remember(&self, owner: &Owner, own: KeyLease) {
        self.known.lock().insert(owner.clone(), own);
    }

    pub fn forget(&self, owner: &Owner) {
        self.known.lock().remove(owner);
    }

    /// Forgets the leases of holds that were never released, and of abandoned attempts that were never cancelled.
    /// Nobody removes such a key any more. In a session it would stay for as long as later attempts keep the lease, so
    /// there are none.
    fn forget_expired(&self) {
        let now = self.clock.now();
        let until = |own: &KeyLease| own.counted_from.saturating_add(own.granted).saturating_add(FORGOTTEN_AFTER);
        let mut forgotten = Vec::new();
        self.known.lock().retain(|_, own| {
            let is_known = now < until(own);
            if !is_known {
                forgotten.push(own.id);
            }
            is_known
        });
        forgotten.into_iter().for_each(|lease| self.store.relies_on_end(lease));
    }

    /// Takes `owner` out of the queue: deletes its key, if the revision is known, and revokes its lease. Either is
    /// enough, and one of the two requests may be lost.
    pub async fn undo(&self, key: &Key, owner: &Owner, watch: &dyn Watch) {
        let Some(KeyLease { id, granted, revision, .. }) = self.of(owner) else { return };
        watch.undoing();
        watch.sending(Round::Undo);
        let deleting = revision.map(|revision| self.store.send(Op::Delete(key.clone(), revision)));
        let revoking = self.store.send(Op::Revoke(id));
        watch.sent(Round::Undo).await;
        let revoked = self.read(revoking, granted).await;
        // The lease may go on for other holds of the client. Then only the deletion removes the key.
        let deleted = match deleting {
            Some(deleting) if revoked.is_err() => Some(self.read(deleting, granted).await),
            _ => None,
        };
        let answer = match (revoked, deleted) {
            (Ok(StoreAnswer::Done), _) | (Err(_), Some(Ok(StoreAnswer::Done))) => NodeAnswer::Done,
            (Ok(_), _) => NodeAnswer::Refused,
            // The key is gone. A revocation without an answer may have been its end.
            (Err(_), Some(Ok(_)) | None) => NodeAnswer::None,
            (Err(_), Some(Err(_))) => {
                self.store.relies_on_end(id);
                NodeAnswer::None
            }
        };
        if answer != NodeAnswer::None {
            watch.answered(Round::Undo);
            self.forget(owner);
        }
        watch.undone(&self.answers(answer));
    }

    /// Renews a hold by a keep-alive, which grants the attempt's time once more, whatever the caller asks for. The
    /// answer says nothing of the key, which goes with the lease. Like every renewal, it revives no hold that has
    /// lapsed, and shortens none.
    pub async fn extend(&self, hold: &mut Hold, watch: &dyn Watch) -> Result<Renewed, Failure> {
        if self.clock.now() >= hold.valid_until {
            return Err(self.failed(FailureReason::Validity, NodeAnswer::None));
        }
        let Some(own) = self.of(&hold.owner) else { return Err(self.failed(FailureReason::Lost, NodeAnswer::None)) };
        let sent = self.clock.now();
        watch.sending(Round::Renew);
        let keeping = self.store.send(Op::KeepAlive(own.id));
        watch.sent(Round::Renew).await;
        let result = self.read(keeping, own.granted).await;
        let kept_alive = self.kept_alive(result).map_err(|result| self.unanswered(result))?;
        watch.answered(Round::Renew);
        let Some(lease) = kept_alive else { return Err(self.failed(FailureReason::Lost, NodeAnswer::Refused)) };
        if !hold.renewed(sent, lease, self.clock.now()) {
            return Err(self.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        self.remember(&hold.owner, KeyLease { counted_from: sent, ..own });
        Ok(Renewed { valid_until: hold.valid_until, answers: self.answers(NodeAnswer::Done) })
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::{
        Etcd, EtcdServerLock,
        ports::{Lock, Unwatched},
        shared_lease::SharedLease,
    };

    const LEASE: Duration = Duration::from_secs(2);

    /// A store that is not asked, and a clock that is not read.
    struct Unused;

    impl Store for Unused {
        fn name(&self) -> &str {
            "etcd"
        }

        fn send(&self, op: Op) -> Reply<StoreResult> {
            panic!("{op:?}")
        }
    }

    impl Clock for Unused {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep_until(&self, at: Duration) -> Reply<()> {
            panic!("{at:?}")
        }
    }

    /// A store that grants every lease, and keeps every lease alive.
    struct Granting;

    impl Store for Granting {
        fn name(&self) -> &str {
            "etcd"
        }

        fn send(&self, op: Op) -> Reply<StoreResult> {
            assert!(matches!(op, Op::Grant(_) | Op::KeepAlive(_)), "{op:?}");
            Box::pin(ready(Ok(StoreAnswer::Leased(LeaseId(1), LEASE))))
        }
    }

    /// The same, which notes the requests.
    #[derive(Default)]
    struct Noting(Mutex<Vec<Op>>);

    impl Store for Noting {
        fn name(&self) -> &str {
            "etcd"
        }

        fn send(&self, op: Op) -> Reply<StoreResult> {
            self.0.lock().push(op.clone());
            Granting.send(op)
        }
    }

    /// A clock that a test sets.
    #[derive(Default)]
    struct Set(Mutex<Duration>);

    impl Clock for Set {
        fn now(&self) -> Duration {
            *self.0.lock()
        }

        fn sleep_until(&self, _: Duration) -> Reply<()> {
            Box::pin(pending())
        }
    }

    /// A hold of the owner "a", from the first lease on.
    fn hold() -> Hold {
        Hold {
            key: Key::new("k0"),
            owner: Owner::new("a"),
            token: None,
            lease: LEASE,
            sent: Duration::ZERO,
            valid_until: LEASE,
            answers: Vec::new(),
        }
    }

    /// Notes the rounds whose sending is announced.
    #[derive(Default)]
    struct Announced(Mutex<Vec<Round>>);

    impl Watch for Announced {
        fn sending(&self, round: Round) {
            self.0.lock().push(round);
        }
    }

    #[tokio::test]
    async fn the_release_of_a_forgotten_hold_is_announced() {
        let hold = hold();
        let locks: [Arc<dyn Lock>; 2] = [
            Arc::new(Etcd::new(Arc::new(Unused), Arc::new(Unused))),
            Arc::new(EtcdServerLock::new(Arc::new(Unused), Arc::new(Unused))),
        ];
        for lock in locks {
            let announced = Announced::default();
            let failure = lock.release(&hold, &announced).await.unwrap_err();
            assert_eq!(failure.reason, FailureReason::Lost);
            assert_eq!(*announced.0.lock(), [Round::Release], "an answer without a request contradicts the record");
        }
    }

    #[tokio::test]
    async fn a_hold_is_forgotten_some_time_after_its_last_renewal() {
        let (clock, mut hold) = (Arc::new(Set::default()), hold());
        let leases = Leases::new(Arc::new(Granting), clock.clone());
        leases.grant(&hold.owner, LEASE, &Unwatched).await.unwrap();
        let renewed = LEASE / 2;
        *clock.0.lock() = renewed;
        leases.extend(&mut hold, &Unwatched).await.unwrap();
        let end = renewed + LEASE + FORGOTTEN_AFTER;
        for (at, is_known) in [(end - Duration::from_nanos(1), true), (end, false)] {
            *clock.0.lock() = at;
            // Another attempt looks for old leases.
            leases.grant(&Owner::new("b"), LEASE, &Unwatched).await.unwrap();
            assert_eq!(leases.of(&hold.owner).is_some(), is_known, "{at:?}");
        }
    }

    #[tokio::test]
    async fn a_session_with_a_forgotten_hold_takes_no_more_attempts() {
        let (clock, store) = (Arc::new(Set::default()), Arc::new(Noting::default()));
        let leases = Leases::new(Arc::new(SharedLease::new(store.clone())), clock.clone());
        leases.grant(&hold().owner, LEASE, &Unwatched).await.unwrap();
        *clock.0.lock() = LEASE + FORGOTTEN_AFTER;
        // Nobody deletes the key of the first hold any more, so its lease must end.
        leases.grant(&Owner::new("b"), LEASE, &Unwatched).await.unwrap();
        assert_eq!(*store.0.lock(), [Op::Grant(LEASE), Op::Grant(LEASE)]);
    }
}
