//! A real Redis server: the Redis protocol over the [connection](crate::connection) to one independent server.

use std::sync::Arc;

use crate::{
    access::{Access, Secret},
    connection::{self, Answer, Driver, Protocol, driven},
    ports::{Node, NodeError, Step},
    redis_script,
    redis_wire::Wire,
    servers::ServerAddress,
    stream::Stream,
};
use futures::{StreamExt, stream::FuturesUnordered};
use redis::{Cmd, FromRedisValue, Value};

/// The Redis protocol.
pub(crate) struct RedisProtocol;

impl Protocol for RedisProtocol {
    type Session = Wire;

    /// Sends nothing but credentials, so a frozen server that needs none has a session too.
    async fn open(stream: Stream, access: &Access) -> Result<(Wire, Driver), String> {
        let wire = Wire::default();
        let mut driver: Driver = Box::pin(wire.driver(stream));
        let logging_in = async {
            for (refused, command) in login(access) {
                said(wire.ask(command).await).map_err(|why| format!("{refused}: {why}"))?;
            }
            Ok(())
        };
        driven(&mut driver, logging_in).await?;
        Ok((wire, driver))
    }

    fn request(session: &Wire, step: Step) -> Answer {
        let asked = session.request(redis_script::command(&step));
        Box::pin(async move { redis_script::answer(&step, asked.await) })
    }

    async fn version(stream: Stream, access: &Access) -> Result<String, String> {
        let (wire, driver) = RedisProtocol::open(stream, access).await?;
        let mut question = redis::cmd("INFO");
        question.arg("server");
        let asking = async {
            match wire.ask(question).await {
                // The user of a shared server need not have the right to ask.
                Value::ServerError(error) if error.code() == "NOPERM" => Ok(None),
                info => read::<String>(info).map(Some),
            }
        };
        let Some(info) = driven(driver, asking).await? else { return Ok("of unknown version".to_owned()) };
        info.lines()
            .find_map(|line| line.strip_prefix("redis_version:"))
            .map(|version| version.trim().to_owned())
            .ok_or_else(|| "INFO server gives no redis_version".to_owned())
    }
}

/// The commands that a session begins with, each after the words for its refusal. A user without a password sends an
/// empty one, which a user with `nopass` may do: without `AUTH` the session would be that of the default user.
fn login(access: &Access) -> Vec<(&'static str, Cmd)> {
    let mut commands = Vec::new();
    if access.user.is_some() || access.password.is_some() {
        let mut auth = redis::cmd("AUTH");
        auth.arg(access.user.as_ref().map(Secret::reveal));
        auth.arg(access.password.as_ref().map_or("", Secret::reveal));
        commands.push(("authentication failed", auth));
    }
    if let Some(database) = &access.database {
        let mut select = redis::cmd("SELECT");
        select.arg(database);
        commands.push(("the database cannot be chosen", select));
    }
    commands
}

/// Returns an answer; the server's own error is an error.
fn said(answer: Value) -> Result<Value, String> {
    match answer {
        Value::ServerError(error) => Err(format!("{} {}", error.code(), error.details().unwrap_or_default())),
        answer => Ok(answer),
    }
}

/// Reads an answer of this type.
pub(crate) fn read<T: FromRedisValue>(answer: Value) -> Result<T, String> {
    T::from_redis_value(said(answer)?).map_err(|error| error.to_string())
}

/// The Redis server at `addr` (`host:port`). A task connects in the background, and again whenever the connection is
/// lost. Steps that are sent before the first try to connect has ended wait for it. Later steps fail at once while
/// there is no connection.
///
/// The connection lasts until the node is dropped and all sent steps are answered.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn connect(name: &str, addr: &str) -> Arc<dyn Node> {
    connection::connect::<RedisProtocol>(ServerAddress::new(name, addr))
}

/// Asks the Redis server at `addr` (`host:port`) for its version, such as `7.0.15`.
///
/// # Errors
/// The server gave no answer. The error is always definite: asking changes nothing.
pub async fn server_version(addr: &str) -> Result<String, NodeError> {
    connection::server_version::<RedisProtocol>(&ServerAddress::new(addr, addr)).await
}

/// A connection that removes keys.
pub(crate) struct Removing {
    wire: Wire,
    driver: Driver,
}

impl Removing {
    /// Connects to a server.
    pub(crate) async fn open(server: &ServerAddress) -> Result<Removing, String> {
        let (wire, driver) = connection::open::<RedisProtocol>(server).await?;
        Ok(Removing { wire, driver })
    }

    /// Removes the keys of locks. Each lock has a request of its own, because a Redis Cluster refuses a request for
    /// keys of two slots. Returns for each lock the number of its keys that were there, or the server's error; none, if
    /// the connection was lost before the answer.
    pub(crate) async fn delete(&mut self, locks: &[[String; 2]]) -> Vec<Option<Result<u64, String>>> {
        let Removing { wire, driver } = self;
        let ask = |(n, keys): (usize, &[String; 2])| {
            let mut delete = redis::cmd("DEL");
            delete.arg(keys.as_slice());
            let asked = wire.ask(delete);
            async move { (n, read::<u64>(asked.await)) }
        };
        let mut asked: FuturesUnordered<_> = locks.iter().enumerate().map(ask).collect();
        let mut answers = vec![None; locks.len()];
        let all = async {
            while let Some((n, answer)) = asked.next().await {
                answers[n] = Some(answer);
            }
            Ok(())
        };
        // If the connection is lost, the requests without an answer have none.
        let _is_lost = driven(driver, all).await.is_err();
        answers
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn a_user_without_a_password_logs_in_with_an_empty_one() {
        for (user, password, expected) in [
            (None, None, None),
            (None, Some("hunter2"), Some("AUTH hunter2")),
            (Some("alice"), Some("hunter2"), Some("AUTH alice hunter2")),
            (Some("alice"), None, Some("AUTH alice ")),
        ] {
            let (user, password) = (user.map(Secret::new), password.map(Secret::new));
            let sent = sent(&Access { user, password, ..Access::default() });
            let expected: Vec<Vec<u8>> = expected.into_iter().map(packed).collect();
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn a_session_begins_in_the_database_of_its_url() {
        let (password, database) = (Some(Secret::new("hunter2")), Some("3".to_owned()));
        let sent = sent(&Access { password, database, ..Access::default() });
        assert_eq!(sent, ["AUTH hunter2", "SELECT 3"].map(packed));
    }

    #[tokio::test]
    async fn a_session_whose_beginning_is_refused_does_not_open() {
        let (password, database) = (Some(Secret::new("hunter2")), Some("99".to_owned()));
        let (auth, select) = (Access { password, ..Access::default() }, Access { database, ..Access::default() });
        for (access, said, expected) in [
            (&auth, "+OK\r\n", None),
            (&auth, "-WRONGPASS invalid pair\r\n", Some("authentication failed: WRONGPASS invalid pair")),
            (&select, "+OK\r\n", None),
            (&select, "-ERR DB index\r\n", Some("the database cannot be chosen: ERR DB index")),
        ] {
            let (ours, mut theirs) = duplex(256);
            theirs.write_all(said.as_bytes()).await.unwrap();
            let refused = RedisProtocol::open(Box::new(ours), access).await.err();
            assert_eq!(refused.as_deref(), expected);
        }
    }

    #[tokio::test]
    async fn a_user_who_may_not_ask_for_the_version_can_run() {
        for (said, expected) in [
            ("$22\r\nredis_version:7.0.15\r\n\r\n", Ok("7.0.15")),
            ("-NOPERM User alice has no permissions to run the 'info' command\r\n", Ok("of unknown version")),
            ("-ERR max number of clients reached\r\n", Err("ERR max number of clients reached")),
        ] {
            let (ours, mut theirs) = duplex(256);
            theirs.write_all(said.as_bytes()).await.unwrap();
            let version = RedisProtocol::version(Box::new(ours), &Access::default()).await;
            assert_eq!(version.as_deref().map_err(String::as_str), expected);
        }
    }

    #[tokio::test]
    async fn a_server_that_refuses_a_connection_says_why() {
        for said in ["ERR max number of clients reached", "DENIED Redis is running in protected mode"] {
            let (ours, mut theirs) = duplex(256);
            // The refusal and the end of the connection come together, before any question.
            theirs.write_all(format!("-{said}\r\n").as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
            let version = RedisProtocol::version(Box::new(ours), &Access::default()).await;
            assert_eq!(version, Err(said.to_owned()));
        }
    }

    /// The commands that a session with this access begins with, as they are sent.
    fn sent(access: &Access) -> Vec<Vec<u8>> {
        login(access).iter().map(|(_, command)| command.get_packed_command()).collect()
    }

    /// A command of these words, as it is sent.
    fn packed(words: &str) -> Vec<u8> {
        let mut command = Cmd::new();
        words.split(' ').for_each(|word| _ = command.arg(word));
        command.get_packed_command()
    }
}
