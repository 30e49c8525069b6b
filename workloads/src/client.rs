//! The client: acquires, reads, works, writes, releases. Needs only its ports, and no runtime.

use std::{
    collections::BTreeMap,
    pin::Pin,
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
use history::{
    Arm, ClientId, ClientKind, Event, HoldId, Mode, OpId, Outcome, Point, Stamp, Token, Version, Workload, drift,
};
use locks::{Clock, Hold, Lock, Owner, Reply, RetryDelay};
use rand::RngCore;
use resource::{ClientError, ReadAnswer, WriteAnswer};

use crate::{
    admission::{read_answer, write_answer},
    attempt::{Attempt, Recording},
    backend::Backend,
    generate::Section,
    ports::{Operation, Pending, Resource},
};

/// The most resends of a write without an answer.
const RESENDS_MAX: u32 = 100;

/// One logical actor.
pub struct Client {
    /// The client's id.
    pub id: ClientId,
    /// The lock under test.
    pub lock: Arc<dyn Lock>,
    /// The resource that the lock protects.
    pub resource: Arc<dyn Resource>,
    /// The journal, the clock and the protocol points.
    pub recording: Recording,
    /// The workload of the plan.
    pub workload: Workload,
    /// The lease of the plan.
    pub lease: Duration,
    /// The text before the name of each key on the lock nodes.
    pub namespace: Arc<str>,
    /// The numbers of attempts, shared by the clients of a worker.
    pub attempts: Arc<AttemptIds>,
}

/// Assigns the ids of a process's attempts.
pub struct AttemptIds {
    process: u32,
    next: AtomicU64,
}

impl AttemptIds {
    /// Starts the ids of the `process`-th process of the run.
    pub fn new(process: u32) -> AttemptIds {
        AttemptIds { process, next: AtomicU64::new(1) }
    }

    fn next(&self) -> HoldId {
        HoldId::of(self.process, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// The end of a critical section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The lock was acquired, used and released.
    Done,
    /// The client gave up before it acquired the lock.
    Dropped,
}

/// The course of one critical section.
struct Course<'a> {
    /// The time at which the section was due.
    intended: Stamp,
    rng: &'a mut (dyn RngCore + Send),
    /// Decides after each failed attempt whether to stop.
    give_up: &'a (dyn Fn() -> bool + Send + Sync),
    /// Resolves when an attempt in a queue must stop waiting.
    end: &'a (dyn Fn() -> Reply<()> + Send + Sync),
}

/// The time until which a client that holds a lock waits for its next one, by its own clock.
#[derive(Clone, Copy)]
struct Until(Duration);

/// The belief of client and watchdog about a hold's validity.
struct Belief {
    valid_until_ns: AtomicU64,
    lost: AtomicBool,
}

impl Client {
    /// Returns this client with a lock that it may acquire again while it holds it. Make one for each section: a client
    /// that gives a hold up without a release must not enter that hold again.
    pub fn reentrant(&self, backend: &Backend) -> Client {
        let lock = backend.reentrant(self.lock.clone(), self.recording.clock.clone());
        Client {
            id: self.id,
            lock,
            resource: self.resource.clone(),
            recording: self.recording.clone(),
            workload: self.workload.clone(),
            lease: self.lease,
            namespace: self.namespace.clone(),
            attempts: self.attempts.clone(),
        }
    }

    /// Runs one critical section. After each failed attempt, `give_up` decides whether to stop. `end` resolves when an
    /// attempt in a queue must stop waiting.
    pub async fn section(
        &self,
        section: &Section,
        intended: Stamp,
        rng: &mut (dyn RngCore + Send),
        give_up: &(dyn Fn() -> bool + Send + Sync),
        end: &(dyn Fn() -> Reply<()> + Send + Sync),
    ) -> Ended {
        self.take(section, &section.key, &section.further, None, &mut Course { intended, rng, give_up, end }).await
    }

    /// Takes the lock of a key, works under it, and then takes the further ones in the same way. Releases in the
    /// reverse order, also if a further lock was not to be had. A client that holds a lock waits for the next one until
    /// `until`, and no longer once the service has found that it waits in a cycle.
    fn take<'a>(
        &'a self,
        section: &'a Section,
        key: &'a history::Key,
        further: &'a [history::Key],
        until: Option<Until>,
        course: &'a mut Course<'_>,
    ) -> Pin<Box<dyn Future<Output = Ended> + Send + 'a>> {
        Box::pin(async move {
            let name = locks::Key::within(&self.namespace, key.as_str());
            let mut failed = 0;
            loop {
                let intended = course.intended;
                let id = self.attempts.next();
                let attempt = Attempt::new(self.recording.clone(), self.id, id, key.clone(), intended, section.mode);
                self.point(attempt.id, Point::BeforeAcquire).await;
                let owner = Owner::random(course.rng);
                let mut is_deadlock = false;
                match self.attempt(&name, owner, &attempt, until, course.end).await {
                    Some(Ok(hold)) => {
                        attempt.acquired(&hold);
                        return self.critical(&attempt, hold, section, further, course).await;
                    }
                    Some(Err(failure)) => {
                        attempt.failed(&failure);
                        is_deadlock = failure.reason == locks::FailureReason::Deadlock;
                    }
                    None => attempt.cancelled(),
                }
                failed += 1;
                let is_impatient = until.is_some_and(|Until(until)| is_deadlock || self.clock().now() >= until);
                if (course.give_up)() || section.attempts == Some(failed) || is_impatient {
                    return Ended::Dropped;
                }
                let range = self.workload.retry_delay;
                let delay = RetryDelay { min: range.from, max: range.to }.draw(course.rng);
                self.clock().sleep_until(self.clock().now() + delay).await;
            }
        })
    }

    /// Makes one attempt. Returns none if the client cancelled and undid the attempt.
    async fn attempt(
        &self,
        key: &locks::Key,
        owner: Owner,
        attempt: &Attempt,
        until: Option<Until>,
        end: &(dyn Fn() -> Reply<()> + Send + Sync),
    ) -> Option<Result<Hold, locks::Failure>> {
        let mode = in_lock(attempt.mode);
        if self.workload.cancel.is_none() && !self.lock.waits() {
            return Some(self.lock.acquire_in(mode, key, owner, self.lease, attempt).await);
        }
        let acquiring = self.lock.acquire_in(mode, key, owner.clone(), self.lease, attempt);
        let cancelled = self.workload.cancel.map(|after| self.clock().now() + after);
        let until = until.map(|Until(until)| until).filter(|until| *until < Duration::MAX);
        let end = match cancelled.into_iter().chain(until).min() {
            Some(at) => Either::Left(select(self.clock().sleep_until(at), end()).map(|_| ())),
            None => Either::Right(end()),
        };
        // `select` polls the attempt first: a success counts even if the time to cancel has come too.
        match select(acquiring, end).await {
            Either::Left((acquired, _)) => return Some(acquired),
            // The attempt's future is dropped at the end of this statement, so it cannot run beside the undo.
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

    /// Returns the end of the client's belief in a hold: the lock's validity, or less if the plan sets a deadline.
    fn believed_ns(&self, hold: &Hold) -> u64 {
        let own = self.workload.deadline.map(|deadline| hold.sent + deadline.saturating_sub(drift(deadline)));
        own.map_or(hold.valid_until, |own| own.min(hold.valid_until)).as_nanos() as u64
    }

    /// Returns the end of the client's belief by its wall clock. The wall clock is read first: a client that is frozen
    /// between the two readings gets a deadline that is too early, and never one that is too late.
    fn deadline_us(&self, belief: &Belief) -> u64 {
        let (wall, now) = (self.clock().wall(), self.clock().now());
        let until = Duration::from_nanos(belief.valid_until_ns.load(Ordering::Relaxed));
        let deadline = (wall + until).saturating_sub(now);
        u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX)
    }

    /// Runs the work under the hold, with the watchdog beside it in the same future, so that the watchdog never
    /// outlives the work.
    async fn critical(
        &self,
        attempt: &Attempt,
        hold: Hold,
        section: &Section,
        further: &[history::Key],
        course: &mut Course<'_>,
    ) -> Ended {
        let belief = Belief { valid_until_ns: AtomicU64::new(self.believed_ns(&hold)), lost: AtomicBool::new(false) };
        let mut ended = Ended::Done;
        let keep = {
            let work = async {
                let keep = self.work(attempt, &hold, &belief, section).await;
                if let Some((next, further)) = further.split_first().filter(|_| !keep) {
                    let patience = self.workload.patience.unwrap_or(Duration::MAX);
                    let until = Until(self.clock().now().saturating_add(patience));
                    ended = self.take(section, next, further, Some(until), course).await;
                }
                keep
            };
            let work = std::pin::pin!(work);
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
            // The write may still arrive: after a release another client could acquire before the write arrives.
            self.record(Event::GaveUp { hold: attempt.id });
        } else {
            self.point(attempt.id, Point::BeforeRelease).await;
            self.release(attempt, &hold).await;
        }
        ended
    }

    /// Releases a hold. A client that had acquired it again releases once too often, which must change nothing.
    async fn release(&self, attempt: &Attempt, hold: &Hold) {
        attempt.released(self.lock.release(hold, attempt).await);
        if self.workload.reenter > 0 {
            self.leave(attempt, hold).await;
        }
    }

    /// Acquires the key of a hold again, as often as planned. Returns false if the hold has lapsed.
    async fn reenter(&self, attempt: &Attempt, hold: &Hold) -> bool {
        for _ in 0..self.workload.reenter {
            let again =
                self.lock.acquire_in(in_lock(attempt.mode), &hold.key, hold.owner.clone(), self.lease, attempt).await;
            if again.is_err() {
                self.record(Event::LossNoticed { hold: attempt.id });
                return false;
            }
        }
        true
    }

    /// Releases an acquisition that sends no request, so its result is that of the count.
    async fn leave(&self, attempt: &Attempt, hold: &Hold) {
        let _ = self.lock.release(hold, attempt).await;
    }

    /// Renews until the hold is lost. The caller drops this future when the work is done.
    async fn renew(&self, attempt: &Attempt, mut hold: Hold, every: Duration, belief: &Belief) {
        let mut due = hold.sent + every;
        loop {
            self.clock().sleep_until(due).await;
            let lease = self.workload.renew_for.unwrap_or(self.lease);
            let sent_before = hold.sent;
            let renewed = self.lock.renew(&mut hold, lease, attempt).await;
            let renewed = attempt.renewed(match &renewed {
                // A renewal for less than the remaining lease changes nothing: it promises its own lease, from its own
                // sending.
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

    /// Reads, works and writes as often as planned; a reader reads again where a writer writes. Returns whether the
    /// hold must not be released, because a write may still be under way.
    async fn work(&self, attempt: &Attempt, hold: &Hold, belief: &Belief, section: &Section) -> bool {
        let id = attempt.id;
        self.point(id, Point::AfterAcquire).await;
        let operation = |op: OpId| Operation {
            key: attempt.key.clone(),
            hold: id,
            op,
            token: hold.token.map(|token| Token(token.0)),
            deadline_us: None,
        };
        for turn in 0..u64::from(section.writes) {
            let Some(read) = self.read(id, &operation(OpId(2 * turn + 1))).await else { return false };
            self.point(id, Point::AfterRead).await;

            // Half of the work is done by a function that locks the key again.
            let (before, inside) = match self.workload.reenter {
                0 => (section.work, Duration::ZERO),
                _ => (section.work / 2, section.work / 2),
            };
            self.record(Event::Work { hold: id, planned_ns: before.as_nanos() as u64 });
            self.clock().sleep_until(self.clock().now() + before).await;
            if !inside.is_zero() {
                if !self.reenter(attempt, hold).await {
                    return false;
                }
                self.record(Event::Work { hold: id, planned_ns: inside.as_nanos() as u64 });
                self.clock().sleep_until(self.clock().now() + inside).await;
                for _ in 0..self.workload.reenter {
                    self.leave(attempt, hold).await;
                }
            }

            let op = OpId(2 * turn + 2);
            let values = incremented(&read);
            let deadline_us = values.contains_key(&Arm::Deadline).then(|| self.deadline_us(belief));
            let operation = Operation { deadline_us, ..operation(op) };
            let write = (section.mode != Mode::Read).then(|| self.resource.write(&operation, &values));
            if self.workload.client == ClientKind::Checking {
                if !self.check(id, belief) {
                    return false;
                }
                self.point(id, Point::AfterCheck).await;
            }
            self.point(id, Point::BeforeWrite).await;
            let Some(write) = write else {
                if self.read(id, &operation).await.is_none() {
                    return false;
                }
                continue;
            };
            self.record(Event::Write { hold: id, op });
            match self.answered(write, id, op, || self.resource.write(&operation, &values)).await {
                Ok(written) => {
                    let (number, arms) = (written.number.0, Some(write_answer(&written)));
                    self.record(Event::WriteOk { hold: id, op, number, arms });
                }
                Err(error) => return self.access_failed(id, op, &error, true),
            }
        }
        false
    }

    /// Reads. Returns none if the read failed: the section is over. A read changes no value, so a release is safe even
    /// if the read arrives later.
    async fn read(&self, hold: HoldId, operation: &Operation) -> Option<ReadAnswer> {
        let op = operation.op;
        self.record(Event::Read { hold, op });
        match self.resource.read(operation).await {
            Ok(read) => {
                self.record(Event::ReadOk { hold, op, number: read.number.0, arms: Some(read_answer(&read)) });
                Some(read)
            }
            Err(error) => {
                self.access_failed(hold, op, &error, false);
                None
            }
        }
    }

    /// Waits for the answer to a write. Resends the write until the answer comes, if the plan says so. Once a copy was
    /// not answered, the failure of a later copy says nothing about the write: the earlier copy may still be applied.
    async fn answered<'a>(
        &self,
        mut write: Pending<'a, WriteAnswer>,
        hold: HoldId,
        op: OpId,
        again: impl Fn() -> Pending<'a, WriteAnswer>,
    ) -> Result<WriteAnswer, ClientError> {
        let Some(every) = self.workload.resend else { return write.await };
        for resent in 0..RESENDS_MAX {
            let mut timer = self.clock().sleep_until(self.clock().now() + every);
            match select(write, &mut timer).await {
                Either::Left((Err(ClientError::Indeterminate(_)), _)) => timer.await,
                Either::Left((Err(ClientError::Failed(_)), _)) if resent > 0 => timer.await,
                Either::Left((answered, _)) => return answered,
                Either::Right(_) => {}
            }
            self.record(Event::Resend { hold, op });
            write = again();
        }
        match write.await {
            Err(ClientError::Failed(why)) => Err(ClientError::Indeterminate(why)),
            answered => answered,
        }
    }

    /// Checks whether the client still believes in its hold. Takes the stamp before it reads the clock, so that a
    /// freeze between the two never looks like a check that passed too late.
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

/// The mode as `locks` takes it.
fn in_lock(mode: Mode) -> locks::Mode {
    match mode {
        Mode::IntentRead => locks::Mode::IntentRead,
        Mode::IntentWrite => locks::Mode::IntentWrite,
        Mode::Read => locks::Mode::Read,
        Mode::ReadIntentWrite => locks::Mode::ReadIntentWrite,
        Mode::Write => locks::Mode::Write,
    }
}

/// Returns the next value for each arm: the read value plus one, from the version that was read.
fn incremented(read: &ReadAnswer) -> BTreeMap<Arm, (Version, String)> {
    let next = |value: Option<&String>| value.and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) + 1;
    read.arms.iter().map(|(arm, state)| (*arm, (state.version, next(state.value.as_ref()).to_string()))).collect()
}
