//! The largest plans: how many parts a plan may have, and how long a fault of a plan may last.

use super::{Plan, possible::PlanError};
use crate::step::{Step, When};

/// The most lock nodes.
const LOCK_NODES_MAX: usize = 1_000;
/// The most steps. The longest run, with a random fault of a worker every second, has fewer.
const STEPS_MAX: usize = 100_000;
/// The most waits.
const WAITS_MAX: usize = 1_000;
/// A drawn fault lasts at most so many leases. It may begin just before the end of the fault phase.
const DRAWN_LEASES_MAX: u32 = 3;

impl Plan {
    /// Refuses a plan of so many parts that reading it, or checking it, would take long.
    pub(super) fn check_sizes(&self) -> Result<(), PlanError> {
        let sizes = [
            ("lock_nodes", "lock nodes", self.lock_nodes.len(), LOCK_NODES_MAX),
            ("nemesis", "faults", self.schedule.len(), STEPS_MAX),
            ("waits", "waits", self.waits.len(), WAITS_MAX),
        ];
        match sizes.into_iter().find(|(_, _, found, most)| found > most) {
            Some((field, parts, found, most)) => {
                Err(PlanError { field, problem: format!("{found} {parts} are too many: expected at most {most}") })
            }
            None => Ok(()),
        }
    }

    /// Returns the first fault that lasts longer than a user can have meant: than the whole fault phase. A fault whose
    /// time the plan does not state may be a drawn one, which lasts as many leases as it was drawn with.
    ///
    /// [`Plan::validate`] does not refuse such a fault, because `harness explore` makes runs shorter and keeps the
    /// faults as they are.
    pub fn too_long(&self) -> Option<&Step> {
        self.schedule.iter().find(|step| match step.when {
            When::At(_) | When::AtPoint(_) => step.fault.lasting > self.time,
            When::AfterHeal(_) | When::Healed(_) | When::WhileWaits(_) => {
                step.fault.lasting > self.time.max(self.lease * DRAWN_LEASES_MAX)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Fault, FaultId, NodeName, Point, Target, WaitId, fault, plan::tests::plan};

    fn step(id: u32, when: When, lasting: Duration) -> Step {
        let target = Target::Node("worker-1".into());
        Step { id: FaultId(id), fault: Fault::new(fault::Kill {}, lasting), target, when }
    }

    #[test]
    fn a_plan_of_the_most_parts_is_checked_and_a_larger_one_is_refused() {
        let second = Duration::from_secs(1);
        // Each fault waits for the heal of the next one.
        let chain = |steps: usize| -> Vec<Step> {
            let when = |id: u32| if id == 1 { When::At(second) } else { When::Healed(FaultId(id - 1)) };
            (1..=steps as u32).rev().map(|id| step(id, when(id), second)).collect()
        };
        let name = |n: usize| NodeName::new(format!("redis-{n}"));
        let nodes = |count: usize| -> Vec<NodeName> { (0..count).map(name).collect() };
        let apart = |id: u32| step(id, When::At(second * 2 * (id - 1)), second);
        let day = Duration::from_secs(24 * 3600);
        for possible in [
            Plan { schedule: chain(STEPS_MAX), ..plan() },
            Plan { time: day, schedule: (1..=40_000).map(apart).collect(), ..plan() },
            Plan { lock_nodes: nodes(LOCK_NODES_MAX), ..plan() },
        ] {
            assert_eq!(possible.validate(), Ok(()));
        }
        for (large, field, words) in [
            (Plan { schedule: chain(STEPS_MAX + 1), ..plan() }, "nemesis", "100001 faults are too many"),
            (Plan { lock_nodes: nodes(LOCK_NODES_MAX + 1), ..plan() }, "lock_nodes", "at most 1000"),
        ] {
            let refused = large.validate().unwrap_err();
            assert!(refused.field == field && refused.problem.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_fault_that_is_longer_than_its_run_is_found() {
        let (run, more) = (Duration::from_secs(3), Duration::from_millis(3_400));
        let of = |when, lasting| Plan { time: run, schedule: vec![step(1, when, lasting)], ..plan() };
        for when in [When::At(Duration::ZERO), When::AtPoint(Point::BeforeWrite)] {
            assert_eq!(of(when, run).too_long(), None);
            assert!(of(when, more).too_long().is_some(), "{when:?}");
        }
        let drawn = Duration::from_secs(6);
        for when in [When::AfterHeal(run), When::Healed(FaultId(2)), When::WhileWaits(WaitId(1))] {
            assert_eq!(of(when, drawn).too_long(), None);
            assert!(of(when, drawn + Duration::from_millis(1)).too_long().is_some(), "{when:?}");
        }
    }
}
