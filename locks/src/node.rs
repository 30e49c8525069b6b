//! A real server: one task a connection.
//!
//! The task owns the connection, and polls its driver itself. It takes steps from a bounded queue in order, makes each
//! a request, and polls that once, by which the request is queued in the driver; then it keeps the request until it is
//! answered, whether anybody waits for the answer or not. Both matter: the driver queues a request only when it is
//! polled, and passes over one whose receiver is gone.
//!
//! A step is a *definite* failure as long as it has not been made a request: the queue is full, or there is no
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
    ports::{Answer, Node, NodeError, Reply, Step},
    script,
};

/// Steps that may wait for the task.
const QUEUE: usize = 4096;

/// Requests that may wait for the server. The driver's own queue has as many places, so that one is always free and
/// the first poll of a request always takes it: a request that had to wait for a place could be overtaken.
const IN_FLIGHT: usize = 4096;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait before the next try.
const RECONNECT_DELAY: Duration = Duration::from_millis(50);

/// After how long without an acknowledgement by the *kernel* on the other side a connection is dead. A process that is
/// frozen is not dead by this: its kernel goes on acknowledging. No answer is given up for being slow; that is for
/// the lock to do, in its own time.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);

/// What moves a connection's bytes, as long as it is polled.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

type Answered = oneshot::Sender<Result<Answer, NodeError>>;

/// A server that was named, connected or not.
struct Connection {
    name: Arc<str>,
    queue: mpsc::Sender<(Step, Answered)>,
}

/// The server at `addr` (`host:port`). It is connected to in the background, and again whenever the connection is lost;
/// steps that are sent before the first try is over wait for it, later ones fail at once while there is no connection.
///
/// The connection lasts as long as the node does, and until then for what was sent.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn connect(name: &str, addr: &str) -> Arc<dyn Node> {
    let (queue, steps) = mpsc::channel(QUEUE);
    let (name, addr) = (Arc::<str>::from(name), Arc::<str>::from(addr));
    // Without Tokio's budget: a request whose first poll came to nothing because the budget was used up would not be
    // queued, and a later one could overtake it.
    tokio::spawn(tokio::task::unconstrained(keep_connected(name.clone(), addr, steps)));
    Arc::new(Connection { name, queue })
}

/// The version that the server at `addr` (`host:port`) gives, such as `7.0.15`.
///
/// # Errors
/// Always definite: asking changes nothing.
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

    fn send(&self, step: Step) -> Reply<Result<Answer, NodeError>> {
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

/// The task: connects, serves, and starts again, until nobody has the node any more.
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
                    Some((_, answered)) => drop(answered.send(Err(NodeError::Definite(format!("not connected: {lost}"))))),
                    None => return,
                },
            }
        };
    }
}

/// Makes a connection. Nothing is sent on it, so that a frozen server can be connected to as well.
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

/// How serving a connection ended.
enum Served {
    /// The node was dropped, and all that it had sent is answered.
    AllAnswered,
    /// The connection is gone. What waited for an answer was told so.
    ConnectionLost,
}

/// A request that was queued in the driver.
struct Request {
    step: Step,
    value: Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>,
    answered: Answered,
}

impl Request {
    fn new(connection: &MultiplexedConnection, step: Step, answered: Answered) -> Self {
        let (mut connection, command) = (connection.clone(), script::command(&step));
        Self { step, value: Box::pin(async move { connection.send_packed_command(&command).await }), answered }
    }

    fn answer(self, value: RedisResult<Value>) {
        let answer = match value {
            Ok(value) => script::answer(&self.step, value),
            Err(error) => Err(NodeError::Indeterminate(error.to_string())),
        };
        // Nobody has to be waiting.
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
            // Also after a loss: answers may have come before it.
            give_answers(cx, &mut waiting);
            match intake {
                _ if lost => return Poll::Ready(Served::ConnectionLost),
                Intake::Closed if waiting.is_empty() => return Poll::Ready(Served::AllAnswered),
                // There is room again, and nothing would wake this task for the steps that wait for it.
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

/// Why no more steps were taken.
enum Intake {
    /// There are none.
    Empty,
    /// As many requests as may be are waiting.
    Full,
    /// There will be none any more.
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

/// Passes on what was answered. A server answers in order, so that only the oldest request is worth a look.
fn give_answers(cx: &mut Context<'_>, waiting: &mut VecDeque<Request>) {
    while let Some(oldest) = waiting.front_mut() {
        let Poll::Ready(value) = oldest.value.as_mut().poll(cx) else { return };
        if let Some(request) = waiting.pop_front() {
            request.answer(value);
        }
    }
}
