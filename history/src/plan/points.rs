//! Checks of the protocol points at which a plan places faults and waits.

use super::{
    Plan,
    possible::{PlanError, named},
};
use crate::{point::Point, servers::Tokens, step::When};

impl Plan {
    /// Checks that clients with the plan's tokens come to every point at which a fault or a wait is placed. Otherwise a
    /// fault never begins, and keeps other faults of workers waiting.
    ///
    /// [`Plan::validate`] does not refuse such a plan: the record of its run can still be judged.
    ///
    /// # Errors
    /// The first fault, or else the first wait, at a point to which no client comes.
    pub fn check_points(&self) -> Result<(), PlanError> {
        if matches!(self.tokens, Tokens::TwoPhase | Tokens::TwoPhaseFast) {
            return Ok(());
        }
        let refused = |field, placed: String| {
            let problem = "only with tokens `two-phase` or `two-phase-fast` clients come to `after-write-back`";
            Err(PlanError { field, problem: format!("{placed}: {problem}; use these tokens, or another point") })
        };
        let is_there = |when: When| when == When::AtPoint(Point::AfterWriteBack);
        if let Some(step) = self.schedule.iter().find(|step| is_there(step.when)) {
            return refused("nemesis", named(step));
        }
        match self.waits.iter().find(|wait| wait.point == Point::AfterWriteBack) {
            Some(wait) => refused("waits", format!("wait {}", wait.id.0)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Fault, FaultId, Target, fault,
        plan::tests::plan,
        step::Step,
        wait::{Until, Wait, WaitId},
    };

    #[test]
    fn only_clients_with_two_phase_tokens_write_back() {
        let (second, point) = (Duration::from_secs(1), Point::AfterWriteBack);
        let (fault, target) = (Fault::new(fault::Pause {}, second), Target::Node("worker-1".into()));
        let step = Step { id: FaultId(1), fault, target, when: When::AtPoint(point) };
        let (worker, until, after) = ("worker-1".into(), Until::Time, Duration::ZERO);
        let wait = Wait { id: WaitId(1), worker, point, until, at_most: second, after };
        let placed = Plan { schedule: vec![step], ..plan() };
        let waits = Plan { schedule: Vec::new(), waits: vec![wait], ..plan() };
        for (tokens, is_possible) in [
            (Tokens::TwoPhase, true),
            (Tokens::TwoPhaseFast, true),
            (Tokens::MajorityMax, false),
            (Tokens::Counter, false),
            (Tokens::Own, false),
        ] {
            for (of, field) in [(&placed, "nemesis"), (&waits, "waits")] {
                let checked = Plan { tokens, ..of.clone() }.check_points().map_err(|error| error.field);
                assert_eq!(checked, if is_possible { Ok(()) } else { Err(field) }, "{tokens}");
            }
            // Every client comes to the point of this plan.
            assert_eq!(Plan { tokens, ..plan() }.check_points(), Ok(()));
        }
    }
}
