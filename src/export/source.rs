//! A recorded run as the formats read it: facts about the whole record, and then its records in order.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
};

use checker::Verdicts;
use history::{
    Arm, ArmDecision, ClientId, Event, HistoryError, HoldId, Key, Mode, OpId, Outcome, Plan, Record, RequestKind,
    Stamp, Token,
};

use super::ordered::{Counts, Ordered};
use crate::judge::judge_and_show;

/// The decision of one arm about one access.
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    /// The admission number; of an admitted write also its version.
    pub number: u64,
    /// The version from which a write was computed, if it is on record.
    pub base: Option<u64>,
    /// The version on the arm afterwards.
    pub version: u64,
    /// True if the arm admitted the access.
    pub admitted: bool,
}

/// A recorded run.
pub struct Source {
    history: PathBuf,
    counts: Counts,
    /// The run's id.
    pub run: String,
    /// The plan.
    pub plan: Plan,
    /// The verdicts on the record.
    pub verdicts: Verdicts,
    /// The start of the run's first process: all times count from it.
    pub zero: Stamp,
    /// The keys that clients tried to acquire.
    pub keys: BTreeSet<Key>,
    /// The mode of the first attempt that is not a writer's.
    pub shared: Option<Mode>,
    /// The arm of `decisions`.
    pub arm: Arm,
    /// The accesses of each hold, in order.
    pub sections: HashMap<HoldId, Vec<(OpId, RequestKind)>>,
    /// The decisions of the arm; of a write whose decision is not on record, the answer that its client received.
    pub decisions: HashMap<(HoldId, OpId), Decision>,
    /// Accesses that certainly did not happen.
    pub failed: HashSet<(HoldId, OpId)>,
    /// Accesses whose answer is not on record.
    pub unanswered: HashSet<(HoldId, OpId)>,
    /// The largest admission number.
    pub largest: u64,
}

/// The first pass.
struct Survey {
    counts: Counts,
    run: String,
    zero: Option<Stamp>,
    keys: BTreeSet<Key>,
    shared: Option<Mode>,
    arm: Option<Arm>,
    has_sections: bool,
    sections: HashMap<HoldId, Vec<(OpId, RequestKind)>>,
    decisions: HashMap<(HoldId, OpId), Decision>,
    failed: HashSet<(HoldId, OpId)>,
    unanswered: HashSet<(HoldId, OpId)>,
    largest: u64,
}

impl Survey {
    fn add(&mut self, record: &Record) {
        self.counts.add(record);
        if self.has_sections {
            self.note_answer(&record.event);
        }
        match &record.event {
            Event::Plan { run, plan, .. } => {
                self.run.clone_from(run);
                let usual = plan.arms.iter().find(|arm| **arm == Arm::Off).or(plan.arms.first());
                self.arm = self.arm.or(usual.copied());
            }
            Event::Started { .. } => self.zero = Some(self.zero.map_or(record.at, |zero| zero.min(record.at))),
            Event::Acquire { key, mode, .. } => {
                if !self.keys.contains(key) {
                    self.keys.insert(key.clone());
                }
                self.shared = self.shared.or((!mode.is_write()).then_some(*mode));
            }
            Event::Read { hold, op } if self.has_sections => {
                self.sections.entry(*hold).or_default().push((*op, RequestKind::Read));
            }
            Event::Write { hold, op } if self.has_sections => {
                self.sections.entry(*hold).or_default().push((*op, RequestKind::Write));
            }
            Event::AccessFailed { hold, op, outcome: Outcome::Failed, .. } if self.has_sections => {
                self.failed.insert((*hold, *op));
            }
            Event::Admission { number, hold: Some(hold), op: Some(op), repeat: false, arms, .. }
                if self.has_sections =>
            {
                self.largest = self.largest.max(*number);
                // A request that a restart of the resource undid is decided again, and the later decision counts.
                if let Some(decision) = arms.iter().find(|decision| Some(decision.arm) == self.arm) {
                    let &ArmDecision { base, version, admitted, .. } = decision;
                    self.decisions.insert((*hold, *op), Decision { number: *number, base, version, admitted });
                }
            }
            // The stream of the resource may come later, and a record that was cut may lack its end.
            Event::WriteOk { hold, op, number, arms } if self.has_sections => {
                self.largest = self.largest.max(*number);
                if let Some(answer) = arms.iter().flatten().find(|answer| Some(answer.arm) == self.arm) {
                    let (number, version, admitted) = (*number, *number, answer.admitted);
                    let answered = Decision { number, base: None, version, admitted };
                    self.decisions.entry((*hold, *op)).or_insert(answered);
                }
            }
            _ => {}
        }
    }

    /// Notes that an access has begun, or that its answer is on record.
    fn note_answer(&mut self, event: &Event) {
        match event {
            Event::Read { hold, op } | Event::Write { hold, op } => {
                self.unanswered.insert((*hold, *op));
            }
            Event::ReadOk { hold, op, .. } | Event::WriteOk { hold, op, .. } | Event::AccessFailed { hold, op, .. } => {
                self.unanswered.remove(&(*hold, *op));
            }
            _ => {}
        }
    }
}

impl Source {
    /// Reads a history once, to its end. Only with `has_sections` there are sections and decisions.
    ///
    /// # Errors
    /// Those of `harness check`: the file is no history, is damaged, or has a plan that no run can have.
    pub fn read(history: &Path, arm: Option<Arm>, has_sections: bool) -> anyhow::Result<Source> {
        let mut survey = Survey {
            counts: Counts::default(),
            run: String::new(),
            zero: None,
            keys: BTreeSet::new(),
            shared: None,
            arm,
            has_sections,
            sections: HashMap::new(),
            decisions: HashMap::new(),
            failed: HashSet::new(),
            unanswered: HashSet::new(),
            largest: 0,
        };
        let judged = judge_and_show(history, |record| survey.add(record))?;
        Ok(Source {
            history: history.to_owned(),
            counts: survey.counts,
            run: survey.run,
            plan: judged.plan,
            verdicts: judged.verdicts,
            zero: survey.zero.unwrap_or_default(),
            keys: survey.keys,
            shared: survey.shared,
            arm: survey.arm.unwrap_or(Arm::Off),
            sections: survey.sections,
            decisions: survey.decisions,
            failed: survey.failed,
            unanswered: survey.unanswered,
            largest: survey.largest,
        })
    }

    /// Reads the records again, in the order of their stamps.
    ///
    /// # Errors
    /// The history cannot be opened.
    pub fn ordered(&self) -> Result<Ordered, HistoryError> {
        Ordered::open(&self.history, &self.counts)
    }

    /// Nanoseconds since the start of the run's first process.
    pub fn ns(&self, at: Stamp) -> i64 {
        (at.0 as i64).wrapping_sub(self.zero.0 as i64)
    }
}

/// An attempt, or the hold that came from it.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The client.
    pub client: ClientId,
    /// The key.
    pub key: Key,
    /// The token, from the grant on.
    pub token: Option<Token>,
}

/// The attempts so far.
#[derive(Default)]
pub struct Holds(HashMap<HoldId, Hold>);

impl Holds {
    /// Notes the next event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Acquire { client, attempt, key, .. } => {
                self.0.insert(*attempt, Hold { client: *client, key: key.clone(), token: None });
            }
            Event::Acquired { attempt, token, .. } => {
                if let Some(hold) = self.0.get_mut(attempt) {
                    hold.token = *token;
                }
            }
            _ => {}
        }
    }

    /// The attempt or hold of this id.
    pub fn get(&self, id: HoldId) -> Option<&Hold> {
        self.0.get(&id)
    }
}
