//! The client: acquires, reads, works, writes, releases. It needs no runtime: only its ports.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{Either, select},
};
use history::{ClientId, ClientKind, Event, HoldId, OpId, Outcome, Point, Stamp, Workload, drift};
use locks::{Clock, Hold, Lock, Owner, Reply, retry::RetryDelay};
use rand::RngCore;
use resource::{Arm, ClientError, ReadAnswer, Version, WriteAnswer};

use crate::{
    attempt::{Attempt, Recording},
    generate::Section,
    ports::{Access, Caller, Resource},
};

/// A write that nobody answers is sent again at most so often.
const RESENDS_MAX: u32 = 100;

/// One logical actor.
pub struct Client {
    /// Which.
    pub id: ClientId,
    /// The lock under test.
    pub lock: Arc<dyn Lock>,
    /// What it guards.
    pub resource: Arc<dyn Resource>,
    /// Where it records, its clock, its points.
    pub recording: Recording,
    /// What clients do.
    pub workload: Workload,
    /// Asked of the lock.
    pub lease: Duration,
    /// Numbers of attempts, shared by the clients of a worker.
    pub attempts: Arc<AttemptIds>,
}

/// Gives out the ids of a process's attempts.
pub struct AttemptIds {
    process: u32,
    next: AtomicU64,
}

impl AttemptIds {
    /// The ids of the `process`-th process of the run.
    pub fn new(process: u32) -> AttemptIds {
        AttemptIds { process, next: AtomicU64::new(1) }
    }

    fn next(&self) -> HoldId {
        HoldId::of(self.process, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// How a critical section came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The lock was acquired, used and let go.
    Done,
    /// The lock was not acquired before the client gave up trying.
    Dropped,
}

/// What client and watchdog know of a hold's validity.
struct Belief {
    valid_until_ns: AtomicU64,
    lost: AtomicBool,
}

impl Client {
    /// One critical section. `give_up` tells after each failed attempt whether to stop trying; `end` resolves when an attempt that waits in a
    /// queue must stop waiting.
    pub async fn section(
        &self,
        section: &Section,
        intended: Stamp,
        rng: &mut (dyn RngCore + Send),
        give_up: &(dyn Fn() -> bool + Send + Sync),
        end: &(dyn Fn() -> Reply<()> + Send + Sync),
    ) -> Ended {
        let key = locks::Key::new(section.key.as_str());
        let mut failed = 0;
        loop {
            let attempt =
                Attempt::new(self.recording.clone(), self.id, self.attempts.next(), section.key.clone(), intended);
            self.point(attempt.id, Point::BeforeAcquire).await;
            match self.attempt(&key, Owner::random(rng), &attempt, end).await {
                Some(Ok(hold)) => {
                    attempt.acquired(&hold);
                    self.critical(&attempt, hold, section).await;
                    return Ended::Done;
                }
                Some(Err(failure)) => attempt.failed(&failure),
                None => attempt.cancelled(),
            }
            failed += 1;
            if give_up() || section.attempts == Some(failed) {
                return Ended::Dropped;
            }
            let range = self.workload.retry_delay;
            let delay = RetryDelay { min: range.from, max: range.to }.draw(rng);
            self.clock().sleep_until(self.clock().now() + delay).await;
        }
    }

    /// One attempt; none, if the client gave it up and undid it.
    async fn attempt(
        &self,
        key: &locks::Key,
        owner: Owner,
        attempt: &Attempt,
        end: &(dyn Fn() -> Reply<()> + Send + Sync),
    ) -> Option<Result<Hold, locks::Failure>> {
        if self.workload.cancel.is_none() && !self.lock.waits() {
            return Some(self.lock.acquire(key, owner, self.lease, attempt).await);
        }
        let acquiring = self.lock.acquire(key, owner.clone(), self.lease, attempt);
        let end = match self.workload.cancel {
            Some(patience) => {
                let timer = self.clock().sleep_until(self.clock().now() + patience);
                Either::Left(select(timer, end()).map(|_| ()))
            }
            None => Either::Right(end()),
        };
        // `select` looks at the attempt first: one that has succeeded counts, though the patience has run out too.
        match select(acquiring, end).await {
            Either::Left((acquired, _)) => return Some(acquired),
            // Its future is dropped at the end of this statement: nothing of it goes on beside the undo.
            Either::Right(_) => {}
        }
        self.lock.cancel(key, &owner, self.lease, attempt).await;
        None
    }

    fn clock(&self) -> &dyn Clock {
        &*self.recording.clock
    }

    fn record(&self, event: Event) {
        self.recording.journal.record(event);
    }

    async fn point(&self, hold: HoldId, point: Point) {
        let Recording { journal, clock, points } = &self.recording;
        points.pass(&**journal, &**clock, self.id, hold, point).await;
    }

    /// Until when the client believes in a hold: the lock's validity, or less where the plan says so.
    fn believed_ns(&self, hold: &Hold) -> u64 {
        let own = self.workload.deadline.map(|deadline| hold.sent + deadline.saturating_sub(drift(deadline)));
        own.map_or(hold.valid_until, |own| own.min(hold.valid_until)).as_nanos() as u64
    }

    /// Everything under the hold, with the watchdog beside it: a future joined to the client's own, so that nothing outlives it.
    async fn critical(&self, attempt: &Attempt, hold: Hold, section: &Section) {
        let belief = Belief { valid_until_ns: AtomicU64::new(self.believed_ns(&hold)), lost: AtomicBool::new(false) };
        let keep = {
            let work = std::pin::pin!(self.work(attempt, &hold, &belief, section));
            match self.workload.renew {
                None => work.await,
                Some(every) => {
                    match select(work, std::pin::pin!(self.renew(attempt, hold.clone(), every, &belief))).await {
                        Either::Left((keep, _)) => keep,
                        Either::Right(((), work)) => work.await,
                    }
                }
            }
        };
        if keep {
            // The write may still arrive: releasing now would let somebody else in before it does.
            self.record(Event::GaveUp { hold: attempt.id });
        } else {
            self.point(attempt.id, Point::BeforeRelease).await;
            attempt.released(self.lock.release(&hold, attempt).await);
        }
    }

    /// Renews until the hold is lost. Dropped when the work is done.
    async fn renew(&self, attempt: &Attempt, mut hold: Hold, every: Duration, belief: &Belief) {
        let mut due = hold.sent + every;
        loop {
            self.clock().sleep_until(due).await;
            let lease = self.workload.renew_for.unwrap_or(self.lease);
            let sent_before = hold.sent;
            let renewed = self.lock.renew(&mut hold, lease, attempt).await;
            let renewed = attempt.renewed(match &renewed {
                // A renewal that asks for less than is left changes nothing: it promises what it asked for, from its own sending.
                Ok(renewed) if hold.sent == sent_before => Ok((lease, &renewed.answers)),
                Ok(renewed) => Ok((hold.lease, &renewed.answers)),
                Err(failure) => Err(failure),
            });
            match renewed {
                Ok(()) => belief.valid_until_ns.store(self.believed_ns(&hold), Ordering::Relaxed),
                Err(true) => {
                    belief.lost.store(true, Ordering::Relaxed);
                    self.record(Event::LossNoticed { hold: attempt.id });
                    return;
                }
                Err(false) => {}
            }
            due = (due + every).max(self.clock().now());
        }
    }

    /// Reads, works, writes, as often as the plan says. True if the hold must not be released: a write may be under way.
    async fn work(&self, attempt: &Attempt, hold: &Hold, belief: &Belief, section: &Section) -> bool {
        let id = attempt.id;
        self.point(id, Point::AfterAcquire).await;
        let Ok(key) = resource::Key::new(section.key.as_str()) else {
            unreachable!("generated keys are short and visible")
        };
        let caller = |op: OpId| Caller {
            key: key.clone(),
            hold: resource::HoldId(id.0),
            op: resource::OpId(u64::from(op.0)),
            token: hold.token.map(|t| resource::Token(t.0)),
        };
        for turn in 0..section.writes {
            let op = OpId(2 * turn + 1);
            self.record(Event::Read { hold: id, op });
            let read = match self.resource.read(&caller(op)).await {
                Ok(read) => read,
                // A read changes no value: it is safe to let go, whether or not it arrives.
                Err(error) => return self.access_failed(id, op, &error, false),
            };
            self.record(Event::ReadOk { hold: id, op, number: read.number.0 });
            self.point(id, Point::AfterRead).await;

            self.record(Event::Work { hold: id, planned_ns: section.work.as_nanos() as u64 });
            self.clock().sleep_until(self.clock().now() + section.work).await;

            let op = OpId(2 * turn + 2);
            let (caller, values) = (caller(op), incremented(&read));
            let write = self.resource.write(&caller, &values);
            if self.workload.client == ClientKind::Checking {
                if !self.check(id, belief) {
                    return false;
                }
                self.point(id, Point::AfterCheck).await;
            }
            self.point(id, Point::BeforeWrite).await;
            self.record(Event::Write { hold: id, op });
            match self.answered(write, id, op, || self.resource.write(&caller, &values)).await {
                Ok(written) => {
                    self.record(Event::WriteOk { hold: id, op, number: written.number.0 });
                }
                Err(error) => return self.access_failed(id, op, &error, true),
            }
        }
        false
    }

    /// The answer to a write, which is sent again until it comes if the plan says so.
    async fn answered<'a>(
        &self,
        mut write: Access<'a, WriteAnswer>,
        hold: HoldId,
        op: OpId,
        again: impl Fn() -> Access<'a, WriteAnswer>,
    ) -> Result<WriteAnswer, ClientError> {
        let Some(every) = self.workload.resend else { return write.await };
        for _ in 0..RESENDS_MAX {
            let mut timer = self.clock().sleep_until(self.clock().now() + every);
            match select(write, &mut timer).await {
                Either::Left((Err(ClientError::Indeterminate(_)), _)) => timer.await,
                Either::Left((answered, _)) => return answered,
                Either::Right(_) => {}
            }
            self.record(Event::Resend { hold, op });
            write = again();
        }
        write.await
    }

    /// Whether the client still believes in its hold. The stamp is taken before the clock is read, so a freeze between the two is
    /// never taken for a check that passed too late.
    fn check(&self, hold: HoldId, belief: &Belief) -> bool {
        let at = self.recording.journal.now();
        let valid_until = Duration::from_nanos(belief.valid_until_ns.load(Ordering::Relaxed));
        let passed = !belief.lost.load(Ordering::Relaxed) && self.clock().now() < valid_until;
        self.recording.journal.record_at(at, Event::Check { hold, passed });
        if !passed && !belief.lost.load(Ordering::Relaxed) {
            self.record(Event::LossNoticed { hold });
        }
        passed
    }

    fn access_failed(&self, hold: HoldId, op: OpId, error: &ClientError, write: bool) -> bool {
        let outcome = match error {
            ClientError::Failed(_) => Outcome::Failed,
            ClientError::Indeterminate(_) => Outcome::Indeterminate,
        };
        self.record(Event::AccessFailed { hold, op, outcome, detail: error.to_string() });
        write && outcome == Outcome::Indeterminate
    }
}

/// One more than was read, on each arm from the version that was read there.
fn incremented(read: &ReadAnswer) -> BTreeMap<Arm, (Version, String)> {
    let next = |value: Option<&String>| value.and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) + 1;
    read.arms.iter().map(|(arm, state)| (*arm, (state.version, next(state.value.as_ref()).to_string()))).collect()
}
