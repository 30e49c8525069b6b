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
