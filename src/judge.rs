//! Reads a history and returns verdicts and measures: the second half of a run, and all of `harness check`.

use std::path::Path;

use checker::{Checker, Verdicts};
use history::{Event, MadeBy, NodeName, Plan, ReadAhead, Reader, Record};

use crate::{exit::Unusable, measures::Measures};

/// The results of a run.
pub struct Judged {
    /// The plan, as the history contains it.
    pub plan: Plan,
    /// The verdicts.
    pub verdicts: Verdicts,
    /// Latencies, rates.
    pub measures: Measures,
    /// The facts about how the run was made; None if an older harness made it.
    pub made_by: Option<MadeBy>,
    /// The servers, each with the version that it reported.
    pub servers: Vec<(NodeName, String)>,
}

/// Reads the history once, for the verdicts and the measures.
///
/// # Errors
/// The file is no history, is damaged, or has a plan that no run can have.
pub fn judge(history: &Path) -> anyhow::Result<Judged> {
    judge_and_show(history, |_| ())
}

/// Does as [`judge`], and shows each record to `show` in the order of the file. The plan is the first record, and is
/// valid.
///
/// # Errors
/// Those of [`judge`].
pub fn judge_and_show(history: &Path, mut show: impl FnMut(&Record)) -> anyhow::Result<Judged> {
    let mut reader = ReadAhead::open(history)?;
    let mut checker = Checker::new();
    let mut measures = Measures::default();
    let (mut plan, mut made_by, mut servers) = (None, None, Vec::new());
    for record in reader.by_ref() {
        let record = record?;
        match &record.event {
            Event::Plan { plan: planned, made_by: made, .. } => {
                let wrong = |e| Unusable(format!("{}: the plan in event {}: {e}", history.display(), record.seq));
                planned.validate().map_err(wrong)?;
                plan = Some((**planned).clone());
                made_by = made.as_deref().cloned();
            }
            _ if plan.is_none() => return Err(without_plan(history).into()),
            Event::Ready { servers: ready } => servers.clone_from(ready),
            _ => {}
        }
        show(&record);
        measures.add(&record);
        let is_plan = matches!(record.event, Event::Plan { .. });
        checker.feed(record);
        if is_plan
            && checker.asks_for_recoveries()
            // A pipe can be read once only. Without the recoveries the checker needs more memory.
            && history.is_file()
            // This reader meets the same error, if no other line is wrong before.
            && let Ok(recoveries) = Reader::recoveries(history)
        {
            checker.know_recoveries(recoveries);
        }
    }
    let plan = plan.ok_or_else(|| without_plan(history))?;
    Ok(Judged { plan, verdicts: checker.finish(reader.tail()), measures, made_by, servers })
}

fn without_plan(history: &Path) -> Unusable {
    let problem = "the first event is not the plan. The file is no history, was cut before its first event, or has its \
                   lines in another order";
    Unusable(format!("{}: {problem}", history.display()))
}
