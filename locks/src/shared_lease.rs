//! A session of one client at a store: a lease that all its attempts and holds share.
//!
//! This is a store between the client's lock and the real one. Every attempt gets a number in the place of a lease. The
//! first attempt is granted a real lease. As long as another attempt or hold of the client has this lease, a further
//! attempt joins it, and the end of a hold leaves it. So each renewal of one hold keeps the keys of all holds in the
//! store, and when the lease ends, all these keys go at once.
//!
//! An attempt that joins keeps the lease alive, by a request of its own or, in some stores, by creating its key. It
//! does not wait for the keep-alive before it creates its key: both requests are on their way together, and the key
//! counts as created when both are answered. An attempt that learns in this way that the lease is gone has failed, and
//! the next one begins a new session.
//!
//! A keep-alive that was answered also serves the attempts of the next twentieth of the lease, and so does the request
//! that began the session. So a busy client sends few keep-alives.
//!
//! # Promises
//!
//! The recorded promise of a hold counts from the request by which its own attempt began the session or kept it alive,
//! from the request of an earlier attempt that served it, or from the hold's own renewals. A keep-alive for another
//! hold lets the lease run longer than that, never shorter.
//!
//! # Leftovers
//!
//! A failed attempt deletes its key. An attempt that the store has not told about its key cannot: the key may be there,
//! or come later. While others have the lease, nobody may end it for that, because their promises rest on it. So the
//! session takes no more attempts, and its lease goes with the last hold that has it, and the key with the lease. The
//! next attempt begins a new session. If the answer about the key comes while the undo waits, the undo deletes the key.
//! The same holds for a key whose deletion, by an undo or a release, was not answered.
//!
//! An answer may come later than that. An attempt at the same key would then wait behind the key of its own client,
//! for as long as the client renews another hold, and the client may release that hold only after this attempt. So
//! each attempt takes such keys of its queue back while it waits for its own answers: it reads the late answer, and
//! deletes the key. It does not wait for the late answer, because the store may serve it through another member
//! meanwhile. If the answer is lost, an attempt that waits in the queue sends the creation again: its answer names
//! the key.
//!
//! An undo that was broken off is repeated. An attempt leaves its session only once, however often it is undone.
//!
//! A client that gives a hold up relies on the promise to its end, and then on the end of the lease. So the session
//! takes no more attempts, which would keep the key, and the last of the other holds does not revoke the lease.

use std::{
    collections::{BTreeMap, VecDeque},
    future::ready,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::{Either, FutureExt, Shared, join_all, select};
use parking_lot::Mutex;

use crate::{
    hold::Key,
    ports::{LeaseId, NodeError, Op, Reply, Revision, Sent, Store, StoreAnswer},
};

type Answer = Result<StoreAnswer, NodeError>;

/// Attempts that have left are remembered for a repeated undo, the newest of them.
const LEFT_MAX: usize = 64;

/// A request that starts the time of a lease serves the attempts of one part in so many of this time.
const PARTS: u32 = 20;

/// The sessions of a client. `own` is the number of an attempt, and `lease` a real lease.
#[derive(Default)]
struct Sessions {
    /// The session that new attempts join.
    open: Option<LeaseId>,
    /// Each lease that an attempt or a hold has.
    used: BTreeMap<LeaseId, Used>,
    /// The last number of an attempt.
    last: i64,
    /// The lease of each attempt or hold.
    joined: BTreeMap<LeaseId, LeaseId>,
    /// The same of attempts and holds that have left.
    left: VecDeque<(LeaseId, LeaseId)>,
    /// The number and the lease of the attempt or hold with each key: the request that deletes the key names neither.
    keys: BTreeMap<(Key, Revision), (LeaseId, LeaseId)>,
    /// Creations of keys without a definite answer, and keys whose deletion has none.
    pending: Vec<Arc<Creation>>,
}

/// A lease in use.
struct Used {
    /// The number of attempts and holds that have it.
    users: u32,
    granted: Duration,
    /// The keep-alive that an attempt sent last.
    keeping: Option<Shared<Reply<Answer>>>,
    /// The sending of this keep-alive, or of the request that began the session, if it is known.
    kept: Option<Sent>,
}

impl Used {
    /// The last request that started the lease's time, if it has succeeded and serves an attempt that is sent at `now`.
    fn serves(&self, now: Sent) -> Option<Sent> {
        let is_full = |answer: &Answer| matches!(answer, Ok(StoreAnswer::Leased(_, left)) if *left >= self.granted);
        let is_answered = self.keeping.as_ref().is_none_or(|keeping| keeping.peek().is_some_and(is_full));
        // A fault may set the client's clock back.
        let is_recent = |kept: &Sent| now.at.checked_sub(kept.at).is_some_and(|age| age < self.granted / PARTS);
        self.kept.filter(|kept| is_answered && is_recent(kept))
    }
}

impl Sessions {
    /// No attempt joins this session any more.
    fn close(&mut self, lease: LeaseId) {
        if self.open == Some(lease) {
            self.open = None;
        }
    }

    /// A new session, with its first attempt. Returns the answer to that attempt.
    fn begin(&mut self, lease: LeaseId, granted: Duration, sent: Option<Sent>) -> StoreAnswer {
        self.open = Some(lease);
        self.used.insert(lease, Used { users: 0, granted, keeping: None, kept: sent });
        self.join(lease, None).unwrap_or(StoreAnswer::Gone)
    }

    /// One more attempt has the lease, and rests on the request that was sent at `kept`, or on one of its own. Returns
    /// the answer to that attempt, if the session is open.
    fn join(&mut self, lease: LeaseId, kept: Option<Sent>) -> Option<StoreAnswer> {
        let used = self.used.get_mut(&lease).filter(|_| self.open == Some(lease))?;
        used.users += 1;
        self.last += 1;
        let own = LeaseId(self.last);
        self.joined.insert(own, lease);
        Some(match kept {
            None => StoreAnswer::Leased(own, used.granted),
            Some(kept) => StoreAnswer::Joined(own, used.granted, kept),
        })
    }

    /// The lease of an attempt or a hold, also if it has left.
    fn lease_of(&self, own: LeaseId) -> Option<LeaseId> {
        let left = || self.left.iter().find(|(other, _)| *other == own).map(|(_, lease)| *lease);
        self.joined.get(&own).copied().or_else(left)
    }

    /// One attempt or hold less has its lease, unless it has left before. Returns the lease, and whether no other
    /// attempt or hold has it.
    fn leave(&mut self, own: LeaseId) -> Option<(LeaseId, bool)> {
        let lease = self.lease_of(own)?;
        if self.joined.remove(&own).is_some() {
            self.left.push_back((own, lease));
            if self.left.len() > LEFT_MAX {
                self.left.pop_front();
            }
            if let Some(used) = self.used.get_mut(&lease) {
                used.users -= 1;
            }
        }
        let is_unused = self.used.get(&lease).is_none_or(|used| used.users == 0);
        if is_unused {
            self.used.remove(&lease);
            self.close(lease);
            self.keys.retain(|_, (_, of)| *of != lease);
            self.pending.retain(|creation| creation.lease != lease);
        }
        Some((lease, is_unused))
    }

    /// The creations with this property that attempts have left: nobody but this list has the creation of an attempt
    /// that waits no more.
    fn left(&self, has: impl Fn(&Creation) -> bool) -> Vec<Weak<Creation>> {
        let is_left = |creation: &&Arc<Creation>| Arc::strong_count(creation) == 1 && has(creation);
        self.pending.iter().filter(is_left).map(Arc::downgrade).collect()
    }

    /// Nothing of this creation is left to be undone.
    fn settled(&mut self, creation: &Arc<Creation>) {
        self.pending.retain(|other| !Arc::ptr_eq(other, creation));
    }
}

/// The creation of a key. The attempt waits for its answer, and so does the undo of an attempt that waits no more.
struct Creation {
    key: Key,
    /// The number of the attempt or hold that has the key: an undo answers for its own key only.
    own: LeaseId,
    lease: LeaseId,
    /// The request.
    op: Op,
    answer: Shared<Reply<Answer>>,
}

/// A store that grants all attempts of a client one lease. See [the module](self).
#[derive(Clone)]
pub(crate) struct SharedLease {
    store: Arc<dyn Store>,
    sessions: Arc<Mutex<Sessions>>,
}

impl SharedLease {
    pub fn new(store: Arc<dyn Store>) -> SharedLease {
        SharedLease { store, sessions: Arc::default() }
    }

    /// The lease of an attempt that is sent at `sent`, if that is known.
    fn join(&self, lease: Duration, sent: Option<Sent>) -> Reply<Answer> {
        let (store, sessions) = (self.store.clone(), self.sessions.clone());
        let (open, kept) = {
            let mut sessions = sessions.lock();
            let (open, mut kept) = (sessions.open, None);
            if let Some(used) = open.and_then(|open| sessions.used.get_mut(&open))
                && !store.keeps_alive_by_creating()
            {
                kept = sent.and_then(|now| used.serves(now));
                if kept.is_none() {
                    used.keeping = open.map(|open| store.send(Op::KeepAlive(open)).shared());
                    used.kept = sent;
                }
            }
            (open, kept)
        };
        let asked = open.is_none().then(|| store.send(Op::Grant(lease)));
        Box::pin(async move {
            // An attempt that ends before it reads this has not joined.
            if let Some(joined) = open.and_then(|open| sessions.lock().join(open, kept)) {
                return Ok(joined);
            }
            let asked = asked.unwrap_or_else(|| store.send(Op::Grant(lease)));
            match asked.await {
                // Its time counts from `sent` at the earliest, also if the request was sent later.
                Ok(StoreAnswer::Leased(lease, granted)) => Ok(sessions.lock().begin(lease, granted, sent)),
                other => other,
            }
        })
    }

    /// Sends a request about the lease of an attempt or a hold.
    fn ask(&self, own: LeaseId, op: impl Fn(LeaseId) -> Op) -> Reply<Answer> {
        let lease = self.sessions.lock().lease_of(own);
        lease
            .map_or_else(|| Box::pin(ready(Ok(StoreAnswer::Gone))) as Reply<Answer>, |lease| self.store.send(op(lease)))
    }

    /// Creates a key. The answer is that of the creation, if the last keep-alive has succeeded: the keep-alive of this
    /// attempt, or a later one.
    fn create(&self, key: Key, own: LeaseId, op: impl Fn(LeaseId) -> Op) -> Reply<Answer> {
        let sessions = self.sessions.clone();
        let Some(lease) = sessions.lock().lease_of(own) else { return Box::pin(ready(Ok(StoreAnswer::Gone))) };
        let op = op(lease);
        let answer = self.store.send(op.clone()).shared();
        let creation = Arc::new(Creation { key, own, lease, op, answer });
        let (keeping, granted) = {
            let mut sessions = sessions.lock();
            sessions.pending.push(creation.clone());
            let used = sessions.used.get(&lease);
            (used.and_then(|used| used.keeping.clone()), used.map(|used| used.granted).unwrap_or_default())
        };
        Box::pin(async move {
            let kept = match keeping {
                Some(keeping) => keeping.await,
                None => Ok(StoreAnswer::Leased(lease, granted)),
            };
            let kept = match kept {
                Ok(StoreAnswer::Leased(_, left)) if left >= granted => Ok(()),
                // The lease is gone, and its keys with it.
                Ok(StoreAnswer::Leased(_, Duration::ZERO) | StoreAnswer::Gone) => {
                    sessions.lock().close(lease);
                    return Ok(StoreAnswer::Gone);
                }
                Ok(answer) => Err(format!("a keep-alive of {granted:?} was answered with {answer:?}")),
                // This one does not wait for the key: the undo does.
                Err(NodeError::Indeterminate(why)) => return Err(NodeError::Indeterminate(why)),
                Err(NodeError::Definite(why)) => Err(why),
            };
            let answer = creation.answer.clone().await;
            match (&answer, kept) {
                (Ok(StoreAnswer::Gone) | Err(NodeError::Definite(_)), _) | (Ok(_), Ok(())) => {
                    let mut sessions = sessions.lock();
                    sessions.settled(&creation);
                    match answer {
                        Ok(StoreAnswer::Gone) => sessions.close(lease),
                        Ok(StoreAnswer::At(revision) | StoreAnswer::First(revision)) => {
                            sessions.keys.insert((creation.key.clone(), revision), (own, lease));
                        }
                        _ => {}
                    }
                    answer
                }
                (Err(NodeError::Indeterminate(_)), _) => answer,
                (Ok(_), Err(why)) => Err(NodeError::Indeterminate(why)),
            }
        })
    }

    /// Deletes the key of an attempt or a hold. Until the store has said that the key is gone, the key counts as one
    /// that an attempt has left: the next attempt at it deletes it again.
    fn delete(&self, key: Key, revision: Revision) -> Reply<Answer> {
        let delete = Op::Delete(key.clone(), revision);
        let deleting = self.store.send(delete.clone());
        let mut known = self.sessions.lock();
        let Some((own, lease)) = known.keys.remove(&(key.clone(), revision)) else { return deleting };
        let created = Box::pin(ready(Ok(StoreAnswer::At(revision)))) as Reply<Answer>;
        let creation = Arc::new(Creation { key, own, lease, op: delete, answer: created.shared() });
        known.pending.push(creation.clone());
        let sessions = self.sessions.clone();
        Box::pin(async move {
            let deleted = deleting.await;
            if deleted.is_ok() {
                sessions.lock().settled(&creation);
            }
            deleted
        })
    }

    /// An attempt or a hold is over. The lease goes with the last one that has it.
    fn leave(&self, own: LeaseId) -> Reply<Answer> {
        let mut sessions = self.sessions.lock();
        let lease = match sessions.leave(own) {
            None => return Box::pin(ready(Ok(StoreAnswer::Gone))),
            Some((lease, true)) => return self.store.send(Op::Revoke(lease)),
            Some((lease, false)) => lease,
        };
        let left = sessions.left(|creation| creation.lease == lease);
        let goes_on = || Err(NodeError::Indeterminate("the session goes on for other holds of the client".into()));
        if left.is_empty() {
            return Box::pin(ready(goes_on()));
        }
        sessions.close(lease);
        let session = self.clone();
        Box::pin(async move {
            let mut said = goes_on();
            for creation in left {
                let is_own = creation.upgrade().is_some_and(|creation| creation.own == own);
                let taken_back = session.clone().take_back(creation, false).await;
                // The end of another key says nothing of this one.
                if let Some(taken_back) = taken_back.filter(|_| is_own) {
                    said = taken_back;
                }
            }
            said
        })
    }

    /// Awaits the reply to an attempt at `key`, and meanwhile takes back the keys that earlier attempts of this client
    /// have left in that queue. `asks_again` also finds the keys whose answers are lost.
    fn beside(&self, key: &Key, reply: Reply<Answer>, asks_again: bool) -> Reply<Answer> {
        let left = self.sessions.lock().left(|creation| creation.key == *key);
        if left.is_empty() {
            return reply;
        }
        let session = self.clone();
        Box::pin(async move {
            let taking_back = left.clone().into_iter().map(|creation| session.clone().take_back(creation, false));
            let taking_back = pin!(join_all(taking_back));
            let reply = match select(taking_back, reply).await {
                Either::Left((_, reply)) => reply,
                Either::Right((answer, _)) => return answer,
            };
            if asks_again {
                // The attempt does not go on before that: a second creation must not be left behind too.
                for creation in left {
                    session.clone().take_back(creation, true).await;
                }
            }
            reply.await
        })
    }

    /// Takes back the creation of an attempt that waits no more: awaits the answer, and deletes the key. If the answer
    /// is lost, `asks_again` sends the creation again. Returns none if nobody knows whether there is a key, or if the
    /// key has been taken back meanwhile.
    async fn take_back(self, creation: Weak<Creation>, asks_again: bool) -> Option<Answer> {
        // An undo that is broken off must not keep the creation from the next one.
        let answer = creation.upgrade().map(|creation| creation.answer.clone())?;
        let mut answer = answer.await;
        if asks_again && matches!(answer, Err(NodeError::Indeterminate(_))) {
            let create = creation.upgrade().map(|creation| creation.op.clone())?;
            let again = self.store.send(create).await;
            // The first request may have created the key even if the second one was never sent.
            answer = again.map_err(|error| NodeError::Indeterminate(error.to_string()));
        }
        let deleted = match answer {
            Ok(StoreAnswer::At(revision) | StoreAnswer::First(revision)) => {
                let key = creation.upgrade().map(|creation| creation.key.clone())?;
                self.store.send(Op::Delete(key, revision)).await
            }
            // The lease was over before, or the request was never sent: there is no key.
            Ok(answer) => Ok(answer),
            Err(NodeError::Definite(_)) => Ok(StoreAnswer::Gone),
            Err(NodeError::Indeterminate(_)) => return None,
        };
        if let (Some(creation), Ok(_)) = (creation.upgrade(), &deleted) {
            self.sessions.lock().settled(&creation);
        }
        Some(deleted)
    }
}

impl Store for SharedLease {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn send(&self, op: Op) -> Reply<Answer> {
        match op {
            Op::Grant(lease) => self.join(lease, None),
            Op::Revoke(own) => self.leave(own),
            Op::Create(key, owner, own, mode) => {
                let create = |lease| Op::Create(key.clone(), owner.clone(), lease, mode);
                self.beside(&key, self.create(key.clone(), own, create), false)
            }
            Op::AwaitGone(key, revision) => {
                let gone = self.store.send(Op::AwaitGone(key.clone(), revision));
                self.beside(&key, gone, true)
            }
            Op::Delete(key, revision) => self.delete(key, revision),
            Op::KeepAlive(own) => self.ask(own, Op::KeepAlive),
            Op::TimeToLive(own) => self.ask(own, Op::TimeToLive),
            op => self.store.send(op),
        }
    }

    fn grant(&self, lease: Duration, sent: Sent) -> Reply<Answer> {
        self.join(lease, Some(sent))
    }

    fn relies_on_end(&self, own: LeaseId) {
        let mut sessions = self.sessions.lock();
        if let Some(lease) = sessions.lease_of(own) {
            sessions.close(lease);
        }
    }
}

#[cfg(test)]
mod tests;
