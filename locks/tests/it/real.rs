//! Real Redis servers, started here and stopped here, where there is one on the path.

use std::{
    net::TcpListener,
    process::{Child, Stdio},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use locks::{
    BootClock, FailureReason, Key, Lock, Node, NodeAnswer, NodeError, Outcome, Owner, Redis, Redlock, Reply, Step,
    StepAnswer, Token, TokenSource, Unwatched, connect_redis, server_version,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use crate::{
    cluster::{key, owner},
    redis_binary::redis_server,
    say::left_out,
    store::Store,
};

/// Long enough that nothing runs out in a test.
pub const LONG: Duration = Duration::from_secs(10_000);

/// For how long a test may wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    name: String,
    port: u16,
    child: Child,
    dir: TempDir,
}

impl Server {
    /// Starts one, or says loudly that there is none to start.
    pub async fn start(number: usize) -> Option<Self> {
        if redis_server().is_none() {
            assert!(std::env::var_os("CI").is_none(), "no redis-server on the path (scripts/setup installs one)");
            left_out("no redis-server on the path, nothing was tried on a real one");
            return None;
        }
        loop {
            let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
            let mut server = Self { name: format!("redis-{number}"), port, child: spawn(port, &dir), dir };
            if server.wait_until_up().await {
                return Some(server);
            }
        }
    }

    async fn start_many(how_many: usize) -> Option<Vec<Self>> {
        let mut servers = Vec::new();
        for number in 1..=how_many {
            servers.push(Self::start(number).await?);
        }
        Some(servers)
    }

    /// Returns whether the server came up. Another process may have taken the port first.
    async fn wait_until_up(&mut self) -> bool {
        let up = async {
            while server_version(&self.addr()).await.is_err() {
                if self.child.try_wait().unwrap().is_some() {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            true
        };
        tokio::time::timeout(PATIENCE, up).await.expect("a server that answers")
    }

    fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn connect(&self) -> Arc<dyn Node> {
        connect_redis(&self.name, &self.addr())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn restart_empty(&mut self) {
        self.child = spawn(self.port, &self.dir);
        assert!(self.wait_until_up().await);
    }

    /// One command on a connection of its own.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let client = redis::Client::open(format!("redis://{}", self.addr())).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut cmd = redis::cmd(command[0]);
        for argument in &command[1..] {
            cmd.arg(argument);
        }
        cmd.query_async(&mut connection).await.unwrap()
    }

    /// The keys that are set at this moment.
    async fn locked(&self) -> Vec<String> {
        self.ask(&["KEYS", "lock:*"]).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(port: u16, dir: &TempDir) -> Child {
    redis_server()
        .expect("it was there before")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .current_dir(dir.path())
        .spawn()
        .unwrap()
}

/// The five servers' nodes.
fn nodes(servers: &[Server]) -> Vec<Arc<dyn Node>> {
    servers.iter().map(Server::connect).collect()
}

pub async fn answer(reply: Reply<Result<StepAnswer, NodeError>>) -> Result<StepAnswer, NodeError> {
    tokio::time::timeout(PATIENCE, reply).await.expect("an answer")
}

#[tokio::test]
async fn every_step_does_on_a_server_what_it_does_in_memory() {
    let Some(server) = Server::start(1).await else { return };
    let node = server.connect();
    let (mut rng, mut store) = (ChaCha8Rng::seed_from_u64(3), Store::default());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..3_000 {
        let (key, owner) =
            (Key::new(format!("k{}", rng.random_range(0..2))), Owner::new(["a", "b"][rng.random_range(0..2)]));
        let near = store.counters.get(&key).copied().unwrap_or_default() + 3;
        let token = Token(rng.random_range(near.saturating_sub(6)..near));
        let step = match rng.random_range(0..17_u32) {
            0 => Step::Acquire(key, owner, LONG),
            1 => Step::AcquireUncounted(key, owner, LONG),
            2 => Step::Extend(key, owner, LONG),
            3 => Step::Release(key, owner),
            4 => Step::RaiseFence(key, owner, token),
            #[cfg(feature = "planted")]
            number @ 5..16 => crate::planted::step(number - 5, key, owner, token),
            // Keys are set more often than they are removed.
            _ => Step::Acquire(key, owner, LONG),
        };
        let name = format!("{step:?}").split("(Key").next().map(str::to_owned);
        let expected = store.apply(&step, Duration::ZERO);
        assert_eq!(answer(node.send(step.clone())).await, Ok(expected), "{step:?}");
        seen.insert((name, expected == StepAnswer::Refused));
    }
    let planted = if cfg!(feature = "planted") { 2 * 11 - 2 } else { 0 };
    let count = 2 * 5 + planted;
    assert_eq!(seen.len(), count, "each step was done and refused; an overwrite and a count are never refused");
}

#[tokio::test]
async fn an_extension_never_shortens_and_a_lease_is_kept_in_milliseconds() {
    let Some(server) = Server::start(1).await else { return };
    let node = server.connect();
    let left = async || server.ask::<u64>(&["PTTL", "lock:{k0}"]).await;
    answer(node.send(Step::Acquire(key(), owner("a"), LONG))).await.unwrap();
    assert!((9_000_000..=10_000_000).contains(&left().await));
    assert_eq!(answer(node.send(Step::Extend(key(), owner("a"), LONG / 100))).await, Ok(StepAnswer::Done));
    assert!((9_000_000..=10_000_000).contains(&left().await));
    assert_eq!(answer(node.send(Step::Extend(key(), owner("a"), 2 * LONG))).await, Ok(StepAnswer::Done));
    assert!((19_000_000..=20_000_000).contains(&left().await));
}

#[tokio::test]
async fn steps_are_done_in_order_each_once_although_nobody_waits_for_them() {
    let Some(server) = Server::start(1).await else { return };
    let node = server.connect();
    for _ in 0..1_000 {
        drop(node.send(Step::Acquire(key(), owner("a"), LONG)));
        drop(node.send(Step::Release(key(), owner("a"))));
    }
    assert_eq!(answer(node.send(Step::Acquire(key(), owner("b"), LONG))).await, Ok(StepAnswer::Granted(Token(1_001))));
}

#[tokio::test]
async fn a_full_queue_is_a_definite_failure_and_all_that_was_queued_is_answered() {
    let Some(server) = Server::start(1).await else { return };
    let node = server.connect();
    // Nothing is awaited, so that nothing leaves the queue.
    let mut queued = Vec::new();
    let failure = loop {
        let mut reply = node.send(Step::Acquire(key(), owner("a"), LONG));
        match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => queued.push(reply),
            Poll::Ready(answer) => break answer,
        }
    };
    assert!(matches!(failure, Err(NodeError::Definite(_))), "{failure:?}");
    let mut answers = Vec::new();
    for reply in queued {
        answers.push(answer(reply).await);
    }
    assert_eq!(answers[0], Ok(StepAnswer::Granted(Token(1))));
    assert!(answers.len() > 1_000 && answers[1..].iter().all(|answer| *answer == Ok(StepAnswer::Refused)));
}

/// `cycles` cycles of `tasks` clients over half as many keys, then what is still locked on any server.
async fn left_behind(servers: &[Server], tasks: usize, cycles: usize) -> (usize, Vec<String>) {
    let lock = Arc::new(
        Redlock::new(nodes(servers), Arc::new(BootClock), TokenSource::TwoPhase).unwrap().with_node_timeout(PATIENCE),
    );
    let clients = (0..tasks).map(|task| {
        let lock = lock.clone();
        tokio::spawn(async move {
            let mut rng = ChaCha8Rng::seed_from_u64(task as u64);
            let key = Key::new(format!("k{}", task / 2));
            let mut held = 0;
            for _ in 0..cycles / tasks {
                if let Ok(hold) = lock.acquire(&key, Owner::random(&mut rng), LONG, &Unwatched).await {
                    held += 1;
                    lock.release(&hold, &Unwatched).await.unwrap();
                }
            }
            held
        })
    });
    let held = futures::future::try_join_all(clients).await.unwrap().into_iter().sum();
    // Some releases are still under way; what is left behind stays for longer than this waits.
    let left = async {
        loop {
            let mut left = Vec::new();
            for server in servers {
                left.extend(server.locked().await);
            }
            if left.is_empty() {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    (held, tokio::time::timeout(Duration::from_secs(10), left).await.unwrap_or_else(|_| vec!["a key".to_owned()]))
}

#[tokio::test]
async fn two_thousand_cycles_on_five_servers_leave_no_key_behind() {
    let Some(servers) = Server::start_many(5).await else { return };
    let (held, left) = left_behind(&servers, 20, 2_000).await;
    assert_eq!(left, [""; 0]);
    assert!(held > 200, "{held} holds");
}

#[tokio::test]
#[ignore = "the two thousand cycles above are the same; `make accept` runs these"]
async fn a_hundred_thousand_cycles_on_five_servers_leave_no_key_behind() {
    let Some(servers) = Server::start_many(5).await else { return };
    let (held, left) = left_behind(&servers, 50, 100_000).await;
    assert_eq!(left, [""; 0]);
    assert!(held > 10_000, "{held} holds");
}

#[tokio::test]
async fn a_stopped_server_does_not_keep_anybody_waiting_and_keeps_no_key_when_it_goes_on() {
    let Some(servers) = Server::start_many(3).await else { return };
    // So long a timeout that a round which waited for it would not end in this test's time.
    let lock = Redlock::new(nodes(&servers), Arc::new(BootClock), TokenSource::TwoPhase)
        .unwrap()
        .with_node_timeout(100 * PATIENCE);
    let cycles = async {
        for cycle in 0..100 {
            if cycle == 10 {
                servers[1].signal(Signal::SIGSTOP);
            }
            let mut hold = lock.acquire(&key(), Owner::new(format!("a{cycle}")), LONG, &Unwatched).await.unwrap();
            lock.renew(&mut hold, LONG, &Unwatched).await.unwrap();
            assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
        }
    };
    tokio::time::timeout(PATIENCE, cycles).await.expect("no round waits for the stopped server");
    servers[1].signal(Signal::SIGCONT);
    let caught_up = async {
        while !servers[1].locked().await.is_empty() || counter(&servers[1]).await < 100 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, caught_up).await.expect("every acquire is done, and undone");
}

async fn counter(server: &Server) -> u64 {
    server.ask(&["GET", "fence:{k0}"]).await
}

#[tokio::test]
async fn a_killed_server_is_connected_to_again_and_what_it_was_asked_meanwhile_is_never_ok() {
    let Some(mut server) = Server::start(1).await else { return };
    let node = server.connect();
    let lock = Redis::new(node.clone(), Arc::new(BootClock)).with_node_timeout(PATIENCE);
    assert_eq!(lock.acquire(&key(), owner("a"), LONG, &Unwatched).await.unwrap().token, Some(Token(1)));

    server.kill();
    let failure = lock.acquire(&key(), owner("b"), LONG, &Unwatched).await.unwrap_err();
    assert!(matches!(failure.reason, FailureReason::Error(_)), "{failure:?}");
    // By now it knows that there is no connection.
    while !matches!(answer(node.send(Step::Release(key(), owner("a")))).await, Err(NodeError::Definite(_))) {}
    let failure = lock.acquire(&key(), owner("c"), LONG, &Unwatched).await.unwrap_err();
    assert_eq!((failure.outcome, failure.answers[0].1), (Outcome::Failed, NodeAnswer::None));

    server.restart_empty().await;
    let again = async {
        loop {
            match lock.acquire(&key(), owner("d"), LONG, &Unwatched).await {
                Ok(hold) => return hold,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let hold = tokio::time::timeout(PATIENCE, again).await.expect("a connection");
    assert_eq!(hold.token, Some(Token(1)), "it forgot its counter");
}

#[tokio::test]
async fn an_error_of_the_server_is_definite_only_if_it_says_that_it_did_not_start() {
    let Some(server) = Server::start(1).await else { return };
    let node = server.connect();
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = answer(node.send(Step::Acquire(key(), owner("a"), LONG))).await;
    assert!(matches!(&error, Err(NodeError::Definite(said)) if said.starts_with("OOM")), "{error:?}");
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    // A counter that is none: the script fails after it has set the key.
    server.ask::<()>(&["SET", "fence:{k0}", "x"]).await;
    let error = answer(node.send(Step::Acquire(key(), owner("a"), LONG))).await;
    assert!(matches!(error, Err(NodeError::Indeterminate(_))), "{error:?}");
    assert_eq!(server.locked().await, ["lock:{k0}"]);
    // The user may not increment, which the server says only after it has set the key.
    server.ask::<()>(&["DEL", "lock:{k0}", "fence:{k0}"]).await;
    server.ask::<()>(&["ACL", "SETUSER", "default", "-incr"]).await;
    let error = answer(node.send(Step::Acquire(key(), owner("a"), LONG))).await;
    assert!(matches!(error, Err(NodeError::Indeterminate(_))), "{error:?}");
    assert_eq!(server.locked().await, ["lock:{k0}"]);
    server.ask::<()>(&["ACL", "SETUSER", "default", "-eval"]).await;
    let error = answer(node.send(Step::Acquire(key(), owner("a"), LONG))).await;
    assert!(matches!(&error, Err(NodeError::Definite(said)) if said.starts_with("NOPERM")), "{error:?}");
}

#[tokio::test]
async fn the_version_is_the_servers_own() {
    let Some(server) = Server::start(1).await else { return };
    let version = server_version(&server.addr()).await.unwrap();
    let said = redis_server().unwrap().stdout(Stdio::piped()).arg("--version").output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&said).contains(&format!("v={version} ")), "{version}");
    assert!(matches!(server_version(&format!("127.0.0.1:{}", free_port())).await, Err(NodeError::Definite(_))));
}
