//! The client of ZooKeeper against a server in memory that speaks the wire protocol.

use std::{sync::Arc, time::Duration};

use locks::{
    BootClock, Client, Clock, Connecting, FailureReason, Hold, Key, Lock, Outcome, Owner, ServerAddress, Servers,
    TokenSource, Unwatched,
};
use tokio::{
    task::JoinHandle,
    time::{self, Instant, sleep, timeout},
};

mod ensemble;

use ensemble::Ensemble;

/// Longer than a busy machine may keep a client from its next ping.
const LEASE: Duration = Duration::from_secs(4);
/// Longer than a busy machine takes for some requests, and much shorter than the lease.
const SOON: Duration = Duration::from_secs(2);
/// The lease of a session whose end a test awaits.
const SHORT: Duration = Duration::from_secs(1);

/// Waits until something is so, and returns whether it is so within this time.
async fn within(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(limit, waiting).await.is_ok()
}

struct Scene {
    ensemble: Ensemble,
    lock: Arc<dyn Lock>,
    key: Key,
}

impl Scene {
    async fn new(client: &str) -> Scene {
        let (ensemble, address) = Ensemble::start().await;
        let client = Client::named(client).unwrap();
        let address = ServerAddress::new("zookeeper-1", address);
        let connected = (client.connect)(client.name, vec![address], Connecting::default()).await.unwrap();
        assert_eq!(connected.versions, [Ok("3.8.0".to_owned())]);
        let servers: Servers = connected.servers;
        let lock = (client.build)(servers, TokenSource::Revision, Arc::new(BootClock)).unwrap();
        Scene { ensemble, lock, key: Key::new("k0") }
    }

    async fn acquire(&self, owner: &str) -> Hold {
        self.lock.acquire(&self.key, Owner::new(owner), LEASE, &Unwatched).await.unwrap()
    }

    /// Starts an attempt, and returns when it is in the queue and watches.
    async fn start(&self, owner: &'static str) -> JoinHandle<Result<Hold, locks::Failure>> {
        let (lock, key, before) = (self.lock.clone(), self.key.clone(), self.ensemble.watches());
        let attempt = tokio::spawn(async move { lock.acquire(&key, Owner::new(owner), LEASE, &Unwatched).await });
        // In a herd, the attempts before it have to watch again.
        assert!(within(LEASE, || self.ensemble.watches() > before).await, "{owner} does not watch");
        attempt
    }

    /// The name of the owner's znode, as soon as there is one.
    async fn name(&self, owner: &str) -> String {
        loop {
            if let Some(name) = self.ensemble.queue("k0").into_iter().find(|name| name.starts_with(owner)) {
                return name;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn release(&self, hold: &Hold) -> bool {
        self.lock.release(hold, &Unwatched).await.unwrap().removed
    }
}

#[tokio::test]
async fn the_queue_grants_in_order_and_tokens_grow() {
    let scene = Scene::new("zookeeper").await;
    let first = scene.acquire("a").await;
    let (second, third) = (scene.start("b").await, scene.start("c").await);
    assert!(scene.release(&first).await);
    let second = second.await.unwrap().unwrap();
    assert!(scene.release(&second).await);
    let third = third.await.unwrap().unwrap();
    assert!(first.token < second.token && second.token < third.token);
    assert!(scene.release(&third).await);
    // Nobody waits for the end of a session without a znode.
    let left = || (scene.ensemble.queue("k0").len(), scene.ensemble.sessions());
    assert!(within(SOON, || left() == (0, 0)).await, "{:?}", left());
}

#[tokio::test]
async fn a_waiter_looks_again_when_its_predecessor_leaves_the_queue() {
    let scene = Scene::new("zookeeper").await;
    let holder = scene.acquire("a").await;
    let leaves = scene.start("b").await;
    let mut waits = scene.start("c").await;
    leaves.abort();
    scene.lock.cancel(&scene.key, &Owner::new("b"), LEASE, &Unwatched).await;
    assert_eq!(scene.ensemble.queue("k0").len(), 2);
    assert!(timeout(Duration::from_millis(200), &mut waits).await.is_err(), "the holder has not let go");
    scene.release(&holder).await;
    assert!(timeout(SOON, waits).await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn a_hold_whose_znode_is_gone_is_lost_at_its_next_renewal() {
    let scene = Scene::new("zookeeper").await;
    let mut hold = scene.acquire("a").await;
    assert!(scene.lock.renew(&mut hold, LEASE, &Unwatched).await.is_ok());
    scene.ensemble.remove("k0", &scene.name("a").await);
    let failure = scene.lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(!scene.release(&hold).await, "there is nothing to remove");
}

#[tokio::test]
async fn the_release_of_one_hold_of_a_session_ends_no_other() {
    let scene = Scene::new("zookeeper").await;
    let session = scene.lock.session().unwrap();
    let acquire =
        async |key: &str, owner| session.acquire(&Key::new(key), Owner::new(owner), LEASE, &Unwatched).await.unwrap();
    let mut first = acquire("k0", "a").await;
    for owner in ["b", "c"] {
        let other = acquire("k1", owner).await;
        assert_eq!(scene.ensemble.sessions(), 1);
        session.release(&other, &Unwatched).await.unwrap();
        session.renew(&mut first, LEASE, &Unwatched).await.unwrap();
    }
    // The session rests on the newer znode now.
    let mut second = acquire("k1", "d").await;
    session.release(&first, &Unwatched).await.unwrap();
    session.renew(&mut second, LEASE, &Unwatched).await.unwrap();
}

/// Keeps a session alive in the middle of its lease, by a renewal or by another hold. Returns whether the session
/// outlives that lease; none if the machine was too busy to tell.
async fn outlives_its_first_lease(renews: bool) -> Option<bool> {
    let scene = Scene::new("zookeeper").await;
    let session = scene.lock.session().unwrap();
    let mut hold = session.acquire(&scene.key, Owner::new("a"), SHORT, &Unwatched).await.ok()?;
    let begun = hold.sent;
    BootClock.sleep_until(begun + SHORT / 2).await;
    if renews {
        session.renew(&mut hold, SHORT, &Unwatched).await.ok()?;
    } else {
        hold = session.acquire(&Key::new("k1"), Owner::new("b"), SHORT, &Unwatched).await.ok()?;
    }
    BootClock.sleep_until(begun + SHORT * 5 / 4).await;
    let sessions = scene.ensemble.sessions();
    hold.is_valid(BootClock.now()).then_some(sessions == 1)
}

#[tokio::test]
async fn a_renewal_and_another_hold_keep_a_session_for_a_whole_lease() {
    let outlives = async |renews| loop {
        if let Some(outlives) = outlives_its_first_lease(renews).await {
            return outlives;
        }
    };
    assert_eq!(futures::join!(outlives(true), outlives(false)), (true, true));
}

#[tokio::test]
async fn a_znode_that_vanishes_in_the_queue_gives_no_hold() {
    let scene = Scene::new("zookeeper").await;
    let holder = scene.acquire("a").await;
    let waits = scene.start("b").await;
    scene.ensemble.remove("k0", &scene.name("b").await);
    assert!(scene.release(&holder).await);
    let failure = timeout(LEASE, waits).await.unwrap().unwrap().unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
}

#[tokio::test]
async fn a_session_that_ends_in_the_queue_gives_no_hold() {
    let scene = Scene::new("zookeeper").await;
    let holder = scene.acquire("a").await;
    let waits = scene.start("b").await;
    let started = Instant::now();
    scene.ensemble.end_session_of("k0", &scene.name("b").await);
    let failure = timeout(LEASE, waits).await.unwrap().unwrap().unwrap_err();
    assert_eq!((failure.reason, failure.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert!(scene.release(&holder).await);
}

#[tokio::test]
async fn an_attempt_whose_creation_was_not_answered_leaves_no_znode() {
    let scene = Scene::new("zookeeper").await;
    assert!(scene.release(&scene.acquire("first").await).await);
    scene.ensemble.lose_next_create();
    let failure = scene.lock.acquire(&scene.key, Owner::new("a"), LEASE, &Unwatched).await.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Indeterminate);
    let started = Instant::now();
    let hold = scene.acquire("b").await;
    assert!(started.elapsed() < SOON && scene.ensemble.queue("k0").len() == 1);
    assert!(scene.release(&hold).await);
}

#[tokio::test]
async fn a_session_takes_back_the_znode_whose_creation_was_not_answered() {
    let scene = Scene::new("zookeeper").await;
    let session = scene.lock.session().unwrap();
    let acquire = async |key: &str, owner| session.acquire(&Key::new(key), Owner::new(owner), LEASE, &Unwatched).await;
    let held = acquire("k1", "a").await.unwrap();
    scene.ensemble.lose_next_create();
    assert_eq!(acquire("k0", "b").await.unwrap_err().outcome, Outcome::Indeterminate);
    // The client still has the session of its other hold, and with it the znode.
    let next = timeout(SOON, acquire("k0", "c")).await.expect("the znode is taken back").unwrap();
    assert_eq!(scene.ensemble.queue("k0").len(), 1);
    for hold in [next, held] {
        assert!(session.release(&hold, &Unwatched).await.unwrap().removed);
    }
}

#[tokio::test]
async fn a_key_with_a_separator_has_a_queue_of_its_own() {
    let scene = Scene::new("zookeeper").await;
    for (key, owner, queue) in [("k/1", "a", "k%2F1"), ("k%2F1", "b", "k%252F1"), ("k", "c", "k")] {
        let key = Key::new(key);
        let attempt = scene.lock.acquire(&key, Owner::new(owner), LEASE, &Unwatched);
        assert!(timeout(SOON, attempt).await.expect("no other hold of this key").is_ok());
        assert_eq!(scene.ensemble.queue(queue).len(), 1, "{key}");
    }
}

#[tokio::test]
async fn an_abandoned_hold_ends_with_its_session_timeout() {
    let scene = Scene::new("zookeeper").await;
    let abandoned = scene.acquire("a").await;
    let started = Instant::now();
    let next = scene.acquire("b").await;
    assert!(started.elapsed() > LEASE / 2 && started.elapsed() < LEASE + SOON, "{:?}", started.elapsed());
    assert!(!scene.release(&abandoned).await && scene.release(&next).await);
}

#[tokio::test]
async fn a_clock_that_jumps_closes_no_promised_session() {
    let scene = Scene::new("zookeeper").await;
    let hold = scene.acquire("a").await;
    // The timers of this process follow the jump, as after a clock fault.
    time::pause();
    time::advance(9 * LEASE).await;
    time::resume();
    sleep(LEASE / 4).await;
    assert_eq!((scene.ensemble.queue("k0").len(), scene.ensemble.sessions()), (1, 1));
    assert!(scene.release(&hold).await);
}

#[tokio::test]
async fn one_znode_that_goes_wakes_one_waiter_and_in_a_herd_all() {
    for (client, woken) in [("zookeeper", 1), ("zookeeper-herd", 3)] {
        let scene = Scene::new(client).await;
        let holder = scene.acquire("a").await;
        let waiters = [scene.start("b").await, scene.start("c").await, scene.start("d").await];
        let before = scene.ensemble.notifications();
        scene.release(&holder).await;
        within(SOON, || scene.ensemble.notifications() - before >= woken).await;
        // And no more.
        sleep(Duration::from_millis(100)).await;
        assert_eq!(scene.ensemble.notifications() - before, woken, "{client}");
        waiters.into_iter().for_each(|waiter| waiter.abort());
    }
}

#[tokio::test]
async fn a_check_that_a_silent_server_leaves_unanswered_is_repeated() {
    let scene = Scene::new("zookeeper").await;
    let mut hold = scene.acquire("a").await;
    scene.ensemble.fall_silent();
    // The library leaves the connection after an eighth of the lease; the client waits for a quarter.
    scene.lock.renew(&mut hold, LEASE, &Unwatched).await.expect("the check is repeated");
}

#[tokio::test]
async fn a_deletion_that_was_not_answered_is_repeated() {
    let scene = Scene::new("zookeeper").await;
    let session = scene.lock.session().unwrap();
    let acquire = async |key: &str, owner| session.acquire(&Key::new(key), Owner::new(owner), LEASE, &Unwatched).await;
    let _held = acquire("k1", "a").await.unwrap();
    let hold = acquire("k0", "b").await.unwrap();
    scene.ensemble.lose_next_delete();
    assert!(session.release(&hold, &Unwatched).await.unwrap().removed);
    assert!(scene.ensemble.queue("k0").is_empty());
}
