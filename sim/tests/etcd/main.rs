//! The queue lock over the model of its store, under paused Tokio time: every request takes [`LAG`] each way, and a
//! client that is not polled is frozen. Each planted bug stands beside the claim that it breaks.

#![allow(clippy::disallowed_methods, reason = "Tokio's time is virtual here, and its tasks are the model's")]

mod failures;
mod queue;
mod scene;
mod server_lock;
mod walks;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use locks::{FailureReason, Hold, Key, Lock, NodeAnswer, Op, Outcome, Token, Unwatched, validity};
use scene::{LAG, LEASE, MS, Noting, Scene, key, owner, stays_pending};
use tokio::time::{sleep, timeout};

#[tokio::test(start_paused = true)]
async fn holds_are_granted_one_after_the_other_in_the_order_of_the_queue_and_their_tokens() {
    let scene = Scene::new();
    let start = scene.now();
    let section = async |n: u32| {
        sleep(n * MS).await;
        let hold = scene.acquire(&format!("client-{n}")).await.unwrap();
        let from = scene.now();
        assert_eq!(scene.holder(), Some(hold.owner.clone()));
        sleep(300 * MS).await;
        assert!(scene.lock.release(&hold, &Unwatched).await.unwrap().removed);
        (hold.token.unwrap(), n, from)
    };
    let mut ended = join_all((0..6).map(section)).await;
    ended.sort_unstable();
    assert!(ended.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
    assert!(ended.windows(2).all(|pair| pair[1].2 - pair[0].2 >= 300 * MS));
    // Nobody waited longer than it takes: the last one had five before it, each with its holding time and a few round
    // trips.
    assert!(ended[5].2 - start < 5 * (300 * MS + 8 * LAG) + 10 * LAG);
    // The last lease's revocation is not waited for.
    sleep(2 * LAG).await;
    assert_eq!(scene.servers.leases(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_promise_uses_the_whole_seconds_that_were_granted() {
    let scene = Scene::new();
    let sent = scene.now();
    let hold = scene.lock.acquire(&key(), owner("a"), 1200 * MS, &Unwatched).await.unwrap();
    assert_eq!((hold.sent, hold.lease), (sent, 2000 * MS));
    assert_eq!(hold.valid_until, validity::promise_end(sent, 2000 * MS));
    assert_eq!(hold.answers, [("etcd".into(), NodeAnswer::Granted)]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_carries_the_revision_of_its_key_or_nothing() {
    let scene = Scene::new();
    let hold = scene.acquire("a").await.unwrap();
    assert_eq!(hold.token, Some(Token(scene.servers.queue()[0].0.0.unsigned_abs())));
    scene.lock.release(&hold, &Unwatched).await.unwrap();
    let without = locks::Etcd::without_tokens(scene.servers.clone(), scene.clock.clone());
    for lock in [without.session().unwrap(), Arc::new(without)] {
        let hold = lock.acquire(&key(), owner("b"), LEASE, &Unwatched).await.unwrap();
        assert_eq!(hold.token, None);
        assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
    }
}

/// A hold that had to wait for `time`, what its watch saw, and when it was asked for.
async fn waited(time: Duration) -> (Hold, Vec<(String, Duration)>, Duration) {
    let scene = Scene::new();
    let first = scene.acquire("a").await.unwrap();
    let (key, watch, start) = (key(), Noting::of(&scene.clock), scene.now());
    let mut waiting = scene.lock.acquire(&key, owner("b"), LEASE, &watch);
    stays_pending(&mut waiting, time).await;
    scene.lock.release(&first, &Unwatched).await.unwrap();
    (waiting.await.unwrap(), watch.seen(), start)
}

#[tokio::test(start_paused = true)]
async fn after_a_long_wait_the_promise_rests_on_a_keep_alive_that_was_sent_after_it() {
    let (hold, seen, start) = waited(1500 * MS).await;
    let promised: Vec<_> = seen.iter().filter(|(what, _)| what == "promising").map(|(_, at)| *at).collect();
    assert_eq!(promised, [hold.sent]);
    assert!(hold.sent >= start + 1500 * MS);
    assert_eq!(hold.valid_until, validity::promise_end(hold.sent, LEASE));
}

#[tokio::test(start_paused = true)]
async fn after_a_short_wait_the_promise_still_rests_on_the_grant() {
    let (hold, seen, start) = waited(300 * MS).await;
    assert!(seen.iter().all(|(what, _)| what != "promising"));
    assert_eq!((hold.sent, hold.valid_until), (start, validity::promise_end(start, LEASE)));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_tells_when_it_looked_and_that_somebody_was_before_it() {
    let (hold, seen, _) = waited(300 * MS).await;
    let seen: Vec<_> = seen.iter().map(|(what, _)| what.as_str()).collect();
    let looks = ["looking", "behind", "looking", "looking"];
    // The last word on the queue is where its own key stands.
    let confirmed = format!("confirmed {}", hold.token.unwrap());
    assert_eq!(seen, [&["sending Acquire", "sent Acquire"], &looks[..], &[&confirmed, "answered Acquire"]].concat());
}

#[tokio::test(start_paused = true)]
async fn a_place_is_told_without_tokens_too_and_never_where_nothing_was_confirmed() {
    let scene = Scene::new();
    let without = locks::Etcd::without_tokens(scene.servers.clone(), scene.clock.clone());
    let watch = Noting::of(&scene.clock);
    without.acquire(&key(), owner("a"), LEASE, &watch).await.unwrap();
    let revision = scene.servers.queue()[0].0.0;
    assert!(watch.words().contains(&format!("confirmed {revision}")));
    let (buggy, key) = (Scene::buggy("no-confirm"), key());
    let watch = Noting::of(&buggy.clock);
    let first = buggy.acquire("a").await.unwrap();
    let mut waiting = buggy.lock.acquire(&key, owner("b"), LEASE, &watch);
    stays_pending(&mut waiting, 100 * MS).await;
    buggy.lock.release(&first, &Unwatched).await.unwrap();
    waiting.await.unwrap();
    assert!(watch.words().iter().all(|word| !word.starts_with("confirmed")));
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_takes_two_requests() {
    let scene = Scene::new();
    let a = scene.acquire("a").await.unwrap();
    assert!(matches!(scene.servers.asked()[..], [Op::Grant(_), Op::Create(..)]));
    scene.lock.release(&a, &Unwatched).await.unwrap();
    let session = scene.lock.session().unwrap();
    session.acquire(&Key::new("other"), owner("b"), LEASE, &Unwatched).await.unwrap();
    sleep(LEASE / 20).await;
    let before = scene.servers.asked().len();
    session.acquire(&key(), owner("b"), LEASE, &Unwatched).await.unwrap();
    assert!(matches!(scene.servers.asked()[before..], [Op::KeepAlive(_), Op::Create(..)]));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_soon_after_another_takes_one_request_and_promises_from_the_request_before() {
    let scene = Scene::new();
    let session = scene.lock.session().unwrap();
    let first = session.acquire(&Key::new("first"), owner("a"), LEASE, &Unwatched).await.unwrap();
    sleep(LEASE / 20 - 5 * LAG).await;
    let (before, watch) = (scene.servers.asked().len(), Noting::of(&scene.clock));
    let key = key();
    let mut second = session.acquire(&key, owner("b"), LEASE, &watch).await.unwrap();
    assert!(matches!(scene.servers.asked()[before..], [Op::Create(..)]));
    assert_eq!((second.sent, second.lease, second.valid_until), (first.sent, LEASE, first.valid_until));
    assert!(watch.words().contains(&"promised since 0".to_owned()), "{:?}", watch.words());
    // The first hold's end does not end the lease, and a renewal counts from its own sending.
    session.release(&first, &Unwatched).await.unwrap();
    sleep(LEASE / 2).await;
    let sent = scene.now();
    session.renew(&mut second, LEASE, &Unwatched).await.unwrap();
    assert_eq!((second.sent, scene.servers.owners()), (sent, vec![owner("b")]));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_its_place_for_as_long_as_it_waits() {
    let scene = Scene::new();
    let mut first = scene.acquire("a").await.unwrap();
    let mut waiting = scene.begin("b");
    for _ in 0..20 {
        stays_pending(&mut waiting, 500 * MS).await;
        scene.lock.renew(&mut first, LEASE, &Unwatched).await.unwrap();
    }
    assert_eq!(scene.servers.owners(), [owner("a"), owner("b")]);
    scene.lock.release(&first, &Unwatched).await.unwrap();
    assert_eq!(waiting.await.unwrap().owner, owner("b"));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_valid_for_what_was_granted_from_its_own_sending() {
    let scene = Scene::new();
    let mut hold = scene.acquire("a").await.unwrap();
    sleep(1000 * MS).await;
    let sent = scene.now();
    let renewed = scene.lock.renew(&mut hold, 60 * LEASE, &Unwatched).await.unwrap();
    assert_eq!(renewed.valid_until, validity::promise_end(sent, LEASE));
    assert_eq!((hold.sent, hold.lease, hold.valid_until), (sent, LEASE, renewed.valid_until));
    // The key outlives the belief.
    sleep(hold.valid_until - scene.now()).await;
    assert_eq!(scene.holder(), Some(owner("a")));
}

#[tokio::test(start_paused = true)]
async fn a_given_up_hold_ends_although_its_session_goes_on() {
    let scene = Scene::new();
    let session = scene.lock.session().unwrap();
    let given_up = session.acquire(&key(), owner("a"), LEASE, &Unwatched).await.unwrap();
    session.gave_up(&given_up);
    let mut other = session.acquire(&Key::new("other"), owner("b"), LEASE, &Unwatched).await.unwrap();
    for _ in 0..4 {
        sleep(LEASE / 2).await;
        session.renew(&mut other, LEASE, &Unwatched).await.unwrap();
    }
    assert_eq!(scene.servers.owners(), []);
    assert!(session.release(&other, &Unwatched).await.unwrap().removed);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_has_lapsed_is_not_renewed_and_nothing_is_sent() {
    let scene = Scene::new();
    let mut hold = scene.acquire("a").await.unwrap();
    let before = scene.servers.asked();
    scene.clock.jump(LEASE);
    let failure = scene.lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Validity, Outcome::Failed));
    assert_eq!(scene.servers.asked(), before);
}

#[tokio::test(start_paused = true)]
async fn a_released_key_is_gone_after_one_round_trip_and_its_lease_soon_after() {
    let scene = Scene::new();
    let hold = scene.acquire("a").await.unwrap();
    let start = scene.now();
    assert!(scene.lock.release(&hold, &Unwatched).await.unwrap().removed);
    assert_eq!(scene.now() - start, 2 * LAG);
    assert_eq!(scene.servers.owners(), []);
    assert!(timeout(100 * MS, scene.acquire("b")).await.unwrap().is_ok());
    assert_eq!(scene.servers.leases(), 1);
}
