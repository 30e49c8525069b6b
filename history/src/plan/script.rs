//! Scripted critical sections: what a scenario of a few clients needs in place of a drawn load.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Plan, human};
use crate::NodeName;

/// A script is about a few sections; a load is drawn.
const SECTIONS_MAX: u32 = 10_000;

/// Critical sections of one worker at times of their own. A client that is not free by then begins the next one as soon as it is; a worker that is
/// started again begins its script from the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    /// Each of its clients.
    pub worker: NodeName,
    /// When the first is due, from the start of the client.
    #[serde(with = "human")]
    pub from: Duration,
    /// How many.
    #[serde(default = "one")]
    pub sections: u32,
    /// From one that is due to the next.
    #[serde(with = "human", default = "soon")]
    pub every: Duration,
    /// Writes under each hold, in place of those of the workload. With 0 a hold is acquired and released, and the resource is let alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<u32>,
    /// A section is given up after so many attempts that failed. If absent, it goes on until it has the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

fn one() -> u32 {
    1
}

fn soon() -> Duration {
    Duration::from_millis(100)
}

impl Plan {
    /// Whether the scripts of the plan can be carried out; else what is wrong.
    pub(super) fn check_script(&self) -> Result<(), String> {
        for (index, scripted) in self.workload.script.iter().enumerate() {
            let Scripted { worker, from, sections, every, writes, attempts } = scripted;
            let failed = |problem: String| Err(format!("part {} (of {worker}): {problem}", index + 1));
            if !self.workers().any(|w| w == *worker) {
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
    use crate::plan::tests::plan;

    fn scripted() -> Scripted {
        let (from, every) = (Duration::from_millis(500), Duration::from_millis(50));
        Scripted { worker: "worker-1".into(), from, sections: 20, every, writes: Some(0), attempts: None }
    }

    #[test]
    fn a_script_reads_as_it_is_written() {
        let mut plan = plan();
        plan.workload.script = vec![scripted()];
        assert_eq!(plan.validate(), Ok(()));
        assert_eq!(Plan::from_toml(&plan.to_toml().unwrap()).unwrap(), plan);
        let short = "worker = \"worker-1\"\nfrom = \"2s\"";
        let read: Scripted = toml::from_str(short).unwrap();
        assert_eq!((read.sections, read.every, read.writes), (1, soon(), None));
    }

    #[test]
    fn a_script_that_cannot_be_carried_out_is_refused() {
        type Change = fn(&mut Scripted);
        let table: [(&str, Change); 5] = [
            ("no such worker", |s| s.worker = "worker-9".into()),
            ("outside 1 to", |s| s.sections = 0),
            ("is over after", |s| s.from = Duration::from_secs(3_600)),
            ("some time between", |s| s.every = Duration::ZERO),
            ("at least one attempt", |s| s.attempts = Some(0)),
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
