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
//! A failed attempt deletes its key. If the store has not answered the creation of the key, the key is not known, and
//! the lease must go with it: the session ends, and all its holds are lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::ports::{LeaseId, NodeError, Op, Reply, Store, StoreAnswer};

/// The session of a client, and the attempts and holds that have it.
#[derive(Debug, Default, Clone, Copy)]
struct Session {
    lease: Option<LeaseId>,
    users: u32,
}

impl Session {
    /// The lease has ended. One attempt asks for a new one.
    fn ended(&mut self, id: LeaseId) {
        if self.lease == Some(id) {
            *self = Session { lease: None, users: 1 };
        }
    }
}

/// A store that grants all attempts of a client one lease. See [the module](self).
pub(crate) struct SharedLease {
    store: Arc<dyn Store>,
    session: Arc<Mutex<Session>>,
    /// Creations of keys that the store has not answered.
    unanswered: Arc<AtomicU32>,
}

impl SharedLease {
    pub fn new(store: Arc<dyn Store>) -> SharedLease {
        SharedLease { store, session: Arc::default(), unanswered: Arc::default() }
    }

    fn grant(&self, lease: Duration) -> Reply<Result<StoreAnswer, NodeError>> {
        let known = {
            let mut session = self.session.lock();
            session.users += 1;
            session.lease
        };
        let (store, session) = (self.store.clone(), self.session.clone());
        let asked = self.store.send(known.map_or(Op::Grant(lease), Op::KeepAlive));
        Box::pin(async move {
            let answer = match (known, asked.await) {
                // The session has ended, and its holds are lost.
                (Some(id), Ok(StoreAnswer::Leased(_, left))) if left.is_zero() => {
                    session.lock().ended(id);
                    store.send(Op::Grant(lease)).await
                }
                (_, answer) => answer,
            };
            let mut session = session.lock();
            match &answer {
                Ok(StoreAnswer::Leased(id, _)) => session.lease = Some(*id),
                // The attempt has no lease that it could give back.
                _ => session.users = session.users.saturating_sub(1),
            }
            answer
        })
    }

    /// An attempt or a hold is over. The lease goes with the last one, or with a key that is not known.
    fn leave(&self, id: LeaseId) -> Reply<Result<StoreAnswer, NodeError>> {
        let mut session = self.session.lock();
        if session.lease == Some(id) {
            session.users = session.users.saturating_sub(1);
            if session.users > 0 && self.unanswered.load(Ordering::SeqCst) == 0 {
                let error = NodeError::Indeterminate("the session goes on for other holds of the client".into());
                return Box::pin(std::future::ready(Err(error)));
            }
            *session = Session::default();
            self.unanswered.store(0, Ordering::SeqCst);
        }
        self.store.send(Op::Revoke(id))
    }
}

impl Store for SharedLease {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>> {
        match op {
            Op::Grant(lease) => self.grant(lease),
            Op::Revoke(id) => self.leave(id),
            Op::Create(..) => {
                self.unanswered.fetch_add(1, Ordering::SeqCst);
                let (creating, unanswered) = (self.store.send(op), self.unanswered.clone());
                Box::pin(async move {
                    let answer = creating.await;
                    if answer.is_ok() {
                        let less = |n: u32| n.checked_sub(1);
                        let _ = unanswered.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
                    }
                    answer
                })
            }
            op => self.store.send(op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hold::{Key, Owner},
        mode::Mode,
        ports::Revision,
    };

    const LEASE: Duration = Duration::from_secs(2);

    /// Grants leases with growing ids, and notes all requests.
    #[derive(Default)]
    struct Noting {
        sent: Mutex<Vec<Op>>,
        /// True if a keep-alive finds no lease.
        has_expired: Mutex<bool>,
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
                Op::Create(..) => StoreAnswer::At(Revision(7)),
                _ => StoreAnswer::Done,
            };
            sent.push(op);
            Box::pin(std::future::ready(Ok(answer)))
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
    async fn a_key_that_is_not_known_goes_with_the_session() {
        let store = Arc::new(Noting::default());
        let session = SharedLease::new(store.clone());
        let (id, _) = (granted(&session).await, granted(&session).await);
        drop(session.send(Op::Create(Key::new("k0"), Owner::new("a"), id, Mode::Write)));
        assert_eq!(session.send(Op::Revoke(id)).await, Ok(StoreAnswer::Done));
        assert_eq!(store.sent.lock().last(), Some(&Op::Revoke(id)));
    }
}
