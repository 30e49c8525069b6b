//! Turns the callbacks of `locks` into events: for one attempt, and for the hold that comes from it.

use std::{sync::Arc, time::Duration};

use history::{Answers, ClientId, Event, FailureReason, HoldId, Key, Mode, NodeName, Outcome, Point, Stamp, Token};
use locks::{
    Clock, Failure, Hold, Mark, NodeAnswer, NodeAnswers, Reply, Revision, Round, Watch, program::shortened, replied,
};
use parking_lot::Mutex;

use crate::{points::Points, ports::Journal};

/// The part of an error that is recorded. An error may quote a server's answer or a program's line of any length, and a
/// line of the record has a limit.
const DETAIL_MAX: usize = 1_000;

/// The recording of a client's attempts.
#[derive(Clone)]
pub struct Recording {
    /// Stamps and writes the events.
    pub journal: Arc<dyn Journal>,
    /// The client's clock.
    pub clock: Arc<dyn Clock>,
    /// The worker's protocol points.
    pub points: Arc<Points>,
}

/// Records one attempt, and later the renewals and the release of its hold.
pub struct Attempt {
    /// The journal, the clock and the protocol points.
    pub recording: Recording,
    /// The client.
    pub client: ClientId,
    /// The attempt's id.
    pub id: HoldId,
    /// The key.
    pub key: Key,
    /// The time at which the critical section was due.
    pub intended: Stamp,
    /// The mode.
    pub mode: Mode,
    /// The client's hold of the key above, if it has one.
    pub above: Option<HoldId>,
    stamps: Mutex<Stamps>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stamps {
    sent: Stamp,
    answered: Stamp,
    /// Send stamps of other requests: the last on which the promise may rest, and the one on which it rests.
    promising: Option<Stamp>,
    promised: Option<Stamp>,
    looked: Stamp,
    /// The stamp before the client looked whether it may acquire its hold again.
    reentering: Option<Stamp>,
    /// The last look at the queue that saw another client ahead.
    behind: Option<Stamp>,
    /// The key's place in the queue, if the key was confirmed to be the oldest.
    place: Option<Revision>,
}

impl Attempt {
    /// Makes an attempt that has not begun.
    pub fn new(
        recording: Recording,
        client: ClientId,
        id: HoldId,
        key: Key,
        intended: Stamp,
        mode: Mode,
        above: Option<HoldId>,
    ) -> Attempt {
        Attempt { recording, client, id, key, intended, mode, above, stamps: Mutex::default() }
    }

    fn record(&self, event: Event) -> Stamp {
        self.recording.journal.record(event)
    }

    /// Records success. Must follow the lock's `Ok` without an await: the stamp was taken before the validity was
    /// computed.
    pub fn acquired(&self, hold: &Hold) {
        let Stamps { sent, answered, promised, behind, place, .. } = *self.stamps.lock();
        let event = Event::Acquired {
            attempt: self.id,
            token: hold.token.map(|t| Token(t.0)),
            lease_ns: hold.lease.as_nanos() as u64,
            // Until its request left, the client knew that it did not hold the lock: the owner value was new. In a
            // queue, the client knew for longer.
            granted_after: behind.unwrap_or(sent),
            promised_from: promised,
            place: place.map(|revision| u64::try_from(revision.0).unwrap_or_default()),
            valid_ns: hold.valid_until.saturating_sub(self.recording.clock.now()).as_nanos() as u64,
            answers: answers(&hold.answers),
        };
        self.recording.journal.record_at(answered, event);
    }

    /// Records that the client cancelled and undid the attempt.
    pub fn cancelled(&self) {
        let (outcome, why) = (Outcome::Indeterminate, FailureReason::Cancelled);
        self.record(Event::AcquireFailed { attempt: self.id, outcome, why, detail: None, answers: Answers::new() });
    }

    /// Records failure.
    pub fn failed(&self, failure: &Failure) {
        let (outcome, why, answers) = told(failure);
        let detail = match &failure.reason {
            locks::FailureReason::Error(said) => Some(shortened(said.clone(), DETAIL_MAX)),
            _ => None,
        };
        self.record(Event::AcquireFailed { attempt: self.id, outcome, why, detail, answers });
    }

    /// Records the result of a renewal; `Ok` has the lease that is promised from its own sending. Returns `Err` with
    /// whether the hold is lost.
    pub fn renewed(&self, renewed: Result<(Duration, &NodeAnswers), &Failure>) -> Result<(), bool> {
        let hold = self.id;
        match renewed {
            Ok((lease, said)) => {
                let at = self.stamps.lock().answered;
                let lease_ns = lease.as_nanos() as u64;
                self.recording.journal.record_at(at, Event::Renewed { hold, lease_ns, answers: answers(said) });
                Ok(())
            }
            Err(failure) => {
                let (outcome, why, answers) = told(failure);
                self.record(Event::RenewFailed { hold, outcome, why, answers });
                Err(why == FailureReason::Lost || why == FailureReason::Validity)
            }
        }
    }

    /// Records the result of the release.
    pub fn released(&self, released: Result<locks::Released, Failure>) {
        let hold = self.id;
        match released {
            Ok(released) => {
                let answers = answers(&released.answers);
                self.record(Event::Released { hold, removed: released.removed, answers });
            }
            Err(failure) => {
                let (outcome, why, answers) = told(&failure);
                self.record(Event::ReleaseFailed { hold, outcome, why, answers });
            }
        }
    }
}

impl Watch for Attempt {
    fn sending(&self, round: Round) {
        let (attempt, hold) = (self.id, self.id);
        let event = match round {
            Round::Acquire => Event::Acquire {
                client: self.client,
                attempt,
                key: self.key.clone(),
                intended: self.intended,
                mode: self.mode,
                above: self.above,
            },
            Round::WriteBack => Event::WriteBack { attempt },
            Round::Renew => Event::Renew { hold },
            Round::Release => Event::Release { hold },
            Round::Undo => Event::Undo { attempt },
        };
        let at = self.record(event);
        if round == Round::Acquire {
            self.stamps.lock().sent = at;
        }
    }

    fn sent(&self, round: Round) -> Reply<()> {
        let point = match round {
            Round::Acquire => Point::AfterSend,
            Round::WriteBack => Point::AfterWriteBack,
            Round::Renew | Round::Release | Round::Undo => return replied(),
        };
        if !self.recording.points.is_armed(self.client, point) {
            return replied();
        }
        let (Recording { journal, clock, points }, client, id) = (self.recording.clone(), self.client, self.id);
        Box::pin(async move { points.pass(&*journal, &*clock, client, id, point).await })
    }

    fn answered(&self, _round: Round) {
        self.stamps.lock().answered = self.recording.journal.now();
    }

    fn promising(&self) {
        let now = self.recording.journal.now();
        self.stamps.lock().promising = Some(now);
    }

    fn promised(&self) {
        let mut stamps = self.stamps.lock();
        stamps.promised = stamps.promising;
    }

    fn mark(&self) -> Mark {
        Mark(self.stamps.lock().sent.0)
    }

    fn promised_since(&self, mark: Mark) {
        self.stamps.lock().promised = Some(Stamp(mark.0));
    }

    fn reentering(&self) {
        let now = self.recording.journal.now();
        self.stamps.lock().reentering = Some(now);
    }

    fn reentered(&self, hold: &Hold, count: u32) {
        let known = self.stamps.lock().reentering.take();
        let at = known.unwrap_or_else(|| self.recording.journal.now());
        let valid_ns = hold.valid_until.saturating_sub(self.recording.clock.now()).as_nanos() as u64;
        let token = hold.token.map(|t| Token(t.0));
        self.recording.journal.record_at(at, Event::Reentered { hold: self.id, count, token, valid_ns });
    }

    fn left(&self, count: u32) {
        self.record(Event::Left { hold: self.id, count });
    }

    fn looking(&self) {
        let now = self.recording.journal.now();
        self.stamps.lock().looked = now;
    }

    fn behind(&self) {
        let first = {
            let mut stamps = self.stamps.lock();
            let looked = stamps.looked;
            stamps.behind.replace(looked).is_none()
        };
        if first {
            self.record(Event::Behind { attempt: self.id });
        }
    }

    fn confirmed(&self, place: Revision) {
        self.stamps.lock().place = Some(place);
    }

    fn without_key(&self) {
        self.record(Event::WithoutKey { attempt: self.id });
    }

    fn undone(&self, said: &[(locks::NodeName, NodeAnswer)]) {
        self.record(Event::Undone { attempt: self.id, answers: answers(said) });
    }
}

fn told(failure: &Failure) -> (Outcome, FailureReason, Answers) {
    let outcome = match failure.outcome {
        locks::Outcome::Failed => Outcome::Failed,
        locks::Outcome::Indeterminate => Outcome::Indeterminate,
    };
    let why = match failure.reason {
        locks::FailureReason::Held => FailureReason::Held,
        locks::FailureReason::Validity => FailureReason::Validity,
        locks::FailureReason::NoMajority => FailureReason::NoMajority,
        locks::FailureReason::Lost => FailureReason::Lost,
        locks::FailureReason::Cancelled => FailureReason::Cancelled,
        locks::FailureReason::Deadlock => FailureReason::Deadlock,
        locks::FailureReason::Error(_) => FailureReason::Error,
    };
    (outcome, why, answers(&failure.answers))
}

fn answers(said: &[(locks::NodeName, NodeAnswer)]) -> Answers {
    said.iter()
        .map(|(node, answer)| {
            let answer = match answer {
                NodeAnswer::Granted => history::NodeAnswer::Granted,
                NodeAnswer::Done => history::NodeAnswer::Done,
                NodeAnswer::Refused => history::NodeAnswer::Refused,
                NodeAnswer::Late => history::NodeAnswer::Late,
                NodeAnswer::None => history::NodeAnswer::None,
            };
            (NodeName::from(node.clone()), answer)
        })
        .collect()
}
