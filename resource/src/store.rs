//! What survives: the state of the resource in an embedded store, written in groups.
//!
//! One thread takes everything that was decided since its last commit, writes it in one transaction
//! that is on disk when it returns, and only then lets the answers go. The queue is in admission order,
//! so when an answer goes, everything that was decided before it, and so everything that it can show,
//! is on disk as well. That holds for a read that changes nothing too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use redb::{Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::{mpsc, oneshot};

use crate::decide::{Former, KeyState, RESTART_JUMP, State};
use crate::policy::{Arm, Policy};
use crate::types::{Admission, HoldId, Key, Kind, OpId, Version};

/// `last` is the largest number on disk.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// `policy` is what the resource was started as.
const WORDS: TableDefinition<&str, &str> = TableDefinition::new("words");
/// Key to its [`KeyState`], as JSON.
const KEYS: TableDefinition<&str, &[u8]> = TableDefinition::new("keys");
/// Hold and operation to its [`Former`], as JSON.
const FORMERS: TableDefinition<(u64, u64), &[u8]> = TableDefinition::new("formers");

/// Most decisions that wait to be written; whoever comes when it is full is turned away undecided.
pub(crate) const QUEUE_MAX: usize = 4096;
/// Most decisions in one transaction.
const BATCH_MAX: usize = 1024;

// At most so many decisions are on their way to the disk: no number is given out twice.
const _: () = assert!(RESTART_JUMP > (QUEUE_MAX + BATCH_MAX) as u64);

/// Why the store cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store itself failed.
    #[error("the store {path}: {source}")]
    Redb {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: Box<redb::Error>,
    },
    /// A record is not what this version writes.
    #[error("the store {path} holds a record that cannot be read ({what}): was it written by another version?")]
    Record {
        /// The file.
        path: PathBuf,
        /// Which record, and why.
        what: String,
    },
    /// It was written under another policy.
    #[error("the store {path} was written with '{stored}', and is opened with '{asked}': use the same, or a new file")]
    Policy {
        /// The file.
        path: PathBuf,
        /// Arms and comparison it was written with.
        stored: String,
        /// Arms and comparison now.
        asked: String,
    },
    /// The thread that writes it could not be started.
    #[error("cannot start the thread that writes the store: {0}")]
    Thread(std::io::Error),
}

/// What one decision leaves on disk.
#[derive(Debug)]
pub(crate) struct Change {
    number: Version,
    key: Option<(Key, KeyState)>,
    former: Option<((HoldId, OpId), Former)>,
}

impl Change {
    /// What `admission`, the last decision of `state`, changed.
    pub(crate) fn of(state: &State, admission: &Admission) -> Change {
        if admission.repeat {
            return Change { number: admission.number, key: None, former: None };
        }
        let changed = admission.arms.iter().any(|arm| {
            let claims = arm.arm == Arm::Claim && admission.kind == Kind::Read && admission.hold.is_some();
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
    /// Told when the change is on disk; dropped untold when it never will be.
    pub(crate) durable: oneshot::Sender<()>,
}

/// Told how the writing thread ended.
pub(crate) type End = oneshot::Receiver<Result<(), StoreError>>;

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    db: Database,
    path: PathBuf,
}

/// What was found on opening.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) state: State,
    /// The largest number on disk.
    pub(crate) durable: Version,
}

impl Store {
    /// Opens the file at `path`, which is created if it is not there.
    pub(crate) fn open(path: &Path, policy: &Policy) -> Result<(Store, Restored), StoreError> {
        let db = Database::create(path).map_err(|error| StoreError::redb(path, error))?;
        let store = Store { db, path: path.to_owned() };
        store.claim(policy)?;
        let restored = store.restore(policy)?;
        Ok((store, restored))
    }

    /// Writes the policy into a new store, and compares it with that of an old one.
    fn claim(&self, policy: &Policy) -> Result<(), StoreError> {
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

    fn restore(&self, policy: &Policy) -> Result<Restored, StoreError> {
        let transaction = self.wrap(|| Ok(self.db.begin_read()?))?;
        let last = self.wrap(|| Ok(transaction.open_table(NUMBERS)?.get("last")?.map(|last| last.value())))?;
        let (keys, formers) = (self.keys(&transaction)?, self.formers(&transaction)?);
        let durable = Version(last.unwrap_or_default());
        Ok(Restored { state: State::restore(durable, keys, formers).reopened(policy), durable })
    }

    fn keys(&self, transaction: &ReadTransaction) -> Result<BTreeMap<Key, KeyState>, StoreError> {
        let table = self.wrap(|| Ok(transaction.open_table(KEYS)?))?;
        let mut keys = BTreeMap::new();
        for row in self.wrap(|| Ok(table.iter()?))? {
            let (key, state) = self.wrap(|| Ok(row?))?;
            let name = key.value();
            let key = Key::new(name).map_err(|error| self.unreadable(name, error))?;
            keys.insert(key, serde_json::from_slice(state.value()).map_err(|error| self.unreadable(name, error))?);
        }
        Ok(keys)
    }

    fn formers(&self, transaction: &ReadTransaction) -> Result<BTreeMap<(HoldId, OpId), Former>, StoreError> {
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

    /// Writes `changes`, in order, in one transaction; they are on disk when this returns.
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

    /// Runs `work` and says which file it was about.
    fn wrap<T>(&self, work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, StoreError> {
        work().map_err(|source| StoreError::redb(&self.path, source))
    }

    fn unreadable(&self, record: &str, error: impl std::fmt::Display) -> StoreError {
        StoreError::Record { path: self.path.clone(), what: format!("{record}: {error}") }
    }

    /// Writes what comes through `queue` until all its senders are gone.
    ///
    /// # Errors
    /// The first failed commit ends it: the state in memory is then ahead of the disk, so that nothing
    /// may be answered any more. Those who wait are told by the drop of their senders.
    fn write_groups(&self, mut queue: mpsc::Receiver<Entry>) -> Result<(), StoreError> {
        let mut group = Vec::with_capacity(BATCH_MAX);
        while queue.blocking_recv_many(&mut group, BATCH_MAX) > 0 {
            self.append(group.iter().map(|entry| &entry.change))?;
            for entry in group.drain(..) {
                // Whoever waited may have hung up; the change stands all the same.
                let _ = entry.durable.send(());
            }
        }
        Ok(())
    }

    /// Starts the writing thread. It ends, and closes the store, when every sender of its queue is gone
    /// or a commit fails; the receiver is then told how.
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

    use redb::StorageBackend;
    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::{Action, Arm, Comparison, Proposal, Request, Token};

    fn policy() -> Policy {
        Policy::new(&[Arm::Reads], Comparison::Default).unwrap()
    }

    /// Decides a write or a read of `k` and puts it into `queue`.
    async fn enqueue(
        state: &mut State,
        queue: &mpsc::Sender<Entry>,
        token: Option<u64>,
        value: Option<&str>,
    ) -> oneshot::Receiver<()> {
        let proposal = |value: &str| BTreeMap::from([(Arm::Reads, Proposal { base: None, value: value.to_owned() })]);
        let action = value.map_or(Action::Read, |value| Action::Write(proposal(value)));
        let request = Request { key: Key::new("k").unwrap(), hold: None, op: None, token: token.map(Token), action };
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
        // The store has one writer at a time: as long as this transaction is open, no commit can happen.
        let blocker = store.db.begin_write().unwrap();
        let (queue, end) = store.start().unwrap();
        let mut write = enqueue(&mut state, &queue, Some(7), Some("1")).await;
        let mut read = enqueue(&mut state, &queue, None, None).await;
        // Once it has taken the first of them the store is at its transaction, and may find the second in the queue after it.
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
        assert_eq!(restored.durable, Version(2));
        assert_eq!(restored.state.key(&Key::new("k").unwrap()), state.key(&Key::new("k").unwrap()));
    }

    /// A store in memory whose disk fails when it is told to.
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
        store.claim(&policy()).unwrap();
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
