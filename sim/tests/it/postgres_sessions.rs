//! The locks of a session, `postgres-advisory` and `postgres-row`, against a real Postgres server.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{process::Stdio, sync::Arc, time::Duration};

use futures::future::join_all;
use locks::{
    BootClock, Client, Clock, Connecting, Failure, FailureReason, Hold, Key, Lock, NodeAnswer, Outcome, Owner,
    ServerAddress, Servers, Token, TokenSource, Unwatched,
    access::{Access, Secret},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{contenders::contend, postgres_binary::postgres, postgres_server::Server};

const BOTH: [&str; 2] = ["postgres-advisory", "postgres-row"];
/// The lease of a hold whose end a test awaits.
const LEASE: Duration = Duration::from_secs(4);
/// The lease of all other holds and attempts. Each of their requests has 2 s, the longest timeout.
const LONG: Duration = Duration::from_secs(60);
/// Longer than an attempt takes on a busy machine, and shorter than the rest of a lease.
const LITTLE: Duration = Duration::from_secs(2);

fn lock_at(name: &str, address: ServerAddress, tokens: TokenSource) -> Arc<dyn Lock> {
    let client = Client::named(name).unwrap();
    (client.build)(Servers::Addresses(vec![address]), tokens, Arc::new(BootClock)).unwrap()
}

fn lock(name: &str, server: &Server) -> Arc<dyn Lock> {
    lock_at(name, address(server), TokenSource::Counter)
}

fn address(server: &Server) -> ServerAddress {
    ServerAddress::new("postgres-1", server.address())
}

/// Runs a statement in a session of its own. Returns its rows as text.
fn sql(server: &Server, statement: &str) -> String {
    let address = server.address();
    let (host, port) = address.split_once(':').unwrap();
    let mut asking = postgres("psql").expect("it was there before");
    asking.args(["-X", "-A", "-t", "-U", "postgres", "-h", host, "-p", port, "-c", statement]);
    let answer = asking.stdout(Stdio::piped()).output().unwrap();
    assert!(answer.status.success(), "{statement}");
    String::from_utf8(answer.stdout).unwrap().trim().to_owned()
}

async fn attempt(lock: &dyn Lock, owner: &str, lease: Duration) -> Result<Hold, Failure> {
    lock.acquire(&Key::new("k0"), Owner::new(owner), lease, &Unwatched).await
}

/// Attempts again and again. Returns the hold, and the time that it took.
async fn acquire(lock: &dyn Lock, owner: &str) -> (Hold, Duration) {
    let begun = BootClock.now();
    for number in 0.. {
        if let Ok(hold) = attempt(lock, &format!("{owner}-{number}"), LONG).await {
            return (hold, BootClock.now() - begun);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    unreachable!()
}

fn reason(result: Result<impl std::fmt::Debug, Failure>) -> (FailureReason, Outcome) {
    let failure = result.unwrap_err();
    (failure.reason, failure.outcome)
}

/// A link that a test can change.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Whole,
    /// No byte passes, and nobody is told.
    Silent,
    /// The client's connection is closed. The server is not told.
    Closed,
}

/// The address of a server, over a link.
async fn over_link(server: &Server) -> (ServerAddress, watch::Sender<Link>) {
    let (changed, link) = watch::channel(Link::Whole);
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), server.address());
    let address = ServerAddress::new("postgres-1", listener.local_addr().unwrap().to_string());
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let (to, mut link) = (to.clone(), link.clone());
            tokio::spawn(async move {
                let mut to = TcpStream::connect(to).await.unwrap();
                let changed = async { link.wait_for(|link| *link != Link::Whole).await.map(|link| *link) };
                let changed = tokio::select! {
                    _ = copy_bidirectional(&mut from, &mut to) => return,
                    changed = changed => changed,
                };
                if changed.is_ok_and(|link| link == Link::Closed) {
                    drop(from);
                }
                std::future::pending::<()>().await;
            });
        }
    });
    (address, changed)
}

#[tokio::test]
async fn a_refused_login_is_definite_and_does_not_show_the_user() {
    let Some(server) = Server::start().await else { return };
    for name in BOTH {
        let user = Some(Secret::new("hunter2"));
        let address = ServerAddress { access: Access { user, ..Access::default() }, ..address(&server) };
        let (why, outcome) = reason(attempt(&*lock_at(name, address, TokenSource::Counter), "a", LONG).await);
        assert_eq!(outcome, Outcome::Failed, "{name}");
        let said = format!("{why:?}");
        assert!(said.contains("does not exist") && !said.contains("hunter2"), "{name}: {said}");
    }
}

#[tokio::test]
async fn sessions_exclude_each_other_until_a_release_and_tokens_grow() {
    let Some(server) = Server::start().await else { return };
    for name in BOTH {
        let (first, second) = (lock(name, &server), lock(name, &server));
        let mut last = Token(0);
        for round in 0..20 {
            let hold = attempt(&*first, &format!("a{round}"), LONG).await.unwrap();
            let refused = reason(attempt(&*second, &format!("b{round}"), LONG).await);
            assert_eq!(refused, (FailureReason::Held, Outcome::Failed));
            assert!(hold.token > Some(last), "{hold:?} after {last:?}");
            assert!(first.release(&hold, &Unwatched).await.unwrap().removed);
            // The second release finds no session.
            assert_eq!(reason(first.release(&hold, &Unwatched).await).0, FailureReason::Lost);
            let other = attempt(&*second, &format!("c{round}"), LONG).await.unwrap();
            assert!(other.token > hold.token);
            last = other.token.unwrap();
            assert!(second.release(&other, &Unwatched).await.unwrap().removed);
        }
        let uncounted = lock_at(name, address(&server), TokenSource::None);
        let hold = attempt(&*uncounted, "d", LONG).await.unwrap();
        assert_eq!((hold.token, reason(attempt(&*second, "e", LONG).await).0), (None, FailureReason::Held));
        assert!(uncounted.release(&hold, &Unwatched).await.unwrap().removed);
    }
}

#[tokio::test]
async fn ten_contenders_for_a_session_lock_exclude_each_other_and_tokens_grow() {
    let Some(server) = Server::start().await else { return };
    for name in BOTH {
        let locks = (0..10).map(|_| lock(name, &server)).collect();
        let tokens = contend(locks, 5, LONG, Duration::from_millis(50)).await;
        assert!(tokens.len() == 50 && tokens.is_sorted_by(|a, b| a < b), "{name}: {tokens:?}");
    }
}

/// Attempts at one moment do not all fail because of each other.
#[tokio::test]
async fn of_attempts_for_a_free_key_at_one_moment_one_gets_it() {
    let Some(server) = Server::start().await else { return };
    for (name, contenders) in BOTH.into_iter().flat_map(|name| [(name, 2), (name, 3)]) {
        let lock = lock(name, &server);
        for number in 0..100 {
            let key = Key::new(format!("k{number}"));
            let owners = (0..contenders).map(|i| Owner::new(format!("{number}-{i}")));
            let attempts = join_all(owners.map(|owner| lock.acquire(&key, owner, LONG, &Unwatched))).await;
            let failures: Vec<_> = attempts.iter().filter_map(|attempt| attempt.as_ref().err()).collect();
            assert!(failures.iter().all(|failure| failure.reason == FailureReason::Held), "{name}: {failures:?}");
            assert_eq!(failures.len(), contenders - 1, "{name}: {contenders} attempts for {key}");
            for hold in attempts.into_iter().flatten() {
                lock.release(&hold, &Unwatched).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn an_idle_session_is_lost_after_the_lease_and_a_renewed_one_is_not() {
    let Some(server) = Server::start().await else { return };
    // Both at once: each waits for more than two leases.
    join_all(BOTH.map(|name| renewed_and_then_idle(name, &server))).await;
}

async fn renewed_and_then_idle(name: &str, server: &Server) {
    let (first, second) = (lock(name, server), lock(name, server));
    let mut hold = attempt(&*first, "a", LEASE).await.unwrap();
    // The renewals end a third of a lease after the end of the first lease.
    for _ in 0..4 {
        tokio::time::sleep(LEASE / 3).await;
        let renewed = first.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
        assert_eq!(renewed.valid_until, hold.valid_until);
    }
    let refused = reason(attempt(&*second, "b", LONG).await);
    assert_eq!(refused, (FailureReason::Held, Outcome::Failed), "{name}");
    let (later, took) = acquire(&*second, "c").await;
    assert!(took > LEASE - LITTLE && later.token > hold.token, "{name}: {took:?}");
    assert!(BootClock.now() >= hold.valid_until, "{name}: the first hold was promised");
    // A client whose clock says that the hold is valid finds out too.
    hold.valid_until += LONG;
    let lost = reason(first.renew(&mut hold, LEASE, &Unwatched).await);
    assert_eq!(lost, (FailureReason::Lost, Outcome::Failed), "{name}");
    assert!(!first.release(&hold, &Unwatched).await.unwrap().removed, "{name}");
    assert!(second.release(&later, &Unwatched).await.unwrap().removed, "{name}");
}

#[tokio::test]
async fn a_session_that_closes_releases_its_lock_at_once() {
    let Some(server) = Server::start().await else { return };
    for name in BOTH {
        let (first, second) = (lock(name, &server), lock(name, &server));
        let hold = attempt(&*first, "a", LONG).await.unwrap();
        assert_eq!(reason(attempt(&*second, "b", LONG).await).0, FailureReason::Held);
        // As a process that dies: nobody releases, and the kernel closes the connections.
        drop(first);
        let (later, took) = acquire(&*second, "c").await;
        assert!(took < LONG / 3 && later.token > hold.token, "{took:?}");
        // An abandoned attempt is cancelled, and leaves nothing behind.
        second.cancel(&Key::new("k0"), &later.owner, LONG, &Unwatched).await;
        assert!(attempt(&*lock(name, &server), "d", LONG).await.is_ok());
    }
}

#[tokio::test]
async fn an_uncommitted_token_repeats_when_the_session_of_its_holder_dies() {
    let Some(server) = Server::start().await else { return };
    let lock = || lock_at("postgres-row", address(&server), TokenSource::Uncommitted);
    let first = lock();
    let hold = attempt(&*first, "a", LONG).await.unwrap();
    assert_eq!(hold.token, Some(Token(1)));
    assert_eq!(reason(attempt(&*lock(), "b", LONG).await).0, FailureReason::Held);
    drop(first);
    let second = lock();
    let (later, _) = acquire(&*second, "c").await;
    assert_eq!(later.token, hold.token);
    assert!(second.release(&later, &Unwatched).await.unwrap().removed);
    assert_eq!(attempt(&*lock(), "d", LONG).await.unwrap().token, Some(Token(2)), "a release commits the token");
}

#[tokio::test]
async fn a_server_that_notices_no_cut_keeps_the_lock_until_the_session_was_idle_for_the_lease() {
    let Some(server) = Server::start().await else { return };
    for name in BOTH {
        let (address, link) = over_link(&server).await;
        let (first, second) = (lock_at(name, address, TokenSource::Counter), lock(name, &server));
        let mut hold = attempt(&*first, "a", LEASE).await.unwrap();
        first.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
        link.send(Link::Silent).unwrap();
        assert_eq!(reason(attempt(&*second, "b", LONG).await), (FailureReason::Held, Outcome::Failed));
        let unanswered = reason(first.renew(&mut hold, LEASE, &Unwatched).await);
        assert!(matches!(unanswered, (FailureReason::Error(_), Outcome::Indeterminate)), "{unanswered:?}");
        acquire(&*second, "c").await;
        assert!(BootClock.now() >= hold.valid_until, "the first hold was promised");
        assert!(BootClock.now() < hold.sent + LONG, "the keepalives of the kernel take hours");
        // The client cannot know whether the server has released the lock.
        assert_eq!(reason(first.release(&hold, &Unwatched).await).1, Outcome::Indeterminate);
    }
}

#[tokio::test]
async fn a_hold_whose_connection_is_closed_is_certainly_lost() {
    let Some(server) = Server::start().await else { return };
    for name in BOTH {
        let (address, link) = over_link(&server).await;
        let first = lock_at(name, address, TokenSource::Counter);
        let mut hold = attempt(&*first, "a", LONG).await.unwrap();
        first.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
        link.send(Link::Closed).unwrap();
        let lost = first.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
        assert_eq!((lost.reason, lost.outcome), (FailureReason::Lost, Outcome::Failed));
        assert_eq!(lost.answers[0].1, NodeAnswer::None, "the server said nothing");
        assert_eq!(reason(first.release(&hold, &Unwatched).await), (FailureReason::Lost, Outcome::Failed));
        // The server has not noticed anything.
        assert_eq!(reason(attempt(&*lock(name, &server), "b", LONG).await).0, FailureReason::Held);
    }
}

#[tokio::test]
async fn a_hold_whose_session_the_server_ends_is_certainly_lost() {
    let Some(server) = Server::start().await else { return };
    let of_client = "application_name = 'harness' AND backend_type = 'client backend'";
    for (name, in_flight) in BOTH.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let first = lock(name, &server);
        let mut hold = attempt(&*first, "a", LONG).await.unwrap();
        first.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
        let session = sql(&server, &format!("SELECT pid FROM pg_stat_activity WHERE {of_client}"));
        let process = Pid::from_raw(session.parse().unwrap());
        let end = format!("SELECT pg_terminate_backend({session})");
        let renewed = if in_flight {
            // The session's process finds the signal and the renewal when it continues.
            kill(process, Signal::SIGSTOP).unwrap();
            assert_eq!(sql(&server, &end), "t");
            let renewing = first.renew(&mut hold, LEASE, &Unwatched);
            let going_on = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                kill(process, Signal::SIGCONT).unwrap();
            };
            futures::join!(renewing, going_on).0
        } else {
            assert_eq!(sql(&server, &end), "t");
            first.renew(&mut hold, LEASE, &Unwatched).await
        };
        let lost = renewed.unwrap_err();
        assert_eq!((lost.reason, lost.outcome), (FailureReason::Lost, Outcome::Failed), "{name}, {in_flight}");
        if in_flight {
            assert_eq!(lost.answers[0].1, NodeAnswer::Refused, "{name}");
        }
        let released = first.release(&hold, &Unwatched).await;
        assert!(released.is_ok_and(|released| !released.removed), "{name}, {in_flight}");
        acquire(&*lock(name, &server), "b").await;
        sql(&server, &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_client}"));
        while sql(&server, &format!("SELECT count(*) FROM pg_stat_activity WHERE {of_client}")) != "0" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn an_attempt_without_a_session_fails_certainly_and_gives_the_opening_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = ServerAddress::new("silent", listener.local_addr().unwrap().to_string());
    for name in BOTH {
        let lock = lock_at(name, address.clone(), TokenSource::Counter);
        let begun = BootClock.now();
        let (failure, accepted) = futures::join!(attempt(&*lock, "a", LEASE), listener.accept());
        let (FailureReason::Error(why), Outcome::Failed) = reason(failure) else { panic!("{name}") };
        assert_eq!(why, "silent: no session in time");
        assert!(BootClock.now() - begun < 10 * LEASE);
        // The client has closed the connection: the server reads its first message, and then the end.
        let read = accepted.unwrap().0.read_to_end(&mut Vec::new()).await;
        assert!(read.is_ok_and(|bytes| bytes > 0), "{name}");
    }
}

#[tokio::test]
async fn tokens_of_several_keys_grow_over_a_sigkill_of_the_server() {
    let Some(mut server) = Server::start().await else { return };
    for name in BOTH {
        let keys: Vec<Key> = (0..10).map(|number| Key::new(format!("k{number}"))).collect();
        let acquire_all = async |lock: &dyn Lock, owner: &str| -> Vec<Token> {
            let mut tokens = Vec::new();
            for (number, key) in keys.iter().enumerate() {
                let owner = Owner::new(format!("{owner}{number}"));
                tokens.push(lock.acquire(key, owner, LONG, &Unwatched).await.unwrap().token.unwrap());
            }
            tokens
        };
        for round in 0..2 {
            let before = acquire_all(&*lock(name, &server), &format!("a{round}")).await;
            server.restart().await;
            let lock = lock(name, &server);
            let after = acquire_all(&*lock, &format!("b{round}")).await;
            assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{name}: {before:?} {after:?}");
            drop(lock);
            server.restart().await;
        }
    }
}

#[tokio::test]
async fn asking_a_server_for_its_version_makes_no_table() {
    let Some(server) = Server::start().await else { return };
    for name in BOTH {
        let client = Client::named(name).unwrap();
        let connected = (client.connect)(client.name, vec![address(&server)], Connecting::default()).await.unwrap();
        let version = connected.versions[0].as_ref().unwrap();
        assert!(version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains(' '), "{version}");
    }
    assert_eq!(sql(&server, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "0");
}
