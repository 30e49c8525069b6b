//! Clients at random: holds shorter and longer than the lease, attempts that are given up, clients that freeze.

use std::{future::poll_fn, sync::Mutex, task::Poll, time::Duration};

use futures::future::join_all;
use locks::{Clock, Token, Unwatched};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{sleep, timeout};

use crate::scene::{LEASE, MS, Scene, key, owner};

/// The entitlement of a hold, and its token.
#[derive(Debug, Clone, Copy)]
struct Entitled {
    from: Duration,
    to: Duration,
    token: Token,
}

/// Does not poll `doing` in `[from, to)`, as if the client were frozen.
async fn frozen_within<T>(scene: &Scene, from: Duration, to: Duration, doing: impl Future<Output = T>) -> T {
    let mut doing = std::pin::pin!(doing);
    let mut thaws = scene.clock.sleep_until(to);
    let mut is_thawed = false;
    poll_fn(move |cx| {
        if !is_thawed && scene.now() >= from {
            if thaws.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            is_thawed = true;
        }
        doing.as_mut().poll(cx)
    })
    .await
}

/// Sections of one client. A frozen client is entitled all the same: what it does meanwhile is not judged here.
async fn client(scene: &Scene, n: u64, seed: u64, entitled: &Mutex<Vec<Entitled>>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed * 100 + n);
    for turn in 0..8 {
        sleep(rng.random_range(0..400) * MS).await;
        let name = owner(&format!("{n}-{turn}"));
        let key = key();
        let attempt = scene.lock.acquire(&key, name.clone(), LEASE, &Unwatched);
        let from = scene.now() + rng.random_range(0..2000) * MS;
        let frozen = if rng.random_bool(0.3) { rng.random_range(100..4000) * MS } else { Duration::ZERO };
        let patience = if rng.random_bool(0.3) { rng.random_range(0..1500) * MS } else { 600_000 * MS };
        let attempt = frozen_within(scene, from, from + frozen, attempt);
        let Ok(acquired) = timeout(patience, attempt).await else {
            scene.lock.cancel(&key, &name, LEASE, &Unwatched).await;
            continue;
        };
        let Ok(hold) = acquired else { continue };
        let from = scene.now();
        sleep(rng.random_range(0..700) * MS).await;
        if rng.random_bool(0.1) {
            sleep(2 * LEASE).await;
        }
        let to = scene.now().min(hold.valid_until);
        entitled.lock().unwrap().push(Entitled { from, to, token: hold.token.unwrap() });
        scene.lock.release(&hold, &Unwatched).await.unwrap();
    }
}

/// Returns the entitlements of five clients, ordered by time.
async fn walk(scene: &Scene, seed: u64) -> Vec<Entitled> {
    let entitled = Mutex::default();
    let all = join_all((0..5).map(|n| client(scene, n, seed, &entitled)));
    timeout(3_600_000 * MS, all).await.expect("nobody waits for ever");
    let mut entitled = entitled.into_inner().unwrap();
    entitled.sort_by_key(|hold| hold.from);
    entitled
}

fn overlap(entitled: &[Entitled]) -> bool {
    entitled.windows(2).any(|pair| pair[1].from < pair[0].to)
}

#[tokio::test(start_paused = true)]
async fn no_two_are_entitled_at_once_and_tokens_grow_whoever_freezes_or_leaves() {
    let mut holds = 0;
    for seed in 0..60 {
        let scene = Scene::new();
        let entitled = walk(&scene, seed).await;
        assert!(!overlap(&entitled), "seed {seed}: {entitled:?}");
        assert!(entitled.windows(2).all(|pair| pair[0].token < pair[1].token), "seed {seed}: {entitled:?}");
        holds += entitled.len();
    }
    assert!(holds > 60 * 15, "{holds} holds");
}

#[tokio::test(start_paused = true)]
async fn the_same_walks_find_the_bugs_that_let_two_in() {
    for bug in ["no-confirm", "no-second-look", "wrong-predecessor", "release-by-name"] {
        let mut found = 0;
        for seed in 0..20 {
            found += usize::from(overlap(&walk(&Scene::buggy(bug), seed).await));
        }
        assert!(found > 0, "{bug}");
    }
}
