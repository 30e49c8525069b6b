//! The one port inside the checker: a property, judged while the sweep goes by.

use history::{HoldId, Stamp};

use crate::{
    activity::Activity,
    data::Data,
    fence::Fence,
    holds::{Attempt, Mark},
    liveness::Liveness,
    lock::Lock,
    merge::Entry,
    property::Property,
    release::Release,
    resource::Resource,
    run::Run,
    tokens::Tokens,
    verdict::Facts,
};

/// A property, judged while the sweep goes by.
///
/// Events come in the order of their stamps, those of one stamp in an order that must not matter: [`Judge::settle`] comes
/// after all of a stamp have been seen.
pub(crate) trait Judge {
    /// An event; `run` has taken it in.
    fn see(&mut self, run: &Run, entry: &Entry);

    /// An admission that the resource had forgotten when it was started again: it changed nothing.
    fn see_undone(&mut self, _run: &Run, _entry: &Entry) {}

    /// A hold's entitlement has ended; `end` is the end of what is judged if that comes first. Holds that end later are
    /// still among [`Run::live`].
    fn ended(&mut self, _run: &Run, _hold: &Attempt, _end: Stamp) {}

    /// All events of a stamp have been seen.
    fn settle(&mut self, _run: &Run) {}

    /// Nothing more can be said of an attempt; `run` has dropped it.
    fn closed(&mut self, _run: &Run, _attempt: &Attempt) {}

    /// Requests that took effect on a node where another attempt was the owner: they may be the cause of a window.
    fn unsafe_releases(&self, _run: &Run) -> Vec<Unsafe> {
        Vec::new()
    }

    /// The verdicts, by name, and what the reports need beside them.
    fn verdicts(self: Box<Self>, run: &Run, ending: &Ending, facts: &mut Facts) -> Vec<(String, Property)>;
}

/// What is known when the sweep is over.
pub(crate) struct Ending {
    /// The record was judged, and to its end.
    pub is_whole: bool,
    /// From all judges.
    pub unsafe_releases: Vec<Unsafe>,
}

/// One request that took effect on a node where another attempt was the owner.
#[derive(Debug, Clone)]
pub(crate) struct Unsafe {
    pub key: usize,
    /// Index of the node in the plan.
    pub node: usize,
    pub attempt: HoldId,
    pub owner: HoldId,
    pub owner_ok: Mark,
    pub invoked: Mark,
    pub answered: Mark,
    /// It follows from the order of the grants alone, and not from how long the owner's lease surely lasted.
    pub is_by_order: bool,
}

/// All properties, in the order of `verdict.json`. A new one is a new file and a line here.
pub(crate) fn all(run: &Run) -> Vec<Box<dyn Judge>> {
    vec![
        Box::new(Lock::default()),
        Box::new(Tokens::default()),
        Box::new(Fence::new(&run.plan)),
        Box::new(Data::new(&run.plan)),
        Box::new(Resource::default()),
        Box::new(Release::default()),
        Box::new(Liveness::default()),
        Box::new(Activity::default()),
    ]
}
