//! Those of the tokens.

use super::*;

#[tokio::test(start_paused = true)]
async fn writes_back_with_one_claims_what_a_minority_was_raised_to() {
    differs("writes-back-with-one", FIVE, ((false, [1; 5]), (true, [1; 5])), async |stage| {
        let silent = stage.nodes[1..].to_vec();
        let watch = Before(Round::WriteBack, || silent.iter().for_each(|node| node.freeze()));
        let claimed = stage.acquire_watched(&watch).await.is_ok();
        (claimed, std::array::from_fn(|n| stage.nodes[n].counter()))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn write_back_any_owner_claims_although_the_key_has_changed_hands() {
    differs("write-back-any-owner", FIVE, (false, true), async |stage| {
        let watch = Before(Round::WriteBack, || stage.give(5, "b"));
        stage.acquire_watched(&watch).await.is_ok()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn write_back_lowers_takes_a_larger_counter_back() {
    differs("write-back-lowers", FIVE, ((false, 100), (true, 1)), async |stage| {
        let watch = Before(Round::WriteBack, || stage.nodes.iter().for_each(|node| node.set_counter(100)));
        let claimed = stage.acquire_watched(&watch).await.is_ok();
        (claimed, stage.nodes[4].counter())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn token_before_nx_can_be_smaller_than_one_that_is_in_use() {
    use locks::{
        Step,
        StepAnswer::{Granted, Refused},
    };
    let (rightly, wrongly) = ((Some(Token(1)), Refused), (Some(Token(1)), Granted(Token(2))));
    differs("token-before-nx", ONE, (rightly, wrongly), async |stage| {
        let (hold, between) = join!(stage.acquire("a"), async {
            // The token is taken after 5 ms, and the key after 15.
            sleep(12 * MS).await;
            let (mut store, now) = (stage.nodes[0].store.lock().unwrap(), stage.clock.now());
            let acquired = store.apply(&Step::Acquire(key(), owner("b"), LEASE), now);
            store.apply(&Step::Release(key(), owner("b")), now);
            acquired
        });
        (hold.unwrap().token, between)
    })
    .await;
    // It is refused as the correct one is.
    differs("token-before-nx", ONE, (Some(FailureReason::Held), Some(FailureReason::Held)), async |stage| {
        stage.give(1, "b");
        stage.acquire("a").await.err().map(|failure| failure.reason)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn local_tokens_are_shared_by_the_holds_of_two_processes() {
    for on in [ONE, FIVE] {
        for (bug, expected) in [(None, Token(2)), (Some("local-tokens"), Token(1))] {
            let nodes: Vec<_> = (1..=on.0).map(|n| FakeNode::new(&format!("redis-{n}"), 5 * MS)).collect();
            let mut last = None;
            for _process in 0..2 {
                let clock = ClientClock::new();
                let lock = lock(bug, ports(&nodes), clock.clone(), on.1);
                last = Stage { nodes: nodes.clone(), clock, lock }.cycle().await;
            }
            assert_eq!(last, Some(expected), "{bug:?}");
        }
    }
}

impl Stage {
    /// The token of a hold that is let go at once.
    async fn cycle(&self) -> Option<Token> {
        let hold = self.acquire("a").await.unwrap();
        assert!(self.release(&hold).await);
        sleep(10 * MS).await;
        hold.token
    }
}

#[tokio::test(start_paused = true)]
async fn wall_tokens_go_back_with_the_wall_clock() {
    for on in [ONE, FIVE] {
        differs("wall-tokens", on, ((true, true), (true, false)), async |stage| {
            let tokens = [stage.cycle().await, stage.cycle().await];
            stage.clock.set_wall_back(LEASE);
            (tokens.is_sorted_by(|a, b| a < b), stage.cycle().await > tokens[1])
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn narrow_tokens_start_again_at_nothing_after_twenty_holds() {
    for on in [ONE, FIVE] {
        let wrongly = (Some(Token(u64::from(u32::MAX))), Some(Token(0)));
        differs("narrow-tokens", on, ((Some(Token(20)), Some(Token(21))), wrongly), async |stage| {
            stage.nodes.iter().for_each(|node| node.set_counter(19));
            (stage.cycle().await, stage.cycle().await)
        })
        .await;
    }
}
