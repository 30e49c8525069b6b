//! The lock of the store's own Lock service: what it grants, what its client believes, and what is left behind.

use std::time::Duration;

use history::Models;
use locks::{
    Failure, FailureReason, Hold, LeaseId, NodeAnswer, Op, Outcome, Token, Unwatched, planted::PlantedOp, validity,
};
use tokio::time::sleep;

use crate::scene::{LAG, LEASE, MS, Noting, Scene, key, owner, stays_pending};

fn scene() -> Scene {
    Scene::server_lock(Models::default())
}

#[tokio::test(start_paused = true)]
async fn holds_are_granted_one_after_the_other_in_the_order_of_their_tokens() {
    let scene = scene();
    let section = async |n: u32| {
        sleep(n * MS).await;
        let hold = scene.acquire(&format!("client-{n}")).await.unwrap();
        let from = scene.now();
        sleep(300 * MS).await;
        assert!(hold.is_valid(scene.now()));
        assert!(scene.lock.release(&hold, &Unwatched).await.unwrap().removed);
        (hold.token.unwrap(), n, from)
    };
    let mut ended = futures::future::join_all((0..8).map(section)).await;
    ended.sort_unstable();
    assert!(ended.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
    assert!(ended.windows(2).all(|pair| pair[1].2 - pair[0].2 >= 300 * MS));
    assert_eq!(scene.servers.leases(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hold_carries_the_revision_of_its_key_and_promises_what_was_granted() {
    let (scene, sent) = (scene(), Duration::ZERO);
    let watch = Noting::of(&scene.clock);
    let hold = scene.lock.acquire(&key(), owner("a"), 1200 * MS, &watch).await.unwrap();
    let created = scene.servers.queue()[0].0;
    assert_eq!(hold.token, Some(Token(created.0.unsigned_abs())));
    assert_eq!((hold.sent, hold.lease, hold.valid_until), (sent, LEASE, validity::promise_end(sent, LEASE)));
    let confirmed = format!("confirmed {}", created.0);
    assert_eq!(watch.words(), ["sending Acquire", "sent Acquire", &confirmed, "answered Acquire"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_wait_the_promise_rests_on_the_last_keep_alive_that_was_answered() {
    let scene = scene();
    let mut first = scene.acquire("a").await.unwrap();
    let (key, watch) = (key(), Noting::of(&scene.clock));
    let waiting = scene.lock.acquire(&key, owner("b"), LEASE, &watch);
    let release = async {
        sleep(1000 * MS).await;
        scene.lock.renew(&mut first, LEASE, &Unwatched).await.unwrap();
        // The grant comes when the third keep-alive, after 2000 ms, is on its way.
        sleep(1000 * MS - 2 * LAG - LAG).await;
        scene.lock.release(&first, &Unwatched).await.unwrap();
    };
    let hold = futures::join!(waiting, release).0.unwrap();
    let seen = watch.seen();
    let told = |word: &str| seen.iter().filter(|(what, _)| what == word).map(|(_, at)| *at).collect::<Vec<_>>();
    let (promising, promised) = (told("promising"), told("promised"));
    assert_eq!((promising.len(), promised.len()), (3, 2), "{seen:?}");
    assert_eq!((hold.sent, hold.valid_until), (promising[1], validity::promise_end(promising[1], LEASE)));
    assert_eq!(hold.token, Some(Token(scene.servers.queue()[0].0.0.unsigned_abs())), "the key's, not the grant's");
}

#[tokio::test(start_paused = true)]
async fn a_place_that_nothing_confirmed_is_not_told() {
    let scene = scene();
    let watch = Noting::of(&scene.clock);
    // The lease, the grant and the look for the key.
    scene.servers.answers_only(3);
    scene.lock.acquire(&key(), owner("a"), LEASE, &watch).await.unwrap();
    assert_eq!(watch.words(), ["sending Acquire", "sent Acquire", "answered Acquire"]);
    assert!(matches!(scene.servers.asked()[..], [.., Op::Confirm(..)]));
}

/// Freezes B in the queue until its lease expires. A holds and renews, B waits, and C waits behind B. Then A releases,
/// and C acquires the lock. Returns the result of B, which continues afterwards, the reports of B's watch, and C's
/// hold.
async fn lapsed_in_the_queue(scene: &Scene) -> (Result<Hold, Failure>, Vec<String>, Hold) {
    let mut a = scene.acquire("a").await.unwrap();
    let (key, watch) = (key(), Noting::of(&scene.clock));
    let mut b = scene.lock.acquire(&key, owner("b"), LEASE, &watch);
    stays_pending(&mut b, 100 * MS).await;
    let mut c = scene.begin("c");
    for _ in 0..4 {
        stays_pending(&mut c, 1000 * MS).await;
        scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap();
    }
    assert_eq!(scene.servers.owners().len(), 2);
    scene.lock.release(&a, &Unwatched).await.unwrap();
    let c = c.await.unwrap();
    let b = b.await;
    (b, watch.words(), c)
}

#[tokio::test(start_paused = true)]
async fn a_grant_to_a_lease_that_ended_in_the_queue_is_told_and_refused_by_validity() {
    let scene = scene();
    let (b, told, c) = lapsed_in_the_queue(&scene).await;
    let failure = b.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Validity, Outcome::Failed));
    assert_eq!(failure.answers, [("etcd".into(), NodeAnswer::Late)]);
    assert!(told.contains(&"without key".to_owned()), "{told:?}");
    assert!(c.is_valid(scene.now()));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_looks_at_the_key_refuses_it() {
    let scene = Scene::server_lock(Models { lock_checks_key: true, ..Models::default() });
    let (b, told, c) = lapsed_in_the_queue(&scene).await;
    let failure = b.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(!told.contains(&"without key".to_owned()), "{told:?}");
    assert!(c.is_valid(scene.now()));
}

#[tokio::test(start_paused = true)]
async fn a_grant_without_a_key_is_believed_while_the_lease_promises() {
    let scene = scene();
    let mut a = scene.acquire("a").await.unwrap();
    let (key, watch) = (key(), Noting::of(&scene.clock));
    let mut b = scene.lock.acquire(&key, owner("b"), LEASE, &watch);
    stays_pending(&mut b, 100 * MS).await;
    scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap();
    // The store ends every key, B's too, well inside of its lease.
    scene.servers.meddle(&PlantedOp::DeleteAll(key.clone()).into());
    let hold = b.await.unwrap();
    assert!(hold.is_valid(scene.now()) && hold.token.is_some());
    assert!(watch.words().contains(&"without key".to_owned()));
    assert!(!watch.words().iter().any(|word| word.starts_with("confirmed")));
}

#[tokio::test(start_paused = true)]
async fn one_that_hears_in_the_queue_that_its_lease_is_gone_gives_up() {
    let scene = scene();
    let a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    scene.servers.meddle(&Op::Revoke(LeaseId(2)));
    let failure = b.await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(a.is_valid(scene.now()) && scene.servers.owners().len() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_attempt_leaves_neither_lease_nor_key_and_lets_nobody_in_too_early() {
    let scene = scene();
    let a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    let mut c = scene.begin("c");
    stays_pending(&mut c, 100 * MS).await;
    drop(b);
    scene.lock.cancel(&key(), &owner("b"), LEASE, &Unwatched).await;
    assert_eq!((scene.servers.leases(), scene.servers.owners().len()), (2, 2));
    stays_pending(&mut c, 1000 * MS).await;
    scene.lock.release(&a, &Unwatched).await.unwrap();
    assert_eq!(c.await.unwrap().owner, owner("c"));
    assert_eq!((scene.servers.leases(), scene.servers.owners().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_off_is_not_repeated_and_leaves_nothing() {
    let scene = scene();
    let a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    scene.servers.break_waits();
    let failure = b.await.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Indeterminate);
    assert_eq!(scene.servers.asked().iter().filter(|op| matches!(op, Op::Lock(..))).count(), 2);
    assert_eq!((scene.servers.leases(), scene.holder().is_some()), (1, true));
    assert!(scene.lock.release(&a, &Unwatched).await.unwrap().removed);
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_lease_ran_out_says_that_nothing_was_removed() {
    let scene = scene();
    let a = scene.acquire("a").await.unwrap();
    sleep(2 * LEASE).await;
    let b = scene.acquire("b").await.unwrap();
    let released = scene.lock.release(&a, &Unwatched).await.unwrap();
    assert_eq!((released.removed, &released.answers[..]), (false, &[("etcd".into(), NodeAnswer::Refused)][..]));
    assert!(b.is_valid(scene.now()) && scene.servers.owners().len() == 1);
}
