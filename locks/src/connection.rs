//! The connection to one independent server, whatever protocol the server speaks: one task for each connection.
//!
//! The task owns the connection and polls its driver. The task takes steps from a bounded queue in order, makes each
//! step a request, and polls the request once, which queues the request in the driver. Then the task keeps the request
//! until it is answered, whether a client waits for the answer or not. Both matter: a driver queues a request only
//! when the request is polled, and may skip a request whose receiver is gone.
//!
//! The failure of a step is *definite* as long as the step has not become a request: the queue is full, or there is no
//! connection. After that the loss of the connection is indeterminate, and the [`Protocol`] decides about an error that
//! the server answers.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    access::Access,
    ports::{Node, NodeError, Reply, Step, StepAnswer},
    servers::{Connected, Connecting, ServerAddress, Servers, ask_versions},
    stream::{self, Stream},
};

/// The number of steps that may wait for the task.
const QUEUE: usize = 4096;

/// The number of requests that may wait for the server. A driver must have room for as many, so that the first poll of
/// a request always finds a free place: a later request could overtake a request that had to wait for a place.
const IN_FLIGHT: usize = 4096;

/// The timeout of opening a session on a connection. A frozen server accepts connections, and answers none of them.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of a question about the server's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(1);

/// The delay before the next try to connect.
const RECONNECT_DELAY: Duration = Duration::from_millis(50);

/// The future that reads and writes a connection's bytes while it is polled. It ends with the connection.
pub(crate) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The answer to a step that is on its way.
pub(crate) type Answer = Reply<Result<StepAnswer, NodeError>>;

type Answered = oneshot::Sender<Result<StepAnswer, NodeError>>;

/// A protocol of independent servers.
pub(crate) trait Protocol: 'static {
    /// The client's end of an open connection.
    type Session: Send + Sync;

    /// The bytes by which a client asks for TLS before its first request; none, if the client begins with TLS.
    const BEGIN_TLS: &[u8] = &[];

    /// Opens a session on a connection. The driver reads and writes the bytes of all later requests.
    fn open(stream: Stream, access: &Access) -> impl Future<Output = Result<(Self::Session, Driver), String>> + Send;

    /// Makes the step a request. The first poll of the answer queues the request in the driver; later polls only wait.
    fn request(session: &Self::Session, step: Step) -> Answer;

    /// Asks for the version of the server, such as `7.0.15`, on a connection of its own. It changes nothing.
    fn version(stream: Stream, access: &Access) -> impl Future<Output = Result<String, String>> + Send;
}

/// A server, connected or not.
struct Connection {
    server: Arc<ServerAddress>,
    queue: mpsc::Sender<(Step, Answered)>,
}

/// A server. A task connects in the background, and again whenever the connection is lost.
/// Steps that are sent before the first try to connect has ended wait for it. Later steps fail at once while there is
/// no connection.
///
/// The connection lasts until the node is dropped and all sent steps are answered.
///
/// # Panics
/// Outside of a Tokio runtime.
pub(crate) fn connect<P: Protocol>(server: ServerAddress) -> Arc<dyn Node> {
    let (queue, steps) = mpsc::channel(QUEUE);
    let server = Arc::new(server);
    // Without Tokio's budget: if the budget were used up, the first poll of a request would not queue the request, and
    // a later request could overtake it.
    tokio::spawn(tokio::task::unconstrained(keep_connected::<P>(server.clone(), steps)));
    Arc::new(Connection { server, queue })
}

/// Connects to independent servers, and asks each for its version.
pub(crate) fn connect_all<P: Protocol>(
    _client: &'static str,
    servers: Vec<ServerAddress>,
    connecting: Connecting,
) -> Reply<Result<Connected, NodeError>> {
    Box::pin(async move {
        let versions = ask_versions(&servers, connecting, server_version::<P>).await;
        let nodes = servers.into_iter().map(connect::<P>).collect();
        Ok(Connected { servers: Servers::Nodes(nodes), versions })
    })
}

/// Asks a server for its version, such as `7.0.15`.
///
/// # Errors
/// The server gave no answer. The error is always definite: asking changes nothing.
pub(crate) async fn server_version<P: Protocol>(server: &ServerAddress) -> Result<String, NodeError> {
    let addr = &server.address;
    let asked = time::timeout(VERSION_TIMEOUT, async {
        let stream = stream::connect(server, P::BEGIN_TLS).await?;
        P::version(stream, &server.access).await
    });
    match asked.await {
        Ok(Ok(version)) => Ok(version),
        Ok(Err(error)) => Err(server.access.hide(NodeError::Definite(format!("{addr}: {error}")))),
        Err(_) => Err(NodeError::Definite(format!("{addr}: no answer within {VERSION_TIMEOUT:?}"))),
    }
}

/// Runs requests of a session together with its driver.
pub(crate) async fn driven<T>(
    driver: impl Future<Output = ()>,
    requests: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let mut requests = pin!(requests);
    tokio::select! {
        biased;
        answer = &mut requests => answer,
        // The last words of a server that refuses a connection come with its end.
        () = driver => match requests.now_or_never() {
            Some(Err(why)) => Err(why),
            _ => Err("connection lost".to_owned()),
        },
    }
}

impl Node for Connection {
    fn name(&self) -> &str {
        &self.server.name
    }

    fn send(&self, step: Step) -> Answer {
        let (answered, answer) = oneshot::channel();
        if let Err(error) = self.queue.try_send((step, answered)) {
            let why = match error {
                mpsc::error::TrySendError::Full(_) => format!("{QUEUE} steps are waiting already"),
                mpsc::error::TrySendError::Closed(_) => "the connection's task has ended".to_owned(),
            };
            return Box::pin(std::future::ready(Err(NodeError::Definite(why))));
        }
        let server = self.server.clone();
        Box::pin(async move {
            let answer = answer.await;
            let ended = || Err(NodeError::Indeterminate("the connection's task has ended".to_owned()));
            answer.unwrap_or_else(|_| ended()).map_err(|error| server.access.hide(error))
        })
    }
}

/// The task: connects, serves, and connects again, until the node is dropped.
async fn keep_connected<P: Protocol>(server: Arc<ServerAddress>, mut steps: mpsc::Receiver<(Step, Answered)>) {
    let mut connected = open::<P>(&server).await;
    loop {
        let lost = match connected {
            Ok((session, driver)) => match serve::<P>(session, driver, &mut steps).await {
                Served::AllAnswered => return,
                Served::ConnectionLost => "connection lost".to_owned(),
            },
            Err(error) => error,
        };
        let lost = server.access.without_secrets(lost);
        tracing::debug!(node = %server.name, addr = %server.address, "{lost}");
        let reopen = async {
            time::sleep(RECONNECT_DELAY).await;
            open::<P>(&server).await
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

/// Connects, and opens a session.
pub(crate) async fn open<P: Protocol>(server: &ServerAddress) -> Result<(P::Session, Driver), String> {
    let opening = async {
        let stream = stream::connect(server, P::BEGIN_TLS).await?;
        P::open(stream, &server.access).await
    };
    in_time(opening).await
}

/// Waits until a session is open, for at most [`LOGIN_TIMEOUT`].
pub(crate) async fn in_time<T>(opening: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let opened = time::timeout(LOGIN_TIMEOUT, opening).await;
    opened.unwrap_or_else(|_| Err(format!("no session within {LOGIN_TIMEOUT:?}")))
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
    answer: Answer,
    answered: Answered,
}

impl Request {
    fn pass_on(self, answer: Result<StepAnswer, NodeError>) {
        // The client may have stopped waiting.
        drop(self.answered.send(answer));
    }
}

async fn serve<P: Protocol>(
    session: P::Session,
    mut driver: Driver,
    steps: &mut mpsc::Receiver<(Step, Answered)>,
) -> Served {
    let mut waiting = VecDeque::new();
    let served = poll_fn(|cx| {
        loop {
            let intake = take_steps::<P>(cx, &session, steps, &mut waiting);
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
        request.pass_on(Err(NodeError::Indeterminate("connection lost".to_owned())));
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

fn take_steps<P: Protocol>(
    cx: &mut Context<'_>,
    session: &P::Session,
    steps: &mut mpsc::Receiver<(Step, Answered)>,
    waiting: &mut VecDeque<Request>,
) -> Intake {
    while waiting.len() < IN_FLIGHT {
        match steps.poll_recv(cx) {
            Poll::Ready(Some((step, answered))) => {
                let mut request = Request { answer: P::request(session, step), answered };
                match request.answer.as_mut().poll(cx) {
                    Poll::Ready(answer) => request.pass_on(answer),
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
        let Poll::Ready(answer) = oldest.answer.as_mut().poll(cx) else { return };
        if let Some(request) = waiting.pop_front() {
            request.pass_on(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::{
        access::Secret,
        hold::{Key, Owner},
        redis_node::RedisProtocol,
        redis_wire::Wire,
    };

    fn release() -> Step {
        Step::Release(Key::new("k0"), Owner::new("a"))
    }

    #[tokio::test]
    async fn answers_before_the_loss_count_and_other_steps_are_in_doubt() {
        let (ours, mut theirs) = duplex(4096);
        // One answer and the end of the connection come together.
        theirs.write_all(b":1\r\n").await.unwrap();
        theirs.shutdown().await.unwrap();
        let (queue, mut steps) = mpsc::channel(2);
        let mut asked = Vec::new();
        for _ in 0..2 {
            let (answered, answer) = oneshot::channel();
            queue.send((release(), answered)).await.unwrap();
            asked.push(answer);
        }
        let wire = Wire::default();
        let driver: Driver = Box::pin(wire.driver(Box::new(ours)));
        let served = serve::<RedisProtocol>(wire, driver, &mut steps).await;
        assert!(matches!(served, Served::ConnectionLost));
        let mut answers = Vec::new();
        for answer in asked {
            answers.push(answer.await.unwrap());
        }
        let lost = NodeError::Indeterminate("connection lost".to_owned());
        assert_eq!(answers, [Ok(StepAnswer::Done), Err(lost)]);
    }

    #[tokio::test]
    async fn a_step_of_a_dropped_node_gets_its_late_answer() {
        let (ours, mut theirs) = duplex(4096);
        let (queue, mut steps) = mpsc::channel(1);
        let (answered, answer) = oneshot::channel();
        queue.send((release(), answered)).await.unwrap();
        drop(queue);
        let wire = Wire::default();
        let driver: Driver = Box::pin(wire.driver(Box::new(ours)));
        let answering = async {
            theirs.read_u8().await.unwrap();
            theirs.write_all(b":1\r\n").await.unwrap();
        };
        let (served, ()) = tokio::join!(serve::<RedisProtocol>(wire, driver, &mut steps), answering);
        assert!(matches!(served, Served::AllAnswered));
        assert_eq!(answer.await.unwrap(), Ok(StepAnswer::Done));
    }

    #[tokio::test]
    async fn no_failure_of_a_step_shows_the_user() {
        let (queue, mut steps) = mpsc::channel(1);
        let access = Access { user: Some(Secret::new("alice")), ..Access::default() };
        let server = Arc::new(ServerAddress { access, ..ServerAddress::new("redis-1", "127.0.0.1:1") });
        let reply = Connection { server, queue }.send(release());
        let (_, answered) = steps.recv().await.unwrap();
        answered.send(Err(NodeError::Indeterminate("NOPERM User alice has no rights".to_owned()))).unwrap();
        assert_eq!(reply.await, Err(NodeError::Indeterminate("NOPERM User *** has no rights".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_does_not_open_is_given_up() {
        let opening = in_time(pending::<Result<(), String>>());
        let opened = time::timeout(Duration::from_secs(30), opening).await.expect("another try before the run ends");
        assert!(opened.unwrap_err().contains("no session within"));
    }
}
