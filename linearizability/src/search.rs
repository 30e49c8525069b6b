//! The general search: Wing and Gong's algorithm with Lowe's memory of what was tried.
//!
//! It looks for an order of the operations in which the object gives every answer, and in which each operation lies
//! between its call and its answer. A configuration is the set of the operations that are ordered so far, with the
//! state of the object; a configuration that was left without success is never tried again. Wing and Gong, *Testing and
//! verifying concurrent objects* (1993); Lowe, *Testing for linearizability* (2017).
//!
//! Three rules keep the number of configurations small. None of them loses an order that exists:
//!
//! - An observation (a read, a refused compare-and-set) that fits the state is ordered at once. In any order of the
//!   rest it can be moved to this place.
//! - Operations without an answer that do the same (`write 3` by three clients that crashed) are counted, not named.
//!   A configuration that used more of them than one that failed fails too.
//! - An operation without an answer is ordered only if the next step needs its effect.
//!
//! A search that needs too much memory begins again, in parts: it finds all configurations in which the first part of
//! the history can end, forgets what it tried, and goes on from these. A violation at the end of a long history needs
//! all configurations of the history, but only those of one part at a time.

use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use crate::{
    model::{Model, State},
    operation::{Action, Client, Operation},
};

/// How the search ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Search {
    /// An order exists.
    Ordered,
    /// No order exists, and not even for the part of the history up to the answer of the operation with this index.
    Stuck {
        /// Index of the operation that no order can answer in time.
        operation: usize,
        /// States that the object can have before its answer, some of them.
        states: Vec<State>,
    },
    /// The search needs more memory than it was given.
    TooLarge,
    /// The search needs more steps than it was given.
    TooLong,
}

/// Operations without an answer that do the same, by the positions of their calls.
struct Alike {
    client: Client,
    action: Action,
    calls: Vec<u64>,
}

/// The operations that are ordered: those before `end`, except those in `missing`. A missing operation had no answer
/// yet at the call of the last operation before `end`. So only operations that overlap are named, even if one of them
/// lasts as long as the history.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Ordered {
    end: u32,
    /// Sorted.
    missing: Box<[u32]>,
    state: State,
}

impl Ordered {
    /// Adds an operation to those that are ordered.
    fn add(&mut self, index: u32) {
        let missing = self.missing.iter().copied();
        if index < self.end {
            self.missing = missing.filter(|known| *known != index).collect();
            return;
        }
        if index > self.end {
            self.missing = missing.chain(self.end..index).collect();
        }
        self.end = index + 1;
    }
}

/// The operations that are ordered: those with an answer, and how many of each group without one.
type Configuration = (Ordered, Box<[u32]>);

/// Bytes of a configuration and of its place in a list, about.
fn bytes(ordered: &Ordered, used: &[u32]) -> usize {
    128 + 4 * (ordered.missing.len() + used.len())
}

/// Answers of one part of a history that is searched in parts.
const PART: usize = 32;

/// A configuration on the way to the present one, with the steps that were not tried yet.
struct Frame {
    ordered: Ordered,
    used: Box<[u32]>,
    steps: Vec<Step>,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Order the operation with this index.
    Answered(u32),
    /// Order one of these operations without an answer.
    Open(u32),
}

pub(crate) struct Searcher<'a, 'b> {
    model: &'a mut Model<'b>,
    /// Operations with an answer, by their calls.
    answered: Vec<(usize, Operation)>,
    alike: Vec<Alike>,
    /// The groups in `alike` that are no writes, so that a state can be needed by them.
    needing: Vec<usize>,
    /// For each set of ordered operations and state, what was used of the open ones when it was left without success.
    tried: FxHashMap<Ordered, Vec<Box<[u32]>>>,
    bytes: usize,
    /// Bytes that the search may need, about.
    memory: usize,
    /// Steps that were done: operations, groups of operations without an answer, and failed configurations that were
    /// looked at. A count and not a clock, so that a file gets the same verdict on every machine.
    done: u64,
    /// Steps that the search may do.
    most: u64,
    /// The latest answer that an order must reach next, of all configurations, with the states before it.
    deepest: (u64, u32, Vec<State>),
}

impl<'a, 'b> Searcher<'a, 'b> {
    /// A search that may need about `memory` bytes, and do about `most` steps.
    pub(crate) fn new(
        model: &'a mut Model<'b>,
        operations: &[Operation],
        memory: usize,
        most: u64,
    ) -> Searcher<'a, 'b> {
        let mut answered: Vec<(usize, Operation)> = Vec::new();
        let mut by_action: FxHashMap<(Option<u64>, Action), usize> = FxHashMap::default();
        let mut alike: Vec<Alike> = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            if operation.answer.is_some() {
                answered.push((index, *operation));
                continue;
            }
            // An observation without an answer observed nothing.
            if operation.action.is_observation() {
                continue;
            }
            let is_of_lock = matches!(operation.action, Action::Acquire(_) | Action::Release);
            let holder = is_of_lock.then(|| model.holder(operation.client));
            let place = *by_action.entry((holder, operation.action)).or_insert_with(|| {
                alike.push(Alike { client: operation.client, action: operation.action, calls: Vec::new() });
                alike.len() - 1
            });
            alike[place].calls.push(operation.call);
        }
        answered.sort_unstable_by_key(|(_, operation)| operation.call);
        alike.iter_mut().for_each(|alike| alike.calls.sort_unstable());
        let needing = (0..alike.len()).filter(|class| needs(alike[*class].action)).collect();
        let (tried, deepest) = Default::default();
        Searcher { model, answered, alike, needing, tried, bytes: 0, memory, done: 0, most, deepest }
    }

    /// Looks for an order of all operations that have an answer, and of as many others as that needs. Returns also the
    /// number of steps that were done.
    pub(crate) fn run(mut self) -> (Search, u64) {
        let search = match self.search(&[u64::MAX]) {
            Search::TooLarge if self.answered.len() > PART => self.search(&self.parts()),
            search => search,
        };
        (search, self.done)
    }

    /// The ends of the parts of the history: the answers of some operations.
    fn parts(&self) -> Vec<u64> {
        let mut ends: Vec<u64> = self.answered.iter().filter_map(|(_, operation)| operation.answer).collect();
        ends.sort_unstable();
        ends.into_iter().skip(PART).step_by(PART).chain([u64::MAX]).collect()
    }

    /// Searches each part from the configurations in which the part before it can end. Every order goes through one of
    /// them: the first one that has all operations whose answers are in the part. So only one part is in memory.
    pub(crate) fn search(&mut self, ends: &[u64]) -> Search {
        // The texts that an earlier search made would count as memory of this one.
        self.model.forget();
        self.deepest = Default::default();
        let start = Ordered { end: 0, missing: Box::default(), state: self.model.initial() };
        let mut starts = vec![(start, vec![0; self.alike.len()].into_boxed_slice())];
        for end in ends {
            starts = match self.explore(starts, *end) {
                Ok(starts) => starts,
                Err(search) => return search,
            };
        }
        let (_, operation, states) = std::mem::take(&mut self.deepest);
        let operation = self.answered[operation as usize].0;
        Search::Stuck { operation, states }
    }

    /// The first configurations after `starts` in which all operations are ordered whose answers are not after `end`.
    /// An error is the end of the whole search.
    fn explore(&mut self, mut starts: Vec<Configuration>, end: u64) -> Result<Vec<Configuration>, Search> {
        self.tried = FxHashMap::default();
        self.bytes = starts.iter().map(|(ordered, used)| bytes(ordered, used)).sum();
        let (mut frames, mut ended): (Vec<Frame>, Vec<Configuration>) = Default::default();
        let mut next: Option<Configuration> = None;
        loop {
            self.done += 1;
            if self.done > self.most {
                return Err(Search::TooLong);
            }
            if let Some((mut ordered, used)) = next.take() {
                self.observe(&mut ordered);
                if ordered.missing.is_empty() && ordered.end as usize == self.answered.len() {
                    return Err(Search::Ordered);
                }
                let is_new = self.is_new(&ordered, &used);
                if is_new && end < u64::MAX && self.candidates(&ordered).1 > end {
                    self.bytes += bytes(&ordered, &used);
                    ended.push((ordered, used));
                } else if is_new {
                    let steps = self.steps(&ordered, &used);
                    let bytes = bytes(&ordered, &used) + 8 * steps.capacity();
                    self.bytes += bytes;
                    frames.push(Frame { ordered, used, steps, bytes });
                }
                if self.bytes + self.model.bytes() > self.memory {
                    return Err(Search::TooLarge);
                }
            }
            let Some(frame) = frames.last_mut() else {
                next = starts.pop();
                if next.is_none() {
                    return Ok(ended);
                }
                continue;
            };
            let Some(step) = frame.steps.pop() else {
                self.bytes -= frame.bytes;
                frames.pop();
                continue;
            };
            next = self.after(&frame.ordered, &frame.used, step);
        }
    }

    /// The configuration after one more step.
    fn after(&mut self, ordered: &Ordered, used: &[u32], step: Step) -> Option<Configuration> {
        let (client, action) = match step {
            Step::Answered(index) => {
                let operation = self.answered[index as usize].1;
                (operation.client, operation.action)
            }
            Step::Open(class) => (self.alike[class as usize].client, self.alike[class as usize].action),
        };
        let state = self.model.step(ordered.state, client, action)?;
        let mut ordered = Ordered { state, ..ordered.clone() };
        match step {
            Step::Answered(index) => {
                ordered.add(index);
                Some((ordered, used.into()))
            }
            // Most such steps end here, so the counts are copied only afterwards.
            Step::Open(class) => self.is_needed(&ordered, used, class as usize).then(|| {
                let mut used: Box<[u32]> = used.into();
                used[class as usize] += 1;
                (ordered, used)
            }),
        }
    }

    /// The operations with an answer that can be next, and the first answer of all that are not ordered.
    fn candidates(&mut self, ordered: &Ordered) -> (Vec<u32>, u64) {
        let (mut found, mut end) = (Vec::new(), u64::MAX);
        let len = self.answered.len() as u32;
        for index in ordered.missing.iter().copied().chain(ordered.end..len) {
            self.done += 1;
            let operation = &self.answered[index as usize].1;
            if operation.call > end {
                break;
            }
            end = end.min(operation.answer.unwrap_or(u64::MAX));
            found.push(index);
        }
        (found, end)
    }

    /// Orders every observation that fits the state.
    fn observe(&mut self, ordered: &mut Ordered) {
        loop {
            let (found, _) = self.candidates(ordered);
            let mut is_done = true;
            for index in found {
                let operation = self.answered[index as usize].1;
                if operation.action.is_observation()
                    && self.model.step(ordered.state, operation.client, operation.action).is_some()
                {
                    ordered.add(index);
                    is_done = false;
                }
            }
            // An observation can be the one whose answer kept others back. The caller looks at the number of steps.
            if is_done || self.done > self.most {
                return;
            }
        }
    }

    /// Returns whether the state that an operation without an answer made is seen by the next step. `taken` is the
    /// group of this operation, which `used` does not count yet.
    fn is_needed(&mut self, ordered: &Ordered, used: &[u32], taken: usize) -> bool {
        let (found, end) = self.candidates(ordered);
        // Writes without an answer can be many, so they are not looked at here.
        self.done += self.needing.len() as u64;
        let answered = found.iter().map(|index| self.answered[*index as usize].1);
        let open = self.needing.iter().copied().filter(|class| {
            let used = used[*class] + u32::from(*class == taken);
            self.alike[*class].is_left(used, end)
        });
        let steps: Vec<(Client, Action)> = answered
            .map(|operation| (operation.client, operation.action))
            .filter(|(_, action)| needs(*action))
            .chain(open.map(|class| (self.alike[class].client, self.alike[class].action)))
            .collect();
        steps.into_iter().any(|(client, action)| self.model.step(ordered.state, client, action).is_some())
    }

    /// The steps that are possible, the best one last.
    fn steps(&mut self, ordered: &Ordered, used: &[u32]) -> Vec<Step> {
        let (found, end) = self.candidates(ordered);
        self.note(&found, end, ordered.state);
        self.done += used.len() as u64;
        let mut steps: Vec<Step> = Vec::new();
        for (class, used) in used.iter().enumerate() {
            let alike = &self.alike[class];
            if alike.is_left(*used, end) {
                let (client, action) = (alike.client, alike.action);
                let next = self.model.step(ordered.state, client, action);
                if next.is_some_and(|next| next != ordered.state) {
                    steps.push(Step::Open(class as u32));
                }
            }
        }
        let mut by_answer: BinaryHeap<(u64, u32)> = BinaryHeap::new();
        for index in found {
            let operation = self.answered[index as usize].1;
            let is_possible = self.model.step(ordered.state, operation.client, operation.action).is_some();
            if is_possible {
                by_answer.push((operation.answer.unwrap_or(u64::MAX), index));
            }
        }
        // The one that must be first is tried first, so it is last in the list.
        while let Some((_, index)) = by_answer.pop() {
            steps.push(Step::Answered(index));
        }
        steps
    }

    /// Keeps the configurations that came furthest, to tell where all orders end.
    fn note(&mut self, found: &[u32], end: u64, state: State) {
        let blocking = found.iter().find(|index| self.answered[**index as usize].1.answer == Some(end));
        let Some(blocking) = blocking else { return };
        let (furthest, _, states) = &mut self.deepest;
        if end > *furthest {
            self.deepest = (end, *blocking, vec![state]);
        } else if end == *furthest && states.len() < 8 && !states.contains(&state) {
            states.push(state);
        }
    }

    /// Returns whether no configuration that could do at least as much was tried before; remembers this one.
    fn is_new(&mut self, ordered: &Ordered, used: &[u32]) -> bool {
        let done = &mut self.done;
        // Few numbers are compared in the time of one other step.
        let mut does_less = |one: &[u32], other: &[u32]| {
            let more = one.iter().zip(other).position(|(one, other)| one < other);
            *done += 1 + more.unwrap_or(one.len()) as u64 / 8;
            more.is_none()
        };
        match self.tried.get_mut(ordered) {
            Some(tried) => {
                if tried.iter().any(|tried| does_less(used, tried)) {
                    return false;
                }
                tried.retain(|tried| !does_less(tried, used));
                tried.push(used.into());
            }
            None => {
                self.bytes += 88 + 4 * ordered.missing.len();
                self.tried.insert(ordered.clone(), vec![used.into()]);
            }
        }
        self.bytes += 24 + 4 * used.len();
        true
    }
}

/// Returns whether an operation needs a state: a write takes place in any.
fn needs(action: Action) -> bool {
    !matches!(action, Action::Write(_))
}

impl Alike {
    /// Returns whether one more of them was called before `end`.
    fn is_left(&self, used: u32, end: u64) -> bool {
        self.calls.get(used as usize).is_some_and(|call| *call < end)
    }
}
