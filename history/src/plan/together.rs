//! Pairs of faults that exclude each other on one node. On a node faults take turns, and a fault that is late begins
//! later. Only for faults at planned times the plan itself shows that they would meet.

use std::{ops::Range, time::Duration};

use super::{Plan, possible::named};
use crate::{
    fault::{Fault, FaultKind},
    names::NodeName,
    step::{Step, When},
    target::Target,
};

impl Step {
    /// Returns the node and the times of the fault, if the plan states both.
    fn known(&self) -> Option<(&NodeName, Range<Duration>)> {
        match (&self.target, self.when) {
            (Target::Node(node), When::At(at)) => Some((node, at..at + self.fault.lasting)),
            _ => None,
        }
    }

    /// Returns the reason why this fault and `other` exclude each other, if both are planned for one node at one time.
    pub fn excludes(&self, other: &Step) -> Option<String> {
        let ((node, mine), (same, theirs)) = (self.known()?, other.known()?);
        if node != same || mine.start >= theirs.end || theirs.start >= mine.end {
            return None;
        }
        let (first, second) = if theirs.start < mine.start { (other, self) } else { (self, other) };
        let why = collision(&first.fault, &second.fault)?;
        let (from, to) = (mine.start.max(theirs.start), mine.end.min(theirs.end));
        Some(format!("both are planned for {node} from {from:?} to {to:?}, and {why}"))
    }
}

/// Returns the reason why `second` cannot begin during `first`.
fn collision(first: &Fault, second: &Fault) -> Option<String> {
    let (a, b) = (first.kind(), second.kind());
    if a.kills() && !b.is_of_links() {
        return Some("a killed process can be neither killed nor frozen, and has no clock".into());
    }
    // An engine can kill a frozen process, but then cannot thaw it. A fault of links on a killed node waits for its
    // restart.
    if a == FaultKind::Pause && b.kills() {
        return Some("a kill ends the freeze of its process".into());
    }
    first.excludes(second).then(|| format!("a second {a} cannot begin before the first has ended"))
}

impl Plan {
    /// Checks that no two faults with planned times exclude each other.
    pub(super) fn check_together(&self) -> Result<(), String> {
        let mut timed = Vec::new();
        for (n, step) in self.schedule.iter().enumerate() {
            timed.extend(step.known().map(|(node, on)| (node, on.start, n)));
        }
        timed.sort();
        // The faults of the present node that have not ended: only these can meet the next one.
        let mut active: Vec<&Step> = Vec::new();
        for (node, start, n) in timed {
            let step = &self.schedule[n];
            active.retain(|other| other.known().is_some_and(|(same, on)| same == node && on.end > start));
            if let Some((other, why)) = active.iter().find_map(|other| Some((other, other.excludes(step)?))) {
                return Err(format!("{} and {}: {why}; move one of them", named(other), named(step)));
            }
            active.push(step);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{ClockChange, Direction, FaultId, WhichClock, fault, plan::tests::plan};

    use super::*;

    fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn step(id: u32, fault: Fault, at: u64) -> Step {
        Step { id: FaultId(id), fault, target: Target::Node("worker-1".into()), when: When::At(s(at)) }
    }

    fn clock(clock: WhichClock) -> Fault {
        Fault::new(fault::Clock { clock, change: ClockChange::JumpMs(500) }, s(3))
    }

    fn cut(direction: Direction, from: &[&str]) -> Fault {
        let from = from.iter().map(|node| (*node).into()).collect();
        Fault::new(fault::Partition { cut: crate::fault::CutMode::Drop }, s(3)).on_links(direction, from)
    }

    #[test]
    fn faults_that_follow_each_other_do_not_meet() {
        let kill = |id, at| step(id, Fault::new(fault::Kill {}, s(3)), at);
        for (at, is_free) in [(1, false), (2, false), (4, false), (5, true), (9, true)] {
            let (first, second) = (kill(1, 2), kill(2, at));
            assert_eq!(first.excludes(&second).is_none(), is_free, "from {at} s");
            assert_eq!(second.excludes(&first).is_none(), is_free, "from {at} s");
        }
    }

    #[test]
    fn faults_of_a_node_meet_in_any_order_of_the_schedule() {
        let kill = |id, at| step(id, Fault::new(fault::Kill {}, s(3)), at);
        let elsewhere = Step { target: Target::Node("worker-2".into()), ..kill(3, 3) };
        let [a, b, c] = [kill(1, 2), kill(2, 4), elsewhere];
        for schedule in [[&a, &b, &c], [&a, &c, &b], [&b, &c, &a], [&c, &b, &a]] {
            let plan = Plan { schedule: schedule.map(Step::clone).to_vec(), ..plan() };
            assert!(plan.validate().unwrap_err().problem.contains("fault 1 (kill) and fault 2 (kill)"));
        }
    }

    #[test]
    fn a_third_fault_hides_no_faults_that_exclude_each_other() {
        let (all, wall) = (cut(Direction::Both, &[]), clock(WhichClock::Wall));
        let schedule = vec![step(1, all.clone(), 2), step(2, wall, 3), step(3, all, 4)];
        let problem = Plan { schedule, ..plan() }.validate().unwrap_err().problem;
        assert!(problem.contains("fault 1 (partition) and fault 3 (partition)"), "{problem}");
    }

    #[test]
    fn cuts_exclude_each_other_if_they_have_a_peer_in_common() {
        let table: [(&[&str], &[&str], bool); 4] = [
            (&["redis-1", "resource"], &["redis-1"], true),
            (&["resource"], &["redis-1", "resource"], true),
            (&["redis-1"], &["resource"], false),
            (&["redis-1"], &[], true),
        ];
        for (first, second, is_refused) in table {
            let (first, second) = (cut(Direction::Out, first), cut(Direction::Both, second));
            let schedule = vec![step(1, first, 2), step(2, second, 4)];
            let problem = Plan { schedule, ..plan() }.validate().err().map(|error| error.problem);
            assert_eq!(problem.is_some(), is_refused, "{problem:?}");
            assert!(problem.is_none_or(|problem| problem.contains("a second partition cannot begin")));
        }
    }

    #[test]
    fn a_node_is_not_frozen_and_killed_at_once_in_any_way() {
        let refused = |first: &Fault, second: &Fault| {
            let at_server = |id, fault: &Fault, at| {
                let target = Target::Node("redis-1".into());
                Step { target, ..step(id, fault.clone(), at) }
            };
            let schedule = vec![at_server(1, first, 2), at_server(2, second, 4)];
            Plan { schedule, ..plan() }.validate().unwrap_err().problem
        };
        let pause = Fault::new(fault::Pause {}, s(3));
        for kill in [
            Fault::new(fault::Kill {}, s(3)),
            Fault::new(fault::Amnesia::default(), s(3)),
            Fault::new(fault::Powerloss {}, s(3)),
        ] {
            let problem = refused(&pause, &kill);
            assert!(problem.contains("a kill ends the freeze of its process"), "{problem}");
            let problem = refused(&kill, &pause);
            assert!(problem.contains("a killed process can be neither killed nor frozen"), "{problem}");
        }
    }

    #[test]
    fn faults_that_exclude_each_other_are_refused_by_name() {
        let (kill, pause) = (Fault::new(fault::Kill {}, s(3)), Fault::new(fault::Pause {}, s(3)));
        let (wall, monotonic, both) = (clock(WhichClock::Wall), clock(WhichClock::Monotonic), clock(WhichClock::Both));
        let (all, out) = (cut(Direction::Both, &[]), cut(Direction::Out, &["resource"]));
        for (first, second) in [
            (&kill, &kill),
            (&kill, &pause),
            (&pause, &kill),
            (&pause, &pause),
            (&kill, &wall),
            (&wall, &both),
            (&both, &monotonic),
            (&monotonic, &monotonic),
            (&all, &out),
            (&out, &all),
        ] {
            let mut plan = plan();
            plan.schedule = vec![step(1, first.clone(), 2), step(2, second.clone(), 4)];
            let problem = plan.validate().unwrap_err().problem;
            let names = [format!("fault 1 ({})", first.kind()), format!("fault 2 ({})", second.kind())];
            assert!(names.iter().all(|name| problem.contains(name)), "{problem}");
            assert!(problem.contains("worker-1 from 4s to 5s"), "{problem}");
            // One after the other, on two nodes, or at unknown times, the two faults do not meet.
            plan.schedule[1].when = When::At(s(5));
            assert_eq!(plan.validate(), Ok(()));
            plan.schedule[1] = Step { target: Target::Node("worker-2".into()), ..step(2, second.clone(), 4) };
            assert_eq!(plan.validate(), Ok(()));
            plan.schedule[1] = Step { when: When::AfterHeal(s(4)), ..step(2, second.clone(), 4) };
            assert_eq!(plan.validate(), Ok(()));
        }
        let incoming = cut(Direction::In, &["resource"]);
        // Of two faults that begin at the same time, the plan names the first one first.
        for (first, second, is_refused) in [(&kill, &wall, true), (&wall, &kill, false)] {
            let schedule = vec![step(2, first.clone(), 2), step(1, second.clone(), 2)];
            assert_eq!(Plan { schedule, ..plan() }.validate().is_err(), is_refused, "{} first", first.kind());
        }
        for (first, second) in [(&wall, &kill), (&wall, &monotonic), (&out, &incoming), (&pause, &all), (&kill, &all)] {
            let mut plan = plan();
            plan.schedule = vec![step(1, first.clone(), 2), step(2, second.clone(), 4)];
            assert_eq!(plan.validate(), Ok(()), "{} and {}", first.kind(), second.kind());
        }
    }
}
