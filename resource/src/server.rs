//! The server: opens the store, and answers connections until the shutdown. A current-thread runtime is enough; only
//! the store has its own thread.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use history::Version;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::asked::Opened;
use crate::etcd::{self, LockKeys};
use crate::http::router;
use crate::limits::Limits;
use crate::moment::{Observer, WallClock};
use crate::policy::Policy;
use crate::postgres;
use crate::s3;
use crate::service::Shared;
use crate::store::{End, Store, StoreError};
use crate::timeouts::{Phase, TimedStream};

/// The configuration of a resource.
#[derive(Clone, Debug)]
pub struct Config {
    /// Arms and comparison.
    pub policy: Policy,
    /// The file of the store; created if missing. Its directory must exist.
    pub store: PathBuf,
    /// The limits for clients.
    pub limits: Limits,
    /// The clock of the arm `deadline`.
    pub clock: WallClock,
}

/// The time for open connections to finish their request after a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// The raw answer to a connection beyond the limit.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n\
    content-length: 33\r\n\r\n{\"error\":\"too many connections\"}\n";

/// The reason why the service stopped before its shutdown.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A decision could not be written. Waiting requests got 500.
    #[error("the resource stopped, because a decision could not be written: {0}")]
    Store(#[from] StoreError),
    /// The writing thread ended without an error.
    #[error("the resource stopped, because its writing thread died")]
    WriterDied,
}

/// An open resource that does not serve yet.
pub struct Resource {
    shared: Arc<Shared>,
    durable: Option<Version>,
    ended: End,
}

impl Resource {
    /// Opens the store and restores values, versions, tokens, numbers and answers.
    ///
    /// # Errors
    /// The store cannot be opened or read, is open elsewhere, or was written under another policy.
    pub fn open(config: Config, observer: Observer) -> Result<Resource, StoreError> {
        let Config { policy, store, limits, clock } = config;
        let (store, restored) = Store::open(&store, &policy)?;
        let (queue, ended) = store.start()?;
        let shared = Arc::new(Shared::new(policy, limits, restored.state, observer, clock, queue));
        Ok(Resource { shared, durable: restored.durable, ended })
    }

    /// Opens the tables of the Postgres server at `address` (`host:port`), which must trust the user `postgres`. From
    /// then on the server decides, and this process writes the admission log. No other process may write to the tables.
    ///
    /// # Errors
    /// The server does not answer within a minute, or its tables were written under another policy.
    pub async fn over_postgres(
        policy: Policy,
        limits: Limits,
        clock: WallClock,
        address: String,
        observer: Observer,
    ) -> Result<Resource, StoreError> {
        let opened = postgres::open(address, policy.clone(), clock, observer).await?;
        Ok(Resource::over_store(policy, limits, opened))
    }

    /// Connects to the etcd members at `addresses` (`host:port`). From then on the cluster decides, and this process
    /// writes the admission log. `lock_keys` gives the prefix of the lock keys of a key, for the arm `guard`. The
    /// cluster must be new, and no other process may write to the resource's keys.
    ///
    /// # Errors
    /// No member answers within a minute.
    pub async fn over_etcd(
        policy: Policy,
        limits: Limits,
        clock: WallClock,
        (addresses, lock_keys): (Vec<String>, LockKeys),
        observer: Observer,
    ) -> Result<Resource, StoreError> {
        let opened = etcd::open(addresses, policy.clone(), lock_keys, clock, observer).await?;
        Ok(Resource::over_store(policy, limits, opened))
    }

    /// Opens an object of the S3 server at `address` (`host:port`), in a bucket that is created if it is missing. From
    /// then on a decision happens exactly if a conditional put replaces the object, and this process writes the
    /// admission log. No other process may write to the bucket.
    ///
    /// # Errors
    /// The server does not answer within a minute or refuses a request, or the object was written under another policy.
    pub async fn over_s3(
        policy: Policy,
        limits: Limits,
        clock: WallClock,
        address: String,
        observer: Observer,
    ) -> Result<Resource, StoreError> {
        let opened = s3::open(address, policy.clone(), clock, observer).await?;
        Ok(Resource::over_store(policy, limits, opened))
    }

    fn over_store(policy: Policy, limits: Limits, Opened { asker, durable, end }: Opened) -> Resource {
        let shared = Arc::new(Shared::over_store(policy, limits, asker));
        Resource { shared, durable, ended: end }
    }

    /// Returns the largest number of a decision on disk at the opening; none if the store is new. The observer of an
    /// earlier, killed process may have seen larger numbers: those were never answered, and are undone. All numbers of
    /// this process are larger.
    pub fn durable(&self) -> Option<Version> {
        self.durable
    }

    /// Serves `listener` until `shutdown` completes; then finishes the current requests, and closes the store.
    ///
    /// # Errors
    /// The store failed. Every later answer is 500.
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
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, finished).await.is_err() {
            connections.shutdown().await;
        }
        // Drop the last senders of the queue: the writing thread writes the rest and ends.
        drop((app, shared));
        let end = match early {
            Some(end) => end,
            None => ended.await,
        };
        end.map_err(|_| ServeError::WriterDied)?.map_err(ServeError::Store)
    }
}

/// Waits a moment after a failed `accept`: if no descriptor is free, every try fails until a connection ends.
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
        // Best effort: the connection is closed in any case.
        let _ = stream.try_write(TOO_MANY);
        return;
    }
    // Send each small answer at once.
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

/// Counts a connection while it is open, even if its task is aborted.
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

/// Answers the requests of one connection in turn.
async fn converse(stream: TcpStream, limits: Limits, app: Router, mut stopping: watch::Receiver<()>) {
    let phase = Phase::default();
    let io = TokioIo::new(TimedStream::new(stream, limits, phase.clone()));
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
            // The sender never sends; the service drops it at the shutdown.
            _ = stopping.changed(), if !stop => {
                stop = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
