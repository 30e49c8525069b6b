//! The client of the lock server against a server on this machine, and against the same server as the model.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{
    collections::HashSet,
    mem::discriminant,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use locks::{
    BootClock, Client, Key, Lock, Node, NodeError, Owner, Servers, Step, StepAnswer, Token, TokenSource, Unwatched,
    connect_memory,
    lock_server::{LINE_MAX, LockServer, serve},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::net::TcpListener;

use crate::{
    conformance::{ALL_KINDS, LONG, Timed, answer, compare, compare_expiry},
    contenders::contend,
    real::PATIENCE,
    say::say,
};

/// A server on a runtime of its own. Its end closes every connection, as a SIGKILL does.
struct Server {
    runtime: tokio::runtime::Runtime,
    address: SocketAddr,
}

impl Server {
    fn start() -> Server {
        Server::on(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
    }

    fn on(listener: std::net::TcpListener) -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { serve(TcpListener::from_std(listener).unwrap(), Arc::new(BootClock)).await });
        Server { runtime, address }
    }

    /// Ends the server, and starts one without its memory at the same address.
    fn restart(self) -> Server {
        let Server { runtime, address } = self;
        runtime.shutdown_background();
        loop {
            // The old listener may close a moment later.
            match std::net::TcpListener::bind(address) {
                Ok(listener) => return Server::on(listener),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn end(self) {
        self.runtime.shutdown_background();
    }

    fn connect(&self) -> Arc<dyn Node> {
        connect_memory("memory-1", &self.address.to_string())
    }
}

fn lock(name: &str, nodes: Vec<Arc<dyn Node>>, tokens: TokenSource) -> Arc<dyn Lock> {
    (Client::named(name).unwrap().build)(Servers::Nodes(nodes), tokens, Arc::new(BootClock)).unwrap()
}

#[tokio::test]
async fn a_lock_server_gives_to_five_thousand_sequences_the_answers_of_the_model() {
    let server = Server::start();
    let (node, mut model) = (server.connect(), LockServer::default());
    let (mut rng, mut seen, mut compared) = (ChaCha8Rng::seed_from_u64(1), HashSet::new(), 0);
    for batch in 0..50 {
        // A hundred sequences at once, each on its own new key.
        let keys: Vec<Key> = (0..100).map(|number| Key::new(format!("k{batch}-{number}"))).collect();
        for (step, said) in compare(&*node, &mut model, &mut rng, ALL_KINDS, &keys, 1_600).await {
            let planted = if let Step::Planted(planted) = &step { Some(discriminant(planted)) } else { None };
            seen.insert((discriminant(&step), planted, discriminant(&said)));
            compared += 1;
        }
    }
    say(&format!("5000 sequences on a lock server, {compared} answers compared"));
    assert_eq!(seen.len(), 30, "each step was done and refused; an overwrite and a count are never refused");
    server.end();
}

#[tokio::test]
async fn expiry_on_a_lock_server_is_possible_in_the_model() {
    let server = Server::start();
    let timed = Timed { node: &*server.connect(), kinds: ALL_KINDS, at_once: 20, early_ms: 0 };
    compare_expiry::<LockServer>(timed, 20).await;
    server.end();
}

#[tokio::test]
async fn a_restart_forgets_locks_and_counters_and_the_client_connects_again() {
    let server = Server::start();
    let (node, key) = (server.connect(), Key::new("k0"));
    let extend = || Step::Extend(key.clone(), Owner::new("a"), LONG);
    let acquire = |owner: &str| Step::Acquire(key.clone(), Owner::new(owner), LONG);
    assert_eq!(answer(node.send(acquire("a"))).await, StepAnswer::Granted(Token(1)));
    let asked: Vec<_> = (0..500).map(|_| node.send(extend())).collect();
    let server = server.restart();
    let lost = |answer: &Result<StepAnswer, NodeError>| matches!(answer, Err(NodeError::Indeterminate(_)));
    let said = join_all(asked).await;
    assert!(said.iter().all(|said| lost(said) || *said == Ok(StepAnswer::Done)), "{said:?}");
    let again = async {
        loop {
            match node.send(acquire("b")).await {
                Ok(said) => return said,
                Err(error) => {
                    let was_sent = matches!(error, NodeError::Indeterminate(_));
                    assert!(!was_sent || error.to_string().contains("connection lost"), "{error}");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    };
    let said = tokio::time::timeout(PATIENCE, again).await.expect("a connection");
    assert_eq!(said, StepAnswer::Granted(Token(1)), "neither the lock of a nor its counter is known");
    server.end();
}

#[tokio::test]
async fn without_a_server_nothing_was_done() {
    // A port that was free a moment ago.
    let address = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let node = connect_memory("memory-1", &address.to_string());
    let lock = lock("memory", vec![node], TokenSource::Counter);
    let failure = lock.acquire(&Key::new("k0"), Owner::new("a"), LONG, &Unwatched).await.unwrap_err();
    assert_eq!(failure.outcome, locks::Outcome::Failed, "{failure:?}");
}

#[tokio::test]
async fn a_request_that_is_too_long_is_refused_for_certain_and_the_next_one_is_answered() {
    let server = Server::start();
    let node = server.connect();
    let long = Key::new("k".repeat(3 * LINE_MAX));
    let refused = node.send(Step::Acquire(long, Owner::new("a"), LONG)).await;
    assert!(matches!(&refused, Err(NodeError::Definite(why)) if why.contains("longer than")), "{refused:?}");
    let step = Step::Acquire(Key::new("k0"), Owner::new("a"), LONG);
    assert_eq!(answer(node.send(step)).await, StepAnswer::Granted(Token(1)));
    server.end();
}

#[tokio::test]
async fn contenders_on_one_lock_server_exclude_each_other_and_tokens_grow() {
    let server = Server::start();
    let locks = (0..20).map(|_| lock("memory", vec![server.connect()], TokenSource::Counter)).collect();
    let tokens = contend(locks, 10, LONG, Duration::from_millis(10)).await;
    assert_eq!(tokens, (1..=200).map(Token).collect::<Vec<_>>());
    server.end();
}

#[tokio::test]
async fn contenders_on_three_lock_servers_exclude_each_other_and_written_back_tokens_grow() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let nodes = || servers.iter().map(Server::connect).collect();
    let locks = (0..8).map(|_| lock("lock-manager", nodes(), TokenSource::TwoPhase)).collect();
    let tokens = contend(locks, 10, LONG, Duration::from_millis(30)).await;
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    servers.into_iter().for_each(Server::end);
}
