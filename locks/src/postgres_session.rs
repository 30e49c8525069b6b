//! The lock of a Postgres session, whatever the session locks: an advisory lock, or a row.
//!
//! Each attempt opens a session of its own. The server keeps the lock until the session gives it back or ends. So a
//! hold is lost with its session, for whatever reason the session ends.
//!
//! # The promise
//!
//! The session has a timeout of the length of the lease: the server ends a session that has sent no statement for that
//! long, and releases its locks. The time starts when a statement has ended, which is not
//! before the statement was sent. So a hold is promised for the lease from the sending of the last request that was
//! answered: the request that took the lock, or a renewal.
//!
//! Without the timeout, a session whose client is frozen or cut off would keep the lock until the server's kernel gives
//! the connection up: after more than two hours, by the default keepalives of Linux.
//!
//! # Errors
//!
//! - Without a session, the attempt has certainly failed: nothing but the request for the lock locks anything.
//! - After an `ERROR`, the attempt has certainly failed too. The end of its session releases the lock that the session
//!   may have taken before the error.
//! - After a `FATAL` error, the session has ended, and its locks are free.
//! - A session whose connection is closed cannot be used again. The hold is lost for its client, also if the server has
//!   not noticed yet, and keeps the lock until the timeout.
//! - A statement without an answer may have been done.

pub(crate) mod shared;

use std::{
    collections::BTreeMap,
    future::{Future, ready},
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::{
    Client, Error, NoTls, SimpleQueryMessage,
    error::{Severity, SqlState},
    types::Type,
};

use crate::{
    answer::within,
    capability::Capability,
    connection::{in_time, server_version},
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, Outcome, Owner, Released, Renewed, Token},
    mode::Mode,
    one_server::OneServer,
    ports::{Cleanup, Clock, Lock, NodeError, Operation, Reply, Round, Watch},
    postgres::{BEGIN_TLS, PostgresProtocol, create_schema, failure, said, settings},
    servers::{CannotBuild, Connected, Connecting, ServerAddress, Servers, TokenSource, ask_versions},
    stream,
    validity::{self, whole_ms},
};

/// The time for which the client remembers a session that it neither released nor cancelled.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The statements of one kind of lock.
pub(crate) trait SessionLock: Sized + Send + Sync + 'static {
    /// The name of the client.
    const NAME: &'static str;
    /// The token sources; the first is the one to prefer.
    const TOKENS: &'static [TokenSource];
    /// The server's settings that end a session after the lease.
    const TIMEOUTS: &'static [&'static str];
    /// Creates the tables. Two clients that create a table at once would collide in the server's catalogue.
    const CREATE: &'static str;

    /// The capabilities of the client. A lock with readers has the mode of a reader, besides that of a writer.
    const CAPABILITIES: &'static [Capability] = &[Capability::Reentrant];

    /// The lock of one client whose holds share one session; none if a session can have one lock only.
    fn shared(_: ServerAddress, _: OneServer, _: Arc<dyn Clock>, _: TokenSource) -> Option<Arc<dyn Lock>> {
        None
    }

    /// Takes the lock and then the token, or neither. Returns none if another session has the lock. The number means
    /// nothing without tokens.
    fn take(session: &Session, tokens: TokenSource) -> impl Future<Output = Result<Option<i64>, Error>> + Send;

    /// Returns whether the session has the lock.
    fn is_held(session: &Session) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Gives the lock back, in one request. Returns whether the session had the lock.
    fn give_back(session: &Session) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// Prepares the lock, and asks the server for its version. The sessions connect when they are needed.
pub(crate) fn connect(
    _client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let versions = ask_versions(&servers, connecting, server_version::<PostgresProtocol>).await;
        Ok(Connected { servers: Servers::Addresses(servers), versions })
    })
}

/// Builds the lock on one server.
pub(crate) fn build<L: SessionLock>(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check(L::NAME, L::TOKENS)?;
    let addresses = if let Servers::Addresses(addresses) = servers { addresses } else { Vec::new() };
    let [server] = <[_; 1]>::try_from(addresses)
        .map_err(|_| CannotBuild::Servers { lock: L::NAME, needs: "the address of one server" })?;
    let name = OneServer::new(&server.name);
    Ok(Arc::new(OfSession::<L> { server, name, clock, tokens, sessions: Mutex::default(), lock: PhantomData }))
}

/// A session at the server, which holds at most one lock.
pub(crate) struct Session {
    client: Client,
    key: Key,
    /// The mode of the lock that the session asks for.
    pub mode: Mode,
    /// The schema of the run's tables, if it has its own.
    schema: Option<String>,
    /// The session is certainly over some time after that, unless the server cannot run.
    opened: Duration,
    /// The server ends the session when it was idle for that long.
    lease: Duration,
    /// True as soon as the server has said that it ends the session, so that the session's lock is free.
    is_ended: Arc<AtomicBool>,
}

impl Session {
    /// Opens a session that the server ends when it was idle for `lease`.
    async fn open(
        server: ServerAddress,
        (key, mode): (Key, Mode),
        lease: Duration,
        opened: Duration,
        timeouts: &[&str],
    ) -> Result<Session, String> {
        let stream = stream::connect(&server, BEGIN_TLS).await?;
        let lease_ms = setting_ms(lease);
        let options: Vec<String> = timeouts.iter().map(|timeout| format!("-c {timeout}={lease_ms}")).collect();
        let settings = settings(&server.access, &options.join(" "));
        let logging_in = async { settings.connect_raw(stream, NoTls).await.map_err(|error| said(&error)) };
        let (client, connection) = in_time(logging_in).await?;
        let is_ended = Arc::new(AtomicBool::new(false));
        let ends = is_ended.clone();
        tokio::spawn(async move {
            // The server says why it ends an idle session. A connection that breaks says nothing.
            if connection.await.is_err_and(|error| error.as_db_error().is_some()) {
                ends.store(true, Ordering::SeqCst);
            }
        });
        Ok(Session { client, key, mode, schema: server.access.schema, opened, lease, is_ended })
    }

    /// Runs a statement with the key as its only parameter. Returns the number in its first row, if there is one.
    pub async fn number(&self, statement: &str) -> Result<Option<i64>, Error> {
        let rows = self.client.query_typed(statement, &[(&self.key.as_str(), Type::TEXT)]).await;
        let rows = rows.map_err(|error| self.noted(error))?;
        rows.first().map_or(Ok(None), |row| row.try_get(0))
    }

    /// Runs statements without parameters, in one request. Returns the number in the first row, if there is one.
    pub async fn run(&self, statements: &str) -> Result<Option<i64>, Error> {
        let messages = self.client.simple_query(statements).await.map_err(|error| self.noted(error))?;
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(row.and_then(|number| number.parse().ok()))
    }

    /// Notes that the server has answered a statement with the end of the session.
    fn noted(&self, error: Error) -> Error {
        let severity = error.as_db_error().and_then(|error| error.parsed_severity());
        if matches!(severity, Some(Severity::Fatal | Severity::Panic)) {
            self.is_ended.store(true, Ordering::SeqCst);
        }
        error
    }

    /// Returns the server's answer if this client cannot use the session again: `Refused` if the server has ended the
    /// session, `None` if the connection is closed without a word.
    fn over(&self) -> Option<NodeAnswer> {
        match self.is_ended.load(Ordering::SeqCst) {
            true => Some(NodeAnswer::Refused),
            false => self.client.is_closed().then_some(NodeAnswer::None),
        }
    }

    /// Returns whether the session ended long ago. Until then its client, which may have been frozen, may want to
    /// release.
    fn is_old(&self, now: Duration) -> bool {
        self.over().is_some() && now >= self.opened.saturating_add(FORGOTTEN_AFTER)
    }
}

/// The lease as a setting of the server. The settings are numbers of 31 bits.
fn setting_ms(lease: Duration) -> u64 {
    whole_ms(lease).min(i32::MAX as u64)
}

/// Sends the first statement of a request now. Dropping the reply takes no statement back, and sends no other one.
fn started<T: Send + 'static>(
    request: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Reply<Result<T, NodeError>> {
    let mut request = Box::pin(async move { request.await.map_err(|error| failure(&error)) });
    // The library queues a statement in the first poll, and another task sends it.
    match request.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Box::pin(ready(answer)),
        Poll::Pending => request,
    }
}

/// The lock of a session. See [the module](self).
struct OfSession<L> {
    server: ServerAddress,
    name: OneServer,
    clock: Arc<dyn Clock>,
    tokens: TokenSource,
    sessions: Mutex<BTreeMap<Owner, Arc<Session>>>,
    lock: PhantomData<L>,
}

impl<L: SessionLock> OfSession<L> {
    /// Reads the answer; none if it does not come. The timeout counts from now on.
    async fn wait<F: Future + Unpin>(&self, mut reply: F, lease: Duration) -> Option<F::Output> {
        let timeout = validity::request_timeout(lease);
        within(&*self.clock, timeout, &mut reply).await
    }

    /// Reads the answer to a statement.
    async fn read<T>(&self, reply: Reply<Result<T, NodeError>>, lease: Duration) -> Result<T, NodeError> {
        let answer = self.wait(reply, lease).await;
        let answer = answer.unwrap_or_else(|| Err(NodeError::Indeterminate("no answer in time".into())));
        answer.map_err(|error| self.server.access.hide(error))
    }

    /// Opens the session of an attempt. A session that does not open in time is given up.
    async fn open(&self, key: (Key, Mode), lease: Duration, watch: &dyn Watch) -> Result<Session, String> {
        let opened = self.clock.now();
        watch.sending(Round::Acquire);
        // The task is aborted when the set is dropped.
        let mut opening = JoinSet::new();
        opening.spawn(Session::open(self.server.clone(), key, lease, opened, L::TIMEOUTS));
        watch.sent(Round::Acquire).await;
        match self.wait(Box::pin(opening.join_next()), lease).await.flatten() {
            Some(Ok(opened)) => opened.map_err(|why| self.server.access.without_secrets(why)),
            Some(Err(ended)) => Err(format!("the task that opens a session: {ended}")),
            None => Err("no session in time".to_owned()),
        }
    }

    /// Makes one attempt without its undo.
    async fn attempt(
        &self,
        (key, mode): (&Key, Mode),
        owner: &Owner,
        lease: Duration,
        watch: &dyn Watch,
    ) -> Result<Hold, Failure> {
        self.forget_old();
        // No request for the lock has left yet, so the attempt has certainly failed without a session.
        let opened = self.open((key.clone(), mode), lease, watch).await;
        let session = opened.map_err(|why| self.name.unanswered(&NodeError::Definite(why)))?;
        let session = Arc::new(session);
        self.sessions.lock().insert(owner.clone(), session.clone());

        let sent = self.clock.now();
        watch.promising();
        let tokens = self.tokens;
        let taken = started(async move {
            match L::take(&session, tokens).await {
                // The server has not started the statement, so nothing is locked.
                Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                    if let Some(schema) = &session.schema {
                        create_schema(&session.client, schema).await?;
                    }
                    session.client.batch_execute(L::CREATE).await?;
                    L::take(&session, tokens).await
                }
                taken => taken,
            }
        });
        let Some(token) = self.read(taken, lease).await.map_err(|error| self.name.unanswered(&error))? else {
            watch.answered(Round::Acquire);
            return Err(self.name.failed(FailureReason::Held, NodeAnswer::Refused));
        };
        // Nothing is awaited from here on.
        watch.promised();
        watch.answered(Round::Acquire);
        let valid_until = validity::promise_end(sent, lease);
        if self.clock.now() >= valid_until {
            return Err(self.name.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        let token = (tokens != TokenSource::None).then(|| Token(token.unsigned_abs()));
        let answers = self.name.answers(NodeAnswer::Granted);
        Ok(Hold { key: key.clone(), owner: owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// Renews a hold by a statement, which also checks that the session has the lock. The session's timeout stays that
    /// of the attempt, whatever lease the caller asks for. Like every renewal, it revives no hold that has lapsed, and
    /// shortens none.
    async fn extend(&self, hold: &mut Hold, watch: &dyn Watch) -> Result<Renewed, Failure> {
        if self.clock.now() >= hold.valid_until {
            return Err(self.name.failed(FailureReason::Validity, NodeAnswer::None));
        }
        let Some(session) = self.session(&hold.owner) else {
            return Err(self.name.failed(FailureReason::Lost, NodeAnswer::None));
        };
        let sent = self.clock.now();
        watch.sending(Round::Renew);
        let asked = session.clone();
        let asked = started(async move { L::is_held(&asked).await });
        watch.sent(Round::Renew).await;
        let is_held = match (self.read(asked, hold.lease).await, session.over()) {
            (Ok(is_held), _) => is_held,
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

    /// Gives the lock back, and closes the session, which releases the lock too if the answer is lost.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        watch.sending(Round::Release);
        let Some(session) = self.sessions.lock().remove(&hold.owner) else {
            return Err(self.name.failed(FailureReason::Lost, NodeAnswer::None));
        };
        let was_over = session.over();
        let asked = session.clone();
        let asked = started(async move { L::give_back(&asked).await });
        watch.sent(Round::Release).await;
        let removed = match (self.read(asked, hold.lease).await, session.over()) {
            (Ok(removed), _) => removed,
            (Err(_), Some(NodeAnswer::Refused)) => false,
            // The statement has certainly not left.
            (Err(_), Some(answer)) if was_over.is_some() => return Err(self.name.failed(FailureReason::Lost, answer)),
            (Err(error), _) => return Err(self.name.unanswered(&error)),
        };
        watch.answered(Round::Release);
        let answer = if removed { NodeAnswer::Done } else { NodeAnswer::Refused };
        Ok(Released { removed, answers: self.name.answers(answer) })
    }

    /// Gives back the lock that the attempt of `owner` may have taken, and closes its session.
    async fn undo(&self, owner: &Owner, lease: Duration, watch: &dyn Watch) {
        let Some(session) = self.sessions.lock().remove(owner) else { return };
        watch.undoing();
        watch.sending(Round::Undo);
        let asked = session.clone();
        let asked = started(async move { L::give_back(&asked).await });
        watch.sent(Round::Undo).await;
        let answer = match self.read(asked, lease).await {
            Ok(true) => NodeAnswer::Done,
            Ok(false) => NodeAnswer::Refused,
            Err(_) => session.over().unwrap_or(NodeAnswer::None),
        };
        if answer != NodeAnswer::None {
            watch.answered(Round::Undo);
        }
        watch.undone(&self.name.answers(answer));
    }

    fn session(&self, owner: &Owner) -> Option<Arc<Session>> {
        self.sessions.lock().get(owner).cloned()
    }

    /// Forgets sessions that ended long ago.
    fn forget_old(&self) {
        let now = self.clock.now();
        self.sessions.lock().retain(|_, session| !session.is_old(now));
    }
}

impl<L: SessionLock> Lock for OfSession<L> {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        self.acquire_in(Mode::Write, key, owner, lease, watch)
    }

    fn acquire_in<'a>(
        &'a self,
        mode: Mode,
        key: &'a Key,
        owner: Owner,
        lease: Duration,
        watch: &'a dyn Watch,
    ) -> Operation<'a, Hold> {
        let is_known = mode == Mode::Write || mode == Mode::Read && L::CAPABILITIES.contains(&Capability::ReadWrite);
        if !is_known {
            return Box::pin(ready(Err(Failure::no_such_mode(mode))));
        }
        Box::pin(async move {
            let result = self.attempt((key, mode), &owner, lease, watch).await;
            match &result {
                Ok(_) => {}
                // The end of the session is enough: no answer said that the session has the lock.
                Err(failure) if failure.reason != FailureReason::Validity && failure.outcome == Outcome::Failed => {
                    self.sessions.lock().remove(&owner);
                }
                Err(_) => self.undo(&owner, lease, watch).await,
            }
            result
        })
    }

    fn session(&self) -> Option<Arc<dyn Lock>> {
        L::shared(self.server.clone(), self.name.clone(), self.clock.clone(), self.tokens)
    }

    fn renew<'a>(&'a self, hold: &'a mut Hold, _lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Renewed> {
        Box::pin(self.extend(hold, watch))
    }

    fn release<'a>(&'a self, hold: &'a Hold, watch: &'a dyn Watch) -> Operation<'a, Released> {
        Box::pin(self.remove(hold, watch))
    }

    /// Undoes the attempt if its session is known. An attempt that is still opening its session drops the session.
    fn cancel<'a>(&'a self, _key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(self.undo(owner, lease, watch))
    }
}

#[cfg(test)]
pub(crate) mod doubles;
#[cfg(test)]
mod tests;
