//! The lock on a primary with replicas, against servers and sentinels that say what a test lets them say.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::FutureExt;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{clock::BootClock, hold::Outcome, ports::Unwatched};

const LEASE: Duration = Duration::from_secs(2);

/// Two servers, each with a sentinel beside it.
struct Scripted {
    ports: [u16; 2],
    /// The port of both sentinels.
    sentinel_port: u16,
    /// The third number of the loopback addresses, which no other test uses.
    network: u8,
    /// The server that is the primary.
    primary: AtomicUsize,
    /// The number of replicas that acknowledge a write.
    acknowledging: AtomicUsize,
    /// The commands about locks: the server and the first words.
    asked: Mutex<Vec<(usize, String)>>,
}

impl Scripted {
    async fn start(network: u8) -> Arc<Self> {
        let at = |server: usize, port| async move {
            TcpListener::bind((Ipv4Addr::new(127, 0, network, server as u8 + 1), port)).await.unwrap()
        };
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let servers = [at(0, 0).await, at(1, 0).await];
        let ports = [port(&servers[0]), port(&servers[1])];
        let first = at(0, 0).await;
        let sentinel_port = port(&first);
        let sentinels = [first, at(1, sentinel_port).await];
        let (primary, acknowledging, asked) = (AtomicUsize::new(0), AtomicUsize::new(1), Mutex::default());
        let scripted = Arc::new(Scripted { ports, sentinel_port, network, primary, acknowledging, asked });
        for (place, listener) in servers.into_iter().chain(sentinels).enumerate() {
            let scripted = scripted.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(scripted.clone().serve(place % 2, stream));
                }
            });
        }
        scripted
    }

    async fn serve(self: Arc<Self>, server: usize, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(words) = request(&mut stream).await {
            let answer = self.answer(server, &words);
            if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn answer(&self, server: usize, words: &[String]) -> String {
        let primary = self.primary.load(Ordering::SeqCst);
        match words[0].as_str() {
            "INFO" => "$22\r\nredis_version:7.0.15\r\n\r\n".into(),
            "ROLE" if server == primary => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".into(),
            "ROLE" => "*1\r\n$5\r\nslave\r\n".into(),
            "SENTINEL" => {
                let (host, port) = (format!("127.0.{}.{}", self.network, primary + 1), self.ports[primary].to_string());
                format!("*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n", host.len(), port.len())
            }
            "WAIT" => {
                self.asked.lock().unwrap().push((server, words.join(" ")));
                format!(":{}\r\n", self.acknowledging.load(Ordering::SeqCst))
            }
            "EVAL" if server != primary => "-READONLY You can't write against a read only replica.\r\n".into(),
            "EVAL" => {
                let what = if words[1].contains("INCR") { "acquire" } else { "release" };
                self.asked.lock().unwrap().push((server, what.into()));
                ":1\r\n".into()
            }
            _ => "+OK\r\n".into(),
        }
    }

    async fn lock<P: Protocol>(&self) -> Arc<dyn Lock> {
        let server = |server: usize| {
            ServerAddress::new(
                format!("redis-{}", server + 1),
                format!("127.0.{}.{}:{}", self.network, server + 1, self.ports[server]),
            )
        };
        let connected = connect_by::<P>(vec![server(0), server(1)], 0, self.sentinel_port).await.unwrap();
        assert!(connected.versions.iter().all(|version| version.as_deref() == Ok("7.0.15")));
        build(connected.servers, TokenSource::Counter, Arc::new(BootClock)).unwrap()
    }

    fn asked(&self) -> Vec<(usize, String)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

/// Reads one request; none at the end of the connection.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let words = line.trim().strip_prefix('*')?.parse::<usize>().ok()?;
    let mut found = Vec::new();
    for _ in 0..words {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        let mut bytes = vec![0; line.trim().strip_prefix('$')?.parse::<usize>().ok()? + 2];
        stream.read_exact(&mut bytes).await.ok()?;
        found.push(String::from_utf8(bytes).ok()?.trim_end().to_owned());
    }
    Some(found)
}

/// Three sentinels beside servers that nobody has started, of the process with this number.
fn sentinels(process: usize) -> Sentinels {
    let server = |number: u8| ServerAddress::new(format!("redis-{number}"), format!("127.0.0.{number}:7001"));
    Sentinels::new((1..=3).map(server).collect(), process, SENTINEL_PORT)
}

fn attempt() -> (Key, Owner) {
    (Key::new("k0"), Owner::new("one"))
}

#[tokio::test]
async fn the_client_follows_a_failover_and_says_which_server_granted() {
    let servers = Scripted::start(71).await;
    let lock = servers.lock::<RedisProtocol>().await;
    let (key, owner) = attempt();
    let hold = lock.acquire(&key, owner.clone(), LEASE, &Unwatched).await.unwrap();
    assert_eq!(hold.answers[0].0.as_str(), "redis-1");
    servers.primary.store(1, Ordering::SeqCst);
    // The old primary is a replica now, and refuses to write: the attempt certainly failed.
    let failure = lock.acquire(&key, owner.clone(), LEASE, &Unwatched).await;
    assert!(failure.is_err_and(|failure| failure.outcome == Outcome::Failed));
    let followed = time::timeout(Duration::from_secs(20), async {
        loop {
            if let Ok(hold) = lock.acquire(&key, owner.clone(), LEASE, &Unwatched).await {
                return hold.answers[0].0.clone();
            }
            time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(followed.await.unwrap().as_str(), "redis-2");
    assert!(servers.asked().iter().all(|(_, what)| what == "acquire"), "without WAIT");
}

#[tokio::test]
async fn a_grant_that_no_replica_acknowledged_is_indeterminate_and_undone() {
    let servers = Scripted::start(72).await;
    let lock = servers.lock::<WaitProtocol>().await;
    let (key, owner) = attempt();
    assert!(lock.acquire(&key, owner.clone(), LEASE, &Unwatched).await.is_ok());
    assert_eq!(servers.asked(), [(0, "acquire".into()), (0, "WAIT 1 100".into())]);
    servers.acknowledging.store(0, Ordering::SeqCst);
    let failure = lock.acquire(&key, owner, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Indeterminate);
    assert!(matches!(&failure.reason, FailureReason::Error(said) if said.contains("0 of 1 replicas")), "{failure:?}");
    assert_eq!(servers.asked(), [(0, "acquire".into()), (0, "WAIT 1 100".into()), (0, "release".into())]);
}

#[test]
fn each_process_asks_another_sentinel_first() {
    let orders = [0, 1, 2, 3].map(|process| sentinels(process).order);
    assert_eq!(orders, [vec![0, 1, 2], vec![1, 2, 0], vec![2, 0, 1], vec![0, 1, 2]]);
}

#[tokio::test]
async fn a_sentinel_names_a_server_by_its_address() {
    for (host, port, found) in
        [("127.0.0.1", 7001, Some(0)), ("127.0.0.3", 7001, Some(2)), ("127.0.0.3", 7002, None), ("unknown", 7001, None)]
    {
        assert_eq!(sentinels(1).server_at(host, port).await, found, "{host}:{port}");
    }
}

#[test]
fn tokens_that_no_redis_makes_are_refused() {
    let servers = Servers::Replicated(Arc::new(Replication::new(Vec::new(), 0)));
    let refused = build(servers, TokenSource::Revision, Arc::new(BootClock)).err();
    let (lock, tokens, makes) = ("redis-replicated", TokenSource::Revision, Redis::TOKENS);
    assert_eq!(refused, Some(CannotBuild::Tokens { lock, tokens, makes }));
}

#[test]
fn only_an_error_of_the_server_asks_for_the_primary() {
    let servers = Arc::new(Replication::new(Vec::new(), 0));
    let lock = RedisReplicated { servers: servers.clone(), tokens: TokenSource::Counter, clock: Arc::new(BootClock) };
    let failed = |reason| Err(Failure { reason, outcome: Outcome::Failed, answers: Vec::new() });
    let error = FailureReason::Error("READONLY".into());
    for (result, asks) in [(Ok(()), false), (failed(FailureReason::Held), false), (failed(error), true)] {
        let said = format!("{result:?}");
        drop(lock.heed(result));
        assert_eq!(servers.is_asked_to_look().now_or_never().is_some(), asks, "{said}");
    }
}
