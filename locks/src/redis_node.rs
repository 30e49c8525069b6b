//! A real Redis server: the Redis protocol over the [connection](crate::connection) to one independent server.

use std::sync::Arc;

use crate::{
    access::{Access, Secret},
    connection::{self, Answer, Driver, IN_FLIGHT, Protocol, driven},
    ports::{Node, NodeError, Step},
    redis_script,
    servers::ServerAddress,
    stream::Stream,
};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, aio::MultiplexedConnection};

/// The Redis protocol.
pub(crate) struct RedisProtocol;

impl Protocol for RedisProtocol {
    type Session = MultiplexedConnection;

    /// Sends nothing but credentials, so a frozen server that needs none has a session too.
    async fn open(stream: Stream, access: &Access) -> Result<(MultiplexedConnection, Driver), String> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(IN_FLIGHT);
        let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = &access.user {
            info = info.set_username(user.reveal());
        }
        if let Some(password) = access.password.as_ref().map(Secret::reveal) {
            info = info.set_password(password);
        }
        if let Some(database) = access.database.as_ref().and_then(|number| number.parse().ok()) {
            info = info.set_db(database);
        }
        match MultiplexedConnection::new_with_config(&info, stream, config).await {
            Ok((connection, driver)) => Ok((connection, Box::pin(driver))),
            Err(error) => Err(error.to_string()),
        }
    }

    fn request(session: &MultiplexedConnection, step: Step) -> Answer {
        let (mut connection, command) = (session.clone(), redis_script::command(&step));
        Box::pin(async move {
            match connection.send_packed_command(&command).await {
                Ok(value) => redis_script::answer(&step, value),
                Err(error) => Err(NodeError::Indeterminate(error.to_string())),
            }
        })
    }

    async fn version(stream: Stream, access: &Access) -> Result<String, String> {
        let (mut session, driver) = RedisProtocol::open(stream, access).await?;
        let asking = async {
            let info = redis::cmd("INFO").arg("server").query_async::<String>(&mut session).await;
            // The user of a shared server need not have the right to ask.
            if info.as_ref().is_err_and(|error| error.code() == Some("NOPERM")) {
                return Ok(None);
            }
            info.map(Some).map_err(|error| error.to_string())
        };
        let Some(info) = driven(driver, asking).await? else { return Ok("of unknown version".to_owned()) };
        info.lines()
            .find_map(|line| line.strip_prefix("redis_version:"))
            .map(|version| version.trim().to_owned())
            .ok_or_else(|| "INFO server gives no redis_version".to_owned())
    }
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

/// Removes keys by their names. Returns the number of those that were there.
pub(crate) async fn delete(server: &ServerAddress, keys: &[String]) -> Result<u64, String> {
    let (mut session, driver) = connection::open::<RedisProtocol>(server).await?;
    let deleting = async { redis::cmd("DEL").arg(keys).query_async(&mut session).await.map_err(|e| e.to_string()) };
    driven(driver, deleting).await
}
