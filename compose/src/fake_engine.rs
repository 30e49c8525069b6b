//! An engine for tests: it answers each request as the test says, and as late.

use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf, sync::Arc, time::Duration};

use history::NodeName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    time::sleep,
};

use crate::{
    Engine,
    binary::BinaryVolume,
    bring_up::WORKER_ROLE,
    container::{Node, Place, Recipe, Runs},
    image::Image,
    own_server::OwnServer,
    process::Outlet,
    running::{Member, Running},
};

const VOLUME: &str = r#"{"Name":"v","Driver":"local","Mountpoint":"/v","Labels":{},"Options":{},"Scope":"local"}"#;

/// The end of a reply after which the connection stays open until the client closes it.
pub(crate) const OPEN: &str = "(open)";

/// The replies to a call that was done; that names an object that is not there; that is refused, and had no effect; and
/// that failed in the engine, perhaps after its effect.
pub(crate) const DONE: &str = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
pub(crate) const GONE: &str = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
pub(crate) const REFUSED: &str = "HTTP/1.1 409 Conflict\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
pub(crate) const FAILED: &str =
    "HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";

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

/// A cluster on a fake engine on which every container runs, with pid 7.
pub(crate) async fn all_running(dir: &tempfile::TempDir) -> Running {
    let state = json(r#"{"State":{"Running":true,"Pid":7}}"#);
    let engine = start(dir, move |_| (Duration::ZERO, state.clone())).await;
    running(&engine).await
}

/// Starts a fake engine and connects to it. `answer` need not know of versions, or of new volumes.
pub(crate) async fn start(
    dir: &tempfile::TempDir,
    answer: impl Fn(&str) -> (Duration, String) + Send + Sync + 'static,
) -> Engine {
    let path: PathBuf = dir.path().join("engine.sock");
    serve(UnixListener::bind(&path).unwrap(), move |request| match request {
        r if r.ends_with("/version") => (Duration::ZERO, json(r#"{"ApiVersion":"1.41"}"#)),
        r if r.ends_with("/volumes/create") => (Duration::ZERO, json(VOLUME)),
        _ => answer(request),
    });
    Engine::connect_to(&format!("unix://{}", path.display())).await.unwrap()
}

/// The place of a run whose servers exist already.
pub(crate) async fn place(engine: &Engine) -> Place {
    let server = OwnServer { host: "staging".to_owned(), at: "10.0.0.1:6379".parse().unwrap() };
    Place {
        engine: engine.clone(),
        run: "r-1".to_owned(),
        keep: false,
        network: "network".to_owned(),
        binary: BinaryVolume::create(engine, "r-1", false).await.unwrap(),
        loses_power: false,
        worker_files: None,
        own_servers: BTreeMap::from([(NodeName::new("redis-1"), server)]),
    }
}

/// A cluster with one worker, whose servers exist already.
pub(crate) async fn running(engine: &Engine) -> Running {
    let worker = NodeName::new("worker-1");
    let node = Node { name: worker.clone(), role: WORKER_ROLE.to_owned(), runs: Runs::Own(Vec::new()) };
    let (id, entrypoint, arguments) = ("sha256:worker".to_owned(), Vec::new(), Vec::new());
    let image = Image { id, volumes: Vec::new(), entrypoint, arguments };
    let recipe = Recipe { node, image, address: Ipv4Addr::LOCALHOST };
    let members = BTreeMap::from([(worker, Member::new("container".to_owned(), recipe, None))]);
    Running::new(place(engine).await, members, Outlet::new(1).0)
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
    let sent = reply.strip_suffix(OPEN);
    let _ = stream.write_all(sent.unwrap_or(&reply).as_bytes()).await;
    if sent.is_some() {
        let _ = stream.read_u8().await;
    }
}

/// Returns whether a request has its whole body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.is_none_or(|length| body.len() >= length.trim().parse().unwrap_or(0))
}
