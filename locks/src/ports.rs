//! The ports: what the algorithms stand on ([`Node`], [`Clock`], [`Watch`]) and what they offer ([`Lock`]).
//!
//! All of them are used as `dyn`, and a [`Reply`] owns its future: what was asked goes on if the reply is dropped.

use std::{future::Future, pin::Pin, time::Duration};

use crate::hold::{Failure, Hold, Key, NodeAnswer, NodeName, Owner, Released, Renewed, Token};

/// An answer to come. Dropping it cancels nothing.
pub type Reply<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An operation under way. Dropping it stops the client, not the requests that it has queued: a key that they set
/// stays until its lease has run out.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Work that always ends, and has nothing to say.
pub type Undoing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One atomic command or script of one node. A lease is rounded up to whole milliseconds.
///
/// A node keeps two things for a key: the key itself with its owner and the time it runs out, and a counter that is 0
/// at first and never runs out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Where the key is free: set it for the lease and count one up. Answers `Granted` with the counter, or `Refused`.
    Acquire(Key, Owner, Duration),
    /// Where the key is free: set it for the lease, without a counter. Answers `Done` or `Refused`.
    AcquireUncounted(Key, Owner, Duration),
    /// Where the owner owns the key: let it run for at least the lease from now on, never for less than it would
    /// have. Answers `Done` or `Refused`.
    Extend(Key, Owner, Duration),
    /// Where the owner owns the key: remove it. Answers `Done` or `Refused`.
    Release(Key, Owner),
    /// Where the owner owns the key **and** the counter is not larger than the token: set the counter to the token.
    /// Answers `Done` or `Refused`.
    RaiseFence(Key, Owner, Token),
    // For planted bugs only.
    /// `Acquire` whether the key is free or not. Answers `Granted`.
    Overwrite(Key, Owner, Duration),
    /// `Acquire` of a key that never runs out, until an `Extend`, `ExtendAny`, `ExtendOrSet` or `SetExpiry` that is done gives it a
    /// lease. Answers `Granted` or `Refused`.
    AcquireForever(Key, Owner),
    /// Counts one up, whatever becomes of the key. Answers `Granted` with the counter, though no key was set.
    CountOnly(Key),
    /// Whether the owner owns the key; changes nothing. Answers `Done` if it does, or `Refused`.
    IsOwner(Key, Owner),
    /// Removes the key, whoever owns it. Answers `Done`, or `Refused` if there was none.
    RemoveAny(Key),
    /// `Extend` whoever owns the key. Answers `Done`, or `Refused` if there is none.
    ExtendAny(Key, Duration),
    /// Where the owner owns the key: `Extend`. Where it is free: set it for the lease, and count nothing. Answers `Done`, or `Refused` if
    /// somebody else owns it.
    ExtendOrSet(Key, Owner, Duration),
    /// Where the owner owns the key: let it run for exactly the lease from now on, also if that is less than it would have. Answers `Done`
    /// or `Refused`.
    SetExpiry(Key, Owner, Duration),
    /// `RaiseFence` without the condition on the owner. Answers `Done`, or `Refused` if the counter is larger.
    RaiseAny(Key, Token),
    /// `RaiseFence` without the condition on the counter: it may go back. Answers `Done`, or `Refused` if the owner does not own the key.
    SetFence(Key, Owner, Token),
}

/// What a node answered to a [`Step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The key was set, and this is the counter.
    Granted(Token),
    /// It was done.
    Done,
    /// The condition of the step did not hold; nothing was changed.
    Refused,
}

/// A lease of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// A point in the history of a [`Store`]: each change makes the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub i64);

/// One request to a [`Store`]. The queue of a key is the set of all keys made by [`Op::Create`] for it, in the order of the revisions at
/// which they were created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A new lease, of whole seconds (rounded up) and at least the store's least. Answers `Leased`.
    Grant(Duration),
    /// The lease shall run for its full time from now on. Answers `Leased`, with a time of zero if there is no such lease any more.
    KeepAlive(LeaseId),
    /// Removes the lease and all its keys. Answers `Done`, or `Gone` if there was no such lease.
    Revoke(LeaseId),
    /// How long the lease still runs. Answers `Leased`, with a time of zero if there is none.
    TimeToLive(LeaseId),
    /// Creates a key in the queue of `Key`, of this owner, that lives as long as the lease; where the owner has one already, that one is
    /// answered. Answers `At` with the revision of its creation, or `Gone` if there is no such lease.
    Create(Key, Owner, LeaseId),
    /// The newest key of the queue that was created before this revision. Answers `At`, or `Gone` if there is none.
    Before(Key, Revision),
    /// Answers `Gone` when the key of the queue that was created at this revision is there no more: at once, or when it goes.
    AwaitGone(Key, Revision),
    /// In one transaction: the key that was created at this revision stands **and** no key of the queue is older. Answers `Done`, or
    /// `Refused`.
    Confirm(Key, Revision),
    /// Removes the key of the queue that was created at this revision. Answers `Done`, or `Gone` if it was not there.
    Delete(Key, Revision),
    /// The store's own Lock service: creates a key of this lease in the queue, where the lease has none there, and answers when the service
    /// says that nobody stands before it: `Locked`. That may take for ever. `Gone` if there is no such lease, or if the service says that
    /// the key went while it waited. To be sent once for a lease: a request that breaks off takes the key with it, whoever else relies on it.
    Lock(Key, LeaseId),
    /// The key that the Lock service created in the queue for this lease. Answers `At` with the revision of its creation, or `Gone` if it
    /// is not there.
    OfLease(Key, LeaseId),
    /// The store's own Lock service: removes the key that it created for this lease. Answers `Done`, whether it was there or not.
    Unlock(Key, LeaseId),
    /// For planted bugs only: removes every key of the queue, whoever created it. Answers `Done`.
    DeleteAll(Key),
}

/// What a store answered to an [`Op`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The lease, and how long it was granted for or still runs.
    Leased(LeaseId, Duration),
    /// The key was created at this revision.
    At(Revision),
    /// The Lock service has granted the lock, when the store was at this revision.
    Locked(Revision),
    /// It was done.
    Done,
    /// The condition did not hold; nothing was changed.
    Refused,
    /// There is no such lease, or no such key.
    Gone,
}

/// A linearizable store with revisions and leases: etcd.
pub trait Store: Send + Sync {
    /// Its name in answers and messages.
    fn name(&self) -> &str;

    /// Queues `op` before it returns. Dropping the reply cancels nothing.
    fn send(&self, op: Op) -> Reply<Result<Seen, NodeError>>;
}

/// Why a node gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The step was surely not done.
    #[error("{0}")]
    Definite(String),
    /// The step may have been done.
    #[error("{0} (it may have been done)")]
    Indeterminate(String),
}

/// One server.
pub trait Node: Send + Sync {
    /// Its name in answers and messages.
    fn name(&self) -> &str;

    /// Queues `step` before it returns; steps are done in the order in which they were queued, each of them once, also
    /// if nobody waits for the reply any more. So a release that is queued after an acquire can never overtake it.
    fn send(&self, step: Step) -> Reply<Result<Answer, NodeError>>;
}

/// The process's own clock. Faults may move it.
pub trait Clock: Send + Sync {
    /// Time since boot.
    fn now(&self) -> Duration;

    /// Resolves when [`Clock::now`] has reached `at`.
    fn sleep_until(&self, at: Duration) -> Reply<()>;

    /// What the process's wall clock shows; only planted bugs ask for it.
    fn wall(&self) -> Duration {
        self.now()
    }
}

/// One exchange with all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Round {
    /// The attempt itself.
    Acquire,
    /// The second round of two-phase tokens.
    WriteBack,
    /// A renewal.
    Renew,
    /// A release.
    Release,
    /// The release after an attempt that failed.
    Undo,
}

/// Callbacks of one operation, by which the caller can record it; a lock does not know how. All do nothing by default.
pub trait Watch: Send + Sync {
    /// The first byte of `round` is about to leave. Called **after** the lock has read its own clock for it.
    ///
    /// A recorder stamps in here, and a promise is judged from that stamp: stamp + lease − drift. Both sides of the
    /// call matter. If the stamp were taken after a byte had left, a node could start the lease before the stamp, and
    /// the promise would be judged to last longer than it does. If it were taken before the lock read its clock, a
    /// process frozen between the two would rightly believe in its hold for as long as it was frozen past the judged
    /// end: a false alarm. In this order the lock's own deadline is never later than the judged one.
    fn sending(&self, _round: Round) {}

    /// All requests of `round` are queued and no answer was read. The lock goes on when the reply resolves: a
    /// recorder may wait here, and its time is not counted against the nodes.
    fn sent(&self, _round: Round) -> Reply<()> {
        Box::pin(std::future::ready(()))
    }

    /// The answers that decide `round`, for or against, were read; not called when the round timed out. Called
    /// **before** the clock is read for the validity, so that a stamp taken in here is never later than that reading.
    /// Nothing is awaited between this call, for the last round of an operation, and the `Ok` of that operation.
    fn answered(&self, _round: Round) {}

    /// A request on which the promise of the hold may rest is about to leave, if that is not the attempt's first. Called **after** the
    /// lock has read its own clock for it, as [`Watch::sending`].
    fn promising(&self) {}

    /// The request that was told last to [`Watch::promising`] has succeeded: from now on the promise rests on it.
    fn promised(&self) {}

    /// Queue locks: a look at the queue is about to be asked for.
    fn looking(&self) {}

    /// Queue locks: the last look still saw somebody before this attempt.
    fn behind(&self) {}

    /// Queue locks: one transaction has said that the key which was created at `place` stands and is the oldest of its queue. Called only
    /// for what was confirmed, and before [`Watch::answered`].
    fn confirmed(&self, _place: Revision) {}

    /// The service has granted the lock, and the key that the grant stands for was not there when the lock looked for it: its lease had
    /// ended. Called before [`Watch::answered`]; it decides nothing.
    fn without_key(&self) {}

    /// The undo of a failed attempt is about to be queued; called just before its `sending`.
    fn undoing(&self) {}

    /// What the nodes said to the undo, as far as it was waited for.
    fn undone(&self, _answers: &[(NodeName, NodeAnswer)]) {}
}

/// Records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Watch for Unwatched {}

/// All that a client sees of a lock.
///
/// Every completion, ok or not, carries the answer of each node. A failure that is not sure to have failed says so.
pub trait Lock: Send + Sync {
    /// One attempt. `owner` must be a fresh value; [`Retry`](crate::Retry) loops around this.
    ///
    /// # Errors
    /// [`Failure`], after what the attempt may have left behind was undone as far as nodes could be reached.
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Hold>;

    /// Whether an attempt may wait for as long as others hold the lock, as in a queue; one that does not ends by itself.
    fn waits(&self) -> bool {
        false
    }

    /// Extends `hold` to `lease` from now on. It is changed only if the renewal succeeds, and never shortened.
    ///
    /// # Errors
    /// [`Failure`]; `hold` stays as it was.
    fn renew<'a>(&'a self, hold: &'a mut Hold, lease: Duration, watch: &'a dyn Watch) -> Doing<'a, Renewed>;

    /// Removes the key wherever this hold still owns it.
    ///
    /// # Errors
    /// [`Failure`], if too few nodes answered to know.
    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Doing<'a, Released>;

    /// Removes whatever an attempt that was dropped before it ended has left under this owner, as far as it can be reached. The undo is
    /// told to `watch`.
    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Undoing<'a>;
}
