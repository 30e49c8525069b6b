//! The way to an engine behind a Unix socket.

use std::{io, path::Path, sync::Arc, time::Duration};

use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker, errors::Error as EngineError};
use futures::{FutureExt, TryFutureExt};
use hyper::Uri;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use tokio::{net::UnixStream, time::sleep};

/// Pauses between two tries to connect, while the queue of the engine's socket is full: 5 s together.
const PAUSES_MS: [u64; 9] = [10, 20, 40, 80, 150, 300, 800, 1_600, 2_000];

/// Makes a client for the engine whose socket is at `path`. It connects at each request. bollard's own client does not
/// try again if the queue of the socket is full. No request was sent then, so a second try repeats nothing.
pub(crate) fn client(path: &str, timeout: Duration) -> Result<Docker, EngineError> {
    let path: Arc<Path> = Path::new(path).into();
    let connector = tower::service_fn(move |_: Uri| connect(Arc::clone(&path)).boxed());
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let transport = move |request: BollardRequest| client.request(request).map_err(EngineError::from);
    // The host is only a header.
    Docker::connect_with_custom_transport(transport, Some("http://docker"), timeout.as_secs(), API_DEFAULT_VERSION)
}

async fn connect(path: Arc<Path>) -> io::Result<TokioIo<UnixStream>> {
    for pause_ms in PAUSES_MS {
        match UnixStream::connect(&path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tracing::debug!(%error, "the queue of the engine's socket is full");
                sleep(Duration::from_millis(pause_ms)).await;
            }
            connected => return connected.map(TokioIo::new),
        }
    }
    UnixStream::connect(&path).await.map(TokioIo::new)
}
