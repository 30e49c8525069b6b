//! The lock on one server of ours, which keeps everything in memory: [`Redlock`](crate::Redlock) on one node, of which
//! that node is the majority.
//!
//! The token is the server's counter, incremented in the step that sets the key. Tokens grow until the server restarts:
//! then the counter begins anew, and tokens go back.

use std::sync::Arc;

use tokio::{
    io::{self, AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot},
};

use crate::{
    access::Access,
    connection::{self, Driver, Protocol, driven},
    lock_server::{Answer, Request, in_one_line, next_line},
    ports::{Clock, Lock, Node, NodeError, Step},
    redlock,
    servers::{CannotBuild, ServerAddress, Servers, TokenSource},
    stream::Stream,
};

/// The token sources of this lock; the first is the one to prefer.
pub(crate) const TOKENS: &[TokenSource] = &[TokenSource::Counter, TokenSource::None];

/// Builds the lock over one node.
pub(crate) fn build(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    redlock::build_on_one("memory", TOKENS, servers, tokens, clock)
}

/// The [lock server](crate::lock_server) at `addr` (`host:port`). A task connects in the background, and again whenever
/// the connection is lost. Steps that are sent before the first try to connect has ended wait for it. Later steps fail
/// at once while there is no connection.
///
/// The connection lasts until the node is dropped and all sent steps are answered.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn connect(name: &str, addr: &str) -> Arc<dyn Node> {
    connection::connect::<MemoryProtocol>(ServerAddress::new(name, addr))
}

/// Asks the lock server at `addr` (`host:port`) for its version.
///
/// # Errors
/// The server gave no answer. The error is always definite: asking changes nothing.
pub async fn server_version(addr: &str) -> Result<String, NodeError> {
    connection::server_version::<MemoryProtocol>(&ServerAddress::new(addr, addr)).await
}

/// The protocol of the lock server.
pub(crate) struct MemoryProtocol;

/// A request and the receiver of its answer.
type Asked = (Request, oneshot::Sender<Answer>);

/// Queues a request, and waits for its answer.
async fn ask(queue: mpsc::UnboundedSender<Asked>, request: Request) -> Result<Answer, NodeError> {
    let (answered, answer) = oneshot::channel();
    queue.send((request, answered)).map_err(|_| NodeError::Definite("not connected".to_owned()))?;
    answer.await.map_err(|_| NodeError::Indeterminate("connection lost".to_owned()))
}

impl Protocol for MemoryProtocol {
    /// The queue of the driver. The [connection](crate::connection) bounds the number of its requests.
    type Session = mpsc::UnboundedSender<Asked>;

    async fn open(stream: Stream, _: &Access) -> Result<(Self::Session, Driver), String> {
        let (queue, asked) = mpsc::unbounded_channel();
        let driver = async move {
            if let Err(error) = drive(stream, asked).await {
                tracing::debug!("{error}");
            }
        };
        Ok((queue, Box::pin(driver)))
    }

    fn request(queue: &Self::Session, step: Step) -> connection::Answer {
        let queue = queue.clone();
        Box::pin(async move { ask(queue, Request::Step(step.clone())).await?.to(&step) })
    }

    async fn version(stream: Stream, access: &Access) -> Result<String, String> {
        let (queue, driver) = MemoryProtocol::open(stream, access).await?;
        driven(driver, async {
            match ask(queue, Request::Version).await.map_err(|error| error.to_string())? {
                Answer::Version(version) => Ok(version),
                other => Err(format!("no version, but {other:?}")),
            }
        })
        .await
    }
}

/// Writes requests, and reads their answers, until the connection ends.
async fn drive(stream: Stream, mut asked: mpsc::UnboundedReceiver<Asked>) -> io::Result<()> {
    let (reading, mut writing) = io::split(stream);
    let (waiting, mut oldest) = mpsc::unbounded_channel();
    let writes = async {
        while let Some((request, answered)) = asked.recv().await {
            // Before the request leaves: its answer must find its receiver.
            drop(waiting.send(answered));
            writing.write_all(&in_one_line(&request)).await?;
        }
        // The client has gone, and may still wait for answers.
        std::future::pending().await
    };
    let reads = async {
        let (mut reading, mut line) = (BufReader::new(reading), Vec::new());
        while next_line(&mut reading, &mut line).await? == Some(true) {
            let answer = serde_json::from_slice(&line).map_err(io::Error::other)?;
            let Some(answered) = oldest.recv().await else { break };
            // The client may have stopped waiting.
            drop::<Result<(), Answer>>(oneshot::Sender::send(answered, answer));
        }
        Ok(())
    };
    tokio::select! {
        ended = writes => ended,
        ended = reads => ended,
    }
}
