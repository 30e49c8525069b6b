//! The order in which clients acquire the lock. Each part of the algorithm has a test, and a planted bug that omits the
//! part.

use locks::{FailureReason, Hold, NodeAnswer, Op, Outcome, Unwatched, planted::PlantedOp};
use tokio::time::{sleep, timeout};

use crate::scene::{LAG, LEASE, MS, Scene, key, owner, stays_pending};

/// Returns whether both clients believe at this moment that they hold the lock.
fn both_hold(scene: &Scene, one: &Hold, other: &Hold) -> bool {
    one.is_valid(scene.now()) && other.is_valid(scene.now())
}

/// Freezes B in the queue until its lease expires. A holds and renews, B waits behind A, and C waits behind B. Then A
/// releases, and C acquires the lock. Returns the result of B, which continues afterwards, and the hold of C.
async fn lapsed_in_the_queue(scene: &Scene) -> (Result<Hold, locks::Failure>, Hold) {
    let mut a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    let mut c = scene.begin("c");
    for _ in 0..4 {
        stays_pending(&mut c, 1000 * MS).await;
        scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap();
    }
    assert_eq!(scene.servers.owners(), [owner("a"), owner("c")]);
    scene.lock.release(&a, &Unwatched).await.unwrap();
    let c = c.await.unwrap();
    (b.await, c)
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ran_out_in_the_queue_gives_no_hold() {
    let scene = Scene::new();
    let (b, c) = lapsed_in_the_queue(&scene).await;
    let failure = b.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(c.is_valid(scene.now()));
    assert_eq!(scene.servers.owners(), [owner("c")]);
}

#[tokio::test(start_paused = true)]
async fn without_the_confirming_transaction_it_does() {
    let scene = Scene::buggy("no-confirm");
    let (b, c) = lapsed_in_the_queue(&scene).await;
    assert!(both_hold(&scene, &b.unwrap(), &c));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_predecessor_that_leaves_lets_nobody_in() {
    let scene = Scene::new();
    let a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    let mut c = scene.begin("c");
    stays_pending(&mut c, 100 * MS).await;
    drop(b);
    scene.lock.cancel(&key(), &owner("b"), LEASE, &Unwatched).await;
    stays_pending(&mut c, 1000 * MS).await;
    assert_eq!(scene.servers.owners(), [owner("a"), owner("c")]);
    scene.lock.release(&a, &Unwatched).await.unwrap();
    assert_eq!(c.await.unwrap().owner, owner("c"));
}

#[tokio::test(start_paused = true)]
async fn without_a_second_look_it_does() {
    let scene = Scene::buggy("no-second-look");
    let a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    let mut c = scene.begin("c");
    stays_pending(&mut c, 100 * MS).await;
    drop(b);
    scene.lock.cancel(&key(), &owner("b"), LEASE, &Unwatched).await;
    let c = c.await.unwrap();
    assert!(both_hold(&scene, &a, &c));
}

#[tokio::test(start_paused = true)]
async fn a_release_lets_in_one() {
    let scene = Scene::new();
    let a = scene.acquire("a").await.unwrap();
    let (mut b, mut c) = (scene.begin("b"), scene.begin("c"));
    stays_pending(&mut b, 100 * MS).await;
    stays_pending(&mut c, 100 * MS).await;
    scene.lock.release(&a, &Unwatched).await.unwrap();
    assert_eq!(b.await.unwrap().owner, owner("b"));
    stays_pending(&mut c, 1000 * MS).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_the_wrong_predecessor_comes_in_beside_the_right_one() {
    let scene = Scene::buggy("wrong-predecessor");
    let a = scene.acquire("a").await.unwrap();
    let (mut b, mut c) = (scene.begin("b"), scene.begin("c"));
    stays_pending(&mut b, 100 * MS).await;
    stays_pending(&mut c, 100 * MS).await;
    scene.lock.release(&a, &Unwatched).await.unwrap();
    let (b, c) = (b.await.unwrap(), c.await.unwrap());
    assert!(both_hold(&scene, &b, &c));
}

/// A's key goes after B has looked and before B listens. Whether B comes in within a minute.
async fn comes_in_after_a_race(scene: &Scene) -> bool {
    let a = scene.acquire("a").await.unwrap();
    let release = async {
        // B's look arrives after five ways, its next request after seven.
        sleep(6 * LAG - LAG + MS).await;
        scene.lock.release(&a, &Unwatched).await.unwrap();
    };
    let b = timeout(60_000 * MS, scene.acquire("b"));
    futures::join!(b, release).0.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_predecessor_that_goes_before_it_is_listened_for_is_not_missed() {
    assert!(comes_in_after_a_race(&Scene::new()).await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_waits_for_ever_at_the_head_of_the_queue() {
    let scene = Scene::buggy("lost-wake-up");
    assert!(!comes_in_after_a_race(&scene).await);
    assert_eq!(scene.servers.owners(), [owner("b")]);
}

/// A's lease runs out, B takes over, A releases, C tries. B's hold, what A was told, and C's hold if it gets one while
/// B has its own.
async fn released_late(scene: &Scene) -> (Hold, bool, Option<Hold>) {
    let a = scene.acquire("a").await.unwrap();
    sleep(2 * LEASE).await;
    let b = scene.acquire("b").await.unwrap();
    let removed = scene.lock.release(&a, &Unwatched).await.unwrap().removed;
    let c = timeout(LEASE / 2, scene.acquire("c")).await.ok().map(Result::unwrap);
    (b, removed, c)
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_lease_ran_out_removes_nothing_and_says_so() {
    let scene = Scene::new();
    let (_, removed, c) = released_late(&scene).await;
    assert!(!removed && c.is_none());
    assert_eq!(scene.holder(), Some(owner("b")));
}

#[tokio::test(start_paused = true)]
async fn a_release_by_name_lets_somebody_in_beside_the_holder() {
    let scene = Scene::buggy("release-by-name");
    let (b, removed, c) = released_late(&scene).await;
    assert!(removed && both_hold(&scene, &b, &c.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_keep_alive_without_a_lease_loses_the_hold_and_changes_nothing() {
    let scene = Scene::new();
    let mut a = scene.acquire("a").await.unwrap();
    let before = a.clone();
    scene.servers.jump(60_000 * MS);
    let failure = scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert_eq!(failure.answers, [("etcd".into(), NodeAnswer::Refused)]);
    assert_eq!(a, before);
}

#[tokio::test(start_paused = true)]
async fn one_that_ignores_the_zero_renews_beside_the_next_holder() {
    let scene = Scene::buggy("keep-alive-zero");
    let mut a = scene.acquire("a").await.unwrap();
    scene.servers.jump(60_000 * MS);
    let b = scene.acquire("b").await.unwrap();
    sleep(LEASE / 4).await;
    let before = a.valid_until;
    scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap();
    assert!(a.valid_until > before && both_hold(&scene, &a, &b));
}

#[tokio::test(start_paused = true)]
async fn there_is_no_hold_without_a_live_key_even_under_a_live_lease() {
    let scene = Scene::new();
    let _a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    scene.servers.meddle(&PlantedOp::DeleteAll(key()).into());
    let failure = b.await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(matches!(scene.servers.asked()[..], [.., Op::Confirm(..), Op::Delete(..), Op::Revoke(_)]));
    assert_eq!(scene.servers.leases(), 1);
}
