//! Two faults that cannot be on together on one node. Only where the plan says when both are on; others take turns.

use std::{ops::Range, time::Duration};

use super::Plan;
use crate::{Direction, Fault, NodeName, Step, Target, When};

impl Step {
    /// From when to when it is on, and where, if the plan says so.
    fn known(&self) -> Option<(&NodeName, Range<Duration>)> {
        match (&self.target, self.when) {
            (Target::Node(node), When::At(at)) => Some((node, at..at + self.fault.lasting())),
            _ => None,
        }
    }

    /// Why this fault and `other` cannot be on together as planned: on one node, at times that are known.
    pub fn excludes(&self, other: &Step) -> Option<String> {
        let ((node, mine), (same, theirs)) = (self.known()?, other.known()?);
        if node != same || mine.start >= theirs.end || theirs.start >= mine.end {
            return None;
        }
        let (first, second) = if theirs.start < mine.start { (other, self) } else { (self, other) };
        let why = collision(&first.fault, &second.fault)?;
        let (from, to) = (mine.start.max(theirs.start), mine.end.min(theirs.end));
        Some(format!("both would be on {node} from {from:?} to {to:?}, and {why}"))
    }
}

/// Why `second` cannot begin while `first` is on.
fn collision(first: &Fault, second: &Fault) -> Option<String> {
    let (a, b) = (first.kind(), second.kind());
    if a.kills() && !b.is_of_links() {
        return Some("who is down can be neither killed nor frozen, and has no clock".into());
    }
    // What is frozen can be killed by an engine, but is not thawed then; what is put on a node that is down waits for its turn.
    if a == crate::FaultKind::Pause && b.kills() {
        return Some("who is killed while it is frozen is not frozen any more".into());
    }
    let is_twice = match (first, second) {
        (Fault::Clock { clock: one, .. }, Fault::Clock { clock: two, .. }) => {
            (one.is_wall() && two.is_wall()) || (one.is_monotonic() && two.is_monotonic())
        }
        _ if a != b => false,
        _ if a.is_of_links() => shares_links(first, second),
        _ => true,
    };
    is_twice.then(|| format!("a {a} that is on cannot be put on again"))
}

/// Whether two faults of links of one target hit packets of the same link.
fn shares_links(one: &Fault, two: &Fault) -> bool {
    let (Some((way, from)), Some((other_way, other_from))) = (one.links(), two.links()) else { return false };
    let is_same_way = way == other_way || way == Direction::Both || other_way == Direction::Both;
    let is_same_peer = from.is_empty() || other_from.is_empty() || from.iter().any(|peer| other_from.contains(peer));
    is_same_way && is_same_peer
}

impl Plan {
    /// Whether faults whose times are known can be on as planned; else which two cannot, and why.
    pub(super) fn check_together(&self) -> Result<(), String> {
        let timed: Vec<&Step> = self.schedule.iter().filter(|step| matches!(step.when, When::At(_))).collect();
        let pairs = timed.iter().enumerate().flat_map(|(n, one)| timed[n + 1..].iter().map(move |two| (one, two)));
        for (one, two) in pairs {
            if let Some(why) = one.excludes(two) {
                let name = |step: &Step| format!("fault {} ({})", step.id.0, step.fault.kind());
                return Err(format!("{} and {}: {why}; move one of them", name(one), name(two)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{ClockChange, FaultId, WhichClock, plan::tests::plan};

    use super::*;

    fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn step(id: u32, fault: Fault, at: u64) -> Step {
        Step { id: FaultId(id), fault, target: Target::Node("worker-1".into()), when: When::At(s(at)) }
    }

    fn clock(clock: WhichClock) -> Fault {
        Fault::Clock { clock, change: ClockChange::JumpMs(500), lasting: s(3) }
    }

    fn cut(direction: Direction, from: &[&str]) -> Fault {
        let from = from.iter().map(|node| (*node).into()).collect();
        Fault::Partition { lasting: s(3), direction, from, cut: crate::Cut::Drop }
    }

    #[test]
    fn two_faults_that_cannot_be_on_together_are_refused_by_name_and_others_are_not() {
        let (kill, pause) = (Fault::Kill { back_after: s(3) }, Fault::Pause { lasting: s(3) });
        let (wall, both) = (clock(WhichClock::Wall), clock(WhichClock::Both));
        let (all, out) = (cut(Direction::Both, &[]), cut(Direction::Out, &["resource"]));
        for (first, second) in [
            (&kill, &kill),
            (&kill, &pause),
            (&pause, &kill),
            (&pause, &pause),
            (&kill, &wall),
            (&wall, &both),
            (&all, &out),
        ] {
            let mut plan = plan();
            plan.schedule = vec![step(1, first.clone(), 2), step(2, second.clone(), 4)];
            let problem = plan.validate().unwrap_err().problem;
            let names = [format!("fault 1 ({})", first.kind()), format!("fault 2 ({})", second.kind())];
            assert!(names.iter().all(|name| problem.contains(name)), "{problem}");
            assert!(problem.contains("worker-1 from 4s to 5s"), "{problem}");
            // One after the other they are no trouble, and neither are they on two nodes, or at times that nobody knows.
            plan.schedule[1].when = When::At(s(5));
            assert_eq!(plan.validate(), Ok(()));
            plan.schedule[1] = Step { target: Target::Node("worker-2".into()), ..step(2, second.clone(), 4) };
            assert_eq!(plan.validate(), Ok(()));
            plan.schedule[1] = Step { when: When::AfterHeal(s(4)), ..step(2, second.clone(), 4) };
            assert_eq!(plan.validate(), Ok(()));
        }
        let (incoming, monotonic) = (cut(Direction::In, &["resource"]), clock(WhichClock::Monotonic));
        for (first, second) in [(&wall, &kill), (&wall, &monotonic), (&out, &incoming), (&pause, &all), (&kill, &all)] {
            let mut plan = plan();
            plan.schedule = vec![step(1, first.clone(), 2), step(2, second.clone(), 4)];
            assert_eq!(plan.validate(), Ok(()), "{} and {}", first.kind(), second.kind());
        }
    }
}
