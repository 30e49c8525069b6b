//! The lock in a record of a DynamoDB table: conditional writes, and a lease that the *waiting* clients measure.
//!
//! The algorithm is that of Amazon's DynamoDB Lock Client for Java
//! (<https://github.com/awslabs/amazon-dynamodb-lock-client>). Each key has one record, with its owner, the length of
//! the lease, and a version that every write changes. Nothing in the table expires. A client that finds the key owned
//! remembers the version, and the time of its **own** clock at which it had read the version. If the client reads the
//! same version again after a whole lease, it takes the key over, by a write on condition of that version. A renewal
//! changes the version, so every waiting client begins to count anew.
//!
//! # Soundness
//!
//! A client counts from the time at which it had the answer of the read. The write of the version was applied before it
//! was read, and was sent before it was applied. So a client whose clock is right never takes a key over earlier than
//! one lease after the sending of the write, and the promise of that write has ended. The clock of the server plays no
//! part. Every write of an attempt has the version that the attempt has read as its condition, so a write that arrives
//! late changes nothing if any other write came first.
//!
//! # Differences from the Java client
//!
//! - The token. The record has a counter, which the write that takes the key increments, and which a release keeps.
//!   The Java client's version is a random UUID: it tells two holds apart, and orders nothing. By default the Java
//!   client deletes the record at a release, and a counter would begin anew.
//! - A client takes a *released* record on condition of its version too. The Java client does so only if it is asked
//!   to.
//! - A renewal and a release have the owner as their condition, which is new for each attempt. The Java client's owner
//!   is the name of the client, so its condition has the version too. If the answer to a renewal is lost, that client
//!   no longer knows the version, and so loses its hold.
//! - The version is the owner value with a number, because the owner value is random already.
//! - One attempt does not wait. The clients of a process share what they have seen, and [`Retry`](crate::Retry) repeats
//!   attempts.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::{
    answer::{spawned, within},
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, Outcome, Owner, Released, Renewed, Token},
    one_server::OneServer,
    ports::{
        Change, Cleanup, Clock, Condition, Lock, NodeError, Operation, Record, RecordVersion, Reply, Round, Table,
        Watch,
    },
    servers::{CannotBuild, Servers, TokenSource},
    validity,
};

/// The lock in a record of a table. See [the module](self).
pub struct Dynamodb {
    table: Arc<dyn Table>,
    server: OneServer,
    clock: Arc<dyn Clock>,
    has_tokens: bool,
    seen: Mutex<BTreeMap<Key, Seen>>,
    /// The last request of each owner, until it is answered.
    last: Mutex<BTreeMap<Owner, oneshot::Receiver<()>>>,
    writes: AtomicU64,
}

/// A version of an owned record, and the time since which this process knows it.
struct Seen {
    version: RecordVersion,
    since: Duration,
}

/// Builds the lock over a table.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check("dynamodb", Dynamodb::TOKENS)?;
    Ok(Arc::new(Dynamodb::new(servers.table("dynamodb")?, tokens == TokenSource::Counter, clock)))
}

impl Dynamodb {
    /// The token sources of this lock; the first is the one to prefer.
    pub const TOKENS: &[TokenSource] = &[TokenSource::Counter, TokenSource::None];

    /// The lock in `table`. With tokens, the record of a key counts its holds.
    pub fn new(table: Arc<dyn Table>, has_tokens: bool, clock: Arc<dyn Clock>) -> Self {
        let (seen, last) = (Mutex::default(), Mutex::default());
        let server = OneServer::new(table.name());
        Self { table, server, clock, has_tokens, seen, last, writes: AtomicU64::new(0) }
    }

    /// Runs a request in a task of its own, after the earlier requests of this owner: an undo must not overtake the
    /// write that it undoes. The request goes on even if no caller waits for its answer.
    fn send<T: Send + 'static>(
        &self,
        owner: &Owner,
        request: impl Future<Output = Result<T, NodeError>> + Send + 'static,
    ) -> Reply<Result<T, NodeError>> {
        let (done, is_done) = oneshot::channel();
        let earlier = {
            let mut last = self.last.lock();
            last.retain(|_, is_done| matches!(is_done.try_recv(), Err(TryRecvError::Empty)));
            last.insert(owner.clone(), is_done)
        };
        spawned(async move {
            if let Some(earlier) = earlier {
                // An error says that the earlier request has ended.
                drop(earlier.await);
            }
            let answer = request.await;
            drop(done);
            answer
        })
    }

    /// Changes the record. Returns the counter, or none if the condition does not hold.
    fn write(
        &self,
        key: &Key,
        owner: &Owner,
        condition: Condition,
        change: Change,
    ) -> Reply<Result<Option<Token>, NodeError>> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let version = RecordVersion(format!("{owner}-{number}").into());
        let (table, key) = (self.table.clone(), key.clone());
        self.send(owner, async move { table.write(&key, condition, change, version).await })
    }

    /// Reads the answer. The timeout counts from now on.
    async fn answer<T>(&self, mut reply: Reply<Result<T, NodeError>>, lease: Duration) -> Result<T, NodeError> {
        let timeout = validity::request_timeout(lease);
        let answer = within(&*self.clock, timeout, &mut reply).await;
        answer.unwrap_or_else(|| Err(NodeError::Indeterminate("no answer in time".into())))
    }

    /// Returns the condition of a write that takes the key, or none if the key is owned and its lease may not be over.
    /// The record has just been read.
    fn takes(&self, key: &Key, record: Option<Record>) -> Option<Condition> {
        let now = self.clock.now();
        let mut seen = self.seen.lock();
        let Some(Record { lease, version }) = record else {
            seen.remove(key);
            return Some(Condition::Missing);
        };
        let Some(lease) = lease else {
            seen.remove(key);
            return Some(Condition::Version(version));
        };
        match seen.get(key) {
            Some(known) if known.version == version => {
                (now >= known.since.saturating_add(lease)).then_some(Condition::Version(version))
            }
            _ => {
                seen.insert(key.clone(), Seen { version, since: now });
                None
            }
        }
    }

    /// Makes one attempt without its undo.
    async fn attempt(&self, key: &Key, owner: &Owner, lease: Duration, watch: &dyn Watch) -> Result<Hold, Failure> {
        watch.sending(Round::Acquire);
        let table = self.table.clone();
        let reading = {
            let key = key.clone();
            self.send(owner, async move { table.read(&key).await })
        };
        // Nothing is written yet, so the attempt has certainly failed without an answer.
        let record = self.answer(reading, lease).await.map_err(|error| {
            let (NodeError::Definite(text) | NodeError::Indeterminate(text)) = error;
            self.server.unanswered(&NodeError::Definite(text))
        })?;
        let Some(condition) = self.takes(key, record) else {
            watch.answered(Round::Acquire);
            return Err(self.server.failed(FailureReason::Held, NodeAnswer::Refused));
        };

        let sent = self.clock.now();
        watch.promising();
        let change = Change::Take { owner: owner.clone(), lease, counts: self.has_tokens };
        let writing = self.write(key, owner, condition, change);
        watch.sent(Round::Acquire).await;
        let written = self.answer(writing, lease).await.map_err(|error| self.server.unanswered(&error))?;
        let Some(counter) = written else {
            watch.answered(Round::Acquire);
            return Err(self.server.failed(FailureReason::Held, NodeAnswer::Refused));
        };
        // Nothing is awaited from here on.
        watch.promised();
        watch.answered(Round::Acquire);
        let valid_until = validity::promise_end(sent, lease);
        if self.clock.now() >= valid_until {
            return Err(self.server.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        let token = self.has_tokens.then_some(counter);
        let answers = self.server.answers(NodeAnswer::Granted);
        Ok(Hold { key: key.clone(), owner: owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// Renews a hold. The record keeps the lease of the attempt, whatever lease the caller asks for: a renewal that
    /// arrives late must not shorten the lease that other clients read. Like every renewal, it revives no hold that has
    /// lapsed.
    async fn extend(&self, hold: &mut Hold, watch: &dyn Watch) -> Result<Renewed, Failure> {
        let sent = self.clock.now();
        if sent >= hold.valid_until {
            return Err(self.server.failed(FailureReason::Validity, NodeAnswer::None));
        }
        watch.sending(Round::Renew);
        let writing = self.write(&hold.key, &hold.owner, Condition::Owner(hold.owner.clone()), Change::Renew);
        watch.sent(Round::Renew).await;
        let written = self.answer(writing, hold.lease).await.map_err(|error| self.server.unanswered(&error))?;
        watch.answered(Round::Renew);
        if written.is_none() {
            return Err(self.server.failed(FailureReason::Lost, NodeAnswer::Refused));
        }
        if !hold.renewed(sent, hold.lease, self.clock.now()) {
            return Err(self.server.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        Ok(Renewed { valid_until: hold.valid_until, answers: self.server.answers(NodeAnswer::Done) })
    }

    /// Releases the key, if the hold still owns it.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        watch.sending(Round::Release);
        let writing = self.write(&hold.key, &hold.owner, Condition::Owner(hold.owner.clone()), Change::Free);
        watch.sent(Round::Release).await;
        let written = self.answer(writing, hold.lease).await.map_err(|error| self.server.unanswered(&error))?;
        watch.answered(Round::Release);
        let answer = if written.is_some() { NodeAnswer::Done } else { NodeAnswer::Refused };
        Ok(Released { removed: written.is_some(), answers: self.server.answers(answer) })
    }

    /// Releases the key that an attempt may have taken.
    async fn undo(&self, key: &Key, owner: &Owner, lease: Duration, watch: &dyn Watch) {
        watch.undoing();
        watch.sending(Round::Undo);
        let writing = self.write(key, owner, Condition::Owner(owner.clone()), Change::Free);
        watch.sent(Round::Undo).await;
        let answer = match self.answer(writing, lease).await {
            Ok(Some(_)) => NodeAnswer::Done,
            Ok(None) => NodeAnswer::Refused,
            Err(_) => NodeAnswer::None,
        };
        if answer != NodeAnswer::None {
            watch.answered(Round::Undo);
        }
        watch.undone(&self.server.answers(answer));
    }
}

impl Lock for Dynamodb {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        Box::pin(async move {
            let result = self.attempt(key, &owner, lease, watch).await;
            if let Err(failure) = &result
                && (failure.reason == FailureReason::Validity || failure.outcome == Outcome::Indeterminate)
            {
                self.undo(key, &owner, lease, watch).await;
            }
            result
        })
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, _lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(self.extend(hold, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(self.undo(key, owner, lease, watch))
    }
}
