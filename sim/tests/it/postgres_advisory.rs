//! The lock `postgres-advisory` against a real Postgres server.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{sync::Arc, time::Duration};

use locks::{
    BootClock, Client, Clock, Failure, FailureReason, Hold, Key, Lock, Outcome, Owner, ServerAddress, Servers, Token,
    TokenSource, Unwatched,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::postgres_server::Server;

const LEASE: Duration = Duration::from_secs(1);
/// Longer than an attempt takes on a busy machine, and shorter than the rest of a lease.
const LITTLE: Duration = Duration::from_millis(400);

fn lock_at(address: ServerAddress) -> Arc<dyn Lock> {
    let client = Client::named("postgres-advisory").unwrap();
    (client.build)(Servers::Addresses(vec![address]), TokenSource::Counter, Arc::new(BootClock)).unwrap()
}

fn lock(server: &Server) -> Arc<dyn Lock> {
    lock_at(server.address())
}

async fn attempt(lock: &dyn Lock, owner: &str, lease: Duration) -> Result<Hold, Failure> {
    lock.acquire(&Key::new("k0"), Owner::new(owner), lease, &Unwatched).await
}

/// Attempts again and again. Returns the hold, and the time that it took.
async fn acquire(lock: &dyn Lock, owner: &str) -> (Hold, Duration) {
    let begun = BootClock.now();
    for number in 0.. {
        if let Ok(hold) = attempt(lock, &format!("{owner}-{number}"), LEASE).await {
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

/// The address of a server whose connections a test can cut: no byte passes any more, and nobody is told.
async fn cuttable(server: &Server) -> (ServerAddress, watch::Sender<bool>) {
    let (cut, is_cut) = watch::channel(false);
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), server.address().address);
    let address = ServerAddress::new("postgres-1", listener.local_addr().unwrap().to_string());
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let (to, mut is_cut) = (to.clone(), is_cut.clone());
            tokio::spawn(async move {
                let mut to = TcpStream::connect(to).await.unwrap();
                let cut = async { drop(is_cut.wait_for(|is_cut| *is_cut).await) };
                let is_open = tokio::select! {
                    _ = copy_bidirectional(&mut from, &mut to) => false,
                    () = cut => true,
                };
                if is_open {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (address, cut)
}

#[tokio::test]
async fn sessions_exclude_each_other_until_a_release_and_tokens_grow() {
    let Some(server) = Server::start().await else { return };
    let (first, second) = (lock(&server), lock(&server));
    let mut last = Token(0);
    for round in 0..20 {
        let hold = attempt(&*first, &format!("a{round}"), 60 * LEASE).await.unwrap();
        let refused = reason(attempt(&*second, &format!("b{round}"), 60 * LEASE).await);
        assert_eq!(refused, (FailureReason::Held, Outcome::Failed));
        assert!(hold.token > Some(last), "{hold:?} after {last:?}");
        assert!(first.release(&hold, &Unwatched).await.unwrap().removed);
        // The second release finds no session.
        assert_eq!(reason(first.release(&hold, &Unwatched).await).0, FailureReason::Lost);
        let other = attempt(&*second, &format!("c{round}"), 60 * LEASE).await.unwrap();
        assert!(other.token > hold.token);
        last = other.token.unwrap();
        assert!(second.release(&other, &Unwatched).await.unwrap().removed);
    }
}

#[tokio::test]
async fn an_idle_session_is_lost_after_the_lease_and_a_renewed_one_is_not() {
    let Some(server) = Server::start().await else { return };
    let (first, second) = (lock(&server), lock(&server));
    let mut hold = attempt(&*first, "a", LEASE).await.unwrap();
    for _ in 0..6 {
        tokio::time::sleep(LEASE / 3).await;
        let renewed = first.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
        assert_eq!(renewed.valid_until, hold.valid_until);
    }
    assert_eq!(reason(attempt(&*second, "b", LEASE).await), (FailureReason::Held, Outcome::Failed));
    let (later, took) = acquire(&*second, "c").await;
    assert!(took > LEASE - LITTLE && later.token > hold.token, "{took:?}");
    assert!(BootClock.now() >= hold.valid_until, "the first hold was promised");
    // A client whose clock says that the hold is valid finds out too.
    hold.valid_until += 60 * LEASE;
    assert_eq!(reason(first.renew(&mut hold, LEASE, &Unwatched).await), (FailureReason::Lost, Outcome::Failed));
    assert!(!first.release(&hold, &Unwatched).await.unwrap().removed);
    assert!(second.release(&later, &Unwatched).await.unwrap().removed);
}

#[tokio::test]
async fn a_session_that_closes_releases_its_lock_at_once() {
    let Some(server) = Server::start().await else { return };
    let (first, second) = (lock(&server), lock(&server));
    let hold = attempt(&*first, "a", 60 * LEASE).await.unwrap();
    assert_eq!(reason(attempt(&*second, "b", LEASE).await).0, FailureReason::Held);
    // As a process that dies: nobody releases, and the kernel closes the connections.
    drop(first);
    let (later, took) = acquire(&*second, "c").await;
    assert!(took < 20 * LEASE && later.token > hold.token, "{took:?}");
    // An abandoned attempt is cancelled, and leaves nothing behind.
    let owner = Owner::new(later.owner.as_str());
    second.cancel(&Key::new("k0"), &owner, LEASE, &Unwatched).await;
    assert!(attempt(&*lock(&server), "d", LEASE).await.is_ok());
}

#[tokio::test]
async fn a_server_that_notices_no_cut_keeps_the_lock_until_the_session_was_idle_for_the_lease() {
    let Some(server) = Server::start().await else { return };
    let (address, cut) = cuttable(&server).await;
    let (first, second) = (lock_at(address), lock(&server));
    let mut hold = attempt(&*first, "a", LEASE).await.unwrap();
    cut.send(true).unwrap();
    assert_eq!(reason(attempt(&*second, "b", LEASE).await), (FailureReason::Held, Outcome::Failed));
    let unanswered = reason(first.renew(&mut hold, LEASE, &Unwatched).await);
    assert!(matches!(unanswered, (FailureReason::Error(_), Outcome::Indeterminate)), "{unanswered:?}");
    acquire(&*second, "c").await;
    assert!(BootClock.now() >= hold.valid_until, "the first hold was promised");
    assert!(BootClock.now() < hold.sent + 20 * LEASE, "the keepalives of the kernel take hours");
    // The client cannot know whether the server has released the lock.
    assert_eq!(reason(first.release(&hold, &Unwatched).await).1, Outcome::Indeterminate);
}
