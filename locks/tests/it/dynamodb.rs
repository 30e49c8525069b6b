//! The lock in a record that nothing expires, over a table in memory and under virtual time.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use locks::{
    Change, Clock, Condition, Dynamodb, Failure, FailureReason, Hold, Key, Lock, NodeError, Outcome, Owner, Record,
    RecordVersion, Reply, Table, Token, Unwatched,
};
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A record with its owner and its counter.
#[derive(Debug, Clone)]
struct Row {
    owner: Option<(Owner, Duration)>,
    version: RecordVersion,
    counter: u64,
}

/// A table in memory. The next write, or the next read, waits for as long as the table is told.
#[derive(Default)]
struct Memory {
    rows: Mutex<HashMap<Key, Row>>,
    versions: Mutex<Vec<RecordVersion>>,
    next_write_takes: Mutex<Duration>,
    next_read_takes: Mutex<Duration>,
}

impl Memory {
    fn apply(&self, key: &Key, condition: &Condition, change: Change, version: RecordVersion) -> Option<Token> {
        let mut rows = self.rows.lock().unwrap();
        let row = rows.get(key);
        let holds = match condition {
            Condition::Missing => row.is_none(),
            Condition::Version(version) => row.is_some_and(|row| row.version == *version),
            Condition::Owner(owner) => row.is_some_and(|row| row.owner.as_ref().is_some_and(|(it, _)| it == owner)),
        };
        if !holds {
            return None;
        }
        self.versions.lock().unwrap().push(version.clone());
        let row = rows.entry(key.clone()).or_insert(Row { owner: None, version: version.clone(), counter: 0 });
        row.version = version;
        match change {
            Change::Take { owner, lease, counts } => {
                row.owner = Some((owner, lease));
                row.counter += u64::from(counts);
            }
            Change::Renew => {}
            Change::Free => row.owner = None,
        }
        Some(Token(row.counter))
    }

    fn owner(&self) -> Option<String> {
        let rows = self.rows.lock().unwrap();
        rows.get(&Key::new("k0")).and_then(|row| Some(row.owner.as_ref()?.0.as_str().to_owned()))
    }
}

struct Shared(Arc<Memory>);

impl Table for Shared {
    fn name(&self) -> &str {
        "table"
    }

    fn read(&self, key: &Key) -> Reply<Result<Option<Record>, NodeError>> {
        let (memory, key) = (self.0.clone(), key.clone());
        let takes = std::mem::take(&mut *memory.next_read_takes.lock().unwrap());
        Box::pin(async move {
            if !takes.is_zero() {
                sleep(takes).await;
            }
            let row = memory.rows.lock().unwrap().get(&key).cloned();
            let record = |row: Row| Record { lease: row.owner.map(|(_, lease)| lease), version: row.version };
            Ok(row.map(record))
        })
    }

    fn write(
        &self,
        key: &Key,
        condition: Condition,
        change: Change,
        version: RecordVersion,
    ) -> Reply<Result<Option<Token>, NodeError>> {
        let (memory, key) = (self.0.clone(), key.clone());
        let takes = std::mem::take(&mut *memory.next_write_takes.lock().unwrap());
        Box::pin(async move {
            sleep(takes).await;
            Ok(memory.apply(&key, &condition, change, version))
        })
    }
}

/// The clock of a process, which can jump.
struct OwnClock {
    start: Instant,
    ahead: Mutex<Duration>,
}

impl Clock for OwnClock {
    fn now(&self) -> Duration {
        self.start.elapsed() + *self.ahead.lock().unwrap()
    }

    fn sleep_until(&self, at: Duration) -> Reply<()> {
        Box::pin(sleep(at.saturating_sub(self.now())))
    }
}

/// A process with a lock of its own.
struct Process {
    lock: Dynamodb,
    clock: Arc<OwnClock>,
    name: &'static str,
    attempts: Mutex<u32>,
}

impl Process {
    fn new(memory: &Arc<Memory>, name: &'static str) -> Process {
        let clock = Arc::new(OwnClock { start: Instant::now(), ahead: Mutex::default() });
        let lock = Dynamodb::new(Arc::new(Shared(memory.clone())), true, clock.clone());
        Process { lock, clock, name, attempts: Mutex::default() }
    }

    async fn attempt(&self) -> Result<Hold, Failure> {
        *self.attempts.lock().unwrap() += 1;
        let owner = Owner::new(format!("{}{}", self.name, self.attempts.lock().unwrap()));
        self.lock.acquire(&Key::new("k0"), owner, LEASE, &Unwatched).await
    }

    /// Tries every 10 ms until it has the key.
    async fn acquire(&self) -> Hold {
        loop {
            match self.attempt().await {
                Ok(hold) => return hold,
                Err(failure) => assert_eq!(failure.reason, FailureReason::Held),
            }
            sleep(10 * MS).await;
        }
    }
}

/// Runs a test with a table and two processes under virtual time.
fn scene<F: Future<Output = ()>>(test: impl FnOnce(Arc<Memory>, Process, Process) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let memory = Arc::<Memory>::default();
        let (a, b) = (Process::new(&memory, "a"), Process::new(&memory, "b"));
        test(memory, a, b).await;
    });
}

#[test]
fn a_waiting_client_takes_over_one_lease_after_its_first_look() {
    scene(|_, a, b| async move {
        let first = a.attempt().await.unwrap();
        assert_eq!(first.valid_until - first.sent, LEASE - LEASE / 100 - 2 * MS);
        sleep(600 * MS).await;
        let looked = Instant::now();
        let second = b.acquire().await;
        let waited = looked.elapsed();
        assert!(waited >= LEASE && waited < LEASE + 30 * MS, "{waited:?}");
        assert!(second.token > first.token);
        let late = a.lock.release(&first, &Unwatched).await.unwrap();
        assert!(!late.removed, "another client owns the key");
    });
}

#[test]
fn a_waiting_client_counts_from_the_answer_to_its_read() {
    scene(|memory, a, b| async move {
        let mut hold = a.attempt().await.unwrap();
        *memory.next_read_takes.lock().unwrap() = 200 * MS;
        let looked = Instant::now();
        // The read finds the version of a renewal that was sent after the read.
        let renewing = async {
            sleep(100 * MS).await;
            a.lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
        };
        let (looking, ()) = tokio::join!(b.attempt(), renewing);
        assert_eq!(looking.unwrap_err().reason, FailureReason::Held);
        b.acquire().await;
        let waited = looked.elapsed();
        assert!(waited >= LEASE + 200 * MS && waited < LEASE + 230 * MS, "{waited:?}");
        assert!(!hold.is_valid(a.clock.now()), "two holds at once");
    });
}

#[test]
fn a_renewal_lets_every_waiting_client_count_anew() {
    scene(|_, a, b| async move {
        let mut hold = a.attempt().await.unwrap();
        assert_eq!(b.attempt().await.unwrap_err().reason, FailureReason::Held);
        sleep(900 * MS).await;
        a.lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
        let renewed = Instant::now();
        b.acquire().await;
        assert!(renewed.elapsed() >= LEASE, "{:?}", renewed.elapsed());
        let failure = a.lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
        assert_eq!(failure.reason, FailureReason::Validity);
    });
}

#[test]
fn a_holder_that_still_believes_loses_its_hold_to_a_client_whose_clock_jumped() {
    scene(|_, a, b| async move {
        let mut hold = a.attempt().await.unwrap();
        assert_eq!(b.attempt().await.unwrap_err().reason, FailureReason::Held);
        *b.clock.ahead.lock().unwrap() += LEASE;
        let stolen = b.attempt().await.unwrap();
        assert!(hold.is_valid(a.clock.now()) && stolen.token > hold.token);
        let failure = a.lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
        assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    });
}

#[test]
fn a_released_key_is_free_at_once_and_keeps_its_counter() {
    scene(|memory, a, b| async move {
        for token in 1..=6 {
            let client = if token % 2 == 0 { &a } else { &b };
            let hold = client.attempt().await.unwrap();
            assert_eq!(hold.token, Some(Token(token)));
            assert!(client.lock.release(&hold, &Unwatched).await.unwrap().removed);
        }
        let versions = memory.versions.lock().unwrap();
        let different: std::collections::HashSet<_> = versions.iter().collect();
        assert_eq!((versions.len(), different.len()), (12, 12), "no version comes twice");
    });
}

#[test]
fn an_undo_does_not_overtake_the_write_that_it_undoes() {
    scene(|memory, a, _| async move {
        *memory.next_write_takes.lock().unwrap() = 700 * MS;
        let failure = a.attempt().await.unwrap_err();
        assert_eq!(failure.outcome, Outcome::Indeterminate);
        assert_eq!(memory.owner(), None, "the write is still under way");
        sleep(LEASE).await;
        assert_eq!(memory.versions.lock().unwrap().len(), 2, "the write, and its undo");
        assert_eq!(memory.owner(), None);
    });
}

#[test]
fn a_grant_that_is_read_after_its_promise_is_refused_and_undone() {
    scene(|memory, a, _| async move {
        *memory.next_write_takes.lock().unwrap() = 100 * MS;
        let freezing = async {
            sleep(50 * MS).await;
            *a.clock.ahead.lock().unwrap() += LEASE;
        };
        let (attempt, ()) = tokio::join!(a.attempt(), freezing);
        let late = attempt.unwrap_err();
        assert_eq!((late.reason, late.outcome), (FailureReason::Validity, Outcome::Failed));
        assert_eq!(memory.owner(), None, "no other client waits for the end of the lease");
        assert_eq!(memory.versions.lock().unwrap().len(), 2, "the write, and its undo");
    });
}

#[test]
fn an_attempt_whose_read_has_no_answer_has_certainly_failed() {
    scene(|memory, a, _| async move {
        *memory.next_read_takes.lock().unwrap() = 700 * MS;
        assert_eq!(a.attempt().await.unwrap_err().outcome, Outcome::Failed);
        sleep(LEASE).await;
        assert!(memory.rows.lock().unwrap().is_empty(), "nothing was written");
    });
}

#[test]
fn a_write_that_arrives_after_another_one_changes_nothing() {
    scene(|memory, a, b| async move {
        let first = b.attempt().await.unwrap();
        b.lock.release(&first, &Unwatched).await.unwrap();
        *memory.next_write_takes.lock().unwrap() = 700 * MS;
        assert_eq!(a.attempt().await.unwrap_err().outcome, Outcome::Indeterminate);
        let second = b.attempt().await.unwrap();
        b.lock.release(&second, &Unwatched).await.unwrap();
        sleep(LEASE).await;
        assert_eq!(memory.versions.lock().unwrap().len(), 4, "the key is free, and the late write is refused");
        assert_eq!((memory.owner(), second.token), (None, Some(Token(2))));
    });
}

#[cfg(not(feature = "dynamodb"))]
#[tokio::test]
async fn a_build_without_the_feature_names_the_feature() {
    let client = locks::Client::named("dynamodb").unwrap();
    assert_eq!(client.missing_feature(), Some("dynamodb"));
    let error = (client.connect)(client.name, Vec::new(), locks::Connecting::default()).await.err().unwrap();
    assert!(error.to_string().contains("--features dynamodb"), "{error}");
}
