//! The lock of a Postgres session: a session-level advisory lock.
//!
//! An attempt asks once for the advisory lock of the key (`pg_try_advisory_lock`,
//! <https://www.postgresql.org/docs/15/explicit-locking.html#ADVISORY-LOCKS>). The server keeps the lock until the
//! session unlocks it or ends. The module [`postgres_session`](crate::postgres_session) has the session, its promise
//! and its errors.
//!
//! # Modes
//!
//! A reader takes the lock in the shared mode (`pg_try_advisory_lock_shared`). An attempt never waits, so a writer gets
//! the lock only if it asks while no reader has it: readers that follow each other closely starve a writer.
//!
//! # The token
//!
//! Each key has a row that counts its holds. One statement takes the lock, and increments the counter only if it got
//! the lock. The server answers after the commit of this statement is on its disk. The next holder takes the lock
//! later, and so finds a counter that is at least as large. So tokens grow under any clocks, pauses and delays, and in
//! a crash of the server.
//!
//! A sequence would not do. `nextval` writes ahead how far the sequence may count, but a crash loses that record if no
//! transaction was committed after it, and a transaction that only calls `nextval` may be answered before the record
//! is on the disk.
//!
//! An advisory lock of a session stays if its transaction is aborted. So after an `ERROR` the session may have the
//! lock, and its end releases it.

use std::{borrow::Cow, sync::Arc};

use tokio_postgres::Error;

use crate::{
    capability::Capability,
    mode::Mode,
    one_server::OneServer,
    ports::{Clock, Lock},
    postgres,
    postgres_session::{
        Session, SessionLock,
        shared::{Shared, Statements},
    },
    servers::{ServerAddress, TokenSource},
};

/// The function of a writer that takes the lock, and the same of a reader; the function that gives the lock back.
const TAKE: [&str; 2] = ["pg_try_advisory_lock(", "pg_try_advisory_lock_shared("];
const GIVE_BACK: [&str; 2] = ["pg_advisory_unlock(", "pg_advisory_unlock_shared("];

/// $1: key. Takes the lock and then the token, or neither.
const LOCK: &str = "\
WITH lock AS MATERIALIZED (SELECT pg_try_advisory_lock(hashtextextended($1, 0)) AS is_taken)
INSERT INTO harness_counter AS counter (key, value)
SELECT $1, 1 FROM lock WHERE is_taken
ON CONFLICT (key) DO UPDATE SET value = counter.value + 1
RETURNING value";

/// $1: key. Takes the lock only.
const LOCK_UNCOUNTED: &str = "SELECT CASE WHEN pg_try_advisory_lock(hashtextextended($1, 0)) THEN 0::bigint END";

/// $1: key. Returns 1 if the session has the lock.
const CHECK: &str = "\
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
    AND (classid::bigint << 32) | objid::bigint = hashtextextended($1, 0)";

/// $1: key. Returns 1 if the session had the lock.
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))::int::bigint";

/// $1: key. Takes the lock if no other session has it. Returns 1, or no number.
const TRY: &str = "SELECT CASE WHEN pg_try_advisory_lock(hashtextextended($1, 0)) THEN 1::bigint END";

/// $1: key. Waits for the lock. Returns 1.
const WAIT: &str = "SELECT 1::bigint FROM (SELECT pg_advisory_lock(hashtextextended($1, 0)) OFFSET 0) AS lock";

/// $1: key. Takes the next token of a lock that the session has.
const COUNT: &str = "\
INSERT INTO harness_counter AS counter (key, value) VALUES ($1, 1)
ON CONFLICT (key) DO UPDATE SET value = counter.value + 1
RETURNING value";

/// The advisory locks of a client that share its session.
const SHARED: Statements = Statements {
    try_lock: TRY,
    lock: WAIT,
    count: COUNT,
    check: CHECK,
    unlock: UNLOCK,
    create: Advisory::CREATE,
    timeouts: Advisory::TIMEOUTS,
};
/// The statement of a writer, in a mode.
fn in_mode(statement: &'static str, [writer, reader]: [&str; 2], mode: Mode) -> Cow<'static, str> {
    if mode == Mode::Read { statement.replace(writer, reader).into() } else { statement.into() }
}

/// The advisory lock of a session.
pub(crate) struct Advisory;

impl SessionLock for Advisory {
    const NAME: &'static str = "postgres-advisory";
    const TOKENS: &'static [TokenSource] = postgres::TOKENS;
    const TIMEOUTS: &'static [&'static str] = &["idle_session_timeout"];
    const CREATE: &'static str = "\
BEGIN;
SELECT pg_advisory_xact_lock(hashtextextended('harness_counter', 0));
CREATE TABLE IF NOT EXISTS harness_counter (key text PRIMARY KEY, value bigint NOT NULL);
COMMIT";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Reentrant, Capability::ReadWrite, Capability::Sessions, Capability::DeadlockDetection];

    fn shared(
        server: ServerAddress,
        name: OneServer,
        clock: Arc<dyn Clock>,
        tokens: TokenSource,
    ) -> Option<Arc<dyn Lock>> {
        Some(Arc::new(Shared::new(server, name, clock, tokens, &SHARED)))
    }

    async fn take(session: &Session, tokens: TokenSource) -> Result<Option<i64>, Error> {
        let lock = if tokens == TokenSource::None { LOCK_UNCOUNTED } else { LOCK };
        session.number(&in_mode(lock, TAKE, session.mode)).await
    }

    async fn is_held(session: &Session) -> Result<bool, Error> {
        Ok(session.number(CHECK).await? == Some(1))
    }

    async fn give_back(session: &Session) -> Result<bool, Error> {
        Ok(session.number(&in_mode(UNLOCK, GIVE_BACK, session.mode)).await? == Some(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hold::{Key, Owner},
        ports::Unwatched,
        postgres_session::{
            build,
            doubles::{LEASE, Scripted, Stopped},
        },
        servers::Servers,
    };

    #[tokio::test]
    async fn a_reader_takes_the_lock_and_gives_it_back_in_the_shared_mode() {
        for tokens in Advisory::TOKENS {
            for (mode, take, give_back) in [
                (Mode::Write, "pg_try_advisory_lock(", "pg_advisory_unlock("),
                (Mode::Read, "pg_try_advisory_lock_shared(", "pg_advisory_unlock_shared("),
            ] {
                let server = Scripted::start().await;
                let servers = Servers::Addresses(vec![ServerAddress::new("postgres-1", server.address.as_str())]);
                let lock = build::<Advisory>(servers, *tokens, Arc::new(Stopped)).unwrap();
                let key = Key::new("k0");
                let hold = lock.acquire_in(mode, &key, Owner::new("a"), LEASE, &Unwatched).await.unwrap();
                assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
                let asked = server.asked.lock().clone();
                let [_, taken, given_back] = asked.as_slice() else { panic!("{asked:?}") };
                assert!(taken.contains(take) && given_back.contains(give_back), "{mode}, {tokens}: {asked:?}");
            }
        }
    }
}
