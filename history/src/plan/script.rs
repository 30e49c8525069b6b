//! Checks of the critical sections at fixed times.

use super::Plan;
use crate::workload::Scripted;

/// The largest number of sections in one part of a script.
const SECTIONS_MAX: u32 = 10_000;

impl Plan {
    /// Checks that every part of the script can be carried out.
    pub(super) fn check_script(&self) -> Result<(), String> {
        for (index, scripted) in self.workload.script.iter().enumerate() {
            let Scripted { worker, from, sections, every, writes, attempts, .. } = scripted;
            let failed = |problem: String| Err(format!("part {} (of {worker}): {problem}", index + 1));
            if !self.has_worker(worker) {
                return failed(format!("no such worker; there are worker-1 to worker-{}", self.workload.workers));
            }
            if *sections == 0 || *sections > SECTIONS_MAX {
                return failed(format!("{sections} sections are outside 1 to {SECTIONS_MAX}"));
            }
            if *from >= self.time {
                return failed(format!("it begins after {from:?}, and the run is over after {:?}", self.time));
            }
            if every.is_zero() {
                return failed(
                    "expected some time between one section and the next, such as `every = \"50ms\"`".into(),
                );
            }
            if writes.is_some_and(|n| n > 100) || *attempts == Some(0) {
                return failed("expected at most 100 writes, and at least one attempt".into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::plan::tests::plan;

    fn scripted() -> Scripted {
        let (from, every) = (Duration::from_millis(500), Duration::from_millis(50));
        Scripted { worker: "worker-1".into(), from, sections: 20, every, writes: Some(0), reads: None, attempts: None }
    }

    #[test]
    fn a_script_reads_as_it_is_written() {
        let mut plan = plan();
        plan.workload.script = vec![scripted()];
        assert_eq!(plan.validate(), Ok(()));
        plan.workload.script[0].sections = SECTIONS_MAX;
        plan.workload.script[0].from = plan.time - Duration::from_millis(1);
        plan.workload.script[0].writes = Some(100);
        assert_eq!(plan.validate(), Ok(()));
        assert_eq!(Plan::from_toml(&plan.to_toml().unwrap()).unwrap(), plan);
        let short = "worker = \"worker-1\"\nfrom = \"2s\"";
        let read: Scripted = toml::from_str(short).unwrap();
        assert_eq!((read.sections, read.every, read.writes), (1, Duration::from_millis(100), None));
    }

    #[test]
    fn a_script_that_cannot_be_carried_out_is_refused() {
        type Change = fn(&mut Scripted);
        let table: [(&str, Change); 8] = [
            ("no such worker", |s| s.worker = "worker-9".into()),
            ("outside 1 to", |s| s.sections = 0),
            ("outside 1 to", |s| s.sections = SECTIONS_MAX + 1),
            ("is over after", |s| s.from = Duration::from_secs(3_600)),
            ("is over after", |s| s.from = plan().time),
            ("some time between", |s| s.every = Duration::ZERO),
            ("at least one attempt", |s| s.attempts = Some(0)),
            ("at most 100 writes", |s| s.writes = Some(101)),
        ];
        for (words, change) in table {
            let mut plan = plan();
            plan.workload.script = vec![scripted()];
            change(&mut plan.workload.script[0]);
            let error = plan.validate().unwrap_err();
            assert!(error.field == "script" && error.problem.contains(words), "{words}: {error}");
        }
    }
}
