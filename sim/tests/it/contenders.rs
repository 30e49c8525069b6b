//! Clients that contend for one key on a real server.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use locks::{BootClock, Clock, Key, Lock, Retry, RetryDelay, Token, Unwatched};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::real::PATIENCE;

/// Lets each of these locks acquire and release one key `holds` times, and fails if two hold it at once. Returns the
/// tokens in the order of the holds.
pub async fn contend(locks: Vec<Arc<dyn Lock>>, holds: u32, lease: Duration, longest_delay: Duration) -> Vec<Token> {
    let (is_held, tokens) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let contenders = locks.iter().zip(0..).map(|(lock, seed)| {
        let (is_held, tokens) = (&is_held, &tokens);
        async move {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let delay = RetryDelay { min: Duration::from_millis(1), max: longest_delay };
            for _ in 0..holds {
                let retry = Retry { lock: &**lock, clock: &BootClock, delay };
                let give_up = BootClock.now() + PATIENCE;
                let hold = retry.acquire(&Key::new("k0"), lease, give_up, &mut rng, &Unwatched).await.unwrap();
                assert!(!is_held.swap(true, Ordering::SeqCst), "two holders");
                tokens.lock().unwrap().push(hold.token.unwrap());
                tokio::time::sleep(Duration::from_millis(1)).await;
                is_held.store(false, Ordering::SeqCst);
                assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
            }
        }
    });
    join_all(contenders).await;
    tokens.into_inner().unwrap()
}
