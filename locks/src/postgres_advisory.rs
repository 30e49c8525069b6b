//! The lock of a Postgres session: a session-level advisory lock.
//!
//! Each attempt opens a session of its own and asks for the advisory lock of the key (`pg_try_advisory_lock`,
//! <https://www.postgresql.org/docs/15/explicit-locking.html#ADVISORY-LOCKS>). The server keeps the lock until the
//! session unlocks it or ends. So a hold is lost with its session, for whatever reason the session ends.
//!
//! # The promise
//!
//! The session has `idle_session_timeout` set to the lease: the server ends a session that has sent no statement for
//! that long, and releases its locks. The time starts when a statement has ended, which is not before the statement was
//! sent. So a hold is promised for the lease from the sending of the last statement that was answered: the statement
//! that took the lock, or a renewal.
//!
//! Without this setting, a session whose client is frozen or cut off would keep the lock until the server's kernel
//! gives the connection up: after more than two hours, by the default keepalives of Linux.
//!
//! # The token
//!
//! The statement that takes the lock also takes the next value of a sequence. The session has the lock at that time,
//! and the next holder takes its value later. So tokens grow. A sequence never goes back in a crash: the server logs
//! ahead how far the sequence may count.
//!
//! # Errors
//!
//! An attempt has certainly failed if its statement never left, or if the server answered the statement with an
//! `ERROR`. If the connection breaks, the session may live on at the server, with the lock, until its timeout.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_postgres::{Client, Error, NoTls, error::SqlState, types::Type};

use crate::{
    answer::within,
    hold::{Failure, FailureReason, Hold, Key, NodeAnswer, NodeAnswers, Outcome, Owner, Released, Renewed, Token},
    ports::{Cleanup, Clock, Lock, NodeError, Operation, Reply, Round, Watch},
    postgres::{self, PostgresProtocol, failure, said, settings},
    servers::{CannotBuild, Connected, ServerAddress, Servers, TokenSource, ask_versions},
    stream,
    validity::{self, whole_ms},
};

/// $1: key. Takes the lock and then the token, or neither. The branches of CASE are evaluated in this order.
const LOCK: &str = "SELECT CASE WHEN pg_try_advisory_lock(hashtextextended($1, 0)) THEN nextval('harness_token') END";

/// $1: key. Takes the lock only.
const LOCK_UNCOUNTED: &str = "SELECT CASE WHEN pg_try_advisory_lock(hashtextextended($1, 0)) THEN 0::bigint END";

/// $1: key. Returns 1 if the session has the lock.
const CHECK: &str = "\
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
    AND (classid::bigint << 32) | objid::bigint = hashtextextended($1, 0)";

/// $1: key. Returns 1 if the session had the lock.
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))::int::bigint";

/// Creates the sequence. Two clients that create it at once would collide in the server's catalogue.
const CREATE: &str = "\
BEGIN;
SELECT pg_advisory_xact_lock(hashtextextended('harness_token', 0));
CREATE SEQUENCE IF NOT EXISTS harness_token;
COMMIT";

/// The time for which the client remembers a session that it neither released nor cancelled.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The lock of a Postgres session. See [the module](self).
pub struct PostgresAdvisory {
    server: ServerAddress,
    clock: Arc<dyn Clock>,
    has_tokens: bool,
    sessions: Mutex<BTreeMap<Owner, Arc<Session>>>,
}

/// Prepares the lock, and asks the server for its version. The sessions connect when they are needed.
pub(crate) fn connect(
    _client: &'static str,
    servers: Vec<ServerAddress>,
    _process: usize,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let versions = ask_versions(&servers, crate::connection::server_version::<PostgresProtocol>).await;
        Ok(Connected { servers: Servers::Addresses(servers), versions })
    })
}

/// Builds the lock on one server.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    tokens.check("postgres-advisory", PostgresAdvisory::TOKENS)?;
    let Servers::Addresses(servers) = servers else {
        return Err(CannotBuild::Servers { lock: "postgres-advisory", needs: "the address of one server" });
    };
    let [server] = <[_; 1]>::try_from(servers)
        .map_err(|_| CannotBuild::Servers { lock: "postgres-advisory", needs: "the address of one server" })?;
    Ok(Arc::new(PostgresAdvisory::new(server, tokens == TokenSource::Counter, clock)))
}

/// A session at the server, which holds at most one advisory lock.
struct Session {
    client: Client,
    key: Key,
    /// The session is certainly over then, unless the server cannot run.
    opened: Duration,
    /// True as soon as the server has ended the session, so that the session's lock is free.
    is_ended: watch::Receiver<bool>,
}

/// The answer of a statement: a number, or none for NULL.
type Answer = Result<Option<i64>, NodeError>;

impl Session {
    /// Opens a session that the server ends when it was idle for `lease`.
    async fn open(server: ServerAddress, key: Key, lease: Duration, opened: Duration) -> Result<Session, String> {
        let stream = stream::connect(&server, postgres::BEGIN_TLS).await?;
        // The setting is a number of 31 bits.
        let lease_ms = whole_ms(lease).min(i32::MAX as u64);
        let settings = settings(&server.access, &format!("-c idle_session_timeout={lease_ms}"));
        let (client, connection) = settings.connect_raw(stream, NoTls).await.map_err(|error| said(&error))?;
        let (end, is_ended) = watch::channel(false);
        tokio::spawn(async move {
            let ended = connection.await;
            // The server says why it ends a session. A connection that breaks says nothing.
            end.send_replace(ended.is_err_and(|error| error.as_db_error().is_some()));
        });
        Ok(Session { client, key, opened, is_ended })
    }

    /// Runs a statement about the key, in a task of its own: the statement leaves now, and continues even if no caller
    /// waits for its answer.
    fn ask(self: &Arc<Self>, statement: &'static str) -> Reply<Answer> {
        let session = self.clone();
        spawned(async move {
            let answer = match session.number(statement).await {
                // The server has not started the statement, so nothing is locked.
                Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                    session.client.batch_execute(CREATE).await.map_err(|error| failure(&error))?;
                    session.number(statement).await
                }
                other => other,
            };
            answer.map_err(|error| failure(&error))
        })
    }

    async fn number(&self, statement: &str) -> Result<Option<i64>, Error> {
        let rows = self.client.query_typed(statement, &[(&self.key.as_str(), Type::TEXT)]).await?;
        rows.first().map_or(Ok(None), |row| row.try_get(0))
    }
}

/// Runs a request in a task of its own.
fn spawned<T: Send + 'static>(
    request: impl Future<Output = Result<T, NodeError>> + Send + 'static,
) -> Reply<Result<T, NodeError>> {
    let asked = tokio::spawn(request);
    Box::pin(async move {
        asked.await.unwrap_or_else(|ended| Err(NodeError::Indeterminate(format!("the request's task: {ended}"))))
    })
}

impl PostgresAdvisory {
    /// The token sources of this lock; the first is the one to prefer.
    pub const TOKENS: &[TokenSource] = postgres::TOKENS;

    /// The lock on `server`. With tokens, a sequence of the server counts the holds.
    pub fn new(server: ServerAddress, has_tokens: bool, clock: Arc<dyn Clock>) -> Self {
        Self { server, clock, has_tokens, sessions: Mutex::default() }
    }

    /// Reads the answer. The timeout counts from now on.
    async fn read<T>(&self, mut reply: Reply<Result<T, NodeError>>, lease: Duration) -> Result<T, NodeError> {
        let timeout = (lease / 4).clamp(Duration::from_millis(50), Duration::from_secs(2));
        let answer = within(&*self.clock, timeout, &mut reply).await;
        answer.unwrap_or_else(|| Err(NodeError::Indeterminate("no answer in time".into())))
    }

    /// Makes one attempt without its undo.
    async fn attempt(&self, key: &Key, owner: &Owner, lease: Duration, watch: &dyn Watch) -> Result<Hold, Failure> {
        self.forget_old();
        let opened = self.clock.now();
        watch.sending(Round::Acquire);
        let opening = Session::open(self.server.clone(), key.clone(), lease, opened);
        // No statement has left yet, so the attempt has certainly failed without a session.
        let opening = spawned(async move { opening.await.map_err(NodeError::Definite) });
        watch.sent(Round::Acquire).await;
        let session = match self.read(opening, lease).await {
            Ok(session) => Arc::new(session),
            Err(error) => return Err(self.unanswered(&NodeError::Definite(error.to_string()))),
        };
        self.sessions.lock().insert(owner.clone(), session.clone());

        let sent = self.clock.now();
        watch.promising();
        let asked = session.ask(if self.has_tokens { LOCK } else { LOCK_UNCOUNTED });
        let granted = self.read(asked, lease).await.map_err(|error| self.unanswered(&error))?;
        let Some(token) = granted else {
            watch.answered(Round::Acquire);
            return Err(self.failed(FailureReason::Held, NodeAnswer::Refused));
        };
        // Nothing is awaited from here on.
        watch.promised();
        watch.answered(Round::Acquire);
        let valid_until = validity::promise_end(sent, lease);
        if self.clock.now() >= valid_until {
            return Err(self.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        let token = self.has_tokens.then(|| Token(token.unsigned_abs()));
        let answers = self.answers(NodeAnswer::Granted);
        Ok(Hold { key: key.clone(), owner: owner.clone(), token, lease, sent, valid_until, answers })
    }

    /// Renews a hold by a statement, which also checks that the session has the lock. The session's timeout stays that
    /// of the attempt, whatever lease the caller asks for. Like every renewal, it revives no hold that has lapsed, and
    /// shortens none.
    async fn extend(&self, hold: &mut Hold, watch: &dyn Watch) -> Result<Renewed, Failure> {
        if self.clock.now() >= hold.valid_until {
            return Err(self.failed(FailureReason::Validity, NodeAnswer::None));
        }
        let Some(session) = self.session(&hold.owner) else {
            return Err(self.failed(FailureReason::Lost, NodeAnswer::None));
        };
        let sent = self.clock.now();
        watch.sending(Round::Renew);
        let asked = session.ask(CHECK);
        watch.sent(Round::Renew).await;
        let result = self.read(asked, hold.lease).await;
        let is_held = match result {
            Ok(found) => found == Some(1),
            Err(_) if *session.is_ended.borrow() => false,
            Err(error) => return Err(self.unanswered(&error)),
        };
        watch.answered(Round::Renew);
        if !is_held {
            return Err(self.failed(FailureReason::Lost, NodeAnswer::Refused));
        }
        let valid_until = validity::promise_end(sent, hold.lease);
        if self.clock.now() >= valid_until.min(hold.valid_until) {
            return Err(self.failed(FailureReason::Validity, NodeAnswer::Late));
        }
        if valid_until > hold.valid_until {
            (hold.sent, hold.valid_until) = (sent, valid_until);
        }
        Ok(Renewed { valid_until: hold.valid_until, answers: self.answers(NodeAnswer::Done) })
    }

    /// Unlocks, and closes the session, which releases the lock too if the answer is lost.
    async fn remove(&self, hold: &Hold, watch: &dyn Watch) -> Result<Released, Failure> {
        let Some(session) = self.sessions.lock().remove(&hold.owner) else {
            return Err(self.failed(FailureReason::Lost, NodeAnswer::None));
        };
        watch.sending(Round::Release);
        let asked = session.ask(UNLOCK);
        watch.sent(Round::Release).await;
        let removed = match self.read(asked, hold.lease).await {
            Ok(found) => found == Some(1),
            Err(_) if *session.is_ended.borrow() => false,
            Err(error) => return Err(self.unanswered(&error)),
        };
        watch.answered(Round::Release);
        let answer = if removed { NodeAnswer::Done } else { NodeAnswer::Refused };
        Ok(Released { removed, answers: self.answers(answer) })
    }

    /// Unlocks what the attempt of `owner` may have locked, and closes its session.
    async fn undo(&self, owner: &Owner, lease: Duration, watch: &dyn Watch) {
        let Some(session) = self.sessions.lock().remove(owner) else { return };
        watch.undoing();
        watch.sending(Round::Undo);
        let asked = session.ask(UNLOCK);
        watch.sent(Round::Undo).await;
        let answer = match self.read(asked, lease).await {
            Ok(Some(1)) => NodeAnswer::Done,
            Ok(_) => NodeAnswer::Refused,
            Err(_) if *session.is_ended.borrow() => NodeAnswer::Refused,
            Err(_) => NodeAnswer::None,
        };
        if answer != NodeAnswer::None {
            watch.answered(Round::Undo);
        }
        watch.undone(&self.answers(answer));
    }

    fn session(&self, owner: &Owner) -> Option<Arc<Session>> {
        self.sessions.lock().get(owner).cloned()
    }

    /// Forgets sessions that ended long ago. Their clients may have been frozen, and may have wanted to release.
    fn forget_old(&self) {
        let now = self.clock.now();
        let is_kept =
            |session: &Session| !session.client.is_closed() || now < session.opened.saturating_add(FORGOTTEN_AFTER);
        self.sessions.lock().retain(|_, session| is_kept(session));
    }

    fn answers(&self, answer: NodeAnswer) -> NodeAnswers {
        vec![(self.server.name.as_str().into(), answer)]
    }

    /// A definite failure.
    fn failed(&self, reason: FailureReason, answer: NodeAnswer) -> Failure {
        Failure { reason, outcome: Outcome::Failed, answers: self.answers(answer) }
    }

    /// The failure of a statement without an answer.
    fn unanswered(&self, error: &NodeError) -> Failure {
        let outcome = match error {
            NodeError::Definite(_) => Outcome::Failed,
            NodeError::Indeterminate(_) => Outcome::Indeterminate,
        };
        let reason = FailureReason::Error(format!("{}: {error}", self.server.name));
        Failure { reason, outcome, answers: self.answers(NodeAnswer::None) }
    }
}

impl Lock for PostgresAdvisory {
    fn acquire<'a>(&'a self, key: &'a Key, owner: Owner, lease: Duration, watch: &'a dyn Watch) -> Operation<'a, Hold> {
        Box::pin(async move {
            let result = self.attempt(key, &owner, lease, watch).await;
            match &result {
                Ok(_) => {}
                // The server has not locked anything, so the end of the session is enough.
                Err(failure) if failure.reason != FailureReason::Validity && failure.outcome == Outcome::Failed => {
                    self.sessions.lock().remove(&owner);
                }
                Err(_) => self.undo(&owner, lease, watch).await,
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

    /// Undoes the attempt if its session is known. An attempt that is still opening its session drops the session.
    fn cancel<'a>(&'a self, _key: &'a Key, owner: &'a Owner, lease: Duration, watch: &'a dyn Watch) -> Cleanup<'a> {
        Box::pin(self.undo(owner, lease, watch))
    }
}
