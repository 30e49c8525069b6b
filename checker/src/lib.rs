//! History in, verdicts out: pure, streaming.
//!
//! A record goes through `merge.rs`, which puts the streams of all processes into the order of their stamps, then into
//! the state that all judges share (`run.rs`), then past the judge of each property (`properties.rs`: one file a
//! property). Every comparison that a verdict rests on is a function of `rules.rs`. Nothing here reads a clock, draws a
//! number or iterates over a hash map in a way that reaches the output: the same history gives the same verdicts,
//! however its streams were interleaved.
//!
//! ```
//! let verdicts = checker::check(std::iter::empty(), history::Tail::Whole);
//! assert_eq!(verdicts.verdict, checker::Verdict::Inconclusive);
//! ```

mod apply_event;
mod attempts;
mod by_mode;
mod cause;
mod clock_steps;
mod coherence;
mod disturbance;
mod entry;
mod facts;
mod failover;
mod faults;
#[cfg(test)]
mod history_builder;
mod hold_summary;
mod holds;
mod intervals;
mod judge;
mod key_lease;
mod keys;
mod legend;
mod merge;
mod operations;
mod order;
mod per_key;
mod properties;
mod report;
mod resource_stalls;
mod rules;
mod run;
mod steps;
mod subject;
mod sweep;
mod verdict;
mod verdicts;

use history::{Record, Tail};

pub use cause::{Cause, CauseSet, canonical, joined};
pub use legend::{explain, words};
pub use order::Standings;
pub use properties::{PROPERTIES, Property, Recovered, Window, WindowKind};
pub use report::{Report, Story, Violation};
pub use rules::{is_renewed_in_time, promise_end};
pub use sweep::Checker;
pub use verdict::Verdict;
pub use verdicts::{Figure, Verdicts};

/// Judges a whole history. `tail` says how the history ended; see [`history::Reader::tail`].
pub fn check<I: IntoIterator<Item = Record>>(records: I, tail: Tail) -> Verdicts {
    let mut checker = Checker::new();
    for record in records {
        checker.feed(record);
    }
    checker.finish(tail)
}
