//! Records faults that nobody planned, as the engine reports them.
//!
//! The agent stamps each report when it arrives, so the stamp is an upper bound. The lower bound comes from the
//! engine's own time of the report: the difference between the wall clock and the raw clock is in the agent's samples,
//! because all containers share one kernel.

use std::collections::BTreeMap;

use compose::{Change, DockerCluster, Running, Unplanned};
use history::{Event, FaultId, FaultKind, FaultPhase, NodeName, Plan};
use nemesis::Control;

use crate::{host_clock::HostClock, processes::DockerProcesses};

/// The faults that are on although nobody planned them.
pub struct UnplannedFaults {
    next: u32,
    /// By node and by the change that began the fault.
    on: BTreeMap<(NodeName, Change), FaultId>,
}

impl UnplannedFaults {
    /// No fault so far. The numbers begin after those of the plan.
    pub fn new(plan: &Plan) -> UnplannedFaults {
        let last = plan.schedule.iter().map(|step| step.id.0).max().unwrap_or(0);
        UnplannedFaults { next: last.saturating_add(1), on: BTreeMap::new() }
    }

    /// Records all unplanned changes of `running`, until the engine reports no more. A server that was started again
    /// gets its planned faults again.
    ///
    /// # Errors
    /// The engine reports nothing any more, the agent does not stamp, or a fault could not be injected again.
    pub async fn record(
        &mut self,
        running: &Running,
        cluster: &DockerCluster<'_>,
        processes: &DockerProcesses<'_>,
    ) -> anyhow::Result<()> {
        let mut watch = running.watch();
        loop {
            let unplanned = watch.next().await?;
            if unplanned.change == Change::Started {
                cluster.again(&unplanned.node).await?;
            }
            if let Some(event) = self.event(&unplanned, processes.host_clock()) {
                processes.stamp(event).await?;
            }
        }
    }

    /// The event of a change; none for the end of a fault that was not seen to begin.
    fn event(&mut self, Unplanned { node, change, at_wall_ns }: &Unplanned, clock: &HostClock) -> Option<Event> {
        // A change that ends a fault names the change that began it.
        let (kind, beginning) = match change {
            Change::Died | Change::Started => (FaultKind::Kill, Change::Died),
            Change::Froze | Change::Thawed => (FaultKind::Pause, Change::Froze),
            Change::CutOff | Change::Reconnected => (FaultKind::Partition, Change::CutOff),
            Change::Stopped | Change::Continued => (FaultKind::Stop, Change::Stopped),
            // Rules may do less than a partition does, but not more.
            Change::Filtered | Change::Unfiltered => (FaultKind::Partition, Change::Filtered),
        };
        let since = match beginning {
            // A look found the change, so it came after the look before, and no engine took time to report it.
            Change::Stopped | Change::Filtered => clock.earliest_after(*at_wall_ns),
            _ => clock.earliest(*at_wall_ns),
        };
        let (begins, name) = (*change == beginning, (node.clone(), beginning));
        let (fault, phase) = if begins {
            let fault = FaultId(self.next);
            self.next = self.next.saturating_add(1);
            self.on.insert(name, fault);
            (fault, FaultPhase::Unplanned { since })
        } else {
            (self.on.remove(&name)?, FaultPhase::UnplannedOver { since })
        };
        Some(Event::Fault { fault, kind, node: node.clone(), phase })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{Fault, Stamp, Step, Target, When, fault};

    use super::*;

    fn told(node: &str, change: Change, at_wall_ns: i64) -> Unplanned {
        Unplanned { node: node.into(), change, at_wall_ns }
    }

    #[test]
    fn a_fault_and_its_end_have_one_number_after_those_of_the_plan() {
        let plan = crate::scenario::Scenario::of("redis").unwrap().base;
        let (mut faults, clock) = (UnplannedFaults::new(&plan), HostClock::default());
        clock.sample(1_000_000_000_000);
        let mut event = |node, change| faults.event(&told(node, change, 1_005_000_000_000), &clock);
        let since = Stamp(3_000_000_000);
        let of = |id, kind, node: &str, phase| Event::Fault { fault: FaultId(id), kind, node: node.into(), phase };
        let on = FaultPhase::Unplanned { since };
        assert_eq!(event("redis-1", Change::Died), Some(of(1, FaultKind::Kill, "redis-1", on.clone())));
        assert_eq!(event("redis-2", Change::Froze), Some(of(2, FaultKind::Pause, "redis-2", on)));
        let over = FaultPhase::UnplannedOver { since };
        assert_eq!(event("redis-1", Change::Started), Some(of(1, FaultKind::Kill, "redis-1", over)));
        assert_eq!(event("redis-1", Change::Started), None);
    }

    #[test]
    fn a_change_that_a_look_found_came_after_the_look_before() {
        let plan = crate::scenario::Scenario::of("redis").unwrap().base;
        let (mut faults, clock) = (UnplannedFaults::new(&plan), HostClock::default());
        clock.sample(1_000_000_000_000);
        let mut since_ms = |change| match faults.event(&told("redis-1", change, 1_005_000_000_000), &clock) {
            Some(Event::Fault {
                phase: FaultPhase::Unplanned { since } | FaultPhase::UnplannedOver { since }, ..
            }) => Some(since.0 / 1_000_000),
            _ => None,
        };
        for change in [Change::Stopped, Change::Continued, Change::Filtered, Change::Unfiltered] {
            assert_eq!(since_ms(change), Some(4_900), "{change:?}");
        }
        // The engine may have taken two seconds to report these.
        for change in [Change::Died, Change::Started, Change::CutOff, Change::Reconnected] {
            assert_eq!(since_ms(change), Some(3_000), "{change:?}");
        }
    }

    #[test]
    fn no_fault_gets_a_number_of_the_plan() {
        let mut plan = crate::scenario::Scenario::of("redis").unwrap().base;
        // The numbers of a plan need not be consecutive, or in order.
        let pause = Fault::new(fault::Pause {}, Duration::from_secs(1));
        let (target, when) = (Target::Node("worker-1".into()), When::At(Duration::from_secs(1)));
        let step = |id| Step { id: FaultId(id), fault: pause.clone(), target: target.clone(), when };
        plan.schedule = vec![step(5), step(2)];
        let (mut faults, clock) = (UnplannedFaults::new(&plan), HostClock::default());
        let mut number = |node, change| match faults.event(&told(node, change, 0), &clock) {
            Some(Event::Fault { fault, .. }) => Some(fault.0),
            _ => None,
        };
        assert_eq!(number("redis-1", Change::Died), Some(6));
        // One node may have two faults, and one fault may be on two nodes.
        assert_eq!(number("redis-1", Change::Froze), Some(7));
        assert_eq!(number("redis-2", Change::Froze), Some(8));
        let ends = [("redis-2", Change::Thawed), ("redis-1", Change::Thawed), ("redis-1", Change::Started)];
        assert_eq!(ends.map(|(node, change)| number(node, change)), [Some(8), Some(7), Some(6)]);
    }

    #[test]
    fn each_fault_begins_with_the_change_that_disturbs_its_node() {
        let plan = crate::scenario::Scenario::of("redis").unwrap().base;
        let (mut faults, clock) = (UnplannedFaults::new(&plan), HostClock::default());
        for (begins, ends, kind) in [
            (Change::Died, Change::Started, FaultKind::Kill),
            (Change::Froze, Change::Thawed, FaultKind::Pause),
            (Change::CutOff, Change::Reconnected, FaultKind::Partition),
            (Change::Stopped, Change::Continued, FaultKind::Stop),
            (Change::Filtered, Change::Unfiltered, FaultKind::Partition),
        ] {
            let mut phase = |change| match faults.event(&told("redis-1", change, 0), &clock) {
                Some(Event::Fault { kind: found, phase, .. }) if found == kind => Some(phase),
                _ => None,
            };
            assert!(matches!(phase(begins), Some(FaultPhase::Unplanned { .. })), "{begins:?}");
            assert!(matches!(phase(ends), Some(FaultPhase::UnplannedOver { .. })), "{ends:?}");
        }
    }
}
