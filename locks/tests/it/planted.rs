//! Each planted bug in the smallest situation in which it differs from the correct lock, which goes through the same.

mod steps;
mod tokens;

pub use self::steps::step;

use std::{fmt::Debug, sync::Arc, time::Duration};

use locks::{
    Client, Clock, Failure, FailureReason, Hold, Lock, Owner, Redis, Redlock, Round, Servers, Token, TokenSource,
    Unwatched, Watch,
    planted::{CannotPlant, PLANTED_BUGS, PlantedBug},
    validity,
};
use tokio::{join, time::sleep};

use crate::{
    cluster::{ClientClock, FakeNode, LEASE, MS, key, lock, owner, ports},
    watches::FreezeAfterSend,
};

/// Nodes that are 5 ms away, and the lock of one process on them.
struct Stage {
    nodes: Vec<Arc<FakeNode>>,
    clock: Arc<ClientClock>,
    lock: Arc<dyn Lock>,
}

impl Stage {
    async fn acquire(&self, name: &str) -> Result<Hold, Failure> {
        self.lock.acquire(&key(), owner(name), LEASE, &Unwatched).await
    }

    async fn acquire_watched(&self, watch: &dyn Watch) -> Result<Hold, Failure> {
        self.lock.acquire(&key(), owner("a"), LEASE, watch).await
    }

    async fn renew(&self, hold: &mut Hold) -> bool {
        self.lock.renew(hold, LEASE, &Unwatched).await.is_ok()
    }

    async fn release(&self, hold: &Hold) -> bool {
        self.lock.release(hold, &Unwatched).await.unwrap().removed
    }

    /// Returns the owner of the key on each node.
    fn owners(&self) -> Vec<Option<Owner>> {
        self.nodes.iter().map(|node| node.owner()).collect()
    }

    /// Returns whether this owner has the key on each of the first `nodes` nodes.
    fn has(&self, name: &str, nodes: usize) -> bool {
        self.nodes[..nodes].iter().all(|node| node.owner() == Some(owner(name)))
    }

    fn give(&self, nodes: usize, name: &str) {
        self.nodes[..nodes].iter().for_each(|node| node.give_to(name));
    }

    /// How long the hold is believed from now on.
    fn left(&self, hold: &Hold) -> Duration {
        hold.valid_until.saturating_sub(self.clock.now())
    }
}

/// Lets the correct lock and the one with the bug go through `scene`, and compares what comes of it.
async fn differs<T: PartialEq + Debug>(
    bug: &str,
    (how_many, tokens): (usize, TokenSource),
    (rightly, wrongly): (T, T),
    scene: impl AsyncFn(Stage) -> T,
) {
    for (bug, expected) in [(None, rightly), (Some(bug), wrongly)] {
        let nodes: Vec<_> = (1..=how_many).map(|n| FakeNode::new(&format!("redis-{n}"), 5 * MS)).collect();
        let clock = ClientClock::new();
        let lock = lock(bug, ports(&nodes), clock.clone(), tokens);
        assert_eq!(scene(Stage { nodes, clock, lock }).await, expected, "{bug:?} on {how_many}, {tokens:?}");
    }
}

const ONE: (usize, TokenSource) = (1, TokenSource::Counter);
const ONE_UNCOUNTED: (usize, TokenSource) = (1, TokenSource::None);
const FIVE: (usize, TokenSource) = (5, TokenSource::TwoPhase);

/// Does something when the requests of a round are about to leave.
struct Before<F>(Round, F);

impl<F: Fn() + Send + Sync> Watch for Before<F> {
    fn sending(&self, round: Round) {
        if round == self.0 {
            self.1();
        }
    }
}

fn frozen(round: Round, stage: &Stage, time: Duration) -> FreezeAfterSend {
    FreezeAfterSend { round, clock: stage.clock.clone(), time }
}

#[tokio::test(start_paused = true)]
async fn forgets_nx_takes_a_key_that_somebody_holds() {
    for on in [ONE, ONE_UNCOUNTED, FIVE] {
        differs("forgets-nx", on, ((false, true), (true, false)), async |stage| {
            stage.give(on.0, "b");
            let acquired = stage.acquire("a").await.is_ok();
            (acquired, stage.has("b", on.0))
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn reenters_grants_a_key_again_to_the_process_that_has_it() {
    differs("reenters", ONE, (None, Some(true)), async |stage| {
        let first = stage.acquire("a").await.unwrap();
        let second = stage.acquire("b").await.ok()?;
        Some(second.token == first.token && second.valid_until > first.valid_until)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_lease_leaves_the_key_of_a_holder_that_died() {
    for on in [ONE, ONE_UNCOUNTED, FIVE] {
        differs("no-lease", on, (true, false), async |stage| {
            let hold = stage.acquire("a").await.unwrap();
            assert_eq!(hold.token.is_some(), on.1 != TokenSource::None);
            sleep(100 * LEASE).await;
            stage.acquire("b").await.is_ok()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn half_majority_makes_two_holders_of_nodes_that_are_split_two_to_three() {
    differs("half-majority", FIVE, (false, true), async |stage| {
        stage.give(3, "b");
        stage.acquire("a").await.is_ok()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn counts_late_answers_claims_by_a_grant_that_was_undone() {
    for on in [ONE, ONE_UNCOUNTED, (5, TokenSource::MajorityMax)] {
        differs("counts-late-answers", on, (false, true), async |stage| {
            stage.nodes.iter().for_each(|node| node.set_lag(150 * MS));
            assert!(stage.acquire("a").await.is_err(), "it does not wait for so long");
            sleep(LEASE).await;
            assert_eq!(stage.owners(), vec![None; on.0], "it was undone");
            stage.nodes.iter().for_each(|node| node.set_lag(5 * MS));
            stage.give(on.0, "b");
            stage.acquire("c").await.is_ok()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_owner_lets_an_earlier_hold_release_a_later_one_of_its_process() {
    for on in [ONE, FIVE] {
        differs("one-owner", on, ((false, 0), (true, on.0)), async |stage| {
            let earlier = stage.acquire("a").await.unwrap();
            sleep(LEASE).await;
            stage.acquire("b").await.unwrap();
            let released = stage.release(&earlier).await;
            (released, stage.owners().iter().filter(|owner| owner.is_none()).count())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_owner_is_what_a_cancelled_attempt_is_undone_by() {
    differs("one-owner", ONE, (true, false), async |stage| {
        stage.acquire("a").await.unwrap();
        stage.lock.cancel(&key(), &owner("b"), LEASE, &Unwatched).await;
        stage.has("a", 1)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_validity_claims_a_hold_that_is_over() {
    for (on, round) in [(ONE, Round::Acquire), (FIVE, Round::Acquire), (FIVE, Round::WriteBack)] {
        differs("no-validity", on, (None, Some(false)), async |stage| {
            let hold = stage.acquire_watched(&frozen(round, &stage, 2 * LEASE)).await;
            hold.ok().map(|hold| hold.is_valid(stage.clock.now()))
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn validity_from_answer_believes_for_as_long_as_the_answers_took() {
    let promised = LEASE - validity::drift(LEASE);
    differs("validity-from-answer", ONE, (promised - LEASE / 2 - 10 * MS, promised), async |stage| {
        let hold = stage.acquire_watched(&frozen(Round::Acquire, &stage, LEASE / 2)).await.unwrap();
        stage.left(&hold)
    })
    .await;
    differs("validity-from-answer", FIVE, (promised - 10 * MS, promised), async |stage| {
        let mut hold = stage.acquire("a").await.unwrap();
        assert!(stage.renew(&mut hold).await);
        stage.left(&hold)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn validity_before_write_back_claims_a_hold_that_ended_during_it() {
    differs("validity-before-write-back", FIVE, ((false, false), (true, false)), async |stage| {
        let written = stage.acquire_watched(&frozen(Round::WriteBack, &stage, 2 * LEASE)).await;
        sleep(2 * LEASE).await;
        let acquired = stage.acquire_watched(&frozen(Round::Acquire, &stage, 2 * LEASE)).await;
        (written.is_ok(), acquired.is_ok())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn wall_clock_does_not_see_time_that_the_wall_clock_was_set_back_by() {
    let left = LEASE - validity::drift(LEASE) - 10 * MS;
    for on in [ONE, FIVE] {
        let again = if on == FIVE { 10 * MS } else { Duration::ZERO };
        let (rightly, wrongly) = (left - LEASE / 2 - again, left - LEASE / 4 - again);
        differs("wall-clock", on, (rightly, wrongly), async |stage| {
            let clock = stage.clock.clone();
            stage.nodes.iter().for_each(|node| node.set_lag(5 * MS));
            // Set back after the stamp of the sending, while the client is frozen.
            let watch = Both(
                Before(Round::Acquire, || clock.set_wall_back(LEASE / 4)),
                frozen(Round::Acquire, &stage, LEASE / 2),
            );
            let hold = stage.acquire_watched(&watch).await.unwrap();
            assert_eq!(hold.valid_until, validity::promise_end(hold.sent, LEASE));
            stage.left(&hold)
        })
        .await;
    }
}

/// The one when a round leaves, the other when it has left.
struct Both<F>(Before<F>, FreezeAfterSend);

impl<F: Fn() + Send + Sync> Watch for Both<F> {
    fn sending(&self, round: Round) {
        self.0.sending(round);
    }

    fn sent(&self, round: Round) -> locks::Reply<()> {
        self.1.sent(round)
    }
}

#[tokio::test(start_paused = true)]
async fn release_in_two_steps_removes_a_key_that_changed_hands_in_between() {
    differs("release-in-two-steps", ONE, ((true, true), (true, false)), async |stage| {
        let hold = stage.acquire("a").await.unwrap();
        // The look is done after 5 ms, and the removal after 15.
        let (released, ()) = join!(stage.release(&hold), async {
            sleep(12 * MS).await;
            stage.give(1, "b");
        });
        sleep(20 * MS).await;
        (released, stage.has("b", 1))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn release_unchecked_removes_the_key_of_somebody_else() {
    for on in [ONE, FIVE] {
        differs("release-unchecked", on, ((false, true), (true, false)), async |stage| {
            let hold = stage.acquire("a").await.unwrap();
            stage.give(on.0, "b");
            (stage.release(&hold).await, stage.has("b", on.0))
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn undo_unchecked_removes_the_key_that_refused_the_attempt() {
    differs("undo-unchecked", FIVE, (true, false), async |stage| {
        stage.give(5, "b");
        assert_eq!(stage.acquire("a").await.unwrap_err().reason, FailureReason::Held);
        stage.has("b", 5)
    })
    .await;
    // One node that refuses is not undone; one that is silent is.
    differs("undo-unchecked", ONE, (true, false), async |stage| {
        stage.give(1, "b");
        stage.nodes[0].freeze();
        assert!(stage.acquire("a").await.is_err());
        stage.nodes[0].thaw();
        sleep(20 * MS).await;
        stage.has("b", 1)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn undoes_granted_only_leaves_the_key_of_a_dead_attempt_on_a_node_that_wakes_up() {
    differs("undoes-granted-only", FIVE, ([1, 1, 1, 1, 1], [0, 0, 0, 1, 0]), async |stage| {
        stage.give(3, "b");
        stage.nodes[4].freeze();
        assert_eq!(stage.acquire("a").await.unwrap_err().reason, FailureReason::Held);
        stage.nodes[4].thaw();
        sleep(20 * MS).await;
        let undone = stage.nodes.iter().map(|node| node.releases_done()).collect::<Vec<_>>();
        assert_eq!(stage.nodes[4].owner(), (undone[4] == 0).then(|| owner("a")));
        assert_eq!(stage.nodes[3].owner(), None);
        undone.try_into().unwrap()
    })
    .await;
    differs("undoes-granted-only", ONE, (1, 0), async |stage| {
        stage.nodes[0].freeze();
        assert!(stage.acquire("a").await.is_err());
        stage.nodes[0].thaw();
        sleep(20 * MS).await;
        stage.nodes[0].releases_done()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renews_with_one_counts_what_a_minority_did() {
    differs("renews-with-one", FIVE, (false, true), async |stage| {
        let mut hold = stage.acquire("a").await.unwrap();
        stage.nodes[1..].iter().for_each(|node| node.freeze());
        stage.renew(&mut hold).await
    })
    .await;
    differs("renews-with-one", FIVE, (false, false), async |stage| {
        let mut hold = stage.acquire("a").await.unwrap();
        stage.give(5, "b");
        stage.renew(&mut hold).await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renews_any_owner_goes_on_with_the_key_of_somebody_else() {
    for on in [ONE, FIVE] {
        differs("renews-any-owner", on, ((false, false), (true, false)), async |stage| {
            let mut hold = stage.acquire("a").await.unwrap();
            stage.give(on.0, "b");
            let of_another = stage.renew(&mut hold).await;
            stage.nodes.iter().for_each(|node| node.store.lock().unwrap().keys.clear());
            (of_another, stage.renew(&mut hold).await)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn renews_expired_brings_a_hold_back_that_has_lapsed_but_takes_nothing_from_another() {
    for on in [ONE, FIVE] {
        differs("renews-expired", on, ((false, false, false), (true, true, false)), async |stage| {
            let mut hold = stage.acquire("a").await.unwrap();
            sleep(2 * LEASE).await;
            let renewed = stage.renew(&mut hold).await;
            let is_back = stage.has("a", on.0) && hold.is_valid(stage.clock.now());
            stage.give(on.0, "b");
            (renewed, is_back, stage.renew(&mut hold).await)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_shortens_the_key_and_not_the_belief() {
    for on in [ONE, FIVE] {
        differs("renewal-shortens", on, (true, false), async |stage| {
            let mut hold = stage.acquire("a").await.unwrap();
            let believed = hold.valid_until;
            stage.lock.renew(&mut hold, LEASE / 10, &Unwatched).await.unwrap();
            assert_eq!(hold.valid_until, believed);
            stage.nodes[0].expires() > Some(believed)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn ignores_failed_renewal_goes_on_believing_when_it_was_refused_or_not_answered() {
    for on in [ONE, FIVE] {
        differs("ignores-failed-renewal", on, ((false, false), (true, true)), async |stage| {
            let mut hold = stage.acquire("a").await.unwrap();
            stage.give(on.0, "b");
            let believed = hold.valid_until;
            let refused = stage.renew(&mut hold).await && hold.valid_until > believed;
            stage.nodes.iter().for_each(|node| node.freeze());
            let believed = hold.valid_until;
            (refused, stage.renew(&mut hold).await && hold.valid_until > believed)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn releases_unrenewed_gives_the_key_back_when_a_renewal_was_refused_or_not_answered() {
    for on in [ONE, FIVE] {
        differs("releases-unrenewed", on, (true, false), async |stage| {
            let mut hold = stage.acquire("a").await.unwrap();
            let rest = &stage.nodes[..=on.0 / 2];
            rest.iter().for_each(|node| node.freeze());
            assert!(!stage.renew(&mut hold).await);
            rest.iter().for_each(|node| node.thaw());
            sleep(10 * MS).await;
            stage.has("a", on.0)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_bug_can_be_planted_wherever_it_says_and_works_as_a_lock_when_nothing_goes_wrong() {
    for PlantedBug { name, backends, tokens, .. } in PLANTED_BUGS {
        for backend in backends.iter().filter(|backend| ["redis", "redlock"].contains(backend)) {
            let (how_many, makes) = if *backend == "redis" { (1, Redis::TOKENS) } else { (5, Redlock::TOKENS) };
            for tokens in tokens.iter().filter(|tokens| makes.contains(tokens)) {
                let nodes: Vec<_> = (1..=how_many).map(|n| FakeNode::new(&format!("redis-{n}"), 5 * MS)).collect();
                let clock = ClientClock::new();
                let lock = lock(Some(name), ports(&nodes), clock.clone(), *tokens);
                let stage = Stage { nodes, clock, lock };
                let mut hold = stage.acquire("a").await.unwrap();
                assert_eq!(hold.token.is_some(), *tokens != TokenSource::None, "{name}");
                assert!(stage.renew(&mut hold).await, "{name}");
                assert!(stage.release(&hold).await, "{name}");
                sleep(10 * MS).await;
                assert_eq!(stage.owners(), vec![None; how_many], "{name}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_bug_is_refused_where_it_would_change_nothing() {
    let refused = |name, how_many, tokens| {
        let nodes: Vec<_> = (1..=how_many).map(|n| FakeNode::new(&format!("redis-{n}"), 5 * MS)).collect();
        let client = Client::named(if how_many == 1 { "redis" } else { "redlock" }).unwrap();
        let servers = Servers::Nodes(ports(&nodes));
        PlantedBug::named(name).and_then(|bug| bug.build(client, servers, tokens, ClientClock::new())).err()
    };
    assert!(matches!(refused("half-majority", 1, TokenSource::Counter), Some(CannotPlant::Backend { .. })));
    assert!(matches!(refused("token-before-nx", 5, TokenSource::TwoPhase), Some(CannotPlant::Backend { .. })));
    assert!(matches!(refused("wall-tokens", 5, TokenSource::None), Some(CannotPlant::Tokens { .. })));
    assert!(matches!(refused("write-back-lowers", 5, TokenSource::MajorityMax), Some(CannotPlant::Tokens { .. })));
    assert!(matches!(refused("forgets-nx", 1, TokenSource::TwoPhase), Some(CannotPlant::Client(_))));
    let unknown = refused("none", 1, TokenSource::None).unwrap().to_string();
    assert!(PLANTED_BUGS.iter().all(|bug| unknown.contains(bug.name)), "{unknown}");
    assert!(refused("half-majority", 5, TokenSource::None).is_none());
}
