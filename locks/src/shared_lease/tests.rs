mod recent;

use std::future::pending;

use tokio::sync::oneshot;

use super::*;
use crate::{
    hold::{NodeAnswer, NodeName, Owner},
    leases::{KeyLease, Leases},
    mode::Mode,
    ports::{Unwatched, Watch},
    postgres_session::doubles::Stopped,
};

const LEASE: Duration = Duration::from_secs(2);

/// Grants leases with growing ids, and notes all requests. A wait for the end of a key is never answered.
#[derive(Default)]
struct Noting {
    sent: Mutex<Vec<Op>>,
    /// True if a keep-alive finds no lease.
    has_expired: Mutex<bool>,
    /// True if nobody learns whether a key was created.
    loses_creations: Mutex<bool>,
    /// True if no deletion is answered.
    loses_deletions: Mutex<bool>,
    /// The next creation is answered after this.
    late: Mutex<Option<oneshot::Receiver<()>>>,
    /// True if no keep-alive is answered.
    loses_keep_alives: bool,
    /// True if creations keep the lease alive.
    keeps_alive_by_creating: bool,
    /// True if no request leaves the client.
    is_cut_off: Mutex<bool>,
}

impl Store for Noting {
    fn name(&self) -> &str {
        "etcd"
    }

    fn keeps_alive_by_creating(&self) -> bool {
        self.keeps_alive_by_creating
    }

    fn send(&self, op: Op) -> Reply<Result<StoreAnswer, NodeError>> {
        if *self.is_cut_off.lock() {
            return Box::pin(ready(Err(NodeError::Definite("not connected".into()))));
        }
        let mut sent = self.sent.lock();
        let grants = 1 + sent.iter().filter(|op| matches!(op, Op::Grant(_))).count() as i64;
        let left = if *self.has_expired.lock() { Duration::ZERO } else { LEASE };
        let is_lost = match &op {
            Op::Create(..) => *self.loses_creations.lock(),
            Op::Delete(..) => *self.loses_deletions.lock(),
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
        let is_wait = matches!(op, Op::AwaitGone(..));
        let late = if matches!(op, Op::Create(..)) { self.late.lock().take() } else { None };
        sent.push(op);
        match late {
            _ if is_wait => Box::pin(pending()),
            None => Box::pin(ready(Ok(answer))),
            Some(late) => Box::pin(async move {
                let _ = late.await;
                Ok(answer)
            }),
        }
    }
}

/// The number of a new attempt.
async fn granted(session: &SharedLease) -> LeaseId {
    match session.send(Op::Grant(LEASE)).await {
        Ok(StoreAnswer::Leased(id, LEASE)) => id,
        other => panic!("{other:?}"),
    }
}

async fn created(session: &SharedLease, own: LeaseId) -> Answer {
    session.send(Op::Create(Key::new("k0"), Owner::new("a"), own, Mode::Write)).await
}

fn last(store: &Noting) -> Op {
    store.sent.lock().last().cloned().unwrap()
}

fn is_revoked(store: &Noting) -> bool {
    store.sent.lock().iter().any(|op| matches!(op, Op::Revoke(_)))
}

#[tokio::test]
async fn attempts_of_a_client_share_one_lease_until_the_last_of_them_ends() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (a, b) = (granted(&session).await, granted(&session).await);
    assert!(session.send(Op::Revoke(a)).await.is_err(), "the session goes on");
    assert_eq!(session.send(Op::Revoke(b)).await, Ok(StoreAnswer::Done));
    {
        let sessions = session.sessions.lock();
        assert_eq!((sessions.open, sessions.used.len()), (None, 0), "nothing is kept of a session that has ended");
    }
    // The next attempt begins a new session.
    granted(&session).await;
    let sent = [Op::Grant(LEASE), Op::KeepAlive(LeaseId(1)), Op::Revoke(LeaseId(1)), Op::Grant(LEASE)];
    assert_eq!(*store.sent.lock(), sent);
}

#[tokio::test]
async fn an_attempt_leaves_once_however_often_it_is_undone() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (held, failed) = (granted(&session).await, granted(&session).await);
    drop(session.send(Op::Create(Key::new("k1"), Owner::new("b"), failed, Mode::Write)));
    // The first undo is broken off. The next one still finds the key.
    drop(session.send(Op::Revoke(failed)));
    assert_eq!(session.send(Op::Revoke(failed)).await, Ok(StoreAnswer::Done));
    assert_eq!(last(&store), Op::Delete(Key::new("k1"), Revision(7)));
    assert!(session.send(Op::Revoke(failed)).await.is_err(), "nothing is left to be undone");
    assert!(!is_revoked(&store), "the other hold has the lease: {:?}", store.sent.lock());
    for _ in 0..2 {
        assert_eq!(session.send(Op::Revoke(held)).await, Ok(StoreAnswer::Done));
        assert_eq!(last(&store), Op::Revoke(LeaseId(1)), "an answer may be lost, so this is repeated");
    }
}

#[tokio::test]
async fn an_attempt_that_reads_no_answer_has_not_joined() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let held = granted(&session).await;
    drop(session.send(Op::Grant(LEASE)));
    assert_eq!(session.send(Op::Revoke(held)).await, Ok(StoreAnswer::Done));
    assert_eq!(last(&store), Op::Revoke(LeaseId(1)));
    // If the session ends before the attempt reads the answer, the attempt begins a new one.
    let held = granted(&session).await;
    let joining = session.send(Op::Grant(LEASE));
    session.send(Op::Revoke(held)).await.unwrap();
    assert!(matches!(joining.await, Ok(StoreAnswer::Leased(_, LEASE))));
    assert_eq!(last(&store), Op::Grant(LEASE));
}

#[tokio::test]
async fn an_attempt_in_a_session_that_has_ended_fails_and_the_next_one_begins_a_new_session() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let lost = granted(&session).await;
    assert_eq!(created(&session, lost).await, Ok(StoreAnswer::At(Revision(7))));
    *store.has_expired.lock() = true;
    let failed = granted(&session).await;
    assert_eq!(created(&session, failed).await, Ok(StoreAnswer::Gone));
    assert!(session.send(Op::Revoke(failed)).await.is_ok(), "the store has answered that it created nothing");
    granted(&session).await;
    assert_eq!(last(&store), Op::Grant(LEASE));
    *store.has_expired.lock() = false;
    // The end of the lost hold does not end the new session.
    session.send(Op::Revoke(lost)).await.unwrap();
    assert_eq!(last(&store), Op::Revoke(LeaseId(1)));
    granted(&session).await;
    assert_eq!(last(&store), Op::KeepAlive(LeaseId(2)));
}

#[tokio::test]
async fn a_key_of_which_nothing_is_known_ends_no_lease_of_another_hold() {
    for does_answer in [true, false] {
        let store = Arc::new(Noting { loses_creations: Mutex::new(!does_answer), ..Noting::default() });
        let session = SharedLease::new(store.clone());
        let (held, failed) = (granted(&session).await, granted(&session).await);
        drop(session.send(Op::Create(Key::new("k0"), Owner::new("a"), failed, Mode::Write)));
        let undone = session.send(Op::Revoke(failed)).await;
        if does_answer {
            assert_eq!(undone, Ok(StoreAnswer::Done));
            assert_eq!(last(&store), Op::Delete(Key::new("k0"), Revision(7)));
        } else {
            assert!(undone.is_err(), "the key may come later: {undone:?}");
            assert!(session.send(Op::Revoke(failed)).await.is_err(), "nor does a second undo know more");
        }
        assert!(!is_revoked(&store), "the other hold has the lease");
        granted(&session).await;
        assert_eq!(last(&store), Op::Grant(LEASE), "the next attempt begins a new session");
        assert_eq!(session.send(Op::Revoke(held)).await, Ok(StoreAnswer::Done));
        assert_eq!(last(&store), Op::Revoke(LeaseId(1)), "the key goes with the last hold");
        granted(&session).await;
        assert_eq!(last(&store), Op::KeepAlive(LeaseId(2)), "the new session goes on");
    }
}

#[tokio::test]
async fn a_creation_that_keeps_the_lease_alive_is_the_only_request() {
    let store = Arc::new(Noting { keeps_alive_by_creating: true, ..Noting::default() });
    let session = SharedLease::new(store.clone());
    let (_, joined) = (granted(&session).await, granted(&session).await);
    assert_eq!(created(&session, joined).await, Ok(StoreAnswer::At(Revision(7))));
    assert!(!store.sent.lock().iter().any(|op| matches!(op, Op::KeepAlive(_))), "{:?}", store.sent.lock());
    *store.has_expired.lock() = true;
    assert_eq!(created(&session, joined).await, Ok(StoreAnswer::Gone));
    granted(&session).await;
    assert_eq!(last(&store), Op::Grant(LEASE), "the next attempt begins a new session");
}

#[tokio::test]
async fn a_key_without_a_keep_alive_is_no_hold_and_is_removed() {
    let store = Arc::new(Noting { loses_keep_alives: true, ..Noting::default() });
    let session = SharedLease::new(store.clone());
    let (_, failed) = (granted(&session).await, granted(&session).await);
    assert!(matches!(created(&session, failed).await, Err(NodeError::Indeterminate(_))));
    assert_eq!(session.send(Op::Revoke(failed)).await, Ok(StoreAnswer::Done));
    assert_eq!(last(&store), Op::Delete(Key::new("k0"), Revision(7)));
}

#[tokio::test]
async fn a_keep_alive_for_less_than_the_granted_time_gives_no_hold() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (_, joined) = (session.send(Op::Grant(2 * LEASE)).await, session.send(Op::Grant(2 * LEASE)).await);
    let Ok(StoreAnswer::Leased(joined, _)) = joined else { panic!("{joined:?}") };
    assert_eq!(last(&store), Op::KeepAlive(LeaseId(1)), "the store answers this with one LEASE");
    assert!(matches!(created(&session, joined).await, Err(NodeError::Indeterminate(_))));
    assert_eq!(session.send(Op::Revoke(joined)).await, Ok(StoreAnswer::Done));
    assert_eq!(last(&store), Op::Delete(Key::new("k0"), Revision(7)));
}

#[tokio::test]
async fn requests_that_were_never_sent_fail_for_certain_and_leave_the_session_open() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (_first, _second) = (granted(&session).await, granted(&session).await);
    *store.is_cut_off.lock() = true;
    let failed = granted(&session).await;
    assert!(matches!(created(&session, failed).await, Err(NodeError::Definite(_))));
    *store.is_cut_off.lock() = false;
    for _ in 0..2 {
        assert!(session.send(Op::Revoke(failed)).await.is_err(), "the session goes on");
    }
    granted(&session).await;
    assert_eq!(last(&store), Op::KeepAlive(LeaseId(1)));
}

#[tokio::test]
async fn a_session_with_a_hold_that_was_given_up_is_joined_and_revoked_no_more() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (held, given_up) = (granted(&session).await, granted(&session).await);
    session.relies_on_end(given_up);
    granted(&session).await;
    assert_eq!(last(&store), Op::Grant(LEASE), "another attempt would keep the key of that hold");
    assert!(session.send(Op::Revoke(held)).await.is_err());
    assert!(!is_revoked(&store), "the hold that was given up relies on the lease");
}

#[tokio::test]
async fn a_creation_that_is_answered_leaves_the_session_open() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (_, joined) = (granted(&session).await, granted(&session).await);
    assert_eq!(created(&session, joined).await, Ok(StoreAnswer::At(Revision(7))));
    assert!(session.send(Op::Revoke(joined)).await.is_err(), "the session goes on");
    granted(&session).await;
    assert_eq!(last(&store), Op::KeepAlive(LeaseId(1)));
}

#[tokio::test]
async fn the_end_of_a_session_forgets_no_key_of_another() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (given_up, failed) = (granted(&session).await, granted(&session).await);
    drop(session.send(Op::Create(Key::new("k1"), Owner::new("b"), failed, Mode::Write)));
    session.relies_on_end(given_up);
    let other = granted(&session).await;
    assert_eq!(session.send(Op::Revoke(other)).await, Ok(StoreAnswer::Done));
    assert_eq!(last(&store), Op::Revoke(LeaseId(2)));
    assert_eq!(session.send(Op::Revoke(failed)).await, Ok(StoreAnswer::Done));
    assert_eq!(last(&store), Op::Delete(Key::new("k1"), Revision(7)));
}

#[tokio::test]
async fn a_release_deletes_no_key_of_a_running_attempt() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let (held, joined) = (granted(&session).await, granted(&session).await);
    let creating = session.send(Op::Create(Key::new("k1"), Owner::new("b"), joined, Mode::Write));
    assert!(session.send(Op::Revoke(held)).await.is_err(), "the session goes on");
    assert_eq!(creating.await, Ok(StoreAnswer::At(Revision(7))));
    assert!(!store.sent.lock().iter().any(|op| matches!(op, Op::Delete(..))), "{:?}", store.sent.lock());
    granted(&session).await;
    assert_eq!(last(&store), Op::KeepAlive(LeaseId(1)), "the session is open");
}

#[tokio::test]
async fn no_attempt_joins_a_session_that_a_keep_alive_found_gone() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    let _lost = granted(&session).await;
    *store.has_expired.lock() = true;
    let failed = granted(&session).await;
    assert_eq!(created(&session, failed).await, Ok(StoreAnswer::Gone));
    // The undo of the failed attempt has not begun.
    granted(&session).await;
    assert_eq!(last(&store), Op::Grant(LEASE));
}

/// A session with a hold, and with a creation of k0 by "b" that was not answered before its undo was broken off. It is
/// answered when the sender says so.
async fn left_behind(store: &Arc<Noting>) -> (SharedLease, oneshot::Sender<()>) {
    let session = SharedLease::new(store.clone());
    let (_held, failed) = (granted(&session).await, granted(&session).await);
    let (answering, late) = oneshot::channel();
    *store.late.lock() = Some(late);
    drop(session.send(Op::Create(Key::new("k0"), Owner::new("b"), failed, Mode::Write)));
    assert!(session.send(Op::Revoke(failed)).now_or_never().is_none(), "the undo waits for the answer");
    (session, answering)
}

#[tokio::test]
async fn an_attempt_takes_back_the_key_that_an_earlier_one_left_in_its_queue() {
    let store = Arc::new(Noting::default());
    let (session, answering) = left_behind(&store).await;
    answering.send(()).unwrap();
    let next = granted(&session).await;
    session.send(Op::Create(Key::new("k1"), Owner::new("c"), next, Mode::Write)).await.unwrap();
    assert!(matches!(last(&store), Op::Create(..)), "the key of another queue stays");
    assert_eq!(created(&session, next).await, Ok(StoreAnswer::At(Revision(7))));
    assert_eq!(last(&store), Op::Delete(Key::new("k0"), Revision(7)));
    assert!(session.sessions.lock().pending.is_empty(), "nothing is left to be taken back");
    assert!(!is_revoked(&store), "the other hold has the lease");
}

#[tokio::test]
async fn a_key_whose_deletion_was_not_answered_is_deleted_again() {
    let store = Arc::new(Noting { loses_deletions: Mutex::new(true), ..Noting::default() });
    let session = SharedLease::new(store.clone());
    let (_held, failed) = (granted(&session).await, granted(&session).await);
    drop(session.send(Op::Create(Key::new("k0"), Owner::new("b"), failed, Mode::Write)));
    assert!(session.send(Op::Revoke(failed)).await.is_err(), "the key may still be there");
    *store.loses_deletions.lock() = false;
    let next = granted(&session).await;
    assert_eq!(created(&session, next).await, Ok(StoreAnswer::At(Revision(7))));
    assert_eq!(last(&store), Op::Delete(Key::new("k0"), Revision(7)), "by the next attempt at this key");
    assert!(session.sessions.lock().pending.is_empty(), "nothing is left to be taken back");
}

#[tokio::test]
async fn a_key_whose_release_was_not_answered_is_deleted_again() {
    let store = Arc::new(Noting { loses_deletions: Mutex::new(true), ..Noting::default() });
    let session = SharedLease::new(store.clone());
    let (_held, released) = (granted(&session).await, granted(&session).await);
    assert_eq!(created(&session, released).await, Ok(StoreAnswer::At(Revision(7))));
    let delete = Op::Delete(Key::new("k0"), Revision(7));
    assert!(session.send(delete.clone()).await.is_err());
    assert!(session.send(Op::Revoke(released)).await.is_err(), "the key may still be there");
    let next = granted(&session).await;
    assert_eq!(last(&store), Op::Grant(LEASE), "another attempt would keep the key");
    *store.loses_deletions.lock() = false;
    assert_eq!(created(&session, next).await, Ok(StoreAnswer::At(Revision(7))));
    assert_eq!(last(&store), delete, "by the next attempt at this key");
    assert!(session.sessions.lock().pending.is_empty(), "nothing is left to be taken back");
}

#[tokio::test]
async fn the_end_of_the_key_of_another_hold_is_no_answer_to_a_release() {
    let store = Arc::new(Noting { loses_deletions: Mutex::new(true), ..Noting::default() });
    let session = SharedLease::new(store.clone());
    let (_held, other, released) = (granted(&session).await, granted(&session).await, granted(&session).await);
    assert_eq!(created(&session, other).await, Ok(StoreAnswer::At(Revision(7))));
    let delete = Op::Delete(Key::new("k0"), Revision(7));
    assert!(session.send(delete.clone()).await.is_err());
    *store.loses_deletions.lock() = false;
    // The session is left with one key to be taken back: that of the other hold.
    assert!(session.send(Op::Revoke(released)).await.is_err(), "nobody has said that its key is gone");
    assert_eq!(last(&store), delete);
    assert!(session.sessions.lock().pending.is_empty(), "nothing is left to be taken back");
}

#[tokio::test]
async fn a_key_whose_deletion_by_an_undo_was_not_answered_is_deleted_again() {
    for is_lost in [true, false] {
        let store = Arc::new(Noting { loses_deletions: Mutex::new(is_lost), ..Noting::default() });
        let session = SharedLease::new(store.clone());
        let leases = Leases::new(Arc::new(session.clone()), Arc::new(Stopped));
        let (_held, owner) = (granted(&session).await, Owner::new("a"));
        let own = leases.grant(&owner, LEASE, &Unwatched).await.unwrap();
        assert_eq!(created(&session, own.id).await, Ok(StoreAnswer::At(Revision(7))));
        leases.remember(&owner, KeyLease { revision: Some(Revision(7)), ..own });
        leases.undo(&Key::new("k0"), &owner, &Unwatched).await;
        let next = granted(&session).await;
        let joins = if is_lost { Op::Grant(LEASE) } else { Op::KeepAlive(LeaseId(1)) };
        assert_eq!(last(&store), joins, "another attempt would keep a key that is left");
        *store.loses_deletions.lock() = false;
        assert_eq!(created(&session, next).await, Ok(StoreAnswer::At(Revision(7))));
        let delete = Op::Delete(Key::new("k0"), Revision(7));
        assert_eq!(last(&store) == delete, is_lost, "by the next attempt at this key");
        assert!(session.sessions.lock().pending.is_empty(), "nothing is left to be taken back");
    }
}

/// Notes the answers to undos.
#[derive(Default)]
struct Undone(Mutex<Vec<NodeAnswer>>);

impl Watch for Undone {
    fn undone(&self, said: &[(NodeName, NodeAnswer)]) {
        self.0.lock().extend(said.iter().map(|(_, answer)| *answer));
    }
}

#[tokio::test]
async fn an_undo_in_a_session_is_answered_by_its_deletion() {
    for (is_lost, answer) in [(true, NodeAnswer::None), (false, NodeAnswer::Done)] {
        let store = Arc::new(Noting { loses_deletions: Mutex::new(is_lost), ..Noting::default() });
        let session = SharedLease::new(store);
        let leases = Leases::new(Arc::new(session.clone()), Arc::new(Stopped));
        let (_held, owner, undone) = (granted(&session).await, Owner::new("a"), Undone::default());
        let own = leases.grant(&owner, LEASE, &Unwatched).await.unwrap();
        assert_eq!(created(&session, own.id).await, Ok(StoreAnswer::At(Revision(7))));
        leases.remember(&owner, KeyLease { revision: Some(Revision(7)), ..own });
        leases.undo(&Key::new("k0"), &owner, &undone).await;
        assert_eq!(*undone.0.lock(), [answer]);
        assert_eq!(leases.of(&owner).is_some(), is_lost, "without an answer, the undo may be repeated");
    }
}

#[tokio::test]
async fn an_attempt_that_waits_behind_its_clients_lost_key_takes_it_back() {
    let store = Arc::new(Noting::default());
    let (session, answering) = left_behind(&store).await;
    let next = granted(&session).await;
    assert_eq!(created(&session, next).await, Ok(StoreAnswer::At(Revision(7))), "it does not wait for the late answer");
    let mut gone = session.send(Op::AwaitGone(Key::new("k0"), Revision(6)));
    assert!(gone.as_mut().now_or_never().is_none());
    assert!(matches!(last(&store), Op::AwaitGone(..)), "{:?}", store.sent.lock());
    answering.send(()).unwrap();
    assert!(gone.as_mut().now_or_never().is_none());
    assert_eq!(last(&store), Op::Delete(Key::new("k0"), Revision(7)));
    assert!(session.sessions.lock().pending.is_empty(), "nothing is left to be taken back");
}

#[tokio::test]
async fn an_attempt_that_waits_finds_a_key_whose_answer_was_lost() {
    let store = Arc::new(Noting { loses_creations: Mutex::new(true), ..Noting::default() });
    let session = SharedLease::new(store.clone());
    let (_held, failed) = (granted(&session).await, granted(&session).await);
    let lost = Op::Create(Key::new("k0"), Owner::new("b"), LeaseId(1), Mode::Write);
    drop(session.send(Op::Create(Key::new("k0"), Owner::new("b"), failed, Mode::Write)));
    assert!(session.send(Op::Revoke(failed)).await.is_err());
    assert_eq!(last(&store), lost, "an undo sends no creation");
    *store.loses_creations.lock() = false;
    let next = granted(&session).await;
    assert_eq!(created(&session, next).await, Ok(StoreAnswer::At(Revision(7))));
    assert_eq!(last(&store), Op::Create(Key::new("k0"), Owner::new("a"), LeaseId(2), Mode::Write));
    let waits = Op::AwaitGone(Key::new("k0"), Revision(6));
    assert!(session.send(waits.clone()).now_or_never().is_none());
    let sent = store.sent.lock();
    let after = sent.iter().position(|op| *op == waits).unwrap();
    assert_eq!(sent[after + 1..], [lost, Op::Delete(Key::new("k0"), Revision(7))], "{sent:?}");
}

#[tokio::test]
async fn a_second_creation_that_was_never_sent_says_nothing_of_the_first() {
    let store = Arc::new(Noting { loses_creations: Mutex::new(true), ..Noting::default() });
    let session = SharedLease::new(store.clone());
    let (_held, failed) = (granted(&session).await, granted(&session).await);
    drop(session.send(Op::Create(Key::new("k0"), Owner::new("b"), failed, Mode::Write)));
    assert!(session.send(Op::Revoke(failed)).await.is_err());
    let waits = Op::AwaitGone(Key::new("k0"), Revision(6));
    let waiting = session.send(waits.clone());
    *store.is_cut_off.lock() = true;
    assert!(waiting.now_or_never().is_none());
    *store.is_cut_off.lock() = false;
    *store.loses_creations.lock() = false;
    assert!(session.send(waits).now_or_never().is_none());
    assert_eq!(last(&store), Op::Delete(Key::new("k0"), Revision(7)), "the key of the first creation");
}
