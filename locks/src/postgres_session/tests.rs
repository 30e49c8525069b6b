//! The lock of a session, against a server that says what a test lets it say.

use std::future::pending;

use super::{
    doubles::{LEASE, Says, Scripted, Stopped},
    *,
};
use crate::{clock::BootClock, ports::Unwatched};

/// A lock of the server, one for each session.
struct Tested;

impl SessionLock for Tested {
    const NAME: &'static str = "tested";
    const TOKENS: &'static [TokenSource] = &[TokenSource::Counter];
    const TIMEOUTS: &'static [&'static str] = &["one", "two"];
    const CREATE: &'static str = "create";

    async fn take(session: &Session, _: TokenSource) -> Result<Option<i64>, Error> {
        session.number("try").await
    }

    async fn is_held(session: &Session) -> Result<bool, Error> {
        Ok(session.number("check").await? == Some(1))
    }

    async fn give_back(session: &Session) -> Result<bool, Error> {
        Ok(session.number("unlock").await? == Some(1))
    }
}

fn lock(server: &Scripted, clock: Arc<dyn Clock>) -> Arc<dyn Lock> {
    let address = ServerAddress::new("postgres-1", server.address.as_str());
    build::<Tested>(Servers::Addresses(vec![address]), TokenSource::Counter, clock).unwrap()
}

async fn attempt(lock: &dyn Lock, lease: Duration) -> Result<Hold, Failure> {
    lock.acquire(&Key::new("k0"), Owner::new("a"), lease, &Unwatched).await
}

#[tokio::test]
async fn a_release_whose_connection_breaks_may_have_been_done() {
    let server = Scripted::start().await;
    let lock = lock(&server, Arc::new(BootClock));
    let hold = attempt(&*lock, LEASE).await.unwrap();
    server.says("unlock", Says::Closes);
    assert_eq!(lock.release(&hold, &Unwatched).await.unwrap_err().outcome, Outcome::Indeterminate);
}

/// A clock that stands still. Its timers end at once, if a test says so, and otherwise never.
#[derive(Default)]
struct Hasty(AtomicBool);

impl Clock for Hasty {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep_until(&self, _: Duration) -> Reply<()> {
        if self.0.load(Ordering::Relaxed) { Box::pin(ready(())) } else { Box::pin(pending()) }
    }
}

#[tokio::test]
async fn a_release_without_an_answer_closes_the_session() {
    let (server, clock) = (Scripted::start().await, Arc::new(Hasty::default()));
    let lock = lock(&server, clock.clone());
    let hold = attempt(&*lock, LEASE).await.unwrap();
    clock.0.store(true, Ordering::Relaxed);
    assert_eq!(lock.release(&hold, &Unwatched).await.unwrap_err().outcome, Outcome::Indeterminate);
    let closed = tokio::time::timeout(LEASE, server.closed.notified()).await;
    assert!(closed.is_ok(), "an open session keeps a lock that the server did not release");
}

#[tokio::test]
async fn an_answer_at_the_very_end_of_the_promise_gives_no_hold() {
    let server = Scripted::start().await;
    // So short a lease promises nothing.
    let late = attempt(&*lock(&server, Arc::new(Stopped)), Duration::from_millis(2)).await.unwrap_err();
    assert_eq!((late.reason, late.answers[0].1), (FailureReason::Validity, NodeAnswer::Late));
    assert!(server.asked.lock().iter().any(|asked| asked == "unlock"), "the session had the lock");
}

#[tokio::test]
async fn after_a_fatal_error_a_statement_may_have_been_done() {
    for (says, outcome) in [(Says::Error, Outcome::Failed), (Says::Fatal, Outcome::Indeterminate)] {
        let server = Scripted::start().await;
        server.says("try", says);
        let failure = attempt(&*lock(&server, Arc::new(BootClock)), LEASE).await.unwrap_err();
        assert_eq!(failure.outcome, outcome, "{:?}", failure.reason);
    }
}

#[tokio::test]
async fn an_attempt_that_was_refused_closes_its_session_and_gives_nothing_back() {
    let server = Scripted::start().await;
    let lock = lock(&server, Arc::new(BootClock));
    for says in [Says::Nothing, Says::Error] {
        server.says("try", says);
        assert_eq!(attempt(&*lock, LEASE).await.unwrap_err().outcome, Outcome::Failed);
        // The session is forgotten, so there is nothing to undo.
        lock.cancel(&Key::new("k0"), &Owner::new("a"), LEASE, &Unwatched).await;
    }
    assert_eq!(*server.asked.lock(), ["login", "try", "login", "try"]);
}

#[tokio::test]
async fn a_session_that_the_server_has_ended_has_no_lock() {
    let server = Scripted::start().await;
    let lock = lock(&server, Arc::new(BootClock));
    let hold = attempt(&*lock, LEASE).await.unwrap();
    server.says("unlock", Says::Fatal);
    let released = lock.release(&hold, &Unwatched).await.unwrap();
    assert_eq!((released.removed, released.answers[0].1), (false, NodeAnswer::Refused));
    // A connection that breaks does not say so, but the client cannot use the session again.
    for (says, answer) in [(Says::Fatal, NodeAnswer::Refused), (Says::Closes, NodeAnswer::None)] {
        let mut hold = attempt(&*lock, LEASE).await.unwrap();
        server.says("check", says);
        let lost = lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
        assert_eq!((lost.reason, lost.outcome, lost.answers[0].1), (FailureReason::Lost, Outcome::Failed, answer));
    }
}

#[tokio::test]
async fn the_server_ends_a_session_that_is_idle_for_the_lease() {
    let server = Scripted::start().await;
    let lock = lock(&server, Arc::new(BootClock));
    let (odd, long) = (LEASE + Duration::from_micros(1), Duration::from_secs(30 * 24 * 3_600));
    // The lease is rounded up, and the server takes no larger number than the last one.
    for (lease, ms) in [(LEASE, 8_000), (odd, 8_001), (long, 2_147_483_647)] {
        attempt(&*lock, lease).await.unwrap();
        let begun = server.begun.lock().last().cloned().unwrap();
        assert!(begun.contains(&format!("\0-c one={ms} -c two={ms}\0")), "{begun:?}");
    }
}

#[tokio::test]
async fn a_lock_without_readers_refuses_a_reader() {
    let server = Scripted::start().await;
    let lock = lock(&server, Arc::new(BootClock));
    for mode in Mode::ALL {
        let attempt = lock.acquire_in(mode, &Key::new("k0"), Owner::new("a"), LEASE, &Unwatched).await;
        assert_eq!(attempt.is_ok(), mode == Mode::Write, "{mode}");
    }
    assert_eq!(*server.asked.lock(), ["login", "try"]);
}
