//! Planned waits of clients in whole runs.

use std::time::Duration;

use history::{
    Event, Fault, FaultId, Plan, Point, ProcessName, Record, Step, Target, Until, Wait, WaitId, When, fault,
};

use crate::plans::{history, plan};

fn wait(id: u32, point: Point, until: Until, at_most_s: u64, after_s: u64) -> Wait {
    let (at_most, after) = (Duration::from_secs(at_most_s), Duration::from_secs(after_s));
    Wait { id: WaitId(id), worker: "worker-1".into(), point, until, at_most, after }
}

fn run(plan: &Plan) -> Vec<Record> {
    plan.validate().expect("a valid plan");
    history(plan, "redis")
}

/// The processes whose clients reached a point, in order.
fn arrivals(records: &[Record]) -> Vec<&ProcessName> {
    records.iter().filter(|r| matches!(r.event, Event::AtPoint { .. })).map(|r| &r.process).collect()
}

#[test]
fn a_wait_of_a_worker_that_was_killed_goes_to_its_next_process() {
    let mut plan = plan("redis", "none", 1);
    plan.waits = vec![wait(1, Point::BeforeWrite, Until::Healed, 8, 2), wait(2, Point::BeforeWrite, Until::Time, 3, 0)];
    let fault = Fault::new(fault::Kill {}, Duration::from_secs(1));
    let (target, when) = (Target::Node("worker-1".into()), When::WhileWaits(WaitId(1)));
    plan.schedule = vec![Step { id: FaultId(1), fault, target, when }];
    let records = run(&plan);
    assert_eq!(arrivals(&records), [&ProcessName::new("worker-1"), &ProcessName::new("worker-1#2")]);
}

#[test]
fn a_client_that_cancels_its_attempt_at_a_point_leaves_the_point() {
    let mut plan = plan("redis", "none", 1);
    plan.workload.cancel = Some(Duration::from_millis(300));
    plan.waits = vec![wait(1, Point::AfterSend, Until::Time, 2, 2)];
    let records = run(&plan);
    assert_eq!(arrivals(&records).len(), 1, "the client waits once");
    let came = records.iter().find(|r| matches!(r.event, Event::AtPoint { .. })).expect("a wait");
    let left = records.iter().find(|r| matches!(r.event, Event::LeftPoint { released: false, .. })).expect("its end");
    let waited = left.at.since(came.at);
    assert!(waited <= Duration::from_millis(301), "{waited:?}");
}

#[test]
fn a_wait_does_not_outlast_the_fault_phase() {
    let mut plan = plan("redis", "none", 1);
    plan.waits = vec![wait(1, Point::BeforeWrite, Until::Time, 600, 2)];
    let records = run(&plan);
    let first = records.iter().find(|r| matches!(r.event, Event::AtPoint { .. })).expect("a wait").at;
    let released = records.iter().find(|r| matches!(r.event, Event::PointReleased { .. })).expect("a release").at;
    // The wait begins soon after the start of the fault phase, which lasts 10 s.
    let waited = released.since(first);
    assert!(waited > Duration::from_secs(6) && waited <= Duration::from_secs(8), "{waited:?}");
}
