//! Attempts that rest on a recent request of another attempt.

use super::*;
use crate::ports::Mark;

/// The answer to an attempt that is sent at `at`, which counts in milliseconds, as its stamp does.
async fn joined(session: &SharedLease, at: u64) -> StoreAnswer {
    session.grant(LEASE, Sent { at: Duration::from_millis(at), mark: Mark(at) }).await.unwrap()
}

/// The stamp of the earlier request on which an attempt rests.
fn rests_on(answer: StoreAnswer) -> Option<u64> {
    match answer {
        StoreAnswer::Leased(_, LEASE) => None,
        StoreAnswer::Joined(_, LEASE, sent) => Some(sent.mark.0),
        other => panic!("{other:?}"),
    }
}

/// A session that began at 1,000, and whose next attempt, at 1,100, sent a keep-alive.
async fn kept_at_1100(store: &Arc<Noting>) -> (SharedLease, LeaseId) {
    let session = SharedLease::new(store.clone());
    assert_eq!(rests_on(joined(&session, 1_000).await), None);
    let StoreAnswer::Leased(own, _) = joined(&session, 1_100).await else { panic!("a twentieth of the lease is over") };
    assert_eq!(last(store), Op::KeepAlive(LeaseId(1)));
    (session, own)
}

#[tokio::test]
async fn a_request_serves_the_attempts_of_a_twentieth_of_the_lease() {
    let store = Arc::new(Noting::default());
    let session = SharedLease::new(store.clone());
    assert_eq!(rests_on(joined(&session, 1_000).await), None);
    assert_eq!(rests_on(joined(&session, 1_099).await), Some(1_000), "on the beginning of the session");
    assert_eq!(rests_on(joined(&session, 999).await), None, "the client's clock was set back");
    let store = Arc::new(Noting::default());
    let (session, own) = kept_at_1100(&store).await;
    assert!(created(&session, own).await.is_ok());
    assert_eq!(rests_on(joined(&session, 1_199).await), Some(1_100));
    assert_eq!(rests_on(joined(&session, 1_199).await), Some(1_100), "it serves more than one");
    assert_eq!(rests_on(joined(&session, 1_200).await), None);
}

#[tokio::test]
async fn a_keep_alive_without_a_full_answer_serves_no_other_attempt() {
    let store = Arc::new(Noting::default());
    let (session, own) = kept_at_1100(&store).await;
    assert_eq!(rests_on(joined(&session, 1_101).await), None, "nobody has read the answer");
    drop((session, own));
    let store = Arc::new(Noting { loses_keep_alives: true, ..Noting::default() });
    let (session, own) = kept_at_1100(&store).await;
    assert!(created(&session, own).await.is_err());
    assert_eq!(rests_on(joined(&session, 1_101).await), None, "the answer is lost");
}

#[tokio::test]
async fn an_attempt_that_rests_on_an_earlier_request_is_not_held_by_a_lease_that_is_gone() {
    let store = Arc::new(Noting::default());
    let (session, own) = kept_at_1100(&store).await;
    assert!(created(&session, own).await.is_ok());
    *store.has_expired.lock() = true;
    let StoreAnswer::Joined(own, ..) = joined(&session, 1_150).await else { panic!("the keep-alive is recent") };
    assert_eq!(created(&session, own).await, Ok(StoreAnswer::Gone));
    assert_eq!(rests_on(joined(&session, 1_160).await), None);
    assert_eq!(last(&store), Op::Grant(LEASE), "the next attempt begins a new session");
}
