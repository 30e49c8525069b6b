//! A session of one client at a store: a lease that all its attempts and holds share.
//!
//! This is a store between the client's lock and the real one. The first attempt is granted a lease. As long as another
//! attempt or hold of the client has the lease, a further attempt keeps it alive instead of asking for one of its own,
//! and the end of a hold leaves it. So each renewal of one hold keeps the keys of all holds in the store, and when the
//! lease ends, all these keys go at once.
//!
//! A further attempt does not wait for the keep-alive before it creates its key: both requests are on their way
//! together, and the key counts as created when both are answered. A store whose creations keep the lease alive needs
//! the creation only. An attempt that learns in this way that the lease is gone has failed, and the next one begins a
//! new session.
//!
//! # Promises
//!
//! The recorded promise of a hold counts from the keep-alive of its own attempt, or from its own renewals. A keep-alive
//! for another hold lets the lease run longer than that, never shorter.
//!
//! # Leftovers
//!
//! A failed attempt deletes its key. An attempt that the store has not told about its key cannot: the key may be there,
//! or come later. While others have the lease, nobody may end it for that, because their promises rest on it. So the
//! session takes no more attempts, and its lease goes with the last hold that has it, and the key with the lease. If
//! the answer about the key still comes, the key is deleted at once. The next attempt begins a new session.

use std::{
    collections::BTreeMap,
    future::{poll_fn, ready},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::{FutureExt, Shared};
use parking_lot::Mutex;

use crate::{
    hold::Key,
    ports::{LeaseId, NodeError, Op, Reply, Store, StoreAnswer},
};

type Answer = Result<StoreAnswer, NodeError>;

/// The sessions of a client.
#[derive(Default)]
struct Sessions {
    /// The session that new attempts join.
    open: Option<LeaseId>,
    /// Each lease that an attempt or a hold has.
    used: BTreeMap<LeaseId, Used>,
    /// Creations of keys without a definite answer.
    pending: Vec<Arc<Creation>>,
}

/// A lease in use.
struct Used {
    /// The number of attempts and holds that have it.
    users: u32,
    granted: Duration,
    /// The keep-alive that an attempt sent last.
    keeping: Option<Shared<Reply<Answer>>>,
}

impl Sessions {
    /// No attempt joins this session any more.
    fn close(&mut self, id: LeaseId) {
        if self.open == Some(id) {
            self.open = None;
        }
    }

    /// A new session, with its first attempt.
    fn begin(&mut self, id: LeaseId, granted: Duration) {
        self.open = Some(id);
        self.used.insert(id, Used { users: 1, granted, keeping: None });
    }

    /// An attempt joins the open session, and keeps its lease alive, unless the creation of its key will. Returns that
    /// lease and its granted time.
    fn join(&mut self, store: &dyn Store) -> Option<(LeaseId, Duration)> {
        let id = self.open?;
        let used = self.used.get_mut(&id)?;
        used.users += 1;
        used.keeping = (!store.keeps_alive_by_creating()).then(|| store.send(Op::KeepAlive(id)).shared());
        Some((id, used.granted))
    }

    /// One attempt or hold less has the lease. Returns whether no other has it.
    fn leave(&mut self, id: LeaseId) -> bool {
        if let Some(used) = self.used.get_mut(&id) {
            used.users -= 1;
            if used.users > 0 {
                return false;
            }
        }
        self.used.remove(&id);
        self.close(id);
        self.pending.retain(|creation| creation.lease != id);
        true
    }
}

/// The creation of a key. The attempt waits for its answer, and so does the undo of an attempt that waits no more.
struct Creation {
    key: Key,
    lease: LeaseId,
    /// None: the answer was an error that leaves it open whether the key was created.
    reply: Mutex<Option<Reply<Answer>>>,
}

impl Creation {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut reply = self.reply.lock();
        let unknown = || Err(NodeError::Indeterminate("nobody knows whether the key was created".into()));
        let answer = match reply.as_mut() {
            Some(reply) => reply.as_mut().poll(cx),
            None => Poll::Ready(unknown()),
        };
        if matches!(answer, Poll::Ready(Err(NodeError::Indeterminate(_)))) {
            *reply = None;
        }
        answer
    }
}

/// A store that grants all attempts of a client one lease. See [the module](self).
pub(crate) struct SharedLease {
    store: Arc<dyn Store>,
    sessions: Arc<Mutex<Sessions>>,
}

impl SharedLease {
    pub fn new(store: Arc<dyn Store>) -> SharedLease {
        SharedLease { store, sessions: Arc::default() }
    }

    fn grant(&self, lease: Duration) -> Reply<Answer> {
        if let Some((id, granted)) = self.sessions.lock().join(&*self.store) {
            return Box::pin(ready(Ok(StoreAnswer::Leased(id, granted))));
        }
        let (asked, sessions) = (self.store.send(Op::Grant(lease)), self.sessions.clone());
        Box::pin(async move {
            let answer = asked.await;
            if let Ok(StoreAnswer::Leased(id, granted)) = answer {
                sessions.lock().begin(id, granted);
            }
            answer
        })
    }

    /// Creates a key. The answer is that of the creation, if the last keep-alive has succeeded. It was sent with this
    /// attempt or after it.
    fn create(&self, key: Key, lease: LeaseId, op: Op) -> Reply<Answer> {
        let creation = Arc::new(Creation { key, lease, reply: Mutex::new(Some(self.store.send(op))) });
        let sessions = self.sessions.clone();
        let (keeping, granted) = {
            let mut sessions = sessions.lock();
            sessions.pending.push(creation.clone());
            let used = sessions.used.get(&lease);
            (used.and_then(|used| used.keeping.clone()), used.map(|used| used.granted).unwrap_or_default())
        };
        Box::pin(async move {
            if let Some(keeping) = keeping {
                match keeping.await {
                    Ok(StoreAnswer::Leased(_, left)) if left >= granted => {}
                    // The lease is gone, and its keys with it.
                    Ok(StoreAnswer::Leased(_, Duration::ZERO) | StoreAnswer::Gone) => {
                        sessions.lock().close(lease);
                        return Ok(StoreAnswer::Gone);
                    }
                    other => {
                        let why = format!("a keep-alive with the creation of the key failed: {other:?}");
                        return Err(NodeError::Indeterminate(why));
                    }
                }
            }
            let answer = poll_fn(|cx| creation.poll(cx)).await;
            let mut sessions = sessions.lock();
            if !matches!(answer, Err(NodeError::Indeterminate(_))) {
                sessions.pending.retain(|other| !Arc::ptr_eq(other, &creation));
            }
            if answer == Ok(StoreAnswer::Gone) {
                sessions.close(lease);
            }
            answer
        })
    }

    /// An attempt or a hold is over. The lease goes with the last one that has it.
    fn leave(&self, id: LeaseId) -> Reply<Answer> {
        let mut sessions = self.sessions.lock();
        if sessions.leave(id) {
            return self.store.send(Op::Revoke(id));
        }
        // Nobody but this list has the creation of an attempt that waits no more.
        let is_left = |creation: &&Arc<Creation>| creation.lease == id && Arc::strong_count(creation) == 1;
        let left: Vec<_> = sessions.pending.iter().filter(is_left).cloned().collect();
        let goes_on = || Err(NodeError::Indeterminate("the session goes on for other holds of the client".into()));
        if left.is_empty() {
            return Box::pin(ready(goes_on()));
        }
        sessions.close(id);
        let (store, sessions) = (self.store.clone(), self.sessions.clone());
        Box::pin(async move {
            let mut said = goes_on();
            for creation in left {
                if let Ok(answer) = poll_fn(|cx| creation.poll(cx)).await {
                    sessions.lock().pending.retain(|other| !Arc::ptr_eq(other, &creation));
                    said = match answer {
                        StoreAnswer::At(revision) | StoreAnswer::First(revision) => {
                            store.send(Op::Delete(creation.key.clone(), revision)).await
                        }
                        // The lease was over before, so there is no key.
                        answer => Ok(answer),
                    };
                }
            }
            said
        })
    }
}

impl Store for SharedLease {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn send(&self, op: Op) -> Reply<Answer> {
        match op {
            Op::Grant(lease) => self.grant(lease),
            Op::Revoke(id) => self.leave(id),
            Op::Create(ref key, _, lease, _) => self.create(key.clone(), lease, op.clone()),
            op => self.store.send(op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hold::Owner, mode::Mode, ports::Revision};

    const LEASE: Duration = Duration::from_secs(2);

    /// Grants leases with growing ids, and notes all requests.
    #[derive(Default)]
    struct Noting {
        sent: Mutex<Vec<Op>>,
        /// True if a keep-alive finds no lease.
        has_expired: Mutex<bool>,
        /// True if nobody learns whether a key was created.
        loses_creations: bool,
        /// True if no keep-alive is answered.
        loses_keep_alives: bool,
        /// True if creations keep the lease alive.
        keeps_alive_by_creating: bool,
    }

    impl Store for Noting {
        fn name(&self) -> &str {
            "etcd"
        }

        fn keeps_alive_by_creating(&self) -> bool {
            self.keeps_alive_by_creating
        }

        fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>> {
            let mut sent = self.sent.lock();
            let grants = 1 + sent.iter().filter(|op| matches!(op, Op::Grant(_))).count() as i64;
            let left = if *self.has_expired.lock() { Duration::ZERO } else { LEASE };
            let is_lost = match &op {
                Op::Create(..) => self.loses_creations,
                Op::KeepAlive(..) => self.loses_keep_alives,
                _ => false,
            };
            if is_lost {
                sent.push(op);
                return Box::pin(ready(Err(NodeError::Indeterminate("the connection is closed".into()))));
            }
            let answer = match &op {
                Op::Grant(lease) => StoreAnswer::Leased(LeaseId(grants), *lease),
                Op::KeepAlive(id) => StoreAnswer::Leased(*id, left),
                Op::Create(..) if left.is_zero() => StoreAnswer::Gone,
                Op::Create(..) => StoreAnswer::At(Revision(7)),
                _ => StoreAnswer::Done,
            };
            sent.push(op);
            Box::pin(ready(Ok(answer)))
        }
    }

    /// A store whose creations keep the lease alive.
    fn keeping_by_creating() -> Arc<Noting> {
        Arc::new(Noting { keeps_alive_by_creating: true, ..Noting::default() })
    }

    async fn granted(session: &SharedLease) -> LeaseId {
        match session.send(Op::Grant(LEASE)).await {
            Ok(StoreAnswer::Leased(id, _)) => id,
            other => panic!("{other:?}"),
        }
    }

    async fn created(session: &SharedLease, lease: LeaseId) -> Answer {
        session.send(Op::Create(Key::new("k0"), Owner::new("a"), lease, Mode::Write)).await
    }

    #[tokio::test]
    async fn attempts_of_a_client_share_one_lease_until_the_last_of_them_ends() {
        let store = Arc::new(Noting::default());
        let session = SharedLease::new(store.clone());
        let (a, b) = (granted(&session).await, granted(&session).await);
        assert_eq!((a, b), (LeaseId(1), LeaseId(1)));
        assert!(session.send(Op::Revoke(a)).await.is_err(), "the session goes on");
        assert_eq!(session.send(Op::Revoke(b)).await, Ok(StoreAnswer::Done));
        assert_eq!(granted(&session).await, LeaseId(2), "the next attempt begins a new session");
        let sent = [Op::Grant(LEASE), Op::KeepAlive(LeaseId(1)), Op::Revoke(LeaseId(1)), Op::Grant(LEASE)];
        assert_eq!(*store.sent.lock(), sent);
    }

    #[tokio::test]
    async fn an_attempt_in_a_session_that_has_ended_fails_and_the_next_one_begins_a_new_session() {
        let store = Arc::new(Noting::default());
        let session = SharedLease::new(store.clone());
        let lost = granted(&session).await;
        assert_eq!(created(&session, lost).await, Ok(StoreAnswer::At(Revision(7))));
        *store.has_expired.lock() = true;
        assert_eq!(granted(&session).await, lost);
        assert_eq!(created(&session, lost).await, Ok(StoreAnswer::Gone));
        assert!(session.send(Op::Revoke(lost)).await.is_ok(), "the store has answered that it created nothing");
        let new = granted(&session).await;
        assert_eq!((lost, new), (LeaseId(1), LeaseId(2)));
        *store.has_expired.lock() = false;
        // The end of the lost hold does not end the new session.
        session.send(Op::Revoke(lost)).await.unwrap();
        assert_eq!(granted(&session).await, new);
    }

    #[tokio::test]
    async fn a_key_of_which_nothing_is_known_ends_no_lease_of_another_hold() {
        for does_answer in [true, false] {
            let store = Arc::new(Noting { loses_creations: !does_answer, ..Noting::default() });
            let session = SharedLease::new(store.clone());
            let (id, _) = (granted(&session).await, granted(&session).await);
            drop(session.send(Op::Create(Key::new("k0"), Owner::new("a"), id, Mode::Write)));
            let undone = session.send(Op::Revoke(id)).await;
            if does_answer {
                assert_eq!(undone, Ok(StoreAnswer::Done));
                assert_eq!(store.sent.lock().last(), Some(&Op::Delete(Key::new("k0"), Revision(7))));
            } else {
                assert!(undone.is_err(), "the key may come later: {undone:?}");
            }
            let revoked = |store: &Noting| store.sent.lock().iter().any(|op| matches!(op, Op::Revoke(_)));
            assert!(!revoked(&store), "the other hold has the lease");
            assert_eq!(granted(&session).await, LeaseId(2), "the next attempt begins a new session");
            assert_eq!(session.send(Op::Revoke(id)).await, Ok(StoreAnswer::Done));
            assert_eq!(store.sent.lock().last(), Some(&Op::Revoke(id)), "the key goes with the last hold");
            assert_eq!(granted(&session).await, LeaseId(2), "the new session goes on");
        }
    }

    #[tokio::test]
    async fn a_creation_that_keeps_the_lease_alive_is_the_only_request() {
        let store = keeping_by_creating();
        let session = SharedLease::new(store.clone());
        let (id, _) = (granted(&session).await, granted(&session).await);
        assert_eq!(created(&session, id).await, Ok(StoreAnswer::At(Revision(7))));
        assert!(!store.sent.lock().iter().any(|op| matches!(op, Op::KeepAlive(_))), "{:?}", store.sent.lock());
        *store.has_expired.lock() = true;
        assert_eq!(created(&session, id).await, Ok(StoreAnswer::Gone));
        assert_eq!(granted(&session).await, LeaseId(2), "the next attempt begins a new session");
    }

    #[tokio::test]
    async fn a_key_without_a_keep_alive_is_no_hold_and_is_removed() {
        let store = Arc::new(Noting { loses_keep_alives: true, ..Noting::default() });
        let session = SharedLease::new(store.clone());
        let (id, _) = (granted(&session).await, granted(&session).await);
        assert!(matches!(created(&session, id).await, Err(NodeError::Indeterminate(_))));
        assert_eq!(session.send(Op::Revoke(id)).await, Ok(StoreAnswer::Done));
        assert_eq!(store.sent.lock().last(), Some(&Op::Delete(Key::new("k0"), Revision(7))));
    }

    #[tokio::test]
    async fn a_creation_that_is_answered_leaves_the_session_open() {
        let store = Arc::new(Noting::default());
        let session = SharedLease::new(store.clone());
        let (id, _) = (granted(&session).await, granted(&session).await);
        assert_eq!(created(&session, id).await, Ok(StoreAnswer::At(Revision(7))));
        assert!(session.send(Op::Revoke(id)).await.is_err(), "the session goes on");
        assert_eq!(granted(&session).await, id);
    }
}
