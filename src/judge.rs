//! Reads a history and returns verdicts and measures: the second half of a run, and all of `harness check`.

use std::path::Path;

use checker::{Checker, Verdicts};
use history::{Event, MadeBy, NodeName, Plan, ReadAhead, Reader, Record};

use crate::{exit::Unusable, measures::Measures, versions::Versions};

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
    /// The servers, each with the version that a worker reported.
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
    let (mut plan, mut made_by, mut servers) = (None, None, Versions::default());
    for record in reader.by_ref() {
        let record = record?;
        match &record.event {
            // Another plan makes the record inconclusive; the checker judges by the first one.
            Event::Plan { plan: planned, made_by: made, .. } if plan.is_none() => {
                let wrong = |e| Unusable(format!("{}: the plan in event {}: {e}", history.display(), record.seq));
                planned.validate().map_err(wrong)?;
                plan = Some((**planned).clone());
                made_by = made.as_deref().cloned();
            }
            _ if plan.is_none() => return Err(without_plan(history).into()),
            Event::Ready { servers: ready } => servers.add(ready),
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
            && let Ok(Some(recoveries)) = Reader::recoveries(history)
        {
            checker.know_recoveries(recoveries);
        }
    }
    let plan = plan.ok_or_else(|| without_plan(history))?;
    let servers = servers.of(&plan);
    Ok(Judged { plan, verdicts: checker.finish(reader.tail()), measures, made_by, servers })
}

fn without_plan(history: &Path) -> Unusable {
    let problem = "the first event is not the plan. The file is no history, was cut before its first event, or has its \
                   lines in another order";
    Unusable(format!("{}: {problem}", history.display()))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use checker::Verdict;
    use serde_json::{Value, json};

    use super::judge;

    /// The lines of the history of a pause.
    fn paused() -> Vec<Value> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn written(dir: &Path, lines: &[Value]) -> PathBuf {
        let history = dir.join("history.jsonl");
        std::fs::write(&history, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        history
    }

    /// The pause, with a plan that also kills the resource. The stale write of the first holder arrives last.
    #[test]
    fn an_act_that_a_later_restart_may_undo_is_no_violation() {
        let mut lines = paused();
        let (target, when) = (json!({ "node": "resource" }), json!({ "after-heal": "1s" }));
        let kill = json!({ "id": 2, "fault": { "kind": "kill", "back_after": "1s" }, "target": target, "when": when });
        lines[0]["plan"]["schedule"].as_array_mut().unwrap().push(kill);
        let dir = tempfile::tempdir().unwrap();
        let judged = |lines: &[Value]| judge(&written(dir.path(), lines)).unwrap().verdicts.verdict;
        assert_eq!(judged(&lines), Verdict::Violated);
        // The run goes on, and the record ends before the kill.
        let finished = lines.iter().position(|line| line["event"] == "finished").unwrap();
        lines.retain(|line| line["process"] != "controller" || line["event"] == "plan");
        lines[finished..].iter_mut().for_each(|line| line["event"] = json!("watermark"));
        assert_eq!(judged(&lines), Verdict::Inconclusive);
    }

    #[test]
    fn a_second_plan_is_not_that_of_the_verdicts() {
        let mut lines = paused();
        let mut second = lines[0].clone();
        let seed = second["plan"]["seed"].as_u64().unwrap();
        second["plan"]["seed"] = json!(seed + 1);
        lines.push(second);
        let dir = tempfile::tempdir().unwrap();
        let history = written(dir.path(), &lines);
        let judged = judge(&history).unwrap();
        assert_eq!((judged.plan.seed, judged.verdicts.verdict), (seed, Verdict::Inconclusive));
    }
}
