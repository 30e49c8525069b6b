//! The fenced resource of the model: what it does, and beside it what it should have done.

use std::collections::BTreeMap;

use history::Arm;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::knobs::{ArmBug, Knobs};

/// A request at the resource.
#[derive(Debug, Clone)]
pub struct Access {
    pub key: usize,
    pub write: bool,
    pub hold: Option<u64>,
    pub op: u32,
    pub token: Option<u64>,
    /// Version and value that the client read, an arm each.
    pub base: Vec<(u64, u64)>,
}

/// The decision of one arm.
#[derive(Debug, Clone)]
pub struct Decided {
    pub admitted: bool,
    pub right: bool,
    pub seen: Option<u64>,
    pub base: Option<u64>,
    pub version: u64,
    pub value: u64,
}

/// State of one arm for one key.
#[derive(Debug, Clone, Default)]
struct Slot {
    version: u64,
    value: u64,
    /// The largest token that the arm remembers, with its hold.
    seen: Option<(u64, u64)>,
    /// The largest token that a correct arm would remember, with its hold.
    due: Option<(u64, u64)>,
    /// The hold that read last.
    claim: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Resource {
    slots: BTreeMap<(usize, Arm), Slot>,
    answers: BTreeMap<(u64, u32), (u64, Vec<Decided>)>,
    number: u64,
}

fn register(state: &mut Option<(u64, u64)>, token: Option<u64>, hold: u64) {
    if let Some(token) = token
        && state.is_none_or(|(largest, _)| token > largest)
    {
        *state = Some((token, hold));
    }
}

/// The rule of the fencing arms.
fn fits(state: Option<(u64, u64)>, token: Option<u64>, hold: u64, strict: bool) -> bool {
    let (Some((largest, by)), Some(token)) = (state, token) else { return true };
    token > largest || (token == largest && by == hold && !strict)
}

impl Resource {
    /// Applies one request: its number, whether it was applied before, and the decisions.
    pub fn apply(&mut self, a: &Access, k: &Knobs, rng: &mut ChaCha8Rng) -> (u64, bool, Vec<Decided>) {
        if let Some(hold) = a.hold
            && let Some((first, decided)) = self.answers.get(&(hold, a.op))
        {
            return (*first, true, decided.clone());
        }
        self.number += 1;
        let number = self.number;
        let decided: Vec<_> = (0..k.arms.len()).map(|i| self.decide(number, a, i, k, rng)).collect();
        if let Some(hold) = a.hold {
            self.answers.insert((hold, a.op), (number, decided.clone()));
        }
        (number, false, decided)
    }

    fn decide(&mut self, number: u64, a: &Access, index: usize, k: &Knobs, rng: &mut ChaCha8Rng) -> Decided {
        let arm = k.arms[index];
        let bug = k.arm_bugs.iter().find(|b| b.0 == arm).map(|b| b.1);
        let slot = self.slots.entry((a.key, arm)).or_default();
        let seen = slot.seen.map(|s| s.0);
        let hold = a.hold.unwrap_or(u64::MAX);
        let mut done = Decided { admitted: true, right: true, seen, base: None, version: 0, value: 0 };
        if a.write {
            let (base, value) = a.base[index];
            let (own, right) = match arm {
                Arm::Off => (true, true),
                Arm::Deadline | Arm::Guard => unreachable!("the model has no wall clocks and no store"),
                Arm::Cas => (base == slot.version, base == slot.version),
                Arm::Claim => (a.hold.is_some() && slot.claim == a.hold, a.hold.is_some() && slot.claim == a.hold),
                Arm::Writes | Arm::Reads => {
                    (fits(slot.seen, a.token, hold, k.strict), fits(slot.due, a.token, hold, k.strict))
                }
            };
            done.admitted = match bug {
                Some(ArmBug::OneTooLow) => match (slot.seen, a.token) {
                    (Some((largest, _)), Some(token)) => token + 1 >= largest,
                    _ => true,
                },
                Some(ArmBug::AdmitsEqual) => match (slot.seen, a.token) {
                    (Some((largest, _)), Some(token)) => token >= largest,
                    _ => true,
                },
                Some(ArmBug::Inverted) => own != (slot.seen.is_some() && rng.random_bool(0.7)),
                Some(ArmBug::Refuses) => own && !rng.random_bool(0.3),
                Some(ArmBug::Blind | ArmBug::AdmitsAll) => true,
                _ => own,
            };
            done.right = done.admitted == right;
            done.base = Some(base);
            if done.admitted {
                slot.version = number;
                slot.value = value + 1;
                if bug == Some(ArmBug::Miscounts) && rng.random_bool(0.4) {
                    slot.value += 1;
                }
                register(&mut slot.seen, a.token, hold);
                register(&mut slot.due, a.token, hold);
            }
        } else if arm == Arm::Claim && a.hold.is_some() {
            slot.claim = a.hold;
        } else if arm == Arm::Reads && a.hold.is_some() {
            register(&mut slot.due, a.token, hold);
            if bug != Some(ArmBug::Forgets) {
                register(&mut slot.seen, a.token, hold);
            }
        }
        done.version = slot.version;
        done.value = slot.value;
        done
    }

    /// The counter of an arm at the end.
    pub fn value(&self, key: usize, arm: Arm) -> u64 {
        self.slots.get(&(key, arm)).map_or(0, |s| s.value)
    }
}
