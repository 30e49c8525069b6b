//! Renewals: what counts, what does not, and for how long.

use std::{sync::Arc, time::Duration};

use locks::{Clock, FailureReason, Hold, Lock, Outcome, Redlock, Round, TokenSource, Unwatched, validity};
use tokio::time::Instant;

use crate::{
    cluster::{ClientClock, FakeNode, LEASE, MS, key, nodes, owner, ports},
    watches::{FreezeAfterSend, Noting},
};

struct Held {
    nodes: [Arc<FakeNode>; 5],
    clock: Arc<ClientClock>,
    lock: Redlock,
    hold: Hold,
}

/// A hold of five nodes, one second old.
async fn held() -> Held {
    let nodes = nodes::<5>(5 * MS);
    let clock = ClientClock::new();
    let lock = Redlock::new(ports(&nodes), clock.clone(), TokenSource::TwoPhase).unwrap();
    let hold = lock.acquire(&key(), owner("a"), LEASE, &Unwatched).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    Held { nodes, clock, lock, hold }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_valid_for_what_the_lease_gives_from_its_own_sending_and_no_longer() {
    for lease in [LEASE, 2 * LEASE] {
        let Held { nodes, clock, lock, mut hold } = held().await;
        let sent = clock.now();
        let renewed = lock.renew(&mut hold, lease, &Unwatched).await.unwrap();
        assert_eq!(renewed.valid_until, validity::promise_end(sent, lease));
        assert_eq!((hold.valid_until, hold.sent, hold.lease), (renewed.valid_until, sent, lease));
        assert!(nodes.iter().all(|node| node.expires() > Some(hold.valid_until)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_for_a_shorter_lease_shortens_nothing() {
    let Held { nodes, lock, mut hold, .. } = held().await;
    let (before, expires) = (hold.clone(), nodes[0].expires());
    let renewed = lock.renew(&mut hold, LEASE / 10, &Unwatched).await.unwrap();
    assert_eq!(renewed.valid_until, before.valid_until);
    assert_eq!((hold, nodes[0].expires()), (before, expires));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_minority_did_does_not_count() {
    let Held { nodes, lock, mut hold, .. } = held().await;
    let before = hold.clone();
    nodes[..3].iter().for_each(|node| node.freeze());
    let failure = lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::NoMajority, Outcome::Indeterminate));
    assert_eq!(hold, before);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_majority_refuses_is_lost_for_sure() {
    let Held { nodes, lock, mut hold, .. } = held().await;
    let before = hold.clone();
    nodes[..3].iter().for_each(|node| node.give_to("b"));
    nodes[3..].iter().for_each(|node| node.freeze());
    let start = Instant::now();
    let failure = lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert_eq!(start.elapsed(), 10 * MS, "no wait for the silent nodes");
    assert_eq!(hold, before);
    assert!(nodes[..3].iter().all(|node| node.owner() == Some(owner("b"))));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answers_are_read_when_the_hold_has_lapsed_is_refused_by_validity() {
    let Held { clock, lock, mut hold, .. } = held().await;
    let before = hold.clone();
    // The new lease would still be good; but in between the hold had ended.
    let watch = FreezeAfterSend { round: Round::Renew, clock: clock.clone(), time: LEASE / 2 };
    let failure = lock.renew(&mut hold, LEASE, &watch).await.unwrap_err();
    assert_eq!(failure.reason, FailureReason::Validity);
    assert_eq!(hold, before);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_has_lapsed_is_not_renewed_and_nothing_is_sent() {
    let Held { nodes, clock, lock, mut hold } = held().await;
    clock.jump(LEASE);
    let watch = Noting::default();
    let failure = lock.renew(&mut hold, LEASE, &watch).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Validity, Outcome::Failed));
    assert_eq!(*watch.0.lock().unwrap(), [""; 0]);
    tokio::time::sleep(20 * MS).await;
    // The acquire and the write-back.
    assert!(nodes.iter().all(|node| node.done.lock().unwrap().len() == 2));
}
