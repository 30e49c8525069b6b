//! The port between the sweep and a property: the property sees each event once, and gives its verdicts at the end.

use history::{Arm, HoldId, Plan, Stamp};
use rustc_hash::FxHashMap;

use crate::{
    entry::Entry,
    facts::Facts,
    holds::{Attempt, EventRef},
    report::Report,
    run::Run,
};

/// Judges one property while the sweep goes by.
///
/// Events come in the order of their stamps. The order of events with one stamp must not matter:
/// [`Judge::on_stamp_complete`] follows when all of them have been seen.
pub(crate) trait Judge: Sized {
    /// The name in `verdict.json`; a property of an arm has the arm's name and a dot before it.
    const NAME: &'static str;
    /// One line of documentation.
    const ABOUT: &'static str;
    /// The property's part of `verdict.json`.
    type Verdict: Report;

    /// A judge of a run with this plan that has seen nothing.
    fn new(plan: &Plan) -> Self;

    /// An event that [`subject::is_use`](crate::subject::is_use) does not know; the shared state already contains it.
    fn on_event(&mut self, run: &Run, entry: &Entry);

    /// An event that only shows how a client uses a hold; the shared state already contains it. Half of all events are
    /// such, and few judges look at them.
    fn on_use(&mut self, _run: &Run, _entry: &Entry) {}

    /// An admission that the resource had forgotten when it was started again: it changed nothing.
    fn on_undone(&mut self, _run: &Run, _entry: &Entry) {}

    /// A hold's entitlement has ended at `end`, or the judged record ends there. Holds that end later are still among
    /// [`Run::live`].
    fn on_entitlement_end(&mut self, _run: &Run, _hold: &Attempt, _end: Stamp) {}

    /// Completes a stamp: all its events have been seen.
    fn on_stamp_complete(&mut self, _run: &Run) {}

    /// No later event can concern the attempt; the shared state has dropped it.
    fn on_attempt_closed(&mut self, _run: &Run, _attempt: &Attempt) {}

    /// No attempt of the key is open, and none can act any more: every later hold of the key is later than every former
    /// one, and was sent after all stamps so far. A judge drops the facts about the key that can matter to no later
    /// hold, so that its memory grows with the keys in use.
    fn on_key_quiet(&mut self, _run: &Run, _key: usize) {}

    /// Requests that took effect on a node where another attempt was the owner: they may be the cause of a window.
    fn unsafe_requests(&self, _run: &Run) -> Vec<UnsafeRequest> {
        Vec::new()
    }

    /// The verdicts, with the arm of each where the property is one of an arm. Fills in the facts that this judge
    /// counts.
    fn finish(self, run: &Run, ending: &Ending, facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)>;
}

/// Results of the whole sweep that every judge gets at the end.
pub(crate) struct Ending {
    /// True if the record was judged to its end.
    pub is_whole: bool,
    /// Unsafe requests of all judges.
    pub unsafe_requests: Vec<UnsafeRequest>,
    /// The places of those that took a key from each attempt.
    by_owner: FxHashMap<HoldId, Vec<usize>>,
}

impl Ending {
    pub fn new(is_whole: bool, unsafe_requests: Vec<UnsafeRequest>) -> Ending {
        let mut by_owner: FxHashMap<HoldId, Vec<usize>> = FxHashMap::default();
        for (place, request) in unsafe_requests.iter().enumerate() {
            by_owner.entry(request.owner).or_default().push(place);
        }
        Ending { is_whole, unsafe_requests, by_owner }
    }

    /// The unsafe requests that took the key of an attempt. A lock may have as many of them as windows.
    pub fn taken_from(&self, owner: HoldId) -> impl Iterator<Item = &UnsafeRequest> {
        let places = self.by_owner.get(&owner).into_iter().flatten();
        places.map(|place| &self.unsafe_requests[*place])
    }
}

/// One request that took effect on a node where another attempt was the owner.
#[derive(Debug, Clone)]
pub(crate) struct UnsafeRequest {
    pub key: usize,
    /// Index of the node in the plan.
    pub node: usize,
    pub attempt: HoldId,
    pub owner: HoldId,
    /// The stamp at which the first of the two attempts was sent.
    pub since: Stamp,
    pub owner_ok: EventRef,
    pub invoked: EventRef,
    pub answered: EventRef,
    /// True if the order of the grants alone proves the finding. Otherwise the proof also needs the time for which the
    /// owner's lease surely lasted.
    pub is_by_order: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_has_its_own_unsafe_requests() {
        let request = |n: u64| {
            let mark = EventRef { at: Stamp(n), seq: n };
            UnsafeRequest {
                key: 0,
                node: 0,
                attempt: HoldId(n),
                owner: HoldId(n % 100_000),
                since: mark.at,
                owner_ok: mark,
                invoked: mark,
                answered: mark,
                is_by_order: true,
            }
        };
        let ending = Ending::new(true, (0..200_000).map(request).collect());
        for owner in 0..100_000 {
            let taken_by: Vec<u64> = ending.taken_from(HoldId(owner)).map(|request| request.attempt.0).collect();
            assert_eq!(taken_by, [owner, owner + 100_000]);
        }
        assert_eq!(ending.taken_from(HoldId(100_000)).count(), 0);
    }
}
