//! The lock of a session, against a server that says what a test lets it say.

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
    const TIMEOUTS: &'static [&'static str] = &[];
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
