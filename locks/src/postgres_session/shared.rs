//! The lock of one client, whose holds all share one Postgres session.
//!
//! The first attempt of a client that holds nothing opens a session, and the session ends with the client's last hold.
//! The server ends the session when it was idle for the lease, or for any other reason, and releases all its locks at
//! once.
//!
//! Only so can the server see that clients wait for each other: it knows which session waits for which other one. An
//! attempt therefore waits in the server, which looks for a cycle after `deadlock_timeout` (1 s by default) and ends
//! the statement of one session in the cycle with the error 40P01
//! (<https://www.postgresql.org/docs/15/explicit-locking.html#LOCKING-DEADLOCKS>). The session stays, with its other
//! locks. The setting `lock_timeout` ends a longer wait after one lease: the attempt is refused as held. A server that
//! was killed or cut off cannot say so, and then the client ends the wait a little later.
//!
//! # The promise
//!
//! A session that waits for a lock is not idle, but the lease of its other holds counts from the last request that was
//! answered. After a wait, the statement that takes the token is sent, and the promise of the new hold counts from it.
//! A lock that is granted at once promises from the sending of its request.
//!
//! # Leftovers
//!
//! A session that has a lock gets the lock again at once, as if it were free. So a session that may have a lock without
//! a hold takes no more attempts, and the next attempt opens a new session. Two events leave such a lock:
//!
//! - The unlock of a failed attempt or of a release fails, or gets no answer.
//! - The client gives a hold up, and relies on the promise to its end. So the client does not end this session.
//!
//! The lock goes with the session. While other holds use the session, nobody may end it for that, because their
//! promises rest on it. Their statements keep the session, and so the lock, longer than promised, never shorter.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio_postgres::{Error, NoTls, error::SqlState, types::Type};

use super::{Session, setting_ms, started};
use crate::{
    answer::within,
    connection::in_time,
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, Owner, Released, Renewed, Token},
    mode::Mode,
    one_server::OneServer,
    ports::{Cleanup, Clock, Lock, NodeError, Operation, Reply, Round, Watch},
    postgres::{BEGIN_TLS, create_schema, said},
    servers::{ServerAddress, TokenSource},
    stream, validity,
};

/// The statements of a lock that a session can have many of. Each has the key as its only parameter.
pub(crate) struct Statements {
    /// Takes the lock if no other session has it. Returns 1, or nothing.
    pub try_lock: &'static str,
    /// Waits for the lock. Returns 1.
    pub lock: &'static str,
    /// Takes the next token of a lock that the session has.
    pub count: &'static str,
    /// Returns 1 if the session has the lock.
    pub check: &'static str,
    /// Gives the lock back. Returns 1 if the session had it.
    pub unlock: &'static str,
    /// Creates the tables.
    pub create: &'static str,
    /// The server's settings that end a session after the lease.
    pub timeouts: &'static [&'static str],
}

/// The session of a client, and the attempts and holds that use it.
#[derive(Default)]
struct Current {
    /// The session that new attempts join.
    session: Option<Arc<Session>>,
    /// Each owner with its session, which may be a former one.
    users: BTreeMap<Owner, Arc<Session>>,
}

impl Current {
    /// No attempt joins this session any more.
    fn close(&mut self, session: &Arc<Session>) {
        if self.session.as_ref().is_some_and(|now| Arc::ptr_eq(now, session)) {
            self.session = None;
        }
    }
}

/// The lock of one client. See [the module](self).
pub(crate) struct Shared {
    server: ServerAddress,
    name: OneServer,
    clock: Arc<dyn Clock>,
    tokens: TokenSource,
    statements: &'static Statements,
    current: Mutex<Current>,
}

impl Session {
    /// Runs a statement with `key` as its only parameter. Returns the number in its first row, if there is one.
    async fn number_of(&self, statement: &str, key: &str) -> Result<Option<i64>, Error> {
        let rows = self.client.query_typed(statement, &[(&key, Type::TEXT)]).await;
        let rows = rows.map_err(|error| self.noted(error))?;
        rows.first().map_or(Ok(None), |row| row.try_get(0))
    }
}

/// The result of a request for a lock.
enum Answer {
    /// The session has the lock, or another session has it.
    Locked(bool),
    /// The server has found a cycle of waiting sessions.
    Deadlock,
}

/// Waits for the lock. The errors of a wait that the server has ended are answers.
async fn locked(session: &Session, statement: &str, key: &str) -> Result<Answer, Error> {
    match session.number_of(statement, key).await {
        Ok(number) => Ok(Answer::Locked(number == Some(1))),
        Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => Ok(Answer::Deadlock),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Answer::Locked(false)),
        Err(error) => Err(error),
    }
}

impl Shared {
    pub fn new(
        server: ServerAddress,
        name: OneServer,
        clock: Arc<dyn Clock>,
        tokens: TokenSource,
        statements: &'static Statements,
    ) -> Shared {
        Shared { server, name, clock, tokens, statements, current: Mutex::default() }
    }

    /// Reads the answer to a statement.
    async fn read<T>(&self, reply: Reply<Result<T, NodeError>>, lease: Duration) -> Result<T, NodeError> {
        self.read_in(validity::request_timeout(lease), reply).await
    }

    /// Reads an answer that comes within `timeout` from now on.
    async fn read_in<T>(&self, timeout: Duration, mut reply: Reply<Result<T, NodeError>>) -> Result<T, NodeError> {
        let answer = within(&*self.clock, timeout, &mut reply).await;
        let answer = answer.unwrap_or_else(|| Err(NodeError::Indeterminate("no answer in time".into())));
        answer.map_err(|error| self.server.access.hide(error))
    }

    /// Sends a statement about a key.
    fn ask(&self, session: &Arc<Session>, statement: &'static str, key: &Key) -> Reply<Result<Option<i64>, NodeError>> {
        let (session, key) = (session.clone(), key.clone());
        started(async move { session.number_of(statement, key.as_str()).await })
    }

    /// The session that attempts join, or a new one if there is none.
    async fn session(&self, owner: &Owner, lease: Duration) -> Result<Arc<Session>, String> {
        let now = self.clock.now();
        {
            let mut current = self.current.lock();
            current.users.retain(|_, session| !session.is_old(now));
            let known = current.session.clone().filter(|session| session.over().is_none());
            if let Some(session) = known {
                current.users.insert(owner.clone(), session.clone());
                return Ok(session);
            }
        }
        let opened = in_time(self.open(lease)).await;
        let session = Arc::new(opened.map_err(|why| self.server.access.without_secrets(why))?);
        let mut current = self.current.lock();
        current.session = Some(session.clone());
        current.users.insert(owner.clone(), session.clone());
        Ok(session)
    }

    /// Opens a session, and prepares it for the statements.
    async fn open(&self, lease: Duration) -> Result<Session, String> {
        let (key, opened) = ((Key::new(""), Mode::Write), self.clock.now());
        let session = Session::open(self.server.clone(), key, lease, opened, self.statements.timeouts).await?;
        let prepared = async {
            if let Some(schema) = &session.schema {
                create_schema(&session.client, schema).await?;
            }
            session.client.batch_execute(self.statements.create).await?;
            let wait = format!("SET lock_timeout = {}", setting_ms(lease));
            session.client.batch_execute(&wait).await
        };
        prepared.await.map_err(|error| said(&error))?;
        Ok(session)
    }

    /// Forgets an attempt or a hold. Returns its session, which ends when no other hold uses it.
    fn leave(&self, owner: &Owner) -> Option<Arc<Session>> {
        let mut current = self.current.lock();
        let session = current.users.remove(owner)?;
        if !current.users.values().any(|other| Arc::ptr_eq(other, &session)) {
            current.close(&session);
        }
        Some(session)
    }

    /// The session that an attempt is about to leave. If no other hold uses it, no attempt joins it any more.
    fn leaving(&self, owner: &Owner) -> Option<Arc<Session>> {
        let mut current = self.current.lock();
        let session = current.users.get(owner).cloned()?;
        if !current.users.iter().any(|(other, used)| other != owner && Arc::ptr_eq(used, &session)) {
            current.close(&session);
        }
        Some(session)
    }

    /// Makes one attempt without its undo.
    async fn attempt(&self, key: &Key, owner: &Owner, lease: Duration, watch: &dyn Watch) -> Result<Hold, Failure> {
        watch.sending(Round::Acquire);
        let session = self.session(owner, lease).await;
        let session = session.map_err(|why| self.name.unanswered(&NodeError::Definite(why)))?;
        // The session has the lease of the attempt that opened it.
        let lease = session.lease;
        watch.looking();
        let mut sent = self.clock.now();
        watch.promising();
        let trying = self.ask(&session, self.statements.try_lock, key);
        watch.sent(Round::Acquire).await;
        let is_free = self.read(trying, lease).await.map_err(|error| self.name.unanswered(&error))? == Some(1);
        if !is_free {
            watch.behind();
            let (waiting, name) = (session.clone(), key.clone());
            let statement = self.statements.lock;
            let answer = started(async move { locked(&waiting, statement, name.as_str()).await });
            // The server ends the wait after one lease. Its answer gets the usual time on top.
            let timeout = lease.saturating_add(validity::request_timeout(lease));
            let answer = self.read_in(timeout, answer).await;
            match answer.map_err(|error| self.name.unanswered(&error))? {
                Answer::Locked(true) => {}
                Answer::Locked(false) => return Err(self.name.failed(FailureReason::Held, NodeAnswer::Refused)),
                Answer::Deadlock => return Err(self.name.failed(FailureReason::Deadlock, NodeAnswer::Refused)),
            }
            // The session has just been granted the lock, so a request from now on promises the whole lease.
            sent = self.clock.now();
            watch.promising();
        }
        let statement = if self.tokens == TokenSource::None { self.statements.check } else { self.statements.count };
        let counted = self.read(self.ask(&session, statement, key), lease).await;
        let token = counted.map_err(|error| self.name.unanswered(&error))?.unwrap_or_default();
        // Nothing is awaited from here on.
        watch.promised();
        watch.answered(Round::Acquire);
        let valid_until = validity::promise_end(sent, lease);
        if self.clock.now() >= valid_until {
            return Err(self.name.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        let token = (self.tokens != TokenSource::None).then(|| Token(token.unsigned_abs()));
        let answers = self.name.answers(NodeAnswer::Granted);
        Ok(Hold { key: key.clone(), owner: owner.clone(), token, lease, sent, valid_until, answers })
    }

    async fn extend(&self, hold: &mut Hold, watch: &dyn Watch) -> Result<Renewed, Failure> {
        if self.clock.now() >= hold.valid_until {
            return Err(self.name.failed(FailureReason::Validity, NodeAnswer::None));
        }
        let session = self.current.lock().users.get(&hold.owner).cloned();
        let session = session.ok_or_else(|| self.name.failed(FailureReason::Lost, NodeAnswer::None))?;
        let sent = self.clock.now();
        watch.sending(Round::Renew);
        let asked = self.ask(&session, self.statements.check, &hold.key);
        watch.sent(Round::Renew).await;
        let is_held = match (self.read(asked, hold.lease).await, session.over()) {
            (Ok(number), _) => number == Some(1),
            (Err(_), Some(answer)) => return Err(self.name.failed(FailureReason::Lost, answer)),
            (Err(error), None) => return Err(self.name.unanswered(&error)),
        };
        watch.answered(Round::Renew);
        if !is_held {
            return Err(self.name.failed(FailureReason::Lost, NodeAnswer::Refused));
        }
        if !hold.renewed(sent, hold.lease, self.clock.now()) {
            return Err(self.name.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        Ok(Renewed { valid_until: hold.valid_until, answers: self.name.answers(NodeAnswer::Done) })
    }

    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        watch.sending(Round::Release);
        let Some(session) = self.leave(&hold.owner) else {
            return Err(self.name.failed(FailureReason::Lost, NodeAnswer::None));
        };
        let was_over = session.over();
        let asked = self.ask(&session, self.statements.unlock, &hold.key);
        watch.sent(Round::Release).await;
        let removed = match (self.read(asked, hold.lease).await, session.over()) {
            (Ok(number), _) => number == Some(1),
            (Err(_), Some(NodeAnswer::Refused)) => false,
            // The statement has certainly not left.
            (Err(_), Some(answer)) if was_over.is_some() => return Err(self.name.failed(FailureReason::Lost, answer)),
            (Err(error), _) => {
                // The session may still have the lock, and would get it again at once.
                self.current.lock().close(&session);
                return Err(self.name.unanswered(&error));
            }
        };
        watch.answered(Round::Release);
        let answer = if removed { NodeAnswer::Done } else { NodeAnswer::Refused };
        Ok(Released { removed, answers: self.name.answers(answer) })
    }

    /// Ends a statement that waits for a lock. The server closes the connection of this request after it has signalled
    /// the process of the statement. A later signal could end the next statement instead.
    async fn stop_waiting(&self, session: &Session, lease: Duration) {
        let (server, token) = (self.server.clone(), session.client.cancel_token());
        let stopping = async move {
            let mut stream = stream::connect(&server, BEGIN_TLS).await.map_err(NodeError::Indeterminate)?;
            let sent = token.cancel_query_raw(&mut stream, NoTls).await;
            // The server sends nothing. A reset is an end too.
            let _ = stream.read_to_end(&mut Vec::new()).await;
            sent.map_err(|error| NodeError::Indeterminate(said(&error)))
        };
        // If the request does not get through, neither does the next statement.
        let _ = self.read(Box::pin(stopping), lease).await;
    }

    /// Gives back the lock that the attempt of `owner` may have taken. If the unlock fails, or gets no answer, the
    /// session takes no more attempts. An undo that is broken off can be repeated: the session knows the attempt until
    /// then.
    async fn undo(&self, key: &Key, owner: &Owner, lease: Duration, watch: &dyn Watch) {
        let Some(session) = self.leaving(owner) else { return };
        watch.undoing();
        watch.sending(Round::Undo);
        self.stop_waiting(&session, lease).await;
        let asked = self.ask(&session, self.statements.unlock, key);
        watch.sent(Round::Undo).await;
        let answer = match self.read(asked, lease).await {
            Ok(Some(1)) => NodeAnswer::Done,
            Ok(_) => NodeAnswer::Refused,
            Err(_) => {
                self.current.lock().close(&session);
                session.over().unwrap_or(NodeAnswer::None)
            }
        };
        drop(self.leave(owner));
        if answer != NodeAnswer::None {
            watch.answered(Round::Undo);
        }
        watch.undone(&self.name.answers(answer));
    }
}

impl Lock for Shared {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        Box::pin(async move {
            let result = self.attempt(key, &owner, lease, watch).await;
            match &result {
                Ok(_) => {}
                // The server has said that the session has no lock of this attempt.
                Err(failure) if matches!(failure.reason, FailureReason::Held | FailureReason::Deadlock) => {
                    drop(self.leave(&owner));
                }
                Err(_) => self.undo(key, &owner, lease, watch).await,
            }
            result
        })
    }

    /// The server keeps an attempt waiting for one lease at most, but a client may give up earlier.
    fn waits(&self) -> bool {
        true
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, _lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(self.extend(hold, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    /// The hold stays a user of its session, so that the client does not end the session with the other holds.
    fn gave_up(&self, hold: &Hold) {
        let mut current = self.current.lock();
        if let Some(session) = current.users.get(&hold.owner).cloned() {
            current.close(&session);
        }
    }

    fn cancel<'a>(&'a self, key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(self.undo(key, owner, lease, watch))
    }
}

#[cfg(test)]
mod tests;
