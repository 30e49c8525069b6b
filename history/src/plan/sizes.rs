//! The largest plans: how many parts and how many bytes a plan may have, and how long a fault of a plan may last.

use memchr::{memchr_iter, memchr3_iter};

use super::{Plan, possible::PlanError};
use crate::{fault::Fault, step::Step};

/// The longest plan, in bytes: as a file, and as the first line of a history.
pub const PLAN_BYTES_MAX: u64 = 64 << 20;
/// The most values of a plan. In the longest plan of a run a value has a dozen bytes.
pub(crate) const PLAN_VALUES: usize = 8_000_000;
/// The first line of a history has more than the plan: the id of the run, and how the run was made. The rest has at
/// most so many bytes, and not more values.
const REST_OF_LINE: usize = 1 << 20;
/// The most lock nodes.
const LOCK_NODES_MAX: usize = 1_000;
/// The most steps. A step has about 120 bytes in a history, so [`PLAN_BYTES_MAX`] allows fewer.
const STEPS_MAX: usize = 1_000_000;
/// The most waits.
const WAITS_MAX: usize = 1_000;
/// A drawn fault lasts at most so many leases, and delays each packet by at most so many, however short its run is.
/// `harness explore --swarm` draws the longest.
const DRAWN_LEASES_MAX: u32 = 4;

impl Plan {
    /// Refuses a plan of so many parts that reading it, or checking it, would take long.
    pub(super) fn check_sizes(&self) -> Result<(), PlanError> {
        let sizes = [
            ("lock_nodes", "lock nodes", self.lock_nodes.len(), LOCK_NODES_MAX, "use fewer servers"),
            ("nemesis", "faults", self.schedule.len(), STEPS_MAX, "make --time shorter, or name fewer faults"),
            ("waits", "waits", self.waits.len(), WAITS_MAX, "leave some out"),
        ];
        match sizes.into_iter().find(|(_, _, found, most, _)| found > most) {
            Some((field, parts, found, most, remedy)) => {
                let problem = format!("{found} {parts} are too many: expected at most {most}; {remedy}");
                Err(PlanError { field, problem })
            }
            None => Ok(()),
        }
    }

    /// Checks that the plan can be read again from the first line of its history.
    ///
    /// # Errors
    /// The line would be longer than the reader accepts.
    pub fn check_line(&self) -> Result<(), PlanError> {
        let Ok(line) = serde_json::to_vec(self) else { return Err(self.too_large()) };
        let is_longer = line.len() + REST_OF_LINE > PLAN_BYTES_MAX as usize;
        if is_longer || has_more_values(&line, PLAN_VALUES - REST_OF_LINE) {
            return Err(self.too_large());
        }
        Ok(())
    }

    /// The error of a plan that takes more than [`PLAN_BYTES_MAX`].
    pub fn too_large(&self) -> PlanError {
        let (faults, most) = (self.schedule.len(), PLAN_BYTES_MAX >> 20);
        let problem = format!("the plan of {faults} faults is too large to be read again: expected at most {most} MiB");
        PlanError { field: "nemesis", problem: format!("{problem}; make --time shorter, or name fewer faults") }
    }

    /// Returns the first fault that lasts longer than a user can have meant: than the whole fault phase, and than any
    /// drawn fault. A drawn delay of both directions may be on for twice as long as it delays a packet.
    ///
    /// [`Plan::validate`] does not refuse such a fault: the search of `harness explore` may shake the length of a fault
    /// a little beyond the bound.
    pub fn too_long(&self) -> Option<&Step> {
        let longest = |times: u32| self.time.max(self.lease.saturating_mul(DRAWN_LEASES_MAX * times));
        let is_too_long = |fault: &Fault| fault.lasting > longest(1) || fault.may_last() > longest(fault.directions());
        self.schedule.iter().find(|step| is_too_long(&step.fault))
    }

    /// Refuses the TOML of a plan that has more values than any plan whose history can be read. A text is searched much
    /// faster than it is parsed, and the values of a parsed text take many times its size.
    ///
    /// # Errors
    /// The text has more values.
    pub fn check_toml(text: &str) -> Result<(), String> {
        let text = text.as_bytes();
        // Fewer bytes have fewer values.
        let count = || memchr3_iter(b',', b'[', b'{', text).count() + memchr_iter(b'=', text).count();
        if text.len() > PLAN_VALUES && count() > PLAN_VALUES {
            return Err(format!("more than {PLAN_VALUES} values, which is the most; leave some faults out"));
        }
        Ok(())
    }
}

/// Returns whether a line has more than so many values, counted as commas and opening brackets.
pub(crate) fn has_more_values(line: &[u8], most: usize) -> bool {
    // Fewer bytes have fewer values, so the usual lines are not searched.
    line.len() > most && memchr3_iter(b',', b'[', b'{', line).nth(most).is_some()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Direction, FaultId, NodeName, Point, Range, Target, WaitId, When, fault, plan::tests::plan};

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
        let loss_of_node = |id: u32| {
            let fault = Fault::new(fault::Loss { percent: 1 }, second).on_links(Direction::Both, nodes(2));
            Step { fault, target: Target::Node(name(id as usize % 998 + 2)), ..apart(id) }
        };
        let day = Duration::from_secs(24 * 3600);
        let mut plan_of_steps = Plan { schedule: chain(STEPS_MAX), ..plan() };
        assert_eq!(plan_of_steps.validate(), Ok(()));
        plan_of_steps.schedule.push(step(0, When::At(second), second));
        for possible in [
            Plan { time: day, schedule: (1..=40_000).map(apart).collect(), ..plan() },
            Plan { lock_nodes: nodes(LOCK_NODES_MAX), ..plan() },
            Plan {
                time: day,
                lock_nodes: nodes(LOCK_NODES_MAX),
                schedule: (1..=40_000).map(loss_of_node).collect(),
                ..plan()
            },
        ] {
            assert_eq!(possible.validate(), Ok(()));
        }
        for (large, field, words) in [
            (plan_of_steps, "nemesis", "1000001 faults are too many: expected at most 1000000; make --time shorter"),
            (Plan { lock_nodes: nodes(LOCK_NODES_MAX + 1), ..plan() }, "lock_nodes", "at most 1000"),
        ] {
            let refused = large.validate().unwrap_err();
            assert!(refused.field == field && refused.problem.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_plan_that_the_reader_would_refuse_is_refused_before_its_run() {
        let of = |text: String| Plan { nemesis: vec![text], ..plan() }.check_line();
        let most = PLAN_BYTES_MAX as usize;
        assert_eq!(of("x".repeat(most - 2 * REST_OF_LINE)), Ok(()));
        let refused = of("x".repeat(most - REST_OF_LINE)).unwrap_err();
        assert!(refused.problem.contains("2 faults is too large to be read again"), "{refused}");
        // The reader counts the commas inside of texts too.
        assert!(of(",".repeat(PLAN_VALUES)).is_err());
    }

    #[test]
    fn a_fault_is_found_by_its_number_at_any_place() {
        let id = |place: usize| plan().schedule[place].id;
        let mut moved = plan();
        moved.schedule.reverse();
        for plan in [plan(), moved] {
            let found = [id(0), id(1)].map(|id| plan.step(id).map(|step| step.id));
            assert_eq!(found, [Some(id(0)), Some(id(1))]);
            assert_eq!([0, 3].map(|id| plan.step(FaultId(id))), [None, None]);
        }
    }

    #[test]
    fn a_fault_that_is_longer_than_its_run_is_found() {
        let of = |time, when, lasting| Plan { time, schedule: vec![step(1, when, lasting)], ..plan() };
        let (short, long) = (Duration::from_secs(3), Duration::from_secs(20));
        let whens = [
            When::At(Duration::ZERO),
            When::AtPoint(Point::BeforeWrite),
            When::AfterHeal(short),
            When::Healed(FaultId(2)),
            When::WhileWaits(WaitId(1)),
        ];
        for when in whens {
            // Four leases are longer than the short run.
            for (time, longest) in [(short, plan().lease * DRAWN_LEASES_MAX), (long, long)] {
                assert_eq!(of(time, when, longest).too_long(), None);
                assert!(of(time, when, longest + Duration::from_millis(1)).too_long().is_some(), "{when:?}");
            }
        }
    }

    #[test]
    fn a_delay_that_is_longer_than_its_run_is_found() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
        let of = |by: fault::LinkDelay| {
            let fault = Fault::new(fault::Delay { by }, second);
            let target = Target::Node("worker-1".into());
            let schedule = vec![Step { id: FaultId(1), fault, target, when: When::At(second) }];
            Plan { time: second * 9, schedule, ..plan() }
        };
        for by in [fault::LinkDelay::Fixed(hour), fault::LinkDelay::Drawn(Range { from: second, to: hour })] {
            assert!(of(by).validate().is_ok() && of(by).too_long().is_some(), "{by:?}");
        }
    }

    #[test]
    fn a_delay_of_both_directions_is_on_until_its_probe_is_back() {
        let second = Duration::from_secs(1);
        let of = |time: u32, by: Duration, direction| {
            let fault = Fault::new(fault::Delay { by: by.into() }, second).on_links(direction, Vec::new());
            let (target, when) = (Target::Node("worker-1".into()), When::At(second));
            Plan { time: second * time, schedule: vec![Step { id: FaultId(1), fault, target, when }], ..plan() }
        };
        let drawn = plan().lease * DRAWN_LEASES_MAX;
        let more = Duration::from_millis(1);
        for direction in [Direction::In, Direction::Out] {
            for (time, longest) in [(3, drawn), (20, second * 20)] {
                assert_eq!(of(time, longest, direction).too_long(), None);
                assert!(of(time, longest + more, direction).too_long().is_some(), "{direction:?}");
            }
        }
        // A short run has any drawn delay; in a long run the packet and its answer count.
        for (time, longest) in [(3, drawn), (20, second * 10)] {
            assert_eq!(of(time, longest, Direction::Both).too_long(), None);
            assert!(of(time, longest + more, Direction::Both).too_long().is_some(), "{time} s");
        }
    }

    #[test]
    fn each_comma_and_each_opening_bracket_of_a_line_is_a_value() {
        for line in [",,,", "[[[", "{{{", "[{,"] {
            assert!(has_more_values(line.as_bytes(), 2), "{line}");
        }
        assert!(!has_more_values(b"[}],{]", 3));
    }

    #[test]
    fn a_text_of_too_many_values_is_refused_before_it_is_parsed() {
        // Each line has five values.
        let values = |times: usize| "a = { b = [1, 2] }\n".repeat(times);
        assert_eq!(Plan::check_toml(&values(PLAN_VALUES / 5)), Ok(()));
        assert!(Plan::check_toml(&values(PLAN_VALUES / 5 + 1)).is_err_and(|problem| problem.contains("8000000")));
    }
}
