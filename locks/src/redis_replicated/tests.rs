//! The lock on a primary with replicas, against servers and sentinels that say what a test lets them say.

use std::{
    future::{pending, ready},
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    vec::IntoIter,
};

use futures::FutureExt;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{Client, clock::BootClock, hold::Outcome, ports::Unwatched, postgres_session::doubles::Stopped};

const LEASE: Duration = Duration::from_secs(2);

/// The time within which the client must have followed the primary.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two servers, each with a sentinel beside it.
struct Scripted {
    ports: [u16; 2],
    /// The port of both sentinels.
    sentinel_port: u16,
    /// The third number of the loopback addresses, which no other test uses.
    network: u8,
    /// The server that is the primary.
    primary: AtomicUsize,
    /// The address that each sentinel names; the primary's, if there is none.
    named: Mutex<[Option<(String, u16)>; 2]>,
    /// The number of replicas that acknowledge a write.
    acknowledging: AtomicUsize,
    /// True if another client holds every key.
    is_held: AtomicBool,
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
        let scripted = Arc::new(Scripted {
            ports,
            sentinel_port,
            network,
            primary: AtomicUsize::new(0),
            named: Mutex::default(),
            acknowledging: AtomicUsize::new(1),
            is_held: AtomicBool::new(false),
            asked: Mutex::default(),
        });
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
        let (primary, is_held) = (self.primary.load(Ordering::SeqCst), self.is_held.load(Ordering::SeqCst));
        match words[0].as_str() {
            "INFO" => "$22\r\nredis_version:7.0.15\r\n\r\n".into(),
            "ROLE" if server == primary => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".into(),
            "ROLE" => "*1\r\n$5\r\nslave\r\n".into(),
            "SENTINEL" => {
                let named = self.named.lock().unwrap()[server].clone();
                let (host, port) = named.unwrap_or_else(|| self.at(primary));
                let port = port.to_string();
                format!("*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n", host.len(), port.len())
            }
            "WAIT" => {
                self.asked.lock().unwrap().push((server, words.join(" ")));
                format!(":{}\r\n", self.acknowledging.load(Ordering::SeqCst))
            }
            "EVAL" | "SET" if server != primary => "-READONLY You can't write against a read only replica.\r\n".into(),
            "SET" => {
                self.asked.lock().unwrap().push((server, "acquire".into()));
                if is_held { "$-1\r\n".into() } else { "+OK\r\n".into() }
            }
            "EVAL" => {
                let what = match words[1].as_str() {
                    script if script.contains("INCR") => "acquire",
                    script if script.contains("PEXPIRE") => "renew",
                    _ => "release",
                };
                self.asked.lock().unwrap().push((server, what.into()));
                if is_held { ":0\r\n".into() } else { ":1\r\n".into() }
            }
            _ => "+OK\r\n".into(),
        }
    }

    /// The host and the port of a server.
    fn at(&self, server: usize) -> (String, u16) {
        (format!("127.0.{}.{}", self.network, server + 1), self.ports[server])
    }

    fn addresses(&self) -> Vec<ServerAddress> {
        let address = |server: usize| {
            let (host, port) = self.at(server);
            ServerAddress::new(format!("redis-{}", server + 1), format!("{host}:{port}"))
        };
        vec![address(0), address(1)]
    }

    async fn lock<P: Protocol>(&self) -> Arc<dyn Lock> {
        self.lock_with::<P>(TokenSource::Counter).await
    }

    /// A lock that waits for every answer.
    async fn lock_with<P: Protocol>(&self, tokens: TokenSource) -> Arc<dyn Lock> {
        let connected = connect_by::<P>(self.addresses(), Connecting::default(), self.sentinel_port).await.unwrap();
        assert!(connected.versions.iter().all(|version| version.as_deref() == Ok("7.0.15")));
        build(connected.servers, tokens, Arc::new(Stopped)).unwrap()
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
    let followed = time::timeout(PATIENCE, async {
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
    for tokens in [TokenSource::Counter, TokenSource::None] {
        let lock = servers.lock_with::<WaitProtocol>(tokens).await;
        let (key, owner) = attempt();
        servers.acknowledging.store(1, Ordering::SeqCst);
        assert!(lock.acquire(&key, owner.clone(), LEASE, &Unwatched).await.is_ok());
        assert_eq!(servers.asked(), [(0, "acquire".into()), (0, "WAIT 1 100".into())], "{tokens:?}");
        servers.acknowledging.store(0, Ordering::SeqCst);
        let failure = lock.acquire(&key, owner, LEASE, &Unwatched).await.unwrap_err();
        assert_eq!(failure.outcome, Outcome::Indeterminate);
        let FailureReason::Error(said) = failure.reason else { panic!("{failure:?}") };
        assert!(said.contains("0 of 1 replicas"), "{said}");
        let asked = [(0, "acquire".into()), (0, "WAIT 1 100".into()), (0, "release".into())];
        assert_eq!(servers.asked(), asked, "{tokens:?}");
    }
}

#[tokio::test]
async fn a_refusal_waits_for_no_replica() {
    let servers = Scripted::start(79).await;
    servers.acknowledging.store(0, Ordering::SeqCst);
    servers.is_held.store(true, Ordering::SeqCst);
    for tokens in [TokenSource::Counter, TokenSource::None] {
        let lock = servers.lock_with::<WaitProtocol>(tokens).await;
        let (key, owner) = attempt();
        let failure = lock.acquire(&key, owner, LEASE, &Unwatched).await.unwrap_err();
        assert_eq!((failure.reason, failure.outcome), (FailureReason::Held, Outcome::Failed));
        assert_eq!(servers.asked(), [(0, "acquire".into())], "{tokens:?}");
    }
}

#[tokio::test]
async fn a_renewal_counts_only_if_a_replica_acknowledged_it() {
    let servers = Scripted::start(74).await;
    let lock = servers.lock::<WaitProtocol>().await;
    let (key, owner) = attempt();
    let mut hold = lock.acquire(&key, owner, LEASE, &Unwatched).await.unwrap();
    for (acknowledging, outcome) in [(1, None), (0, Some(Outcome::Indeterminate))] {
        servers.asked();
        servers.acknowledging.store(acknowledging, Ordering::SeqCst);
        let renewed = lock.renew(&mut hold, LEASE, &Unwatched).await;
        assert_eq!(renewed.err().map(|failure| failure.outcome), outcome);
        assert_eq!(servers.asked(), [(0, "renew".into()), (0, "WAIT 1 100".into())]);
    }
}

#[tokio::test]
async fn only_the_client_with_wait_asks_for_acknowledgements() {
    for (name, network, asks) in [("redis-replicated", 75, false), ("redis-replicated-wait", 76, true)] {
        let (servers, client) = (Scripted::start(network).await, Client::named(name).unwrap());
        // The client looks in vain for a sentinel at the usual port, and begins with the first server. That time
        // passes at once.
        time::pause();
        let connected = (client.connect)(client.name, servers.addresses(), Connecting::default()).await.unwrap();
        time::resume();
        let lock = (client.build)(connected.servers, TokenSource::Counter, Arc::new(BootClock)).unwrap();
        let (key, owner) = attempt();
        let acquiring = async {
            // The connection may not be open yet.
            while lock.acquire(&key, owner.clone(), LEASE, &Unwatched).await.is_err() {
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(PATIENCE, acquiring).await.expect("a grant");
        assert_eq!(servers.asked().iter().any(|(_, asked)| asked == "WAIT 1 100"), asks, "{name}");
    }
}

#[tokio::test]
async fn the_client_follows_each_failover_although_no_operation_fails() {
    let servers = Scripted::start(77).await;
    let (addresses, port) = (servers.addresses(), servers.sentinel_port);
    let connected = connect_by::<RedisProtocol>(addresses, Connecting::default(), port).await.unwrap();
    let Servers::Replicated(replication) = connected.servers else { panic!("a primary and its replicas") };
    let followed = async |name: &str| {
        let following = async {
            while replication.primary().name() != name {
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(PATIENCE, following).await.expect("the client follows the primary");
    };
    servers.primary.store(1, Ordering::SeqCst);
    followed("redis-2").await;
    servers.primary.store(0, Ordering::SeqCst);
    // The time until the next look passes at once.
    time::pause();
    time::sleep(LOOK_PAUSE + LOOK_EVERY).await;
    time::resume();
    followed("redis-1").await;
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

#[tokio::test(start_paused = true)]
async fn a_name_without_an_answer_is_soon_given_up() {
    let [known, other] = [1, 2].map(|host| SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 7001)));
    for (addresses, found) in [(vec![], false), (vec![other], false), (vec![other, known], true)] {
        assert_eq!(is_one_of(known, ready(Ok(addresses.into_iter()))).await, found);
    }
    let began = time::Instant::now();
    assert!(!is_one_of(known, pending::<io::Result<IntoIter<SocketAddr>>>()).await);
    assert!(began.elapsed() <= 2 * ASK_TIMEOUT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_sentinel_that_names_no_primary_is_not_the_last() {
    let servers = Scripted::start(73).await;
    servers.primary.store(1, Ordering::SeqCst);
    let (replica, unknown) = (Some(servers.at(0)), Some(("127.0.73.9".to_owned(), 7001)));
    for (named, found, order) in [
        ([replica.clone(), None], Some(1), [1, 0]),
        ([unknown, None], Some(1), [1, 0]),
        ([None, replica.clone()], Some(1), [0, 1]),
        ([replica.clone(), replica], None, [1, 0]),
    ] {
        *servers.named.lock().unwrap() = named.clone();
        let mut sentinels = Sentinels::new(servers.addresses(), 0, servers.sentinel_port);
        assert_eq!((sentinels.primary().await, sentinels.order), (found, order.to_vec()), "{named:?}");
    }
}

#[tokio::test]
async fn the_last_sentinel_is_enough() {
    let servers = Scripted::start(78).await;
    let down = |host: u8| ServerAddress::new(format!("redis-{host}"), format!("127.0.78.{host}:7001"));
    let mut sentinels = Sentinels::new(vec![down(8), down(9), servers.addresses().remove(0)], 0, servers.sentinel_port);
    assert_eq!((sentinels.primary().await, sentinels.order), (Some(2), vec![2, 0, 1]));
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
