//! The lock of a Postgres session: the lock of a row, for as long as a transaction is open.
//!
//! A client opens a transaction, locks the row of the key by `SELECT … FOR UPDATE NOWAIT`
//! (<https://www.postgresql.org/docs/15/explicit-locking.html#LOCKING-ROWS>), works, and commits. The server keeps the
//! lock until the transaction ends, also if the session ends. The module
//! [`postgres_session`](crate::postgres_session) has the session, its promise and its errors.
//!
//! `NOWAIT` answers with an error if another transaction has locked the row. `SKIP LOCKED` would answer with no row,
//! also if there is none, and Postgres recommends it for queues only. Without either, an attempt would wait for the
//! holder, for as long as `lock_timeout` allows.
//!
//! # The token
//!
//! The row has a counter. A transaction that increments the counter and then stays open is no source of tokens: if its
//! session dies, the server undoes the increment, and the next holder gets the same token. The source `uncommitted` is
//! this one.
//!
//! The source `counter` takes two transactions. The first one locks the row, increments the counter, and is committed,
//! so the server answers after the increment is on its disk. The second one locks the row again, and stays open. The
//! attempt has got the lock only if the second transaction still finds its own number in the counter:
//!
//! - No two attempts get the same number, because each number is committed before the server answers.
//! - A later holder has a larger number. Say that G locks the row for its work after H. If G's number is smaller than
//!   H's, the counter was at least H's number when G locked the row the second time. So G found another number than its
//!   own, and did not get the lock.
//!
//! Neither argument needs a clock. An attempt that finds another number has met another attempt, and gives the row back
//! at once.
//!
//! For this moment the row is locked by an attempt that does not get the lock. A second attempt may find it so when
//! it locks the row for its work. If the counter then still is the number of the second attempt, no hold has the
//! row: a hold would have left its own number there. So the second attempt asks again. Otherwise both attempts
//! would be refused because of each other, and nobody would get a free lock.

use tokio_postgres::{Error, error::SqlState};

use crate::{
    postgres_session::{Session, SessionLock},
    servers::TokenSource,
};

/// $1: key. Locks the row and returns its counter.
const LOCK: &str = "SELECT counter FROM harness_row WHERE key = $1 FOR UPDATE NOWAIT";

/// $1: key. Locks the row, increments its counter, and returns the counter.
const COUNT: &str = "\
UPDATE harness_row AS lock SET counter = lock.counter + 1
FROM (SELECT key FROM harness_row WHERE key = $1 FOR UPDATE NOWAIT) AS locked
WHERE lock.key = locked.key
RETURNING lock.counter";

/// $1: key. Reads the counter, also while another transaction has locked the row.
const READ: &str = "SELECT counter FROM harness_row WHERE key = $1";

/// $1: key. Makes the row.
const INSERT: &str = "INSERT INTO harness_row (key, counter) VALUES ($1, 0) ON CONFLICT (key) DO NOTHING";

/// Returns 1 if a transaction is open that has locked or changed a row.
const CHECK: &str = "SELECT (pg_current_xact_id_if_assigned() IS NOT NULL)::int";

/// As [`CHECK`], and ends the transaction.
const COMMIT: &str = "SELECT (pg_current_xact_id_if_assigned() IS NOT NULL)::int; COMMIT";

/// The lock of a row.
pub(crate) struct Row;

/// Runs a statement that locks the row: in a transaction of its own, or in one that stays open. Returns the counter, or
/// none if another transaction has locked the row.
async fn locked(session: &Session, statement: &str, stays_open: bool) -> Result<Option<i64>, Error> {
    loop {
        if stays_open {
            session.run("BEGIN").await?;
        }
        let found = session.number(statement).await;
        if let Ok(Some(_)) = found {
            return found;
        }
        if stays_open {
            let ended = session.run("ROLLBACK").await;
            // The first error says more: the second one may only say that the session is over.
            if found.is_ok() {
                ended?;
            }
        }
        match found {
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => return Ok(None),
            Err(error) => return Err(error),
            // There is no row of this key yet.
            Ok(_) => session.number(INSERT).await?,
        };
    }
}

impl SessionLock for Row {
    const NAME: &'static str = "postgres-row";
    const TOKENS: &'static [TokenSource] = &[TokenSource::Counter, TokenSource::Uncommitted, TokenSource::None];
    // The second one ends a session that has not begun its transaction.
    const TIMEOUTS: &'static [&'static str] = &["idle_in_transaction_session_timeout", "idle_session_timeout"];
    const CREATE: &'static str = "\
BEGIN;
SELECT pg_advisory_xact_lock(hashtextextended('harness_row', 0));
CREATE TABLE IF NOT EXISTS harness_row (key text PRIMARY KEY, counter bigint NOT NULL);
COMMIT";

    async fn take(session: &Session, tokens: TokenSource) -> Result<Option<i64>, Error> {
        match tokens {
            TokenSource::None => locked(session, LOCK, true).await,
            TokenSource::Uncommitted => locked(session, COUNT, true).await,
            _ => {
                let Some(token) = locked(session, COUNT, false).await? else { return Ok(None) };
                loop {
                    match locked(session, LOCK, true).await? {
                        Some(counter) if counter == token => return Ok(Some(token)),
                        Some(_) => return session.run("ROLLBACK").await.map(|_| None),
                        None if session.number(READ).await? == Some(token) => {}
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    async fn is_held(session: &Session) -> Result<bool, Error> {
        Ok(session.run(CHECK).await? == Some(1))
    }

    async fn give_back(session: &Session) -> Result<bool, Error> {
        Ok(session.run(COMMIT).await? == Some(1))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        hold::{FailureReason, Key, NodeAnswer, Owner, Token},
        ports::Unwatched,
        postgres_session::{
            build,
            doubles::{LEASE, Says, Scripted, Stopped},
        },
        servers::{ServerAddress, Servers},
    };

    #[tokio::test]
    async fn an_attempt_gets_the_row_only_if_it_finds_its_own_number_there() {
        // Usually the server answers each statement with the number 1.
        type Case = (&'static [(&'static str, Says)], Option<u64>, &'static [&'static str]);
        let cases: [Case; 8] = [
            (&[], Some(1), &[COUNT, "BEGIN", LOCK]),
            (&[(COUNT, Says::Number(5)), (LOCK, Says::Number(5))], Some(5), &[COUNT, "BEGIN", LOCK]),
            // Another attempt has counted meanwhile. The attempt gives the row back.
            (&[(LOCK, Says::Number(2))], None, &[COUNT, "BEGIN", LOCK, "ROLLBACK"]),
            (&[(LOCK, Says::Number(0))], None, &[COUNT, "BEGIN", LOCK, "ROLLBACK"]),
            // Another attempt, and no hold, has locked the row for a moment.
            (&[(LOCK, Says::LockedOnce)], Some(1), &[COUNT, "BEGIN", LOCK, "ROLLBACK", READ, "BEGIN", LOCK]),
            (&[(LOCK, Says::LockedOnce), (READ, Says::Number(2))], None, &[COUNT, "BEGIN", LOCK, "ROLLBACK", READ]),
            (&[(LOCK, Says::LockedOnce), (READ, Says::Number(0))], None, &[COUNT, "BEGIN", LOCK, "ROLLBACK", READ]),
            // A hold, or another attempt, has locked the row from the beginning.
            (&[(COUNT, Says::LockedOnce)], None, &[COUNT]),
        ];
        for (n, (said, token, asked)) in cases.into_iter().enumerate() {
            let server = Scripted::start().await;
            for &(statement, says) in said {
                server.says(statement, says);
            }
            let servers = Servers::Addresses(vec![ServerAddress::new("postgres-1", server.address.as_str())]);
            let lock = build::<Row>(servers, TokenSource::Counter, Arc::new(Stopped)).unwrap();
            let attempt = lock.acquire(&Key::new("k0"), Owner::new("a"), LEASE, &Unwatched).await;
            let found = attempt.map(|hold| hold.token).map_err(|failure| (failure.reason, failure.answers[0].1));
            let held = Err((FailureReason::Held, NodeAnswer::Refused));
            assert_eq!(found, token.map_or(held, |token| Ok(Some(Token(token)))), "case {n}");
            assert_eq!(server.asked.lock()[1..], *asked, "case {n}, after the login");
        }
    }
}
