//! The steps of planted bugs, in memory and on a server.

use locks::{Key, Owner, Step, StepAnswer, Token, planted::PlantedStep};

use crate::{
    cluster::{key, owner},
    real::{LONG, Server, answer},
    store::{NEVER, Store, done},
};

use super::*;

impl Store {
    pub fn apply_planted(&mut self, step: &PlantedStep, now: Duration) -> StepAnswer {
        match step {
            PlantedStep::AcquireForever(key, ..) if self.keys.contains_key(key) => StepAnswer::Refused,
            PlantedStep::AcquireAgain(key, owner, lease) if self.keys.contains_key(key) => {
                let counter = self.counter(key);
                if counter == Token(0) || !self.owns(key, owner) {
                    return StepAnswer::Refused;
                }
                self.set(key, owner, now + *lease);
                StepAnswer::Granted(counter)
            }
            PlantedStep::Overwrite(key, owner, lease) | PlantedStep::AcquireAgain(key, owner, lease) => {
                self.set(key, owner, now + *lease);
                self.count(key)
            }
            PlantedStep::AcquireForever(key, owner) => {
                self.set(key, owner, NEVER);
                self.count(key)
            }
            PlantedStep::CountOnly(key) => self.count(key),
            PlantedStep::ExtendOrSet(key, owner, lease) if !self.keys.contains_key(key) => {
                self.set(key, owner, now + *lease)
            }
            PlantedStep::ExtendOrSet(key, owner, lease) => {
                done(self.owns(key, owner) && self.extend(key, now + *lease))
            }
            PlantedStep::ExtendAny(key, lease) => done(self.extend(key, now + *lease)),
            PlantedStep::SetExpiry(key, owner, lease) if self.owns(key, owner) => self.set(key, owner, now + *lease),
            PlantedStep::SetExpiry(..) => StepAnswer::Refused,
            PlantedStep::IsOwner(key, owner) => done(self.owns(key, owner)),
            PlantedStep::RemoveAny(key) => done(self.keys.remove(key).is_some()),
            PlantedStep::RaiseAny(key, token) => self.set_counter(key, *token, self.counter(key) <= *token),
            PlantedStep::SetFence(key, owner, token) => self.set_counter(key, *token, self.owns(key, owner)),
        }
    }
}

/// The planted step of this number, below eleven.
pub fn step(number: u32, key: Key, owner: Owner, token: Token) -> Step {
    match number {
        0 => PlantedStep::Overwrite(key, owner, LONG),
        1 => PlantedStep::AcquireForever(key, owner),
        2 => PlantedStep::CountOnly(key),
        3 => PlantedStep::IsOwner(key, owner),
        4 => PlantedStep::RemoveAny(key),
        5 => PlantedStep::ExtendAny(key, LONG),
        6 => PlantedStep::ExtendOrSet(key, owner, LONG),
        7 => PlantedStep::SetExpiry(key, owner, LONG),
        8 => PlantedStep::RaiseAny(key, token),
        9 => PlantedStep::AcquireAgain(key, owner, LONG),
        _ => PlantedStep::SetFence(key, owner, token),
    }
    .into()
}

#[tokio::test]
async fn what_a_planted_step_does_to_a_lease_it_does_on_a_server_too() {
    let Some(server) = Server::start(1).await else { return };
    let node = server.connect();
    let lease = async || (server.ask::<i64>(&["PTTL", "lock:{k0}"]).await + 500_000) / 1_000_000;
    let (mine, short) = (owner("a"), LONG / 2);
    // In thousands of seconds, rounded to the nearest; no lease and no key show as 0.
    for (step, left) in [
        (PlantedStep::AcquireForever(key(), mine.clone()), 0),
        (PlantedStep::ExtendAny(key(), LONG), 10),
        (PlantedStep::ExtendAny(key(), short), 10),
        (PlantedStep::SetExpiry(key(), mine.clone(), short), 5),
        (PlantedStep::ExtendOrSet(key(), mine.clone(), LONG / 4), 5),
        (PlantedStep::ExtendOrSet(key(), mine.clone(), LONG), 10),
        (PlantedStep::RemoveAny(key()), 0),
        (PlantedStep::ExtendOrSet(key(), mine.clone(), short), 5),
        (PlantedStep::Overwrite(key(), owner("b"), LONG), 10),
        (PlantedStep::AcquireAgain(key(), owner("b"), short), 5),
    ] {
        let answered = answer(node.send(step.clone().into())).await.unwrap();
        assert_ne!(answered, StepAnswer::Refused, "{step:?}");
        assert_eq!(lease().await, left, "{step:?}");
    }
}
