//! The service around the rule: who decides, in which order, and when an answer may go.
//!
//! One lock covers the whole life of a decision: the rule, the observer, and the place in the queue to
//! the disk. So the observer sees the admission order itself, and a later answer cannot leave before an
//! earlier decision is on disk. Every part runs on one thread if need be (a current-thread runtime);
//! only the disk is written by a thread of its own.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::decide::{Refusal, State};
use crate::http::router;
use crate::metrics::Metrics;
use crate::patience::{Patient, Phase};
use crate::policy::Policy;
use crate::store::{Change, End, Entry, Store, StoreError};
use crate::types::{Admission, Request, Version};

/// Called for each decided request, in admission order, at the moment of the decision: before it is on
/// disk and before it is answered. It runs under the lock of the resource, so it should be quick; after
/// a panic in it nothing is decided any more, and every request for a key is answered with 500.
pub type Observer = Box<dyn FnMut(&Admission) + Send>;

/// What a resource is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Arms and comparison.
    pub policy: Policy,
    /// The file of the store; created if it is not there, in a directory that is.
    pub store: PathBuf,
    /// What a client may ask of the service.
    pub limits: Limits,
}

/// What a client may ask of the service. Times are of the process's own clock.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest body of a PUT, in bytes; more is answered with 413.
    pub body_bytes_max: usize,
    /// From the first byte of a request to the end of its head; longer is answered with 408.
    pub head_timeout: Duration,
    /// For the body of a PUT; longer is answered with 408.
    pub body_timeout: Duration,
    /// For a client to take more of its answer; longer ends the connection.
    pub write_timeout: Duration,
    /// Between two requests on a connection. Longer than any pause of a client, so that it finds its
    /// connection as it left it.
    pub idle_timeout: Duration,
    /// Open connections; one more is answered with 503 and closed.
    pub connections_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes_max: 64 * 1024,
            head_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            connections_max: 1024,
        }
    }
}

/// How long open connections may take to finish their request after a shutdown was asked for.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);

/// Sent as it is to a client that is one too many.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n\
    content-length: 33\r\n\r\n{\"error\":\"too many connections\"}\n";

/// Why serving ended before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What was decided could not be written. Whoever waited for an answer got 500.
    #[error("the resource stopped, because what it decided could not be written: {0}")]
    Store(#[from] StoreError),
    /// The writing thread is gone without saying why.
    #[error("the resource stopped, because its writing thread died")]
    WriterDied,
}

/// An open resource that is not served yet.
pub struct Resource {
    shared: Arc<Shared>,
    durable: Version,
    ended: End,
}

impl Resource {
    /// Opens the store and restores values, versions, tokens, numbers and answers.
    ///
    /// # Errors
    /// The store cannot be opened or read, is open elsewhere, or was written under another policy.
    pub fn open(config: Config, observer: Observer) -> Result<Resource, StoreError> {
        let Config { policy, store, limits } = config;
        let (store, restored) = Store::open(&store, &policy)?;
        let (queue, ended) = store.start()?;
        let core = Mutex::new(Core { state: restored.state, observer, queue });
        let shared = Arc::new(Shared { policy, limits, core, metrics: Metrics::default() });
        Ok(Resource { shared, durable: restored.durable, ended })
    }

    /// The largest number that was on disk when the store was opened. A former process of this resource
    /// that was killed may have shown its observer larger ones: those were never answered, and are
    /// undone. The numbers of this process are all larger than any that was ever given out.
    pub fn durable(&self) -> Version {
        self.durable
    }

    /// Serves `listener` until `shutdown` completes; then finishes the requests that have begun, and
    /// closes the store.
    ///
    /// # Errors
    /// The store failed. Nothing is answered from then on but 500.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Resource { shared, durable: _, mut ended } = self;
        let (stop, stopping) = watch::channel(());
        let mut connections = JoinSet::new();
        let app = router(Arc::clone(&shared));
        let mut shutdown = pin!(shutdown);
        let early = loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break None,
                end = &mut ended => break Some(end),
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => accept(&mut connections, &shared, &app, stream, &stopping),
                    Err(error) => wait_out(&error, &mut connections).await,
                },
            }
        };
        drop(listener);
        drop(stop);
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_PATIENCE, finished).await.is_err() {
            connections.shutdown().await;
        }
        // The last senders of the queue: the writing thread writes what is left and ends.
        drop((app, shared));
        let end = match early {
            Some(end) => end,
            None => ended.await,
        };
        end.map_err(|_| ServeError::WriterDied)?.map_err(ServeError::Store)
    }
}

/// After a failed `accept`: a connection that was lost before it was accepted costs nothing, but when
/// descriptors have run out the next try fails too, until a connection ends.
async fn wait_out(error: &io::Error, connections: &mut JoinSet<()>) {
    tracing::warn!(%error, "a connection could not be accepted");
    let moment = Duration::from_millis(100);
    let _ = tokio::time::timeout(moment, async {
        match connections.join_next().await {
            Some(_) => {}
            None => std::future::pending().await,
        }
    })
    .await;
}

fn accept(
    connections: &mut JoinSet<()>,
    shared: &Arc<Shared>,
    app: &Router,
    stream: TcpStream,
    stopping: &watch::Receiver<()>,
) {
    if connections.len() as u64 >= shared.limits.connections_max {
        // A fresh socket has room for it; the connection ends in any case.
        let _ = stream.try_write(TOO_MANY);
        return;
    }
    // Answers are small and awaited: each leaves at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection ended before it was served");
        return;
    }
    let open = OpenConnection::new(Arc::clone(shared));
    let connection = converse(stream, shared.limits, app.clone(), stopping.clone());
    connections.spawn(async move {
        let _open = open;
        connection.await;
    });
}

/// Counts a connection as long as it is open, also when its task is aborted.
struct OpenConnection(Arc<Shared>);

impl OpenConnection {
    fn new(shared: Arc<Shared>) -> OpenConnection {
        shared.metrics.connections.fetch_add(1, Relaxed);
        OpenConnection(shared)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Relaxed);
    }
}

/// Answers the requests of one connection, one after another.
async fn converse(stream: TcpStream, limits: Limits, app: Router, mut stopping: watch::Receiver<()>) {
    let phase = Phase::default();
    let io = TokioIo::new(Patient::new(stream, limits, phase.clone()));
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |request| {
        phase.answering();
        let answer = app.call(request);
        let phase = phase.clone();
        async move {
            let answer = answer.await;
            phase.answered();
            answer
        }
    });
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).max_buf_size(64 * 1024);
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut stop = false;
    loop {
        tokio::select! {
            end = connection.as_mut() => {
                if let Err(error) = end {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            // The sender is dropped when the service stops; it never sends.
            _ = stopping.changed(), if !stop => {
                stop = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    core: Mutex<Core>,
}

/// All that a decision needs, under one lock.
struct Core {
    state: State,
    observer: Observer,
    queue: mpsc::Sender<Entry>,
}

/// Why a request was not decided, or its answer cannot be given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecided {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("too many requests are waiting for the disk; this one was not decided")]
    Overloaded,
    #[error("the store failed: whether the request was applied is not known")]
    Broken,
}

impl Shared {
    /// Decides `request` and waits until all that its answer shows is on disk.
    pub(crate) async fn admit(&self, request: &Request) -> Result<Admission, Undecided> {
        let (admission, durable) = self.decide(request)?;
        if !self.policy.planted().is_some_and(|planted| planted.answers_before_durable(&admission)) {
            durable.await.map_err(|_| Undecided::Broken)?;
        }
        Ok(admission)
    }

    fn decide(&self, request: &Request) -> Result<(Admission, oneshot::Receiver<()>), Undecided> {
        // Poisoned: the observer panicked, after a decision that the disk never got.
        let mut core = self.core.lock().map_err(|_| Undecided::Broken)?;
        let Core { state, observer, queue } = &mut *core;
        // The place in the queue comes first: what has been decided must be written.
        let place = queue.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => Undecided::Overloaded,
            mpsc::error::TrySendError::Closed(()) => Undecided::Broken,
        })?;
        let admission = state.decide(&self.policy, request)?;
        observer(&admission);
        self.metrics.decided(&admission);
        let (durable, written) = oneshot::channel();
        place.send(Entry { change: Change::of(state, &admission), durable });
        Ok((admission, written))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::FutureExt;

    use super::*;
    use crate::{Action, Arm, Comparison, HoldId, Key, Planted, Proposal, Token};

    #[test]
    fn nothing_is_answered_before_the_disk_has_it_but_a_registering_read_by_the_planted_bug() {
        let proposals = BTreeMap::from([(Arm::Reads, Proposal { base: None, value: "v".to_owned() })]);
        let request = |token, action| Request {
            key: Key::new("k").unwrap(),
            hold: Some(HoldId(1)),
            op: None,
            token: Some(Token(token)),
            action,
        };
        let requests =
            [request(1, Action::Read), request(1, Action::Read), request(2, Action::Write(proposals.clone()))];
        for (planted, answered) in
            [(None, [false, false, false]), (Some(Planted::AnswersBeforeDurable), [true, false, false])]
        {
            // A disk that never gets to anything.
            let (queue, _never_read) = mpsc::channel(8);
            let core = Mutex::new(Core { state: State::default(), observer: Box::new(|_| {}), queue });
            let policy = Policy::new(&[Arm::Reads], Comparison::Default).unwrap().with_planted(planted);
            let shared = Shared { policy, limits: Limits::default(), metrics: Metrics::default(), core };
            let answers = requests.each_ref().map(|request| shared.admit(request).now_or_never().is_some());
            assert_eq!(answers, answered, "{planted:?}");
        }
    }
}
