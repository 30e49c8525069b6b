//! The list of properties, in the order of `verdict.json`.
//!
//! A property is one file, its `mod` line and its row in the list below. Its file contains its part of `verdict.json`,
//! its judge, and its report: the line in the summary, the classes of `explore`, the one-line documentation.

mod activity;
mod data;
mod fairness;
mod fence;
mod liveness;
mod lock;
mod recovery;
mod reentry;
mod release;
mod resource;
mod tokens;

use history::{Arm, Plan, Stamp};
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    holds::Attempt,
    judge::{Ending, Judge, UnsafeRequest},
    report::{Report, Violation},
    run::Run,
    verdict::Verdict,
};

pub use lock::{Window, WindowKind};
pub use recovery::Recovered;

/// Makes the enum of verdicts, the set of judges and the table of documentation from the rows `file: Judge => Verdict`.
macro_rules! properties {
    ($($file:ident: $name:ident => $verdict:ident,)*) => {
        $(pub use $file::$verdict;)*

        /// The verdict on one property.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs)]
        pub enum Property { $($name($verdict),)* }

        impl Property {
            /// The verdict, as reports show it.
            pub fn report(&self) -> &dyn Report {
                match self { $(Property::$name(verdict) => verdict,)* }
            }
        }

        /// One judge of each property.
        pub(crate) struct Judges { $($file: $file::$name,)* }

        impl Judges {
            pub fn new(plan: &Plan) -> Judges {
                Judges { $($file: $file::$name::new(plan),)* }
            }

            pub fn on_event(&mut self, run: &Run, entry: &Entry) {
                $(self.$file.on_event(run, entry);)*
            }

            pub fn on_use(&mut self, run: &Run, entry: &Entry) {
                $(self.$file.on_use(run, entry);)*
            }

            pub fn on_undone(&mut self, run: &Run, entry: &Entry) {
                $(self.$file.on_undone(run, entry);)*
            }

            pub fn on_entitlement_end(&mut self, run: &Run, hold: &Attempt, end: Stamp) {
                $(self.$file.on_entitlement_end(run, hold, end);)*
            }

            pub fn on_stamp_complete(&mut self, run: &Run) {
                $(self.$file.on_stamp_complete(run);)*
            }

            pub fn on_attempt_closed(&mut self, run: &Run, attempt: &Attempt) {
                $(self.$file.on_attempt_closed(run, attempt);)*
            }

            pub fn on_key_quiet(&mut self, run: &Run, key: usize) {
                $(self.$file.on_key_quiet(run, key);)*
            }

            pub fn unsafe_requests(&self, run: &Run) -> Vec<UnsafeRequest> {
                let mut all = Vec::new();
                $(all.extend(self.$file.unsafe_requests(run));)*
                all
            }

            /// All verdicts by name, in order; the properties of one arm stand together.
            pub fn finish(self, run: &Run, ending: &Ending, facts: &mut Facts) -> Vec<(String, Property)> {
                let mut rows = Vec::new();
                $({
                    let found = self.$file.finish(run, ending, facts);
                    let name = |arm| (arm, $file::$name::NAME);
                    rows.push(found.into_iter().map(|(arm, v)| (name(arm), Property::$name(v))).collect());
                })*
                in_order(rows)
            }
        }

        /// Each property's name (a property of an arm has the arm's name and a dot before it) and one line about it.
        pub const PROPERTIES: &[(&str, &str)] = &[$(($file::$name::NAME, $file::$name::ABOUT),)*];
    };
}

properties! {
    lock: Lock => LockVerdict,
    tokens: Tokens => TokensVerdict,
    fence: Fence => FenceVerdict,
    data: Data => DataVerdict,
    resource: Resource => ResourceVerdict,
    release: Release => ReleaseVerdict,
    liveness: Liveness => LivenessVerdict,
    fairness: Fairness => FairnessVerdict,
    reentry: Reentry => ReentryVerdict,
    activity: Activity => ActivityVerdict,
    recovery: Recovery => RecoveryVerdict,
}

/// The verdicts of one row, each with its arm and the property's name.
type Row = Vec<((Option<Arm>, &'static str), Property)>;

/// The rows one after the other; adjacent rows of arms are put together by arm.
fn in_order(rows: Vec<Row>) -> Vec<(String, Property)> {
    let mut all: Row = Vec::new();
    let (mut group, mut groups) = (0, Vec::new());
    for (i, row) in rows.into_iter().enumerate() {
        let is_of_arms = row.iter().any(|((arm, _), _)| arm.is_some());
        let continues = is_of_arms && all.last().is_some_and(|((arm, _), _)| arm.is_some());
        group = if continues { group } else { i };
        groups.extend(row.iter().map(|_| group));
        all.extend(row);
    }
    let mut keyed: Vec<_> = groups.into_iter().zip(all).collect();
    keyed.sort_by_key(|(group, ((arm, _), _))| (*group, *arm));
    let name = |(arm, name): (Option<Arm>, &str)| arm.map_or_else(|| name.into(), |arm| format!("{arm}.{name}"));
    keyed.into_iter().map(|(_, (of, property))| (name(of), property)).collect()
}

impl Property {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.report().verdict()
    }

    /// Why the verdict is inconclusive, or what went wrong beyond the counts.
    pub fn reasons(&self) -> &[String] {
        self.report().reasons()
    }

    /// The ways in which the property is violated; none if it is not.
    pub fn violations(&self) -> Vec<Violation> {
        if self.verdict() != Verdict::Violated {
            return Vec::new();
        }
        let mut found = self.report().violations();
        if found.is_empty() {
            // A violation that no count tells is still a finding.
            found.push(Violation { kind: "", causes: Vec::new() });
        }
        found
    }
}
