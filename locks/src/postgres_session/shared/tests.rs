//! The lock of one client, against a server that says what a test lets it say.

use super::*;
use crate::{
    access::{Access, Secret},
    clock::BootClock,
    hold::{NodeName, Outcome},
    ports::{Unwatched, replied},
    postgres_session::{
        FORGOTTEN_AFTER,
        doubles::{LEASE, Says, Scripted, Stopped},
    },
};

const STATEMENTS: Statements = Statements {
    try_lock: "try",
    lock: "wait",
    count: "count",
    check: "check",
    unlock: "unlock",
    create: "create",
    timeouts: &[],
};

/// A clock that a test can advance.
#[derive(Default)]
struct Advanced(Mutex<Duration>);

impl Clock for Advanced {
    fn now(&self) -> Duration {
        BootClock.now() + *self.0.lock()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        BootClock.sleep_until(at.saturating_sub(*self.0.lock()))
    }
}

/// A clock that a test sets, and the times until which somebody wanted to sleep.
#[derive(Default)]
struct Slept {
    now: Mutex<Duration>,
    until: Mutex<Vec<Duration>>,
}

impl Clock for Slept {
    fn now(&self) -> Duration {
        *self.now.lock()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        self.until.lock().push(at);
        Box::pin(std::future::pending())
    }
}

/// Lets a second pass when a request has left, and a lease while an attempt waits.
struct Passing(Arc<Slept>);

impl Watch for Passing {
    fn sent(&self, _: Round) -> Reply<()> {
        *self.0.now.lock() += Duration::from_secs(1);
        replied()
    }

    fn behind(&self) {
        *self.0.now.lock() += LEASE;
    }
}

/// Notes the callbacks of an operation.
#[derive(Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Noting {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().push(text.into());
    }

    /// The notes since the last call.
    fn noted(&self) -> String {
        std::mem::take(&mut *self.0.lock()).join(", ")
    }
}

impl Watch for Noting {
    fn sending(&self, round: Round) {
        self.note(format!("sending {round:?}"));
    }

    /// The note is made when the lock waits for the reply.
    fn sent(&self, round: Round) -> Reply<()> {
        let notes = self.0.clone();
        Box::pin(async move { notes.lock().push(format!("sent {round:?}")) })
    }

    fn answered(&self, round: Round) {
        self.note(format!("answered {round:?}"));
    }

    fn promising(&self) {
        self.note("promising");
    }

    fn promised(&self) {
        self.note("promised");
    }

    fn looking(&self) {
        self.note("looking");
    }

    fn behind(&self) {
        self.note("behind");
    }

    fn undoing(&self) {
        self.note("undoing");
    }

    fn undone(&self, answers: &[(NodeName, NodeAnswer)]) {
        self.note(format!("undone {:?}", answers[0].1));
    }
}

fn lock_by(clock: Arc<dyn Clock>, server: &Scripted) -> Shared {
    let access = Access { user: Some(Secret::new("alice")), ..Access::default() };
    let address = ServerAddress { access, ..ServerAddress::new("postgres-1", server.address.as_str()) };
    Shared::new(address, OneServer::new("postgres-1"), clock, TokenSource::Counter, &STATEMENTS)
}

fn lock(server: &Scripted) -> Shared {
    lock_by(Arc::new(BootClock), server)
}

async fn attempt(lock: &Shared, key: &str, owner: &str) -> Result<Hold, Failure> {
    lock.acquire(&Key::new(key), Owner::new(owner), LEASE, &Unwatched).await
}

#[tokio::test]
async fn a_session_with_a_given_up_hold_takes_no_more_attempts() {
    let server = Scripted::start().await;
    let lock = lock(&server);
    let given_up = attempt(&lock, "k0", "a").await.unwrap();
    let mut other = attempt(&lock, "k1", "b").await.unwrap();
    assert_eq!(server.logins(), 1);
    lock.gave_up(&given_up);
    let next = attempt(&lock, "k0", "c").await.unwrap();
    assert_eq!(server.logins(), 2, "the first session would be granted k0 again");
    lock.renew(&mut other, LEASE, &Unwatched).await.unwrap();
    for hold in [other, next] {
        assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
    }
    let users: Vec<Owner> = lock.current.lock().users.keys().cloned().collect();
    assert_eq!(users, [given_up.owner], "the server ends the session, and not the client");
}

#[tokio::test]
async fn a_session_that_ended_long_ago_is_forgotten() {
    let (server, clock) = (Scripted::start().await, Arc::new(Advanced::default()));
    let lock = lock_by(clock.clone(), &server);
    let mut given_up = attempt(&lock, "k0", "a").await.unwrap();
    lock.gave_up(&given_up);
    let is_known = || lock.current.lock().users.contains_key(&Owner::new("a"));
    *clock.0.lock() += FORGOTTEN_AFTER;
    attempt(&lock, "k1", "b").await.unwrap();
    assert!(is_known(), "the session has not ended");
    server.says("check", Says::Closes);
    given_up.valid_until += 2 * FORGOTTEN_AFTER;
    assert!(lock.renew(&mut given_up, LEASE, &Unwatched).await.is_err());
    attempt(&lock, "k2", "c").await.unwrap();
    assert!(!is_known());
}

#[tokio::test]
async fn no_failure_of_a_shared_session_shows_the_user() {
    for asked in ["login", "create", "try", "wait", "count"] {
        let server = Scripted::start().await;
        if asked == "wait" {
            server.says("try", Says::Nothing);
        }
        server.says(asked, Says::Error);
        let failure = attempt(&lock(&server), "k0", "a").await.unwrap_err();
        let said = format!("{:?}", failure.reason);
        assert!(said.contains("too many connections") && !said.contains("alice"), "{asked}: {said}");
    }
}

#[tokio::test]
async fn a_failed_unlock_ends_no_other_hold() {
    let server = Scripted::start().await;
    let lock = lock(&server);
    let mut first = attempt(&lock, "k0", "a").await.unwrap();
    let released = attempt(&lock, "k1", "b").await.unwrap();
    server.says("unlock", Says::Error);
    assert!(lock.release(&released, &Unwatched).await.is_err());
    lock.renew(&mut first, LEASE, &Unwatched).await.unwrap();
    let mut second = attempt(&lock, "k1", "c").await.unwrap();
    assert_eq!(server.logins(), 2, "the first session may still have k1");
    // The undo of a failed attempt unlocks too.
    server.says("count", Says::Error);
    assert!(attempt(&lock, "k2", "d").await.is_err());
    lock.renew(&mut second, LEASE, &Unwatched).await.unwrap();
    server.answers.lock().remove("count");
    attempt(&lock, "k2", "e").await.unwrap();
    assert_eq!(server.logins(), 3, "the second session may still have k2");
}

#[tokio::test]
async fn a_release_without_an_answer_may_have_been_done() {
    let server = Scripted::start().await;
    let lock = lock(&server);
    let hold = attempt(&lock, "k0", "a").await.unwrap();
    server.says("unlock", Says::Closes);
    assert_eq!(lock.release(&hold, &Unwatched).await.unwrap_err().outcome, Outcome::Indeterminate);
    // On a connection that is closed already, no release leaves.
    let mut hold = attempt(&lock, "k0", "b").await.unwrap();
    server.says("check", Says::Closes);
    assert!(lock.renew(&mut hold, LEASE, &Unwatched).await.is_err());
    let lost = lock.release(&hold, &Unwatched).await.unwrap_err();
    assert_eq!((lost.reason, lost.outcome), (FailureReason::Lost, Outcome::Failed));
}

#[tokio::test]
async fn an_unlock_waits_until_the_server_has_cancelled_the_wait() {
    let server = Scripted::start().await;
    server.says("try", Says::Nothing);
    server.says("wait", Says::Error);
    assert!(attempt(&lock(&server), "k0", "a").await.is_err());
    let asked = server.asked.lock().clone();
    assert!(asked.ends_with(&["cancel", "unlock"].map(String::from)), "{asked:?}");
}

#[tokio::test]
async fn an_attempt_ends_though_the_server_falls_silent() {
    let ended = async |asked: &'static str| {
        let server = Scripted::start().await;
        server.says("try", Says::Nothing);
        server.says(asked, Says::Silence);
        let (lock, lease) = (lock(&server), Duration::from_millis(200));
        lock.acquire(&Key::new("k0"), Owner::new("a"), lease, &Unwatched).await.unwrap_err().outcome
    };
    let (creating, waiting) = futures::join!(ended("create"), ended("wait"));
    assert_eq!((creating, waiting), (Outcome::Failed, Outcome::Indeterminate));
}

#[tokio::test]
async fn every_request_and_its_answer_are_announced() {
    let server = Scripted::start().await;
    let (lock, watch, key) = (lock(&server), Noting::default(), Key::new("k0"));
    let mut hold = lock.acquire(&key, Owner::new("a"), LEASE, &watch).await.unwrap();
    assert_eq!(watch.noted(), "sending Acquire, looking, promising, sent Acquire, promised, answered Acquire");
    lock.renew(&mut hold, LEASE, &watch).await.unwrap();
    assert_eq!(watch.noted(), "sending Renew, sent Renew, answered Renew");
    lock.release(&hold, &watch).await.unwrap();
    assert_eq!(watch.noted(), "sending Release, sent Release, answered Release");
    // The lock is granted after a wait, but its token is not.
    server.says("try", Says::Nothing);
    server.says("count", Says::Error);
    let attempted = "sending Acquire, looking, promising, sent Acquire, behind, promising";
    for (unlock, undone) in [(None, "answered Undo, undone Done"), (Some(Says::Error), "undone None")] {
        if let Some(unlock) = unlock {
            server.says("unlock", unlock);
        }
        lock.acquire(&key, Owner::new("b"), LEASE, &watch).await.unwrap_err();
        assert_eq!(watch.noted(), format!("{attempted}, undoing, sending Undo, sent Undo, {undone}"));
    }
}

#[tokio::test]
async fn a_hold_has_a_token_only_if_the_lock_makes_tokens() {
    let server = Scripted::start().await;
    for (tokens, token) in [(TokenSource::Counter, Some(Token(1))), (TokenSource::None, None)] {
        let lock = Shared { tokens, ..lock(&server) };
        assert_eq!(attempt(&lock, "k0", "a").await.unwrap().token, token);
    }
}

#[tokio::test]
async fn at_the_very_end_of_its_promise_a_hold_is_over() {
    let server = Scripted::start().await;
    let (lock, watch, key) = (lock_by(Arc::new(Stopped), &server), Noting::default(), Key::new("k0"));
    // So short a lease promises nothing.
    let late = lock.acquire(&key, Owner::new("a"), Duration::from_millis(2), &Unwatched).await.unwrap_err();
    assert_eq!((late.reason, late.answers[0].1), (FailureReason::Validity, NodeAnswer::Late));
    let mut hold = attempt(&lock, "k0", "b").await.unwrap();
    hold.valid_until = Stopped.now();
    let lapsed = lock.renew(&mut hold, LEASE, &watch).await.unwrap_err();
    assert_eq!((lapsed.reason, lapsed.answers[0].1), (FailureReason::Validity, NodeAnswer::None));
    assert_eq!(watch.noted(), "", "no request leaves");
}

#[tokio::test]
async fn no_attempt_joins_a_session_that_is_over() {
    let server = Scripted::start().await;
    let lock = lock(&server);
    let mut lost = attempt(&lock, "k0", "a").await.unwrap();
    server.says("check", Says::Closes);
    assert!(lock.renew(&mut lost, LEASE, &Unwatched).await.is_err());
    // The client has not released the lost hold.
    let next = attempt(&lock, "k1", "b").await.unwrap();
    assert_eq!(server.logins(), 2);
    assert!(lock.release(&next, &Unwatched).await.unwrap().removed);
}

#[tokio::test]
async fn the_server_says_why_it_has_ended_a_wait() {
    for (code, reason) in [("40P01", FailureReason::Deadlock), ("55P03", FailureReason::Held)] {
        let server = Scripted::start().await;
        let lock = lock(&server);
        server.says("try", Says::Nothing);
        server.says("wait", Says::Code(code));
        let ended = attempt(&lock, "k0", "a").await.unwrap_err();
        assert_eq!((ended.reason, ended.outcome, ended.answers[0].1), (reason, Outcome::Failed, NodeAnswer::Refused));
        assert_eq!(server.asked.lock().last().map(String::as_str), Some("wait"), "the session got nothing");
        assert!(lock.current.lock().users.is_empty(), "{code}");
    }
}

#[tokio::test]
async fn a_wait_may_last_for_a_lease_and_its_hold_is_promised_from_then_on() {
    // The usual time for an answer is a quarter of the lease.
    for (waits, sent, until) in [(false, 0, vec![3, 3]), (true, 9, vec![3, 19, 11])] {
        let (server, clock) = (Scripted::start().await, Arc::new(Slept::default()));
        if waits {
            server.says("try", Says::Nothing);
        }
        let (lock, watch) = (lock_by(clock.clone(), &server), Passing(clock.clone()));
        let hold = lock.acquire(&Key::new("k0"), Owner::new("a"), LEASE, &watch).await.unwrap();
        assert_eq!(hold.sent, Duration::from_secs(sent));
        assert_eq!(*clock.until.lock(), until.into_iter().map(Duration::from_secs).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn the_server_ends_a_wait_after_the_lease() {
    // The server takes no larger number than the last one.
    for (lease, ms) in [(LEASE, 8_000), (Duration::from_secs(30 * 24 * 3_600), 2_147_483_647)] {
        let server = Scripted::start().await;
        lock(&server).acquire(&Key::new("k0"), Owner::new("a"), lease, &Unwatched).await.unwrap();
        let set = format!("SET lock_timeout = {ms}");
        assert!(server.asked.lock().contains(&set), "{:?}", server.asked.lock());
    }
}

#[tokio::test]
async fn no_hold_is_promised_for_longer_than_its_session_lasts() {
    let server = Scripted::start().await;
    let lock = lock(&server);
    attempt(&lock, "k0", "a").await.unwrap();
    let long = lock.acquire(&Key::new("k1"), Owner::new("b"), 10 * LEASE, &Unwatched).await.unwrap();
    assert_eq!((server.logins(), long.lease), (1, LEASE));
    assert_eq!(long.valid_until, validity::promise_end(long.sent, LEASE));
}

/// Tells that an undo has begun.
#[derive(Default)]
struct Undoing(tokio::sync::Notify);

impl Watch for Undoing {
    fn undoing(&self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn an_undo_that_was_broken_off_is_repeated() {
    let server = Scripted::start().await;
    let lock = lock(&server);
    let _held = attempt(&lock, "k0", "a").await.unwrap();
    server.says("count", Says::Error);
    let (key, owner, watch) = (Key::new("k1"), Owner::new("b"), Undoing::default());
    {
        let failing = lock.acquire(&key, owner.clone(), LEASE, &watch);
        let begun = std::pin::pin!(watch.0.notified());
        // The server needs some time for the request to cancel, in which the undo is dropped.
        assert!(matches!(futures::future::select(failing, begun).await, futures::future::Either::Right(_)));
    }
    lock.cancel(&key, &owner, LEASE, &Unwatched).await;
    assert_eq!(server.asked.lock().last().map(String::as_str), Some("unlock"));
    assert!(!lock.current.lock().users.contains_key(&owner));
}
