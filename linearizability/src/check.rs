//! The verdict over a history.

use std::collections::BTreeSet;

use crate::{
    holds,
    model::{Model, ModelKind},
    nowhere,
    operation::{Client, History, Operation, Value},
    reason::Reason,
    search::{Search, Searcher},
    text::shortened,
    zones,
};

/// The verdict on a history: linearizable or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An order of the operations explains all answers.
    Linearizable,
    /// No order does.
    NotLinearizable(Conflict),
    /// Nobody knows: the reason.
    Inconclusive(String),
}

/// The place at which all orders of the operations on one object end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The name of the object; [`Value::ABSENT`] in a history of one object.
    pub object: Value,
    /// The reason: no order can have this.
    pub reason: Reason,
}

impl Conflict {
    /// The reason in one sentence, with the lines of the operations.
    pub fn words(&self, history: &History) -> String {
        let operations = history.objects.iter().find(|(object, _)| *object == self.object);
        let words = |index: usize| {
            let operation = operations.and_then(|(_, operations)| operations.get(index));
            operation.map_or_else(String::new, |operation| history.words(operation))
        };
        match &self.reason {
            Reason::FromNowhere(read) => {
                format!("nobody can have written the value of {} before its answer", words(*read))
            }
            Reason::TwoValues { from, to, between: [first, last] } => {
                let from = from.map_or_else(|| "the start".to_owned(), words);
                let and = if first == last { String::new() } else { format!(" and {}", words(*last)) };
                format!(
                    "the register had one value from {from} to {}, but between the two it must have had another: \
                     {}{and}",
                    words(*to),
                    words(*first)
                )
            }
            Reason::TwoHolders(first, second) => {
                format!("two clients held the lock at the same time: {} and {}", words(*first), words(*second))
            }
            Reason::NeverHeld { release, acquire } => format!(
                "{} was answered, but another client held the lock all the time: {}",
                words(*release),
                words(*acquire)
            ),
            Reason::NoOrder { operation, states } => format!(
                "no order of the operations up to the answer of {} explains it; without it, orders end in these \
                 states: {}",
                words(*operation),
                states.join(", ")
            ),
        }
    }
}

/// How a history is judged.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The kind of the objects.
    pub model: ModelKind,
    /// The value of each object at the start. Not for locks: they are free.
    pub initial: Value,
    /// Bytes that the search may need for one object, about.
    pub memory: usize,
    /// Steps that the searches may do for all objects together, about: operations and configurations that they look at.
    pub steps: u64,
}

/// The way in which the verdict over one object was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The zones of a register with unique values.
    Zones,
    /// The holds of a lock whose clients acquire and release in turn.
    Holds,
    /// The search of Wing, Gong and Lowe.
    Search,
}

/// The part of the steps that all objects together get at first: one in so many.
const FIRST_SHARE: u64 = 16;

/// Judges a history: each object alone, because a history is linearizable exactly if that of each object is (Herlihy
/// and Wing, *Linearizability*, 1990, theorem 1). An object that is not linearizable ends the check.
///
/// Each object first gets a small share of the steps. So an object whose search uses up all steps hides no violation
/// that is found soon in another object, in whatever order the file has them.
pub fn check(history: &History, options: &Options) -> Verdict {
    let mut inconclusive = None;
    if history.silent + history.ignored == 0 && history.objects.iter().all(|(_, operations)| operations.is_empty()) {
        return Verdict::Inconclusive("the history has no operation".to_owned());
    }
    // A read of nil says nothing about most objects, but it is a right answer of one that was nil at the start.
    let is_answered = history.count().0 > 0 || (history.nil_reads > 0 && options.initial == Value::ABSENT);
    if !is_answered {
        return Verdict::Inconclusive("no operation has an answer that can be judged".to_owned());
    }
    let mut left = options.steps;
    let share = match history.objects.len() {
        1 => options.steps,
        objects => options.steps / (FIRST_SHARE * objects as u64).max(1),
    };
    let mut undecided = Vec::new();
    for (object, operations) in &history.objects {
        let is_sorted = operations.is_sorted_by(|one, other| one.call < other.call);
        if !is_sorted
            || operations.iter().any(|operation| operation.answer.is_some_and(|answer| answer <= operation.call))
        {
            let reason = "the operations of an object are not sorted by their calls, or an answer is before its call";
            return Verdict::Inconclusive(reason.to_owned());
        }
        let mut of_share = share;
        let verdict = check_object(history, *object, operations, options, &mut of_share, None);
        left -= share - of_share;
        match verdict {
            Verdict::Linearizable => {}
            Verdict::Inconclusive(_) if of_share == 0 => undecided.push((*object, operations)),
            Verdict::Inconclusive(reason) => inconclusive = Some(reason),
            verdict @ Verdict::NotLinearizable(_) => return verdict,
        }
    }
    for (object, operations) in undecided {
        match check_object(history, object, operations, options, &mut left, None) {
            Verdict::Linearizable => {}
            Verdict::Inconclusive(reason) => inconclusive = Some(reason),
            verdict @ Verdict::NotLinearizable(_) => return verdict,
        }
    }
    if let Some(client) = taken_for_several(history).filter(|_| options.model.has_owner()) {
        inconclusive.get_or_insert_with(|| {
            format!(
                "the record names owners of the lock, but not that of process {}, which has several operations: an \
                 order exists, but perhaps only if they are of different owners",
                shortened(&history.clients[client.0 as usize])
            )
        });
    }
    inconclusive.map_or(Verdict::Linearizable, Verdict::Inconclusive)
}

/// A client that can be any owner and has several operations. The search takes each of them for one of any owner, so an
/// order that it finds may need two owners. One operation has one owner.
fn taken_for_several(history: &History) -> Option<Client> {
    let mut seen = BTreeSet::new();
    let operations = history.objects.iter().flat_map(|(_, operations)| operations);
    let clients = operations.map(|operation| operation.client);
    clients.filter(|client| history.unnamed.contains(client)).find(|client| !seen.insert(*client))
}

/// The fastest exact method for operations on one object.
fn method(history: &History, operations: &[Operation], options: &Options) -> Method {
    match options.model {
        ModelKind::Register if zones::fits(operations, options.initial) => Method::Zones,
        ModelKind::OwnerMutex if history.unnamed.is_empty() && holds::pair(operations).is_some() => Method::Holds,
        _ => Method::Search,
    }
}

/// Judges the operations on one object, which must be sorted by their calls, by the fastest method, or by the given one
/// if that is possible. Takes the steps of a search from those that are left.
pub(crate) fn check_object(
    history: &History,
    object: Value,
    operations: &[Operation],
    options: &Options,
    left: &mut u64,
    forced: Option<Method>,
) -> Verdict {
    let conflict = |reason: Reason| Verdict::NotLinearizable(Conflict { object, reason });
    match forced.unwrap_or_else(|| method(history, operations, options)) {
        Method::Zones => zones::check(operations, options.initial).map_or_else(conflict, |()| Verdict::Linearizable),
        Method::Holds => {
            let holds = holds::pair(operations).unwrap_or_default();
            holds::check(operations, &holds).map_or_else(conflict, |()| Verdict::Linearizable)
        }
        Method::Search => {
            // Tests force the search to compare it alone.
            if forced.is_none()
                && let Err(reason) = nowhere::check(history, operations, options.initial)
            {
                return conflict(reason);
            }
            let mut model = Model::new(options.model, options.initial, history);
            let (search, done) = Searcher::new(&mut model, operations, options.memory, *left).run();
            *left = left.saturating_sub(done);
            match search {
                Search::Ordered => Verdict::Linearizable,
                Search::Stuck { operation, states } => {
                    let states = states.iter().map(|state| model.words(*state)).collect();
                    conflict(Reason::NoOrder { operation, states })
                }
                Search::TooLarge => Verdict::Inconclusive(format!(
                    "the search needs more than {} MiB: too many operations overlap or have no answer, appends made \
                     long values, or the history is too long",
                    options.memory >> 20
                )),
                Search::TooLong => Verdict::Inconclusive(format!(
                    "the searches over all objects need more than {} steps: too many operations overlap or have no \
                     answer",
                    options.steps
                )),
            }
        }
    }
}
