//! Bugs in one decision of the queue lock, or in its use of the store.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::steps::PlantedOp;
use crate::{
    etcd::{Decisions, Etcd},
    hold::Key,
    mode::Mode,
    ports::{Clock, LeaseId, Lock, NodeError, Op, Reply, Revision, Store, StoreAnswer},
    servers::{CannotBuild, Servers, TokenSource},
};

type Answered = Result<StoreAnswer, NodeError>;

/// Builds the queue lock with the decisions `D`.
pub(super) fn queue_deciding<D: Decisions + Default + 'static>(
    servers: Servers,
    _tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    Ok(Arc::new(Etcd::deciding(servers.store("etcd")?, clock, Box::new(D::default()))))
}

/// Builds the queue lock over a store that it uses through `S`, with decisions that fit that use.
pub(super) fn over_store<S: WrongStore>(
    servers: Servers,
    tokens: TokenSource,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Lock>, CannotBuild> {
    let store = Arc::new(S::from(servers.store("etcd")?));
    queue_deciding::<S::Decisions>(Servers::Store(store), tokens, clock)
}

/// A wrong use of a store.
pub(super) trait WrongStore: Store + From<Arc<dyn Store>> + 'static {
    /// The decisions that this use needs to show.
    type Decisions: Decisions + Default + 'static;
}

/// The correct decisions.
#[derive(Default)]
pub(super) struct AsIntended;

impl Decisions for AsIntended {}

#[derive(Default)]
pub(super) struct NoConfirm;

impl Decisions for NoConfirm {
    fn refreshes_promise(&self) -> bool {
        false
    }

    fn confirms(&self) -> bool {
        false
    }
}

#[derive(Default)]
pub(super) struct NoSecondLook;

impl Decisions for NoSecondLook {
    fn looks_again(&self) -> bool {
        false
    }

    fn confirms(&self) -> bool {
        false
    }
}

#[derive(Default)]
pub(super) struct ReleaseByName;

impl Decisions for ReleaseByName {
    fn release(&self, key: &Key, _revision: Revision) -> Op {
        PlantedOp::DeleteAll(key.clone()).into()
    }
}

#[derive(Default)]
pub(super) struct WriterIgnoresReaders;

impl Decisions for WriterIgnoresReaders {
    /// The mode of a reader conflicts with the modes in which something is written, and with no other. So the writer of
    /// a parent still waits for those who write a child.
    fn looks_as(&self, mode: Mode) -> Mode {
        if mode == Mode::Write { Mode::Read } else { mode }
    }
}

#[derive(Default)]
pub(super) struct SkipsIntention;

impl Decisions for SkipsIntention {
    fn intention(&self, mode: Mode) -> Option<Mode> {
        Some(mode.intention()).filter(|intention| *intention == Mode::IntentRead)
    }
}

#[derive(Default)]
pub(super) struct WeakIntention;

impl Decisions for WeakIntention {
    fn intention(&self, _mode: Mode) -> Option<Mode> {
        Some(Mode::IntentRead)
    }
}

/// The confirming transaction would find the writer that waits.
#[derive(Default)]
pub(super) struct Unconfirmed;

impl Decisions for Unconfirmed {
    fn confirms(&self) -> bool {
        false
    }
}

/// Looks for older writers, and takes one that waits behind another writer for none.
pub(super) struct ReaderPassesWriter(Arc<dyn Store>);

impl From<Arc<dyn Store>> for ReaderPassesWriter {
    fn from(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl WrongStore for ReaderPassesWriter {
    type Decisions = Unconfirmed;
}

impl Store for ReaderPassesWriter {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn send(&self, op: Op) -> Reply<Answered> {
        let Op::Before(key, _, Mode::Read) = &op else { return self.0.send(op) };
        let (key, store, looked) = (key.clone(), self.0.clone(), self.0.send(op));
        Box::pin(async move {
            let StoreAnswer::At(writer) = looked.await? else { return Ok(StoreAnswer::Gone) };
            // A writer waits for the modes that conflict with this one. With other intentions alone, an intention to
            // write does not wait: it holds the key.
            match store.send(Op::Before(key, writer, Mode::IntentWrite)).await? {
                StoreAnswer::At(_) => Ok(StoreAnswer::Gone),
                _ => Ok(StoreAnswer::At(writer)),
            }
        })
    }
}

/// Listens for the end of the predecessor, and hears nothing if the predecessor is gone by then.
pub(super) struct LostWakeUp(Arc<dyn Store>);

/// Waits for the predecessor of the predecessor, if there is one.
pub(super) struct WrongPredecessor(Arc<dyn Store>);

/// Reads the time that was granted, where a keep-alive answers that there is no lease.
pub(super) struct KeepAliveZero {
    store: Arc<dyn Store>,
    granted: Arc<Mutex<BTreeMap<LeaseId, Duration>>>,
}

impl From<Arc<dyn Store>> for LostWakeUp {
    fn from(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl From<Arc<dyn Store>> for WrongPredecessor {
    fn from(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl From<Arc<dyn Store>> for KeepAliveZero {
    fn from(store: Arc<dyn Store>) -> Self {
        Self { store, granted: Arc::default() }
    }
}

impl WrongStore for LostWakeUp {
    type Decisions = AsIntended;
}

impl WrongStore for WrongPredecessor {
    type Decisions = NoSecondLook;
}

impl WrongStore for KeepAliveZero {
    type Decisions = AsIntended;
}

impl Store for LostWakeUp {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn send(&self, op: Op) -> Reply<Answered> {
        let Op::AwaitGone(key, revision) = op else { return self.0.send(op) };
        // The newest key before the next revision is the key of this revision, if it is there.
        let looked = self.0.send(Op::Before(key.clone(), Revision(revision.0 + 1), Mode::Write));
        let store = self.0.clone();
        Box::pin(async move {
            match looked.await? {
                StoreAnswer::At(found) if found == revision => store.send(Op::AwaitGone(key, revision)).await,
                _ => pending().await,
            }
        })
    }
}

impl Store for WrongPredecessor {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn send(&self, op: Op) -> Reply<Answered> {
        let Op::Before(key, _, mode) = &op else { return self.0.send(op) };
        let (key, mode, store, looked) = (key.clone(), *mode, self.0.clone(), self.0.send(op));
        Box::pin(async move {
            let StoreAnswer::At(predecessor) = looked.await? else { return Ok(StoreAnswer::Gone) };
            match store.send(Op::Before(key, predecessor, mode)).await? {
                StoreAnswer::Gone => Ok(StoreAnswer::At(predecessor)),
                other => Ok(other),
            }
        })
    }
}

impl Store for KeepAliveZero {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn send(&self, op: Op) -> Reply<Answered> {
        let (grants, keeps_alive) = (matches!(op, Op::Grant(_)), matches!(op, Op::KeepAlive(_)));
        let (granted, answer) = (self.granted.clone(), self.store.send(op));
        Box::pin(async move {
            let answer = answer.await?;
            let StoreAnswer::Leased(lease, left) = answer else { return Ok(answer) };
            if grants {
                granted.lock().insert(lease, left);
            }
            if keeps_alive && left.is_zero() {
                let granted = granted.lock().get(&lease).copied().unwrap_or_default();
                return Ok(StoreAnswer::Leased(lease, granted));
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, sync::Arc};

    use super::{
        Answered, Decisions, Key, Mode, Op, ReaderPassesWriter, Reply, Revision, Store, StoreAnswer,
        WriterIgnoresReaders,
    };

    /// A queue with keys in these modes, the oldest first. Its revisions count from 1.
    struct Queue(&'static [Mode]);

    impl Store for Queue {
        fn name(&self) -> &str {
            "etcd"
        }

        fn send(&self, op: Op) -> Reply<Answered> {
            let Op::Before(_, before, mode) = op else { panic!("{op:?}") };
            let older = (1..before.0).zip(self.0).filter(|(_, older)| older.conflicts(mode)).last();
            Box::pin(ready(Ok(older.map_or(StoreAnswer::Gone, |(at, _)| StoreAnswer::At(Revision(at))))))
        }
    }

    #[tokio::test]
    async fn a_reader_passes_only_writers_that_wait() {
        use Mode::{IntentRead, IntentWrite, Read, ReadIntentWrite, Write};
        let queues: [(&[Mode], bool); 7] = [
            (&[Write], false),
            (&[Read, Write], true),
            (&[Write, Write], true),
            (&[IntentRead, IntentWrite], false),
            (&[IntentWrite, IntentWrite], false),
            (&[Read, IntentWrite], true),
            (&[IntentRead, ReadIntentWrite], false),
        ];
        for (queue, passes) in queues {
            let store = ReaderPassesWriter::from(Arc::new(Queue(queue)) as Arc<dyn Store>);
            let looked = store.send(Op::Before(Key::new("k0"), Revision(9), Read)).await;
            assert_eq!(looked == Ok(StoreAnswer::Gone), passes, "{queue:?}");
        }
    }

    #[test]
    fn a_writer_that_ignores_readers_still_waits_for_everybody_who_writes() {
        let looks_as = WriterIgnoresReaders.looks_as(Mode::Write);
        let waits_for: Vec<Mode> = Mode::ALL.into_iter().filter(|older| older.conflicts(looks_as)).collect();
        assert_eq!(waits_for, [Mode::IntentWrite, Mode::ReadIntentWrite, Mode::Write]);
    }
}
