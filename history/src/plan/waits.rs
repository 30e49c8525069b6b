//! Checks of the planned waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::Plan;
use crate::{
    fault::FaultId,
    names::NodeName,
    point::Point,
    step::{Step, When},
    target::Target,
    wait::{Until, Wait, WaitId},
    workload::ClientKind,
};

/// The longest wait. A client that waits longer is no longer the client that the plan is about.
const AT_MOST: Duration = Duration::from_secs(600);
/// The shortest wait.
const AT_LEAST: Duration = Duration::from_millis(10);

impl Plan {
    /// Returns the wait with this number.
    pub fn wait(&self, id: WaitId) -> Option<&Wait> {
        self.waits.iter().find(|wait| wait.id == id)
    }

    /// Checks that the waits of the plan are possible. The error says which wait is not, and why.
    pub(crate) fn check_waits(&self) -> Result<(), String> {
        let workers: BTreeSet<NodeName> = self.workers().collect();
        let is_worker = |node: &NodeName| match workers.contains(node) {
            true => Ok(()),
            false => Err(format!("`{node}` is no worker; there are worker-1 to worker-{}", self.workload.workers)),
        };
        let (mut ids, goes_with) = (BTreeSet::new(), self.waits_of_faults());
        for (place, wait) in self.waits.iter().enumerate() {
            let failed = |problem: String| Err(format!("wait {}: {problem}", wait.id.0));
            if !ids.insert(wait.id) {
                return failed("its number is taken".into());
            }
            let others = if let Until::Wrote(other) = &wait.until { Some(other) } else { None };
            for node in [&wait.worker].into_iter().chain(others) {
                is_worker(node).or_else(failed)?;
            }
            if others == Some(&wait.worker) && self.workload.clients_per_worker == 1 {
                let problem = "has no other client that could write meanwhile; name another worker";
                return failed(format!("{} {problem}", wait.worker));
            }
            let has_one_client = self.workload.workers == 1 && self.workload.clients_per_worker == 1;
            if wait.until == Until::AnotherWrote && has_one_client {
                return failed("the run has one client, so no other could write meanwhile; add a worker".into());
            }
            match wait.until {
                Until::Over(fault) if !self.schedule.iter().any(|step| step.id == fault) => {
                    return failed(format!("there is no fault {} in the plan", fault.0));
                }
                Until::Reached(other) if other == wait.id || self.wait(other).is_none() => {
                    return failed(format!("there is no other wait {} in the plan", other.0));
                }
                _ => {}
            }
            // The waits of one worker follow each other.
            let needed = needed_for(&wait.until, &goes_with);
            let is_later = |later: &&Wait| Some(later.id) == needed && later.worker == wait.worker;
            if let Some(later) = self.waits[place + 1..].iter().find(is_later) {
                let problem = "reaches only after this wait; use a wait of another worker";
                return failed(format!("`until` needs wait {}, which {} {problem}", later.id.0, wait.worker));
            }
            if !(AT_LEAST..=AT_MOST).contains(&wait.at_most) {
                return failed(format!("at-most {:?} is outside 10ms to 10m", wait.at_most));
            }
            if wait.after >= self.time {
                let (after, time) = (wait.after, self.time);
                return failed(format!("it begins after {after:?}, and the run is over after {time:?}"));
            }
            if wait.point == Point::AfterCheck && self.workload.client == ClientKind::Unchecked {
                return failed("only checking clients come to `after-check`; add `--client checking`".into());
            }
            let goes_along = |when| when == When::WhileWaits(wait.id);
            let is_alone = !self.schedule.iter().any(|step| goes_along(step.when));
            if is_alone && matches!(wait.until, Until::Injected | Until::Healed) {
                return failed("no fault goes with it; expected `until` a write or a time".into());
            }
            // A client is armed for one point at a time.
            let placed = |step: &&Step| {
                matches!(step.when, When::AtPoint(_)) && step.target == Target::Node(wait.worker.clone())
            };
            if let Some(step) = self.schedule.iter().find(placed) {
                let (id, node) = (step.id.0, &wait.worker);
                return failed(format!(
                    "fault {id} is placed at a point of {node} too; let it fire while {node} waits"
                ));
            }
        }
        Ok(())
    }

    /// Returns the wait that each fault goes with. The fault may begin after others that are over. Looks at each step
    /// once. Faults that follow each other in a circle never begin.
    fn waits_of_faults(&self) -> BTreeMap<FaultId, Option<WaitId>> {
        let mut found = BTreeMap::new();
        if !self.waits.iter().any(|wait| matches!(wait.until, Until::Over(_))) {
            return found;
        }
        let whens: BTreeMap<FaultId, When> = self.schedule.iter().map(|step| (step.id, step.when)).collect();
        for step in &self.schedule {
            let (mut fault, mut walk) = (step.id, Vec::new());
            let wait = loop {
                if let Some(known) = found.get(&fault) {
                    break *known;
                }
                found.insert(fault, None);
                walk.push(fault);
                match whens.get(&fault) {
                    Some(When::WhileWaits(wait)) => break Some(*wait),
                    Some(When::Healed(earlier)) => fault = *earlier,
                    _ => break None,
                }
            };
            found.extend(walk.into_iter().map(|fault| (fault, wait)));
        }
        found
    }
}

/// Returns the wait that a client must reach before the event of `until` can happen.
fn needed_for(until: &Until, goes_with: &BTreeMap<FaultId, Option<WaitId>>) -> Option<WaitId> {
    match until {
        Until::Reached(other) => Some(*other),
        Until::Over(fault) => goes_with.get(fault).copied().flatten(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, fault};

    fn plan() -> Plan {
        let mut plan = crate::plan::tests::plan();
        plan.workload.workers = 2;
        plan.waits = vec![Wait {
            id: WaitId(1),
            worker: "worker-1".into(),
            point: Point::BeforeWrite,
            until: Until::Wrote("worker-2".into()),
            at_most: Duration::from_secs(6),
            after: Duration::from_secs(1),
        }];
        let fault = Fault::new(fault::Pause {}, Duration::from_secs(3));
        let (target, when) = (Target::Node("worker-2".into()), When::WhileWaits(WaitId(1)));
        plan.schedule = vec![Step { id: FaultId(1), fault, target, when }];
        plan
    }

    #[test]
    fn a_plan_with_a_wait_reads_as_it_is_written() {
        let text = plan().to_toml().unwrap();
        for line in ["[[waits]]", "until = { wrote = \"worker-2\" }", "at-most = \"6s\"", "while-waits = 1"] {
            let found = text.contains(line) || text.replace(".until]\nwrote", "{wrote").contains("{wrote");
            assert!(found, "{line} in {text}");
        }
        assert_eq!(Plan::from_toml(&text).unwrap(), plan());
        let wrong = text.replace("at-most", "atmost");
        assert!(Plan::from_toml(&wrong).unwrap_err().to_string().contains("atmost"));
    }

    #[test]
    fn a_wait_that_cannot_come_about_is_refused() {
        type Change = fn(&mut Plan);
        let table: [(&str, Change); 19] = [
            ("number is taken", |p| p.waits.push(p.waits[0].clone())),
            ("no worker", |p| p.waits[0].worker = "redis-1".into()),
            ("no worker", |p| p.waits[0].until = Until::Wrote("worker-9".into())),
            ("another worker", |p| p.waits[0].until = Until::Wrote("worker-1".into())),
            ("no fault 9", |p| p.waits[0].until = Until::Over(FaultId(9))),
            ("no other wait 1", |p| p.waits[0].until = Until::Reached(WaitId(1))),
            ("one client", |p| (p.waits[0].until, p.workload.workers) = (Until::AnotherWrote, 1)),
            ("needs wait 2, which worker-1", |p| {
                p.waits.push(Wait { id: WaitId(2), ..p.waits[0].clone() });
                p.waits[0].until = Until::Reached(WaitId(2));
            }),
            ("needs wait 2, which worker-1", |p| {
                p.waits.push(Wait { id: WaitId(2), ..p.waits[0].clone() });
                p.waits[0].until = Until::Over(FaultId(1));
                p.schedule[0].when = When::WhileWaits(WaitId(2));
            }),
            ("needs wait 2, which worker-1", |p| {
                p.waits.push(Wait { id: WaitId(2), ..p.waits[0].clone() });
                p.waits[0].until = Until::Over(FaultId(2));
                p.schedule[0].when = When::WhileWaits(WaitId(2));
                let (id, when) = (FaultId(2), When::Healed(FaultId(1)));
                p.schedule.push(Step { id, when, ..p.schedule[0].clone() });
            }),
            ("outside", |p| p.waits[0].at_most = Duration::ZERO),
            ("outside 10ms to 10m", |p| p.waits[0].at_most = Duration::from_nanos(9_999_999)),
            ("outside 10ms to 10m", |p| p.waits[0].at_most = Duration::from_millis(600_001)),
            ("is over", |p| p.waits[0].after = p.time),
            ("checking", |p| p.waits[0].point = Point::AfterCheck),
            ("no wait 7", |p| p.schedule[0].when = When::WhileWaits(WaitId(7))),
            ("no fault goes with it", |p| (p.waits[0].until, p.schedule) = (Until::Healed, Vec::new())),
            ("no fault goes with it", |p| (p.waits[0].until, p.schedule) = (Until::Injected, Vec::new())),
            // The fault goes with the other wait.
            ("wait 2: no fault goes with it", |p| {
                let (worker, until) = ("worker-2".into(), Until::Healed);
                p.waits.push(Wait { id: WaitId(2), worker, until, ..p.waits[0].clone() });
            }),
        ];
        assert_eq!(plan().validate(), Ok(()));
        for (words, change) in table {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.validate().unwrap_err();
            assert!(error.problem.contains(words), "{words}: {error}");
        }
        for at_most in [Duration::from_millis(10), Duration::from_secs(600)] {
            let mut bounded = plan();
            bounded.waits[0].at_most = at_most;
            assert_eq!(bounded.validate(), Ok(()));
        }
        let mut own = plan();
        own.workload.clients_per_worker = 2;
        own.waits[0].until = Until::Wrote("worker-1".into());
        assert_eq!(own.validate(), Ok(()));
        let mut alone = plan();
        (alone.workload.workers, alone.workload.clients_per_worker) = (1, 2);
        (alone.waits[0].until, alone.schedule[0].target) = (Until::AnotherWrote, Target::Node("worker-1".into()));
        assert_eq!(alone.validate(), Ok(()));
        let mut after = plan();
        let (worker, until) = ("worker-2".into(), Until::Reached(WaitId(1)));
        after.waits.push(Wait { id: WaitId(2), worker, until, ..after.waits[0].clone() });
        assert_eq!(after.validate(), Ok(()));
        // Both are reached, and so both end.
        after.waits[0].until = Until::Reached(WaitId(2));
        assert_eq!(after.validate(), Ok(()));
        let mut twice = plan();
        twice.schedule[0].target = Target::Node("worker-1".into());
        twice.schedule[0].when = When::AtPoint(Point::AfterRead);
        assert!(twice.validate().unwrap_err().problem.contains("too"));
        twice.schedule[0].target = Target::Node("worker-2".into());
        assert_eq!(twice.validate(), Ok(()));
    }

    #[test]
    fn waits_for_the_last_of_many_faults_are_checked_soon() {
        const FAULTS: u32 = 100_000;
        let mut plan = plan();
        let when = |id| if id == 1 { When::At(Duration::from_secs(1)) } else { When::Healed(FaultId(id - 1)) };
        let step = plan.schedule[0].clone();
        plan.schedule = (1..=FAULTS).rev().map(|id| Step { id: FaultId(id), when: when(id), ..step.clone() }).collect();
        let wait = Wait { until: Until::Over(FaultId(FAULTS)), ..plan.waits[0].clone() };
        plan.waits = (1..=100).map(|id| Wait { id: WaitId(id), ..wait.clone() }).collect();
        assert_eq!(plan.check_waits(), Ok(()));
    }
}
