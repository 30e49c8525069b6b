//! The signal of a run: the small facts that its history shows. A plan whose run shows a fact for the first time is
//! worth changing further.
//!
//! The facts are the states of holds, the states of two holds of one key at the same time, the answers of lock nodes
//! and resource, and the order of all of these and the phases of faults. Each fact sets one bit of a map, as in AFL
//! (Zalewski, 2013). Two facts that share a bit are not distinguished.

use std::collections::BTreeMap;

use history::{Answers, Event, FaultKind, FaultPhase, HoldId, Key, NodeAnswer, NodeName, Record};

/// The number of bits.
const BITS: usize = 1 << 16;

/// The facts of one run, or of many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    facts: Box<[u64]>,
    /// The number of records: a measure of the time that the simulation takes.
    pub records: u32,
}

impl Default for Signal {
    fn default() -> Signal {
        Signal { facts: vec![0; BITS / 64].into_boxed_slice(), records: 0 }
    }
}

impl Signal {
    fn set(&mut self, fact: &[u32]) {
        // FNV-1a (Fowler, Noll, Vo) over words, and a last mix of its upper bits.
        let hash = fact.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
            (hash ^ u64::from(*word)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let bit = (hash ^ (hash >> 29) ^ (hash >> 47)) as usize % BITS;
        self.facts[bit / 64] |= 1 << (bit % 64);
    }

    /// Adds the facts of a run. Returns the number of facts that no earlier run has shown.
    pub fn add(&mut self, run: &Signal) -> u32 {
        let mut new = 0;
        for (all, run) in self.facts.iter_mut().zip(&run.facts) {
            new += (run & !*all).count_ones();
            *all |= run;
        }
        new
    }
}

/// The last two states of a hold or attempt, and its key.
#[derive(Debug, Clone, Copy)]
struct Life {
    key: u32,
    last: [u32; 2],
}

/// Gathers the signal of one run.
#[derive(Debug, Default)]
pub struct Watch {
    signal: Signal,
    keys: BTreeMap<Key, u32>,
    lives: BTreeMap<HoldId, Life>,
    /// The hold of each key that changed its state last, and the other hold that did so before.
    latest: Vec<[Option<HoldId>; 2]>,
    /// Faults that are on.
    on: Vec<(u32, FaultKind, NodeName)>,
    last_admission: u32,
    records: u32,
}

impl Watch {
    /// Takes the next record of the history.
    pub fn see(&mut self, record: &Record) {
        self.records += 1;
        if let Some((hold, state)) = self.state(&record.event) {
            self.enters(hold, state, record);
        } else if let Event::Fault { fault, kind, node, phase } = &record.event {
            self.fault(fault.0, *kind, node, phase);
        }
    }

    /// Returns the facts.
    pub fn signal(self) -> Signal {
        Signal { records: self.records, ..self.signal }
    }

    fn fault(&mut self, id: u32, kind: FaultKind, node: &NodeName, phase: &FaultPhase) {
        let phase = match phase {
            FaultPhase::Injected => {
                self.on.push((id, kind, node.clone()));
                1
            }
            FaultPhase::Healed => {
                self.on.retain(|(on, ..)| *on != id);
                2
            }
            FaultPhase::Proved { .. } => 3,
            FaultPhase::Unproved { .. } => 4,
            FaultPhase::MissedTarget => 5,
            _ => return,
        };
        let others = self.on.iter().filter(|(on, ..)| *on != id).map(|(_, kind, _)| 1 << (*kind as u32)).sum::<u32>();
        for latest in &self.latest {
            let last = latest[0].and_then(|hold| self.lives.get(&hold)).map_or(0, |life| life.last[0]);
            self.signal.set(&[1, kind as u32, phase, others, last]);
        }
    }

    /// A hold or an attempt enters a state.
    fn enters(&mut self, hold: HoldId, state: u32, record: &Record) {
        let Some(life) = self.lives.get_mut(&hold) else { return };
        let [last, before] = life.last;
        life.last = [state, last];
        let key = life.key as usize;
        self.signal.set(&[2, before, last, state]);
        if self.latest.len() <= key {
            self.latest.resize(key + 1, [None; 2]);
        }
        let latest = &mut self.latest[key];
        if latest[0] != Some(hold) {
            *latest = [Some(hold), latest[0]];
        }
        let other = latest[1].and_then(|other| self.lives.get(&other)).map_or(0, |other| other.last[0]);
        self.signal.set(&[3, last, state, other]);
        if !self.on.is_empty() {
            let node = record.process.node();
            for (_, kind, target) in &self.on {
                self.signal.set(&[4, last, state, other, *kind as u32, u32::from(*target == node)]);
            }
        }
    }

    /// Returns the hold or attempt that an event is about, and its new state.
    fn state(&mut self, event: &Event) -> Option<(HoldId, u32)> {
        let state = |number: u32, detail: u32| number | detail << 8;
        Some(match event {
            Event::Acquire { attempt, key, .. } => {
                let next = self.keys.len() as u32;
                let key = *self.keys.entry(key.clone()).or_insert(next);
                self.lives.insert(*attempt, Life { key, last: [0; 2] });
                (*attempt, 1)
            }
            Event::WriteBack { attempt } => (*attempt, 2),
            Event::Acquired { attempt, answers, .. } => (*attempt, state(3, counts(answers))),
            Event::Behind { attempt } => (*attempt, 4),
            Event::WithoutKey { attempt } => (*attempt, 5),
            Event::AcquireFailed { attempt, why, answers, .. } => (*attempt, state(6 + *why as u32, counts(answers))),
            Event::Undo { attempt } => (*attempt, 16),
            Event::Undone { attempt, answers } => (*attempt, state(17, counts(answers))),
            Event::Renew { hold } => (*hold, 18),
            Event::Renewed { hold, answers, .. } => (*hold, state(19, counts(answers))),
            Event::RenewFailed { hold, why, answers, .. } => (*hold, state(20 + *why as u32, counts(answers))),
            Event::LossNoticed { hold } => (*hold, 30),
            Event::Release { hold } => (*hold, 31),
            Event::Released { hold, removed, answers } => (*hold, state(32 + u32::from(*removed), counts(answers))),
            Event::ReleaseFailed { hold, why, answers, .. } => (*hold, state(34 + *why as u32, counts(answers))),
            Event::GaveUp { hold } => (*hold, 44),
            Event::Read { hold, .. } => (*hold, 45),
            Event::ReadOk { hold, .. } => (*hold, 46),
            Event::AccessFailed { hold, outcome, .. } => (*hold, 47 + *outcome as u32),
            Event::Check { hold, passed } => (*hold, 49 + u32::from(*passed)),
            Event::Write { hold, .. } => (*hold, 51),
            Event::Resend { hold, .. } => (*hold, 52),
            Event::WriteOk { hold, .. } => (*hold, 53),
            Event::Admission { hold: Some(hold), kind, repeat, arms, .. } => {
                let admitted = arms.iter().fold(0, |all, arm| all << 1 | u32::from(arm.admitted));
                let admission = state(54 + *kind as u32 + 2 * u32::from(*repeat), admitted);
                self.signal.set(&[5, self.last_admission, admission]);
                self.last_admission = admission;
                (*hold, admission)
            }
            _ => return None,
        })
    }
}

/// Counts the answers of the nodes: how many granted or did it, how many refused, how many were late.
fn counts(answers: &Answers) -> u32 {
    let count = |is: fn(&NodeAnswer) -> bool| answers.iter().filter(|(_, answer)| is(answer)).count().min(7) as u32;
    let done = count(|answer| matches!(answer, NodeAnswer::Granted | NodeAnswer::Done));
    done | count(|answer| *answer == NodeAnswer::Refused) << 3 | count(|answer| *answer == NodeAnswer::Late) << 6
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use history::Reader;

    use super::*;

    fn signal(history: &str, records: usize) -> Signal {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("checker/tests/corpus").join(history);
        let mut watch = Watch::default();
        Reader::open(&corpus).unwrap().map(Result::unwrap).take(records).for_each(|record| watch.see(&record));
        watch.signal()
    }

    #[test]
    fn the_same_run_shows_nothing_new_and_a_longer_one_does() {
        let mut all = Signal::default();
        let (half, whole) = (signal("kleppmann-pause.jsonl", 20), signal("kleppmann-pause.jsonl", usize::MAX));
        assert!(all.add(&half) > 0);
        assert_eq!(all.add(&half), 0);
        assert!(all.add(&whole) > 0);
        assert_eq!(all.add(&half) + all.add(&whole), 0);
    }
}
