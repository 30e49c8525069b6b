//! A session of one client at a store: a lease that all its attempts and holds share.
//!
//! This is a store between the client's lock and the real one. The first attempt is granted a lease. As long as another
//! attempt or hold of the client has the lease, a further attempt keeps it alive instead of asking for one of its own,
//! and the end of a hold leaves it. So each renewal of one hold keeps the keys of all holds in the store, and when the
//! lease ends, all these keys go at once.
//!
//! # Promises
//!
//! The recorded promise of a hold counts from its own attempt and its own renewals only. A keep-alive for another hold
//! lets the lease run longer than that, never shorter.
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
    /// The number of attempts and holds that have each lease.
    users: BTreeMap<LeaseId, u32>,
    /// Creations of keys without a definite answer.
    pending: Vec<Arc<Creation>>,
}

impl Sessions {
    /// No attempt joins this session any more.
    fn close(&mut self, id: LeaseId) {
        if self.open == Some(id) {
            self.open = None;
        }
    }

    fn join(&mut self, id: LeaseId) {
        *self.users.entry(id).or_default() += 1;
    }

    /// One attempt or hold less has the lease. Returns whether no other has it.
    fn leave(&mut self, id: LeaseId) -> bool {
        let users = self.users.entry(id).or_default();
        *users = users.saturating_sub(1);
        let is_last = *users == 0;
        if is_last {
            self.users.remove(&id);
            self.close(id);
            self.pending.retain(|creation| creation.lease != id);
        }
        is_last
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
        let known = {
            let mut sessions = self.sessions.lock();
            let known = sessions.open;
            known.into_iter().for_each(|id| sessions.join(id));
            known
        };
        let (store, sessions) = (self.store.clone(), self.sessions.clone());
        let asked = self.store.send(known.map_or(Op::Grant(lease), Op::KeepAlive));
        Box::pin(async move {
            let Some(id) = known else { return begun(&sessions, asked.await) };
            match asked.await {
                // The session has ended, and its holds are lost.
                Ok(StoreAnswer::Leased(_, left)) if left.is_zero() => {
                    sessions.lock().close(id);
                    let granted = store.send(Op::Grant(lease)).await;
                    sessions.lock().leave(id);
                    begun(&sessions, granted)
                }
                Ok(answer) => Ok(answer),
                // The attempt has no lease that it could give back.
                Err(error) => {
                    sessions.lock().leave(id);
                    Err(error)
                }
            }
        })
    }

    fn create(&self, key: Key, lease: LeaseId, op: Op) -> Reply<Answer> {
        let creation = Arc::new(Creation { key, lease, reply: Mutex::new(Some(self.store.send(op))) });
        let sessions = self.sessions.clone();
        sessions.lock().pending.push(creation.clone());
        Box::pin(async move {
            let answer = poll_fn(|cx| creation.poll(cx)).await;
            if !matches!(answer, Err(NodeError::Indeterminate(_))) {
                sessions.lock().pending.retain(|other| !Arc::ptr_eq(other, &creation));
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

/// Notes the lease that was granted for a new session.
fn begun(sessions: &Mutex<Sessions>, granted: Answer) -> Answer {
    if let Ok(StoreAnswer::Leased(id, _)) = &granted {
        let mut sessions = sessions.lock();
        sessions.open = Some(*id);
        sessions.join(*id);
    }
    granted
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
    }

    impl Store for Noting {
        fn name(&self) -> &str {
            "etcd"
        }

        fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>> {
            let mut sent = self.sent.lock();
            let grants = 1 + sent.iter().filter(|op| matches!(op, Op::Grant(_))).count() as i64;
            let left = if *self.has_expired.lock() { Duration::ZERO } else { LEASE };
            let answer = match &op {
                Op::Grant(lease) => StoreAnswer::Leased(LeaseId(grants), *lease),
                Op::KeepAlive(id) => StoreAnswer::Leased(*id, left),
                Op::Create(..) if self.loses_creations => {
                    let error = NodeError::Indeterminate("the connection is closed".into());
                    sent.push(op);
                    return Box::pin(ready(Err(error)));
                }
                Op::Create(..) => StoreAnswer::At(Revision(7)),
                _ => StoreAnswer::Done,
            };
            sent.push(op);
            Box::pin(ready(Ok(answer)))
        }
    }

    async fn granted(session: &SharedLease) -> LeaseId {
        match session.send(Op::Grant(LEASE)).await {
            Ok(StoreAnswer::Leased(id, _)) => id,
            other => panic!("{other:?}"),
        }
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
    async fn a_session_that_has_ended_is_not_kept_alive() {
        let store = Arc::new(Noting::default());
        let session = SharedLease::new(store.clone());
        let lost = granted(&session).await;
        *store.has_expired.lock() = true;
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
    async fn a_creation_that_is_answered_leaves_the_session_open() {
        let store = Arc::new(Noting::default());
        let session = SharedLease::new(store.clone());
        let (id, _) = (granted(&session).await, granted(&session).await);
        let created = session.send(Op::Create(Key::new("k0"), Owner::new("a"), id, Mode::Write)).await;
        assert_eq!(created, Ok(StoreAnswer::At(Revision(7))));
        assert!(session.send(Op::Revoke(id)).await.is_err(), "the session goes on");
        assert_eq!(granted(&session).await, id);
    }
}
