use std::{
    collections::VecDeque,
    future::{pending, ready},
};

use parking_lot::Mutex;

use super::*;
use crate::ports::LeaseId;

const LEASE: Duration = Duration::from_secs(2);

/// A store with these answers, one for each request in turn, and a clock that stands still. Notes the ends of timers.
struct Scripted {
    answers: Mutex<VecDeque<StoreResult>>,
    timers: Mutex<Vec<Duration>>,
}

impl Scripted {
    /// The answers to an attempt at a free lock, and then these.
    fn new(answers: impl IntoIterator<Item = StoreResult>) -> Arc<Scripted> {
        let acquired = [Ok(StoreAnswer::Leased(LeaseId(7), LEASE)), Ok(StoreAnswer::First(Revision(5)))];
        let answers = acquired.into_iter().chain(answers).collect();
        Arc::new(Scripted { answers: Mutex::new(answers), timers: Mutex::default() })
    }
}

impl Store for Scripted {
    fn name(&self) -> &str {
        "etcd"
    }

    fn send(&self, op: Op) -> Reply<StoreResult> {
        let Some(answer) = self.answers.lock().pop_front() else { panic!("{op:?}") };
        Box::pin(ready(answer))
    }
}

impl Clock for Scripted {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        self.timers.lock().push(at);
        Box::pin(pending())
    }
}

fn lost() -> StoreResult {
    Err(NodeError::Indeterminate("no answer in time".into()))
}

fn never_sent() -> StoreResult {
    Err(NodeError::Definite("not connected".into()))
}

async fn acquire(lock: &dyn Lock) -> Hold {
    lock.acquire(&Key::new("k0"), Owner::new("a"), LEASE, &Unwatched).await.unwrap()
}

#[tokio::test]
async fn a_release_is_decided_by_the_deletion_or_by_a_lease_that_still_ran() {
    use Outcome::{Failed, Indeterminate};
    use StoreAnswer::{Done, Gone};
    for (deleted, revoked, expected) in [
        (Ok(Done), Ok(Done), Ok(true)),
        (Ok(Gone), Ok(Gone), Ok(false)),
        (lost(), Ok(Done), Ok(true)),
        (never_sent(), Ok(Done), Ok(true)),
        // The key went with its lease, or before: nobody knows.
        (lost(), Ok(Gone), Err(Indeterminate)),
        (never_sent(), Ok(Gone), Err(Indeterminate)),
        (lost(), lost(), Err(Indeterminate)),
        (never_sent(), lost(), Err(Indeterminate)),
        (lost(), never_sent(), Err(Indeterminate)),
        (never_sent(), never_sent(), Err(Failed)),
    ] {
        let case = format!("{deleted:?}, {revoked:?}");
        let scripted = Scripted::new([deleted, revoked]);
        let lock = Etcd::new(scripted.clone(), scripted);
        let hold = acquire(&lock).await;
        let released = lock.release(&hold, &Unwatched).await;
        let released = released.map(|released| released.removed).map_err(|failure| failure.outcome);
        assert_eq!(released, expected, "{case}");
    }
}

#[tokio::test]
async fn an_undo_is_sent_again_until_it_is_answered() {
    let scripted = Scripted::new([lost(), lost(), Ok(StoreAnswer::Done), Ok(StoreAnswer::Done)]);
    let lock = Etcd::new(scripted.clone(), scripted.clone());
    let Hold { key, owner, .. } = acquire(&lock).await;
    // Each undo deletes the key, and revokes the lease. After an answer there is nothing to undo.
    for left in [2, 0, 0] {
        lock.cancel(&key, &owner, LEASE, &Unwatched).await;
        assert_eq!(scripted.answers.lock().len(), left);
    }
}

#[tokio::test]
async fn a_lock_and_its_session_wait_for_answers_for_as_long_as_their_user_says() {
    let timeout = Duration::from_millis(1_700);
    for is_session in [false, true] {
        let scripted = Scripted::new([]);
        let lock = Etcd::new(scripted.clone(), scripted.clone()).with_request_timeout(timeout);
        let lock: Arc<dyn Lock> = if is_session { lock.session().unwrap() } else { Arc::new(lock) };
        acquire(&*lock).await;
        // For the lease, and for the key.
        assert_eq!(*scripted.timers.lock(), [timeout; 2], "a session: {is_session}");
    }
}
