//! A resource on a loopback socket, and HTTP by hand, so that nothing of the client under test hides
//! what is on the wire.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use history::{Arm, Comparison, Version};
use resource::{Admission, Config, Limits, Moment, Observer, Policy, Resource, ServeError, WallClock};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The clock of every resource: 100 s.
pub const CLOCK: WallClock = || Duration::from_secs(100);

pub struct Served {
    pub address: SocketAddr,
    pub log: Arc<Mutex<Vec<Admission>>>,
    /// The version on disk when the resource was opened; none if the store was new.
    pub durable: Option<Version>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

pub fn config(store: &Path, arms: &[Arm]) -> Config {
    Config {
        policy: Policy::new(arms, Comparison::Default).unwrap(),
        store: store.join("resource.redb"),
        limits: Limits::default(),
        clock: CLOCK,
    }
}

/// A log, and the observer that fills it.
pub fn observer() -> (Arc<Mutex<Vec<Admission>>>, Observer) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&log);
    let observer = Box::new(move |moment: Moment<'_>| {
        if let Moment::Decided(admission) = moment {
            observed.lock().unwrap().push(admission.clone());
        }
    });
    (log, observer)
}

pub async fn serve(config: Config) -> Served {
    let (log, observer) = observer();
    start(Resource::open(config, observer).unwrap(), log).await
}

pub async fn start(resource: Resource, log: Arc<Mutex<Vec<Admission>>>) -> Served {
    let durable = resource.durable();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async { drop(stopped.await) };
    let task = tokio::spawn(resource.serve(listener, shutdown));
    Served { address, log, durable, stop, task }
}

impl Served {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops it and waits until its store is closed.
    pub async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap().unwrap();
    }

    /// Waits until it stops by itself, and returns the reason.
    pub async fn failure(self) -> String {
        self.task.await.unwrap().unwrap_err().to_string()
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends `raw` on a connection of its own and reads one answer.
    pub async fn send(&self, raw: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.connect().await;
        stream.write_all(raw.as_ref()).await.unwrap();
        answer(&mut stream).await
    }

    pub async fn get(&self, path: &str, headers: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: r\r\n{headers}\r\n")).await
    }

    pub async fn put(&self, path: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        self.send(format!("PUT {path} HTTP/1.1\r\nhost: r\r\n{headers}content-length: {length}\r\n\r\n{body}")).await
    }

    pub fn decided(&self) -> usize {
        self.log.lock().unwrap().len()
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub text: String,
}

impl Answer {
    /// A header, or nothing.
    pub fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line[name.len() + 1..].trim())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }
}

/// Reads one answer, to its `content-length`.
pub async fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        let read = stream.read_buf(&mut bytes).await.unwrap();
        assert_ne!(read, 0, "the connection ended in a head: {}", String::from_utf8_lossy(&bytes));
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer { status, head, text: String::new() };
    let length: usize = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < head_end + length {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the connection ended in a body");
    }
    answer.text = String::from_utf8(bytes[head_end..].to_vec()).unwrap();
    answer
}
