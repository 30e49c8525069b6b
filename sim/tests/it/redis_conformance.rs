//! The model of a Redis node against a real server.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{collections::HashSet, mem::discriminant, time::Duration};

use history::Persistence;
use history::fault::Data;
use locks::{Key, Owner, Step, planted::PlantedStep};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sim::models::redis::RedisModel;

use crate::{
    conformance::{ALL_KINDS, LONG, Timed, answer, compare, compare_expiry, wall},
    redis_server::Server,
    say::say,
};

#[tokio::test]
async fn a_server_gives_to_ten_thousand_sequences_the_answers_of_the_model() {
    let Some(server) = Server::start(Persistence::No).await else { return };
    let (node, mut model) = (server.connect(), RedisModel::new(Persistence::No));
    let (mut rng, mut seen) = (ChaCha8Rng::seed_from_u64(1), HashSet::new());
    let mut compared = 0;
    for batch in 0..100 {
        // A hundred sequences at once, each on its own new key.
        let keys: Vec<Key> = (0..100).map(|number| Key::new(format!("k{batch}-{number}"))).collect();
        for (step, said) in compare(&*node, &mut model, &mut rng, ALL_KINDS, &keys, 1_600).await {
            let planted = if let Step::Planted(planted) = &step { Some(discriminant(planted)) } else { None };
            seen.insert((discriminant(&step), planted, discriminant(&said)));
            compared += 1;
        }
    }
    say(&format!("10000 sequences, {compared} answers compared"));
    assert_eq!(seen.len(), 30, "each step was done and refused; an overwrite and a count are never refused");
}

#[tokio::test]
async fn what_can_be_seen_of_expiry_on_a_server_is_possible_in_the_model() {
    let Some(server) = Server::start(Persistence::No).await else { return };
    // Redis counts whole milliseconds as the model does.
    compare_expiry::<RedisModel>(Timed { node: &*server.connect(), kinds: ALL_KINDS, at_once: 50, early_ms: 0 }, 40)
        .await;
}

/// Compares the model with a server: the data before a SIGKILL, and the data after it.
async fn killed(persistence: Persistence) {
    let Some(mut server) = Server::start(persistence).await else { return };
    let (mut model, mut rng) = (RedisModel::new(persistence), ChaCha8Rng::seed_from_u64(3));
    let keys: Vec<Key> = (0..40).map(|number| Key::new(format!("k{number}"))).collect();
    compare(&*server.connect(), &mut model, &mut rng, ALL_KINDS, &keys, 400).await;
    // One key expires before the server is back, the other does not.
    let (brief, lasting) = (Key::new("brief"), Key::new("lasting"));
    for (key, lease) in [(&brief, Duration::from_millis(1)), (&lasting, LONG)] {
        let step = Step::Acquire(key.clone(), Owner::new("a"), lease);
        let expected = model.apply(&step, wall());
        assert_eq!(answer(server.connect().send(step)).await, expected);
    }
    let over = wall() + Duration::from_millis(2);
    server.written().await;

    model.restart(Data::Kept, wall());
    server.restart().await;
    while wall() < over {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let is_kept = persistence != Persistence::No;
    assert_eq!(model.owner(&lasting, wall()).is_some(), is_kept);
    let node = server.connect();
    for (key, counted) in [(brief, 2), (lasting, 1)] {
        let step = Step::Acquire(key.clone(), Owner::new("b"), LONG);
        let expected = model.apply(&step, wall());
        assert_eq!(answer(node.send(step)).await, expected);
        assert_eq!(model.counter(&key), if is_kept { counted } else { 1 });
    }
    // Each key still has its former owner, or it has none. Each counter continues from its former value, or from the
    // start.
    for key in &keys {
        let looks = ["a", "b"].map(|owner| Step::from(PlantedStep::IsOwner(key.clone(), Owner::new(owner))));
        for step in looks.into_iter().chain([PlantedStep::CountOnly(key.clone()).into()]) {
            let expected = model.apply(&step, wall());
            assert_eq!(answer(node.send(step.clone())).await, expected, "to {step:?}");
        }
    }
    compare(&*node, &mut model, &mut rng, ALL_KINDS, &keys, 400).await;
}

#[tokio::test]
async fn a_sigkill_without_an_append_only_file_loses_everything() {
    killed(Persistence::No).await;
}

#[tokio::test]
async fn a_sigkill_with_fsyncs_every_second_loses_nothing_that_was_written() {
    killed(Persistence::Everysec).await;
}

#[tokio::test]
async fn a_sigkill_with_an_fsync_for_each_write_loses_nothing() {
    killed(Persistence::Always).await;
}

#[tokio::test]
async fn a_sigkill_with_snapshots_loses_what_came_after_the_last_one() {
    let Some(mut server) = Server::start(Persistence::Snapshot).await else { return };
    let (mut model, key) = (RedisModel::new(Persistence::Snapshot), Key::new("k"));
    let node = server.connect();
    let first = Step::from(PlantedStep::CountOnly(key.clone()));
    let later = Step::Acquire(key.clone(), Owner::new("a"), LONG);
    let begun = wall();
    assert_eq!(answer(node.send(first.clone())).await, model.apply(&first, begun));
    server.saved().await;
    // The next one is not due for seconds: what comes now is on no disk when the process is killed. The server counts
    // whole seconds.
    let saved = begun + Persistence::SNAPSHOT_EVERY + Duration::from_millis(1_200);
    assert_eq!(answer(node.send(later.clone())).await, model.apply(&later, saved));
    model.restart(Data::Kept, saved);
    server.restart().await;
    let (node, owned) = (server.connect(), Step::from(PlantedStep::IsOwner(key.clone(), Owner::new("a"))));
    for step in [owned, first] {
        assert_eq!(answer(node.send(step.clone())).await, model.apply(&step, wall()), "to {step:?}");
    }
    assert_eq!(model.counter(&key), 2, "the first count, and the one after the restart");
}
