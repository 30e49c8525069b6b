//! The model of a node against real servers.
//!
//! The steps go through the real client, so the scripts and statements are real too. If time decides an answer, the
//! test cannot know at which millisecond between request and answer the server executed the step. The test therefore
//! keeps every answer that the model could have given in these milliseconds as a possible world. The server's answer
//! must be true in one world.

#![allow(clippy::disallowed_methods, reason = "the servers are real, and so is their time")]

use std::{fmt::Debug, time::Duration};

use futures::future::join_all;
use history::Persistence;
use locks::lock_server::LockServer;
use locks::{BootClock, Clock, Key, Node, NodeError, Owner, Reply, Step, StepAnswer, Token, planted::PlantedStep};
use nix::time::{ClockId, clock_gettime};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim::models::redis::RedisModel;

use crate::{real::PATIENCE, say::say};

/// Long enough that nothing runs out in a test.
pub const LONG: Duration = Duration::from_secs(10_000);

pub fn wall() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME).unwrap().into()
}

pub async fn answer(reply: Reply<Result<StepAnswer, NodeError>>) -> StepAnswer {
    tokio::time::timeout(PATIENCE, reply).await.expect("an answer").unwrap()
}

/// A model of a node.
pub trait Model: Clone + PartialEq + Debug {
    /// An empty node, and no persistence.
    fn empty() -> Self;
    /// The clock on which leases run.
    fn clock() -> Duration;
    fn apply(&mut self, step: &Step, now: Duration) -> StepAnswer;
    fn counter(&self, key: &Key) -> u64;
    fn owner(&self, key: &Key, now: Duration) -> Option<&Owner>;
    /// Removes the keys that have expired at `now`.
    fn sweep(&mut self, now: Duration);
}

impl Model for RedisModel {
    fn empty() -> Self {
        RedisModel::new(Persistence::No)
    }

    fn clock() -> Duration {
        wall()
    }

    fn apply(&mut self, step: &Step, now: Duration) -> StepAnswer {
        self.apply(step, now)
    }

    fn counter(&self, key: &Key) -> u64 {
        self.counter(key)
    }

    fn owner(&self, key: &Key, now: Duration) -> Option<&Owner> {
        self.owner(key, now)
    }

    fn sweep(&mut self, now: Duration) {
        self.sweep(now);
    }
}

impl Model for LockServer {
    fn empty() -> Self {
        LockServer::default()
    }

    fn clock() -> Duration {
        BootClock.now()
    }

    fn apply(&mut self, step: &Step, now: Duration) -> StepAnswer {
        self.apply(step, now)
    }

    fn counter(&self, key: &Key) -> u64 {
        self.counter(key)
    }

    fn owner(&self, key: &Key, now: Duration) -> Option<&Owner> {
        self.owner(key, now)
    }

    fn sweep(&mut self, _: Duration) {
        unreachable!("a lock server counts whole milliseconds, as its model does");
    }
}

/// The number of kinds of steps that correct locks send.
pub const UNPLANTED: u32 = 5;

/// The number of kinds of steps.
pub const ALL_KINDS: u32 = 16;

/// One step of the first `kinds` kinds on `key`, by one of two owners, with tokens around its counter.
fn draw(rng: &mut ChaCha8Rng, kinds: u32, key: &Key, counter: u64, lease: Duration) -> Step {
    let owner = Owner::new(["a", "b"][rng.random_range(0..2)]);
    let token = Token((counter + rng.random_range(0..4)).saturating_sub(2));
    let key = key.clone();
    match rng.random_range(0..kinds) {
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
        14 => PlantedStep::SetFence(key, owner, token).into(),
        _ => PlantedStep::AcquireAgain(key, owner, lease).into(),
    }
}

/// Draws `steps` steps on `keys`, queues them all, and holds every answer against the model's. Nothing may run out
/// meanwhile.
pub async fn compare<M: Model>(
    node: &dyn Node,
    model: &mut M,
    rng: &mut ChaCha8Rng,
    kinds: u32,
    keys: &[Key],
    steps: usize,
) -> Vec<(Step, StepAnswer)> {
    let now = M::clock();
    let mut asked = Vec::new();
    for _ in 0..steps {
        let key = &keys[rng.random_range(0..keys.len())];
        let step = draw(rng, kinds, key, model.counter(key), LONG);
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

/// A server whose expiry is compared with the model's.
#[derive(Clone, Copy)]
pub struct Timed<'a> {
    pub node: &'a dyn Node,
    pub kinds: u32,
    /// The number of sequences that run at once. Each waits for the steps of the others.
    pub at_once: u64,
    /// A key may be gone on the server so much earlier than in the model, which has whole milliseconds.
    pub early_ms: u64,
}

/// One sequence on `key`, with leases of a few times `unit` and about as much between two steps.
async fn timed<M: Model>(server: Timed<'_>, key: Key, seed: u64, unit: u32) -> Tally {
    let (mut rng, mut tally) = (ChaCha8Rng::seed_from_u64(seed), Tally::default());
    let mut worlds = vec![M::empty()];
    for done in 0..TIMED_STEPS {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..6)) * unit).await;
        // From 2 ms on: a 7.0 that looks twice at its clock within a script may find that a lease of 1 ms is over.
        let lease = Duration::from_millis(rng.random_range(2..14)) * unit;
        let step = draw(&mut rng, server.kinds, &key, worlds[0].counter(&key), lease);
        let before = M::clock();
        let said = answer(server.node.send(step.clone())).await;
        let after = M::clock();
        let (first_ms, last_ms) = (before.as_millis() as u64, after.as_millis() as u64);
        if after < before || last_ms - first_ms > WIDEST_MS {
            tally.undecided += TIMED_STEPS - done;
            break;
        }
        let possible = possible(&worlds, &step, first_ms, last_ms, server.early_ms);
        if possible.iter().all(|(answer, _)| *answer == possible[0].0) {
            tally.decided += 1;
            let is_there = |world: &M, at| world.owner(&key, at).is_some();
            // Nothing has run out at the epoch.
            let was_set = worlds.iter().all(|world| is_there(world, Duration::ZERO));
            tally.run_out += u32::from(was_set && !worlds.iter().any(|world| is_there(world, before)));
            let after = after + Duration::from_millis(server.early_ms);
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
fn possible<M: Model>(worlds: &[M], step: &Step, first_ms: u64, last_ms: u64, early_ms: u64) -> Vec<(StepAnswer, M)> {
    let mut possible = Vec::new();
    for (world, early_ms) in worlds.iter().flat_map(|world| (0..=early_ms).map(move |early_ms| (world, early_ms))) {
        for at_ms in first_ms..=last_ms {
            // A 7.0 adds the lease to the time at which the script comes to it.
            for later_ms in 0..=last_ms - at_ms {
                let mut world = world.clone();
                if early_ms > 0 {
                    world.sweep(Duration::from_millis(at_ms + early_ms));
                }
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
            | PlantedStep::AcquireAgain(.., lease)
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

/// Compares the expiry of keys in many sequences. On a machine that is too busy for milliseconds, the same again in
/// longer times.
pub async fn compare_expiry<M: Model>(server: Timed<'_>, batches: u64) {
    for unit in [1, 2, 4, 8] {
        let mut sum = Tally::default();
        for batch in 0..batches {
            let sequences = (0..server.at_once).map(|number| {
                let key = Key::new(format!("k{unit}-{batch}-{number}"));
                timed::<M>(server, key, batch * server.at_once + number, unit)
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
            assert!(
                u64::from(sum.run_out.min(sum.in_time)) > batches * server.at_once / 4,
                "too few were decided by time: {sum:?}"
            );
            return;
        }
    }
    panic!("more than a third was undecided every time");
}
