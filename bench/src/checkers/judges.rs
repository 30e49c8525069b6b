//! The checkers of this project, and stateright, on a record of a correct lock.

use std::{fs::File, path::Path};

use anyhow::{Context, ensure};
use checker::{Checker, Verdict};
use history::ReadAhead;
use linearizability::{Action, Asked, Format, History};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// A checker that is a library in this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// All properties of a run, as in `harness check`.
    Run,
    /// The crate `linearizability`, by holds, as in `harness check --format jepsen-edn`.
    Holds,
    /// The tester of the crate `stateright`.
    Stateright,
}

impl Judge {
    pub const ALL: [Judge; 3] = [Judge::Run, Judge::Holds, Judge::Stateright];

    pub fn name(self) -> &'static str {
        match self {
            Judge::Run => "run",
            Judge::Holds => "holds",
            Judge::Stateright => "stateright",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Judge::Run => "the checker, every property",
            Judge::Holds => "the crate `linearizability`, owner-mutex",
            Judge::Stateright => "stateright 0.31.0",
        }
    }

    pub fn named(name: &str) -> Option<Judge> {
        Judge::ALL.into_iter().find(|judge| judge.name() == name)
    }

    pub fn titled(title: &str) -> Option<Judge> {
        Judge::ALL.into_iter().find(|judge| judge.title() == title)
    }

    /// Returns whether the checker judges records of runs, and not only calls and answers of clients.
    pub fn is_of_runs(self) -> bool {
        self == Judge::Run
    }

    /// Judges a record, and returns `linearizable` if it is right.
    ///
    /// # Errors
    /// The file is no record that this checker reads.
    pub fn verdict(self, file: &Path) -> anyhow::Result<&'static str> {
        let is_right = match self {
            Judge::Run => is_upheld(file)?,
            Judge::Holds => {
                let (history, options) = read(file)?;
                linearizability::check(&history, &options) == linearizability::Verdict::Linearizable
            }
            Judge::Stateright => {
                let (history, _) = read(file)?;
                tested(&history)?
            }
        };
        Ok(if is_right { "linearizable" } else { "not linearizable" })
    }
}

fn is_upheld(file: &Path) -> anyhow::Result<bool> {
    let mut checker = Checker::new();
    let mut reader = ReadAhead::open(file)?;
    for record in reader.by_ref() {
        checker.feed(record?);
    }
    let verdicts = checker.finish(reader.tail());
    let is_wrong = |verdict| matches!(verdict, Verdict::Violated | Verdict::Inconclusive);
    Ok(verdicts.reasons.is_empty() && verdicts.properties.iter().all(|(_, property)| !is_wrong(property.verdict())))
}

fn read(file: &Path) -> anyhow::Result<(History, linearizability::Options)> {
    let asked = Asked { model: Some(linearizability::ModelKind::OwnerMutex), initial: None };
    Ok(linearizability::read(Format::JepsenEdn, File::open(file)?, asked)?)
}

/// A lock that only its holder can release.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct OwnerMutex {
    holder: Option<u64>,
}

/// An operation and its client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Does {
    Acquire(u64),
    Release(u64),
}

impl SequentialSpec for OwnerMutex {
    type Op = Does;
    /// True if the lock did it.
    type Ret = bool;

    fn invoke(&mut self, op: &Does) -> bool {
        match *op {
            Does::Acquire(client) if self.holder.is_none() => self.holder = Some(client),
            Does::Release(client) if self.holder == Some(client) => self.holder = None,
            _ => return false,
        }
        true
    }
}

/// Returns whether the tester of stateright finds an order of the operations.
fn tested(history: &History) -> anyhow::Result<bool> {
    let mut events = Vec::new();
    for operation in history.objects.iter().flat_map(|(_, operations)| operations) {
        let client = u64::from(operation.client.0);
        let does = match operation.action {
            Action::Acquire(_) => Does::Acquire(client),
            Action::Release => Does::Release(client),
            _ => anyhow::bail!("the record has operations of something else than a lock"),
        };
        let answer = operation.answer.context("the record has an operation without an answer")?;
        events.extend([(operation.call, client, Some(does)), (answer, client, None)]);
    }
    events.sort_unstable_by_key(|(position, ..)| *position);
    let mut tester = LinearizabilityTester::new(OwnerMutex::default());
    for (_, client, call) in events {
        let taken = match call {
            Some(does) => tester.on_invoke(client, does).map(|_| ()),
            None => tester.on_return(client, true).map(|_| ()),
        };
        ensure!(taken.is_ok(), "stateright refuses the record: {taken:?}");
    }
    Ok(tester.is_consistent())
}
