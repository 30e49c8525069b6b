//! The second half of a run, and all of `harness check`: history in, verdicts and measures out.

use std::path::Path;

use checker::{Checker, Verdicts};
use history::{Event, Plan, Reader};

use crate::{
    exit::Unusable,
    report::{Measures, versions},
};

/// What is known of a run after it.
pub struct Judged {
    /// Its plan, as the history has it.
    pub plan: Plan,
    /// The verdicts.
    pub verdicts: Verdicts,
    /// Latencies, rates.
    pub measures: Measures,
    /// Versions of the servers, as they gave them.
    pub versions: String,
}

/// Reads the history once, for both.
pub fn judge(history: &Path) -> anyhow::Result<Judged> {
    let mut reader = Reader::open(history)?;
    let mut checker = Checker::new();
    let mut measures = Measures::default();
    let (mut plan, mut ready) = (None, Vec::new());
    for record in reader.by_ref() {
        let record = record?;
        match &record.event {
            Event::Plan { plan: planned, .. } => plan = Some((**planned).clone()),
            Event::Ready { servers } => ready.clone_from(servers),
            _ => {}
        }
        measures.see(&record);
        checker.feed(record);
    }
    let Some(plan) = plan else {
        let problem = "no plan in it; expected the plan as the first event. The history was cut before its first event, or is none";
        return Err(Unusable(format!("{}: {problem}", history.display())).into());
    };
    Ok(Judged { plan, verdicts: checker.finish(reader.tail()), measures, versions: versions(&ready) })
}
