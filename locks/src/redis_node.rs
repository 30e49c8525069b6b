//! A real Redis server: one task for each connection.
//!
//! The task owns the connection and polls its driver. The task takes steps from a bounded queue in order, makes each
//! step a request, and polls the request once, which queues the request in the driver. Then the task keeps the request
//! until it is answered, whether a client waits for the answer or not. Both matter: the driver queues a request only
//! when the request is polled, and skips a request whose receiver is gone.
//!
//! The failure of a step is *definite* as long as the step has not become a request: the queue is full, or there is no
//! connection. After that every failure is indeterminate.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    ports::{Node, NodeError, Reply, Step, StepAnswer},
    redis_script,
    servers::{Connected, ServerAddress, Servers, ask_versions},
};

/// The number of steps that may wait for the task.
const QUEUE: usize = 4096;

/// The number of requests that may wait for the server. The driver's own queue is as long, so the first poll of a
/// request always finds a free place: a later request could overtake a request that had to wait for a place.
const IN_FLIGHT: usize = 4096;

/// The timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The delay before the next try to connect.
const RECONNECT_DELAY: Duration = Duration::from_millis(50);

/// The time without an acknowledgement by the server's *kernel* after which a connection is dead. A frozen server keeps
/// its connection, because its kernel still acknowledges. The task never gives up a slow answer; the lock does, by its
/// own timeout.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);

/// The future that reads and writes a connection's bytes while it is polled.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

type Answered = oneshot::Sender<Result<StepAnswer, NodeError>>;

/// A server, connected or not.
struct Connection {
    name: Arc<str>,
    queue: mpsc::Sender<(Step, Answered)>,
}

/// The server at `addr` (`host:port`). A task connects in the background, and again whenever the connection is lost.
/// Steps that are sent before the first try to connect has ended wait for it. Later steps fail at once while there is
/// no connection.
///
/// The connection lasts until the node is dropped and all sent steps are answered.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn connect(name: &str, addr: &str) -> Arc<dyn Node> {
    let (queue, steps) = mpsc::channel(QUEUE);
    let (name, addr) = (Arc::<str>::from(name), Arc::<str>::from(addr));
    // Without Tokio's budget: if the budget were used up, the first poll of a request would not queue the request, and
    // a later request could overtake it.
    tokio::spawn(tokio::task::unconstrained(keep_connected(name.clone(), addr, steps)));
    Arc::new(Connection { name, queue })
}

/// Connects to independent servers, and asks each for its version.
pub(crate) fn connect_all(
    _client: &'static str,
    servers: Vec<ServerAddress>,
    _process: usize,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let versions = ask_versions(&servers, server_version).await;
        let nodes = servers.iter().map(|server| connect(&server.name, &server.address)).collect();
        Ok(Connected { servers: Servers::Nodes(nodes), versions })
    })
}

/// Asks the server at `addr` (`host:port`) for its version, such as `7.0.15`.
///
/// # Errors
/// The server gave no answer. The error is always definite: asking changes nothing.
pub async fn server_version(addr: &str) -> Result<String, NodeError> {
    let asked = time::timeout(CONNECT_TIMEOUT, async {
        let (mut connection, driver) = open(addr).await?;
        let query = async move {
            redis::cmd("INFO")
                .arg("server")
                .query_async::<String>(&mut connection)
                .await
                .map_err(|error| error.to_string())
        };
        tokio::select! {
            info = query => info,
            () = driver => Err("connection lost".to_owned()),
        }
    });
    let info = match asked.await {
        Ok(Ok(info)) => info,
        Ok(Err(error)) => return Err(NodeError::Definite(format!("{addr}: {error}"))),
        Err(_) => return Err(NodeError::Definite(format!("{addr}: no answer within {CONNECT_TIMEOUT:?}"))),
    };
    info.lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .map(|version| version.trim().to_owned())
        .ok_or_else(|| NodeError::Definite(format!("{addr}: INFO server gives no redis_version")))
}

impl Node for Connection {
    fn name(&self) -> &str {
        &self.name
    }

    fn send(&self, step: Step) -> Reply<Result<StepAnswer, NodeError>> {
        let (answered, answer) = oneshot::channel();
        if let Err(error) = self.queue.try_send((step, answered)) {
            let why = match error {
                mpsc::error::TrySendError::Full(_) => format!("{QUEUE} steps are waiting already"),
                mpsc::error::TrySendError::Closed(_) => "the connection's task has ended".to_owned(),
            };
            return Box::pin(std::future::ready(Err(NodeError::Definite(why))));
        }
        Box::pin(async move {
            answer.await.unwrap_or_else(|_| Err(NodeError::Indeterminate("the connection's task has ended".to_owned())))
        })
    }
}

/// The task: connects, serves, and connects again, until the node is dropped.
async fn keep_connected(name: Arc<str>, addr: Arc<str>, mut steps: mpsc::Receiver<(Step, Answered)>) {
    let mut connected = open(&addr).await;
    loop {
        let lost = match connected {
            Ok((connection, driver)) => match serve(connection, driver, &mut steps).await {
                Served::AllAnswered => return,
                Served::ConnectionLost => "connection lost".to_owned(),
            },
            Err(error) => error,
        };
        tracing::debug!(node = %name, %addr, "{lost}");
        let reopen = async {
            time::sleep(RECONNECT_DELAY).await;
            open(&addr).await
        };
        let mut reopen = pin!(reopen);
        connected = loop {
            tokio::select! {
                biased;
                connected = &mut reopen => break connected,
                step = steps.recv() => match step {
                    Some((_, answered)) => {
                        let error = NodeError::Definite(format!("not connected: {lost}"));
                        drop(answered.send(Err(error)));
                    }
                    None => return,
                },
            }
        };
    }
}

/// Connects. It sends nothing, so it can connect to a frozen server too.
async fn open(addr: &str) -> Result<(MultiplexedConnection, Driver), String> {
    let stream = match time::timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
    };
    prepare(&stream).map_err(|error| error.to_string())?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(IN_FLIGHT);
    let info = RedisConnectionInfo::default().set_skip_set_lib_name();
    match MultiplexedConnection::new_with_config(&info, stream, config).await {
        Ok((connection, driver)) => Ok((connection, Box::pin(driver))),
        Err(error) => Err(error.to_string()),
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    stream.set_nodelay(true)?;
    let unacknowledged_ms = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(setsockopt(stream, sockopt::TcpUserTimeout, &unacknowledged_ms)?)
}

/// The reason why serving a connection ended.
enum Served {
    /// The node was dropped, and all its steps are answered.
    AllAnswered,
    /// The connection is gone. The waiting requests have failed.
    ConnectionLost,
}

/// A request in the driver's queue.
struct Request {
    step: Step,
    value: Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>,
    answered: Answered,
}

impl Request {
    fn new(connection: &MultiplexedConnection, step: Step, answered: Answered) -> Self {
        let (mut connection, command) = (connection.clone(), redis_script::command(&step));
        Self { step, value: Box::pin(async move { connection.send_packed_command(&command).await }), answered }
    }

    fn answer(self, value: RedisResult<Value>) {
        let answer = match value {
            Ok(value) => redis_script::answer(&self.step, value),
            Err(error) => Err(NodeError::Indeterminate(error.to_string())),
        };
        // The client may have stopped waiting.
        drop(self.answered.send(answer));
    }
}

async fn serve(
    connection: MultiplexedConnection,
    mut driver: Driver,
    steps: &mut mpsc::Receiver<(Step, Answered)>,
) -> Served {
    let mut waiting = VecDeque::new();
    let served = poll_fn(|cx| {
        loop {
            let intake = take_steps(cx, &connection, steps, &mut waiting);
            let lost = driver.as_mut().poll(cx).is_ready();
            // Also after a loss: answers may have come before the loss.
            give_answers(cx, &mut waiting);
            match intake {
                _ if lost => return Poll::Ready(Served::ConnectionLost),
                Intake::Closed if waiting.is_empty() => return Poll::Ready(Served::AllAnswered),
                // There is room again, and nothing else would wake this task for the waiting steps.
                Intake::Full if waiting.len() < IN_FLIGHT => {}
                _ => return Poll::Pending,
            }
        }
    })
    .await;
    for request in waiting {
        drop(request.answered.send(Err(NodeError::Indeterminate("connection lost".to_owned()))));
    }
    served
}

/// The reason why no more steps were taken.
enum Intake {
    /// There are no steps.
    Empty,
    /// Too many requests are waiting.
    Full,
    /// The node was dropped.
    Closed,
}

fn take_steps(
    cx: &mut Context<'_>,
    connection: &MultiplexedConnection,
    steps: &mut mpsc::Receiver<(Step, Answered)>,
    waiting: &mut VecDeque<Request>,
) -> Intake {
    while waiting.len() < IN_FLIGHT {
        match steps.poll_recv(cx) {
            Poll::Ready(Some((step, answered))) => {
                let mut request = Request::new(connection, step, answered);
                match request.value.as_mut().poll(cx) {
                    Poll::Ready(value) => request.answer(value),
                    Poll::Pending => waiting.push_back(request),
                }
            }
            Poll::Ready(None) => return Intake::Closed,
            Poll::Pending => return Intake::Empty,
        }
    }
    Intake::Full
}

/// Passes answers on. A server answers in order, so only the oldest request can be answered.
fn give_answers(cx: &mut Context<'_>, waiting: &mut VecDeque<Request>) {
    while let Some(oldest) = waiting.front_mut() {
        let Poll::Ready(value) = oldest.value.as_mut().poll(cx) else { return };
        if let Some(request) = waiting.pop_front() {
            request.answer(value);
        }
    }
}
