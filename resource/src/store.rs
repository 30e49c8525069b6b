//! The durable state of the resource, in an embedded store with group commit.
//!
//! One thread writes all decisions since its last commit in one transaction, and releases their answers when the
//! transaction is on disk. The queue is in admission order. So when an answer leaves, every earlier decision, and
//! everything that the answer can show, is on disk. The same goes for a read that changes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use history::{Arm, HoldId, Key, OpId, RequestKind, Version};
use redb::{Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::{mpsc, oneshot};

use crate::admission::Admission;
use crate::decide::{DecidedOperation, RESTART_JUMP, State};
use crate::key_state::KeyState;
use crate::policy::Policy;
use crate::request::parse_key;

/// `last` is the largest number of a decision on disk. `opened` is the number after which the last process that opened
/// the existing store begins; until its first commit, `opened` is larger than `last`.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// `policy` is the policy with which the store was created.
const WORDS: TableDefinition<&str, &str> = TableDefinition::new("words");
/// Key to its [`KeyState`], as JSON.
const KEYS: TableDefinition<&str, &[u8]> = TableDefinition::new("keys");
/// Hold and operation to its [`DecidedOperation`], as JSON.
const FORMERS: TableDefinition<(u64, u64), &[u8]> = TableDefinition::new("formers");

/// The most decisions that wait to be written. While the queue is full, requests are refused undecided.
pub(crate) const QUEUE_MAX: usize = 4096;
/// The most decisions in one transaction.
const BATCH_MAX: usize = 1024;

// No more decisions wait for the disk than numbers are skipped: no number is used twice.
const _: () = assert!(RESTART_JUMP > (QUEUE_MAX + BATCH_MAX) as u64);

/// The reason why the store cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store itself failed.
    #[error("the store {path}: {source}")]
    Redb {
        /// The file.
        path: PathBuf,
        /// The store's error.
        source: Box<redb::Error>,
    },
    /// A record has a form that this version does not write.
    #[error("the store {path} has a record that cannot be read ({what}); it may come from another version")]
    Record {
        /// The file.
        path: PathBuf,
        /// The record, and the error.
        what: String,
    },
    /// The store was written under another policy.
    #[error(
        "the store {path} was written with the policy '{stored}', and is opened with '{asked}': \
         use the same policy, or a new file"
    )]
    Policy {
        /// The file.
        path: PathBuf,
        /// Arms and comparison of the store.
        stored: String,
        /// Arms and comparison now.
        asked: String,
    },
    /// The Postgres server cannot be used.
    #[error("Postgres at {address}: {what}")]
    Postgres {
        /// The address of the server.
        address: String,
        /// The problem.
        what: String,
    },
    /// The etcd cluster cannot be used.
    #[error("etcd at {addresses}: {what}")]
    Etcd {
        /// The addresses of the members.
        addresses: String,
        /// The problem.
        what: String,
    },
    /// The object store cannot be used.
    #[error("the object store at {address}: {what}")]
    S3 {
        /// The address of the server.
        address: String,
        /// The problem.
        what: String,
    },
    /// The writing thread could not be started.
    #[error("cannot start the thread that writes the store: {0}")]
    Thread(std::io::Error),
}

/// The change of one decision on disk.
#[derive(Debug)]
pub(crate) struct Change {
    number: Version,
    key: Option<(Key, KeyState)>,
    former: Option<((HoldId, OpId), DecidedOperation)>,
}

impl Change {
    /// Returns the change of `admission`, the last decision of `state`.
    pub(crate) fn of(state: &State, admission: &Admission) -> Change {
        if admission.repeat {
            return Change { number: admission.number, key: None, former: None };
        }
        let changed = admission.arms.iter().any(|arm| {
            let claims = arm.arm == Arm::Claim && admission.kind == RequestKind::Read && admission.hold.is_some();
            arm.registered || claims || arm.version == admission.number
        });
        let key = state.key(&admission.key).filter(|_| changed).map(|key| (admission.key.clone(), key.clone()));
        let id = admission.hold.zip(admission.op);
        let former = id.and_then(|(hold, op)| Some(((hold, op), state.former(hold, op)?.clone())));
        Change { number: admission.number, key, former }
    }
}

/// One decision on its way to the disk.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) change: Change,
    /// Signalled when the change is on disk; dropped if it never will be.
    pub(crate) durable: oneshot::Sender<()>,
}

/// Receives the result of the writing thread.
pub(crate) type End = oneshot::Receiver<Result<(), StoreError>>;

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    db: Database,
    path: PathBuf,
}

/// The contents of an opened store.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) state: State,
    /// The largest number of a decision on disk; none if the store is new.
    pub(crate) durable: Option<Version>,
}

impl Store {
    /// Opens the file at `path`; creates it if missing.
    pub(crate) fn open(path: &Path, policy: &Policy) -> Result<(Store, Restored), StoreError> {
        let is_new = !path.exists();
        let db = Database::create(path).map_err(|error| StoreError::redb(path, error))?;
        let store = Store { db, path: path.to_owned() };
        store.check_policy(policy)?;
        let restored = store.restore(policy, is_new)?;
        Ok((store, restored))
    }

    /// Writes the policy into a new store, and checks the policy of an existing one.
    fn check_policy(&self, policy: &Policy) -> Result<(), StoreError> {
        let asked = policy.to_string();
        let stored = self.wrap(|| {
            let transaction = self.db.begin_write()?;
            let stored = {
                let mut words = transaction.open_table(WORDS)?;
                transaction.open_table(NUMBERS)?;
                transaction.open_table(KEYS)?;
                transaction.open_table(FORMERS)?;
                let stored = words.get("policy")?.map(|word| word.value().to_owned());
                if stored.is_none() {
                    words.insert("policy", asked.as_str())?;
                }
                stored
            };
            transaction.commit()?;
            Ok(stored)
        })?;
        match stored {
            Some(stored) if stored != asked => Err(StoreError::Policy { path: self.path.clone(), stored, asked }),
            _ => Ok(()),
        }
    }

    fn restore(&self, policy: &Policy, is_new: bool) -> Result<Restored, StoreError> {
        if is_new {
            return Ok(Restored { state: State::default(), durable: None });
        }
        let transaction = self.wrap(|| Ok(self.db.begin_read()?))?;
        let number = |name: &str| {
            self.wrap(|| Ok(transaction.open_table(NUMBERS)?.get(name)?.map_or(0, |number| number.value())))
        };
        let (last, opened) = (number("last")?, number("opened")?);
        let (keys, formers) = (self.keys(&transaction)?, self.formers(&transaction)?);
        let state = State::restore(Version(last.max(opened)), keys, formers).reopened(policy);
        self.begin_after(state.last())?;
        Ok(Restored { state, durable: Some(Version(last)) })
    }

    /// Puts on disk that the decisions of this process begin after `number`. The next process then begins later, also
    /// if a kill leaves none of these decisions on disk.
    fn begin_after(&self, number: Version) -> Result<(), StoreError> {
        self.wrap(|| {
            let mut transaction = self.db.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            {
                let mut numbers = transaction.open_table(NUMBERS)?;
                numbers.insert("opened", number.0)?;
            }
            Ok(transaction.commit()?)
        })
    }

    fn keys(&self, transaction: &ReadTransaction) -> Result<BTreeMap<Key, KeyState>, StoreError> {
        let table = self.wrap(|| Ok(transaction.open_table(KEYS)?))?;
        let mut keys = BTreeMap::new();
        for row in self.wrap(|| Ok(table.iter()?))? {
            let (key, state) = self.wrap(|| Ok(row?))?;
            let name = key.value();
            let key = parse_key(name).map_err(|error| self.unreadable(name, error))?;
            keys.insert(key, serde_json::from_slice(state.value()).map_err(|error| self.unreadable(name, error))?);
        }
        Ok(keys)
    }

    fn formers(&self, transaction: &ReadTransaction) -> Result<BTreeMap<(HoldId, OpId), DecidedOperation>, StoreError> {
        let table = self.wrap(|| Ok(transaction.open_table(FORMERS)?))?;
        let mut formers = BTreeMap::new();
        for row in self.wrap(|| Ok(table.iter()?))? {
            let (id, former) = self.wrap(|| Ok(row?))?;
            let (hold, op) = id.value();
            let unreadable = |error| self.unreadable(&format!("operation {op} of hold {hold}"), error);
            let former = serde_json::from_slice(former.value()).map_err(unreadable)?;
            formers.insert((HoldId(hold), OpId(op)), former);
        }
        Ok(formers)
    }

    /// Writes `changes` in order, in one transaction. The changes are on disk at the return.
    fn append<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> Result<(), StoreError> {
        self.wrap(|| {
            let mut transaction = self.db.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            {
                let mut numbers = transaction.open_table(NUMBERS)?;
                let mut keys = transaction.open_table(KEYS)?;
                let mut formers = transaction.open_table(FORMERS)?;
                let mut last = numbers.get("last")?.map_or(0, |last| last.value());
                for change in changes {
                    last = last.max(change.number.0);
                    if let Some((key, state)) = &change.key {
                        keys.insert(key.as_str(), json(state)?.as_slice())?;
                    }
                    if let Some(((hold, op), former)) = &change.former {
                        formers.insert((hold.0, op.0), json(former)?.as_slice())?;
                    }
                }
                numbers.insert("last", last)?;
            }
            Ok(transaction.commit()?)
        })
    }

    /// Runs `work` and adds the file's path to its error.
    fn wrap<T>(&self, work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, StoreError> {
        work().map_err(|source| StoreError::redb(&self.path, source))
    }

    fn unreadable(&self, record: &str, error: impl std::fmt::Display) -> StoreError {
        StoreError::Record { path: self.path.clone(), what: format!("{record}: {error}") }
    }

    /// Writes the entries of `queue` until all senders are gone.
    ///
    /// # Errors
    /// Stops at the first failed commit: the state in memory is then ahead of the disk, so no answer may leave any
    /// more. The dropped senders tell the waiting requests.
    fn write_groups(&self, mut queue: mpsc::Receiver<Entry>) -> Result<(), StoreError> {
        let mut group = Vec::with_capacity(BATCH_MAX);
        while queue.blocking_recv_many(&mut group, BATCH_MAX) > 0 {
            self.append(group.iter().map(|entry| &entry.change))?;
            for entry in group.drain(..) {
                // The client may have disconnected; the change stays.
                let _ = entry.durable.send(());
            }
        }
        Ok(())
    }

    /// Starts the writing thread. The thread closes the store and ends when all senders of its queue are gone or a
    /// commit fails. The receiver gets the result.
    pub(crate) fn start(self) -> Result<(mpsc::Sender<Entry>, End), StoreError> {
        let (queue, entries) = mpsc::channel(QUEUE_MAX);
        let (ended, end) = oneshot::channel();
        let write = move || {
            let result = self.write_groups(entries);
            drop(self);
            let _ = ended.send(result);
        };
        std::thread::Builder::new().name("resource-store".to_owned()).spawn(write).map_err(StoreError::Thread)?;
        Ok((queue, end))
    }
}

impl StoreError {
    fn redb(path: &Path, source: impl Into<redb::Error>) -> StoreError {
        StoreError::Redb { path: path.to_owned(), source: Box::new(source.into()) }
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, redb::Error> {
    serde_json::to_vec(value).map_err(|error| redb::Error::Io(error.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use history::{Comparison, Token};
    use redb::StorageBackend;
    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::{Action, Proposal, Request};

    fn policy() -> Policy {
        Policy::new(&[Arm::Reads], Comparison::Default).unwrap()
    }

    /// Decides a write or a read of `k` and queues the decision.
    async fn enqueue(
        state: &mut State,
        queue: &mpsc::Sender<Entry>,
        token: Option<u64>,
        value: Option<&str>,
    ) -> oneshot::Receiver<()> {
        let proposal = |value: &str| BTreeMap::from([(Arm::Reads, Proposal { base: None, value: value.to_owned() })]);
        let action = value.map_or(Action::Read, |value| Action::Write(proposal(value)));
        let key = Key::new("k");
        let request = Request { key, hold: None, op: None, token: token.map(Token), deadline: None, action };
        let admission = state.decide(&policy(), &request).unwrap();
        let (durable, written) = oneshot::channel();
        assert!(queue.send(Entry { change: Change::of(state, &admission), durable }).await.is_ok());
        written
    }

    #[tokio::test]
    async fn nothing_is_answered_before_its_commit_not_even_a_plain_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (store, Restored { mut state, .. }) = Store::open(&path, &policy()).unwrap();
        // The store has one writer at a time: while this transaction is open, nothing can be committed.
        let blocker = store.db.begin_write().unwrap();
        let (queue, end) = store.start().unwrap();
        let mut write = enqueue(&mut state, &queue, Some(7), Some("1")).await;
        let mut read = enqueue(&mut state, &queue, None, None).await;
        // After the store has taken the first entry it waits for its transaction; the second entry may still be queued.
        while queue.capacity() < QUEUE_MAX - 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(write.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        assert_eq!(read.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(blocker);
        write.await.unwrap();
        read.await.unwrap();
        drop(queue);
        end.await.unwrap().unwrap();
        let (_, restored) = Store::open(&path, &policy()).unwrap();
        assert_eq!(restored.durable, Some(Version(2)));
        assert_eq!(restored.state.key(&Key::new("k")), state.key(&Key::new("k")));
    }

    /// A store in memory whose disk fails on demand.
    #[derive(Debug)]
    struct Failing(InMemoryBackend, Arc<AtomicBool>);

    impl StorageBackend for Failing {
        fn len(&self) -> std::io::Result<u64> {
            self.0.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            self.0.read(offset, out)
        }
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.0.set_len(len)
        }
        fn sync_data(&self) -> std::io::Result<()> {
            if self.1.load(SeqCst) { Err(std::io::Error::other("no space")) } else { self.0.sync_data() }
        }
        fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
            self.0.write(offset, data)
        }
    }

    #[tokio::test]
    async fn after_a_failed_commit_nothing_is_acknowledged() {
        let broken = Arc::new(AtomicBool::new(false));
        let backend = Failing(InMemoryBackend::new(), Arc::clone(&broken));
        let db = Database::builder().create_with_backend(backend).unwrap();
        let store = Store { db, path: PathBuf::from("memory") };
        store.check_policy(&policy()).unwrap();
        let mut state = State::default();
        let (queue, end) = store.start().unwrap();
        enqueue(&mut state, &queue, Some(1), Some("1")).await.await.unwrap();
        broken.store(true, SeqCst);
        let lost = enqueue(&mut state, &queue, Some(2), Some("2")).await;
        assert!(lost.await.is_err());
        let failure = end.await.unwrap().unwrap_err().to_string();
        assert!(failure.contains("no space"), "{failure}");
        assert!(queue.is_closed());
    }

    #[test]
    fn no_number_is_used_twice_although_kills_leave_no_decision_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut numbers = Vec::new();
        for durable in [None, Some(Version(0)), Some(Version(0))] {
            let (_store, Restored { mut state, durable: found }) = Store::open(&path, &policy()).unwrap();
            assert_eq!(found, durable);
            let key = Key::new("k");
            let read = Request { key, hold: None, op: None, token: None, deadline: None, action: Action::Read };
            // The store is closed before the decision is written.
            numbers.push(state.decide(&policy(), &read).unwrap().number);
        }
        assert_eq!(numbers[0], Version(1), "a new store begins with 1");
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }

    #[test]
    fn a_store_is_refused_under_another_policy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        drop(Store::open(&path, &policy()).unwrap());
        let other = Policy::new(&[Arm::Off, Arm::Writes], Comparison::Strict).unwrap();
        let error = Store::open(&path, &other).unwrap_err().to_string();
        assert!(error.contains("'reads default'") && error.contains("'off,writes strict'"), "{error}");
        Store::open(&path, &policy()).unwrap();
    }

    #[test]
    fn an_open_store_cannot_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let _open = Store::open(&path, &policy()).unwrap();
        assert!(matches!(Store::open(&path, &policy()), Err(StoreError::Redb { .. })));
    }
}
