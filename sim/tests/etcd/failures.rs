//! Attempts that fail or are dropped, and what they leave.

use std::sync::{Arc, LazyLock};

use locks::{Clock, FailureReason, Hold, Key, NodeAnswer, Operation, Outcome, Unwatched};
use tokio::time::{sleep, timeout};

use crate::scene::{LAG, LEASE, MS, Noting, Scene, key, owner, stays_pending};

#[tokio::test(start_paused = true)]
async fn an_attempt_cancelled_at_any_time_leaves_nothing_in_the_queue_but_a_lease_it_never_heard_of() {
    for is_held in [false, true] {
        for cut in 0..60 {
            let scene = Scene::new();
            let others = if is_held { vec![scene.acquire("a").await.unwrap().owner] } else { vec![] };
            let mut b = scene.begin("b");
            let Err(_) = timeout(cut * MS, &mut b).await else { continue };
            drop(b);
            scene.lock.cancel(&key(), &owner("b"), LEASE, &Unwatched).await;
            sleep(4 * LAG).await;
            assert_eq!(scene.servers.owners(), others, "cut after {cut} ms");
            let is_granting = cut * MS < 2 * LAG;
            if cut * MS != 2 * LAG {
                assert_eq!(scene.servers.leases(), others.len() + usize::from(is_granting), "cut after {cut} ms");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_tells_the_watch_what_was_undone_and_has_nothing_to_tell_of_an_attempt_that_is_over() {
    let scene = Scene::new();
    let a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    drop(b);
    let watch = Noting::of(&scene.clock);
    scene.lock.cancel(&key(), &owner("b"), LEASE, &watch).await;
    let undone = ["undoing", "sending Undo", "sent Undo", "answered Undo", "undone [Done]"];
    assert_eq!(watch.words(), undone);
    scene.lock.cancel(&key(), &owner("b"), LEASE, &watch).await;
    scene.lock.release(&a, &Unwatched).await.unwrap();
    scene.lock.cancel(&key(), &a.owner, LEASE, &watch).await;
    assert_eq!(watch.words(), undone);
}

/// Puts B in the queue behind A, and lets A release. B then looks at the queue, and confirms.
async fn next_in_line<'a>(scene: &'a Scene, watch: &'a Noting) -> Operation<'a, Hold> {
    static KEY: LazyLock<Key> = LazyLock::new(key);
    let a = scene.acquire("a").await.unwrap();
    let mut b = scene.lock.acquire(&KEY, owner("b"), LEASE, watch);
    stays_pending(&mut b, 100 * MS).await;
    scene.lock.release(&a, &Unwatched).await.unwrap();
    b
}

#[tokio::test(start_paused = true)]
async fn answers_read_after_the_promise_has_ended_are_refused_by_validity_and_undone() {
    // Each request takes two ways. A waiter's last request is the confirming transaction. For a free lock that was the
    // second request, which comes so late here that the attempt keeps its lease alive once more.
    for waits in [false, true] {
        let scene = Scene::new();
        let (key, watch) = (key(), Noting::of(&scene.clock));
        let mut attempt = match waits {
            true => next_in_line(&scene, &watch).await,
            false => scene.lock.acquire(&key, owner("a"), LEASE, &watch),
        };
        stays_pending(&mut attempt, 3 * LAG).await;
        if !waits {
            scene.clock.jump(LEASE / 2);
            stays_pending(&mut attempt, 2 * LAG).await;
        }
        scene.clock.jump(LEASE);
        let failure = attempt.await.unwrap_err();
        assert_eq!((failure.reason, failure.outcome), (FailureReason::Validity, Outcome::Failed));
        assert_eq!(failure.answers, [("etcd".into(), NodeAnswer::Late)]);
        let words = watch.words();
        // It was confirmed, and too late all the same.
        let confirmed = words.iter().position(|word| word.starts_with("confirmed")).unwrap();
        let looks = if waits { &["looking", "behind", "looking", "looking"][..] } else { &["promising", "promised"] };
        assert_eq!(words[..confirmed], [&["sending Acquire", "sent Acquire"], looks].concat());
        assert_eq!(words[confirmed + 1], "answered Acquire");
        assert_eq!(words.last().unwrap(), "undone [Done]");
        assert_eq!(scene.servers.owners(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_is_indeterminate_and_what_it_did_is_undone() {
    let undone = async |scene: &Scene, watch: &Noting, attempt: Operation<'_, Hold>, leases| {
        let start = scene.now();
        let failure = attempt.await.unwrap_err();
        assert_eq!(failure.outcome, Outcome::Indeterminate);
        assert_eq!(failure.reason, FailureReason::Error("etcd: no answer in time (it may have been done)".into()));
        assert_eq!(failure.answers, [("etcd".into(), NodeAnswer::None)]);
        assert!(watch.words().iter().all(|word| word != "answered Acquire"));
        assert!(scene.now() - start < LEASE);
        assert_eq!(scene.servers.owners(), []);
        assert_eq!(scene.servers.leases(), leases);
    };
    // The grant, and the transaction that creates the key.
    for answered in 0..2 {
        let (scene, key) = (Scene::new(), key());
        let watch = Noting::of(&scene.clock);
        scene.servers.answers_only(answered);
        let attempt = scene.lock.acquire(&key, owner("a"), LEASE, &watch);
        undone(&scene, &watch, attempt, usize::from(answered == 0)).await;
    }
    // The look of a waiter whose predecessor is gone, and its confirming transaction.
    for answered in 0..2 {
        let scene = Scene::new();
        let watch = Noting::of(&scene.clock);
        let attempt = next_in_line(&scene, &watch).await;
        scene.servers.answers_only(answered);
        undone(&scene, &watch, attempt, 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_is_a_definite_failure_at_once() {
    let scene = Scene::new();
    scene.servers.cut();
    let start = scene.now();
    let failure = scene.acquire("a").await.unwrap_err();
    assert_eq!((failure.outcome, scene.now()), (Outcome::Failed, start));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_any_more_decides_no_attempt_in_the_queue() {
    let scene = Scene::new();
    let watch = Noting::of(&scene.clock);
    let attempt = next_in_line(&scene, &watch).await;
    scene.servers.cut();
    let failure = attempt.await.unwrap_err();
    assert_eq!((failure.outcome, scene.holder()), (Outcome::Indeterminate, Some(owner("b"))));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_hears_nothing_gives_up_when_its_lease_should_have_run_out() {
    let scene = Scene::new();
    let _a = scene.acquire("a").await.unwrap();
    let start = scene.now();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 100 * MS).await;
    scene.servers.answers_only(0);
    let failure = b.await.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Indeterminate);
    assert!(scene.now() - start >= LEASE);
    assert!(scene.now() - start < 2 * LEASE);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_survives_one_keep_alive_without_an_answer() {
    let scene = Scene::new();
    let mut a = scene.acquire("a").await.unwrap();
    let mut b = scene.begin("b");
    stays_pending(&mut b, 600 * MS).await;
    scene.servers.answers_only(0);
    stays_pending(&mut b, 600 * MS).await;
    scene.servers.answers_only(usize::MAX);
    scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap();
    stays_pending(&mut b, 1500 * MS).await;
    assert!(scene.servers.owners().contains(&owner("b")));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_connection_breaks_keeps_its_place() {
    for bug in [None, Some("no-second-look"), Some("wrong-predecessor")] {
        let scene = bug.map_or_else(Scene::new, Scene::buggy);
        let a = scene.acquire("a").await.unwrap();
        let mut b = scene.begin("b");
        stays_pending(&mut b, 100 * MS).await;
        let queue = scene.servers.queue();
        scene.servers.break_waits();
        stays_pending(&mut b, 100 * MS).await;
        assert_eq!(scene.servers.queue(), queue);
        scene.lock.release(&a, &Unwatched).await.unwrap();
        assert_eq!(b.await.unwrap().owner, owner("b"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_delete_is_not_answered_is_settled_by_the_lease() {
    // The delete's answer is lost, and so is the revocation's.
    let scene = Scene::new();
    let a = scene.acquire("a").await.unwrap();
    scene.servers.answers_only(0);
    let failure = scene.lock.release(&a, &Unwatched).await.unwrap_err();
    assert_eq!((failure.outcome, scene.holder()), (Outcome::Indeterminate, None));
    // The same again, when answers arrive: now it is sure that there is nothing.
    scene.servers.answers_only(usize::MAX);
    assert!(!scene.lock.release(&a, &Unwatched).await.unwrap().removed);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_let_lapse_long_ago_is_forgotten_and_sends_nothing() {
    let scene = Scene::new();
    let mut a = scene.acquire("a").await.unwrap();
    scene.clock.jump(3600 * 1000 * MS);
    let b = scene.acquire("b");
    // Only an attempt looks what there is to forget.
    sleep(2 * LEASE).await;
    let b = b.await.unwrap();
    let asked = scene.servers.asked().len();
    assert_eq!(scene.lock.release(&a, &Unwatched).await.unwrap_err().reason, FailureReason::Lost);
    assert_eq!(scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap_err().reason, FailureReason::Validity);
    assert_eq!(scene.servers.asked().len(), asked);
    assert!(scene.lock.release(&b, &Unwatched).await.unwrap().removed);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_renewed_for_a_long_time_is_not_forgotten() {
    let scene = Scene::new();
    let mut a = scene.acquire("a").await.unwrap();
    for _ in 0..100 {
        sleep(LEASE / 2).await;
        scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap();
    }
    // An attempt forgets what has lapsed.
    scene.lock.acquire(&Key::new("other"), owner("b"), LEASE, &Unwatched).await.unwrap();
    scene.lock.renew(&mut a, LEASE, &Unwatched).await.unwrap();
    assert!(scene.lock.release(&a, &Unwatched).await.unwrap().removed);
}

#[tokio::test(start_paused = true)]
async fn the_validity_is_looked_at_after_the_last_stamp_and_nothing_is_awaited_in_between() {
    let scene = Scene::new();
    let watch = Noting::of(&scene.clock);
    let clock: Arc<dyn Clock> = scene.clock.clone();
    let hold = scene.lock.acquire(&key(), owner("a"), LEASE, &watch).await.unwrap();
    let (what, at) = watch.seen().pop().unwrap();
    assert_eq!((what.as_str(), at), ("answered Acquire", clock.now()));
    assert_eq!(watch.words()[0], "sending Acquire");
    assert_eq!(watch.seen()[0].1, hold.sent);
}
