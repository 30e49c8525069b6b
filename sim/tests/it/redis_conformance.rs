//! The model of a Redis node against a real server.
//!
//! The steps go through the real client, so the scripts are real too. If time decides an answer, the test cannot know
//! at which millisecond between request and answer the server executed the step. The test therefore keeps every answer
//! that the model could have given in these milliseconds as a possible world. The server's answer must be true in one
//! world.

#![allow(clippy::disallowed_methods, reason = "the server is real, and so is its time")]

use std::{collections::HashSet, mem::discriminant, time::Duration};

use futures::future::join_all;
use history::Persistence;
use history::fault::Data;
use locks::{Key, Node, NodeError, Owner, Reply, Step, StepAnswer, Token, planted::PlantedStep};
use nix::time::{ClockId, clock_gettime};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim::models::redis::RedisModel;

use crate::redis_server::{PATIENCE, Server, say};

/// Long enough that nothing runs out in a test.
const LONG: Duration = Duration::from_secs(10_000);

fn wall() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME).unwrap().into()
}

async fn answer(reply: Reply<Result<StepAnswer, NodeError>>) -> StepAnswer {
    tokio::time::timeout(PATIENCE, reply).await.expect("an answer").unwrap()
}

/// How many kinds of steps there are.
const KINDS: u32 = 15;

/// One step on `key`, by one of two owners, with tokens around its counter.
fn draw(rng: &mut ChaCha8Rng, key: &Key, counter: u64, lease: Duration) -> Step {
    let owner = Owner::new(["a", "b"][rng.random_range(0..2)]);
    let token = Token((counter + rng.random_range(0..4)).saturating_sub(2));
    let key = key.clone();
    match rng.random_range(0..KINDS) {
        0 => Step::Acquire(key, owner, lease),
        1 => Step::AcquireUncounted(key, owner, lease),
        2 => Step::Extend(key, owner, lease),
        3 => Step::Release(key, owner),
        4 => Step::RaiseFence(key, owner, token),
        5 => PlantedStep::Overwrite(key, owner, lease).into(),
        6 => PlantedStep::AcquireForever(key, owner).into(),
        7 => PlantedStep::CountOnly(key).into(),
        8 => PlantedStep::IsOwner(key, owner).into(),
        9 => PlantedStep::RemoveAny(key).into(),
        10 => PlantedStep::ExtendAny(key, lease).into(),
        11 => PlantedStep::ExtendOrSet(key, owner, lease).into(),
        12 => PlantedStep::SetExpiry(key, owner, lease).into(),
        13 => PlantedStep::RaiseAny(key, token).into(),
        _ => PlantedStep::SetFence(key, owner, token).into(),
    }
}

/// Draws `steps` steps on `keys`, queues them all, and holds every answer against the model's. Nothing may run out
/// meanwhile.
async fn compare(
    node: &dyn Node,
    model: &mut RedisModel,
    rng: &mut ChaCha8Rng,
    keys: &[Key],
    steps: usize,
) -> Vec<(Step, StepAnswer)> {
    let now = wall();
    let mut asked = Vec::new();
    for _ in 0..steps {
        let key = &keys[rng.random_range(0..keys.len())];
        let step = draw(rng, key, model.counter(key), LONG);
        let expected = model.apply(&step, now);
        asked.push((node.send(step.clone()), step, expected));
    }
    let mut done: Vec<(Step, StepAnswer)> = Vec::new();
    for (reply, step, expected) in asked {
        let said = answer(reply).await;
        let before = || done.iter().rev().take(20).rev().collect::<Vec<_>>();
        assert_eq!(said, expected, "to {step:?}, after {:#?}", before());
        done.push((step, expected));
    }
    done
}

#[tokio::test]
async fn a_server_gives_to_ten_thousand_sequences_the_answers_of_the_model() {
    let Some(server) = Server::start(Persistence::No).await else { return };
    let (node, mut model) = (server.connect(), RedisModel::new(Persistence::No));
    let (mut rng, mut seen) = (ChaCha8Rng::seed_from_u64(1), HashSet::new());
    let mut compared = 0;
    for batch in 0..100 {
        // A hundred sequences at once, each on its own new key.
        let keys: Vec<Key> = (0..100).map(|number| Key::new(format!("k{batch}-{number}"))).collect();
        for (step, said) in compare(&*node, &mut model, &mut rng, &keys, 1_600).await {
            let planted = if let Step::Planted(planted) = &step { Some(discriminant(planted)) } else { None };
            seen.insert((discriminant(&step), planted, discriminant(&said)));
            compared += 1;
        }
    }
    say(&format!("10000 sequences, {compared} answers compared"));
    assert_eq!(seen.len(), 28, "each step was done and refused; an overwrite and a count are never refused");
}

/// The results of sequences in which time decides.
#[derive(Debug, Default)]
struct Tally {
    /// Steps to which the model had one answer.
    decided: u32,
    /// Decided steps that found a key that had been set and had surely expired.
    run_out: u32,
    /// Decided steps that found a key that surely still existed.
    in_time: u32,
    /// Steps to which the model had several answers.
    undecided: u32,
}

/// Steps of one sequence in which time decides.
const TIMED_STEPS: u32 = 12;

/// A step that takes longer leaves more worlds than are worth a look.
const WIDEST_MS: u64 = 40;

/// One sequence on `key`, with leases of a few times `unit` and about as much between two steps.
async fn timed(node: &dyn Node, key: Key, seed: u64, unit: u32) -> Tally {
    let (mut rng, mut tally) = (ChaCha8Rng::seed_from_u64(seed), Tally::default());
    let mut worlds = vec![RedisModel::new(Persistence::No)];
    for done in 0..TIMED_STEPS {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..6)) * unit).await;
        // From 2 ms on: a 7.0 that looks twice at its clock within a script may find that a lease of 1 ms is over.
        let lease = Duration::from_millis(rng.random_range(2..14)) * unit;
        let step = draw(&mut rng, &key, worlds[0].counter(&key), lease);
        let before = wall();
        let said = answer(node.send(step.clone())).await;
        let after = wall();
        let (first_ms, last_ms) = (before.as_millis() as u64, after.as_millis() as u64);
        if after < before || last_ms - first_ms > WIDEST_MS {
            tally.undecided += TIMED_STEPS - done;
            break;
        }
        let possible = possible(&worlds, &step, first_ms, last_ms);
        if possible.iter().all(|(answer, _)| *answer == possible[0].0) {
            tally.decided += 1;
            let is_there = |world: &RedisModel, at| world.owner(&key, at).is_some();
            // Nothing has run out at the epoch.
            let was_set = worlds.iter().all(|world| is_there(world, Duration::ZERO));
            tally.run_out += u32::from(was_set && !worlds.iter().any(|world| is_there(world, before)));
            tally.in_time += u32::from(worlds.iter().all(|world| is_there(world, after)));
        } else {
            tally.undecided += 1;
        }
        let left: Vec<_> =
            possible.into_iter().filter_map(|(answer, world)| (answer == said).then_some(world)).collect();
        let bracket = first_ms..=last_ms;
        assert!(
            !left.is_empty(),
            "the model never says {said:?} to {step:?} within {bracket:?} ms, from any of {worlds:#?}"
        );
        worlds = left;
    }
    tally
}

/// All that the model may answer and become, if the server does the step at some time of the bracket.
fn possible(worlds: &[RedisModel], step: &Step, first_ms: u64, last_ms: u64) -> Vec<(StepAnswer, RedisModel)> {
    let mut possible = Vec::new();
    for world in worlds {
        for at_ms in first_ms..=last_ms {
            // A 7.0 adds the lease to the time at which the script comes to it.
            for later_ms in 0..=last_ms - at_ms {
                let mut world = world.clone();
                let answer = world.apply(&with_longer_lease(step, later_ms), Duration::from_millis(at_ms));
                if !possible.contains(&(answer, world.clone())) {
                    possible.push((answer, world));
                }
            }
        }
    }
    possible
}

fn with_longer_lease(step: &Step, by_ms: u64) -> Step {
    let mut step = step.clone();
    match &mut step {
        Step::Acquire(.., lease)
        | Step::AcquireUncounted(.., lease)
        | Step::Extend(.., lease)
        | Step::Planted(
            PlantedStep::Overwrite(.., lease)
            | PlantedStep::ExtendAny(.., lease)
            | PlantedStep::ExtendOrSet(.., lease)
            | PlantedStep::SetExpiry(.., lease),
        ) => *lease += Duration::from_millis(by_ms),
        Step::Release(..) | Step::RaiseFence(..) => {}
        Step::Planted(
            PlantedStep::AcquireForever(..)
            | PlantedStep::CountOnly(..)
            | PlantedStep::IsOwner(..)
            | PlantedStep::RemoveAny(..)
            | PlantedStep::RaiseAny(..)
            | PlantedStep::SetFence(..),
        ) => {}
    }
    step
}

#[tokio::test]
async fn what_can_be_seen_of_expiry_on_a_server_is_possible_in_the_model() {
    let Some(server) = Server::start(Persistence::No).await else { return };
    let node = server.connect();
    // On a machine that is too busy for milliseconds, the same again in longer times.
    for unit in [1, 2, 4, 8] {
        let mut sum = Tally::default();
        for batch in 0..40 {
            let sequences = (0..50).map(|number| {
                let key = Key::new(format!("k{unit}-{batch}-{number}"));
                timed(&*node, key, batch * 50 + number, unit)
            });
            for tally in join_all(sequences).await {
                sum.decided += tally.decided;
                sum.run_out += tally.run_out;
                sum.in_time += tally.in_time;
                sum.undecided += tally.undecided;
            }
        }
        say(&format!("expiry, leases of {} to {} ms: {sum:?}", 2 * unit, 13 * unit));
        if sum.undecided <= sum.decided / 2 {
            assert!(sum.run_out > 500 && sum.in_time > 500, "too few were decided by time: {sum:?}");
            return;
        }
    }
    panic!("more than a third was undecided every time");
}

/// Compares the model with a server: the data before a SIGKILL, and the data after it.
async fn killed(persistence: Persistence) {
    let Some(mut server) = Server::start(persistence).await else { return };
    let (mut model, mut rng) = (RedisModel::new(persistence), ChaCha8Rng::seed_from_u64(3));
    let keys: Vec<Key> = (0..40).map(|number| Key::new(format!("k{number}"))).collect();
    compare(&*server.connect(), &mut model, &mut rng, &keys, 400).await;
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
    compare(&*node, &mut model, &mut rng, &keys, 400).await;
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
    // The next one is not due for seconds: what comes now is on no disk when the process is killed.
    let saved = begun + Persistence::SNAPSHOT_EVERY + Duration::from_millis(200);
    assert_eq!(answer(node.send(later.clone())).await, model.apply(&later, saved));
    model.restart(Data::Kept, saved);
    server.restart().await;
    let (node, owned) = (server.connect(), Step::from(PlantedStep::IsOwner(key.clone(), Owner::new("a"))));
    for step in [owned, first] {
        assert_eq!(answer(node.send(step.clone())).await, model.apply(&step, wall()), "to {step:?}");
    }
    assert_eq!(model.counter(&key), 2, "the first count, and the one after the restart");
}
