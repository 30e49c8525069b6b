//! What the locks over a store have in common: requests and how long they are waited for, leases that are kept alive, what is left behind.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use crate::{
    hold::{Failure, Hold, Key, NodeAnswer, NodeAnswers, NodeName, Outcome, Owner, Renewed, Why},
    ports::{Clock, LeaseId, NodeError, Op, Reply, Revision, Round, Seen, Store, Watch},
    validity,
};

/// A lease is kept alive when this part of its time has passed. Each request waits for a quarter of it, so that one may go unanswered.
pub(crate) const KEEP_ALIVES: u32 = 3;

/// How much longer a request reads after its timer has fired: a process that was frozen wakes up with the answer *and* the timer due, and
/// the answer has to pass through the connection's task to be read.
const SECOND_LOOK: Duration = Duration::from_millis(2);

/// How long a place whose lease should have run out is remembered: its owner may have been frozen, and still wants to let go.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// What was said to a request, if anything.
pub(crate) type Said = Result<Seen, NodeError>;

/// What an attempt, or the hold that came of it, has in the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub lease: LeaseId,
    /// The time that was granted, which is what a keep-alive gives again.
    pub granted: Duration,
    /// At which its key was created; none, if that is not known.
    pub revision: Option<Revision>,
    /// When the last request was sent that is known to have started the lease's time.
    pub kept: Duration,
}

/// The store as one lock uses it, and the leases that it has there.
pub(crate) struct Leases {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    name: NodeName,
    /// How long an answer is waited for; a part of the lease, if none.
    pub request_timeout: Option<Duration>,
    /// A planted bug: a keep-alive that is answered with a time of zero counts as a success.
    pub ignores_zero: bool,
    places: Mutex<BTreeMap<Owner, Place>>,
}

impl Leases {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let name = store.name().into();
        Self { store, clock, name, request_timeout: None, ignores_zero: false, places: Mutex::default() }
    }

    fn timeout(&self, lease: Duration) -> Duration {
        let usual = || (lease / 4).clamp(Duration::from_millis(50), Duration::from_secs(2));
        self.request_timeout.unwrap_or_else(usual)
    }

    pub async fn ask(&self, op: Op, lease: Duration) -> Said {
        self.read(self.store.send(op), lease).await
    }

    /// Reads the answer, waiting from now on. What has arrived comes before the timer: after a freeze both are due.
    pub async fn read(&self, mut reply: Reply<Said>, lease: Duration) -> Said {
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

    /// The first request of an attempt: a lease of its own, which is remembered before anything else is awaited.
    pub async fn grant(&self, owner: &Owner, lease: Duration, watch: &dyn Watch) -> Result<Place, Failure> {
        self.forget_lapsed();
        let sent = self.clock.now();
        watch.sending(Round::Acquire);
        let granting = self.store.send(Op::Grant(lease));
        watch.sent(Round::Acquire).await;
        match self.read(granting, lease).await {
            Ok(Seen::Leased(lease, granted)) => {
                let place = Place { lease, granted, revision: None, kept: sent };
                self.remember(owner, place);
                Ok(place)
            }
            other => Err(self.unanswered(other)),
        }
    }

    /// For how long a keep-alive lets the lease run from its sending on; none, if there is no such lease any more.
    pub fn kept(&self, place: &Place, said: Said) -> Result<Option<Duration>, Said> {
        match said {
            Ok(Seen::Leased(_, left)) if !left.is_zero() => Ok(Some(left)),
            Ok(Seen::Leased(..)) if self.ignores_zero => Ok(Some(place.granted)),
            Ok(Seen::Leased(..) | Seen::Gone) => Ok(None),
            other => Err(other),
        }
    }

    /// Keeps the lease alive until it is lost (`None`), or until nothing was heard of it for its whole time (what was said last). The store is
    /// the judge of a lease, so that one which should have run out by the client's clock is tried once more. `watch` is told of each request
    /// as one on which the promise may rest.
    pub async fn keep_alive(&self, owner: &Owner, place: &mut Place, watch: &dyn Watch) -> Option<Said> {
        let mut due = place.kept + place.granted / KEEP_ALIVES;
        loop {
            self.clock.sleep_until(due).await;
            let sent = self.clock.now();
            watch.promising();
            let said = self.ask(Op::KeepAlive(place.lease), place.granted).await;
            match self.kept(place, said) {
                Ok(Some(_)) => {
                    watch.promised();
                    place.kept = sent;
                    self.remember(owner, *place);
                }
                Ok(None) => return None,
                Err(said) if self.clock.now() >= place.kept.saturating_add(place.granted) => return Some(said),
                Err(_) => {}
            }
            due = sent + place.granted / KEEP_ALIVES;
        }
    }

    pub fn answers(&self, answer: NodeAnswer) -> NodeAnswers {
        vec![(self.name.clone(), answer)]
    }

    /// A failure that is sure.
    pub fn failed(&self, why: Why, answer: NodeAnswer) -> Failure {
        Failure { why, outcome: Outcome::Failed, answers: self.answers(answer) }
    }

    /// The failure of a request that was not answered, or by what is no answer to it.
    pub fn unanswered(&self, said: Said) -> Failure {
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

    pub fn place(&self, owner: &Owner) -> Option<Place> {
        self.places().get(owner).copied()
    }

    pub fn remember(&self, owner: &Owner, place: Place) {
        self.places().insert(owner.clone(), place);
    }

    pub fn forget(&self, owner: &Owner) {
        self.places().remove(owner);
    }

    /// Holds that were never released, and dropped attempts that were never cancelled, must not stay for ever.
    fn forget_lapsed(&self) {
        let now = self.clock.now();
        self.places().retain(|_, place| now < place.kept.saturating_add(place.granted).saturating_add(FORGOTTEN_AFTER));
    }

    /// Takes `owner` out of the queue. A key whose revision is known is deleted as well as the lease revoked: either will do, and one may be
    /// lost.
    pub async fn undo(&self, key: &Key, owner: &Owner, watch: &dyn Watch) {
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
            self.forget(owner);
        }
        watch.undone(&self.answers(answer));
    }

    /// A renewal is a keep-alive, which gives the time that was granted to the attempt once more, whatever is asked for. It says nothing of
    /// the key, which goes with the lease; and like every renewal it revives nothing that has lapsed, and never shortens.
    pub async fn extend(&self, hold: &mut Hold, watch: &dyn Watch) -> Result<Renewed, Failure> {
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
}
