//! The lock in a row of a Postgres table: [`Redlock`](crate::Redlock) on one node, of which that node is the majority.
//!
//! Each key has one row, with its owner, its expiry by the server's wall clock, and its counter. Each step is one
//! conditional statement, which Postgres runs as a transaction of its own. A statement that finds its row locked waits
//! for the other transaction, and then checks its condition against the new version of the row
//! (<https://www.postgresql.org/docs/15/transaction-iso.html#XACT-READ-COMMITTED>). So two statements never both find
//! the key free.
//!
//! The expiry is computed from `clock_timestamp()`, the time of the computation. `now()` would be the start of the
//! transaction, which may have waited for the row since then.
//!
//! The token is the row's counter. A release empties the row and keeps its counter, and so does an expiry. So tokens
//! grow as long as the server keeps its data. With `synchronous_commit` and `fsync`, which are on by default, the
//! server answers after the change is on the disk.
//!
//! # Errors
//!
//! An `ERROR` of the server aborts its transaction, so the failure is definite. After a `FATAL` error, and after the
//! loss of the connection, the statement may have been committed.

use std::sync::Arc;

use futures::try_join;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement, error::Severity};

use crate::{
    access::{Access, Secret},
    connection::{self, Answer, Driver, Protocol, driven},
    hold::Token,
    ports::{Clock, Lock, Node, NodeError, Step, StepAnswer},
    redlock,
    servers::{CannotBuild, ServerAddress, Servers, TokenSource},
    stream::{self, Stream},
    validity::whole_ms,
};

/// The user and the database of clients that name none.
const USER: &str = "postgres";
/// The request for TLS: its length, and the number 80877103
/// (<https://www.postgresql.org/docs/15/protocol-message-formats.html>, SSLRequest).
pub(crate) const BEGIN_TLS: &[u8] = &[0, 0, 0, 8, 4, 210, 22, 47];

/// Creates the table. Two clients that create it at once would collide in the server's catalogue, so each holds an
/// advisory lock meanwhile.
pub const CREATE: &str = "\
BEGIN;
SELECT pg_advisory_xact_lock(hashtextextended('harness_lock', 0));
CREATE TABLE IF NOT EXISTS harness_lock
    (key text PRIMARY KEY, owner text, expires timestamptz, counter bigint NOT NULL);
COMMIT";

/// $1: key. $2: owner. $3: lease in ms. Returns the counter, if the key was free.
pub const ACQUIRE: &str = "\
INSERT INTO harness_lock AS lock (key, owner, expires, counter)
VALUES ($1, $2, clock_timestamp() + $3::bigint * interval '1 millisecond', 1)
ON CONFLICT (key) DO UPDATE
SET owner = $2, expires = clock_timestamp() + $3::bigint * interval '1 millisecond', counter = lock.counter + 1
WHERE lock.owner IS NULL OR lock.expires < clock_timestamp()
RETURNING counter";

/// $1: key. $2: owner. $3: lease in ms. Counts nothing.
const ACQUIRE_UNCOUNTED: &str = "\
INSERT INTO harness_lock AS lock (key, owner, expires, counter)
VALUES ($1, $2, clock_timestamp() + $3::bigint * interval '1 millisecond', 0)
ON CONFLICT (key) DO UPDATE
SET owner = $2, expires = clock_timestamp() + $3::bigint * interval '1 millisecond'
WHERE lock.owner IS NULL OR lock.expires < clock_timestamp()
RETURNING counter";

/// $1: key. $2: owner. $3: lease in ms.
const EXTEND: &str = "\
UPDATE harness_lock
SET expires = greatest(expires, clock_timestamp() + $3::bigint * interval '1 millisecond')
WHERE key = $1 AND owner = $2 AND expires >= clock_timestamp()
RETURNING counter";

/// $1: key. $2: owner. The row stays, with its counter.
pub const RELEASE: &str = "\
UPDATE harness_lock
SET owner = NULL, expires = NULL
WHERE key = $1 AND owner = $2 AND expires >= clock_timestamp()
RETURNING counter";

/// $1: key. $2: owner. $3: token.
const RAISE_FENCE: &str = "\
UPDATE harness_lock
SET counter = $3
WHERE key = $1 AND owner = $2 AND expires >= clock_timestamp() AND counter <= $3
RETURNING counter";

/// The token sources of this lock; the first is the one to prefer.
pub(crate) const TOKENS: &[TokenSource] = &[TokenSource::Counter, TokenSource::None];

/// Builds the lock over one node.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    redlock::build_on_one("postgres", TOKENS, servers, tokens, clock)
}

/// The Postgres server at `addr` (`host:port`), which must trust the user `postgres`. A task connects in the
/// background, and again whenever the connection is lost. Steps that are sent before the first try to connect has ended
/// wait for it. Later steps fail at once while there is no connection.
///
/// The connection lasts until the node is dropped and all sent steps are answered.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn connect(name: &str, addr: &str) -> Arc<dyn Node> {
    connection::connect::<PostgresProtocol>(ServerAddress::new(name, addr))
}

/// The settings of a session, with more `options` for the server. Without a password in `access`, the server must trust
/// the user.
pub(crate) fn settings(access: &Access, options: &str) -> Config {
    let user = access.user.as_ref().map_or(USER, Secret::reveal);
    let path = access.schema.iter().map(|schema| format!("-c search_path=\"{schema}\" ")).collect::<String>();
    let mut settings = Config::new();
    settings.user(user).dbname(access.database.as_deref().unwrap_or(user)).application_name("harness");
    settings.options(format!("{path}{options}"));
    if let Some(password) = &access.password {
        settings.password(password.reveal());
    }
    settings
}

/// Creates the schema of the run. Two clients that create it at once would collide in the server's catalogue.
pub(crate) async fn create_schema(client: &Client, schema: &str) -> Result<(), Error> {
    let create = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('{schema}', 0)); \
         CREATE SCHEMA IF NOT EXISTS \"{schema}\"; COMMIT"
    );
    client.batch_execute(&create).await
}

/// Removes the schema of the run with everything in it. Returns whether the schema was there.
pub(crate) async fn drop_schema(server: &ServerAddress) -> Result<bool, String> {
    let Some(schema) = &server.access.schema else { return Ok(false) };
    let stream = stream::connect(server, BEGIN_TLS).await?;
    let (client, driver, _) = log_in(stream, &server.access).await?;
    let dropping = async {
        let found = client.query_opt("SELECT FROM pg_namespace WHERE nspname = $1", &[schema]).await?;
        client.batch_execute(&format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE")).await?;
        Ok(found.is_some())
    };
    driven(driver, async { dropping.await.map_err(|error: Error| said(&error)) }).await
}

/// Opens a session on a connection. Returns the server's version too.
async fn log_in(stream: Stream, access: &Access) -> Result<(Client, Driver, String), String> {
    let (client, connection) = settings(access, "").connect_raw(stream, NoTls).await.map_err(|error| said(&error))?;
    // The version of a Debian package has the package's name after the number.
    let version = connection.parameter("server_version").and_then(|text| text.split(' ').next()).unwrap_or_default();
    let (version, access) = (version.to_owned(), access.clone());
    let driver = Box::pin(async move {
        if let Err(error) = connection.await {
            tracing::debug!("{}", access.without_secrets(said(&error)));
        }
    });
    Ok((client, driver, version))
}

/// The reason of an error. The library's own text of a server's error is only `db error`.
pub(crate) fn said(error: &Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The failure of a statement.
pub(crate) fn failure(error: &Error) -> NodeError {
    let is_aborted = error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error));
    if is_aborted { NodeError::Definite(said(error)) } else { NodeError::Indeterminate(said(error)) }
}

/// The Postgres protocol.
pub(crate) struct PostgresProtocol;

/// A session with its prepared statements.
pub(crate) struct Session {
    client: Client,
    acquire: Statement,
    acquire_uncounted: Statement,
    extend: Statement,
    release: Statement,
    raise_fence: Statement,
}

impl Session {
    async fn prepared(client: Client, schema: Option<&str>) -> Result<Session, Error> {
        if let Some(schema) = schema {
            create_schema(&client, schema).await?;
        }
        client.batch_execute(CREATE).await?;
        let (acquire, acquire_uncounted, extend, release, raise_fence) = try_join!(
            client.prepare(ACQUIRE),
            client.prepare(ACQUIRE_UNCOUNTED),
            client.prepare(EXTEND),
            client.prepare(RELEASE),
            client.prepare(RAISE_FENCE),
        )?;
        Ok(Session { client, acquire, acquire_uncounted, extend, release, raise_fence })
    }

    /// Runs the statement of the step. Returns the row, if the statement's condition held.
    async fn run(&self, step: &Step) -> Result<Option<Row>, Error> {
        let (client, lease_ms) = (&self.client, |lease| i64::try_from(whole_ms(lease)).unwrap_or(i64::MAX));
        match step {
            Step::Acquire(key, owner, lease) => {
                client.query_opt(&self.acquire, &[&key.as_str(), &owner.as_str(), &lease_ms(*lease)]).await
            }
            Step::AcquireUncounted(key, owner, lease) => {
                client.query_opt(&self.acquire_uncounted, &[&key.as_str(), &owner.as_str(), &lease_ms(*lease)]).await
            }
            Step::Extend(key, owner, lease) => {
                client.query_opt(&self.extend, &[&key.as_str(), &owner.as_str(), &lease_ms(*lease)]).await
            }
            Step::Release(key, owner) => client.query_opt(&self.release, &[&key.as_str(), &owner.as_str()]).await,
            Step::RaiseFence(key, owner, Token(token)) => {
                let token = i64::try_from(*token).unwrap_or(i64::MAX);
                client.query_opt(&self.raise_fence, &[&key.as_str(), &owner.as_str(), &token]).await
            }
            #[cfg(feature = "planted")]
            Step::Planted(_) => Ok(None),
        }
    }
}

impl Protocol for PostgresProtocol {
    type Session = Arc<Session>;

    const BEGIN_TLS: &[u8] = BEGIN_TLS;

    async fn open(stream: Stream, access: &Access) -> Result<(Arc<Session>, Driver), String> {
        let (client, mut driver, _) = log_in(stream, access).await?;
        let schema = access.schema.as_deref();
        let preparing = async { Session::prepared(client, schema).await.map_err(|error| said(&error)) };
        let session = driven(&mut driver, preparing).await?;
        Ok((Arc::new(session), driver))
    }

    /// The first poll of a prepared statement queues its messages: the library awaits nothing before that.
    fn request(session: &Arc<Session>, step: Step) -> Answer {
        #[cfg(feature = "planted")]
        if let Step::Planted(step) = &step {
            let error = NodeError::Definite(format!("Postgres has no statement for {step:?}"));
            return Box::pin(std::future::ready(Err(error)));
        }
        let session = session.clone();
        Box::pin(async move {
            let Some(row) = session.run(&step).await.map_err(|error| failure(&error))? else {
                return Ok(StepAnswer::Refused);
            };
            if !matches!(step, Step::Acquire(..)) {
                return Ok(StepAnswer::Done);
            }
            // The statement has been committed.
            let counter: i64 = row.try_get(0).map_err(|error| NodeError::Indeterminate(error.to_string()))?;
            Ok(StepAnswer::Granted(Token(counter.unsigned_abs())))
        })
    }

    /// The server says its version while it opens the session.
    async fn version(stream: Stream, access: &Access) -> Result<String, String> {
        let (_, _, version) = log_in(stream, access).await?;
        if version.is_empty() { Err("the session has no server_version".to_owned()) } else { Ok(version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_the_access_and_the_options_of_the_run() {
        let alice = Access { user: Some(Secret::new("alice")), ..Access::default() };
        let app = Access { database: Some("app".into()), schema: Some("harness_1".into()), ..alice.clone() };
        for (access, user, database, options) in [
            (Access::default(), "postgres", "postgres", "-c t=1"),
            (alice, "alice", "alice", "-c t=1"),
            (app, "alice", "app", "-c search_path=\"harness_1\" -c t=1"),
        ] {
            let settings = settings(&access, "-c t=1");
            assert_eq!((settings.get_user(), settings.get_dbname()), (Some(user), Some(database)));
            assert_eq!((settings.get_options(), settings.get_application_name()), (Some(options), Some("harness")));
        }
    }
}
