//! A reentrant lock, over any other lock: the client that holds a key may acquire the key again.
//!
//! The first acquisition is that of the other lock. Each further one is counted in this client's memory, and sends no
//! request. A release decrements the count; the last one releases the other lock. So reentrancy is a matter of one
//! client: nothing of it crosses a process, and the servers see one hold.
//!
//! - A re-entry keeps the hold's token: it is the same hold, so the resource sees no other holder.
//! - A re-entry does not extend the lease. Its deadline is that of the hold, renewals included. An inner acquisition
//!   that promised a lease of its own would let its client believe in a hold that no server has extended.
//! - A hold that has lapsed cannot be entered again, and neither can one that a renewal has found lost.
//! - A release too many changes nothing.
//! - A last release that fails may be repeated until the client acquires the key again: it asks the other lock again.
//!   The hold cannot be entered meanwhile.
//! - A hold that its client gave up is over: the next acquisition is one of the other lock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    hold::{Failure, FailureReason, Hold, Key, NodeAnswers, Outcome, Owner, Released, Renewed},
    mode::Mode,
    ports::{Cleanup, Clock, Lock, Operation, Watch},
    validity,
};

/// The decisions of the algorithm. Each provided method is the correct decision.
pub(crate) trait Decisions: Send + Sync {
    /// Returns whether the release of an inner acquisition frees the key.
    fn frees_at_once(&self) -> bool {
        false
    }

    /// Returns whether a re-entry believes in a lease of its own.
    fn believes_anew(&self) -> bool {
        false
    }
}

/// The decisions of the correct algorithm.
pub(crate) struct Correct;

impl Decisions for Correct {}

/// A hold of this client.
struct Held {
    hold: Hold,
    mode: Mode,
    /// The number of open acquisitions; 0 from the last release until the other lock has released the hold.
    count: u32,
    /// True if a renewal has found that this client is no longer the owner.
    is_lost: bool,
}

/// The reentrant lock of one client. See [the module](self).
pub struct Reentrant {
    lock: Arc<dyn Lock>,
    clock: Arc<dyn Clock>,
    held: Mutex<BTreeMap<Key, Held>>,
    decisions: Box<dyn Decisions>,
}

impl Reentrant {
    /// Makes `lock` reentrant for one client.
    pub fn new(lock: Arc<dyn Lock>, clock: Arc<dyn Clock>) -> Reentrant {
        Reentrant::deciding(lock, clock, Box::new(Correct))
    }

    /// The lock with decisions of its own.
    pub(crate) fn deciding(lock: Arc<dyn Lock>, clock: Arc<dyn Clock>, decisions: Box<dyn Decisions>) -> Reentrant {
        Reentrant { lock, clock, held: Mutex::default(), decisions }
    }

    /// Counts another acquisition; none if the client does not hold the key.
    fn again(&self, mode: Mode, key: &Key, lease: Duration, watch: &dyn Watch) -> Option<Result<Hold, Failure>> {
        let mut held = self.held.lock();
        let held = held.get_mut(key).filter(|held| held.count > 0)?;
        if held.mode != mode {
            return Some(Err(Failure::no_such_mode(mode)));
        }
        watch.reentering();
        let now = self.clock.now();
        if held.is_lost || !held.hold.is_valid(now) {
            let reason = if held.is_lost { FailureReason::Lost } else { FailureReason::Validity };
            return Some(Err(Failure { reason, outcome: Outcome::Failed, answers: NodeAnswers::new() }));
        }
        held.count += 1;
        let mut hold = held.hold.clone();
        if self.decisions.believes_anew() {
            hold.valid_until = validity::promise_end(now, lease);
        }
        watch.reentered(&hold, held.count);
        Some(Ok(hold))
    }

    /// Counts a release. Returns the acquisitions that are still open if the key must not be freed.
    fn leave(&self, hold: &Hold) -> Option<u32> {
        let mut held = self.held.lock();
        let Some(held) = held.get_mut(&hold.key).filter(|held| held.hold.owner == hold.owner) else { return Some(0) };
        held.count = if self.decisions.frees_at_once() { 0 } else { held.count.saturating_sub(1) };
        Some(held.count).filter(|open| *open > 0)
    }

    /// Forgets a hold that is over.
    fn forget(&self, hold: &Hold) {
        let mut held = self.held.lock();
        if held.get(&hold.key).is_some_and(|held| held.hold.owner == hold.owner) {
            held.remove(&hold.key);
        }
    }
}

impl Lock for Reentrant {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        self.acquire_in(Mode::Write, key, owner, lease, watch)
    }

    /// A hold is entered again in its own mode only.
    fn acquire_in<'a>(
        &'a self,
        mode: Mode,
        key: &'a Key,
        owner: Owner,
        lease: Duration,
        watch: &'a dyn Watch,
    ) -> Operation<'a, Hold> {
        if let Some(again) = self.again(mode, key, lease, watch) {
            return Box::pin(std::future::ready(again));
        }
        Box::pin(async move {
            let hold = self.lock.acquire_in(mode, key, owner, lease, watch).await?;
            self.held.lock().insert(key.clone(), Held { hold: hold.clone(), mode, count: 1, is_lost: false });
            Ok(hold)
        })
    }

    fn intention(&self, mode: Mode) -> Option<Mode> {
        self.lock.intention(mode)
    }

    fn waits(&self) -> bool {
        self.lock.waits()
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(async move {
            let renewed = self.lock.renew(hold, lease, watch).await;
            if let Some(held) = self.held.lock().get_mut(&hold.key)
                && held.hold.owner == hold.owner
            {
                match &renewed {
                    Ok(_) => held.hold = hold.clone(),
                    Err(failure) => held.is_lost |= failure.reason == FailureReason::Lost,
                }
            }
            renewed
        })
    }

    /// Frees the key if this was the last acquisition, or if the last release failed. Otherwise no request is sent, and
    /// nothing is removed.
    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        if let Some(open) = self.leave(hold) {
            watch.left(open);
            return Box::pin(std::future::ready(Ok(Released { removed: false, answers: NodeAnswers::new() })));
        }
        Box::pin(async move {
            let released = self.lock.release(hold, watch).await?;
            self.forget(hold);
            Ok(released)
        })
    }

    fn gave_up(&self, hold: &Hold) {
        self.forget(hold);
        self.lock.gave_up(hold);
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        self.lock.cancel(key, owner, lease, watch)
    }
}
