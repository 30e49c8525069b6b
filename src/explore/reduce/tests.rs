use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use checker::{Verdict, Verdicts};
use history::{Event, FailureReason, FaultKind, Point, Range, Reader, Record, Tail, Target, When};

use super::*;
use crate::explore::fixtures::{class, cut, fired, paused_at, plan, trial};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Makes a judge that finds the violation in the plans that `is_wrong` chooses.
fn finds(is_wrong: impl Fn(&Plan) -> bool + Sync) -> impl Fn(&Plan) -> Option<Trial> + Sync {
    move |plan| {
        assert_eq!(plan.validate(), Ok(()));
        Some(Trial { fired: fired(plan), ..trial(is_wrong(plan).then(|| class("pause"))) })
    }
}

fn cuts(plan: &Plan, node: &str) -> bool {
    let target = Target::Node(node.into());
    plan.schedule.iter().any(|s| s.target == target && s.fault.kind() == FaultKind::Partition)
}

/// Makes a plan with many faults, of which two matter.
fn crowded() -> Plan {
    let mut plan = plan();
    plan.schedule = (1..=12).map(|n| paused_at(n, When::AfterHeal(ms(317)), 777)).collect();
    plan.schedule.extend((13..=17).map(|n| cut(n, &format!("redis-{}", n % 5 + 1), &["worker-3"], 1_234)));
    plan.time = Duration::from_secs(20);
    plan
}

#[test]
fn only_the_faults_that_matter_remain_and_their_numbers_are_round() {
    let judge = finds(|p| cuts(p, "redis-4") && cuts(p, "redis-5"));
    let reduced = reduce(&crowded(), &class("pause"), Limits::default(), &judge).unwrap();
    assert!(reduced.is_offered() && reduced.violating == VARIATIONS);
    let plan = &reduced.plan;
    assert_eq!(plan.schedule.len(), 2, "{:?}", plan.schedule);
    assert_eq!(plan.nemesis, ["partition"]);
    for step in &plan.schedule {
        assert_eq!(step.fault.lasting, Duration::from_secs(1));
    }
    assert_eq!((plan.workload.workers, plan.workload.clients_per_worker, plan.workload.keys), (2, 1, 1));
    assert_eq!(plan.time, Duration::from_secs(2));
    assert_eq!(plan.workload.work.from, plan.workload.work.to);
}

#[test]
fn a_fault_goes_that_is_superfluous_only_without_a_later_one() {
    // Without the cut of redis-1, the cut of redis-3 prevents the violation.
    let judge = finds(|p| cuts(p, "redis-2") && cuts(p, "redis-4") && (cuts(p, "redis-1") || !cuts(p, "redis-3")));
    let mut plan = plan();
    plan.schedule = (1..=4).map(|n| cut(n, &format!("redis-{n}"), &["worker-3"], 1_234)).collect();
    let exact = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap().exact;
    assert_eq!(exact.schedule.len(), 2, "{:?}", exact.schedule);
}

#[test]
fn a_violation_without_faults_is_reduced_to_no_fault() {
    let reduced = reduce(&crowded(), &class("pause"), Limits::default(), &finds(|_| true)).unwrap();
    assert_eq!(reduced.plan.schedule, []);
}

#[test]
fn a_fault_that_needs_an_exact_time_is_placed_at_a_protocol_point() {
    let judge = finds(|p| {
        p.schedule.iter().any(|s| match s.when {
            When::At(at) => at.abs_diff(ms(1_411)) < ms(5),
            When::AfterHeal(_) | When::WhileWaits(_) | When::Healed(_) => false,
            When::AtPoint(point) => point == Point::AfterRead,
        })
    });
    let mut plan = plan();
    plan.schedule = vec![paused_at(1, When::At(ms(1_411)), 1_500)];
    let reduced = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap();
    assert!(reduced.is_offered());
    assert_eq!(reduced.plan.schedule[0].when, When::AtPoint(Point::AfterRead));
}

#[test]
fn a_fault_that_is_sometimes_too_short_is_made_longer() {
    let judge = finds(|p| p.schedule.iter().any(|s| s.fault.lasting >= ms(1_003)));
    let mut plan = plan();
    plan.schedule = vec![paused_at(1, When::At(ms(1_000)), 1_004)];
    let reduced = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap();
    assert!(reduced.is_offered(), "{} of 100", reduced.violating);
    assert!(reduced.plan.schedule[0].fault.lasting >= ms(1_053));
}

#[test]
fn a_violation_of_every_second_round_is_repeated_until_it_comes() {
    // Even seeds violate at the first fault; half of the other seeds violate at each later fault.
    let judge = finds(|p| (0..p.schedule.len()).any(|i| p.seed >> i & 1 == 0));
    let mut plan = plan();
    plan.seed = 4;
    plan.schedule = vec![paused_at(1, When::At(ms(1_000)), 1_500)];
    let reduced = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap();
    assert!(reduced.is_offered(), "{} of 100", reduced.violating);
    assert!((5..=8).contains(&reduced.plan.schedule.len()), "{}", reduced.plan.schedule.len());
}

#[test]
fn a_violation_by_chance_is_not_offered_and_is_counted() {
    let judge = finds(|p| p.seed == 7 || p.seed % 4 == 0);
    let mut plan = plan();
    plan.schedule = vec![paused_at(1, When::At(ms(1_000)), 1_500)];
    let reduced = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap();
    assert!(!reduced.is_offered());
    assert!((10..45).contains(&reduced.violating), "{} of 100", reduced.violating);
    assert_eq!(reduced.plan.schedule, [], "it is reduced all the same");
}

#[test]
fn a_plan_is_not_offered_for_the_variations_that_chose_it() {
    let plan = plan();
    let by_choice: BTreeSet<u64> = (0..u64::from(VARIATIONS)).map(|n| shaken(&plan, n).seed).collect();
    let judge = finds(|p| p.seed == plan.seed || by_choice.contains(&p.seed));
    let reduced = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap();
    assert_eq!((reduced.violating, reduced.is_offered()), (0, false));
}

#[test]
fn a_violation_of_another_class_does_not_count() {
    let judge = |p: &Plan| {
        let cause = if p.schedule.is_empty() { "stall" } else { "pause" };
        Some(Trial { fired: fired(p), ..trial([class(cause)]) })
    };
    let reduced = reduce(&crowded(), &class("pause"), Limits::default(), &judge).unwrap();
    assert_eq!(reduced.plan.schedule.len(), 1);
    assert!(reduced.trial.classes.contains(&class("pause")));
}

/// The verdicts on a run of this activity, with one refused attempt or none.
fn verdicts(activity: Activity, has_refused: bool) -> Verdicts {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
    let mut records: Vec<Record> = Reader::open(path.as_ref()).unwrap().map(Result::unwrap).collect();
    for record in &mut records {
        match &mut record.event {
            Event::Plan { plan, .. } => plan.activity = activity,
            Event::AcquireFailed { why, .. } if !has_refused => *why = FailureReason::NoMajority,
            _ => {}
        }
    }
    checker::check(records, Tail::Whole)
}

#[test]
fn a_plan_whose_run_refuses_no_attempt_asks_for_none_and_tells_the_run_that_it_then_gives() {
    for (has_refused, refused) in [(true, 1), (false, 0)] {
        let of = |refused| verdicts(Activity { holds: 2, clients: 2, refused }, has_refused);
        let asked_for = [of(0), of(1)];
        let judge = |p: &Plan| {
            let verdicts = asked_for[p.activity.refused as usize].clone();
            Some(Trial { verdicts, ..trial([class("pause")]) })
        };
        let reduced = reduce(&plan(), &class("pause"), Limits::default(), &judge).unwrap();
        assert_eq!(reduced.plan.activity, Activity { holds: 2, clients: 2, refused });
        let activity = reduced.trial.verdicts.properties.get("activity").unwrap();
        assert_eq!(activity.verdict(), Verdict::Upheld, "{activity:?}");
    }
}

#[test]
fn a_plan_that_does_not_violate_again_is_not_reduced() {
    assert!(reduce(&crowded(), &class("pause"), Limits::default(), &finds(|_| false)).is_none());
    assert!(reduce(&crowded(), &class("pause"), Limits::default(), &|_| None).is_none());
}

#[test]
fn a_reduction_ends_and_is_the_same_each_time() {
    let used = AtomicU32::new(0);
    let inner = finds(|p| p.seed % 3 != 0 && p.workload.work.to < ms(600) && !p.schedule.is_empty());
    let judge = |p: &Plan| {
        used.fetch_add(1, Ordering::Relaxed);
        inner(p)
    };
    let mut plan = crowded();
    plan.workload.work = Range { from: ms(123), to: ms(456) };
    let one = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap();
    let most = REMOVE_MAX + STRENGTHEN_MAX + SIMPLIFY_MAX + LAST_TRIALS as u32 * VARIATIONS + 4 * VARIATIONS;
    assert_eq!(one.simulations, used.load(Ordering::Relaxed));
    assert!(one.simulations <= most, "{}", one.simulations);
    let other = reduce(&plan, &class("pause"), Limits::default(), &judge).unwrap();
    assert_eq!((one.plan, one.violating, one.simulations), (other.plan, other.violating, other.simulations));
}

#[test]
fn the_number_of_threads_does_not_change_the_result() {
    let judge = finds(|p| p.seed % 3 != 0 && cuts(p, "redis-4"));
    let with = |jobs| reduce(&crowded(), &class("pause"), Limits { jobs, deadline: None }, &judge).unwrap();
    let (one, four) = (with(1), with(4));
    assert_eq!((one.plan, one.violating, one.simulations), (four.plan, four.violating, four.simulations));
}

#[test]
fn after_the_deadline_the_search_completes_its_plan() {
    let limits = Limits { deadline: Some(Instant::now()), jobs: 1 };
    let reduced = reduce(&crowded(), &class("pause"), limits, &finds(|p| !p.schedule.is_empty())).unwrap();
    assert!(reduced.simulations < 3 * VARIATIONS, "{}", reduced.simulations);
    assert!(!reduced.plan.schedule.is_empty());
}
