//! The client: acquires, reads, works, writes, releases. Needs only its ports, and no runtime.

mod requests;

use std::{
    borrow::Cow,
    iter,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{Either, select},
};
use history::{ClientId, Event, HoldId, Mode, OpId, Point, Stamp, Token, Workload, drift};
use locks::{Clock, Hold, Lock, Owner, Reply, RetryDelay};
use rand::RngCore;

use crate::{
    attempt::{Attempt, Recording},
    backend::Backend,
    belief::Belief,
    generate::{Section, Taken},
    ports::{Operation, Resource},
};

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

/// A client's hold of the key above its next lock.
#[derive(Clone, Copy)]
struct Above<'a> {
    hold: HoldId,
    belief: &'a Belief<'a>,
    /// The number of operations under that hold. A request under a lower hold counts for both, so the numbers go on.
    operations: u64,
}

/// The result of taking a lock and those after it.
struct Taking {
    ended: Ended,
    /// True if a write may still be under way.
    is_kept: bool,
}

impl Client {
    /// Returns this client with a lock that it may acquire again while it holds it.
    pub fn reentrant(mut self, backend: &Backend) -> Client {
        self.lock = backend.reentrant(self.lock, self.recording.clock.clone());
        self
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
        let course = &mut Course { intended, rng, give_up, end };
        let intention = section.above.clone().and_then(|key| {
            let mode = self.lock.intention(in_lock(section.locks.first()?.mode))?;
            Some(Taken { key, mode: of_lock(mode), data: Vec::new() })
        });
        let locks: Cow<'_, [Taken]> = match intention {
            None => (&section.locks).into(),
            Some(intention) => iter::once(intention).chain(section.locks.iter().cloned()).collect(),
        };
        self.take(section, &locks, None, None, course).await.ended
    }

    /// Takes the first lock, works under it, and then takes the further ones in the same way. Releases in the reverse
    /// order, also if a further lock was not to be had. A client that holds a lock waits for the next one until
    /// `until`, and no longer once the service has found that it waits in a cycle.
    fn take<'a>(
        &'a self,
        section: &'a Section,
        locks: &'a [Taken],
        above: Option<Above<'a>>,
        until: Option<Until>,
        course: &'a mut Course<'_>,
    ) -> Pin<Box<dyn Future<Output = Taking> + Send + 'a>> {
        Box::pin(async move {
            let Some((Taken { key, mode, .. }, _)) = locks.split_first() else {
                return Taking { ended: Ended::Done, is_kept: false };
            };
            let name = locks::Key::within(&self.namespace, key.as_str());
            let mut failed = 0;
            loop {
                let intended = course.intended;
                let id = self.attempts.next();
                let (recording, above_id) = (self.recording.clone(), above.map(|above| above.hold));
                let attempt = Attempt::new(recording, self.id, id, key.clone(), intended, *mode, above_id);
                self.point(attempt.id, Point::BeforeAcquire).await;
                let owner = Owner::random(course.rng);
                let mut is_deadlock = false;
                match self.attempt(&name, owner, &attempt, until, course.end).await {
                    Some(Ok(hold)) => {
                        attempt.acquired(&hold);
                        return self.critical(&attempt, hold, section, locks, above, course).await;
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
                    return Taking { ended: Ended::Dropped, is_kept: false };
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
        // The attempt may have waited at a point.
        self.recording.points.leave(&*self.recording.journal, self.id);
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
    fn deadline_us(&self, belief: &Belief<'_>) -> u64 {
        let (wall, now) = (self.clock().wall(), self.clock().now());
        let until = belief.valid_until();
        let deadline = (wall + until).saturating_sub(now);
        u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX)
    }

    /// Runs the work under the hold of the first lock, with the watchdog beside it in the same future, so that the
    /// watchdog never outlives the work. Then takes the further locks.
    async fn critical(
        &self,
        attempt: &Attempt,
        hold: Hold,
        section: &Section,
        locks: &[Taken],
        above: Option<Above<'_>>,
        course: &mut Course<'_>,
    ) -> Taking {
        let belief = Belief::new(self.believed_ns(&hold), above.map(|above| above.belief));
        let mut ended = Ended::Done;
        let (first_op, data) = (above.map_or(0, |above| above.operations), &locks[0].data);
        let keep = {
            let work = async {
                let keep = self.work(attempt, &hold, &belief, section, data, first_op).await;
                if keep || locks.len() == 1 {
                    return keep;
                }
                let operations = first_op + operations(section, data.len());
                let above = Above { hold: attempt.id, belief: &belief, operations };
                let above = self.workload.parent().map(|_| above);
                let until = Until(self.clock().now().saturating_add(self.patience(above.is_some())));
                let next = self.take(section, &locks[1..], above, Some(until), course).await;
                ended = next.ended;
                // A write under a lower hold relies on this one too.
                above.is_some() && next.is_kept
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
            self.lock.gave_up(&hold);
        } else {
            self.point(attempt.id, Point::BeforeRelease).await;
            self.release(attempt, &hold).await;
        }
        Taking { ended, is_kept: keep }
    }

    /// Returns how long a client that holds a lock waits for its next one. Under a hold that nobody renews, a client
    /// that waits for a lower key leaves half of the lease for its work.
    fn patience(&self, is_below: bool) -> Duration {
        let half = (is_below && self.workload.renew.is_none()).then_some(self.lease / 2);
        half.into_iter().chain(self.workload.patience).min().unwrap_or(Duration::MAX)
    }

    /// Releases a hold. A client that had acquired it again releases once too often, which must change nothing. After a
    /// release that failed, another one would send the request again.
    async fn release(&self, attempt: &Attempt, hold: &Hold) {
        let released = self.lock.release(hold, attempt).await;
        let is_released = released.is_ok();
        attempt.released(released);
        if self.workload.reenter > 0 && is_released {
            self.leave(attempt, hold).await;
        }
    }

    /// Acquires the key of a hold again, as often as planned. Returns false if the hold has lapsed or is lost; then no
    /// acquisition but the first is open, so the release frees the key.
    async fn reenter(&self, attempt: &Attempt, hold: &Hold) -> bool {
        for entered in 0..self.workload.reenter {
            let again =
                self.lock.acquire_in(in_lock(attempt.mode), &hold.key, hold.owner.clone(), self.lease, attempt).await;
            if again.is_err() {
                self.record(Event::LossNoticed { hold: attempt.id });
                for _ in 0..entered {
                    self.leave(attempt, hold).await;
                }
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
    async fn renew(&self, attempt: &Attempt, mut hold: Hold, every: Duration, belief: &Belief<'_>) {
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
                Ok(()) => belief.extend_to(self.believed_ns(&hold)),
                Err(true) => {
                    belief.lose();
                    self.record(Event::LossNoticed { hold: attempt.id });
                    return;
                }
                Err(false) => {}
            }
            due = (due + every).max(self.clock().now());
        }
    }

    /// Reads, works and writes all `data` as often as planned; a client that is no writer reads again where a writer
    /// writes. The operations are numbered after `first_op`. Returns whether the hold must not be released, because a
    /// write may still be under way.
    async fn work(
        &self,
        attempt: &Attempt,
        hold: &Hold,
        belief: &Belief<'_>,
        section: &Section,
        data: &[history::Key],
        first_op: u64,
    ) -> bool {
        let id = attempt.id;
        self.point(id, Point::AfterAcquire).await;
        if data.is_empty() {
            return false;
        }
        let mut op = first_op;
        let mut operation = |key: &history::Key| {
            op += 1;
            let token = hold.token.map(|token| Token(token.0));
            Operation { key: key.clone(), hold: id, op: OpId(op), token, deadline_us: None }
        };
        for _ in 0..section.writes {
            let mut reads = Vec::with_capacity(data.len());
            for key in data {
                let Some(read) = self.read(id, &operation(key)).await else { return false };
                reads.push(read);
            }
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

            for (key, read) in data.iter().zip(&reads) {
                if let Some(keep) = self.update(attempt, belief, operation(key), read).await {
                    return keep;
                }
            }
        }
        false
    }
}

/// The mode as `locks` takes it.
fn in_lock(mode: Mode) -> locks::Mode {
    locks::Mode::ALL[mode as usize]
}

/// The mode as `history` has it.
fn of_lock(mode: locks::Mode) -> Mode {
    Mode::ALL[mode as usize]
}

/// The number of operations of a section under one hold.
fn operations(section: &Section, data: usize) -> u64 {
    2 * u64::from(section.writes) * data as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_history_and_locks_have_the_same_names() {
        for mode in Mode::ALL {
            assert_eq!(in_lock(mode).name(), mode.name());
            assert_eq!(of_lock(in_lock(mode)), mode);
        }
    }
}
