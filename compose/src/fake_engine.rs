//! An engine for tests: it answers each request as the test says, and as late.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    time::sleep,
};

use crate::Engine;

/// A reply with a body of JSON.
pub(crate) fn json(body: &str) -> String {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
    format!("{head} {}\r\n\r\n{body}", body.len())
}

/// Answers requests on `listener`: `answer` gets `POST /v1.41/exec/e/start` and returns a delay and a reply.
pub(crate) fn serve(
    listener: UnixListener,
    answer: impl Fn(&str) -> (Duration, String) + Send + Sync + 'static,
) -> tokio::task::JoinHandle<()> {
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move { one(stream, &*answer).await });
        }
    })
}

/// Starts a fake engine and connects to it. `answer` need not know of versions.
pub(crate) async fn start(
    dir: &tempfile::TempDir,
    answer: impl Fn(&str) -> (Duration, String) + Send + Sync + 'static,
) -> Engine {
    let path: PathBuf = dir.path().join("engine.sock");
    let version = |request: &str| request.ends_with("/version");
    serve(UnixListener::bind(&path).unwrap(), move |request| match version(request) {
        true => (Duration::ZERO, json(r#"{"ApiVersion":"1.41"}"#)),
        false => answer(request),
    });
    Engine::connect_to(&format!("unix://{}", path.display())).await.unwrap()
}

async fn one(mut stream: UnixStream, answer: &(dyn Fn(&str) -> (Duration, String) + Send + Sync)) {
    let mut request = Vec::new();
    while !is_whole(&request) {
        if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
            return;
        }
    }
    let text = String::from_utf8_lossy(&request);
    let line = text.lines().next().unwrap_or_default();
    let (delay, reply) = answer(line.strip_suffix(" HTTP/1.1").unwrap_or(line));
    sleep(delay).await;
    let _ = stream.write_all(reply.as_bytes()).await;
}

/// Returns whether a request has its whole body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.is_none_or(|length| body.len() >= length.trim().parse().unwrap_or(0))
}
