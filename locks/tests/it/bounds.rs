//! The last instants of a promise that two rounds use up, and of attempts that are repeated.

use std::time::Duration;

use locks::{Clock, Lock, Redis, Redlock, Retry, RetryDelay, Round, TokenSource, Unwatched, validity};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{
    cluster::{ClientClock, LEASE, MS, key, nodes, owner, ports},
    watches::FreezeAfterSend,
};

#[tokio::test(start_paused = true)]
async fn the_promise_counts_from_the_first_round_also_if_there_is_a_second() {
    for &tokens in Redlock::TOKENS {
        let (nodes, clock) = (nodes::<3>(5 * MS), ClientClock::new());
        clock.jump(LEASE);
        let lock = Redlock::new(ports(&nodes), clock.clone(), tokens).unwrap();
        let sent = clock.now();
        let hold = lock.acquire(&key(), owner("a"), LEASE, &Unwatched).await.unwrap();
        assert_eq!((hold.sent, hold.valid_until), (sent, validity::promise_end(sent, LEASE)), "{tokens:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_back_is_too_late_at_the_end_of_the_promise_of_the_first_round() {
    // Each round takes 10 ms.
    let left = LEASE - validity::drift(LEASE) - 20 * MS;
    for (frozen, is_claimed) in [(left - Duration::from_nanos(1), true), (left, false)] {
        let (nodes, clock) = (nodes::<3>(5 * MS), ClientClock::new());
        let lock = Redlock::new(ports(&nodes), clock.clone(), TokenSource::TwoPhase).unwrap();
        let watch = FreezeAfterSend { round: Round::WriteBack, clock, time: frozen };
        let attempt = lock.acquire(&key(), owner("a"), LEASE, &watch).await;
        assert_eq!(attempt.is_ok(), is_claimed, "{frozen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_when_the_client_wants_to_give_up() {
    // An attempt takes 10 ms, and the next one begins 100 ms later.
    for (patience, attempts) in [(110 * MS, 1), (110 * MS + Duration::from_nanos(1), 2)] {
        let [node] = nodes(5 * MS);
        node.give_to("b");
        let clock = ClientClock::new();
        let lock = Redis::new(node.clone(), clock.clone());
        let retry = Retry { lock: &lock, clock: &*clock, delay: RetryDelay { min: 100 * MS, max: 100 * MS } };
        let (give_up, mut rng) = (clock.now() + patience, ChaCha8Rng::seed_from_u64(1));
        assert!(retry.acquire(&key(), LEASE, give_up, &mut rng, &Unwatched).await.is_err());
        assert_eq!(node.done.lock().unwrap().len(), attempts, "{patience:?}");
    }
}

#[test]
fn a_longest_delay_below_the_shortest_counts_as_the_shortest() {
    let delay = RetryDelay { min: 200 * MS, max: 100 * MS };
    assert_eq!(delay.draw(&mut ChaCha8Rng::seed_from_u64(1)), 200 * MS);
}
