//! The ports: [`Node`], [`Store`], [`Table`], [`Clock`] and [`Watch`] are what the algorithms need; [`Lock`] is what
//! they offer.
//!
//! All ports are used as `dyn`. A [`Reply`] owns its future: a request goes on if its reply is dropped.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use serde::{Deserialize, Serialize};

#[cfg(feature = "planted")]
use crate::planted::steps::{PlantedOp, PlantedStep};
use crate::{
    hold::{Failure, Hold, Key, NodeAnswer, NodeName, Owner, Released, Renewed, Token},
    mode::Mode,
    validity::lease_ms,
};

/// A pending answer. Dropping it cancels nothing.
pub type Reply<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A reply that is there at once. The future has no size, so its box needs no memory.
pub fn replied() -> Reply<()> {
    Box::pin(poll_fn(|_| Poll::Ready(())))
}

/// A pending operation of a lock. Dropping it stops the client, but not the requests that the client has queued: a key
/// that they set stays until its lease expires.
pub type Operation<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The pending undo of an attempt. It always ends, and returns nothing.
pub type Cleanup<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One atomic command or script of one node. A lease is rounded up to whole milliseconds.
///
/// For each key a node keeps two things: the key itself, with its owner and its expiry, and a counter that starts at 0
/// and never expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Sets the key for the lease and increments the counter, if the key is free. The answer is `Granted` with the
    /// counter, or `Refused`.
    Acquire(Key, Owner, #[serde(with = "lease_ms")] Duration),
    /// Sets the key for the lease, without a counter, if the key is free. The answer is `Done` or `Refused`.
    AcquireUncounted(Key, Owner, #[serde(with = "lease_ms")] Duration),
    /// Lets the key run for at least the lease from now on, if the owner owns the key. It never shortens the time that
    /// is left. The answer is `Done` or `Refused`.
    Extend(Key, Owner, #[serde(with = "lease_ms")] Duration),
    /// Removes the key, if the owner owns it. The answer is `Done` or `Refused`.
    Release(Key, Owner),
    /// Sets the counter to the token, if the owner owns the key **and** the counter is not larger than the token. The
    /// answer is `Done` or `Refused`.
    RaiseFence(Key, Owner, Token),
    /// A step that only a planted bug sends.
    #[cfg(feature = "planted")]
    Planted(PlantedStep),
}

impl Step {
    /// The key that this step is about.
    pub fn key(&self) -> &Key {
        match self {
            Step::Acquire(key, ..)
            | Step::AcquireUncounted(key, ..)
            | Step::Extend(key, ..)
            | Step::Release(key, ..)
            | Step::RaiseFence(key, ..) => key,
            #[cfg(feature = "planted")]
            Step::Planted(step) => step.key(),
        }
    }

    /// Returns whether the step increments the counter. Its answer is then the counter.
    pub(crate) fn counts(&self) -> bool {
        match self {
            Step::Acquire(..) => true,
            #[cfg(feature = "planted")]
            Step::Planted(step) => step.counts(),
            _ => false,
        }
    }
}

#[cfg(feature = "planted")]
impl From<PlantedStep> for Step {
    fn from(step: PlantedStep) -> Step {
        Step::Planted(step)
    }
}

/// A node's answer to a [`Step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepAnswer {
    /// The node has set the key; this is the counter.
    Granted(Token),
    /// The node has done the step.
    Done,
    /// The step's condition did not hold; the node changed nothing.
    Refused,
}

/// A lease of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// The stamp of a [`Watch`], which only the recorder behind it can read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark(pub u64);

/// The sending of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// The client's clock, read before `mark` was taken.
    pub at: Duration,
    /// The stamp of the request.
    pub mark: Mark,
}

/// A point in the history of a [`Store`]: each change makes the next revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub i64);

/// One request to a [`Store`]. The queue of a key consists of all keys that [`Op::Create`] made for it, in the order of
/// their creation revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Grants a new lease of whole seconds (rounded up), and at least the store's minimum. The answer is `Leased`.
    Grant(Duration),
    /// Lets the lease run for its full time from now on. The answer is `Leased`; a time of zero means that there is no
    /// such lease.
    KeepAlive(LeaseId),
    /// Removes the lease and all its keys. The answer is `Done`, or `Gone` if there was no such lease.
    Revoke(LeaseId),
    /// Reads the time that the lease has left. The answer is `Leased`; a time of zero means that there is no such
    /// lease.
    TimeToLive(LeaseId),
    /// Creates a key of this owner and mode in the queue of `Key`, which lives as long as the lease. If the owner has a
    /// key of this mode there already, the answer names that key. The answer is `First` or `At`, with the revision of
    /// the key's creation, or `Gone` if there is no such lease.
    Create(Key, Owner, LeaseId, Mode),
    /// Finds the newest key of the queue that was created before this revision and whose mode conflicts with this mode.
    /// The answer is `At`, or `Gone` if there is none.
    Before(Key, Revision, Mode),
    /// Waits until the key that was created at this revision is not in the queue. The answer is `Gone`.
    AwaitGone(Key, Revision),
    /// Checks in one transaction that the key which was created at this revision exists **and** that no older key of
    /// the queue has a mode that conflicts with this mode. The answer is `Done` or `Refused`.
    Confirm(Key, Revision, Mode),
    /// Removes the key of the queue that was created at this revision. The answer is `Done`, or `Gone` if the key was
    /// not there.
    Delete(Key, Revision),
    /// Locks through the store's own Lock service. The service creates a key of this lease in the queue, unless the
    /// lease has one there, and answers `Locked` when it finds no older key. The answer may never arrive. The answer is
    /// `Gone` if there is no such lease, or if the service finds that the key vanished while the service waited.
    ///
    /// Send this once for a lease: a request that breaks off removes the key, also if another request relies on it.
    Lock(Key, LeaseId),
    /// Finds the key that the Lock service created in the queue for this lease. The answer is `At` with the revision of
    /// the key's creation, or `Gone` if the key is not there.
    OfLease(Key, LeaseId),
    /// Removes the key that the store's Lock service created for this lease. The answer is `Done`, whether the key was
    /// there or not.
    Unlock(Key, LeaseId),
    /// A request that only a planted bug sends.
    #[cfg(feature = "planted")]
    Planted(PlantedOp),
}

#[cfg(feature = "planted")]
impl From<PlantedOp> for Op {
    fn from(op: PlantedOp) -> Op {
        Op::Planted(op)
    }
}

/// A store's answer to an [`Op`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreAnswer {
    /// The lease, and its granted or remaining time.
    Leased(LeaseId, Duration),
    /// A lease that the client has already, its granted time, and the request that was the last to start this time.
    Joined(LeaseId, Duration, Sent),
    /// The revision at which the key was created.
    At(Revision),
    /// The same, and when the store answered, no older key of the queue had a mode that conflicts with the key's mode.
    /// A store that cannot see this in one transaction answers `At`.
    First(Revision),
    /// The Lock service has granted the lock, at this revision of the store.
    Locked(Revision),
    /// The store has done the request.
    Done,
    /// The request's condition did not hold; the store changed nothing.
    Refused,
    /// There is no such lease, or no such key.
    Gone,
}

/// A linearizable store with revisions and leases, such as etcd.
pub trait Store: Send + Sync {
    /// The store's name in answers and messages.
    fn name(&self) -> &str;

    /// Queues `op` before it returns. Dropping the reply cancels nothing.
    fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>>;

    /// Asks for the lease of an attempt whose first request leaves at `sent`. The answer is that of [`Op::Grant`], or
    /// `Joined`.
    fn grant(&self, lease: Duration, _sent: Sent) -> Reply<Result<StoreAnswer, NodeError>> {
        self.send(Op::Grant(lease))
    }

    /// Returns whether an answered creation of a key proves that its lease runs for its full time from the sending of
    /// the creation, as an answered keep-alive does.
    fn keeps_alive_by_creating(&self) -> bool {
        false
    }

    /// A hold under this lease ends with the lease only: its client has given it up, and relies on the promise.
    fn relies_on_end(&self, _lease: LeaseId) {}
}

/// The record of a key in a [`Table`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The lease that the owner asked for; none if the key is free.
    pub lease: Option<Duration>,
    /// The version. Each write gives the record a version that no record had before.
    pub version: RecordVersion,
}

/// The version of a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecordVersion(pub Arc<str>);

/// The condition of a write to a [`Table`]. The write happens only if the condition holds, in one atomic step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The key has no record.
    Missing,
    /// The record has this version.
    Version(RecordVersion),
    /// The record has this owner, and the owner has not released it.
    Owner(Owner),
}

/// A change of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Gives the key to the owner for a lease, and increments the counter if it `counts`.
    Take {
        /// The new owner.
        owner: Owner,
        /// The lease.
        lease: Duration,
        /// True if the counter is incremented.
        counts: bool,
    },
    /// Changes the version only.
    Renew,
    /// Releases the key. The record stays, with its counter.
    Free,
}

/// A table of one record for each key, with atomic conditional writes and strongly consistent reads, such as DynamoDB.
/// Nothing in the table expires.
pub trait Table: Send + Sync {
    /// The table's name in answers and messages.
    fn name(&self) -> &str;

    /// Reads the record of the key; none if the key has no record.
    fn read(&self, key: &Key) -> Reply<Result<Option<Record>, NodeError>>;

    /// Changes the record of the key, and gives it this version, if the condition holds. The answer is the record's
    /// counter after the change, which is a fencing token if the change counts; none if the condition does not hold.
    fn write(
        &self,
        key: &Key,
        condition: Condition,
        change: Change,
        version: RecordVersion,
    ) -> Reply<Result<Option<Token>, NodeError>>;
}

/// The reason why a server gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The server certainly did not do the request.
    #[error("{0}")]
    Definite(String),
    /// The server may have done the request.
    #[error("{0} (it may have been done)")]
    Indeterminate(String),
}

/// One independent server.
pub trait Node: Send + Sync {
    /// The node's name in answers and messages.
    fn name(&self) -> &str;

    /// Queues `step` before it returns. The node does the steps of one client in the order in which they were queued,
    /// each once, also if the client no longer waits for the reply. So a release never overtakes an acquire that was
    /// queued before it.
    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>>;
}

/// The process's own clock. Faults may change it.
pub trait Clock: Send + Sync {
    /// Reads the time since boot.
    fn now(&self) -> Duration;

    /// Resolves when [`Clock::now`] has reached `at`.
    fn sleep_until(&self, at: Duration) -> Reply<()>;

    /// Reads the process's wall clock. Only planted bugs do.
    #[cfg(feature = "planted")]
    fn wall(&self) -> Duration {
        self.now()
    }
}

/// One exchange with all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Round {
    /// The attempt itself.
    Acquire,
    /// The second round of two-phase tokens, which `two-phase-fast` may leave out.
    WriteBack,
    /// A renewal.
    Renew,
    /// A release.
    Release,
    /// The release after an attempt that failed.
    Undo,
}

/// Callbacks of one operation, by which a caller can record the operation. Each does nothing by default.
pub trait Watch: Send + Sync {
    /// The first byte of `round` is about to leave. The lock calls this **after** it has read its own clock for
    /// `round`.
    ///
    /// A recorder reads its stamp in this call, and a promise is judged from that stamp: stamp + lease − drift. Both
    /// sides of the call matter. After a byte has left, a node could start the lease before the stamp, and the judged
    /// promise would be too long. Before the lock reads its clock, a process could be frozen between the stamp and the
    /// reading; the lock would rightly believe in its hold for that much longer, and the judgement would be a false
    /// alarm. In this order the lock's own deadline is never later than the judged deadline.
    fn sending(&self, _round: Round) {}

    /// All requests of `round` are queued, and the lock has read no answer. The lock continues when the reply resolves:
    /// a recorder may wait here, and the timeout of the nodes starts after that.
    fn sent(&self, _round: Round) -> Reply<()> {
        replied()
    }

    /// The lock has read the answers that decide `round`. It does not call this for a round that timed out. It calls
    /// this **before** it reads its clock for the validity, so that a stamp of this call is never later than that
    /// reading. Between this call for the last round of an operation and the `Ok` of the operation the lock awaits
    /// nothing.
    fn answered(&self, _round: Round) {}

    /// A request that may start the hold's promise anew is about to leave, such as a keep-alive. The lock calls this
    /// **after** it has read its own clock, as for [`Watch::sending`]. The attempt's first request is not announced
    /// here.
    fn promising(&self) {}

    /// The request of the last [`Watch::promising`] has succeeded: from now on the promise counts from that request.
    fn promised(&self) {}

    /// The stamp of the attempt's first request.
    fn mark(&self) -> Mark {
        Mark::default()
    }

    /// The promise counts from a request that an earlier attempt of the client sent, by the stamp of that request.
    fn promised_since(&self, _mark: Mark) {}

    /// The client is about to acquire its own hold again. The lock calls this **before** it reads its clock for the
    /// validity of the hold, as for [`Watch::answered`].
    fn reentering(&self) {}

    /// The client has acquired its own hold again, without a request. So many acquisitions of the hold are open now.
    fn reentered(&self, _hold: &Hold, _count: u32) {}

    /// The client has released an acquisition of its hold, without a request. So many are still open; 0 if the client
    /// has released more often than it had acquired.
    fn left(&self, _count: u32) {}

    /// Queue locks: the lock is about to ask for the queue's state.
    fn looking(&self) {}

    /// Queue locks: the last answer showed an older key in the queue.
    fn behind(&self) {}

    /// Queue locks: one transaction has confirmed that the key created at `place` exists and that no older key of its
    /// queue conflicts with it. The lock calls this before [`Watch::answered`].
    fn confirmed(&self, _place: Revision) {}

    /// The Lock service has granted the lock, but the key of the grant did not exist when the lock looked for it: its
    /// lease had ended. The lock calls this before [`Watch::answered`]. It decides nothing.
    fn without_key(&self) {}

    /// The undo of a failed attempt is about to be queued. The lock calls this just before the undo's `sending`.
    fn undoing(&self) {}

    /// The undo has ended, with these answers of the nodes. An answer that the lock did not wait for is `None`.
    fn undone(&self, _answers: &[(NodeName, NodeAnswer)]) {}
}

/// Records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Watch for Unwatched {}

/// A lock, as a client sees it.
///
/// Every completion, ok or not, carries the answer of each node. A failure says whether it is definite.
pub trait Lock: Send + Sync {
    /// Makes one attempt. `owner` must be a fresh value; [`Retry`](crate::Retry) repeats attempts.
    ///
    /// # Errors
    /// [`Failure`], after the lock has undone the attempt on all nodes that it could reach.
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold>;

    /// Makes one attempt in a mode. A lock without modes gives [`Mode::Write`] only, as [`Lock::acquire`] does.
    ///
    /// # Errors
    /// As for [`Lock::acquire`]; and a definite failure if the lock has no such mode.
    fn acquire_in<'a>(
        &'a self,
        mode: Mode,
        key: &'a Key,
        owner: Owner,
        lease: Duration,
        watch: &'a dyn Watch,
    ) -> Operation<'a, Hold> {
        match mode {
            Mode::Write => self.acquire(key, owner, lease, watch),
            mode => Box::pin(std::future::ready(Err(Failure::no_such_mode(mode)))),
        }
    }

    /// Returns the mode in which a client must hold the key above before it acquires a key in `mode`; none if the lock
    /// has no intentions, so that no key can be above another.
    fn intention(&self, _mode: Mode) -> Option<Mode> {
        None
    }

    /// Returns whether an attempt waits while other clients hold the lock, as in a queue. An attempt that waits does
    /// not end by itself.
    fn waits(&self) -> bool {
        false
    }

    /// Returns a lock for one client, whose holds all share one session and end with it; none if the lock has no such
    /// sessions.
    fn session(&self) -> Option<Arc<dyn Lock>> {
        None
    }

    /// Extends `hold` to `lease` from now on. Only a renewal that succeeds changes `hold`, and it never shortens
    /// `hold`.
    ///
    /// # Errors
    /// [`Failure`]; `hold` is unchanged.
    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed>;

    /// Removes the key wherever this hold still owns it.
    ///
    /// # Errors
    /// [`Failure`], if too few nodes answered.
    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released>;

    /// The client has given `hold` up: it neither renews nor releases the hold, and relies on the promise to its end.
    fn gave_up(&self, _hold: &Hold) {}

    /// Removes the keys that an abandoned attempt left behind under this owner, on every node that answers. `watch` is
    /// told of the undo.
    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a>;
}
